"""Ids and groups in two splits in different spellings: `P-007`, `p7` and `Ｐ 7` are one patient.

Keys are brought to a canonical spelling, by the strongest of `SPELLINGS` that keeps the keys
of train distinct. Where two keys of train become equal, the difference between them has a meaning,
and a weaker spelling is tried. Keys are compared by hashes of that spelling. Only keys whose hashes
match are read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import combinations, islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from schemas.config import SplitName
from schemas.errors import counted, first_few
from schemas.records import CheckResult
from training.data.advice import in_yaml, sql_name
from training.data.engine.distinct import distinct, num_distinct
from training.data.engine.engine import ident, row, rows
from training.data.leakage.keys import in_order, key_batches, uint64
from training.data.leakage.sides import Sides
from training.data.leakage.spellings import SPELLINGS, fold, one_spelling
from training.data.leakage.straddle import among, common, parts_of

EVIDENCE_ROWS = 10
# batches: each is folded while it fits into the processor's cache, but a separate query for each
# would cost as much as its hashes
HASHED_AT_ONCE = 8
# share of train's keys that may become equal: train contains aliases, too, if the splits do
MOST_COLLISIONS = 0.02


class Aliases(NamedTuple):
    """Keys of one split that are a key of another in a different spelling.

    `spelling` says how the two may differ; `collisions` counts keys of train that this spelling
    makes equal.
    """

    spelling: str
    keys: int
    rows: int
    collisions: int
    train_keys: int
    examples: list[dict[str, str]]


def find_aliases(
    sides: Sides, column: str, train_keys: int, repeats: bool = True
) -> Aliases | None:
    """Find aliases of a key column across splits.

    Return None if no spelling keeps train's keys distinct.

    Args:
        sides: to look at. One scan per spelling, 8 bytes a row, and one more scan where keys match;
            call it only if keys are not all spelt alike.
        column: of text.
        train_keys: number of different keys of train.
        repeats: as in `key_batches`.
    """
    parts = parts_of(sides)
    for spelling in SPELLINGS:
        plain_keys, met = 0, [np.empty(0, np.uint64)]
        for part in range(parts):
            read = {
                side: in_order(
                    p for _, p in _spelt(sides, column, side, spelling, part, parts, repeats)
                )
                for side in sides.relations
            }
            plain_keys += num_distinct(read["train"])
            met += [common(a, b) for a, b in combinations(read.values(), 2)]
        if train_keys - plain_keys <= MOST_COLLISIONS * train_keys:
            _collect(
                sides,
                column,
                spelling,
                _suspects(sides, column, spelling, distinct(np.concatenate(met)), repeats),
            )
            return _crossing(sides, spelling, train_keys - plain_keys, train_keys)
    return None


def _spelt(
    sides: Sides,
    column: str,
    side: SplitName,
    spelling: str,
    part: int = 0,
    parts: int = 1,
    repeats: bool = True,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Return hashes, uint64 [keys], of a split's keys as given and in a canonical spelling.

    Only canonical hashes in this part of the hash space are included.
    """
    # the connection itself is busy with the batches
    with closing(sides.connection.cursor()) as beside:
        batches = key_batches(sides, column, side, repeats=repeats)
        while several := list(islice(batches, HASHED_AT_ONCE)):
            folded = pa.table(
                {"k": pa.chunked_array([fold(b.column(1), spelling) for b in several])}
            )
            plain = uint64(
                beside.from_arrow(folded)
                .project("hash(k)")
                .to_arrow_table()
                .column(0)
                .combine_chunks()
            )
            given = _concatenated(uint64(b.column(0)) for b in several)
            here = slice(None) if parts == 1 else plain % np.uint64(parts) == part
            yield given[here], plain[here]


def _suspects(
    sides: Sides, column: str, spelling: str, met: np.ndarray, repeats: bool
) -> np.ndarray:
    """Return hashes of given keys whose canonical spelling is in `met`.

    Such a spelling is in several splits and belongs to several keys.
    """
    if not len(met):
        return met
    found = [
        (given[inside], plain[inside])
        for side in sides.relations
        for given, plain in _spelt(sides, column, side, spelling, repeats=repeats)
        if len(inside := np.isin(plain, met))
    ]
    given, first = np.unique(_concatenated(g for g, _ in found), return_index=True)
    _, spelling_of, spellings = np.unique(
        _concatenated(p for _, p in found)[first], return_inverse=True, return_counts=True
    )
    return given[spellings[spelling_of] > 1]


