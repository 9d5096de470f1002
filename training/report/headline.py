"""Headline of a run's report: inputs of the report, the outcome in a sentence, four figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from schemas.config import Declaration
from schemas.errors import first_few
from schemas.look_records import look_at
from schemas.new_rows import NewRows
from schemas.observed import Checklist
from schemas.records import (
    CheckResult,
    EvaluationReport,
    GateReport,
    PreflightReport,
    Prepared,
    Record,
    Registered,
    TrainReport,
)
from training.formatting import capital, metric_name, number, percent, plain, plural
from training.registry.ladder import WAITS
from training.report import sections
from training.report.blocks import Tone


class ReportInputs(Record):
    """All inputs of the report.

    `given`: dotted paths that the user's file or overrides set; every other value is shown as a
    default. `links`: name to address or path (MLflow run, Prefect flow run, run directory). `val`,
    `gate`, `registered` and `checklist` are absent if the run did not reach them.
    """

    run_id: str
    declaration: Declaration
    given: tuple[str, ...] = ()
    prepared: Prepared
    preflight: PreflightReport
    train: TrainReport
    metrics_path: Path | None
    test: EvaluationReport
    val: EvaluationReport | None = None
    gate: GateReport | None = None
    registered: Registered | None = None
    provenance: dict[str, Any] = Field(default_factory=dict)
    links: dict[str, str] = Field(default_factory=dict)
    checklist: Checklist | None = None
    new_rows: NewRows | None = None


@dataclass(frozen=True)
class Tile:
    """One of the figures to read first."""

    label: str
    value: str
    note: str
    tone: Tone


@dataclass(frozen=True)
class Headline:
    """The outcome in one sentence, its tone, and the four figures behind it."""

    sentence: str
    tone: Tone
    tiles: tuple[Tile, ...]


def headline(inputs: ReportInputs) -> Headline:
    """Return the verdict in one sentence: metric with interval, skill, checks, registration."""
    results, test = inputs.prepared.checks.results, inputs.test
    failed = any(r.verdict == "fail" for r in (*results, *inputs.preflight.checks.results))
    warned = any(r.verdict == "warn" for r in results)
    is_registered = inputs.registered is not None and inputs.registered.registered
    tone: Tone = (
        "bad"
        if failed or not test.has_skill
        else "good"
        if is_registered and not warned
        else "warn"
    )
    sentence = (
        f"{_metric_words(inputs)}; {_skill_words(inputs)}.{_look_words(inputs)}"
        f" {capital(sections.tally_words(results))}{_warned_words(results)}."
        f" {_registry_words(inputs)}"
    )
    return Headline(
        sentence,
        tone,
        (
            _metric_tile(inputs),
            _skill_tile(inputs),
            _checks_tile(inputs, failed, warned),
            _registry_tile(inputs),
        ),
    )


def _warned_words(results: Sequence[CheckResult]) -> str:
    """Name the checks that warn."""
    names = [r.name.replace("_", " ") for r in results if r.verdict == "warn"]
    return f"; warnings: {first_few(names)}" if names else ""


def _metric_words(inputs: ReportInputs) -> str:
    metric, test = inputs.declaration.metric, inputs.test
    value = test.metrics[metric]
    if value.value is None:
        return (
            f"{capital(metric_name(metric))} is not defined on the {plural(test.rows, 'test row')}"
        )
    bounds = (
        ""
        if value.low is None or value.high is None
        else (
            f" ({percent(inputs.declaration.evaluate.confidence)} interval {number(value.low)} to"
            f" {number(value.high)})"
        )
    )
    return (
        f"{capital(metric_name(metric))} {number(value.value)}{bounds} on"
        f" {plural(test.rows, 'test row')}"
    )


def _look_words(inputs: ReportInputs) -> str:
    """Say how many models were scored on these rows, from the second on."""
    look = look_at(inputs.test.looks, inputs.declaration.metric)
    return f" {capital(look.sentence)}." if look and look.number > 1 else ""


def _skill_words(inputs: ReportInputs) -> str:
    words = {
        "better": "better than",
        "about equal": "not distinguishable from",
        "worse": "worse than",
        "unknown": "not comparable with",
    }
    metric, found = inputs.declaration.metric, sections.standings(inputs.declaration, inputs.test)
    named = {
        place: [
            f"{plain(n)} ({number(inputs.test.baselines[n].get(metric))})"
            for n, p in found.items()
            if p == place
        ]
        for place in words
    }
    compared = (
        ", ".join(f"{words[place]} {_listed(names)}" for place, names in named.items() if names)
        or "no baseline was fitted"
    )
    return (
        compared
        if inputs.test.has_skill
        else (
            "too few rows to say whether it has skill"
            if inputs.test.too_few
            else f"no skill: {compared}"
        )
    )


def _listed(items: Sequence[str]) -> str:
    """Join words as `a`, `a and b`, `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _registry_words(inputs: ReportInputs) -> str:
    if (found := inputs.registered) is not None and found.registered:
        alias = f", alias {plain(found.alias)}" if found.alias else ""
        name = f"{plain(found.name)} version {plain(found.version)}{alias}"
        gate = inputs.gate
        waits = gate is not None and gate.verdict.startswith(WAITS)
        because = "too few rows came to compare the two" if waits else "equal within the noise"
        kept = (
            f" Version {plain(gate.champion_version)} stays champion: {because}."
            if gate is not None and not gate.replaces
            else ""
        )
        return f"Registered as {name}.{kept} {plain(found.note, 1000)}".rstrip()
    why = (
        found.verdict
        if found is not None
        else (
            inputs.gate.verdict
            if inputs.gate is not None
            else "the run did not come to the registry"
        )
    )
    return f"Not registered: {plain(why, 1000).rstrip('.')}."


def _metric_tile(inputs: ReportInputs) -> Tile:
    metric, test = inputs.declaration.metric, inputs.test
    value = test.metrics[metric]
    note = (
        f"{number(value.low)} to {number(value.high)}, {plural(test.rows, 'test row')}"
        if value.low is not None
        else plural(test.rows, "test row")
    )
    return Tile(f"Test {metric_name(metric)}", number(value.value), note, "info")


def _skill_tile(inputs: ReportInputs) -> Tile:
    found = list(sections.standings(inputs.declaration, inputs.test).values())
    won, total = found.count("better"), len(found)
    if not total:
        return Tile("Baselines", "none", "no baseline was fitted", "warn")
    tone: Tone = "bad" if not inputs.test.has_skill else "good" if won == total else "warn"
    return Tile(
        "Beats", f"{won} of {total}", f"baseline{'' if total == 1 else 's'}, beyond chance", tone
    )


def _checks_tile(inputs: ReportInputs, failed: bool, warned: bool) -> Tile:
    found = sections.tally(inputs.prepared.checks.results)
    rest = [
        f"{n} {word}"
        for verdict, word in (("fail", "failed"), ("warn", "warned"), ("allowed", "allowed"))
        if (n := found.get(verdict))
    ]
    tone: Tone = "bad" if failed else "warn" if warned else "good"
    return Tile(
        "Checks passed",
        f"{found.get('pass', 0)} of {sum(found.values())}",
        ", ".join(rest) or "see what they cannot decide",
        tone,
    )


def _registry_tile(inputs: ReportInputs) -> Tile:
    found = inputs.registered
    if found is None or not found.registered:
        return Tile(
            "Registry",
            "no version",
            "see the gate" if inputs.gate is not None else "not attempted",
            "warn",
        )
    return Tile(
        "Registry",
        f"version {plain(found.version)}",
        f"alias {plain(found.alias)}" if found.alias else plain(found.name),
        "good",
    )
