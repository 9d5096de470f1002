"""Scoring a file: every row with its columns and the numbers of the registered model, whole or not
at all.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.digest import sha256_file
from schemas.errors import DataError, RegistryError
from schemas.registry_records import Scored
from schemas.written_config import WrittenConfig
from tests.training.cases import DERIVE, Case, arrow, evidence_of, make_case
from tests.training.mlflow_home import blank_database
from tests.training.mlflow_home import champion as take_champion
from training.data.split.unseen import trained_keys
from training.registry.registry import LoadedModel, load_champion, register
from training.registry.score_file import predict_file
from training.serving.export import export_model
from training.tracking.mlflow import SQLITE, start_run

__all__ = ["blank_database"]
URI = "models:/clinic@champion"
ROOT = Path(__file__).resolve().parent.parent.parent


class Registry:
    """A registry with one champion."""

    def __init__(self, folder: Path) -> None:
        self.uri = f"{SQLITE}{folder / 'mlflow.db'}"
        self.case: Case = make_case(folder, ignored=("scan",), derive=DERIVE)
        exported = export_model(
            self.case.run, self.case.weights, folder / "model", self.case.split.val
        )
        keys = trained_keys([self.case.split.train])
        tracker = start_run(self.case.declaration, self.uri)
        take_champion(
            register(
                exported,
                self.case.run,
                evidence_of(self.case, exported),
                tracker,
                trained_on=keys,
                split_manifest={},
            ),
            self.uri,
        )
        champion = load_champion("clinic", self.uri)
        assert champion is not None
        self.champion: LoadedModel = champion
        self.rows = self.case.raw["test"].drop(columns="scan")
        self.wanted = champion.predict(self.rows)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, blank_database: Path) -> Registry:
    folder = tmp_path_factory.mktemp("registry")
    (folder / "mlflow.db").write_bytes(blank_database.read_bytes())
    return Registry(folder)


@pytest.mark.req("R4")
@pytest.mark.parametrize(
    ("given", "made"),
    [("rows.parquet", "out.parquet"), ("rows.csv", "out.csv.gz"), ("rows.parquet", "new/out.csv")],
)
def test_a_file_keeps_its_columns_and_order_and_gains_the_models_numbers(
    registry: Registry, tmp_path: Path, given: str, made: str
) -> None:
    frame = registry.rows[[*reversed(registry.rows.columns)]]
    (
        frame.to_parquet(tmp_path / given)
        if given.endswith("parquet")
        else frame.to_csv(tmp_path / given, index=False)
    )
    scored = predict_file(URI, tmp_path / given, tmp_path / made, registry.uri)
    assert (scored.rows, scored.uri, scored.sha256) == (
        50,
        "models:/clinic/1",
        sha256_file(tmp_path / made),
    )
    found = (
        pd.read_parquet(tmp_path / made)
        if made.endswith("parquet")
        else pd.read_csv(tmp_path / made)
    )
    assert list(found.columns) == [
        *frame.columns,
        "prediction",
        "probability_no",
        "probability_yes",
    ]
    assert found["row"].tolist() == frame["row"].tolist()
    assert not set(DERIVE) & set(found.columns)
    assert found["prediction"].tolist() == registry.wanted["prediction"].tolist()
    np.testing.assert_allclose(
        found["probability_yes"], registry.wanted["probability_yes"], rtol=0, atol=1e-12
    )


@pytest.mark.req("R4")
def test_what_was_written_says_which_version_made_it(registry: Registry, tmp_path: Path) -> None:
    registry.rows.to_parquet(tmp_path / "rows.parquet")
    scored = predict_file(URI, tmp_path / "rows.parquet", tmp_path / "out.parquet", registry.uri)
    told = pq.read_schema(tmp_path / "out.parquet").metadata
    wanted = {
        "name": "clinic",
        "version": "1",
        "uri": "models:/clinic/1",
        "run_id": "run-0-0",
        "program_sha256": registry.champion.program_sha256,
    }
    wanted |= {"source": str(tmp_path / "rows.parquet"), "source_sha256": scored.source_sha256}
    assert {
        key.decode().removeprefix("bulkhead."): value.decode()
        for key, value in told.items()
        if key.startswith(b"bulkhead.")
    } == wanted
    assert (
        pd.read_parquet(tmp_path / "out.parquet")["prediction"].tolist()
        == registry.wanted["prediction"].tolist()
    )
    scored = predict_file(URI, tmp_path / "rows.parquet", tmp_path / "out.csv", registry.uri)
    assert Scored.model_validate_json((tmp_path / "out.csv.json").read_bytes()) == scored
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "out.csv",
        "out.csv.json",
        "out.parquet",
        "rows.parquet",
    ]


@pytest.mark.req("S2")
@pytest.mark.parametrize("made", ["out.parquet", "out.csv"])
def test_a_file_without_rows_gives_one_without_rows(
    registry: Registry, tmp_path: Path, made: str
) -> None:
    registry.rows.iloc[:0].to_parquet(tmp_path / "rows.parquet")
    assert predict_file(URI, tmp_path / "rows.parquet", tmp_path / made, registry.uri).rows == 0
    found = (
        pd.read_parquet(tmp_path / made)
        if made.endswith("parquet")
        else pd.read_csv(tmp_path / made)
    )
    assert len(found) == 0 and list(found.columns)[-3:] == [
        "prediction",
        "probability_no",
        "probability_yes",
    ]


@pytest.mark.req("D9")
def test_many_rows_go_through_in_batches_with_nulls_only_in_some(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.registry.score_file.BATCH_ROWS", 7)
    frame = registry.rows.assign(
        age=[50.0] * 20 + [None] * 30, ward=[None] * 7 + ["b"] * 43, note=[None] * 40 + ["x"] * 10
    )
    frame.to_parquet(tmp_path / "rows.parquet")
    assert (
        predict_file(URI, tmp_path / "rows.parquet", tmp_path / "out.parquet", registry.uri).rows
        == 50
    )
    np.testing.assert_allclose(
        pd.read_parquet(tmp_path / "out.parquet")["probability_yes"],
        registry.champion.predict(frame)["probability_yes"],
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.req("S2")
def test_a_refused_file_leaves_what_was_there(registry: Registry, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    out.write_bytes(b"before")
    refused = {
        "missing columns: 'ward'": registry.rows.drop(columns="ward"),
        r"column 'visits': nulls \(NaN\)": registry.rows.assign(visits=[1.0] * 49 + [None]),
        "has columns named 'prediction' already": registry.rows.assign(prediction=1),
        r"missing columns: 'hour' \(for ": registry.rows.drop(columns="hour"),
        r"derived column 'seen_at' .* got '2020' in 50 rows": registry.rows.assign(seen="2020"),
    }
    for message, frame in refused.items():
        frame.to_parquet(tmp_path / "rows.parquet")
        with pytest.raises(DataError, match=message):
            predict_file(URI, tmp_path / "rows.parquet", out, registry.uri)
        assert out.read_bytes() == b"before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.parquet", "rows.parquet"]


@pytest.mark.req("S2")
def test_names_that_cannot_be_written_or_found_are_refused(
    registry: Registry, tmp_path: Path
) -> None:
    registry.rows.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(
        DataError, match=r"out.xlsx: expected a name that ends in .parquet, .csv, .csv.gz"
    ):
        predict_file(URI, tmp_path / "rows.parquet", tmp_path / "out.xlsx", registry.uri)
    with pytest.raises(RegistryError, match=r"models:/clinic@absent is not in the registry"):
        predict_file(
            "models:/clinic@absent", tmp_path / "rows.parquet", tmp_path / "out.csv", registry.uri
        )
    with pytest.raises(DataError, match=r"absent.parquet: no such file"):
        predict_file(URI, tmp_path / "absent.parquet", tmp_path / "out.csv", registry.uri)
    pq.write_table(arrow(registry.case.raw["test"]), tmp_path / "pictures.parquet")
    with pytest.raises(
        DataError, match=r"CSV cannot hold lists: column 'scan'; write .parquet instead"
    ):
        predict_file(URI, tmp_path / "pictures.parquet", tmp_path / "out.csv", registry.uri)


@pytest.mark.req("D1")
def test_texts_that_training_read_as_null_are_null_here_too(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nullable = ["age", "ward", "born", "rank"]
    frame = registry.rows.astype(dict.fromkeys(nullable, object))
    frame[nullable] = frame[nullable].where(frame[nullable].notna(), "?")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    spec = registry.champion.spec | {"csv": registry.champion.spec["csv"] | {"null_values": ["?"]}}
    monkeypatch.setattr(
        "training.registry.score_file.load_model",
        lambda uri, tracking: dataclasses.replace(registry.champion, spec=spec),
    )
    predict_file(URI, tmp_path / "rows.csv", tmp_path / "out.csv", registry.uri)
    np.testing.assert_allclose(
        pd.read_csv(tmp_path / "out.csv")["probability_yes"],
        registry.wanted["probability_yes"],
        rtol=0,
        atol=1e-12,
    )


def test_a_file_is_read_with_the_spellings_of_training(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = registry.rows.assign(income=registry.rows["income"].round(2))
    texts = rows["income"].map("{:.2f} €".format, na_action="ignore").str.replace(".", ",")
    path = tmp_path / "rows.csv"
    rows.assign(income=texts).to_csv(path, index=False)
    path.write_text("# made by x\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    how = WrittenConfig(decimal=",", units=("€",)).model_dump(mode="json")
    spec = registry.champion.spec
    spec = spec | {"csv": spec["csv"] | {"skip": 1}, "spellings": {"income": how}}
    monkeypatch.setattr(
        "training.registry.score_file.load_model",
        lambda uri, tracking: dataclasses.replace(registry.champion, spec=spec),
    )
    predict_file(URI, path, tmp_path / "out.csv", registry.uri)
    found = pd.read_csv(tmp_path / "out.csv")
    assert found["income"].dropna().str.endswith(",00 €").sum() < len(found)
    assert found["income"].fillna("").tolist() == texts.fillna("").tolist()
    np.testing.assert_allclose(
        found["probability_yes"],
        registry.champion.predict(rows)["probability_yes"],
        rtol=0,
        atol=1e-12,
    )
    path.write_text(path.read_text(encoding="utf-8").replace("€", "$", 1), encoding="utf-8")
    with pytest.raises(DataError, match=r"'income': expected numbers .* in row 1"):
        predict_file(URI, path, tmp_path / "out.csv", registry.uri)


PEAK = """
import sys
from pathlib import Path
from training.registry.score_file import predict_file

