"""Records of a registered version's MLflow run, used only if the version's evidence has their
digest.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from pydantic import ValidationError

from schemas.config import Declaration
from schemas.errors import IntegrityError, RegistryError
from schemas.load import declare
from schemas.records import EvaluationReport, Evidence, Statistics, digest_of
from schemas.variables import MASK
from schemas.yaml_text import parse_yaml
from training.registry.registry import LoadedModel, load_model, version_of
from training.run.provenance import masked


@dataclass(frozen=True)
class Recorded:
    """A registered version with its run's records: declaration, statistics and evaluation."""

    model: LoadedModel
    run_id: str
    evidence: Evidence
    declaration: Declaration
    statistics: Statistics
    evaluation: EvaluationReport

    @property
    def uri(self) -> str:
        """URI of the version, not of an alias."""
        return f"models:/{self.model.name}/{self.model.version}"


def recorded_version(model_uri: str, tracking_uri: str) -> Recorded:
    """Return a version of the registry, its alias resolved once, and the records of its run.

    Raises:
        RegistryError: there is no such version, this project did not make it, or its run is gone.
        IntegrityError: a file of the version or a record of its run is not what was registered.
    """
    version = version_of(model_uri, tracking_uri)
    if version is None:
        raise RegistryError(
            f"expected models:/NAME@ALIAS or models:/NAME/VERSION, got {model_uri!r}"
        )
    model, run_id = (
        load_model(f"models:/{version.name}/{version.version}", tracking_uri),
        str(version.run_id),
    )
    try:
        evidence = Evidence.model_validate(model.evidence)
        statistics = Statistics.model_validate_json(
            run_text(run_id, "data/statistics.json", tracking_uri)
        )
        evaluation = EvaluationReport.model_validate_json(
            run_text(run_id, "evaluation/test.json", tracking_uri)
        )
    except ValidationError as error:
        raise IntegrityError(
            f"{model.uri}: what was recorded cannot be read ({str(error).splitlines()[0]});"
            " register the model again"
        ) from error
    if digest_of(statistics) != evidence.statistics_sha256:
        raise IntegrityError(
            f"data/statistics.json of run {run_id} was changed after {model.uri} was registered;"
            " restore it, or register again"
        )
    if evaluation.metrics != evidence.metrics:
        raise IntegrityError(
            f"evaluation/test.json of run {run_id} was changed after {model.uri} was registered;"
            " restore it, or register again"
        )
    tree = recorded_config(run_id, evidence, tracking_uri)
    return Recorded(
        model,
        run_id,
        evidence,
        declare(tree, f"config.yaml of run {run_id}"),
        statistics,
        evaluation,
    )


def recorded_config(run_id: str, evidence: Evidence, tracking_uri: str) -> dict[str, object]:
    """Return the tree of `config.yaml` that the run logged.

    Raises:
        IntegrityError: the declaration is not the version's.
        RegistryError: the run is gone, or the declaration contained credentials, which are not
            logged.
    """
    text = run_text(run_id, "config.yaml", tracking_uri).decode()
    tree = parse_yaml(text, f"config.yaml of run {run_id}")
    if isinstance(tree, dict) and digest_of(tree) == evidence.config_sha256:
        return tree
    if MASK in text:
        raise RegistryError(
            f"config.yaml of run {run_id} hides credentials as {MASK}; write them as ${{NAME}} in"
            " the declaration and register again"
        )
    raise IntegrityError(
        f"config.yaml of run {run_id} is another declaration than that of the version: it was"
        " changed after it was registered"
    )


def run_text(run_id: str, name: str, tracking_uri: str) -> bytes:
    """Return a small text artifact of a run.

    Raises:
        RegistryError: it does not exist.
    """
    with tempfile.TemporaryDirectory(prefix="bulkhead-recorded-") as scratch:
        try:
            return Path(
                MlflowClient(tracking_uri, tracking_uri).download_artifacts(run_id, name, scratch)
            ).read_bytes()
        except Exception as error:
            raise RegistryError(
                f"{name} of MLflow run {run_id} is not there: {masked(str(error))[:300]}; a run"
                " that was deleted can be restored"
            ) from None
