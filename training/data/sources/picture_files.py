"""Files that a column of pictures names: found below one folder, and sealed by their digests.

The digests are part of the source's: a changed picture is a changed table. Paths that lead out of
the folder, by `..`, a link or an absolute path, are refused, as are folders that a flow run of a
worker may not read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.config import DataConfig
from schemas.confinement import require_readable
from schemas.digest import file_ref
from schemas.errors import SourceError, shortened
from schemas.references import PictureFiles, SourceRef
from training.data.engine.engine import engine_for, ident, rows
from training.data.sources.remote import GLOB, is_remote
from training.data.sources.snapshots import placed

LISTED = 4_096  # paths that are read at once
SCHEMA = pa.schema(
    [("path", pa.string()), ("file", pa.string()), ("sha256", pa.string()), ("fault", pa.string())]
)
Relation = Callable[[duckdb.DuckDBPyConnection], str]


def picture_folder(data: DataConfig, name: str) -> str:
    """Return the folder that the paths of a column are relative to.

    Raises:
        SourceError: the table is in several folders or in none, and none is declared.
    """
    column = data.column(name)
    declared = column.image.folder if column is not None and column.image is not None else None
    if declared is not None and Path(declared).is_absolute():
        return declared
    uris = (data.uri,) if isinstance(data.uri, str) else tuple(data.uri)
    folders = {str(_folder(uri)) for uri in uris if not is_remote(uri)}
    if len(folders) != 1:
        raise SourceError(
            f"column {name!r}: expected one folder that the paths of pictures are relative to, got"
            f" {len(folders)} of {', '.join(uris)[:200]}; set"
            f" data.columns.{name}.image.folder to an absolute path"
        )
    return str(Path(folders.pop()) / (declared or ""))


def _folder(uri: str) -> Path:
    """Return the folder of a table: its own one, or the last one before a wildcard."""
    path = Path(uri)
    if path.is_dir():
        return path
    parts = path.parts
    plain = next((i for i, part in enumerate(parts) if GLOB & set(part)), len(parts) - 1)
    return path.parent if path.exists() else Path(*parts[:plain])


def with_pictures(source: SourceRef, data: DataConfig, relation: Relation) -> SourceRef:
    """Return the source with the files that its columns of pictures name, sealed.

    A path that cannot be read is listed with its fault; validation names its rows.

    Args:
        source: its other files.
        data: how it is declared.
        relation: makes the source's rows a relation of a connection.

    Raises:
        SourceError: the folder of the pictures is unknown.
        ConfigError: a flow run of a worker may not read the folder.
    """
    if all(column.kind != "image" for column in data.columns.values()):
        return source
    sealed = []
    with engine_for(data) as connection:
        base = relation(connection)
        types = {str(r[0]): str(r[1]) for r in rows(connection, f"describe select * from {base}")}
        for name, kind in types.items():
            column = data.column(name)
            if column is not None and column.kind == "image" and kind != "BLOB":
                folder = picture_folder(data, name)
                require_readable(folder, f"data.columns.{name}.image.folder")
                sealed.append(_sealed(connection, base, name, folder))
    if not sealed:
        return source
    told = "\n".join((source.sha256, *(f"{p.column} {p.sha256}" for p in sealed)))
    return source.model_copy(
        update={"pictures": tuple(sealed), "sha256": hashlib.sha256(told.encode()).hexdigest()}
    )


def _sealed(
    connection: duckdb.DuckDBPyConnection, base: str, name: str, folder: str
) -> PictureFiles:
    """List the different paths of a column with the digest of each file."""
    column = f"cast({ident(name)} as varchar)"
    reader = connection.sql(
        f"select distinct {column} as path from {base} where {ident(name)} is not null order by 1"
    ).to_arrow_reader(LISTED)
    told, files, num_bytes = hashlib.sha256(), 0, 0

    def write(target: Path) -> None:
        nonlocal files, num_bytes
        with pq.ParquetWriter(target, SCHEMA) as writer:
            for batch in reader:
                paths = batch.column(0).to_pylist()
                found = list(_read(paths, folder))
                for path, (_, digest, fault, size) in zip(paths, found, strict=True):
                    told.update(f"{path}\0{digest or fault}\n".encode())
                    files, num_bytes = files + (digest is not None), num_bytes + size
                columns = [paths, *([f[i] for f in found] for i in range(3))]
                writer.write_table(pa.table(columns, schema=SCHEMA))

    listing = placed(("pictures", folder, name), f"{Path(folder).name}-pictures.parquet", write)
    return PictureFiles(
        column=name,
        folder=folder,
        files=files,
        num_bytes=num_bytes,
        listing=file_ref(listing),
        sha256=told.hexdigest(),
    )


def _read(
    paths: Sequence[str], folder: str
) -> Iterator[tuple[str | None, str | None, str | None, int]]:
    """Return file, digest, fault and size of each path."""
    from training.data.serving_expressions import pictures  # needs pandas, which a rank does not

    def one(path: str) -> tuple[str | None, str | None, str | None, int]:
        try:
            file = pictures.inside(folder, path)
            require_readable(file, "a picture")
            data = pictures.read_bytes(file)
        except pictures.BadPicture as error:
            return None, None, str(error), 0
        return file, hashlib.sha256(data).hexdigest(), None, len(data)

    yield from pictures.at_once(one, paths)


def changed_picture(path: str) -> SourceError:
    """Return the error for a file whose bytes are not those that were sealed."""
    return SourceError(
        f"{shortened(path, plain=True)}: the picture was changed or removed since the source was"
        " read; run again"
    )
