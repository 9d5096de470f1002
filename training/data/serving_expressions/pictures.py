"""Bytes of PNG and JPEG files as arrays of one size: the same code in training and in serving.

Pillow decodes, and no other format is opened. A file counts as it is shown: EXIF orientation is
applied, palettes and CMYK become L or RGB, of 16 bits the upper 8 are kept, and black is behind
transparent parts. Colour profiles are not applied.

A rule: `name` of the column, `shape` [H, W] or [3, H, W], `mode` L or RGB, `resize` refuse, fit or
stretch; in a model's spec also `nulls`, True if there may be no picture. No picture is an array of
zeros, and the only one: a picture that is black throughout gets the value 1 everywhere.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import stat
import struct
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

with suppress(ImportError):  # a model without pictures needs no Pillow
    from PIL import ExifTags, Image, ImageOps, PngImagePlugin

Rule = Mapping[str, Any]
FORMATS = ("PNG", "JPEG")
STARTS = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG"}
ENDS = {"PNG": b"IEND", "JPEG": b"\xff\xd9"}
MOST_PIXELS = 89_478_485  # Pillow's limit, beyond which it warns of a decompression bomb
MOST_BYTES = 1 << 28  # of one file
ROOT = "BULKHEAD_PICTURES"  # folder of the paths that a served model may read
URI = "data:image/"
SHOWN = 5


class BadPicture(ValueError):
    """Bytes that are no picture of the declared kind, in words."""


def kind_of(data: bytes) -> str | None:
    """Return PNG or JPEG by the first bytes of a file, else None.

    >>> kind_of(b"GIF89a"), kind_of(bytes.fromhex("ffd8ffe0"))
    (None, 'JPEG')
    """
    return next((kind for start, kind in STARTS.items() if data.startswith(start)), None)


def decode(data: bytes, rule: Rule) -> np.ndarray:
    """Return a picture as uint8 [H, W] or [3, H, W], as the rule says.

    Raises:
        BadPicture: empty, broken, truncated, animated, too large, of another format or size.
    """
    _require_whole(data)
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as file:
            if file.width * file.height > MOST_PIXELS:
                raise BadPicture(
                    f"{file.width} x {file.height} pixels, more than {MOST_PIXELS:,}: a"
                    " decompression bomb"
                )
            if isinstance(file, PngImagePlugin.PngImageFile) and file.n_frames > 1:
                raise BadPicture(f"an animated PNG of {file.n_frames} frames, expected one picture")
            file.load()
            turned = _upright(file)
            pixels = _sized(_in_mode(turned, rule["mode"]), rule)
    except BadPicture:
        raise
    except Exception as error:  # a decoder of broken bytes may raise anything
        raise BadPicture(f"cannot be decoded: {' '.join(str(error).split())[:200]}") from error
    if not pixels.any():
        pixels = np.ones_like(pixels)
    return np.ascontiguousarray(pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def _require_whole(data: bytes) -> None:
    """Refuse bytes that do not begin and end as a file of the formats does."""
    if not data:
        raise BadPicture("zero bytes")
    if len(data) > MOST_BYTES:
        raise BadPicture(f"{len(data):,} bytes, more than {MOST_BYTES:,}")
    kind = kind_of(data)
    if kind is None:
        raise BadPicture(f"neither PNG nor JPEG (it begins with {data[:8]!r})")
    if ENDS[kind] not in data:
        raise BadPicture(f"truncated: the end of a {kind} is missing")
    if kind == "PNG":
        _require_chunks(data)


def _require_chunks(data: bytes) -> None:
    """Refuse a PNG whose parts are not whole; Pillow alone overlooks a broken end."""
    at = 8
    while at + 12 <= len(data):
        size, name = struct.unpack(">I4s", data[at : at + 8])
        end = at + 12 + size
        if end > len(data):
            break
        if zlib.crc32(memoryview(data)[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end]):
            raise BadPicture(f"part {name.decode('latin-1')!r} has a wrong checksum")
        if name == b"IEND":
            return
        at = end
    raise BadPicture("truncated: a part of the PNG is missing")


def _upright(file: Image.Image) -> Image.Image:
    """Return the picture as its EXIF orientation says that it is shown."""
    if file.getexif().get(ExifTags.Base.Orientation, 1) in (0, 1):
        return file
    return ImageOps.exif_transpose(file)


def _in_mode(file: Image.Image, mode: str) -> Image.Image:
    if file.mode == mode and "transparency" not in file.info:
        return file
    if file.mode.startswith("I"):  # 16 bits of grey: the upper 8
        file = Image.fromarray((np.asarray(file).astype(np.int64) >> 8).clip(0, 255).astype("u1"))
        return file.convert(mode)
    if file.mode in ("LA", "PA", "La", "RGBA", "RGBa") or "transparency" in file.info:
        shown = file.convert("RGBA")
        black = Image.new("RGBA", shown.size, (0, 0, 0, 255))
        return Image.alpha_composite(black, shown).convert(mode)
    return file.convert(mode)


def _sized(file: Image.Image, rule: Rule) -> np.ndarray:
    """Return the values [H, W] or [H, W, 3] in the declared size."""
    height, width = rule["shape"][-2:]
    if file.size == (width, height):
        return np.asarray(file)
    if rule["resize"] == "refuse":
        raise BadPicture(
            f"{file.height} x {file.width}, expected {height} x {width} (height x width; resize:"
            " fit or stretch takes other sizes)"
        )
    if rule["resize"] == "stretch":
        return np.asarray(file.resize((width, height), Image.Resampling.BILINEAR))
    factor = min(height / file.height, width / file.width)
    inner = (max(1, round(file.width * factor)), max(1, round(file.height * factor)))
    edged = Image.new(file.mode, (width, height))
    place = ((width - inner[0]) // 2, (height - inner[1]) // 2)
    edged.paste(file.resize(inner, Image.Resampling.BILINEAR), place)
    return np.asarray(edged)


def encode_png(pixels: np.ndarray) -> bytes:
    """Return the bytes of a PNG of uint8 [H, W] or [3, H, W]; `decode` gives the same values."""
    out = io.BytesIO()
    Image.fromarray(pixels if pixels.ndim == 2 else pixels.transpose(1, 2, 0)).save(out, "PNG")
    return out.getvalue()


# ------------------------------------------------------------------------------------------ serving


def inside(root: str | Path, path: str) -> str:
    """Return the real path of a file below a folder; links count as what they lead to.

    Raises:
        BadPicture: it lies outside, does not exist, or is no file.
    """
    if not path or "\0" in path:
        raise BadPicture("no path" if not path else "a path with a NUL character")
    base = os.path.realpath(root)
    real = os.path.realpath(Path(base, path))
    if os.path.commonpath([base, real]) != base:
        raise BadPicture("lies outside of the folder of pictures")
    try:
        mode = Path(real).stat().st_mode
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise BadPicture(
            "no such file" if missing else f"cannot be read ({error.strerror or error})"
        ) from error
    if not stat.S_ISREG(mode):
        raise BadPicture("a folder or device, no file")
    return real


def read_bytes(path: str) -> bytes:
    """Return the bytes of a file.

    Raises:
        BadPicture: it cannot be read, or is too large.
    """
    try:
        if (size := Path(path).stat().st_size) > MOST_BYTES:
            raise BadPicture(f"{size:,} bytes, more than {MOST_BYTES:,}")
        return Path(path).read_bytes()
    except OSError as error:
        raise BadPicture(f"cannot be read ({error.strerror or error})") from error


def bytes_of(value: Any, root: str | None) -> bytes:
    """Return the bytes of a cell: bytes, a `data:image/…;base64,` text, or a path below the root.

    Raises:
        BadPicture: none of them; or a path, and no root is set.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str):
        raise BadPicture(f"expected bytes, got {type(value).__name__}")
    if value.startswith(URI):
        head, _, text = value.partition(",")
        try:
            if not head.endswith(";base64"):
                raise BadPicture("expected data:image/…;base64,… of a text with the bytes")
            return base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise BadPicture(f"its base64 cannot be read ({error})") from error
    if root is None:
        raise BadPicture(
            f"a path, and this model reads none: pass the bytes, or let its operator set {ROOT} to"
            " the folder of the pictures"
        )
    return read_bytes(inside(root, value))


