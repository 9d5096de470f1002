"""A registered model of pictures: consumed without this project, by `bulkhead predict`, compared
and explained.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from schemas.errors import DataError
from tests.e2e.test_consumer import CONSUMER, make_champion
from tests.training.cases import write_weights
from tests.training.kind_cases import Prepared, evaluated
from tests.training.mlflow_home import blank_database
from tests.training.picture_cases import as_bytes, picture_case, picture_rows, pixels_of, png
from training.registry.compare_champion import Rows, predictions_of
from training.registry.explain_rows import explain_file
from training.registry.registry import load_model
from training.registry.score_file import predict_file
from training.tracking.mlflow import SQLITE

__all__ = ["blank_database"]

CONSUME = (
    CONSUMER.partition("import mlflow, numpy")[0]
    + """
import base64, mlflow, pandas as pd
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/built@champion")
rows, paths = pd.read_parquet("bytes.parquet"), pd.read_parquet("paths.parquet")
texts = [None if b is None else "data:image/png;base64," + base64.b64encode(b).decode()
         for b in rows["scan"]]
found = {"bytes": model.predict(rows), "texts": model.predict(rows.assign(scan=texts))}
try:
    model.predict(paths)
except Exception as error:
    refused = str(error)
import os
os.environ["BULKHEAD_PICTURES"] = sys.argv[2]
found["paths"] = model.predict(paths)
ours = [m for m in sys.modules if m.split(".")[0] in {"training", "schemas"}]
out = {name: frame["probability_1"].tolist() for name, frame in found.items()}
json.dump({"found": out, "refused": refused, "ours": ours}, open("out.json", "w"))
"""
)


@pytest.fixture(scope="module")
def registered(
    tmp_path_factory: pytest.TempPathFactory, blank_database: Path
) -> tuple[str, Prepared, Path, dict[str, float]]:
    """A registry with a champion that takes pictures, its case, the folder of its table, and what
    evaluation says of the test rows.
    """
    folder = tmp_path_factory.mktemp("registered")
    (folder / "mlflow.db").write_bytes(blank_database.read_bytes())
    uri = f"{SQLITE}{folder / 'mlflow.db'}"
    case: Prepared = picture_case(folder / "table", picture_rows(folder / "table", nulls=12))
    weights = write_weights(folder / "weights.pt", case.run, steps=0, seed=0)
    make_champion(folder / "model", uri, case, weights)  # type: ignore[arg-type]
    return uri, case, folder / "table", evaluated(case, weights, "test")


def rows_of(folder: Path, wanted: dict[str, float]) -> pd.DataFrame:
    rows = pd.read_parquet(folder / "rows.parquet").set_index("row").loc[list(wanted)]
    return rows.reset_index().assign(scan=[None if pd.isna(p) else p for p in rows["scan"]])


@pytest.mark.long
@pytest.mark.req("R1")
def test_pictures_are_served_where_nothing_of_ours_is(tmp_path: Path, registered: Any) -> None:
    uri, _, folder, wanted = registered
    rows = rows_of(folder, wanted)
    rows.to_parquet(tmp_path / "paths.parquet")
    as_bytes(rows, folder).to_parquet(tmp_path / "bytes.parquet")
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "TMPDIR", "DO_NOT_TRACK")}
    done = subprocess.run(
        [sys.executable, "-I", "-c", CONSUME, uri, str(folder)],
        cwd=tmp_path,
        env=kept | {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    out = json.loads((tmp_path / "out.json").read_text())
    assert out["ours"] == [] and "this model reads none: pass the bytes" in out["refused"]
    for found in out["found"].values():
        np.testing.assert_allclose(found, list(wanted.values()), rtol=0, atol=1e-6)


@pytest.mark.long
def test_a_file_of_paths_is_scored_from_its_own_folder(tmp_path: Path, registered: Any) -> None:
    uri, _, folder, wanted = registered
    name = "models:/built@champion"
    rows_of(folder, wanted).to_csv(folder / "new.csv", index=False)
    made = predict_file(name, folder / "new.csv", tmp_path / "out.parquet", uri)
    found = pd.read_parquet(tmp_path / "out.parquet")
    assert made.rows == len(wanted) and found["scan"].str.startswith("scans/").any()
    np.testing.assert_allclose(found["probability_1"], list(wanted.values()), rtol=0, atol=1e-6)
    (folder.parent / "outside.png").write_bytes(png(pixels_of()[0][0]))
    for path, why in (("../outside.png", "outside of the folder"), ("none.png", "no such file")):
        rows_of(folder, wanted).assign(scan=path).to_csv(folder / "odd.csv", index=False)
        with pytest.raises(DataError, match=f"column 'scan': {path}: .*{why}"):
            predict_file(name, folder / "odd.csv", tmp_path / "odd.parquet", uri)
        assert not (tmp_path / "odd.parquet").exists()


@pytest.mark.long
def test_a_champion_is_compared_and_explained_with_its_pictures(registered: Any) -> None:
    uri, case, folder, wanted = registered
    model = load_model("models:/built@champion", uri)
    rows = Rows(case.run.spec, case.run.statistics, case.split.test, case.run.arrays.test)
    found = predictions_of(model, case.declaration, rows)
    np.testing.assert_allclose(found[:, 1], list(wanted.values()), rtol=0, atol=1e-6)
    rows_of(folder, wanted).head(3).to_parquet(folder / "few.parquet")
    few = folder / "few.parquet"
    explained = explain_file("models:/built@champion", few, folder / "rows.parquet", None, uri)
    assert "scan" in explained.names and explained.values.shape == (3, 4)
    total = explained.base + explained.values.sum(axis=1)
    np.testing.assert_allclose(total, explained.predictions, atol=1e-6)
