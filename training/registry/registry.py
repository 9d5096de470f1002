"""Model registry: register complete signed versions; load a version only if its bytes match.

To predict, a version has `program.pt2`, `spec.json`, `serving.py`, `program_reader.py` and, for
derived features or text, `expressions.zip`. As evidence it has `evidence.json`,
`split_manifest.json`, `trained_on.npy` and `tested_on.npy`. The SHA-256 of each is a tag of the
version and is in its signed manifest (training/registry/trust.py). No code of a version runs here:
this project's own code reads its program and spec. Registering moves no alias:
training/registry/promotion.py does, after the version was loaded back and predicted.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelOutput, Metric
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import Model

from schemas.digest import sha256_file, verify
from schemas.errors import IntegrityError, RegistryError, shortened
from schemas.records import Evidence, ExportedModel, Registered, RunSpec
from training.data import serving_expressions, serving_text
from training.registry import signing
from training.registry.ladder import look_tags
from training.registry.trust import (
    CODE,
    DIGEST_TAG,
    FILES,
    MLMODEL,
    SIGNER_TAG,
    Trust,
    prove,
    remember_unsigned,
    seal,
)
from training.run.provenance import masked
from training.serving import serving, signature
from training.serving.requirements import requirements
from training.tracking.mlflow import DIGEST_LENGTH, Tracker

log = logging.getLogger(__name__)
CHAMPION = "champion"


# ----------------------------------------------------------------------------------------- fetching


@dataclass(frozen=True)
class LoadedModel:
    """A model fetched from the registry with verified files; `trust` names its signer.

    `trained_on`: sorted uint64 hashes of the ids and groups it learned from. `tested_on`: those of
    the ids of its test rows. Both and `evidence` are None for a model registered without them.
    """

    name: str
    version: str | None
    uri: str
    spec: dict[str, Any]
    evidence: dict[str, Any] | None
    trained_on: np.ndarray | None
    model: Any
    tested_on: np.ndarray | None = None
    trust: Trust | None = None  # None of a model outside a registry

    @property
    def program_sha256(self) -> str:
        """Digest of the exported program."""
        return str(self.spec["program"]["sha256"])

    def predict(
        self,
        frame: pd.DataFrame,
        params: dict[str, Any] | None = None,
        unfamiliar: serving.Unfamiliar | None = None,
    ) -> pd.DataFrame:
        """Predict raw rows; see training/serving/serving.py.

        Args:
            frame: raw rows.
            params: `intervals`, or parameters of a completion.
            unfamiliar: gets the columns with unknown categories and clipped numbers.
        """
        found: pd.DataFrame = self.model.predict_counting(
            frame, params, {} if unfamiliar is None else unfamiliar
        )
        return found


def load_champion(name: str, uri: str) -> LoadedModel | None:
    """Return the version at alias `champion`; None only if the model or the alias does not exist
    yet.

    Raises:
        RegistryError: the registry cannot be reached, refuses, or the version cannot be fetched.
        IntegrityError: the version's files are not those that were registered.
    """
    try:
        version = MlflowClient(uri, uri).get_model_version_by_alias(name, CHAMPION)
    except Exception as error:
        if is_absent(error):
            return None
        raise RegistryError(
            f"the champion of {name!r} could not be looked up at {masked(uri)}:"
            f" {masked(str(error))[:500]}; start the server or check tracking.uri"
        ) from None
    return load_model(f"models:/{name}/{version.version}", uri)


def is_absent(error: Exception) -> bool:
    """Return True if the registry reported no such model or alias (SQL and server word it
    differently).
    """
    if not isinstance(error, MlflowException):
        return False
    missing_alias = (
        error.error_code == "INVALID_PARAMETER_VALUE"
        and "alias" in str(error)
        and "not found" in str(error)
    )
    return missing_alias or error.error_code == "RESOURCE_DOES_NOT_EXIST"


def load_model(model_uri: str, uri: str) -> LoadedModel:
    """Fetch a model (`models:/NAME@ALIAS`, `models:/NAME/VERSION`, a folder), verify it, then load
    it.

    Nothing is read before the files match a signed manifest, and no code of the model runs.

    Raises:
        RegistryError: there is no such model, or this project did not make it.
        IntegrityError: a file differs from what was registered, or its signer is not trusted.
    """
    model = _proven(model_uri, uri)
    if model.trust is not None and model.trust.signer is None:
        log.warning("! %s", model.trust.summary)
    return model


def _proven(model_uri: str, uri: str) -> LoadedModel:
    version = version_of(model_uri, uri)
    with tempfile.TemporaryDirectory(prefix="bulkhead-model-") as scratch:
        folder = fetched(version, model_uri, uri, Path(scratch))
        trust = prove_version(folder, version) if version else prove(folder, masked(model_uri))
        return _load(folder, model_uri, version, trust)


def fetched(version: ModelVersion | None, model_uri: str, uri: str, scratch: Path) -> Path:
    """Copy a registered version, or another model URI, into `scratch`; read nothing of it.

    Raises:
        RegistryError: it cannot be fetched.
    """
    if version is None and Path(model_uri).is_dir() and not (Path(model_uri) / MLMODEL).is_file():
        raise RegistryError(
            f"{model_uri}: expected a folder with a model, it has no file {MLMODEL}; registered"
            " ones are models:/NAME@ALIAS"
        )
    try:
        source = (
            MlflowClient(uri, uri).get_model_version_download_uri(version.name, version.version)
            if version
            else model_uri
        )
        return Path(
            mlflow.artifacts.download_artifacts(
                artifact_uri=source, dst_path=str(scratch), tracking_uri=uri
            )
        )
    except Exception as error:
        raise RegistryError(
            f"{masked(model_uri)} could not be fetched: {masked(str(error))[:500]}"
        ) from None


def _require_model_folder(model_uri: str) -> None:
    """Refuse a folder without a model before copying it, which for / or /etc would take long."""
    if re.match(r"[A-Za-z][\w+.-]*:/", model_uri):
        return
    try:
        if (Path(model_uri) / MLMODEL).is_file():
            return
    except (OSError, ValueError):  # not a path
        pass
    raise RegistryError(
        f"{shortened(model_uri)}: expected models:/NAME@ALIAS, models:/NAME/3, or a folder with a"
        f" model (its {MLMODEL})"
    )


def version_of(model_uri: str, uri: str) -> ModelVersion | None:
    """Return the registered version of a `models:/` URI; None for any other place."""
    if not model_uri.startswith("models:/"):
        _require_model_folder(model_uri)
        return None
    name, _, number = model_uri.removeprefix("models:/").partition("/")
    client = MlflowClient(uri, uri)
    try:
        if "@" in name:
            return client.get_model_version_by_alias(*name.split("@", 1))
        return client.get_model_version(name, number) if number else None
    except MlflowException as error:
        raise RegistryError(
            f"{model_uri} is not in the registry at {masked(uri)}: {masked(str(error))[:300]}; see"
            " the names and aliases in the MLflow UI"
        ) from None


def prove_version(folder: Path, version: ModelVersion) -> Trust:
    """Verify that a trusted signer registered these files; see `training.registry.trust.prove`."""
    return prove(
        folder, f"version {version.version} of {version.name!r}", version.name, version.tags
    )


def _load(folder: Path, model_uri: str, version: ModelVersion | None, trust: Trust) -> LoadedModel:
    """Load a verified model with this project's own code.

    The copy that is shipped with the model is for consumers without this project.
    """
    files, model = folder / "artifacts", serving.RawRows()
    try:
        spec = serving.read_spec(files / FILES["spec"])
        model.load(
            {key: files / name for key, name in FILES.items()},
            serving_text if spec["task"] == "causal_lm" else serving_expressions,
        )
    except ValueError as error:
        raise IntegrityError(
            f"{masked(model_uri)}: {str(error).replace(f'{files}/', '')}"
        ) from error
    evidence = files / FILES["evidence"]
    return LoadedModel(
        name=version.name if version else spec["name"],
        version=str(version.version) if version else None,
        uri=model_uri,
        spec=spec,
        evidence=json.loads(evidence.read_text(encoding="utf-8")) if evidence.exists() else None,
        trained_on=_keys(files / FILES["trained_on"]),
        model=model,
        tested_on=_keys(files / FILES["tested_on"]),
        trust=trust,
    )


def _keys(path: Path) -> np.ndarray | None:
    return np.asarray(np.load(path, allow_pickle=False)) if path.exists() else None


def register(
    exported: ExportedModel,
    run: RunSpec,
    evidence: Evidence,
    tracker: Tracker,
    *,
    trained_on: np.ndarray,
    split_manifest: Mapping[str, Any],
    tested_on: np.ndarray | None = None,
) -> Registered:
    """Register the run's model as a new version without alias; load it back and test it.

    Args:
        exported: its files are verified first.
        run: the trained run; its name is the model's.
        evidence: logged with the version; its metrics become those of the logged model.
        tracker: the MLflow run of the model.
        trained_on: sorted uint64, made by `training.data.split.unseen.trained_keys`.
        split_manifest: how rows were assigned to splits, JSON-able.
        tested_on: sorted uint64, made by `training.data.split.unseen.evaluated_keys`; without it,
            test rows later count as new.

    Raises:
        RegistryError: the registry refuses, or the version read back does not predict.
        IntegrityError: an exported file was changed.
    """
    program, spec = verify(exported.program), serving.read_spec(verify(exported.spec))
    client, name = tracker.client, run.name
    with (
        tempfile.TemporaryDirectory(prefix="bulkhead-register-") as scratch,
        refused(name, tracker.uri),
    ):
        files = {"program": program, "spec": Path(exported.spec.path)} | _write_evidence(
            Path(scratch), evidence, split_manifest
        )
        files |= _write_keys(Path(scratch), trained_on=trained_on, tested_on=tested_on)
        files |= {"expressions": verify(exported.expressions)} if exported.expressions else {}
        folder = Path(scratch) / "model"
        logged, key = _log_model(tracker, spec, files, folder, evidence)
        tags = version_tags(
            evidence,
            {FILES[key]: sha256_file(path) for key, path in files.items()}
            | {part: sha256_file(folder / part) for part in (CODE, MLMODEL)},
        ) | {SIGNER_TAG: signing.fingerprint(key)}
        _ensure_model(client, name, run)
        version = client.create_model_version(
            name,
            source=logged.artifact_location,
            run_id=tracker.run_id,
            tags=tags,
            model_id=logged.model_id,
        )
        client.set_logged_model_tags(
            logged.model_id,
            {"mlflow.modelVersions": json.dumps([{"name": name, "version": version.version}])},
        )
    model_uri = f"models:/{name}/{version.version}"
    problem = problem_of(model_uri, tracker.uri)
    if problem:
        raise RegistryError(
            f"{model_uri}, fetched from the registry, does not work: {problem}; the alias was left"
            " where it was"
        )
    verdict = evidence.gate.verdict if evidence.gate else "registered"
    return Registered(
        registered=True,
        name=name,
        version=str(version.version),
        uri=model_uri,
        alias=None,
        verdict=verdict,
    )


@contextmanager
def refused(name: str, uri: str) -> Iterator[None]:
    """Turn an MLflow error into a `RegistryError` that names the model and the (masked) address.

    Raises:
        RegistryError: MLflow raised.
    """
    try:
        yield
    except MlflowException as error:
        raise RegistryError(
            f"the registry at {masked(uri)} refused {name!r}: {masked(str(error))[:500]}; its alias"
            " was left where it was"
        ) from None


def _write_keys(folder: Path, **keys: np.ndarray | None) -> dict[str, Path]:
    paths = {name: folder / FILES[name] for name, found in keys.items() if found is not None}
    for name, path in paths.items():
        np.save(path, np.asarray(keys[name], dtype=np.uint64), allow_pickle=False)
    return paths


def _write_evidence(
    folder: Path, evidence: Evidence, split_manifest: Mapping[str, Any]
) -> dict[str, Path]:
    paths = {key: folder / FILES[key] for key in ("evidence", "split_manifest")}
    paths["evidence"].write_text(evidence.model_dump_json(indent=1), encoding="utf-8")
    paths["split_manifest"].write_text(
        json.dumps(split_manifest, indent=1, ensure_ascii=False), encoding="utf-8"
    )
    return paths


def version_tags(evidence: Evidence, digests: Mapping[str, str]) -> dict[str, str]:
    """Return a version's tags: digests of its files and inputs, its commit, test metrics, looks."""
    git = evidence.provenance.get("git") or {}
    made_from = (
        "config_sha256",
        "source_sha256",
        "statistics_sha256",
        "arrays_sha256",
        "checkpoint_sha256",
        "model_sha256",
    )
    metrics = {name: interval.value for name, interval in evidence.metrics.items()}
    return {
        **{f"{DIGEST_TAG}{name}": digest for name, digest in digests.items()},
        **{f"bulkhead.{field}": getattr(evidence, field) for field in made_from},
        "bulkhead.run_id": evidence.run_id,
        "bulkhead.git_sha": str(git.get("sha") or "unknown"),
        "bulkhead.git_dirty": str(git.get("dirty")).lower(),
        **{
            f"bulkhead.test.{name}": f"{value:.6g}"
            for name, value in metrics.items()
            if value is not None
        },
        **look_tags(evidence),
    }


