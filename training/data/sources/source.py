"""Open a source as one relation, and fingerprint it: read every file to its end or refuse it."""

from __future__ import annotations

import csv
import glob
import gzip
import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.config import CsvConfig, DataConfig
from schemas.confinement import require_readable
from schemas.digest import file_ref, sha256_once
from schemas.errors import BulkheadError, SourceError, first_few, shortened
from schemas.records import FileRef, SourceRef
from training.data.engine.engine import ident, literal, rows, without_nan
from training.data.sources.arrow_files import arrow_dataset, arrow_schema_of, check_arrow
from training.data.sources.partitions import (
    FILE,
    Keys,
    agreed_keys,
    local_keys,
    remote_keys,
    with_keys,
)
from training.data.sources.remote import GLOB, fetch, is_remote, verify_remote
from training.data.sources.text_types import typed_sql

Format = Literal["parquet", "csv", "arrow"]
FORMATS: dict[str, Format] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".tsv": "csv",
    ".tsv.gz": "csv",
    ".arrow": "arrow",
    ".feather": "arrow",
}
CHUNK = 1 << 20
ARROW_VIEW = "bulkhead_arrow_source"
ZONED_NS = "TIMESTAMPTZ_NS"


def fingerprint(data: DataConfig) -> SourceRef:
    """Return the source as it is now: its files sorted, each checked to its end and hashed.

    Raises:
        SourceError: a file is missing, unreadable, empty or truncated; a folder or glob holds none,
            or several formats; a server refuses.
    """
    uris = (data.uri,) if isinstance(data.uri, str) else tuple(data.uri)
    remote = tuple(
        {
            file.uri: file
            for uri in uris
            if is_remote(uri)
            for file in fetch(uri, lambda path: _is_data(path, data))
        }.values()
    )
    found = [
        (path.resolve(), local_keys(path, uri))
        for uri in uris
        if not is_remote(uri)
        for path in _listed(uri, data)
    ]
    for path, _ in found:
        require_readable(path, "data.uri")
    found += [(Path(file.path).resolve(), remote_keys(file.uri)) for file in remote]
    files = sorted({path for path, _ in found})
    formats = {path: _format_of(path, data) for path in files}
    if len(set(formats.values())) > 1:
        examples = {kind: path.name for path, kind in reversed(formats.items())}
        shown = ", ".join(f"{name} ({kind})" for kind, name in sorted(examples.items()))
        raise SourceError(
            f"{', '.join(uris)}: expected files of one format, got several: {shown}; set"
            " data.format, or give a glob such as folder/*.parquet"
        )
    kind = formats[files[0]]
    refs = tuple(_checked(path, kind) for path in files)
    keys = agreed_keys(_keys_by_file(found))
    digest = hashlib.sha256(
        "\n".join(sorted(_told(r, keys.get(r.path)) for r in refs)).encode()
    ).hexdigest()
    return SourceRef(
        uri=uris, format=kind, files=refs, sha256=digest, remote=remote, partitions=keys
    )


def _keys_by_file(found: Sequence[tuple[Path, Keys]]) -> dict[str, Keys]:
    """Return the keys of each file, in the order of the files.

    Raises:
        SourceError: through links, one file lies in folders with different keys.
    """
    keys: dict[str, Keys] = {}
    for path, of_file in sorted(found, key=lambda pair: pair[0]):
        if keys.setdefault(str(path), of_file) != of_file:
            raise SourceError(
                f"{path}: is found under folders of different keys, {keys[str(path)]} and"
                f" {of_file}; give each its own copy of the file"
            )
    return keys


def _told(ref: FileRef, keys: Keys | None) -> str:
    """Return a file's part of the source's digest: its bytes, and the keys of its folder."""
    return f"{ref.sha256} {json.dumps(keys, sort_keys=True)}" if keys else ref.sha256


def verify_source(source: SourceRef) -> None:
    """Refuse a source whose files are not the fingerprinted ones.

    Raises:
        SourceError: a file is gone or its bytes differ; for a remote one, the version or size that
            its server reports.
    """
    verify_remote(source.remote)
    for ref in source.files:
        if not ref.file.is_file() or sha256_once(ref.path) != ref.sha256:
            raise SourceError(
                f"{ref.path}: expected the file with SHA-256 {ref.sha256[:12]}…, but it was changed"
                " or removed since; run again"
            )


