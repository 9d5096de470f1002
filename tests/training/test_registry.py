"""The registry: a version is whole, tried out and verified, or the alias stays where it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from schemas.digest import file_ref
from schemas.errors import IntegrityError, RegistryError
from schemas.records import ExportedModel, GateReport, Registered
from tests.training.cases import DERIVE, Case, evidence_of, make_case, write_weights
from tests.training.mlflow_home import blank_database, clinic, declaration, uri
from tests.training.mlflow_home import champion as take_champion
from training.data.split.unseen import evaluated_keys, trained_keys
from training.registry.registry import (
    environment,
    load_champion,
    load_model,
    register,
)
from training.registry.trust import FILES
from training.serving.export import export_model
from training.serving.serving import read_spec
from training.serving.signature import input_example
from training.tracking.mlflow import Tracker, start_run

__all__ = ["blank_database", "clinic", "uri"]


class Made:
    """One case exported with two sets of weights."""

    def __init__(self, folder: Path, case: Case, first: ExportedModel) -> None:
        self.case, self.first = case, first
        self.second = export_model(
            case.run,
            write_weights(folder / "other.pt", case.run, 0, seed=5),
            folder / "model",
            case.split.val,
        )
        self.keys = trained_keys([self.case.split.train, self.case.split.val])

    def register(
        self,
        uri: str,
        exported: ExportedModel,
        champion: str | None = None,
        tracker: Tracker | None = None,
    ) -> Registered:
        gate = GateReport(passed=True, verdict="passed", conditions=(), champion_version=champion)
        run = tracker or start_run(self.case.declaration, uri=uri)
        keys, evidence = (
            {
                "trained_on": self.keys,
                "tested_on": evaluated_keys(self.case.split.test),
            },
            evidence_of(self.case, exported, gate),
        )
        made = register(
            exported, self.case.run, evidence, run, **keys, split_manifest={"strategy": "group"}
        )
        return take_champion(made, uri, champion)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, clinic: tuple[Case, ExportedModel]) -> Made:
    return Made(tmp_path_factory.mktemp("made"), *clinic)


def alias(uri: str, name: str) -> str:
    return str(MlflowClient(uri, uri).get_model_version_by_alias("clinic", name).version)


@pytest.mark.req("R1")
@pytest.mark.req("R2")
def test_versions_follow_each_other_and_the_one_before_keeps_an_alias(made: Made, uri: str) -> None:
    assert load_champion("clinic", uri) is None
    tracker = start_run(made.case.declaration, uri=uri)
    tracker.log_metrics({"test/auroc": 0.8})
    assert made.register(uri, made.first, tracker=tracker) == Registered(
        registered=True,
        name="clinic",
        version="1",
        uri="models:/clinic/1",
        alias=None,
        verdict="passed",
    )
    champion = load_champion("clinic", uri)
    assert champion is not None
    assert (champion.version, champion.program_sha256) == ("1", made.first.program.sha256)
    np.testing.assert_array_equal(champion.trained_on, made.keys)
    assert (
        champion.tested_on is not None
        and len(champion.tested_on) == 50
        and not np.isin(champion.tested_on, made.keys).any()
    )
    assert champion.evidence["arrays_sha256"] == made.case.run.arrays.sha256
    assert len(champion.predict(made.case.raw["test"])) == 50
    assert made.register(uri, made.second, champion="1").version == "2"
    assert (alias(uri, "champion"), alias(uri, "previous")) == ("2", "1")
    tags = MlflowClient(uri, uri).get_model_version("clinic", "1").tags
    assert tags["bulkhead.sha256.program.pt2"] == made.first.program.sha256
    assert (tags["bulkhead.git_sha"], tags["bulkhead.test.auroc"]) == ("abc123", "0.8")
    (logged,) = tracker.client.get_run(tracker.run_id).outputs.model_outputs
    assert {m.key: m.value for m in tracker.client.get_logged_model(logged.model_id).metrics} == {
        "test/auroc": 0.8
    }
    assert len(tracker.client.get_metric_history(tracker.run_id, "test/auroc")) == 1


@pytest.mark.req("R1")
def test_the_models_own_mlflow_interface_takes_raw_rows(made: Made, uri: str) -> None:
    """As a consumer calls it, signature and all; whole numbers are int64, as pandas reads them."""
    made.register(uri, made.first)
    mlflow.set_tracking_uri(uri)
    try:
        model = mlflow.pyfunc.load_model("models:/clinic@champion")
        rows = made.case.raw["test"]
        assert rows["visits"].dtype == np.int64
        pd.testing.assert_frame_equal(
            model.predict(rows[reversed(rows.columns)]), load_champion("clinic", uri).predict(rows)
        )  # type: ignore[union-attr]
        with pytest.raises(Exception, match=r"^missing columns: 'income'$"):
            model.predict(rows.drop(columns="income"))
        with pytest.raises(Exception, match=r"column 'visits': nulls \(NaN\).*\(index 3\)"):
            model.predict(
                rows.astype({"visits": float}).assign(
                    visits=lambda f: f["visits"].where(f.index != 3)
                )
            )
        assert len(model.predict(model.input_example)) == 2
        assert [o.name for o in model.metadata.signature.outputs.inputs] == [
            "prediction",
            "probability_no",
            "probability_yes",
        ]
    finally:
        mlflow.set_tracking_uri(None)


@pytest.mark.req("S1")
def test_the_input_example_holds_no_row_of_the_data(made: Made) -> None:
    spec = read_spec(made.first.spec.path)
    example = input_example(spec)
    real = {
        json.dumps(v)
        for side in made.case.raw.values()
        for v in side[["age", "income"]].to_numpy().ravel().tolist()
    }
    assert not {json.dumps(float(v)) for v in example[["age", "income"]].to_numpy().ravel()} & real
    assert np.array(example["scan"][0]).sum() == 0


# ------------------------------------------------------------------------------ absent or out of
# reach


@pytest.mark.req("R2")
def test_no_champion_yet_is_no_error_and_an_unreachable_registry_is_one(
    made: Made, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_champion("never-seen", uri) is None
    MlflowClient(uri, uri).create_registered_model("clinic")
    assert load_champion("clinic", uri) is None
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(
        RegistryError,
        match=r"the champion of 'clinic' could not be looked up at http://\*\*\*@127.0.0.1:9",
    ):
        load_champion("clinic", "http://ann:hunter2@127.0.0.1:9")
    with pytest.raises(RegistryError, match=r"models:/clinic@champion is not in the registry"):
        load_model("models:/clinic@champion", uri)


@pytest.mark.req("R2")
def test_a_champion_that_changed_since_the_gate_keeps_the_alias(made: Made, uri: str) -> None:
    made.register(uri, made.first)
    with pytest.raises(
        RegistryError,
        match=(
            r"version 2 of 'clinic' is registered but not champion: the gate compared it with"
            r" version None, while champion is now 1; bulkhead promote models:/clinic/2"
        ),
    ):
        made.register(uri, made.second, champion=None)
    assert alias(uri, "champion") == "1"


@pytest.mark.req("R2")
def test_a_version_that_does_not_work_never_gets_the_alias(
    made: Made, uri: str, tmp_path: Path
) -> None:
    spec = read_spec(made.second.spec.path)
    spec["program"]["sha256"] = "0" * 64
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    made.register(uri, made.first)
    with pytest.raises(
        RegistryError,
        match=(
            r"the model does not work as MLflow loads it: .*the program was changed.*nothing was"
            r" registered"
        ),
    ):
        made.register(
            uri,
            made.second.model_copy(update={"spec": file_ref(tmp_path / "spec.json")}),
            champion="1",
        )
    assert alias(uri, "champion") == "1"


@pytest.mark.req("S1")
def test_an_export_that_was_changed_is_not_registered(made: Made, uri: str, tmp_path: Path) -> None:
    copy = tmp_path / "program.pt2"
    copy.write_bytes(Path(made.first.program.path).read_bytes())
    exported = made.first.model_copy(update={"program": file_ref(copy)})
    copy.write_bytes(b"other")
    with pytest.raises(IntegrityError, match=r"program.pt2: SHA-256 is"):
        made.register(uri, exported)
    assert not MlflowClient(uri, uri).search_registered_models()


# -----------------------------------------------------------------------------------------
# tampering


@pytest.mark.req("S1")
def test_no_file_of_a_version_can_be_changed_unnoticed_nor_is_it_run(
    uri: str, own_home: Path, tmp_path: Path
) -> None:
    case = make_case(tmp_path / "case", derive=DERIVE)
    made = Made(
        tmp_path, case, export_model(case.run, case.weights, tmp_path / "first", case.split.val)
    )
    made.register(uri, made.first)
    (folder,) = (p.parent for p in (own_home / "mlartifacts").rglob("MLmodel"))
    marker = tmp_path / "executed"
    changes: dict[str, Callable[[bytes], bytes]] = {
        "serving.py": (
            lambda code: f"import pathlib; pathlib.Path({str(marker)!r}).touch()\n".encode() + code
        ),
        "MLmodel": lambda text: text.replace(b"serving.py", b"elsewhere.py"),
        **{f"artifacts/{name}": lambda content: content + b" " for name in FILES.values()},
        **dict.fromkeys(
            ("program_reader.py", "requirements.txt", "conda.yaml", "input_example.json"),
            lambda content: content + b" ",
        ),
    }
    for name, change in changes.items():
        path = folder / name
        before = path.read_bytes()
        path.write_bytes(change(before))
        with pytest.raises(
            IntegrityError,
            match=rf"{path.name} of version 1 of 'clinic': SHA-256 is .* nothing of it was run",
        ):
            load_champion("clinic", uri)
        path.unlink()
        with pytest.raises(
            IntegrityError, match=rf"{path.name} of version 1 of 'clinic': SHA-256 is no file"
        ):
            load_champion("clinic", uri)
        path.write_bytes(before)
    assert not marker.exists()
    assert load_champion("clinic", uri) is not None


@pytest.mark.req("S1")
def test_a_model_of_somebody_else_is_refused(made: Made, uri: str) -> None:
    client = MlflowClient(uri, uri)
    tracker = start_run(declaration(), uri=uri)  # type: ignore[arg-type]
    logged = client.create_logged_model(
        client.get_run(tracker.run_id).info.experiment_id, name="other"
    )
    (Path(logged.artifact_location.removeprefix("file://"))).mkdir(parents=True)
    client.create_registered_model("other")
    client.create_model_version(
        "other", source=logged.artifact_location, run_id=tracker.run_id, model_id=logged.model_id
    )
    with pytest.raises(RegistryError, match=r"version 1 of 'other' was not registered by bulkhead"):
        load_model("models:/other/1", uri)


def test_environment_variables_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("KEPT", "before")
    monkeypatch.delenv("NEW", raising=False)
    with pytest.raises(ZeroDivisionError), environment(KEPT="inside", NEW="inside"):
        assert (os.environ["KEPT"], os.environ["NEW"]) == ("inside", "inside")
        _: Any = 1 / 0
    assert os.environ["KEPT"] == "before"
    assert "NEW" not in os.environ
