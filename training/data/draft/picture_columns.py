"""Columns of pictures for a first declaration: paths of files that exist, or bytes of files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image

from schemas.errors import BulkheadError, counted
from training.data.draft.guesses import Guess, Table
from training.data.draft.profile import SAMPLE, Profile
from training.data.engine.engine import ident, rows
from training.data.serving_expressions import pictures
from training.data.sources.picture_files import picture_folder

ENDINGS = (".png", ".jpg", ".jpeg")
LOOKED_AT = 100  # pictures that are opened
MOSTLY = 0.9  # of them are PNG or JPEG files
SHARED_SIDE = 256  # pictures of one size are read in it up to this side
SIDE = 64  # of the others
GREY = ("1", "L", "LA", "I", "I;16")


class Seen(NamedTuple):
    """What the header of a file says: height, width and whether it is grey."""

    size: tuple[int, int]
    is_grey: bool


def picture_guesses(table: Table, columns: Sequence[Profile]) -> dict[str, Guess]:
    """Return the guess of each column that holds pictures."""
    found = {}
    for column in columns:
        if column.type != "BLOB" and column.family != "text":
            continue
        cells = _cells(table, column)
        if not cells or (column.family == "text" and not _are_paths(cells)):
            continue
        seen = [s for s in (_seen(table, column, cell) for cell in cells) if s is not None]
        if len(seen) >= MOSTLY * len(cells):
            found[column.name] = _guess(column, cells, seen)
    return found


def _cells(table: Table, column: Profile) -> list[Any]:
    name = ident(column.name)
    chosen = f"select {name} from {SAMPLE} where {name} is not null limit {LOOKED_AT}"
    return [r[0] for r in rows(table.connection, chosen)]


def _are_paths(cells: list[Any]) -> bool:
    ending = sum(str(cell).lower().endswith(ENDINGS) for cell in cells)
    return ending >= MOSTLY * len(cells)


def _seen(table: Table, column: Profile, cell: Any) -> Seen | None:
    """Return what the header of a cell's file says; None for another file, or none."""
    try:
        if isinstance(cell, str):
            folder = picture_folder(table.data, column.name)
            cell = pictures.read_bytes(pictures.inside(folder, cell))
        if pictures.kind_of(bytes(cell)) is None:
            return None
        with Image.open(io.BytesIO(cell), formats=pictures.FORMATS) as file:
            return Seen((file.height, file.width), file.mode in GREY)
    except (BulkheadError, OSError, ValueError, Image.DecompressionBombError, Warning):
        return None


def _guess(column: Profile, cells: list[Any], seen: list[Seen]) -> Guess:
    sizes = {s.size for s in seen}
    shared = len(sizes) == 1 and max(max(s) for s in sizes) <= SHARED_SIDE
    height, width = next(iter(sizes)) if shared else (SIDE, SIDE)
    options = [f"size: [{height}, {width}]"]
    options += ["mode: L"] if all(s.is_grey for s in seen) else []
    options += [] if shared else ["resize: fit"]
    options += [] if len(seen) == len(cells) else ["invalid: null"]
    sides = (
        f"of {height} x {width}"
        if len(sizes) == 1
        else f"up to {max(s[0] for s in sizes)} x {max(s[1] for s in sizes)}"
    )
    if column.family == "text":
        why = f"{len(seen)} of {counted(len(cells), 'path')} name a PNG or JPEG file, {sides}"
    else:
        why = f"{len(seen)} of {counted(len(cells), 'value')} are a PNG or JPEG file, {sides}"
    return Guess(f"{{kind: image, image: {{{', '.join(options)}}}}}", why)
