"""Sections of docs/benchmarks-leaks.md: tables of results, with the method next to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.leaks.cases import Case
from benchmarks.leaks.kinds import KINDS, RATES, ROLE_KINDS
from benchmarks.leaks.run import Record
from benchmarks.leaks.score import Score, Seen, alarms, score, seen
from benchmarks.leaks.tools import NOT_RUN, OURS, Peer
from benchmarks.page import machine, markdown_table, table

PEERS = (
    "\n* **Peers** run in environments of their own, on the same files, one after the other with"
    " this project; they see the cases at a rate of 1 % and some of the honest splits. Of their"
    " checks only those count, for and against, that could be about a leak: drift and data quality"
    " are left out."
)
HEAD = "# Leaks: what is found, and how often a finding is wrong\n"
NOTHING = "–"


@dataclass
class Measured:
    """Results of the tools on the cases."""

    records: list[Record]
    columns: dict[str, tuple[str, ...]]
    peers: Sequence[Peer]
    poison: list[tuple[str, bool, bool]] = field(default_factory=list)
    settings: str = ""
    minutes: float = 0.0
    kept: int = 0


def _kept(measured: Measured) -> str:
    """Return how many results come from an earlier part of the run, as a clause."""
    return (
        f", after a leg that was broken off and left {measured.kept} of {len(measured.records)}"
        " results"
        if measured.kept
        else ""
    )


def cases_section(measured: Measured) -> str:
    """Return what was found, missed and wrongly reported, as Markdown."""
    parts = [
        _how(measured),
        _summary(measured),
        _kinds(measured),
        _missed(measured),
        _honest(measured),
        _poison(measured),
    ]
    return "\n\n".join(p for p in parts if p)


def speed_section(lines: Sequence[Mapping[str, str]]) -> str:
    """Return the durations of the checks and the peers, as Markdown."""
    said = (
        "Measured by `make bench-leaks`, or `python -m benchmarks.leaks --part speed`, on"
        f" {machine()}. Generated Parquet files; each figure from processes that do nothing else."
        " The bare scan reads every value of the columns that the hard assertions use; keys are"
        " numbers, or texts such as K123-7, which could have been spelt otherwise."
    )
    return f"## Speed\n\n{said}\n\n{markdown_table(lines)}"


def _how(measured: Measured) -> str:
    planted = [r for r in measured.records if r.tool == OURS and r.case.kind]
    honest = [r for r in measured.records if r.tool == OURS and not r.case.kind]
    kinds = {r.case.kind for r in planted}
    return (
        f"Made by `{_command(measured)}` ({measured.settings}; {measured.minutes:.0f}"
        f" minutes{_kept(measured)}). Every figure is written by that command.\n\n* **Planted:**"
        f" {len(planted)} cases of {len(kinds)} kinds of leak, at rates of 0.1, 1 and 10 % of the"
        " rows where a rate has a meaning, for binary, multiclass and regression labels, in public"
        " data whose known leaks were taken out and in generated data (`benchmarks/leaks/`).\n*"
        f" **Honest:** {len(honest)} splits of the same tables, at random, by group or by time,"
        " with nothing planted.\n* **Recall:** a check that can see this kind of leak failed or"
        " warned and, where a column leaks, named it. **Net recall:** and no check of that name"
        " fires on the same rows with nothing planted.\n* **Held out:** `diabetes130` and"
        " `wisdm_v11` were never looked at while thresholds were chosen."
        + (PEERS if measured.peers else "")
    )


def _command(measured: Measured) -> str:
    if measured.peers:
        return "make bench-leaks"
    return "python -m benchmarks.leaks --part cases --no-peers"


def _summary(measured: Measured) -> str:
    shared = {r.case.name for r in measured.records if r.tool != OURS}
    poisoned = (
        frozenset(k.name for k in KINDS if k.by_poison)
        if all(found for _, leaky, found in measured.poison if leaky) and measured.poison
        else frozenset()
    )
    rows = [
        (
            "Bulkhead, all but held out",
            score(OURS, measured.records, measured.columns, lambda c: not c.held_out),
        )
    ]
    rows.append(
        (
            "Bulkhead, held-out data",
            score(OURS, measured.records, measured.columns, lambda c: c.held_out),
        )
    )
    rows.append(
        (
            "Bulkhead, leaks of declared roles",
            score(OURS, measured.records, measured.columns, lambda c: c.kind in ROLE_KINDS),
        )
    )
    if poisoned:
        rows.append(
            (
                "Bulkhead, statistics over all rows seen at their source by the poison test",
                score(OURS, measured.records, measured.columns, also=poisoned),
            )
        )
    if shared:
        rows.append(
            (
                "Bulkhead, what the peers saw",
                score(OURS, measured.records, measured.columns, lambda c: c.name in shared),
            )
        )
    rows += [
        (f"{p.name} {p.version}", score(p.name, measured.records, measured.columns))
        for p in measured.peers
        if not p.absent
    ]
    lines = [_score_row(name, found) for name, found in rows if found.planted or found.honest]
    lines += [
        [f"{p.name} {p.version}", f"not run: {p.absent}", *[NOTHING] * 7]
        for p in measured.peers
        if p.absent
    ]
    not_run = NOT_RUN if measured.peers else ()
    lines += [[name, f"not run: {why}", *[NOTHING] * 7] for name, why in not_run]
    headers = [
        "",
        "planted",
        "recall",
        "net recall",
        "net, mean over kinds",
        "honest",
        "with a FAIL",
        "with a WARN",
        "median s",
    ]
    return "## Summary\n\n" + table(headers, lines) + _ratios(measured)


def _score_row(name: str, found: Score) -> list[str]:
    shares = [
        _share(found.recall),
        _share(found.net),
        _share(found.by_kind),
        str(found.honest),
        _share(found.failed),
        _share(found.warned),
    ]
    broken = f" ({found.errors} errors)" if found.errors else ""
    return [
        name,
        f"{found.planted}{broken}",
        *shares,
        f"{found.seconds:.2f}" if found.seconds is not None else NOTHING,
    ]


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"


def _ratios(measured: Measured) -> str:
    """Return each peer's time on a case as a multiple of this project's."""
    own = {r.case.name: r.outcome.seconds for r in measured.records if r.tool == OURS}
    said = []
    for peer in (p for p in measured.peers if not p.absent):
        found = [
            r.outcome.seconds / own[r.case.name]
            for r in measured.records
            if r.tool == peer.name and own.get(r.case.name)
        ]
        if found:
            said.append(
                f"{peer.name} took {median(found):.1f} times as long as Bulkhead on the same case"
                f" (median of {len(found)})"
            )
    return "\n\n" + "; ".join(said).capitalize() + "." if said else ""


def _kinds(measured: Measured) -> str:
    own = seen([r for r in measured.records if r.tool == OURS], measured.columns)
    others = {
        p.name: seen([r for r in measured.records if r.tool == p.name], measured.columns)
        for p in measured.peers
        if not p.absent
    }
    rows = []
    for kind in KINDS:
        mine = [s for s in own if s.case.kind == kind.name]
        if not mine:
            continue
        cells = [_tally([s for s in mine if s.case.rate == rate]) for rate in RATES]
        net = f"{sum(s.net for s in mine)} of {len(mine)}"
        rows.append(
            [
                f"`{kind.name}`",
                kind.words,
                *cells,
                net,
                *(
                    _tally([s for s in found if s.case.kind == kind.name])
                    for found in others.values()
                ),
            ]
        )
    headers = [
        "kind",
        "what is planted",
        "0.1 %",
        "1 %",
        "10 %",
        "net, all",
        *(f"{name}, 1 %" for name in others),
    ]
    note = "Hits of cases; a kind whose rate has no meaning stands under 1 %."
    return f"## By kind\n\n{note}\n\n{table(headers, rows)}"


def _tally(found: Sequence[Seen]) -> str:
    return f"{sum(s.hit for s in found)}/{len(found)}" if found else NOTHING


def _missed(measured: Measured) -> str:
    own = seen([r for r in measured.records if r.tool == OURS], measured.columns)
    missed: dict[str, list[Case]] = {}
    for found in own:
        if not found.net:
            missed.setdefault(found.case.kind, []).append(found.case)
    if not missed:
        return ""
    rows = [
        [
            f"`{kind}`",
            str(len(cases)),
            ", ".join(sorted({f"{c.base} {c.task} {c.rate:.1%}" for c in cases})),
        ]
        for kind, cases in missed.items()
    ]
    return (
        "## Not found\n\nPlanted cases that Bulkhead does not see, or that it cannot tell from the"
        " honest rows.\n\n" + table(["kind", "cases", "where"], rows)
    )


def _honest(measured: Measured) -> str:
    rows = []
    for tool in [OURS, *(p.name for p in measured.peers if not p.absent)]:
        rows += [
            [tool, f"`{check}`", verdict, str(count), ", ".join(tables)]
            for check, verdict, count, tables in alarms(tool, measured.records)
        ]
    if not rows:
        return "## Alarms on honest splits\n\nNone."
    return "## Alarms on honest splits\n\n" + table(
        ["tool", "check", "verdict", "splits", "tables"], rows
    )


def _poison(measured: Measured) -> str:
    if not measured.poison:
        return ""
    leaky = [found for _, is_leaky, found in measured.poison if is_leaky]
    clean = [found for _, is_leaky, found in measured.poison if not is_leaky]
    rows = [
        [name, "held-out rows too" if is_leaky else "train alone", "found" if found else "silent"]
        for name, is_leaky, found in measured.poison
    ]
    said = (
        f"{sum(leaky)} of {len(leaky)} ways of fitting that touch held-out rows are found;"
        f" {sum(clean)} of {len(clean)} clean ones are accused."
    )
    return (
        "## Poison test\n\nHeld-out rows are corrupted and everything is fitted again; what was"
        f" fitted must keep its bytes. {said}\n\n" + table(["fitted", "on", "poison test"], rows)
    )
