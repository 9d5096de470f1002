"""Findings from the comparison of several ranks. The module does not load torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from training.watch.events import Place
from training.watch.record import Seen

FEW, SHARED = 10, 0.02  # least number and share of equal rows
# messages of gloo when another process has ended
GONE = ("Connection closed by peer", "Connection reset by peer")


class Called(NamedTuple):
    """A collective call of one rank."""

    name: str
    place: Place


def read_calls(log: Path) -> list[Called]:
    """Read the collectives that a rank has called."""
    if not log.exists():
        return []
    parts = [line.split("\t") for line in log.read_text().splitlines()]
    return [Called(name, Place(path, int(line))) for name, line, path in parts]


def compared(reports: list[dict[str, Any] | None], calls: list[list[Called]]) -> list[Seen]:
    """Find mistakes that only several ranks together show.

    Args:
        reports: report of each rank; None for a killed rank.
        calls: collectives of each rank.
    """
    found = []
    for position in range(max(map(len, calls), default=0)):
        at = [c[position] if position < len(c) else None for c in calls]
        if len(set(at)) > 1:
            who = next(
                i for i, c in enumerate(at) if c is not None and any(c != other for other in at)
            )
            there, missing = at[who], next(i for i, c in enumerate(at) if c != at[who])
            if there is not None and (at[missing] is None or at[missing] != there):
                other = at[missing]
                does = (
                    f"calls {other.name} in line {other.place.line}"
                    if other is not None
                    else "does not"
                )
                found.append(
                    Seen(
                        "BH604",
                        there.place,
                        f"rank {who} calls {there.name}, and rank {missing} {does}: they wait for"
                        " each other, or mix their numbers",
                    )
                )
            break
    found += _left(reports) + _idle(reports)
    whole = [r["ranks"] for r in reports if r is not None and not r["error"]]
    return found + _apart(whole) if len(whole) == len(reports) > 1 and not found else found


def _left(reports: list[dict[str, Any] | None]) -> list[Seen]:
    """Report a rank that ended while another one was waiting for it."""
    ended = [i for i, r in enumerate(reports) if r is not None and r["complete"] and not r["error"]]
    for rank, report in enumerate(reports):
        if (
            ended
            and report is not None
            and report["error_at"]
            and any(gone in report["error"] for gone in GONE)
        ):
            return [
                Seen(
                    "BH619",
                    Place(*report["error_at"]),
                    f"rank {rank} waits here for rank {ended[0]}, which has left its loop and"
                    " ended: each decides by itself when to stop",
                )
            ]
    return []


def _idle(reports: list[dict[str, Any] | None]) -> list[Seen]:
    """Report a rank that computes gradients but makes no optimizer step, unlike others."""
    idle = next(
        (
            i
            for i, r in enumerate(reports)
            if r is not None and r["complete"] and r["backwards"] and not r["steps"]
        ),
        None,
    )
    leads = next(
        (
            r["ranks"]["optimizer_at"]
            for r in reports
            if r is not None and r["complete"] and r["steps"]
        ),
        None,
    )
    if idle is None or leads is None:
        return []
    return [
        Seen(
            "BH824",
            Place(*leads),
            f"rank {idle} makes no step of its optimizer, and others do: it keeps its first"
            " weights, and gives gradients of them",
        )
    ]


def _apart(ranks: list[dict[str, Any]]) -> list[Seen]:
    """Report ranks with different weights after the same step, or with the same rows."""
    found = list[Seen]()
    if not all(r["grouped"] and r["optimizer_at"] for r in ranks):
        return found
    place = Place(*ranks[0]["optimizer_at"])
    common = [key for key in ranks[0]["digests"] if all(key in r["digests"] for r in ranks)]
    # ranks may train alone and then average their weights
    averaged = ranks[0]["last"] and all(r["last"] == ranks[0]["last"] for r in ranks)
    apart = (
        [] if averaged else [key for key in common if len({r["digests"][key] for r in ranks}) > 1]
    )
    if apart:
        step = apart[0].split(":")[1]
        found.append(
            Seen(
                "BH824",
                place,
                f"after step {step} ranks hold different weights: each trains a network of its own",
            )
        )
    rows = [set(r["rows"]) for r in ranks]
    if all(len(r) >= FEW for r in rows) and all(r == rows[0] for r in rows[1:]):
        found.append(
            Seen(
                "BH513",
                place,
                f"the first {len(rows[0])} rows that each of {len(rows)} ranks trains on are the"
                " same",
            )
        )
    return found + (_crossed(ranks) if common and not apart else [])


def _crossed(ranks: list[dict[str, Any]]) -> list[Seen]:
    """Report rows that one rank holds out and another one trains on."""
    found = list[Seen]()
    for rank, report in enumerate(ranks):
        for place, rows in report["held"]:
            for other, trained in enumerate(r["trained"] for r in ranks):
                known = len(set(rows) & set(trained))
                if other != rank and known >= max(FEW, SHARED * len(rows)):
                    told = (
                        f"rank {other} trains on {known} of the {len(rows)} rows that rank {rank}"
                        " holds out: each rank has made a split of its own"
                    )
                    found.append(Seen("BH803", Place(*place), told))
    return found[:1]
