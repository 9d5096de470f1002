"""A first declaration of tables with pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from schemas.load import declare
from tests.training.data.chain import validated_of
from tests.training.picture_cases import as_bytes, picture_rows, pixels_of, png
from training.data.draft.draft import draft


@pytest.mark.parametrize("given", ["paths", pytest.param("bytes", marks=pytest.mark.long)])
def test_pictures_are_drafted_with_their_size_and_mode(tmp_path: Path, given: str) -> None:
    frame = picture_rows(tmp_path, 160)
    frame = as_bytes(frame, tmp_path) if given == "bytes" else frame
    frame.to_parquet(tmp_path / "rows.parquet", index=False)
    text = draft(str(tmp_path / "rows.parquet"), label="y")
    tree = yaml.safe_load(text)
    wanted = {"kind": "image", "image": {"size": [10, 9], "mode": "L"}}
    assert tree["data"]["columns"]["scan"] == wanted and "10 x 9" in text
    declaration = declare(tree)
    assert validated_of(declaration, tmp_path / "out").spec.images["scan"].shape == (10, 9)


@pytest.mark.long
def test_pictures_of_several_sizes_are_fitted_and_other_texts_left_alone(tmp_path: Path) -> None:
    frame = picture_rows(tmp_path, 160)
    for i in range(0, 160, 2):
        (tmp_path / f"scans/{i:03d}.png").write_bytes(png(pixels_of(1)[0][0].repeat(2, axis=0)))
    (tmp_path / "scans/003.png").write_bytes(b"no picture")
    frame["gone"] = [f"gone/{i}.png" for i in range(160)]
    frame.to_csv(tmp_path / "rows.csv", index=False)
    columns = yaml.safe_load(draft(str(tmp_path / "rows.csv"), label="y"))["data"]["columns"]
    wanted = {"size": [64, 64], "mode": "L", "resize": "fit", "invalid": None}
    assert columns["scan"]["image"] == wanted and columns["gone"] == "ignore"