def is_none(value: Any, null_texts: Collection[str] = ()) -> bool:
    """Return True for a cell without a picture."""
    if isinstance(value, bytes | bytearray | memoryview | np.ndarray | list):
        return False
    return bool(pd.isna(value)) or value in null_texts


def with_pixels(
    frame: pd.DataFrame,
    rules: Sequence[Rule],
    null_texts: Collection[str] = (),
    root: str | None = None,
) -> pd.DataFrame:
    """Return the frame with arrays in place of the cells of each rule's column.

    Cells that are arrays already are taken as they are.

    Args:
        frame: N raw rows.
        rules: of the pictures.
        null_texts: texts that meant null in the training source.
        root: folder of the paths; default: BULKHEAD_PICTURES.

    Raises:
        ValueError: a picture cannot be read, or is null where training had none; with column, rows
            and what is wrong.
    """
    if rules and find_spec("PIL") is None:
        raise ValueError("pictures need the package pillow; install it: pip install pillow")
    root = root or os.environ.get(ROOT) or None
    found = {}
    for rule in rules:
        made = _decoded(list(frame[rule["name"]]), rule, null_texts, root)
        if bad := {i: why for i, why in enumerate(made) if isinstance(why, str)}:
            shown = "; ".join(f"{frame.index[i]}: {bad[i]}" for i in list(bad)[:SHOWN])
            more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
            raise ValueError(
                f"column {rule['name']!r}: {len(bad)} pictures cannot be used (index {shown}{more})"
            )
        found[rule["name"]] = pd.Series(made, frame.index, dtype=object)
    return frame.assign(**found) if found else frame


def _decoded(
    cells: list[Any], rule: Rule, null_texts: Collection[str], root: str | None
) -> list[np.ndarray | str]:
    """Return the array of each cell, or what is wrong with it."""

    def one(value: Any) -> np.ndarray | str:
        if is_none(value, null_texts):
            if not rule["nulls"]:
                return "null, which training never saw there"
            return np.zeros(rule["shape"], dtype=np.uint8)
        if isinstance(value, np.ndarray) and value.dtype == np.uint8:
            return value
        try:
            return decode(bytes_of(value, root), rule)
        except BadPicture as error:
            return str(error)

    return at_once(one, cells)


def at_once(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Return the results in order, from as many threads as there are processors."""
    if len(items) < 8:
        return [work(item) for item in items]
    with ThreadPoolExecutor(_processors()) as pool:
        size = max(1, len(items) // (8 * _processors()))
        blocks = [items[i : i + size] for i in range(0, len(items), size)]
        return [
            found for block in pool.map(lambda b: [work(i) for i in b], blocks) for found in block
        ]


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
