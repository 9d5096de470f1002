"""Ids and groups that stand on two sides in different spellings: `P-007`, `p7` and `Ｐ 7` are one patient.

Keys are brought to a canonical spelling, by the strongest of `SPELLINGS` that still tells the keys of train apart: where
two keys of train fall together, the difference between them means something, and a weaker one is tried.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import first_few
from schemas.records import CheckResult
from training.data.engine import ident, row, rows
from training.data.leakage.sides import Sides

EVIDENCE_ROWS = 10
MOST_COLLISIONS = 0.02  # share of train's keys that may fall together: train holds aliases, too, where the sides do
ZEROS = "regexp_replace({0}, '(^|[^0-9])0+([0-9])', '\\1\\2', 'g')"
SPELLINGS = {  # strongest first
    "case, spaces, punctuation and leading zeros": "regexp_replace(" + ZEROS.format("lower({0})") + ", '[^\\p{{L}}\\p{{N}}]+', '', 'g')",
    "case, spaces and punctuation": "regexp_replace(lower({0}), '[^\\p{{L}}\\p{{N}}]+', '', 'g')",
    "case, spaces and leading zeros": ZEROS.format("regexp_replace(lower({0}), '\\s+', '', 'g')"),
    "case and spaces": "regexp_replace(lower({0}), '\\s+', '', 'g')",
    "spaces": "regexp_replace({0}, '\\s+', '', 'g')",
}


class Aliases(NamedTuple):
    """Keys of one side that are a key of another in a different spelling.

    `spelling`: what the two may differ in; `collisions`: keys of train that this spelling makes fall together.
    """

    spelling: str
    keys: int
    rows: int
    collisions: int
    train_keys: int
    examples: list[dict[str, str]]


def find_aliases(sides: Sides, column: str) -> Aliases | None:
    """Aliases of a key column across sides; None where no spelling tells train's keys apart. Groups all keys: ask only where they are not spelt alike."""
    connection, key = sides.connection, ident(column)
    connection.execute(
        f"create or replace temp table spelt as select {key} as given, min(side) as low, max(side) as high, count(*) as n, "
        f"bool_or(side = 'train') as in_train from {sides.together((column,))} where {key} is not null group by {key}"
    )
    _unify_unicode(sides)
    train_keys = int(row(connection, "select count(*) from spelt where in_train")[0])
    for spelling, sql in SPELLINGS.items():
        plain = sql.format("coalesce(unified, given)")
        connection.execute(f"create or replace temp table folded as select *, {plain} as plain from spelt")
        distinct = int(row(connection, "select count(distinct plain) from folded where in_train")[0])
        if train_keys - distinct <= MOST_COLLISIONS * train_keys:
            return _crossing(sides, spelling, train_keys - distinct, train_keys)
    return None


def _unify_unicode(sides: Sides) -> None:
    """Add the column `unified` to `spelt`: compatibility forms (full width, ligatures, superscripts) as plain characters."""
    foreign = sides.connection.sql("select given from spelt where strlen(given) <> length(given)").to_arrow_table()["given"]
    folded = pc.replace_substring_regex(pc.utf8_normalize(foreign, form="NFKD"), pattern=r"\p{Mn}+", replacement="")
    mapping = pa.table({"given": foreign, "unified": folded})
    sides.connection.register("unified_keys", mapping)
    sides.connection.execute("create or replace temp table spelt as select s.*, u.unified from spelt s left join unified_keys u using (given)")
    sides.connection.unregister("unified_keys")


def _crossing(sides: Sides, spelling: str, collisions: int, train_keys: int) -> Aliases:
    """The plain keys whose spellings stand on different sides; a spelling that stands on both by itself is an overlap, not an alias."""
    met = "select plain from folded group by plain having count(*) > 1 and min(low) <> max(high)"
    pairs = f"select f.* from folded f join ({met}) using (plain)"
    keys, count = row(sides.connection, f"select count(distinct plain), coalesce(sum(n), 0) from ({pairs})")
    shown = rows(
        sides.connection,
        f"select first(given order by low, given), first(low order by low, given), last(given order by low, given), last(low order by low, given) "
        f"from ({pairs}) group by plain order by md5(plain) limit {EVIDENCE_ROWS}",
    )
    examples = [{"key": str(a), "side": str(x), "other key": str(b), "other side": str(y)} for a, x, b, y in shown]
    return Aliases(spelling, int(keys), int(count), collisions, train_keys, examples)


def judge_aliases(found: Aliases | None, what: str, columns: tuple[str, ...]) -> CheckResult:
    """Fail where spellings of one key stand on two sides; warn where train too holds keys that differ by spelling alone."""
    name = " + ".join(columns)
    if found is None or not found.keys:
        how = f" (compared without {found.spelling})" if found else ""
        return CheckResult(name=f"{what}_alias", verdict="pass", summary=f"no {name} is on two sides in another spelling{how}", columns=columns)
    first = first_few([f"{e['key']!r} = {e['other key']!r}" for e in found.examples], found.keys)
    honest = found.collisions and found.keys <= found.collisions
    return CheckResult(
        name=f"{what}_alias",
        verdict="warn" if honest else "fail",
        summary=f"{found.keys} {name} values are on two sides in spellings that differ only in {found.spelling} ({first}), {found.rows} rows",
        figures={"keys": found.keys, "rows": found.rows, "collisions_in_train": found.collisions, "train_keys": found.train_keys},
        evidence=tuple(found.examples),
        columns=columns,
        remedy=f"bring the key to one spelling in data.derive (e.g. lower(trim({columns[0]}))) and declare that as the {what}, or allow {what}_alias with a reason",
    )
