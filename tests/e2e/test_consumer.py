"""A consumer with MLflow, torch, numpy, pandas and pyarrow, without this project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.training.cases import (
    DERIVE,
    Case,
    arrow,
    evidence_of,
    expected,
    make_case,
    write_weights,
)
from tests.training.label_cases import LabelCase, make_label_case
from tests.training.mlflow_home import blank_database, champion
from training.data.split.unseen import trained_keys
from training.registry.registry import register
from training.serving.export import export_model
from training.serving.reference_network import reference_network
from training.tracking.mlflow import SQLITE, start_run

__all__ = ["blank_database"]

ROOT = Path(__file__).resolve().parent.parent.parent
CONSUMER = """
import importlib.abc, json, sys, warnings
warnings.simplefilter("ignore")

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"training", "schemas", "tasks", "flows", "tests", "bulkhead", "duckdb", "prefect", "pandera"}:
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Absent())
import mlflow, numpy as np, pandas as pd
mlflow.set_tracking_uri(sys.argv[1])
NUMBERS = ["age", "visits", "income"]


def consume(task):
    model = mlflow.pyfunc.load_model(f"models:/clinic-{task}@champion")
    rows = pd.read_parquet(f"{task}.parquet")
    found = {
        "as stored": model.predict(rows),
        "reordered": model.predict(rows[list(reversed(rows.columns))]),
        "extra": model.predict(rows.assign(extra=1.0, more="x")),
        "float32": model.predict(rows.astype({n: "float32" for n in NUMBERS})),
        "float64": model.predict(rows.astype({n: "float64" for n in [*NUMBERS, "site"]})),
        "csv": model.predict(pd.read_csv(f"{task}.csv").assign(scan=rows["scan"])),
        "one by one": pd.concat([model.predict(rows.iloc[[i]]) for i in range(5)]),
    }
    faults = {
        "missing": rows.drop(columns="income"),
        "nan": rows.astype({"visits": float}).assign(visits=lambda f: f["visits"].where(f.index != 4)),
        "infinite": rows.assign(income=np.inf),
    }
    if "seen" in rows:
        faults |= {"no source": rows.drop(columns="hour"), "no date": rows.assign(seen="soon"), "no whole number": rows.assign(hour=2.5)}
    return {"found": {k: v.to_dict("list") for k, v in found.items()}, "refused": {k: refused(model, v) for k, v in faults.items()}}


def refused(model, frame):
    try:
        model.predict(frame)
    except Exception as error:
        return str(error)


def consume_labels():
    model = mlflow.pyfunc.load_model("models:/clinic-multitask@champion")
    rows = pd.read_csv("multitask.csv")
    found = {"csv": model.predict(rows), "reordered": model.predict(rows[list(reversed(rows.columns))]), "one by one": pd.concat([model.predict(rows.iloc[[i]]) for i in range(3)])}
    columns = [(c.name, c.type.name) for c in model.metadata.signature.outputs.inputs]
    return {"found": {k: v.to_dict("list") for k, v in found.items()}, "columns": columns, "refused": refused(model, rows.drop(columns="x1"))}


out = {task: consume(task) for task in ("binary", "regression")} | {"multitask": consume_labels()}
ours = [m for m in sys.modules if m.split(".")[0] in {"training", "schemas"}]
json.dump(out | {"ours": ours}, open("out.json", "w"))
"""  # noqa: E501


@pytest.fixture(scope="module")
def champions(
    tmp_path_factory: pytest.TempPathFactory, blank_database: Path
) -> tuple[str, dict[str, Case]]:
    """Return a registry with a champion for each task, and their cases; the binary one derives
    features.
    """
    folder = tmp_path_factory.mktemp("registry")
    (folder / "mlflow.db").write_bytes(blank_database.read_bytes())
    uri = f"{SQLITE}{folder / 'mlflow.db'}"
    cases = {
        task: make_case(
            folder / task, task, name=f"clinic-{task}", derive=DERIVE if task == "binary" else None
        )
        for task in ("binary", "regression")
    }
    for task, case in cases.items():
        make_champion(folder / f"{task}-model", uri, case, case.weights)
    return uri, cases


def make_champion(folder: Path, uri: str, case: Case | LabelCase, weights: Path) -> None:
    """Register the case's model, the first and so the champion of its name."""
    exported = export_model(case.run, weights, folder, case.split.val)
    keys = trained_keys([case.split.train, case.split.val])
    champion(
        register(
            exported,
            case.run,
            evidence_of(case, exported),
            start_run(case.declaration, uri),
            trained_on=keys,
            split_manifest={},
        ),
        uri,
    )