def _log_model(
    tracker: Tracker,
    spec: dict[str, Any],
    files: Mapping[str, Path],
    folder: Path,
    evidence: Evidence,
) -> tuple[LoggedModel, str]:
    """Log the run's model with its files and test metrics; return it and the signing public key."""
    client = tracker.client
    experiment = client.get_run(tracker.run_id).info.experiment_id
    logged = client.create_logged_model(
        experiment, name=spec["name"], source_run_id=tracker.run_id, model_type="bulkhead"
    )
    example = signature.input_example(spec)
    with environment(
        MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK="true", MLFLOW_ALLOW_PICKLE_DESERIALIZATION="false"
    ):
        mlflow.pyfunc.save_model(
            path=str(folder),
            python_model=serving.__file__,
            artifacts={key: str(path) for key, path in files.items()},
            signature=signature.signature(spec),
            input_example=(
                example if list(example.columns) == signature.input_columns(spec) else None
            ),  # MLflow would check it against the signature
            pip_requirements=requirements(spec),
            mlflow_model=Model(
                artifact_path=logged.artifact_location,
                run_id=tracker.run_id,
                model_uuid=logged.model_id,
                model_id=logged.model_id,
            ),
            metadata={
                "columns": signature.input_types(spec),
                "name": spec["name"],
                "run_id": spec["run_id"],
                "program_sha256": spec["program"]["sha256"],
            },
        )
    shutil.copy(Path(serving.__file__).with_name(serving.READER), folder)
    shutil.rmtree(folder / serving.BYTECODE, ignore_errors=True)
    if signing.own_key() is None:
        remember_unsigned(_registered(client))
    key = seal(folder, evidence)
    _try_shipped(folder, example)
    client.log_model_artifacts(logged.model_id, str(folder))
    client.log_outputs(tracker.run_id, [LoggedModelOutput(logged.model_id, step=0)])
    _link_metrics(client, tracker.run_id, logged.model_id, evidence)
    return client.finalize_logged_model(logged.model_id, "READY"), key


