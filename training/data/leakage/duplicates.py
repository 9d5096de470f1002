"""Rows whose features equal those of a row in another split.

The model has seen them, even under another id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from schemas.config import Declaration, SplitName
from schemas.errors import counted
from schemas.records import CheckResult
from training.data.engine.distinct import distinct
from training.data.engine.engine import ident, row, row_md5_sql, rows
from training.data.leakage.chance import tail_above
from training.data.leakage.keys import BATCH_ROWS, in_order, uint64
from training.data.leakage.sides import Sides
from training.data.leakage.straddle import parts_of

EVIDENCE_PAIRS = 5
# of train, to find columns that distinguish rows
SAMPLE_ROWS, TELLING_COLUMNS = (10_000, 3)
# of the rows; up to this many repeated hashes of such columns, only these rows are read as a whole
FEW_ALIKE = 0.01
MANY = 0.01  # least share of a split for which equal rows need no comparison with train's own
CHANCE = 0.01  # of so many equal rows, if they were as frequent as within train
# equal rows with another label: from this number and share on, they are not copies; of a side
# alone, or together with the rows that train repeats itself
FEWEST_CONTRADICTED, CONTRADICTED = (3, 0.1)


class Duplicates(NamedTuple):
    """Held-out rows that equal a train row in every feature, and the first few with their twins."""

    side: str
    rows: int
    total: int
    label_conflicts: int
    pairs: list[dict[str, Any]]


class Within(NamedTuple):
    """Rows of train that repeat another one: the rate of equal rows without a leak.

    They come from chance, or from the way the table was made. `label_conflicts`: those that have
    another label than a row they repeat.
    """

    rows: int
    total: int
    label_conflicts: int = 0


def quick_hash_sql(sides: Sides) -> str:
    """Return SQL for a 64-bit hash of all features.

    It is twelve times cheaper than the text that decides equality, and equal for equal rows.
    """
    return _hash_sql(sides.spec.features)


def _hash_sql(columns: Sequence[str]) -> str:
    return f"hash({', '.join(map(ident, columns))})"


def hash_features(sides: Sides) -> None:
    """Make the temporary table `equal_rows` of all rows that may equal another one.

    Its columns are side, id, `label_<i>`, and a 128-bit hash `content` of the features.
    Candidates are found by a 64-bit hash, in one scan; if there are none, nothing else is
    read.
    """
    connection, quick, names = (
        sides.connection,
        quick_hash_sql(sides),
        list(sides.spec.label_columns),
    )
    connection.register("repeated_hashes", pa.table({"h": repeated_hashes(sides)}))
    found = row(connection, "select count(*) from repeated_hashes")[0]
    labels = "".join(f", {ident(name)} as label_{i}" for i, name in enumerate(names))
    everything = sides.together(["__id", *dict.fromkeys([*names, *sides.spec.features])])
    candidates = (
        f"from {everything} where {quick} in (select h from repeated_hashes)"
        if found
        else f"from {everything} limit 0"
    )
    connection.execute(
        f"create or replace temp table equal_rows as select side, __id{labels},"
        f" {row_md5_sql(sides.spec.features)} as content {candidates}"
    )
    connection.unregister("repeated_hashes")
    texts = (  # null where unknown
        f"[{', '.join(f'cast(label_{i} as varchar)' for i in range(len(names)))}]"
    )
    connection.execute(
        f"create or replace temp view content as select side, __id, {texts} as labels, content from"
        " equal_rows"
    )


def repeated_hashes(sides: Sides) -> np.ndarray:
    """Return the 64-bit hashes, uint64, sorted, of all features that more than one row has.

    Equal rows are equal in a few columns too. If these distinguish rows, only the few rows
    that are alike in them are read as a whole.
    """
    few = _telling_columns(sides)
    if len(few) < len(sides.spec.features):
        alike = _repeated(sides, few)
        if len(alike) <= FEW_ALIKE * sum(sides.num_rows.values()):
            sides.connection.register("alike_hashes", pa.table({"h": alike}))
            try:
                return (
                    _repeated(
                        sides,
                        sides.spec.features,
                        f"{_hash_sql(few)} in (select h from alike_hashes)",
                    )
                    if len(alike)
                    else alike
                )
            finally:
                sides.connection.unregister("alike_hashes")
    return _repeated(sides, sides.spec.features)


def _telling_columns(sides: Sides) -> list[str]:
    """Return the features with the most different values in a sample of train.

    As many are returned as together distinguish its rows, or all.
    """
    listed = ", ".join(map(ident, sides.spec.features))
    sample = sides.connection.sql(
        f"select {listed} from {sides.relations['train']} limit {SAMPLE_ROWS}"
    ).to_arrow_table()
    counts = {
        name: len(column.unique())
        for name, column in zip(sides.spec.features, sample.columns, strict=True)
        if pa.types.is_primitive(column.type)
    }
    names = sorted(counts, key=lambda name: -counts[name])[:TELLING_COLUMNS]
    tell = bool(names) and len(sample.select(names).group_by(names).aggregate([])) == len(sample)
    return names if tell else list(sides.spec.features)


def _repeated(sides: Sides, columns: Sequence[str], condition: str = "true") -> np.ndarray:
    """Return the 64-bit hashes of these columns that more than one row has, uint64, sorted.

    Only rows that meet a condition count. The hashes are sorted in as many parts as memory
    requires, which is cheaper than the engine's grouping.
    """
    rows_of = (
        f"(select {_hash_sql(columns)} as h from {sides.together(sides.spec.features)} where"
        f" {condition})"
    )
    found, parts = [np.empty(0, np.uint64)], parts_of(sides)
    for part in range(parts):
        here = f"where h % {parts} = {part}" if parts > 1 else ""
        reader = sides.connection.sql(f"select h from {rows_of} {here}").to_arrow_reader(BATCH_ROWS)
        hashes = in_order(uint64(batch.column(0)) for batch in reader)
        found.append(distinct(hashes[1:][hashes[1:] == hashes[:-1]]))
    return np.sort(np.concatenate(found))


def find_duplicates(sides: Sides, side: SplitName) -> Duplicates:
    """Return rows of `side` whose content is in train.

    The hash covers type, length and null of each value and has 128 bits. Labels conflict if both
    rows know one and they differ: an unknown label contradicts nothing.
    """
    connection, places = sides.connection, range(1, len(sides.spec.label_columns) + 1)
    lows, highs = (
        ", ".join(f"{extreme}(labels[{i}])" for i in places) for extreme in ("min", "max")
    )
    train = (
        f"(select content, min(__id) as train_id, [{lows}] as low, [{highs}] as high from content"
        " where side = 'train' group by content)"
    )
    conflict = " or ".join(
        f"coalesce(c.labels[{i}] <> t.low[{i}] or c.labels[{i}] <> t.high[{i}], false)"
        for i in places
    )
    matched = (
        f"(select c.__id, t.train_id, c.labels, {conflict} as conflict from content c join {train}"
        f" t using (content) where c.side = '{side}')"
    )
    count, conflicts = row(
        connection, f"select count(*), count(*) filter (where conflict) from {matched}"
    )
    pairs = rows(
        connection,
        f"select __id, train_id, labels from {matched} order by md5(__id) limit {EVIDENCE_PAIRS}",
    )
    shown = [
        {
            f"{side}_id": i,
            "train_id": t,
            "label": ", ".join("unknown" if v is None else v for v in values),
        }
        for i, t, values in pairs
    ]
    return Duplicates(side, int(count), sides.num_rows[side], int(conflicts), shown)


def judge_duplicates(
    found: list[Duplicates], within: Within, declaration: Declaration
) -> CheckResult:
    """Fail if more held-out rows than `checks.max_duplicate_share` are copies of train rows.

    Equal rows are copies if they are more frequent than within train (or many), and their labels
    are equal, too. Coarse features make different subjects alike, at the same rate in every split
    and with separate labels, also within train. That is a warning.
    """
    limit = declaration.checks.max_duplicate_share
    above = [d for d in found if d.rows > limit * d.total and _are_copies(d, within)]
    some = [d for d in found if d.rows]
    texts = [
        f"{d.rows} of {counted(d.total, f'{d.side} row')} ({d.rows / max(d.total, 1):.2%})"
        f" {'equals' if d.rows == 1 else 'equal'} a train row in"
        f" every feature, {d.label_conflicts} of them with another label"
        for d in some
    ]
    figures: dict[str, float | int | str | None] = {f"{d.side}_rows": d.rows for d in found} | {
        f"{d.side}_share": d.rows / max(d.total, 1) for d in found
    }
    together = "set data.group_by: {duplicates: features} with split.kind: group, "
    remedy = (
        "drop the copies, declare the entity they share as a group,"
        f" {together if declaration.data.engine == 'duckdb' else ''}leave the id out so that equal"
        " rows stay together, or set checks.max_duplicate_share or checks.allow with a reason"
    )
    return CheckResult(
        name="duplicates",
        verdict="fail" if above else "warn" if some else "pass",
        summary="; ".join(texts) or "no val or test row equals a train row in every feature",
        figures={**figures, "within_train": within.rows, "threshold": limit},
        evidence=tuple(p for d in found for p in d.pairs),
        remedy=remedy if above else "",
    )


def _are_copies(found: Duplicates, within: Within) -> bool:
    many = found.rows >= MANY * found.total
    more = tail_above(found.rows, found.total, within.rows, within.total) < CHANCE
    with_train = found.label_conflicts + within.label_conflicts, found.rows + within.rows
    contradicted = any(
        conflicts >= max(FEWEST_CONTRADICTED, CONTRADICTED * rows)
        for conflicts, rows in ((found.label_conflicts, found.rows), with_train)
    )
    return more or (many and not contradicted)


def _within_train(sides: Sides) -> Within:
    """Count the train rows that repeat another one, and those of them whose labels differ."""
    places = range(1, len(sides.spec.label_columns) + 1)
    differ = " or ".join(f"coalesce(min(labels[{i}]) <> max(labels[{i}]), false)" for i in places)
    repeats, conflicts = row(
        sides.connection,
        "select coalesce(sum(n), 0), coalesce(sum(n) filter (where differ), 0) from (select"
        f" count(*) as n, {differ or 'false'} as differ from content where side = 'train'"
        " group by content having count(*) > 1)",
    )
    return Within(int(repeats), sides.num_rows["train"], int(conflicts))


def duplicate_results(sides: Sides) -> list[CheckResult]:
    """Run the duplicate check on the written files, after `hash_features`.

    The result is empty if there is no feature to compare.
    """
    if not sides.spec.features:
        return []
    found = [find_duplicates(sides, side) for side in sides.held_out]
    return [judge_duplicates(found, _within_train(sides), sides.declaration)]