def relation_sql(source: SourceRef, data: DataConfig, connection: duckdb.DuckDBPyConnection) -> str:
    """Return all rows of all files as one SQL relation.

    Columns are matched by name, no row is skipped, and NaN is null.

    Args:
        source: from `fingerprint`.
        data: how delimited text is read.
        connection: the engine that will run the relation; Arrow files are registered on it, text is
            read to find its types.

    Raises:
        SourceError: files differ in their columns, names are missing or repeated, or a file cannot
            be read.
    """
    open_files: dict[str, Callable[[SourceRef, DataConfig, duckdb.DuckDBPyConnection], str]] = {
        "parquet": _parquet,
        "csv": _csv,
        "arrow": _arrow,
    }
    try:
        relation = open_files[source.format](source, data, connection)
        types = {
            str(r[0]): str(r[1]) for r in rows(connection, f"describe select * from {relation}")
        }
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise unreadable(source, error) from error
    return usable(relation, types)


def usable(relation: str, types: Mapping[str, str]) -> str:
    """Return the relation with NaN made null, and times with a zone in microseconds.

    The engine has no functions for such times in nanoseconds.
    """
    columns = [_usable(ident(name), kind) for name, kind in types.items()]
    if columns == [ident(name) for name in types]:
        return relation
    # `* replace` of thousands of columns takes the engine a minute
    return f"(select {', '.join(columns)} from {relation})"


def _usable(column: str, kind: str) -> str:
    if kind.startswith(ZONED_NS):
        return f"cast({column} as {kind.replace(ZONED_NS, 'timestamptz')}) as {column}"
    return f"{without_nan(column)} as {column}" if kind in ("FLOAT", "DOUBLE") else column


def unreadable(source: SourceRef, error: Exception) -> SourceError:
    """Return the error for a source that the engine failed to read, without the engine's advice."""
    lines = [
        line
        for line in str(error).splitlines()
        if line.strip() and not line.lstrip().startswith(("*", "Possible", "LINE", "^"))
    ]
    names = first_few((f.path for f in source.files), limit=3)
    advice = (
        "check data.csv (delimiter, quote, header) and the file's encoding (UTF-8)"
        if source.format == "csv"
        else "write the file again"
    )
    return SourceError(f"{names}: cannot be read: {' '.join(lines[:8])[:600]}; {advice}")


