"""Figures of each split for the report; refuse splits that cannot be used to train or measure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb

from schemas.config import SPLITS, Declaration, SplitName
from schemas.errors import SplitError, counted, first_few
from schemas.records import TableSpec
from training.data.engine.engine import count_distinct, ident, row, rows
from training.data.split.time_cuts import time_text

REMEDIES = {
    "random": "change split.seed or split.fractions, or give more rows",
    "group": (
        "fix some groups by hand with split.pin, e.g. {NAME: val}, set split.balance: true, or"
        " change split.seed or split.fractions"
    ),
    "stratified": "change split.fractions, or give more rows",
    "stratified_group": "give more groups, or use split.kind: group with split.pin",
    "time": (
        "change split.cuts or split.fractions (with split.roll: split.test and split.val), or"
        " shorten split.embargo"
    ),
    "group_time": (
        "fix groups by hand with split.pin, change split.cuts, fractions (with split.roll: test and"
        " val) or group_fractions, or shorten split.embargo"
    ),
    "predefined": (
        "set split.carve_val to take validation from train, or list the column's values under"
        " split.train, val and test"
    ),
}


def refuse_unusable(
    connection: duckdb.DuckDBPyConnection,
    sided: str,
    spec: TableSpec,
    declaration: Declaration,
    fold: tuple[str, str] | None = None,
) -> None:
    """Refuse splits without rows, with a single class, or with a class that train lacks.

    Among several labels, a single class in validation or test is allowed: metrics leave
    that label out there, and say so.

    Args:
        connection: the engine.
        sided: relation of the validated rows with their `__side`.
        spec: what the columns are.
        declaration: the task and the strategy, which decides the remedy.
        fold: for a fold, its name and the remedy.

    Raises:
        SplitError: with rows by split, groups, and what to change.
    """
    name, remedy = fold or (f"split {declaration.split.kind}", REMEDIES[declaration.split.kind])
    counts = dict(rows(connection, f"select __side, count(*) from {sided} group by 1"))
    empty = [s for s in SPLITS if not counts.get(s)]
    if empty:
        reasons = "".join(
            f", {n} left out ({r})" for r, n in sorted(counts.items()) if r not in SPLITS
        )
        number = count_distinct(connection, "__group", sided)
        groups = f"; {counted(number, 'group')}" if spec.grouped else ""
        shown = ", ".join(f"{s} {counts.get(s, 0)}" for s in SPLITS)
        raise SplitError(
            f"{name}: expected rows on every side, got {shown}{reasons}{groups}:"
            f" {' and '.join(empty)} would be empty; {remedy}"
        )
    for label in spec.label_columns if spec.text is None else ():
        if declaration.task.label(label).kind != "regression":
            _refuse_classes(connection, sided, label, spec.has_several_labels, remedy)


def summarize(
    connection: duckdb.DuckDBPyConnection,
    sides: Mapping[SplitName, str],
    spec: TableSpec,
    declaration: Declaration,
) -> dict[SplitName, dict[str, Any]]:
    """Summarize each split, given as a relation.

    The figures are rows, share of the kept rows, groups, first and last time, and figures of the
    label.
    """
    found: dict[SplitName, dict[str, Any]] = {}
    kept = sum(
        row(connection, f"select count(*) from {relation}")[0] for relation in sides.values()
    )
    for side, relation in sides.items():
        count, first, last = row(
            connection, f"select count(*), min(__time), max(__time) from {relation}"
        )
        found[side] = {"rows": count, "share": round(count / kept, 6)}
        if spec.grouped:
            found[side]["groups"] = count_distinct(connection, "__group", relation)
        if spec.time:
            found[side] |= {"time_min": time_text(first, spec), "time_max": time_text(last, spec)}
        found[side] |= _labels(connection, relation, spec, declaration)
    return found


def class_counts(connection: duckdb.DuckDBPyConnection, relation: str, name: str) -> dict[str, int]:
    """Count rows by class of a label, as text, in the order of the classes.

    Rows whose label is unknown are left out.
    """
    label = ident(name)
    known = (
        f"select cast({label} as varchar), count(*) from {relation} where {label} is not null group"
        f" by {label} order by {label}"
    )
    return {str(v): n for v, n in rows(connection, known)}


def _refuse_classes(
    connection: duckdb.DuckDBPyConnection,
    sided: str,
    name: str,
    is_one_of_several: bool,
    remedy: str,
) -> None:
    label = ident(name)
    classes = (
        f"select __side as side, {label} as label, count(*) as n from {sided} where {label} is not"
        " null group by 1, 2"
    )
    found = rows(
        connection, f"select side, cast(label as varchar), n from ({classes}) order by side, label"
    )
    counts = {
        side: {str(value): number for of, value, number in found if of == side} for side in SPLITS
    }
    for side in SPLITS:
        if len(counts[side]) < 2 and (side == "train" or not is_one_of_several):
            only = (
                ", ".join(
                    f"only {value!r} ({counted(number, 'row')})"
                    for value, number in counts[side].items()
                )
                or "nulls only"
            )
            why = (
                "nothing can be learnt from it"
                if side == "train"
                else "ranking metrics are not defined on it"
            )
            advice = "leave this label out" if is_one_of_several else "use a stratified split"
            raise SplitError(
                f"column {name!r}: expected at least two classes in {side}, got {only}, so {why};"
                f" {remedy}, or {advice}"
            )
        unseen = [
            f"{c!r} ({counted(n, 'row')})"
            for c, n in counts[side].items()
            if c not in counts["train"]
        ]
        if unseen:
            raise SplitError(
                f"column {name!r}: expected every class of {side} in train, but train lacks"
                f" {first_few(unseen, len(unseen))}; {remedy}, or leave these rows out with"
                " data.filter"
            )


def _labels(
    connection: duckdb.DuckDBPyConnection, relation: str, spec: TableSpec, declaration: Declaration
) -> dict[str, Any]:
    """Return figures of the label, of each of several labels, or of the documents."""
    if spec.text is not None:
        characters, longest = row(
            connection,
            f"select sum(length({ident(spec.text)})), max(length({ident(spec.text)})) from"
            f" {relation}",
        )
        return {"label": {"characters": int(characters), "longest": int(longest)}}
    figures = {
        name: _label_figures(connection, relation, name, declaration.task.label(name).kind)
        for name in spec.label_columns
    }
    return {"labels": figures} if spec.has_several_labels else {"label": figures[spec.label]}


def _label_figures(
    connection: duckdb.DuckDBPyConnection, relation: str, name: str, kind: str
) -> dict[str, Any]:
    if kind != "regression":
        return {"counts": class_counts(connection, relation, name)}
    label = f"cast({ident(name)} as double)"
    mean, deviation, least, most = row(
        connection,
        f"select favg({label}), stddev_pop({label}), min({label}), max({label}) from {relation}",
    )
    if mean is None:  # one of several labels, unknown in every row of the split
        return {"mean": None, "std": None, "min": None, "max": None}
    # sums of a parallel engine differ in the last bits from run to run
    return {
        "mean": float(f"{mean:.9g}"),
        "std": float(f"{deviation:.9g}"),
        "min": least,
        "max": most,
    }
