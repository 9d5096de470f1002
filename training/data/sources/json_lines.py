"""JSON lines as a relation: an object a line, keys as columns, types decided on every line."""

from __future__ import annotations

import re

import duckdb

from schemas.config import DataConfig
from schemas.errors import SourceError, first_few
from schemas.records import SourceRef
from training.data.engine.engine import ident, literal, row, rows
from training.data.sources.partitions import FILE, with_keys
from training.data.sources.same_columns import require_agreement
from training.data.sources.text_types import CASTS, text_types

WIDEST = 2.0**63
LARGEST_LINE = 64 << 20  # bytes
TIMES = ("DATE", "TIMESTAMP", "INSTANT")
# what DuckDB makes of texts that look like something else: they are read as texts
GUESSED = re.compile(r"(DATE|TIME|TIMESTAMP|TIMESTAMP_NS|UUID|TIMESTAMP WITH TIME ZONE)((?:\[\])*)")


def json_relation(
    source: SourceRef, data: DataConfig, connection: duckdb.DuckDBPyConnection
) -> str:
    """Return the typed rows of files of JSON lines; a key that a line lacks is null.

    Whole numbers, numbers, truth values and lists keep their type. Texts stay texts, but for a
    column of ISO dates or timestamps alone.

    Raises:
        SourceError: a line is no object, or a key has values of several types; with its name.
    """
    types = {
        str(r[0]): str(r[1])
        for r in rows(connection, f"describe select * from {_read(source, None, False)}")
    }
    require_agreement({source.files[0].path: [(name, "") for name in types]})
    _refuse_renamed(types, source, connection)
    types |= dict.fromkeys((n for n, kind in types.items() if kind == '"NULL"'), "VARCHAR")
    mixed = [name for name, kind in types.items() if re.fullmatch(r"JSON(\[\])*", kind)]
    if empty := [n for n in mixed if _is_empty(source, n, connection)]:
        types |= dict.fromkeys(empty, "VARCHAR")  # null in every line
    if mixed := [name for name in mixed if name not in empty]:
        raise SourceError(
            f"{first_few((f.path for f in source.files), limit=3)}: expected one type for each key,"
            f" but {first_few(map(repr, mixed))} {'has' if len(mixed) == 1 else 'have'} values of"
            " several, e.g. numbers and texts; write them alike"
        )
    read = {
        name: f"VARCHAR{found[2]}" if (found := GUESSED.fullmatch(kind)) else kind
        for name, kind in types.items()
    }
    _refuse_rounded(_read(source, read, False), read, source, connection)
    relation = _timed(_read(source, read, bool(source.partitions)), read, source, connection)
    if not source.partitions:
        return relation
    return with_keys(source, relation, list(types), connection)


def _read(source: SourceRef, types: dict[str, str] | None, named: bool) -> str:
    paths = ", ".join(literal(f.path) for f in source.files)
    if types is None:
        how = "auto_detect = true, sample_size = -1, maximum_depth = -1, union_by_name = true"
        how += ", field_appearance_threshold = 0, map_inference_threshold = -1"
        how += ", convert_strings_to_integers = false"
    else:
        columns = ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in types.items())
        how = f"auto_detect = false, columns = {{{columns}}}"
    return (
        f"read_json([{paths}], format = 'newline_delimited', records = true, {how},"
        f" maximum_object_size = {LARGEST_LINE}, ignore_errors = false, hive_partitioning = false"
        f"{f', filename = {literal(FILE)}' if named else ''})"
    )


def _refuse_renamed(
    types: dict[str, str], source: SourceRef, connection: duckdb.DuckDBPyConnection
) -> None:
    """Refuse keys that differ in case only: the engine gives the second another name.

    Raises:
        SourceError: with the key.
    """
    known = {name.lower() for name in types}
    for name in types:
        base = re.sub(r"_\d+$", "", name)
        if base != name and base.lower() in known and _is_empty(source, name, connection):
            raise SourceError(
                f"{source.files[0].path}: two keys are {base!r} but for case; rename one"
            )


def _refuse_rounded(
    relation: str,
    types: dict[str, str],
    source: SourceRef,
    connection: duckdb.DuckDBPyConnection,
) -> None:
    """Refuse whole numbers beyond 64 bits, which lose digits as numbers.

    Raises:
        SourceError: with the key.
    """
    numbers = [name for name, kind in types.items() if kind == "DOUBLE"]
    if not numbers:
        return
    ends = row(
        connection, f"select {', '.join(f'max(abs({ident(n)}))' for n in numbers)} from {relation}"
    )
    large = {
        n for n, most in zip(numbers, ends, strict=True) if most is not None and most >= WIDEST
    }
    for name in large:
        texts = _read(source, {name: "VARCHAR"}, False)
        whole = f"regexp_full_match({ident(name)}, '-?\\d{{19,}}')"
        found = rows(connection, f"select {ident(name)} from {texts} where {whole} limit 1")
        if found:
            raise SourceError(
                f"{source.files[0].path}: key {name!r} has whole numbers beyond 64 bits, e.g."
                f" {found[0][0]}; write them as texts"
            )


def _is_empty(source: SourceRef, name: str, connection: duckdb.DuckDBPyConnection) -> bool:
    relation = _read(source, {name: "JSON"}, False)
    present = f"select 1 from {relation} where json_type({ident(name)}) <> 'NULL' limit 1"
    return not rows(connection, present)


def _timed(
    relation: str,
    types: dict[str, str],
    source: SourceRef,
    connection: duckdb.DuckDBPyConnection,
) -> str:
    """Return the relation with times in place of columns whose texts are all times."""
    texts = [name for name, kind in types.items() if kind == "VARCHAR"]
    found = text_types(connection, relation, texts, with_nulls=True) if texts else {}
    columns = [
        f"{CASTS[found[n]].format(ident(n))} as {ident(n)}" if found.get(n) in TIMES else ident(n)
        for n in types
    ]
    kept = [FILE] if source.partitions else []
    return f"(select {', '.join([*columns, *kept])} from {relation})"
