"""What stands on each side: figures for the report, and the refusal of sides that nothing can be learnt or measured on."""

from __future__ import annotations

from typing import Any

import duckdb

from schemas.config import SPLITS, Declaration, SplitName
from schemas.errors import SplitError, first_few
from schemas.records import TableSpec
from training.data.engine import ident, literal, row, rows
from training.data.time_cuts import time_text

REMEDIES = {
    "random": "change split.seed or split.fractions, or give more rows",
    "group": "fix some groups by hand with split.pin, e.g. {NAME: val}, or change split.seed or split.fractions",
    "stratified": "change split.fractions, or give more rows",
    "stratified_group": "give more groups, or use split.kind: group with split.pin",
    "time": "change split.cuts or split.fractions, or shorten split.embargo",
    "group_time": "fix groups by hand with split.pin, change split.cuts, fractions or group_fractions, or shorten split.embargo",
    "predefined": "set split.carve_val to take validation from train, or list the column's values under split.train, val and test",
}


def refuse_unusable(connection: duckdb.DuckDBPyConnection, table: str, sides: str, spec: TableSpec, declaration: Declaration) -> None:
    """Refuse sides without rows, with a single class, or with a class that train lacks.

    Args:
        connection: the engine.
        table: the validated rows.
        sides: relation of `__id` and `side`.
        spec: what the columns are.
        declaration: the task and the strategy, which decides the remedy.

    Raises:
        SplitError: with rows by side, groups, and what to change.
    """
    remedy = REMEDIES[declaration.split.kind]
    counts = dict(rows(connection, f"select side, count(*) from {sides} group by 1"))
    empty = [s for s in SPLITS if not counts.get(s)]
    if empty:
        reasons = "".join(f", {n} left out ({r})" for r, n in sorted(counts.items()) if r not in SPLITS)
        groups = f"; {row(connection, f'select count(distinct __group) from {table}')[0]} groups" if spec.group else ""
        shown = ", ".join(f"{s} {counts.get(s, 0)}" for s in SPLITS)
        raise SplitError(
            f"split {declaration.split.kind}: expected rows on every side, got {shown}{reasons}{groups}: {' and '.join(empty)} would be empty; {remedy}"
        )
    if declaration.task.kind not in ("regression", "causal_lm"):
        _refuse_classes(connection, table, sides, spec, remedy)


def summarize(connection: duckdb.DuckDBPyConnection, table: str, sides: str, spec: TableSpec, declaration: Declaration) -> dict[SplitName, dict[str, Any]]:
    """For each side: rows, share of the kept rows, groups, first and last time, and figures of the label."""
    found: dict[SplitName, dict[str, Any]] = {}
    kept = row(connection, f"select count(*) from {sides} where side in ('train', 'val', 'test')")[0]
    for side in SPLITS:
        relation = _of_side(table, sides, side)
        count, groups, first, last = row(connection, f"select count(*), count(distinct __group), min(__time), max(__time) from {relation}")
        found[side] = {"rows": count, "share": round(count / kept, 6)}
        if spec.group:
            found[side]["groups"] = groups
        if spec.time:
            found[side] |= {"time_min": time_text(first, spec), "time_max": time_text(last, spec)}
        found[side]["label"] = _label_figures(connection, relation, spec, declaration.task.kind)
    return found


def class_counts(connection: duckdb.DuckDBPyConnection, relation: str, spec: TableSpec) -> dict[str, int]:
    """Rows by class, as text, in the order of the classes."""
    label = ident(spec.label)
    return {str(v): n for v, n in rows(connection, f"select cast({label} as varchar), count(*) from {relation} group by {label} order by {label}")}


def _of_side(table: str, sides: str, side: str) -> str:
    return f"(select * from {table} where __id in (select __id from {sides} where side = {literal(side)}))"


def _refuse_classes(connection: duckdb.DuckDBPyConnection, table: str, sides: str, spec: TableSpec, remedy: str) -> None:
    counts = {side: class_counts(connection, _of_side(table, sides, side), spec) for side in SPLITS}
    for side in SPLITS:
        if len(counts[side]) < 2:
            only, number = next(iter(counts[side].items()))
            why = "nothing can be learnt from it" if side == "train" else "ranking metrics are not defined on it"
            raise SplitError(
                f"column {spec.label!r}: expected at least two classes in {side}, got only {only!r} ({number} rows), so {why}; {remedy}, or use a stratified split"
            )
        unseen = [f"{c!r} ({n} rows)" for c, n in counts[side].items() if c not in counts["train"]]
        if unseen:
            raise SplitError(
                f"column {spec.label!r}: expected every class of {side} in train, but train lacks {first_few(unseen, len(unseen))}; {remedy}, or leave these rows out with data.filter"
            )


def _label_figures(connection: duckdb.DuckDBPyConnection, relation: str, spec: TableSpec, task: str) -> dict[str, Any]:
    if task == "causal_lm":
        characters, longest = row(connection, f"select sum(length({ident(spec.label)})), max(length({ident(spec.label)})) from {relation}")
        return {"characters": int(characters), "longest": int(longest)}
    if task != "regression":
        return {"counts": class_counts(connection, relation, spec)}
    label = f"cast({ident(spec.label)} as double)"
    mean, deviation, least, most = row(connection, f"select favg({label}), stddev_pop({label}), min({label}), max({label}) from {relation}")
    # sums of a parallel engine differ in the last bits from run to run
    return {"mean": float(f"{mean:.9g}"), "std": float(f"{deviation:.9g}"), "min": least, "max": most}
