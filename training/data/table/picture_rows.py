"""Pictures of a table, decoded once: bad ones are named by row, good ones go to a store.

In the typed table a picture is the SHA-256 of its pixels. So equal pictures are equal values to
every check, and no step before the arrays moves pixels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import SchemaError, counted, shortened
from schemas.references import PictureFiles, PictureSpec, SourceRef
from training.data.engine.engine import ident
from training.data.engine.picture_store import STEM, PictureWriter
from training.data.serving_expressions import pictures
from training.data.sources.picture_files import changed_picture
from training.data.table.columns import Resolved
from training.data.table.typed import read_function

SHOWN = 20  # bad pictures that are named
AT_ONCE = 256  # rows whose pictures are in memory together
AT_ONCE_BYTES = 64_000_000  # of their pixels


class Sealed(NamedTuple):
    """A file as the source has sealed it."""

    file: str | None
    sha256: str | None
    fault: str | None


class Bad(NamedTuple):
    """A picture that cannot be used: id of the row, what the cell holds, and why."""

    row: str
    given: str
    why: str


def with_pictures(
    connection: duckdb.DuckDBPyConnection,
    resolved: Resolved,
    relation: str,
    source: SourceRef,
    out_dir: Path,
) -> tuple[Resolved, tuple[str, ...]]:
    """Decode the pictures of all rows; return the meaning of the table with the stores, and notes.

    Args:
        connection: the engine; it gets the functions of `read_function`.
        resolved: meaning of the columns.
        relation: the rows that are kept, as in the source.
        source: has sealed the files.
        out_dir: of the stores.

    Raises:
        SchemaError: pictures cannot be used, and the declaration does not read them as null.
        SourceError: a file was changed since it was sealed.
    """
    done, notes, refused = dict[str, PictureSpec](), list[str](), list[str]()
    for position, (name, spec) in enumerate(resolved.spec.images.items()):
        files = next((p for p in source.pictures if p.column == name), None)
        with PictureWriter(out_dir, position, spec) as writer:
            read = _Column(name, spec, files, writer)
            rows = _rows(connection, resolved, relation, name, spec)
            bad, total = read.all(rows)
            done[name] = writer.finish()
        config = resolved.configs[name].image
        if bad and config is not None and config.invalid == "null":
            notes.append(_named(name, bad, total, "they count as null (image.invalid: null)"))
        elif bad:
            remedy = (
                "fix or remove them, leave the rows out with data.filter, or set"
                f" data.columns.{name}.image.invalid: null"
            )
            refused.append(_named(name, bad, total, remedy))
        if not read.digests and not bad:
            refused.append(f"column {name!r}: no row has a picture; set `{name}: ignore`")
        _register(connection, position, spec, read.digests)
    if refused:
        raise SchemaError("\n  ".join(refused))
    decoded = resolved.spec.model_copy(update={"images": done})
    return resolved._replace(spec=decoded), tuple(notes)


def remove_pictures(folder: Path) -> None:
    """Remove the stores of a table that was refused."""
    for path in folder.glob(f"{STEM}_*"):
        path.unlink()


class _Column:
    """Reads the cells of one column, each different file once."""

    def __init__(
        self, name: str, spec: PictureSpec, files: PictureFiles | None, writer: PictureWriter
    ) -> None:
        self.name, self.writer = name, writer
        self.rule = {"shape": spec.shape, "mode": spec.mode, "resize": spec.resize}
        self.sealed = _listed(files)
        self.known: dict[str, str] = {}  # what is wrong with a cell, empty if nothing is
        self.digests: dict[str, str] = {}  # of the pixels of a cell

    def all(self, rows: Iterator[tuple[list[str], list[Any]]]) -> tuple[list[Bad], int]:
        """Return the first bad pictures, and the number of all."""
        bad, total = list[Bad](), 0
        for ids, cells in rows:
            keys = [_key(cell) for cell in cells]
            self._decode(dict(zip(keys, cells, strict=True)))
            for row, key in zip(ids, keys, strict=True):
                if key is not None and self.known[key]:
                    total += 1
                    if len(bad) < SHOWN:
                        given = key if self.sealed is not None else "its bytes"
                        bad.append(Bad(row, given, self.known[key]))
        return bad, total

    def _decode(self, cells: dict[str | None, Any]) -> None:
        new = {key: cells[key] for key in cells if key is not None and key not in self.known}

        def one(item: tuple[str, Any]) -> Any:
            try:
                return pictures.decode(self._bytes(*item), self.rule)
            except pictures.BadPicture as error:
                return str(error)

        for key, found in zip(new, pictures.at_once(one, list(new.items())), strict=True):
            self.known[key] = found if isinstance(found, str) else ""
            if not isinstance(found, str):
                self.digests[key] = self.writer.add(found)

    def _bytes(self, key: str, cell: Any) -> bytes:
        if self.sealed is None:
            return bytes(cell)
        found = self.sealed.get(key)
        if found is None:
            raise changed_picture(key)
        if found.file is None:
            raise pictures.BadPicture(found.fault or "cannot be read")
        try:
            data = pictures.read_bytes(found.file)
        except pictures.BadPicture as error:
            raise changed_picture(found.file) from error
        if hashlib.sha256(data).hexdigest() != found.sha256:
            raise changed_picture(found.file)
        return data


def _listed(files: PictureFiles | None) -> dict[str, Sealed] | None:
    """Return the sealed files by path; None of a column that holds bytes."""
    if files is None:
        return None
    listing = pq.read_table(files.listing.file).to_pydict()
    sealed = map(Sealed, listing["file"], listing["sha256"], listing["fault"])
    return dict(zip(listing["path"], sealed, strict=True))


def _key(cell: Any) -> str | None:
    """Return what tells cells of different pictures apart: a path, or the SHA-256 of bytes."""
    return hashlib.sha256(cell).hexdigest() if isinstance(cell, bytes) else cell


def _rows(
    connection: duckdb.DuckDBPyConnection,
    resolved: Resolved,
    relation: str,
    name: str,
    spec: PictureSpec,
) -> Iterator[tuple[list[str], list[Any]]]:
    """Yield ids and cells of so many rows as may be in memory together."""
    size = max(1, min(AT_ONCE, AT_ONCE_BYTES // max(1, _size(spec))))
    cell = ident(name) if spec.given == "bytes" else f"cast({ident(name)} as varchar)"
    ids = [f"cast({ident(n)} as varchar)" for n in resolved.spec.id]
    shown = f"concat_ws(', ', {', '.join(ids)})" if ids else "'row ' || row_number() over ()"
    reader = connection.sql(f"select {shown} as id, {cell} as cell from {relation}")
    for batch in reader.to_arrow_reader(size):
        for start in range(0, batch.num_rows, size):
            part = batch.slice(start, size)
            yield part.column(0).to_pylist(), part.column(1).to_pylist()


def _size(spec: PictureSpec) -> int:
    size = 1
    for side in spec.shape:
        size *= side
    return size


def _named(name: str, bad: list[Bad], total: int, then: str) -> str:
    """Return what is done with the bad pictures of a column, then a line for each that is shown."""
    lines = "".join(
        f"\n    {shortened(b.row, 60, plain=True)}: {shortened(b.given, 200, plain=True)}:"
        f" {shortened(b.why, 300, plain=True)}"
        for b in bad
    )
    more = f"\n    and {total - len(bad):,} more" if total > len(bad) else ""
    return f"column {name!r}: {counted(total, 'picture')} cannot be used; {then}:{lines}{more}"


def _register(
    connection: duckdb.DuckDBPyConnection,
    position: int,
    spec: PictureSpec,
    digests: Mapping[str, str],
) -> None:
    def digest_of(cells: pa.Array) -> pa.Array:
        keys = [_key(cell) for cell in cells.to_pylist()]
        return pa.array([None if key is None else digests.get(key) for key in keys], pa.string())

    register: Callable[..., Any] = connection.create_function
    register(
        read_function(position),
        digest_of,
        ["BLOB" if spec.given == "bytes" else "VARCHAR"],
        "VARCHAR",
        type="arrow",
        null_handling="special",
    )
