"""R3: what the registry alone proves of a version, and each way in which it can fail to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from schemas.errors import RegistryError
from schemas.records import (
    CheckResult,
    Evidence,
    ExportedModel,
    GateReport,
    Verification,
    digest_of,
)
from tests.subset import some
from tests.training.cases import Case, evidence_of
from tests.training.forged_versions import agree, edit_spec, seal_again
from tests.training.mlflow_home import blank_database, champion, clinic, uri
from tests.training.test_refit import refit_of
from training.data.split.unseen import trained_keys
from training.registry.registry import register
from training.registry.verify import verify_version
from training.tracking.mlflow import config_text, start_run

__all__ = ["blank_database", "clinic", "uri"]
MODEL = "models:/clinic@champion"


def registered(uri: str, case: Case, exported: ExportedModel, **changes: Any) -> str:
    """The case as the pipeline registers it, with the changes in its evidence; the id of its MLflow
    run.
    """
    sides = {side: {"rows": case.split.side(side).rows} for side in ("train", "val", "test")}
    evidence: Evidence = evidence_of(
        case, exported, GateReport(passed=True, verdict="passed", conditions=())
    ).model_copy(
        update={
            "split": {"strategy": "group", "sides": sides},
            "config_sha256": digest_of(case.declaration),
            "checks": tuple(
                CheckResult(name=name, verdict="pass", summary="")
                for name in ("row_coverage", "id_overlap")
            ),
            **changes,
        }
    )
    tracker = start_run(case.declaration, uri=uri)
    tracker.log_declaration(case.declaration)
    tracker.log_text("evidence.json", evidence.model_dump_json(indent=1))
    tracker.log_metrics({"test/auroc": 0.8})
    champion(
        register(
            exported,
            case.run,
            evidence,
            tracker,
            trained_on=trained_keys([case.split.train, case.split.val]),
            split_manifest=evidence.split,
        ),
        uri,
    )
    tracker.finish("FINISHED")
    return tracker.run_id


def failures(found: Verification) -> dict[str, str]:
    return {r.name: r.summary for r in found.failed}


@pytest.mark.req("R3")
def test_a_version_that_is_as_it_was_registered_is_proven(
    uri: str, clinic: tuple[Case, ExportedModel]
) -> None:
    registered(uri, *clinic)
    found = verify_version(MODEL, uri)
    assert failures(found) == {}
    assert (found.version, found.aliases, found.git_sha) == ("1", ("champion",), "abc123")
    names = [r.name for r in found.results]
    assert names == [
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
        "commit",
        "predicts",
    ]
    assert {r.verdict for r in found.results} == {"pass"}


def in_store(uri: str, name: str) -> Path:
    """A file of the version where the registry keeps it."""
    client = MlflowClient(uri, uri)
    version = client.get_model_version_by_alias("clinic", "champion")
    return next(
        Path(
            client.get_model_version_download_uri("clinic", version.version).removeprefix("file://")
        ).rglob(name)
    )


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def tag(uri: str, name: str, value: str) -> None:
    client = MlflowClient(uri, uri)
    client.set_model_version_tag(
        "clinic", client.get_model_version_by_alias("clinic", "champion").version, name, value
    )


def fail(uri: str) -> None:
    """Signed by the home itself: a model that lacks columns of its program."""
    folder = in_store(uri, "MLmodel").parent
    edit_spec(folder, categorical=[])
    seal_again(folder)
    agree(uri, folder, "1")


def log(uri: str, run: str, name: str, text: str) -> None:
    MlflowClient(uri, uri).log_text(run, text, name)


def other_evidence(uri: str, run: str) -> None:
    path = in_store(uri, "evidence.json")
    log(uri, run, "evidence.json", path.read_text().replace('"mode": "exact"', '"mode": "fast"'))


def move_threshold(uri: str) -> None:
    """Signed by the home itself: the spec decides at another threshold than was evaluated."""
    folder = in_store(uri, "MLmodel").parent
    edit_spec(folder, threshold=0.3)
    seal_again(folder)
    agree(uri, folder, "1")


Fault = Callable[[str, str, Case], object]
FAULTS: dict[str, tuple[Fault, str, str]] = {
    "program": (
        lambda uri, run, case: flip(in_store(uri, "program.pt2")),
        "files",
        "program.pt2 of version 1 of 'clinic': SHA-256 is",
    ),
    "serving code": (
        lambda uri, run, case: flip(in_store(uri, "serving.py")),
        "files",
        "serving.py of version 1",
    ),
    "trained rows": (
        lambda uri, run, case: flip(in_store(uri, "trained_on.npy")),
        "files",
        "nothing of it was run",
    ),
    "a tag": (
        lambda uri, run, case: tag(uri, "bulkhead.arrays_sha256", "0" * 64),
        "digests",
        "do not agree: tag arrays_sha256",
    ),
    "another commit": (
        lambda uri, run, case: tag(uri, "bulkhead.git_sha", "feed"),
        "digests",
        "do not agree: git commit",
    ),
    "another threshold": (
        lambda uri, run, case: move_threshold(uri),
        "digests",
        "do not agree: thresholds",
    ),
    "a better score": (
        lambda uri, run, case: tag(uri, "bulkhead.test.auroc", "0.9"),
        "metrics",
        "do not agree: tag of test/auroc",
    ),
    "the run's score": (
        lambda uri, run, case: MlflowClient(uri, uri).log_metric(run, "test/auroc", 0.9),
        "metrics",
        "do not agree: test/auroc",
    ),
    "a run that failed": (
        lambda uri, run, case: MlflowClient(uri, uri).set_terminated(run, "FAILED"),
        "run",
        "is FAILED",
    ),
    "a run that was deleted": (
        lambda uri, run, case: MlflowClient(uri, uri).delete_run(run),
        "run",
        "is deleted",
    ),
    "the run's evidence": (
        lambda uri, run, case: other_evidence(uri, run),
        "evidence",
        "evidence.json of the run differs from that of the version",
    ),
    "damaged evidence": (
        lambda uri, run, case: log(uri, run, "evidence.json", '{"run_id": '),
        "evidence",
        "evidence.json of the run cannot be read: ",
    ),
    "no declaration": (
        lambda uri, run, case: log(uri, run, "config.yaml", "{}"),
        "config",
        "config.yaml of the run is another declaration",
    ),
    "damaged declaration": (
        lambda uri, run, case: log(uri, run, "config.yaml", "a: [b"),
        "config",
        "config.yaml of the run cannot be read: ",
    ),
    "another declaration": (
        lambda uri, run, case: log(
            uri,
            run,
            "config.yaml",
            config_text(
                case.declaration.model_copy(
                    update={"train": case.declaration.train.model_copy(update={"epochs": 99})}
                )
            ),
        ),
        "config",
        "is another declaration than the version's",
    ),
    "a model that fails": (
        lambda uri, run, case: fail(uri),
        "predicts",
        "expected the inputs categorical, numeric, tensor_scan, got numeric, tensor_scan",
    ),
}


@pytest.mark.req("R3")
@pytest.mark.parametrize("fault", some(FAULTS, 4))
def test_what_was_changed_afterwards_is_named(
    uri: str, clinic: tuple[Case, ExportedModel], fault: str
) -> None:
    plant, statement, message = FAULTS[fault]
    plant(uri, registered(uri, *clinic), clinic[0])
    found = failures(verify_version(MODEL, uri))
    assert message in found.pop(statement)
    assert found == {}


@pytest.mark.req("R3")
@pytest.mark.parametrize(
    ("changes", "statement", "message"),
    [
        (
            {"checks": (CheckResult(name="id_overlap", verdict="fail", summary="3 ids"),)},
            "checks",
            "failed: id_overlap; not made: row_coverage",
        ),
        (
            {"gate": GateReport(passed=False, verdict="worse than the champion", conditions=())},
            "gate",
            "worse than the champion",
        ),
        (
            {"split": {"strategy": "group", "sides": {"train": {"rows": 10**6}}}},
            "trained_on",
            "keys for 1,000,000 rows",
        ),
    ],
)
def test_evidence_that_speaks_against_a_version_is_heard(
    uri: str,
    clinic: tuple[Case, ExportedModel],
    changes: dict[str, Any],
    statement: str,
    message: str,
) -> None:
    registered(uri, *clinic, **changes)
    found = failures(verify_version(MODEL, uri))
    assert message in found.pop(statement)
    assert found == {}


@pytest.mark.req("R3")
@pytest.mark.parametrize("missing", [0, 7])
def test_whose_score_a_refitted_version_has_is_told(
    uri: str, clinic: tuple[Case, ExportedModel], missing: int
) -> None:
    split = clinic[0].split
    rows = split.train.rows + split.val.rows
    registered(uri, *clinic, refit=refit_of("train_val", num_rows=rows - missing))
    found = verify_version(MODEL, uri)
    (refit,) = (r.summary for r in found.results if r.name == "refit")
    if missing:
        assert failures(found) == {"refit": f"{rows - 7:,} rows, the split has {rows:,}"}
    else:
        assert failures(found) == {} and "the test score belongs to the estimate m" in refit


@pytest.mark.req("R3")
def test_uncommitted_changes_and_allowed_findings_are_told(
    uri: str, clinic: tuple[Case, ExportedModel]
) -> None:
    checks = (
        *(
            CheckResult(name=name, verdict="pass", summary="")
            for name in ("row_coverage", "id_overlap")
        ),
        CheckResult(
            name="duplicates", verdict="allowed", summary="2 rows", reason="twins are two patients"
        ),
    )
    registered(uri, *clinic, checks=checks, provenance={"git": {"sha": "abc123", "dirty": True}})
    found = {r.name: r for r in verify_version(MODEL, uri).results}
    assert found["commit"].verdict == "warn" and "uncommitted changes" in found["commit"].summary
    assert "allowed: duplicates (twins are two patients)" in found["checks"].summary


@pytest.mark.req("R3")
@pytest.mark.req("S1")
def test_a_declaration_with_hidden_credentials_is_told_and_not_taken_for_proven(
    uri: str, clinic: tuple[Case, ExportedModel]
) -> None:
    case, exported = clinic
    tracking = case.declaration.tracking.model_copy(
        update={"tags": {"from": "http://ann:hunter2@host/rows"}}
    )
    registered(
        uri,
        case._replace(declaration=case.declaration.model_copy(update={"tracking": tracking})),
        exported,
    )
    found = verify_version(MODEL, uri)
    assert failures(found) == {}
    config = next(r for r in found.results if r.name == "config")
    assert config.verdict == "warn" and "hides credentials as ***" in config.summary


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("models:/nobody@champion", "is not in the registry"),
        ("somewhere/else", "expected models:/NAME@ALIAS"),
    ],
)
def test_what_is_no_version_is_refused(uri: str, model: str, message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        verify_version(model, uri)