@pytest.fixture(scope="module")
def several(
    champions: tuple[str, dict[str, Case]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[LabelCase, Path]:
    """Add a champion of three labels of different kinds; return its case and its weights."""
    folder = tmp_path_factory.mktemp("several")
    case = make_label_case(folder / "case", "multitask")
    weights = write_weights(folder / "weights.pt", case.run, steps=0, seed=0)
    make_champion(folder / "model", champions[0], case, weights)
    return case, weights


@pytest.mark.long
@pytest.mark.req("R1")
@pytest.mark.req("R4")
def test_a_registered_model_gives_the_evaluated_numbers_where_nothing_of_ours_is(
    tmp_path: Path, champions: tuple[str, dict[str, Case]], several: tuple[LabelCase, Path]
) -> None:
    uri, cases = champions
    several_agree = several_labels(tmp_path, *several)
    for task, case in cases.items():
        pq.write_table(arrow(case.raw["test"]), tmp_path / f"{task}.parquet")
        case.raw["test"].drop(columns="scan").to_csv(tmp_path / f"{task}.csv", index=False)
    environment = {
        k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "TMPDIR", "DO_NOT_TRACK")
    } | {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
    done = subprocess.run(
        [sys.executable, "-I", "-c", CONSUMER, uri],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    out = json.loads((tmp_path / "out.json").read_text())
    assert out["ours"] == []
    for task, case in cases.items():
        agrees(task, case, out[task]["found"])
        refused = out[task]["refused"]
        assert "missing columns: 'income'" in refused["missing"]
        assert "column 'visits': nulls (NaN)" in refused["nan"]
        assert "(index 4)" in refused["nan"]
        assert "column 'income': infinite numbers in 50 rows" in refused["infinite"]
    several_agree(out["multitask"])
    assert not set(DERIVE) & set(cases["binary"].raw["test"].columns)
    refused = out["binary"]["refused"]
    assert "missing columns: 'hour'" in refused["no source"]
    assert "derived column 'seen_at'" in refused["no date"]
    assert "got 'soon' in 50 rows (index 0, 1, 2, 3, 4, …)" in refused["no date"]
    assert "column 'hour'" in refused["no whole number"]


@pytest.mark.long
@pytest.mark.req("R1")
def test_the_example_of_a_consumer_is_all_that_is_needed(
    tmp_path: Path, champions: tuple[str, dict[str, Case]]
) -> None:
    uri, cases = champions
    example = ROOT / "examples" / "consume.py"
    assert len(example.read_text().splitlines()) <= 22
    pq.write_table(arrow(cases["binary"].raw["test"]), tmp_path / "rows.parquet")
    absent = CONSUMER.partition("import mlflow, numpy")[0]
    code = (
        f"{absent}\nimport runpy\nsys.argv = ['consume.py', 'clinic-binary', 'rows.parquet',"
        f" 'scores.parquet']\nrunpy.run_path({str(example)!r})"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "MLFLOW_TRACKING_URI": uri}
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "50 rows scored by version 1 of clinic-binary" in done.stdout
    scores = pd.read_parquet(tmp_path / "scores.parquet")
    wanted = expected(
        cases["binary"], reference_network(cases["binary"].run, cases["binary"].weights)
    )
    np.testing.assert_allclose(scores["probability_yes"], wanted[:, 1], rtol=0, atol=1e-6)
    assert set(scores["model_version"].astype(str)) == {"1"}


def several_labels(
    folder: Path, case: LabelCase, weights: Path
) -> Callable[[dict[str, Any]], None]:
    """Write the test rows of several labels for the consumer; return a function that compares its
    output with the evaluated numbers.
    """
    ids = pq.read_table(case.run.arrays.test.ids.path, columns=["__id"]).column(0).to_pylist()
    case.raw.set_index("row").loc[ids].drop(columns=["toxic", "stage", "dose"]).to_csv(
        folder / "multitask.csv", index=False
    )
    toxic, *stages, dose = expected(case, reference_network(case.run, weights)).T
    wanted = {
        "prediction_toxic": ["yes" if p > 0.5 else "no" for p in toxic],
        "probability_toxic": toxic,
        "prediction_stage": (np.argmax(stages, axis=0) + 1).tolist(),
        **{f"probability_stage_{k}": p for k, p in enumerate(stages, start=1)},
        "prediction_dose": dose,
    }
    types = ["string", "double", "long", "double", "double", "double", "double"]

    def agree(out: dict[str, Any]) -> None:
        assert out["columns"] == [list(pair) for pair in zip(wanted, types, strict=True)]
        assert "missing columns: 'x1'" in out["refused"]
        for how, columns in out["found"].items():
            assert list(columns) == list(wanted)
            for name, values in wanted.items():
                found = columns[name]
                if isinstance(values, list):
                    assert found == values[: len(found)], (how, name)
                else:
                    np.testing.assert_allclose(
                        found, values[: len(found)], rtol=0, atol=1e-6, err_msg=f"{how}, {name}"
                    )

    return agree


def agrees(task: str, case: Case, found: dict[str, dict[str, list[float]]]) -> None:
    """Check that every way to predict gives the evaluated numbers to 1e-6."""
    wanted = expected(case, reference_network(case.run, case.weights))
    for name, columns in found.items():
        frame = pd.DataFrame(columns)
        values, target = (
            (frame["prediction"], wanted)
            if task == "regression"
            else (frame["probability_yes"], wanted[:, 1])
        )
        # a number that was rounded to float32 before is another number: in the label's units, more
        # than 1e-6
        tolerance = (
            1e-6 * case.run.statistics.target_scale
            if name == "float32" and task == "regression"
            else 1e-6
        )
        np.testing.assert_allclose(
            values, target[: len(values)], rtol=0, atol=tolerance, err_msg=f"{task}, {name}"
        )
        if task == "binary":
            assert frame["prediction"].tolist() == [
                "yes" if p > 0.5 else "no" for p in target[: len(values)]
            ]
