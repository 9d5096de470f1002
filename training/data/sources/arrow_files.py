"""Arrow and Feather files as one data set: files with an index, streams, and Feather version 1."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from schemas.errors import SourceError
from training.data.sources.partitions import FILE

if TYPE_CHECKING:
    import pyarrow.dataset as ds

FILE_MAGIC, FEATHER_1 = b"ARROW1", b"FEA1"
MARK = b"\xff\xff\xff\xff"  # before each message of a stream, since Arrow 0.15
END = b"\x00\x00\x00\x00"  # of a stream: a message of no bytes


def check_arrow(path: Path) -> None:
    """Refuse a file that is not an Arrow file, or is truncated.

    Raises:
        SourceError, OSError, ArrowException: it cannot be read to its end.
    """
    start = _start(path)
    if start.startswith(FILE_MAGIC):
        with pa.memory_map(str(path)) as file:
            pa.ipc.open_file(file)
    elif start.startswith(FEATHER_1):
        _feather_1(path)
    else:
        with pa.memory_map(str(path)) as file:
            try:
                stream = pa.ipc.open_stream(file)
            except pa.ArrowException as error:
                raise SourceError(
                    f"{path}: cannot be read as arrow: it is neither a file nor a stream of it"
                    f" ({error}); write it again, e.g. with pyarrow.ipc.new_file"
                ) from error
            for _ in stream:
                pass
            end = MARK + END if start.startswith(MARK) else END
            file.seek(max(file.size() - len(end), 0))
            if file.read() != end:
                raise SourceError(
                    f"{path}: cannot be read as arrow: the stream has no end, it is cut short; copy"
                    " or write it again"
                )


def arrow_schema_of(path: str) -> pa.Schema:
    """Return the columns of a file."""
    return _opened(path).schema


def arrow_dataset(paths: list[str], named: bool) -> ds.Dataset:
    """Return all rows of the files, with the types of the first.

    Streams are mapped, not copied, unless their batches are compressed; Feather of version 1 is
    read into memory.

    Args:
        paths: of the files.
        named: add the column `FILE` with the path of each row's file.
    """
    import pyarrow.dataset as ds  # it loads pandas, which other formats do not need
    import pyarrow.fs as pafs

    first = arrow_schema_of(paths[0])
    schema = pa.schema(
        [pa.field(f.name, _readable(f.type)) for f in first]
        + ([pa.field(FILE, pa.string())] if named else [])
    )
    indexed = [p for p in paths if _start(Path(p)).startswith(FILE_MAGIC)]
    parts: list[ds.Dataset] = []
    if indexed:
        origin: dict[str, Any] = (
            {"partitions": [ds.field(FILE) == p for p in indexed]} if named else {}
        )
        parts.append(
            ds.FileSystemDataset.from_paths(
                indexed,
                schema=schema,
                format=ds.IpcFileFormat(),
                filesystem=pafs.LocalFileSystem(),
                **origin,
            )
        )
    for path in paths:
        if path not in indexed:
            table = _opened(path)
            table = (
                table.append_column(FILE, pa.repeat(pa.scalar(path, pa.string()), len(table)))
                if named
                else table
            )
            parts.append(ds.dataset(table.select(schema.names).cast(schema)))
    return parts[0] if len(parts) == 1 else ds.dataset(parts)


def _readable(kind: pa.DataType) -> pa.DataType:
    """Return the type that the engine can read in place of one that it cannot."""
    if pa.types.is_float16(kind):
        return pa.float32()
    return pa.float64() if pa.types.is_decimal256(kind) else kind


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(FILE_MAGIC))


def _opened(path: str) -> Any:
    """Return a data set or a table with the file's columns."""
    import pyarrow.dataset as ds

    start = _start(Path(path))
    if start.startswith(FILE_MAGIC):
        return ds.dataset([path], format="ipc")
    if start.startswith(FEATHER_1):
        return _feather_1(Path(path))
    return pa.ipc.open_stream(pa.memory_map(path)).read_all()


def _feather_1(path: Path) -> pa.Table:
    from pyarrow import feather

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return feather.read_table(path)