def _listed(uri: str, data: DataConfig) -> list[Path]:
    """List files that a path names, after a check that it can be read.

    Raises:
        SourceError: nothing is there, or it is no path: too long, NUL in it, a loop of links.
    """
    require_readable(uri, "data.uri")
    try:
        return _expand(uri, data)
    except (OSError, ValueError, RuntimeError, re.error) as error:
        if isinstance(error, BulkheadError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise SourceError(
            f"{shortened(uri, plain=True)!r}: cannot be opened ({reason}); check data.uri"
        ) from error


def _expand(uri: str, data: DataConfig) -> list[Path]:
    """List files that a path names: a file, all files of a folder, or those of a glob."""
    path = Path(uri)
    if path.is_dir():
        found = [
            p
            for p in path.rglob("*")
            if p.is_file() and not p.name.startswith((".", "_")) and _is_data(p, data)
        ]
        if not found:
            raise SourceError(
                f"{uri}: expected data files in the folder, found none with {', '.join(FORMATS)};"
                " give another folder, or set data.format"
            )
        return found
    if not path.exists() and GLOB & set(uri):
        found = [Path(p) for p in glob.glob(uri, recursive=True) if Path(p).is_file()]
        if not found:
            raise SourceError(
                f"{uri}: expected files, but the glob matches none; check the pattern and the"
                " folder"
            )
        return found
    if not path.is_file():
        raise SourceError(f"{uri}: no such file or folder; check data.uri")
    return [path]


def _suffix(path: Path) -> str:
    return (
        "".join(path.suffixes[-2:]).lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
    )


def _is_data(path: Path, data: DataConfig) -> bool:
    kind = FORMATS.get(_suffix(path))
    return kind is not None and data.format in ("auto", kind)


def _format_of(path: Path, data: DataConfig) -> Format:
    if data.format != "auto":
        return data.format
    kind = FORMATS.get(_suffix(path))
    if kind is None:
        raise SourceError(
            f"{path}: unknown format {_suffix(path)!r}; expected one of {', '.join(FORMATS)}, or"
            " set data.format"
        )
    return kind


def _checked(path: Path, kind: Format) -> FileRef:
    """Return a reference to a file that could be opened and, if compressed or indexed, is whole."""
    try:
        if path.stat().st_size == 0:
            raise SourceError(f"{path}: the file is empty; write it again or leave it out")
        if kind == "parquet":
            pq.ParquetFile(path).close()
        elif kind == "arrow":
            check_arrow(path)
        elif path.suffix.lower() == ".gz":
            _read_through(path)
        return file_ref(path)
    except (OSError, EOFError, pa.ArrowException) as error:
        raise SourceError(
            f"{path}: cannot be read as {kind}: {error}; the file is damaged or cut short: copy or"
            " write it again"
        ) from error


def _read_through(path: Path) -> None:
    """Decompress to the end, so that the checksum reveals a truncated or damaged file."""
    with gzip.open(path) as file:
        while file.read(CHUNK):
            pass


def _parquet(source: SourceRef, data: DataConfig, connection: duckdb.DuckDBPyConnection) -> str:
    schemas = {f.path: pq.read_schema(f.path) for f in source.files}
    _agree(
        {
            path: [(field.name, _family(field.type)) for field in schema]
            for path, schema in schemas.items()
        }
    )
    paths = ", ".join(literal(f.path) for f in source.files)
    if not source.partitions:
        return f"read_parquet([{paths}], union_by_name = true, hive_partitioning = false)"
    relation = (
        f"read_parquet([{paths}], union_by_name = true, hive_partitioning = false, filename ="
        f" {literal(FILE)})"
    )
    return with_keys(source, relation, schemas[source.files[0].path].names, connection)


def _arrow(source: SourceRef, data: DataConfig, connection: duckdb.DuckDBPyConnection) -> str:
    schemas = {f.path: arrow_schema_of(f.path) for f in source.files}
    _agree(
        {
            path: [(field.name, _family(field.type)) for field in schema]
            for path, schema in schemas.items()
        }
    )
    name = f"{ARROW_VIEW}_{source.sha256[:16]}"  # several sources may be open on one connection
    connection.register(
        name, arrow_dataset([f.path for f in source.files], named=bool(source.partitions))
    )
    return (
        with_keys(source, ident(name), schemas[source.files[0].path].names, connection)
        if source.partitions
        else ident(name)
    )


def _csv(source: SourceRef, data: DataConfig, connection: duckdb.DuckDBPyConnection) -> str:
    names, texts = _text_rows(source, data.csv, named=bool(source.partitions))
    if not source.partitions:
        return typed_sql(connection, texts, names, decimal=data.csv.decimal)
    types = typed_sql(connection, texts, names, kept=(FILE,), decimal=data.csv.decimal)
    return with_keys(source, types, names, connection)


def csv_texts(source: SourceRef, data: DataConfig) -> str:
    """Return the rows of delimited files as a relation of texts, in the order of `relation_sql`.

    Empty is null.
    """
    return _text_rows(source, data.csv.model_copy(update={"null_values": ("",)}), named=False)[1]


def _text_rows(source: SourceRef, options: CsvConfig, named: bool) -> tuple[list[str], str]:
    """Return column names of delimited files, and their rows as texts.

    `named` adds the file of each row.
    """
    headers = {f.path: _header(f.file, options) for f in source.files}
    _agree({path: [(name, "text") for name in header] for path, header in headers.items()})
    groups: dict[tuple[str, ...], list[str]] = {}
    for path, header in headers.items():
        groups.setdefault((*header, _delimiter(Path(path), options)), []).append(path)
    parts = [
        f"select * from {_read_csv(paths, key[:-1], key[-1], options, named)}"
        for key, paths in groups.items()
    ]
    return headers[source.files[0].path], f"({' union all by name '.join(parts)})"


def _delimiter(path: Path, options: CsvConfig) -> str:
    """Return the declared delimiter.

    A .tsv file is split at tabs unless another delimiter than the default is declared.
    """
    return (
        "\t" if options.delimiter == "," and _suffix(path).startswith(".tsv") else options.delimiter
    )


def _read_csv(
    paths: Sequence[str], names: Sequence[str], delimiter: str, options: CsvConfig, named: bool
) -> str:
    """Read text strictly as text: stop at a row with too few or too many values."""
    columns = ", ".join(f"{literal(n)}: 'VARCHAR'" for n in names)
    nulls = ", ".join(literal(v) for v in options.null_values)
    quote = literal(options.quote)
    return (
        f"read_csv([{', '.join(literal(p) for p in paths)}], auto_detect = false, header ="
        f" {literal(options.header)}, columns = {{{columns}}}, delim = {literal(delimiter)}, quote"
        f" = {quote}, escape = {quote}, nullstr = [{nulls}], strict_mode = true, ignore_errors ="
        " false, null_padding = false, hive_partitioning ="
        f" false{f', filename = {literal(FILE)}' if named else ''})"
    )


def _header(path: Path, options: CsvConfig) -> list[str]:
    """Return column names of a delimited file; `column0`, `column1` … if it has no header."""
    delimiter, quote = _delimiter(path, options), options.quote or None
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        # bytes that are not UTF-8 are left to the engine, which names their line
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        try:
            names = next(
                csv.reader(
                    text,
                    delimiter=delimiter,
                    quotechar=quote,
                    quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
                    strict=True,
                ),
                [],
            )
        except csv.Error as error:
            raise SourceError(
                f"{path}: the first line cannot be read: {error}; expected UTF-8 text, delimiter"
                f" {delimiter!r}, quote {options.quote!r}; see data.csv"
            ) from error
    if any(c == "\x00" for name in names for c in name):
        raise SourceError(
            f"{path}: the first line contains NUL characters, so it is no text; write the file as"
            " UTF-8, or set data.format"
        )
    if any("\udc80" <= c <= "\udcff" for name in names for c in name):
        raise SourceError(f"{path}: the first line is no UTF-8 text; write the file as UTF-8")
    if not options.header:
        return [f"column{i}" for i in range(len(names))]
    unnamed = [i + 1 for i, name in enumerate(names) if not name.strip()]
    if unnamed:
        advice = "name it"
        if unnamed == [1] and len(names) > 1:
            advice = (
                "it may be a written index: write the table without it (pandas: index=False), or"
                " name it in the first line"
            )
        elif len(unnamed) < len(names) and all(_is_value(name) for name in names if name.strip()):
            advice = "the first line may hold values: set data.csv.header: false"
        raise SourceError(
            f"{path}: expected a name for each column, but number {first_few(unnamed)} has none;"
            f" {advice}"
        )
    return names


def _is_value(text: str) -> bool:
    """Return True if a text is rather a value than a name: a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _agree(columns: dict[str, list[tuple[str, str]]]) -> None:
    """Refuse names that SQL cannot distinguish, and files with different columns.

    Raises:
        SourceError: with the names, or the difference between two files.
    """
    first_path, first = next(iter(columns.items()))
    for path, fields in columns.items():
        seen: dict[str, str] = {}
        for name, _ in fields:
            if name.lower() in seen:
                raise SourceError(
                    f"{path}: columns {seen[name.lower()]!r} and {name!r} have the same name but"
                    " for case; rename one"
                )
            seen[name.lower()] = name
        difference = _difference(dict(first), dict(fields))
        if difference:
            raise SourceError(
                f"{path}: expected the columns of {first_path}: {difference}; give files of one"
                " table, or read them as tables of their own"
            )


def _difference(expected: dict[str, str], found: dict[str, str]) -> str:
    parts = []
    if missing := [n for n in expected if n not in found]:
        parts.append(f"it lacks {first_few(missing, limit=10)}")
    if extra := [n for n in found if n not in expected]:
        parts.append(f"it adds {first_few(extra, limit=10)}")
    unlike = [
        n
        for n in expected
        if n in found and found[n] != expected[n] and "null" not in (found[n], expected[n])
    ]
    if unlike:
        parts.append(
            "types differ: "
            + first_few(
                (f"{n} is {found[n]}, not {expected[n]}" for n in unlike), len(unlike), limit=10
            )
        )
    return "; ".join(parts)


def _family(kind: pa.DataType) -> str:
    """Return one name for types that may differ between files of one table.

    Example: whole numbers with nulls are often written as floats.
    """
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        return "text"
    if pa.types.is_timestamp(kind):
        return "timestamp with time zone" if kind.tz else "timestamp"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"list of {_family(kind.value_type)}"
    return str(kind)
