"""What a run reads of a source: its files, or sealed copies of what is no file of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from schemas.config import DataConfig
from schemas.csv_config import UTF_8
from schemas.references import Snapshot
from training.data.sources.databases import (
    database_kind,
    read_database,
    read_server,
    refuse_choice,
)
from training.data.sources.encoded_text import read_encoded
from training.data.sources.excel_sheet import read_sheet
from training.data.sources.file_formats import EXCEL_ENDINGS, FORMATS, FURTHER
from training.data.sources.partitions import Keys
from training.data.sources.text_files import suffix

MAKE: dict[str, Callable[[Path, DataConfig], Snapshot]] = {
    "sheet": read_sheet,
    "database": read_database,
    "encoded": read_encoded,
}


def as_read(
    found: Sequence[tuple[Path, Keys]], servers: Sequence[str], data: DataConfig
) -> tuple[list[tuple[Path, Keys]], tuple[Snapshot, ...]]:
    """Return the files to read: sealed copies in place of databases, sheets and other encodings.

    Raises:
        SourceError: a database, sheet or text cannot be read; a choice that the files do not have.
    """
    kinds = {path: _kind(path, data) for path, _ in found}
    refuse_choice(data, set(kinds.values()) | {"database" for _ in servers})
    copies = {path: MAKE[kind](path, data) for path, kind in kinds.items() if kind in MAKE}
    served = [read_server(uri, data) for uri in servers]
    paths = [(Path(copies[p].path) if p in copies else p, keys) for p, keys in found]
    paths += [(Path(copy.path), {}) for copy in served]
    return paths, (*copies.values(), *served)


def _kind(path: Path, data: DataConfig) -> str:
    """Return `sheet`, `database` or `encoded` of a file that is not read as it is, else `file`."""
    ending = suffix(path)
    if ending in EXCEL_ENDINGS and data.format in ("auto", "csv"):
        return "sheet"
    if ending not in FORMATS and ending not in FURTHER and data.format in ("auto", "parquet"):
        return "file" if database_kind(path) is None else "database"
    is_text = data.format == "csv" or FORMATS.get(ending) == "csv"
    return "encoded" if is_text and data.csv.encoding != UTF_8 else "file"
