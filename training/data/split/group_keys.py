"""Keys by which rows belong together: declared group, scaffold, equal rows, nearly equal rows.

Each is a pure function of the row (for numbers: and of a frozen grid step), 32 hexadecimal digits.
A row may have several keys of one kind. They fill the temporary table `row_keys` (`__id`, `family`,
`key`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import duckdb
import pyarrow as pa

from schemas.config import GroupByConfig
from schemas.errors import ConfigError
from schemas.records import TableSpec
from training.data.engine.engine import ident, literal, row_md5_sql, rows, without_nan
from training.data.rdkit_extra import require_rdkit
from training.data.split.minhash import BANDS, band_hashes
from training.data.split.scaffold import Kind, molecule_keys

ROW_KEYS = "row_keys"
FAMILIES = ("group", "scaffold", "duplicates", "near_duplicates")
# texts of at least this many characters are compared by MinHash; in shorter ones, one edit is a
# large part of the text
LONG_TEXT = 40
MANY_LETTERS = 10  # letters; in shorter texts punctuation may be the only difference: A+ and A-
BATCH = 65_536


class GroupColumn(NamedTuple):
    """Position of a compared column in the joined relation, and how it is compared."""

    name: str
    sql: str
    how: Literal["number", "text", "smiles", "exact"]


def add_keys(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    spec: TableSpec,
    by: GroupByConfig,
    steps: Mapping[str, float],
) -> dict[str, int]:
    """Fill `row_keys`; return the number of distinct unreadable SMILES by column.

    Args:
        connection: the engine.
        table: the validated rows joined with their group columns, which are named `__by_<name>`.
        spec: what the validated columns are.
        by: the ways to group.
        steps: width of the grid of each numeric column of near_duplicates.

    Raises:
        ConfigError: RDKit is needed and not installed.
    """
    families = ", ".join(map(literal, FAMILIES))
    connection.execute(
        f"create or replace temp table {ROW_KEYS} (__id varchar, family enum({families}), key"
        " varchar)"
    )
    unread: dict[str, int] = {}
    if spec.group:
        _insert(connection, table, "group", "concat('group:', __group)")
    if by.scaffold:
        unread[by.scaffold] = _read_molecules(
            connection, table, by.scaffold, "scaffold", "data.group_by.scaffold"
        )
        looked_up = (
            f"(select t.__id, t.__key, m.key as found from {table} t left join molecules m on"
            f" m.text = t.{_stored(by.scaffold)})"
        )
        _insert(
            connection,
            looked_up,
            "scaffold",
            "concat('scaffold:', coalesce(found, concat('none:', __key)))",
        )
    if by.duplicates == "features":
        _insert(connection, table, "duplicates", f"concat('equal:', {row_md5_sql(spec.features)})")
    elif by.duplicates:
        _insert(
            connection,
            table,
            "duplicates",
            f"concat('equal:', {row_md5_sql([f'__by_{n}' for n in by.duplicates])})",
        )
    if by.near_duplicates:
        unread |= _near(connection, table, near_columns(connection, table, spec, by), steps)
    return unread


def near_columns(
    connection: duckdb.DuckDBPyConnection, table: str, spec: TableSpec, by: GroupByConfig
) -> list[GroupColumn]:
    """Return the columns that nearly equal rows have in common, and how each is compared."""
    if by.near_duplicates == "features":
        kinds = dict.fromkeys(spec.numeric, "number") | dict.fromkeys(
            (*spec.categorical, *spec.bags, *((spec.text,) if spec.text else ())), "text"
        )
        found = [GroupColumn(n, ident(n), kinds.get(n, "exact")) for n in spec.features]
    else:
        types = {str(r[0]): str(r[1]) for r in rows(connection, f"describe select * from {table}")}
        names = by.near_duplicates or ()
        found = [
            GroupColumn(n, _stored(n), "number" if types[f"__by_{n}"] == "DOUBLE" else "text")
            for n in names
        ]
    return [
        c._replace(how="smiles", sql=_stored(c.name)) if c.name in by.smiles else c for c in found
    ]


def normal_text_sql(column: str) -> str:
    """Return SQL for a text without case, accents and runs of space.

    Punctuation is removed too if ten letters or digits remain.
    """
    plain = f"lower(strip_accents(nfc_normalize({column})))"
    words = rf"trim(regexp_replace({plain}, '[^\p{{L}}\p{{N}}]+', ' ', 'g'))"
    return (
        rf"case when length({words}) >= {MANY_LETTERS} then {words} else"
        rf" trim(regexp_replace({plain}, '\s+', ' ', 'g')) end"
    )


def _stored(name: str) -> str:
    return ident(f"__by_{name}")


def _insert(connection: duckdb.DuckDBPyConnection, table: str, family: str, content: str) -> None:
    connection.execute(
        f"insert into {ROW_KEYS} select __id, {literal(family)}, md5({content}) from {table}"
    )


def _read_molecules(
    connection: duckdb.DuckDBPyConnection, table: str, name: str, kind: Kind, where: str
) -> int:
    """Make table `molecules` (text, key) of a column's distinct SMILES; count unreadable ones."""
    require_rdkit(where)
    stored = _stored(name)
    kinds = {
        str(r[0]): str(r[1]) for r in rows(connection, f"describe select {stored} from {table}")
    }
    if "VARCHAR" not in kinds.values():
        raise ConfigError(
            f"{where}: column {name!r} holds numbers, which are no SMILES; name the column of"
            " molecules"
        )
    texts = [
        str(r[0])
        for r in rows(
            connection,
            f"select distinct {stored} from {table} where {stored} is not null order by 1",
        )
    ]
    found = molecule_keys(texts, kind)
    connection.register(
        "read_molecules",
        pa.table(
            {
                "text": pa.array(texts, pa.string()),
                "key": pa.array([k for k, _ in found], pa.string()),
            }
        ),
    )
    connection.execute("create or replace temp table molecules as select * from read_molecules")
    connection.unregister("read_molecules")
    return sum(not is_read for _, is_read in found)


