"""Draw how files of several forms are read.

    python -m benchmarks.picture_forms docs/images/pictures.png

Above the files as their bytes have them, below the arrays that a column of 48 x 48 gets.
"""

from __future__ import annotations

import io
import sys
from typing import Any

import matplotlib
import numpy as np
from PIL import Image, ImageDraw

from training.data.serving_expressions.pictures import decode

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SIDE = 48


def drawing(height: int, width: int) -> Image.Image:
    """Return a sun over a hill, which shows when it is turned."""
    made = Image.new("RGB", (width, height), (150, 200, 235))
    pen = ImageDraw.Draw(made)
    radius = min(height, width) // 5
    pen.ellipse(
        (width // 9, height // 9, width // 9 + 2 * radius, height // 9 + 2 * radius), "gold"
    )
    pen.polygon([(0, height), (width * 2 // 3, height // 2), (width, height)], "seagreen")
    return made


def forms() -> list[tuple[str, bytes, dict[str, Any]]]:
    """Return title, bytes and rule of each file."""
    plain, wide = drawing(96, 96), drawing(60, 120)
    exif = Image.Exif()
    exif[274] = 6
    clear = plain.convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize((96, 96)))
    deep = Image.fromarray(np.asarray(plain.convert("L"), dtype=np.uint16) << 8)
    files: list[tuple[str, Image.Image, str, dict[str, Any], str, str]] = [
        ("PNG", plain, "PNG", {}, "stretch", "RGB"),
        ("CMYK JPEG", plain.convert("CMYK"), "JPEG", {}, "stretch", "RGB"),
        ("palette", plain.quantize(6), "PNG", {}, "stretch", "RGB"),
        ("transparent", clear, "PNG", {}, "stretch", "RGB"),
        ("16 bits, mode L", deep, "PNG", {}, "stretch", "L"),
        ("EXIF: turned", plain.rotate(90), "JPEG", {"exif": exif}, "stretch", "RGB"),
        ("resize: fit", wide, "PNG", {}, "fit", "RGB"),
        ("resize: stretch", wide, "PNG", {}, "stretch", "RGB"),
    ]
    found = []
    for title, picture, kind, options, resize, mode in files:
        out = io.BytesIO()
        picture.save(out, kind, **options)
        shape = [SIDE, SIDE] if mode == "L" else [3, SIDE, SIDE]
        rule = {"shape": shape, "mode": mode, "resize": resize}
        found.append((title, out.getvalue(), rule))
    return found


def main(path: str) -> None:
    """Write the figure."""
    shown = forms()
    figure, axes = plt.subplots(2, len(shown), figsize=(1.45 * len(shown), 3.1))
    for (title, data, rule), above, below in zip(shown, *axes, strict=True):
        with Image.open(io.BytesIO(data)) as file:
            stored = np.asarray(file if file.mode.startswith("I") else file.convert("RGBA"))
        above.imshow(stored, cmap="gray")
        above.set_title(title, fontsize=9)
        array = decode(data, rule)
        below.imshow(array if array.ndim == 2 else array.transpose(1, 2, 0), cmap="gray")
        for axis in (above, below):
            axis.set_xticks([])
            axis.set_yticks([])
    axes[0][0].set_ylabel("file")
    axes[1][0].set_ylabel("array")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(sys.argv[1])
