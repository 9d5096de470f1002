"""A version that was registered before the tree was rebuilt loads, predicts the same numbers and
verifies.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import mlflow
import numpy as np
import pandas as pd
import pytest

from tests.golden.model_before import NAME, restore, score, stored
from tests.golden.pinned import bulkhead


class Home(NamedTuple):
    """A home whose registry holds the version, and the folder of its files."""

    folder: Path
    files: Path

    def variables(self) -> dict[str, str]:
        return {"BULKHEAD_HOME": str(self.folder), "BULKHEAD_TRUSTED_KEYS": stored()["key"]}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home", restore(tmp_path / "home"))


def require_same(predictions: pd.DataFrame) -> None:
    expected = pd.DataFrame(stored()["predictions"])
    assert len(expected) == 12 and expected["probability_1"].nunique() > 6, "rows that differ"
    for name in expected:
        np.testing.assert_allclose(
            predictions[name].astype(float), expected[name], rtol=0, atol=1e-6
        )


@pytest.mark.long
def test_the_command_scores_and_verifies_it(home: Home, tmp_path: Path) -> None:
    rows = stored()["rows"]
    require_same(
        pd.DataFrame(
            score(
                tmp_path,
                home.folder,
                rows,
                **{k: v for k, v in home.variables().items() if k != "BULKHEAD_HOME"},
            )
        )
    )
    done = bulkhead("verify", f"models:/{NAME}/1", "--json", folder=tmp_path, **home.variables())
    assert done.returncode == 0, done.stdout + done.stderr
    results = {result["name"]: result["verdict"] for result in json.loads(done.stdout)["results"]}
    assert set(results.values()) == {"pass"}, results
    assert {
        "files",
        "signer",
        "digests",
        "checks",
        "gate",
        "trained_on",
        "run",
        "metrics",
        "evidence",
        "config",
    } <= set(results)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "file", ["artifacts/program.pt2", pytest.param("artifacts/spec.json", marks=pytest.mark.long)]
)
def test_a_changed_byte_of_it_is_noticed(home: Home, tmp_path: Path, file: str) -> None:
    content = bytearray((home.files / file).read_bytes())
    content[len(content) // 2] ^= 1
    (home.files / file).write_bytes(content)
    done = bulkhead("verify", f"models:/{NAME}/1", folder=tmp_path, **home.variables())
    assert done.returncode == 1 and Path(file).name in done.stdout + done.stderr


@pytest.mark.filterwarnings(
    "ignore:.*Any type hint is inferred:UserWarning"
)  # MLflow of its own types, when it is imported
def test_mlflow_alone_loads_it_and_predicts_the_same(tmp_path: Path) -> None:
    files = restore(tmp_path / "home")
    rows = pd.DataFrame(stored()["rows"]).drop(columns=["id", "y"]).replace("", None)
    rows = rows.astype({"a": float, "b": float, "seen": float})
    require_same(mlflow.pyfunc.load_model(str(files)).predict(rows))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        require_same(mlflow.pyfunc.load_model(str(files)).predict(rows.assign(a=rows["a"] + 1e-3)))
