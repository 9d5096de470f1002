"""A forged version is refused before a line of its code runs; one of before signatures is used with
a warning.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import stat
from pathlib import Path

import mlflow
import pandas as pd
import pytest
from mlflow import MlflowClient

from schemas.errors import BulkheadError, ConfigError, IntegrityError, RegistryError
from schemas.records import ExportedModel, GateReport
from tests.training.cases import Case, evidence_of, write_weights
from tests.training.forged_versions import (
    FORGERIES,
    agree,
    copy_version,
    edit_spec,
    folder_of,
    newest,
    plant_code,
    plant_pickle,
    seal_elsewhere,
    strip,
)
from tests.training.mlflow_home import blank_database, clinic, uri
from training.data.split.unseen import trained_keys
from training.registry import promotion, signing, trust
from training.registry.registry import environment, load_champion, load_model, problem_of, register
from training.registry.reproduce import read_origin
from training.registry.score_file import predict_file
from training.registry.verify import verify_version
from training.registry.version_record import recorded_version
from training.serving.export import export_model
from training.tracking.mlflow import default_tracking_uri, start_run

__all__ = ["blank_database", "clinic", "uri"]


def put(uri: str, case: Case, exported: ExportedModel) -> str:
    """Register the case as another version, as the pipeline does."""
    evidence = evidence_of(case, exported, GateReport(passed=True, verdict="passed", conditions=()))
    tracker = start_run(case.declaration, uri=uri)
    found = register(
        exported,
        case.run,
        evidence,
        tracker,
        trained_on=trained_keys([case.split.train, case.split.val]),
        split_manifest={},
    )
    return str(found.version)


@pytest.fixture(scope="module")
def kept(
    tmp_path_factory: pytest.TempPathFactory,
    blank_database: Path,
    clinic: tuple[Case, ExportedModel],
) -> Path:
    """A home with two versions of different weights, the first of them champion; tests add
    versions, and change neither.
    """
    case, exported = clinic
    folder = tmp_path_factory.mktemp("kept")
    other = export_model(
        case.run,
        write_weights(folder / "other.pt", case.run, 0, seed=5),
        folder / "model",
        case.split.val,
    )
    (folder / "home").mkdir()
    shutil.copy(blank_database, folder / "home" / "mlflow.db")
    with environment(BULKHEAD_HOME=str(folder / "home")):
        uri = default_tracking_uri(None)
        put(uri, case, exported)
        put(uri, case, other)
        promotion.move_alias("clinic", "1", "champion", uri, None, "passed")
    return folder / "home"


@pytest.fixture
def versions(kept: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of the registry of `kept`, whose home is set."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("BULKHEAD_HOME", str(kept))
    return default_tracking_uri(None)


@pytest.mark.req("S1")
def test_the_key_of_a_home_is_made_once_and_for_its_owner_alone(versions: str, kept: Path) -> None:
    folder = kept / "keys"
    assert (
        stat.S_IMODE(folder.stat().st_mode) == 0o700
        and stat.S_IMODE((folder / "signing.pem").stat().st_mode) == 0o600
    )
    assert {
        json.loads((folder_of(versions, v) / "manifest.sig").read_text())["key"] for v in ("1", "2")
    } == {signing.own_key()}
    assert [p.name for p in sorted(folder.iterdir())] == ["signing.pem", "unsigned.json"]


@pytest.mark.req("S1")
def test_a_clean_version_is_proven_by_its_signature(versions: str) -> None:
    model = load_champion("clinic", versions)
    assert model is not None and model.trust is not None
    assert (
        model.trust.summary
        == f"signed by this home's key, {signing.fingerprint(str(signing.own_key()))}"
    )
    manifest = json.loads((folder_of(versions) / "manifest.json").read_text())
    assert set(manifest["files"]) >= {
        "MLmodel",
        "conda.yaml",
        "python_env.yaml",
        "requirements.txt",
        "serving.py",
        "program_reader.py",
    }
    assert set(manifest["files"]) >= {
        "artifacts/program.pt2",
        "artifacts/spec.json",
        "artifacts/evidence.json",
        "artifacts/trained_on.npy",
    }
    assert (
        manifest["metrics"]["auroc"] == 0.8
        and manifest["git_sha"] == "abc123"
        and manifest["name"] == "clinic"
    )


@pytest.mark.req("S1")
@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_version_is_refused_everywhere_before_its_code_runs(
    versions: str, tmp_path: Path, forgery: str
) -> None:
    forge, message = FORGERIES[forgery]
    mark = tmp_path / "executed"
    forge(versions, mark, tmp_path / "elsewhere")
    model = f"models:/clinic/{newest(versions)}"
    for use in (load_model, recorded_version, read_origin):
        with pytest.raises(BulkheadError, match=message):
            use(model, versions)
    with pytest.raises(BulkheadError, match=message):
        predict_file(model, tmp_path / "rows.parquet", tmp_path / "out.parquet", versions)
    assert re.search(message, problem_of(model, versions))
    try:
        (failed,) = verify_version(model, versions).failed
        assert failed.name == "files" and re.search(message, failed.summary)
    except RegistryError as error:
        assert re.search(message, str(error))
    client = MlflowClient(versions, versions)
    client.set_registered_model_alias("clinic", "champion", newest(versions))
    client.set_registered_model_alias("clinic", "previous", newest(versions))
    with pytest.raises(BulkheadError, match=message):
        load_champion("clinic", versions)
    client.set_registered_model_alias("clinic", "champion", "1")
    with pytest.raises(RegistryError, match=message):
        promotion.roll_back("clinic", versions)
    assert not mark.exists()


@pytest.mark.req("S1")
def test_a_version_of_one_model_is_none_of_another(versions: str) -> None:
    copy_version(versions, name="other")
    with pytest.raises(
        IntegrityError, match=r"the name of version 1 of 'other': is 'other', signed was 'clinic'"
    ):
        load_model("models:/other/1", versions)


@pytest.mark.req("S1")
def test_a_folder_is_compared_with_its_manifest(
    versions: str, clinic: tuple[Case, ExportedModel], tmp_path: Path
) -> None:
    rows, mark = clinic[0].raw["test"], tmp_path / "executed"
    mlflow.set_tracking_uri(versions)
    try:
        folder = Path(
            mlflow.artifacts.download_artifacts(
                "models:/clinic/1", dst_path=str(tmp_path / "model")
            )
        )
    finally:
        mlflow.set_tracking_uri(None)
    assert (folder / "registered_model_meta").is_file()
    pd.testing.assert_frame_equal(
        load_model(str(folder), versions).predict(rows),
        load_model("models:/clinic/1", versions).predict(rows),
    )
    plant_code(folder, mark)
    with pytest.raises(
        IntegrityError, match=rf"serving.py of {folder}: SHA-256 is .* nothing of it was run"
    ):
        load_model(str(folder), versions)
    assert not mark.exists()
    with pytest.raises(
        RegistryError, match=r"expected .* or a folder with a model \(its MLmodel\)"
    ):
        load_model(str(tmp_path), versions)


# ------------------------------------------------------------------------------ without this
# project


@pytest.mark.req("S1")
def test_mlflow_alone_refuses_what_is_not_as_the_manifest_says(
    versions: str, tmp_path: Path
) -> None:
    """The code that was shipped compares; who may change it too is for the signature to find."""
    folder = folder_of(versions)
    assert mlflow.pyfunc.load_model(str(folder)) is not None
    assert (folder / "__pycache__").is_file(), "no bytecode is kept, which nobody would compare"
    mark = tmp_path / "executed"
    for name, change, message in (
        (
            "spec",
            lambda f: edit_spec(f, classes=["yes", "no"]),
            r"spec.json: SHA-256 is .* the model was changed after it was registered",
        ),
        (
            "more",
            lambda f: (f / "artifacts" / "more.py").touch(),
            r"more.py: is none of the registered files",
        ),
        (
            "manifest",
            lambda f: (f / "manifest.json").unlink(),
            r"manifest.json: expected the manifest of the model's files",
        ),
        (
            "pickle",
            lambda f: (plant_pickle(f, mark), seal_elsewhere(f, tmp_path / "elsewhere")),
            r"holds pickled example inputs; nothing of it was run",
        ),
    ):
        copy = tmp_path / name
        shutil.copytree(folder, copy)
        change(copy)
        with pytest.raises(ValueError, match=message):
            mlflow.pyfunc.load_model(str(copy))
    assert not mark.exists()


# ------------------------------------------------------------------------------------- before
# signatures


def make_earlier(uri: str, own_home: Path, mark: Path) -> None:
    """Turn the home into one of before signatures, whose version 1 has code that this project does
    not know.
    """
    plant_code(folder_of(uri), mark)
    strip(uri, folder_of(uri), "1")
    shutil.rmtree(own_home / "keys")


@pytest.mark.req("S1")
@pytest.mark.req("R2")
def test_a_version_of_before_signatures_is_used_with_a_warning_and_its_code_is_not_run(
    uri: str,
    own_home: Path,
    tmp_path: Path,
    clinic: tuple[Case, ExportedModel],
    caplog: pytest.LogCaptureFixture,
) -> None:
    case, exported = clinic
    rows, mark = case.raw["test"], tmp_path / "executed"
    put(uri, case, exported)
    expected = load_model("models:/clinic/1", uri).predict(rows)
    make_earlier(uri, own_home, mark)
    for _ in range(2):  # before and after the home began to sign
        caplog.clear()
        with caplog.at_level(logging.WARNING, "training.registry.registry"):
            pd.testing.assert_frame_equal(
                load_model("models:/clinic/1", uri).predict(rows), expected
            )
        assert (
            "not signed: registered before signatures, so that nothing proves who registered"
            " version 1 of 'clinic'" in caplog.text
        )
        found = {r.name: r for r in verify_version("models:/clinic/1", uri).results}
        assert (
            found["signer"].verdict == "warn"
            and "registered before signatures" in found["signer"].summary
        )
        assert found["files"].verdict == found["predicts"].verdict == "pass"
        put(uri, case, exported)
    load_model(str(folder_of(uri)), uri)
    assert not mark.exists()


@pytest.mark.req("S1")
def test_an_unsigned_version_that_came_later_needs_to_be_named(
    uri: str,
    own_home: Path,
    tmp_path: Path,
    clinic: tuple[Case, ExportedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(uri, *clinic)
    make_earlier(uri, own_home, tmp_path / "executed")
    put(uri, *clinic)
    folder = copy_version(uri)
    edit_spec(folder, probability_columns=["probability_yes", "probability_no"])
    agree(uri, folder, "3")
    with pytest.raises(
        IntegrityError,
        match=r"version 3 of 'clinic' is not signed.*BULKHEAD_ACCEPT_UNSIGNED=[0-9a-f]{64}",
    ) as refusal:
        load_model("models:/clinic/3", uri)
    monkeypatch.setenv(trust.ACCEPT, str(refusal.value).rpartition("=")[2])
    assert load_model("models:/clinic/3", uri).version == "3"
    edit_spec(folder, probability_columns=["a", "b"])
    agree(uri, folder, "3")
    with pytest.raises(IntegrityError, match=r"version 3 of 'clinic' is not signed"):
        load_model("models:/clinic/3", uri)
    monkeypatch.delenv(trust.ACCEPT)
    # a home that has never signed cannot know, unless it is given keys
    monkeypatch.setenv("BULKHEAD_HOME", str(tmp_path / "new"))
    assert load_model("models:/clinic/1", uri).version == "1"
    monkeypatch.setenv(signing.TRUSTED, "ed25519:" + "A" * 43 + "=")
    with pytest.raises(IntegrityError, match=r"version 1 of 'clinic' is not signed"):
        load_model("models:/clinic/1", uri)


# ------------------------------------------------------------------------------------------------
# team


@pytest.mark.req("S1")
def test_another_home_needs_the_public_key(
    versions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = str(signing.own_key())
    monkeypatch.setenv("BULKHEAD_HOME", str(tmp_path / "colleague"))
    with pytest.raises(
        IntegrityError,
        match=rf"which is neither this home's nor one of .* BULKHEAD_TRUSTED_KEYS={re.escape(key)}",
    ):
        load_model("models:/clinic/1", versions)
    monkeypatch.setenv(signing.TRUSTED, f"ed25519:{'A' * 43}=, {key}")
    assert load_model("models:/clinic/1", versions).trust == (
        key,
        f"signed by a key of BULKHEAD_TRUSTED_KEYS, {signing.fingerprint(key)}",
    )
    for wrong in (key.removeprefix("ed25519:"), "ed25519:short", "ssh-ed25519 AAAA"):
        monkeypatch.setenv(signing.TRUSTED, wrong)
        with pytest.raises(
            ConfigError, match=r"BULKHEAD_TRUSTED_KEYS: expected public keys such as"
        ):
            load_model("models:/clinic/1", versions)


@pytest.mark.req("S1")
@pytest.mark.parametrize(
    "content", [b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_a_damaged_key_is_named(
    versions: str, tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "signing.pem").write_bytes(content)
    monkeypatch.setenv("BULKHEAD_HOME", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"keys/signing.pem: expected the home's Ed25519 key, it cannot be read"
    ):
        load_model("models:/clinic/1", versions)