uri, source, target, registry = sys.argv[1:]
scored = predict_file(uri, Path(source), Path(target), registry)
high = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(scored.rows, int(high.split()[1]) / 1024)
"""  # noqa: E501


@pytest.mark.long
@pytest.mark.req("R4")
def test_memory_does_not_grow_with_the_file(registry: Registry, tmp_path: Path) -> None:
    peaks = []
    for copies in (400, 12_000):  # of 50 rows with a thousand letters each: 20 and 600 MB
        rows = registry.rows.assign(
            note=[
                "".join(chr(97 + (i * 7 + k * k) % 26) for k in range(1000))
                for i in range(len(registry.rows))
            ]
        )
        batch = pa.Table.from_pandas(rows, preserve_index=False)
        with pq.ParquetWriter(tmp_path / "rows.parquet", batch.schema) as writer:
            for _ in range(copies // 100):
                writer.write_table(pa.concat_tables([batch] * 100))
        command = [
            sys.executable,
            "-c",
            PEAK,
            URI,
            str(tmp_path / "rows.parquet"),
            str(tmp_path / "out.parquet"),
            registry.uri,
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        scored, peak = done.stdout.split()
        assert int(scored) == 50 * copies
        peaks.append(float(peak))
    assert peaks[1] - peaks[0] < 120, peaks