def _near(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    columns: Sequence[GroupColumn],
    steps: Mapping[str, float],
) -> dict[str, int]:
    """Return keys of nearly equal rows.

    Long texts match by any band; everything else matches if equal up to spelling and grid. A number
    falls into the same cell of one of two grids, of which the second is shifted by half a step.
    """
    relation, molecules, unread = _with_molecules(connection, table, columns)
    numbers = [c for c in columns if c.how == "number"]
    texts = [f"({normal_text_sql(c.sql)})" for c in columns if c.how == "text"]
    exact = [*molecules, *(f"md5(cast({c.sql} as varchar))" for c in columns if c.how == "exact")]
    short = [f"case when length({t}) < {LONG_TEXT} then {t} else '…' end" for t in texts]
    long = (
        "concat_ws(chr(31),"
        f" {', '.join(f'case when length({t}) >= {LONG_TEXT} then {t} end' for t in texts)})"
        if texts
        else "''"
    )
    shifts = (0.0, 0.5) if numbers else (0.0,)
    grids = ", ".join(
        f"{_joined([str(i), *(_cell(c, steps[c.name], shift) for c in numbers)])} as grid_{i}"
        for i, shift in enumerate(shifts)
    )
    parts = (
        f"select __id, {grids}, {_joined([*exact, *short])} as short, {long} as long from"
        f" {relation}"
    )
    connection.execute(f"create or replace temp table near_parts as {parts}")
    for place in range(len(shifts)):
        _insert(
            connection,
            "near_parts",
            "near_duplicates",
            f"concat('near:', grid_{place}, short, long)",
        )
    if texts:
        _insert_bands(connection, len(shifts))
    connection.execute("drop table near_parts")
    return unread


def _with_molecules(
    connection: duckdb.DuckDBPyConnection, relation: str, columns: Sequence[GroupColumn]
) -> tuple[str, list[str], dict[str, int]]:
    """Return the relation with canonical SMILES, their column names, and unreadable counts."""
    names, unread = [], {}
    for place, column in enumerate(columns):
        if column.how == "smiles":
            unread[column.name] = _read_molecules(
                connection, relation, column.name, "molecule", "data.group_by.smiles"
            )
            joined = (
                f"select t.*, m.key as __molecule_{place} from {relation} t left join molecules m"
                f" on m.text = t.{column.sql}"
            )
            connection.execute(f"create or replace temp table near_rows_{place} as {joined}")
            relation = f"near_rows_{place}"
            names.append(f"__molecule_{place}")
    return relation, names, unread


def _insert_bands(connection: duckdb.DuckDBPyConnection, grids: int) -> None:
    """Insert keys of long texts by the bands of their MinHash, in batches; keep no text twice."""
    total = rows(connection, "select coalesce(max(rowid) + 1, 0) from near_parts")[0][0]
    for first in range(0, total, BATCH):
        of_batch = f"rowid >= {first} and rowid < {first + BATCH}"
        found = connection.sql(
            f"select rowid as place, long from near_parts where {of_batch} and long <> ''"
        ).to_arrow_table()
        texts = found["long"].combine_chunks().dictionary_encode()
        bands = band_hashes(texts.dictionary)[texts.indices.to_numpy()]
        connection.register(
            "new_bands",
            pa.table({"place": found["place"]} | {f"b{i}": bands[:, i] for i in range(BANDS)}),
        )
        each = ", ".join(f"concat('{i}:', b{i})" for i in range(BANDS))
        batch = (
            f"(select p.*, unnest([{each}]) as band from (select *, rowid as place from near_parts"
            f" where {of_batch}) p join new_bands b using (place))"
        )
        for grid in range(grids):
            _insert(
                connection, batch, "near_duplicates", f"concat('band:', grid_{grid}, short, band)"
            )
        connection.unregister("new_bands")


def _cell(column: GroupColumn, step: float, shift: float) -> str:
    """Return SQL for the number's cell on a grid, as text; an infinity becomes a word."""
    number = without_nan(column.sql)
    return (
        f"cast(floor({number} / {literal(step)} + {literal(shift)}) + cast(0 as double) as varchar)"
    )


def _joined(parts: Sequence[str]) -> str:
    """Return SQL that joins texts into one, so that two rows share it only if they share each part.

    A null differs from every text.
    """
    each = ", ".join(
        f"coalesce(concat(length(cast({p} as varchar)), ':') || {p}, '-')" for p in parts
    )
    return f"concat({each})" if parts else "''"
