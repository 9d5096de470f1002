"""Sealed copies of rows that are in no file of rows: tables of databases, and converted files.

A copy lies in `sources/` of the Bulkhead home under the address and the choice (table, query), and
is named by the SHA-256 of its content. So equal rows give the same file, and nothing that depends
on them is prepared again. A copy gets its name when it is whole: an interrupted one leaves nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.config import DataConfig
from schemas.digest import fsync_folder, settle, sha256_file, sha256_once
from schemas.home import home
from schemas.references import Snapshot, digest_of
from schemas.scratch import scratch_folder
from training.data.engine.engine import even_tables, group_rows
from training.data.engine.threads import beside

FOLDER = "sources"
MOST_COMBINATIONS = 10_000  # of kept copies of several sources that are tried


class Rows(NamedTuple):
    """Rows of a database on their way into a copy.

    `moment`: of the snapshot that they belong to, in UTC. `table`: its name; None of a query.
    """

    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]
    moment: str
    table: str | None


def now() -> str:
    """Return the time in UTC, as a record shows it."""
    return shown_moment(datetime.now(UTC))


def shown_moment(moment: datetime) -> str:
    """Return a time in UTC as text.

    >>> shown_moment(datetime(2024, 1, 2, 3, 4, 5, 678, tzinfo=UTC))
    '2024-01-02T03:04:05.000678Z'
    """
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def sealed_rows(uri: str, data: DataConfig, rows: Rows) -> Snapshot:
    """Write the rows to a copy and return it; rows of one order give the same bytes.

    Raises:
        Exception: whatever reading the rows raises. No copy is left then.
    """
    count = 0

    def write(path: Path) -> None:
        nonlocal count
        size = group_rows(rows.schema)
        texts = [f.name for f in rows.schema if pa.types.is_string(f.type)]
        with ExitStack() as stack:
            file = stack.enter_context(
                pq.ParquetWriter(path, rows.schema, compression="zstd", use_dictionary=texts)
            )
            put = stack.enter_context(beside(lambda t: file.write_table(t, row_group_size=size)))
            for table in even_tables(rows.batches, size):
                count += len(table)
                put(table.combine_chunks())

    path, sha256 = _placed(folder_of(uri, data), _name(uri, rows.table) + ".parquet", write)
    return Snapshot(
        uri=uri,
        table=rows.table,
        query=data.query,
        moment=rows.moment,
        rows=count,
        path=str(path),
        sha256=sha256,
    )


def converted_file(
    path: Path, key: tuple[str, ...], suffix: str, write: Callable[[Path], None], **choice: str
) -> Snapshot:
    """Return the converted copy of a file; one of these bytes and options is made only once.

    Args:
        path: the file.
        key: options that the copy depends on.
        suffix: ending of the copy.
        write: writes the copy to a path.
        choice: what is read of it, for the record: `sheet` or `encoding`.

    Raises:
        Exception: whatever `write` raises. No copy is left then.
    """
    original = sha256_once(path)
    folder = _folder(original, *key)
    kept = next(_kept(folder), None)
    if kept is None:
        kept = _placed(folder, path.name + suffix, write)
    changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return Snapshot(
        uri=str(path),
        **choice,
        moment=shown_moment(changed),
        path=str(kept[0]),
        sha256=kept[1],
    )


def placed(key: tuple[str, ...], name: str, write: Callable[[Path], None]) -> Path:
    """Write a file that belongs to a source, such as a list of its pictures; return its path."""
    return _placed(_folder(*key), name, write)[0]


def folder_of(uri: str, data: DataConfig) -> Path:
    """Return the folder of the copies of a database's table or query."""
    return _folder(uri, data.table or "", data.query or "")


def as_it_was(data: DataConfig, uris: Iterable[str], sha256: str) -> DataConfig:
    """Return a declaration that reads kept copies of databases in place of the databases.

    Args:
        data: how the source is declared.
        uris: its databases, all of the source.
        sha256: digest of the source as it was then.

    Returns:
        The same declaration if no copies of that digest are kept.
    """
    candidates = [list(_kept(folder_of(uri, data))) for uri in uris]
    for copies in islice(product(*candidates), MOST_COMBINATIONS if candidates else 0):
        text = "\n".join(sorted(digest for _, digest in copies))
        if hashlib.sha256(text.encode()).hexdigest() == sha256:
            paths = tuple(str(path) for path, _ in copies)
            update = {"uri": paths[0] if len(paths) == 1 else paths, "table": None, "query": None}
            return data.model_copy(update=update)
    return data


def _folder(*key: str) -> Path:
    return home() / FOLDER / digest_of(key)[:20]


def _kept(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the whole copies of a folder that still have the digest of their name."""
    for path in sorted(folder.glob("*/*")) if folder.is_dir() else []:
        digest = sha256_file(path)
        if digest.startswith(path.parent.name):
            yield path, digest


def _placed(folder: Path, name: str, write: Callable[[Path], None]) -> tuple[Path, str]:
    """Write a file, and give it the name of its digest; return path and digest."""
    with scratch_folder(home(), "snapshot") as scratch:
        made = scratch / name
        write(made)
        settle(made)
        digest = sha256_once(made)
        target = folder / digest[:20] / name
        if not (target.is_file() and sha256_once(target) == digest):
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(made, target)
            fsync_folder(target.parent)
    return target, digest


def _name(uri: str, table: str | None) -> str:
    """Return a name for people: of the database, and of the table."""
    stem = Path(uri.split("?", maxsplit=1)[0]).stem
    return re.sub(r"[^\w.-]+", "_", f"{stem}-{table or 'query'}")[:100]