def _concatenated(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """Return hashes of all batches."""
    return np.concatenate([np.empty(0, np.uint64), *arrays])


def _collect(sides: Sides, column: str, spelling: str, suspects: np.ndarray) -> None:
    """Make the table `folded` of the suspected keys.

    Columns: given, plain, the lowest and the highest split, rows.
    """
    connection, key = sides.connection, ident(column)
    with among(sides, column, suspects) as suspected:
        found = connection.sql(
            f"select {key} as given, min(side) as low, max(side) as high, count(*) as n from"
            f" {sides.together((column,))} where {suspected} group by {key}"
        ).to_arrow_table()
    folded = pa.chunked_array(
        [fold(chunk, spelling) for chunk in found["given"].chunks], pa.string()
    )
    connection.register("spelt", found.append_column("plain", folded))
    connection.execute("create or replace temp table folded as select * from spelt")
    connection.unregister("spelt")


def _crossing(sides: Sides, spelling: str, collisions: int, train_keys: int) -> Aliases:
    """Return the plain keys whose spellings are in different splits.

    A spelling that is in both splits itself is an overlap, not an alias.
    """
    met = "select plain from folded group by plain having count(*) > 1 and min(low) <> max(high)"
    pairs = f"select f.* from folded f join ({met}) using (plain)"
    keys, count = row(
        sides.connection, f"select count(distinct plain), coalesce(sum(n), 0) from ({pairs})"
    )
    shown = rows(
        sides.connection,
        "select first(given order by low, given), first(low order by low, given), last(given order"
        f" by low, given), last(low order by low, given) from ({pairs}) group by plain order by"
        f" md5(plain) limit {EVIDENCE_ROWS}",
    )
    examples = [
        {"key": str(a), "side": str(x), "other key": str(b), "other side": str(y)}
        for a, x, b, y in shown
    ]
    return Aliases(spelling, int(keys), int(count), collisions, train_keys, examples)


def judge_aliases(found: Aliases | None, what: str, columns: tuple[str, ...]) -> CheckResult:
    """Fail if spellings of one key are in two splits.

    Warn if train also has keys that differ only in spelling.
    """
    name = " + ".join(columns)
    if found is None or not found.keys:
        how = f" (compared without {found.spelling})" if found else ""
        return CheckResult(
            name=f"{what}_alias",
            verdict="pass",
            summary=f"no {name} is on two sides in another spelling{how}",
            columns=columns,
        )
    first = first_few([f"{e['key']!r} = {e['other key']!r}" for e in found.examples], found.keys)
    honest = found.collisions and found.keys <= found.collisions
    to_one = _to_one(columns, found)
    return CheckResult(
        name=f"{what}_alias",
        verdict="warn" if honest else "fail",
        summary=(
            f"{counted(found.keys, f'{name} value', 'is', 'are')} on two sides in spellings that"
            f" differ only in {found.spelling} ({first}), {counted(found.rows, 'row')}"
        ),
        figures={
            "keys": found.keys,
            "rows": found.rows,
            "collisions_in_train": found.collisions,
            "train_keys": found.train_keys,
            **({"one_spelling": to_one} if to_one else {}),
        },
        evidence=tuple(found.examples),
        columns=columns,
        remedy=(
            f"bring the key to one spelling{_declared(columns[0], to_one)} and declare that as the"
            f" {what}, or allow {what}_alias with a reason"
        ),
    )


def _to_one(columns: tuple[str, ...], found: Aliases) -> str:
    """Return the SQL that brings the key to one spelling; nothing where SQL cannot do it alone."""
    is_plain = all((e["key"] + e["other key"]).isascii() for e in found.examples)
    if len(columns) > 1 or not is_plain:
        return ""
    return one_spelling(sql_name(columns[0]), found.spelling)


def _declared(name: str, expression: str) -> str:
    """Return the declaration that makes a key of one spelling; of several columns the section."""
    if not expression:
        return " in data.derive"
    return f", data.{in_yaml(derive={f'{name}_key': expression})},"
