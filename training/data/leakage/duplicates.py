"""Rows whose features equal those of a row on another side: the model has seen them, whatever their id says."""

from __future__ import annotations

from typing import Any, NamedTuple

import duckdb

from schemas.config import Declaration
from schemas.records import CheckResult
from training.data.engine import ident, row, row_md5_sql, rows
from training.data.leakage.sides import Sides

EVIDENCE_PAIRS = 5


class Duplicates(NamedTuple):
    """Rows of a held-out side that equal a train row in every feature."""

    side: str
    rows: int
    total: int
    label_conflicts: int
    pairs: list[dict[str, Any]]


def hash_features(sides: Sides) -> None:
    """Make the temporary table `content`: side, id, labels as texts (a list, null where unknown) and 128-bit hash of the feature columns of every row."""
    label = f"[{', '.join(f'cast({ident(name)} as varchar)' for name in sides.spec.label_columns)}]"
    parts = " union all ".join(
        f"select '{side}' as side, __id, {label} as labels, {row_md5_sql(sides.spec.features)} as content from {relation}"
        for side, relation in sides.relations.items()
    )
    sides.connection.execute(f"create or replace temp table content as {parts}")


def find_duplicates(connection: duckdb.DuckDBPyConnection, side: str) -> Duplicates:
    """Rows of `side` whose content stands in train; the hash covers type, length and null of each value, 128 bits wide.

    Labels conflict where both rows know one and it differs: a label that is unknown contradicts nothing.
    """
    places = range(1, row(connection, "select coalesce(max(len(labels)), 0) from content")[0] + 1)
    lows, highs = (", ".join(f"{extreme}(labels[{i}])" for i in places) for extreme in ("min", "max"))
    train = f"(select content, min(__id) as train_id, [{lows}] as low, [{highs}] as high from content where side = 'train' group by content)"
    conflict = " or ".join(f"coalesce(c.labels[{i}] <> t.low[{i}] or c.labels[{i}] <> t.high[{i}], false)" for i in places)
    matched = f"(select c.__id, t.train_id, c.labels, {conflict} as conflict from content c join {train} t using (content) where c.side = '{side}')"
    count, conflicts = row(connection, f"select count(*), count(*) filter (where conflict) from {matched}")
    total = row(connection, f"select count(*) from content where side = '{side}'")[0]
    pairs = rows(connection, f"select __id, train_id, labels from {matched} order by md5(__id) limit {EVIDENCE_PAIRS}")
    shown = [{f"{side}_id": i, "train_id": t, "label": ", ".join("unknown" if v is None else v for v in values)} for i, t, values in pairs]
    return Duplicates(side, int(count), int(total), int(conflicts), shown)


def judge_duplicates(found: list[Duplicates], within_train: int, declaration: Declaration) -> CheckResult:
    """Fail when the share of a held-out side's rows that stand in train is above `checks.max_duplicate_share`."""
    limit = declaration.checks.max_duplicate_share
    above = [d for d in found if d.rows > limit * d.total]
    some = [d for d in found if d.rows]
    texts = [
        f"{d.rows} of {d.total} {d.side} rows ({d.rows / max(d.total, 1):.2%}) equal a train row in every feature, {d.label_conflicts} of them with another label"
        for d in some
    ]
    figures: dict[str, float | int | str | None] = {f"{d.side}_rows": d.rows for d in found} | {f"{d.side}_share": d.rows / max(d.total, 1) for d in found}
    remedy = "drop the copies, declare the entity they share as a group, leave the id out so that equal rows stay together, or set checks.max_duplicate_share or checks.allow with a reason"
    return CheckResult(
        name="duplicates",
        verdict="fail" if above else "warn" if some else "pass",
        summary="; ".join(texts) or "no val or test row equals a train row in every feature",
        figures={**figures, "within_train": within_train, "threshold": limit},
        evidence=tuple(p for d in found for p in d.pairs),
        remedy=remedy if above else "",
    )


def duplicate_results(sides: Sides) -> list[CheckResult]:
    """The duplicate check on the written files."""
    hash_features(sides)
    connection = sides.connection
    within = row(connection, "select coalesce(sum(n - 1), 0) from (select count(*) as n from content where side = 'train' group by content)")[0]
    found = [find_duplicates(connection, side) for side in sides.held_out]
    return [judge_duplicates(found, int(within), sides.declaration)]
