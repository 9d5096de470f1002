"""Open a source as one relation, and fingerprint it: read every file to its end or refuse it."""

from __future__ import annotations

import glob
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.config import DataConfig
from schemas.confinement import require_readable
from schemas.database_config import is_server
from schemas.digest import file_ref, sha256_once
from schemas.errors import BulkheadError, SourceError, first_few, shortened
from schemas.records import FileRef, SourceRef
from training.data.engine.engine import ident, literal, rows, without_nan
from training.data.sources.arrow_files import arrow_dataset, arrow_schema_of, check_arrow
from training.data.sources.conversions import conversion_notes, converted
from training.data.sources.file_formats import FORMATS, FURTHER, Format
from training.data.sources.json_lines import json_relation
from training.data.sources.other_formats import convert_line, encoding_advice
from training.data.sources.partitions import (
    FILE,
    Keys,
    agreed_keys,
    local_keys,
    remote_keys,
    with_keys,
)
from training.data.sources.picture_files import with_pictures
from training.data.sources.remote import GLOB, fetch, is_remote, verify_remote
from training.data.sources.same_columns import require_agreement, type_family
from training.data.sources.sealed_copies import as_read
from training.data.sources.text_files import csv_relation, suffix

CHUNK = 1 << 20
ARROW_VIEW = "bulkhead_arrow_source"
ZONED_NS = "TIMESTAMPTZ_NS"


def fingerprint(data: DataConfig) -> SourceRef:
    """Return the source as it is now: its files sorted, each checked to its end and hashed.

    So are the pictures that its columns name.

    Raises:
        SourceError: a file is missing, unreadable, empty or truncated; a folder or glob holds none,
            or several formats; a server refuses.
    """
    made = _files_of(data)
    return with_pictures(made, data, partial(relation_sql, made, data))


def _files_of(data: DataConfig) -> SourceRef:
    uris = (data.uri,) if isinstance(data.uri, str) else tuple(data.uri)
    remote = tuple(
        {
            file.uri: file
            for uri in uris
            if is_remote(uri) and not is_server(uri)
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
    found, snapshots = as_read(found, [uri for uri in uris if is_server(uri)], data)
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
        uri=uris,
        format=kind,
        files=refs,
        sha256=digest,
        remote=remote,
        snapshots=snapshots,
        partitions=keys,
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

    Columns are matched by name, no row is skipped, NaN is null, and texts of a declared spelling
    are numbers.

    Args:
        source: from `fingerprint`.
        data: how delimited text is read.
        connection: the engine that will run the relation; Arrow files are registered on it, text is
            read to find its types.

    Raises:
        SourceError: files differ in their columns, names are missing or repeated, or a file cannot
            be read.
        SchemaError: a text does not have the spelling that its column declares.
    """
    relation, types = _as_stored(source, data, connection)
    return converted(connection, relation, types, data)


def spelling_notes(
    source: SourceRef, data: DataConfig, connection: duckdb.DuckDBPyConnection
) -> tuple[str, ...]:
    """Return what texts of numbers said besides the number: bounds, footnote marks and nulls."""
    if all(column.written is None for column in data.columns.values()):
        return ()
    relation, types = _as_stored(source, data, connection)
    return tuple(conversion_notes(connection, relation, types, data))


def _as_stored(
    source: SourceRef, data: DataConfig, connection: duckdb.DuckDBPyConnection
) -> tuple[str, dict[str, str]]:
    """Return all rows with the columns of the files, and their types."""
    open_files: dict[str, Callable[[SourceRef, DataConfig, duckdb.DuckDBPyConnection], str]] = {
        "parquet": _parquet,
        "csv": csv_relation,
        "arrow": _arrow,
        "jsonl": json_relation,
    }
    try:
        relation = open_files[source.format](source, data, connection)
        types = {
            str(r[0]): str(r[1]) for r in rows(connection, f"describe select * from {relation}")
        }
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise unreadable(source, error) from error
    return usable(relation, types), types


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
        else "expected a JSON object in each line"
        if source.format == "jsonl"
        else "write the file again"
    )
    foreign = (encoding_advice(f.file) for f in source.files) if source.format == "csv" else ()
    if line := next(filter(None, foreign), None):
        advice += f"; {line}"
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
        files = [p for p in path.rglob("*") if p.is_file() and not p.name.startswith((".", "_"))]
        found = [p for p in files if _is_data(p, data)]
        found = found or [p for p in files if _is_data(p, data, FURTHER)]
        if not found:
            raise SourceError(
                f"{uri}: expected data files in the folder, found none with"
                f" {', '.join((*FORMATS, *FURTHER))}; give another folder, or set data.format"
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


def _is_data(path: Path, data: DataConfig, formats: Mapping[str, Format] = FORMATS) -> bool:
    kind = formats.get(suffix(path))
    return kind is not None and data.format in ("auto", kind)


def _format_of(path: Path, data: DataConfig) -> Format:
    if data.format != "auto":
        return data.format
    kind = FORMATS.get(suffix(path)) or FURTHER.get(suffix(path))
    if kind is None:
        line = convert_line(path)
        raise SourceError(
            f"{path}: unknown format {suffix(path)!r}; expected one of"
            f" {', '.join((*FORMATS, *FURTHER))}, a DuckDB or SQLite file, or"
            f" set data.format{f'; this line converts it: {line}' if line else ''}"
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
    require_agreement(
        {
            path: [(field.name, type_family(field.type)) for field in schema]
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
    require_agreement(
        {
            path: [(field.name, type_family(field.type)) for field in schema]
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