def _registered(client: MlflowClient) -> Iterator[tuple[str, dict[str, str]]]:
    """Return name and tags of every version in the registry."""
    token = None
    while True:
        page = client.search_model_versions(page_token=token)
        yield from ((version.name, version.tags) for version in page)
        token = page.token
        if not token:
            return


def _try_shipped(folder: Path, example: pd.DataFrame) -> None:
    """Load the model with its shipped code, like a consumer without this project, and predict.

    Raises:
        RegistryError: it does not predict.
    """
    try:
        found = mlflow.pyfunc.load_model(str(folder)).unwrap_python_model().predict(None, example)
    except Exception as error:  # any error that a consumer could get
        raise RegistryError(
            f"the model does not work as MLflow loads it: {str(error)[:500]}; nothing was"
            " registered"
        ) from error
    if len(found) != len(example):
        raise RegistryError(
            f"the model as MLflow loads it predicts {len(found)} rows for {len(example)}; nothing"
            " was registered"
        )


def _link_metrics(client: MlflowClient, run_id: str, model_id: str, evidence: Evidence) -> None:
    """Link test metrics to the model.

    A metric that the run already has keeps its timestamp, so that it is not stored twice.
    """
    metrics = []
    for name, interval in evidence.metrics.items():
        if interval.value is not None:
            known = client.get_metric_history(run_id, f"test/{name}")
            moment = known[-1].timestamp if known else int(time.time() * 1000)
            digest = evidence.source_sha256[:DIGEST_LENGTH]
            metrics.append(
                Metric(
                    f"test/{name}",
                    interval.value,
                    moment,
                    0,
                    model_id=model_id,
                    dataset_name="source",
                    dataset_digest=digest,
                )
            )
    client.log_batch(run_id, metrics=metrics)


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables during a call, for MLflow settings that have no argument."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _ensure_model(client: MlflowClient, name: str, run: RunSpec) -> None:
    try:
        client.create_registered_model(
            name, description=str(run.declaration.get("description") or "")
        )
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def problem_of(model_uri: str, uri: str) -> str:
    """Return why a fetched version does not predict its input example row for row; empty if it
    does.
    """
    try:
        model = _proven(model_uri, uri)
        example = signature.input_example(model.spec)
        found = model.predict(example)
    except Exception as error:  # any error that a consumer could get
        return str(error) or type(error).__name__
    return (
        ""
        if len(found) == len(example) and not found.isna().any(axis=None)
        else f"predicts {len(found)} rows for {len(example)}, or nulls"
    )
