"""Files of pictures: odd ones are named, sound ones of any form are read, all are sealed."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

from schemas.errors import BulkheadError, ConfigError, SchemaError, SourceError
from schemas.load import declare
from tests.training.data.chain import declared, sides_of, split_of, validated_of
from tests.training.picture_cases import COLUMNS, IMAGE, as_bytes, picture_rows, pixels_of, png
from training.data.engine.picture_store import PictureStore, pixels_digest
from training.data.leakage.poison import poison
from training.data.serving_expressions.pictures import BadPicture, decode, encode_png
from training.data.sources.source import fingerprint
from training.data.table.validate import validate

SCAN = COLUMNS["scan"]


def gray(height: int = 10, width: int = 9) -> np.ndarray:
    """Pixels that no turn or flip leaves as they are."""
    return np.arange(height * width, dtype=np.uint8).reshape(height, width) + 1


def rule(mode: str = "L", resize: str = "refuse", shape: tuple[int, ...] = (10, 9)) -> Any:
    return {"shape": shape if mode == "L" else (3, *shape), "mode": mode, "resize": resize}


def animated() -> bytes:
    out = io.BytesIO()
    frames = [Image.fromarray(gray() + i) for i in range(3)]
    frames[0].save(out, "PNG", save_all=True, append_images=frames[1:])
    return out.getvalue()


def huge() -> bytes:
    """The header of a PNG of 60,000 x 60,000 pixels, and its end."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))]
    parts += [(b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts
    )


def damaged() -> bytes:
    data = bytearray(png(gray()))
    data[50] ^= 0xFF  # within the compressed pixels
    return bytes(data)


ODD: dict[str, tuple[Callable[[], bytes], str]] = {
    "half.png": (lambda: png(gray())[:70], "truncated"),
    "half.jpg": (lambda: png(gray(), "JPEG")[:200], "truncated"),
    "no_end.png": (lambda: png(gray())[:-12], "truncated"),
    "empty.png": (lambda: b"", "zero bytes"),
    "text.png": (lambda: b"this is no picture", "neither PNG nor JPEG"),
    "html.jpg": (lambda: b"<html>404</html>", "neither PNG nor JPEG"),
    "gif.png": (lambda: png(gray(), "GIF"), "neither PNG nor JPEG"),
    "bmp.png": (lambda: png(gray(), "BMP"), "neither PNG nor JPEG"),
    "webp.jpg": (lambda: png(gray(), "WEBP"), "neither PNG nor JPEG"),
    "tiff.png": (lambda: png(gray(), "TIFF"), "neither PNG nor JPEG"),
    "huge.png": (huge, "decompression bomb|exceeds limit"),
    "damaged.png": (damaged, "wrong checksum"),
    "animated.png": (animated, "animated PNG of 3 frames"),
    "header.png": (lambda: b"\x89PNG\r\n\x1a\n", "truncated"),
    "header.jpg": (lambda: b"\xff\xd8\xff\xd9", "cannot be decoded"),
    "large.png": (lambda: png(gray(20, 9)), "20 x 9, expected 10 x 9"),
    "turned.png": (lambda: png(gray(9, 10)), "9 x 10, expected 10 x 9"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_bytes_are_refused_with_the_reason(name: str) -> None:
    make, why = ODD[name]
    with pytest.raises(BadPicture, match=why):
        decode(make(), rule())


def odd_paths(folder: Path) -> dict[str, str]:
    """Paths that lead to no picture of the table, with the reason."""
    (folder.parent / "outside.png").write_bytes(png(gray()))
    (folder / "scans/link.png").symlink_to(folder.parent / "outside.png")
    (folder / "scans/loop.png").symlink_to(folder / "scans/loop.png")
    (folder / "scans/folder.png").mkdir()
    os.mkfifo(folder / "scans/pipe.png")
    return {
        "scans/none.png": "no such file",
        "../outside.png": "outside of the folder",
        str(folder.parent / "outside.png"): "outside of the folder",
        "scans/link.png": "outside of the folder",
        "scans/loop.png": "cannot be read",
        "scans/folder.png": "a folder or device",
        "scans/pipe.png": "a folder or device",
        "": "no path",
        "scans/" + "a" * 300: "no such file|cannot be read|too long",
    }


def odd_table(folder: Path) -> tuple[pd.DataFrame, dict[str, str]]:
    """A table with one row for each odd file among sound ones, and the reasons by path."""
    frame = picture_rows(folder, 90)
    reasons = odd_paths(folder)
    for name, (make, why) in ODD.items():
        (folder / "scans" / name).write_bytes(make())
        reasons[f"scans/{name}"] = why
    cells = frame["scan"].astype(object)
    cells[: len(reasons)] = list(reasons)
    return frame.assign(scan=cells), reasons


def refusal(folder: Path, frame: pd.DataFrame, /, **image: Any) -> Any:
    frame.to_parquet(folder / "rows.parquet", index=False)
    columns = COLUMNS | {"scan": SCAN | {"image": IMAGE | image}}
    return declared(folder / "rows.parquet", columns)


def test_each_odd_file_of_a_table_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    frame, reasons = odd_table(folder)
    assert len(reasons) == 26
    declaration = refusal(folder, frame)
    with pytest.raises(SchemaError) as error:
        validated_of(declaration, tmp_path / "out")
    lines = str(error.value).splitlines()
    assert "26 pictures cannot be used" in lines[0] and "and 6 more" in str(error.value)
    assert "r000: scans/none.png: no such file" in str(error.value)
    assert len([line for line in lines if line.startswith("    r0")]) == 20
    assert "image.invalid: null" in str(error.value)
    assert not list((tmp_path / "out").glob("*.parquet"))


@pytest.mark.parametrize("given", ["paths", pytest.param("bytes", marks=pytest.mark.long)])
def test_odd_files_may_count_as_null(tmp_path: Path, given: str) -> None:
    folder = tmp_path / "table"
    frame, reasons = odd_table(folder)
    if given == "bytes":
        made = [make() for make, _ in ODD.values()]
        frame = as_bytes(picture_rows(folder / "again", 90), folder / "again")
        frame["scan"] = pd.Series([*made, *frame["scan"][len(made) :]], dtype=object)
        reasons = dict.fromkeys(map(str, range(len(made))), "")
    made = validated_of(refusal(folder, frame, invalid="null"), tmp_path / "out")
    table = pq.read_table(made.table.file.path).to_pandas()
    assert table["scan"].isna().sum() == len(reasons) and "count as null" in made.notes[0]
    assert not table.loc[table["__id"] > f"r{len(reasons) - 1:03d}", "scan"].isna().any()


def rgb(red: int, green: int, blue: int, alpha: int | None = None) -> np.ndarray:
    values = [red, green, blue, *([] if alpha is None else [alpha])]
    return np.full((10, 9, len(values)), values, dtype=np.uint8)


def test_sound_files_of_every_form_are_read() -> None:
    def of(data: bytes, mode: str = "RGB", **options: Any) -> np.ndarray:
        return decode(data, rule(mode, **options))

    np.testing.assert_array_equal(of(png(gray()), "L"), gray())
    np.testing.assert_array_equal(of(png(gray())), np.stack([gray()] * 3))
    np.testing.assert_array_equal(of(png(rgb(9, 8, 7)))[:, 0, 0], [9, 8, 7])
    sixteen = (gray().astype(np.uint16) << 8) + 77
    np.testing.assert_array_equal(of(png(sixteen), "L"), gray())
    np.testing.assert_array_equal(of(png(rgb(200, 100, 50, 0)))[:, 0, 0], [1, 1, 1])  # black
    half = of(png(rgb(200, 100, 50, 128)))[:, 0, 0]
    assert np.abs(half.astype(int) - [100, 50, 25]).max() <= 1
    palette = Image.fromarray(rgb(200, 100, 50)).convert("P", palette=Image.Palette.ADAPTIVE)
    out = io.BytesIO()
    palette.save(out, "PNG")
    np.testing.assert_array_equal(of(out.getvalue())[:, 0, 0], [200, 100, 50])
    out = io.BytesIO()
    palette.save(out, "PNG", transparency=palette.getpixel((0, 0)))
    assert of(out.getvalue()).max() == 1
    cmyk = io.BytesIO()
    Image.fromarray(rgb(200, 100, 50)).convert("CMYK").save(cmyk, "JPEG", quality=95)
    assert np.abs(of(cmyk.getvalue())[:, 0, 0].astype(int) - [200, 100, 50]).max() <= 6
    one = io.BytesIO()
    Image.fromarray(gray() > 40).save(one, "PNG")
    assert set(np.unique(of(one.getvalue(), "L"))) == {0, 255}


def test_a_turned_photo_is_read_as_it_is_shown() -> None:
    out, exif = io.BytesIO(), Image.Exif()
    exif[274] = 6  # turned by 90 degrees
    Image.fromarray(gray(9, 10)).save(out, "JPEG", exif=exif, quality=100, subsampling=0)
    found = decode(out.getvalue(), rule())
    assert found.shape == (10, 9) and np.abs(found.astype(int) - np.rot90(gray(9, 10), 3)).max() < 9


@pytest.mark.parametrize("resize", ["fit", "stretch"])
def test_other_sizes_are_scaled_as_declared(resize: str) -> None:
    wide = np.full((10, 40), 100, dtype=np.uint8)
    found = decode(png(wide), rule(resize=resize, shape=(20, 20)))
    assert found.shape == (20, 20)
    inside = found[7:12] if resize == "fit" else found
    assert (inside == 100).all() and found.sum() == (5 if resize == "fit" else 20) * 20 * 100


def test_no_picture_is_the_only_one_of_zeros() -> None:
    black = decode(png(gray() * 0), rule())
    assert (black == 1).all()
    np.testing.assert_array_equal(decode(encode_png(black), rule()), black)


def test_equal_pixels_are_stored_once_and_equal(tmp_path: Path) -> None:
    frame = picture_rows(tmp_path, 60)
    again = (tmp_path / "scans/000.png").read_bytes()
    (tmp_path / "scans/001.png").write_bytes(png(pixels_of(60)[0][0], compress_level=0))
    assert again != (tmp_path / "scans/001.png").read_bytes()
    made = validated_of(refusal(tmp_path, frame), tmp_path / "out")
    table = pq.read_table(made.table.file.path).to_pandas().set_index("__id")["scan"]
    assert table["r000"] == table["r001"] == pixels_digest(pixels_of(60)[0][0])
    spec = made.spec.images["scan"]
    assert spec.pixels is not None and spec.pixels.num_bytes == 59 * 90
    found = PictureStore(spec).read(pq.read_table(made.table.file.path)["scan"])
    np.testing.assert_array_equal(found[list(table.index).index("r005")], pixels_of(60)[0][5])


@pytest.mark.parametrize("given", ["paths", pytest.param("bytes", marks=pytest.mark.long)])
def test_rows_of_one_picture_are_a_group_if_declared(tmp_path: Path, given: str) -> None:
    frame = picture_rows(tmp_path, 90)
    for i in range(0, 90, 3):
        copy = png(pixels_of(90)[0][i], compress_level=0)
        (tmp_path / f"scans/{i + 1:03d}.png").write_bytes(copy)
    frame = as_bytes(frame, tmp_path) if given == "bytes" else frame
    frame.to_parquet(tmp_path / "rows.parquet", index=False)
    by = {"group_by": {"duplicates": ["scan"]}}
    declaration = declared(tmp_path / "rows.parquet", COLUMNS, split="group", data=by)
    _, split = split_of(declaration, tmp_path / "out")
    sides = sides_of(split)
    assert all(sides[f"r{i:03d}"] == sides[f"r{i + 1:03d}"] for i in range(0, 90, 3))


def test_a_changed_picture_is_a_changed_source(tmp_path: Path) -> None:
    frame = picture_rows(tmp_path, 60)
    declaration = refusal(tmp_path, frame)
    before = fingerprint(declaration.data)
    assert fingerprint(declaration.data) == before and before.pictures[0].files == 60
    (tmp_path / "scans/007.png").write_bytes(png(gray()))
    after = fingerprint(declaration.data)
    assert after.sha256 != before.sha256 and after.files == before.files
    with pytest.raises(SourceError, match=r"007.png: the picture was changed or removed since"):
        validate(before, declaration, tmp_path / "out")
    (tmp_path / "scans/007.png").unlink()
    with pytest.raises(SourceError, match=r"007.png: the picture was changed"):
        validate(after, declaration, tmp_path / "out")
    validate_again = fingerprint(declaration.data)
    with pytest.raises(SchemaError, match=r"r007: scans/007.png: no such file"):
        validate(validate_again, declaration, tmp_path / "out")


@pytest.mark.long
def test_the_folder_of_the_pictures_may_be_declared(tmp_path: Path) -> None:
    frame = picture_rows(tmp_path / "elsewhere", 60)
    made = validated_of(
        refusal(tmp_path, frame, folder=str(tmp_path / "elsewhere")), tmp_path / "a"
    )
    again = validated_of(refusal(tmp_path, frame, folder="elsewhere"), tmp_path / "b")
    assert made.table.file.sha256 == again.table.file.sha256
    with pytest.raises(SchemaError, match="60 pictures cannot be used"):
        validated_of(refusal(tmp_path, frame), tmp_path / "c")


def test_a_worker_reads_pictures_within_its_roots_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rooted").mkdir()
    frame = picture_rows(tmp_path / "secret", 60)
    declaration = refusal(tmp_path / "rooted", frame, folder=str(tmp_path / "secret"))
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "a")
    monkeypatch.setenv("BULKHEAD_DATA_ROOTS", str(tmp_path / "rooted"))
    with pytest.raises(ConfigError, match=r"image\.folder"):
        fingerprint(declaration.data)


@pytest.mark.parametrize(
    ("column", "data", "message"),
    [
        ({"kind": "image"}, {}, "needs kind: image together with image"),
        ({"kind": "numeric", "image": IMAGE}, {}, "needs kind: image together with image"),
        (SCAN | {"image": {"size": [0, 9]}}, {}, "greater than or equal to 1"),
        (SCAN | {"min": 3}, {}, "kind image has no min"),
        (SCAN, {"derive": {"scan": "concat(row, '.png')"}}, "pictures are columns of the source"),
        (SCAN, {"engine": "spark"}, "spark cannot do column 'scan' of kind image"),
    ],
)
def test_declarations_that_cannot_be_are_refused(column: Any, data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declared("rows.parquet", COLUMNS | {"scan": column}, data=data)


def test_numbers_are_no_pictures(tmp_path: Path) -> None:
    frame = picture_rows(tmp_path, 60).assign(scan=1.5)
    with pytest.raises(BulkheadError, match="kind image needs paths of files or their bytes"):
        validated_of(refusal(tmp_path, frame), tmp_path / "out")


def test_poison_gives_held_out_rows_other_pictures(tmp_path: Path) -> None:
    made = validated_of(refusal(tmp_path, picture_rows(tmp_path, 60)), tmp_path / "out")
    table = pq.read_table(made.table.file.path)
    store = PictureStore(made.spec.images["scan"])
    for way in ("extreme", "shuffled"):
        other = poison(table, made.spec, way)
        assert other["scan"] != table["scan"] and store.read(other["scan"]).any()


@pytest.mark.parametrize("invalid", ["refuse", "null", None])
def test_the_declaration_round_trips(invalid: str | None) -> None:
    image = IMAGE | {"invalid": invalid}  # YAML reads null as None
    first = declared("rows.parquet", COLUMNS | {"scan": SCAN | {"image": image}})
    assert first.data.columns["scan"].image.invalid == (invalid or "null")
    assert declare(first.model_dump(mode="json", by_alias=True)) == first
