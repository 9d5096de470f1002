"""Registered models of texts and sets, molecules, pictures and series, in an environment that has
what the model requires and nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlflow
import numpy as np
import pandas as pd
import pytest

from tests.e2e.clean_environment import distributions, make_environment
from tests.e2e.test_consumer import make_champion
from tests.training.cases import write_weights
from tests.training.kind_cases import MIXED, Prepared, evaluated, mixed_rows, prepared
from tests.training.mlflow_home import blank_database
from tests.training.picture_cases import as_bytes, picture_case, picture_rows
from tests.training.test_molecules import columns as molecule_columns
from tests.training.test_molecules import rows as molecule_rows
from tests.training.windows.tables import prepared_series, series
from training.tracking.mlflow import SQLITE

__all__ = ["blank_database"]

CONSUME = """
import importlib.util, json, sys, warnings
warnings.simplefilter("ignore")
import mlflow, pandas as pd
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/built@champion")
found = model.predict(pd.read_parquet("raw.parquet"))["probability_1"].tolist()
absent = ("training", "schemas", "prefect", "duckdb", "pandera", *sys.argv[2:])
json.dump({"found": found, "there": [n for n in absent if importlib.util.find_spec(n)]}, open("out.json", "w"))
"""  # noqa: E501
Made = tuple[Prepared, pd.DataFrame]


class Kind(NamedTuple):
    """How a case with this kind is made from a folder, with the raw rows of all its splits, and
    the library that its model needs next to the usual ones.
    """

    make: Callable[[Path], Made]
    needs: str = ""


def texts(folder: Path) -> Made:
    """Two texts, one of them in its order, two sets, a date, a category and a number."""
    note = {"kind": "text", "encoder": {"kind": "transformer", "width": 8, "heads": 2}}
    return prepared(folder, mixed_rows(), MIXED | {"note": note}), mixed_rows()


def molecules(encoder: str) -> Callable[[Path], Made]:
    """Molecules with nulls and invalid ones."""
    return lambda folder: (
        prepared(folder, molecule_rows(240), molecule_columns(encoder)),
        molecule_rows(240),
    )


def pictures(folder: Path) -> Made:
    """Pictures with nulls, served as bytes."""
    frame = picture_rows(folder, nulls=12)
    return picture_case(folder, frame), as_bytes(frame, folder)


def windows(encoder: str) -> Callable[[Path], Made]:
    """Series with gaps, served as a frame of all rows."""
    window = {"encoder": {"kind": encoder, "width": 8}}
    return lambda folder: (prepared_series(folder, series(), window), series())


KINDS = {
    "texts": Kind(texts),
    "molecules as bits": Kind(molecules("fingerprint"), "rdkit"),
    "molecules as graphs": Kind(molecules("graph"), "rdkit"),
    "molecules as tokens": Kind(molecules("transformer"), "rdkit"),
    "pictures": Kind(pictures, "pillow"),
    "series, tcn": Kind(windows("tcn")),
    "series, gru": Kind(windows("gru")),
    "series, transformer": Kind(windows("transformer")),
}


@pytest.mark.long
@pytest.mark.req("R1")
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_gives_its_test_predictions_where_only_its_requirements_are(
    tmp_path: Path, blank_database: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "mlflow.db").write_bytes(blank_database.read_bytes())
    uri = f"{SQLITE}{tmp_path / 'mlflow.db'}"
    case, raw = KINDS[kind].make(tmp_path / "table")
    weights = write_weights(tmp_path / "weights.pt", case.run, steps=0, seed=0)
    make_champion(tmp_path / "model", uri, case, weights)  # type: ignore[arg-type]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    named = Path(mlflow.pyfunc.get_model_dependencies("models:/built@champion"))
    required = [line for line in named.read_text().splitlines() if line]
    wanted = evaluated(case, weights, "test")
    assert len(wanted) > 10
    needs = KINDS[kind].needs
    names = {line.partition("==")[0] for line in required}
    assert names == {"mlflow", "torch", "numpy", "pandas", "pyarrow", *([needs] if needs else [])}
    raw.to_parquet(tmp_path / "raw.parquet")
    found = consumed(tmp_path, uri, required)
    answers = dict(zip(raw["row"], found, strict=True))
    told = [answers[row] for row in wanted]
    np.testing.assert_allclose(told, list(wanted.values()), rtol=0, atol=1e-6)


def consumed(folder: Path, uri: str, required: list[str]) -> list[float]:
    """What the champion says of raw.parquet in a fresh environment; of other kinds' libraries and
    of this project nothing can be imported there.
    """
    python = make_environment(folder / "environment", required)
    modules = {"rdkit": "rdkit", "pillow": "PIL"}
    absent = [module for name, module in modules.items() if name not in distributions(required)]
    done = subprocess.run(
        [str(python), "-I", "-c", CONSUME, uri, *absent],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "DO_NOT_TRACK": "1"}
        | {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    out: dict[str, Any] = json.loads((folder / "out.json").read_text())
    assert out["there"] == []
    return list(out["found"])
