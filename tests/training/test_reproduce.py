"""Which step differs first, and why: named from what was recorded, before anything is trained."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import IntegrityError, RegistryError
from schemas.records import ExportedModel, FileRef, SourceRef
from schemas.registry_records import Reproduction
from tests.training.cases import Case
from tests.training.mlflow_home import blank_database, clinic, uri
from tests.training.test_verify import flip, in_store, registered
from training.registry import reproduce
from training.registry.reproduce import (
    Origin,
    config_step,
    later_steps,
    made,
    read_origin,
    reason,
    source_step,
    unlike,
)
from training.run.provenance import hardware, library_versions
from training.tracking.mlflow import config_text

__all__ = ["blank_database", "clinic", "uri"]
COMMIT = "a" * 40
SIDES = {side: {"rows": 50, "sha256": side * 8} for side in ("train", "val", "test")}


def origin_of(uri: str, clinic: tuple[Case, ExportedModel], **git: Any) -> Origin:
    import sys

    from mlflow import MlflowClient

    provenance = {
        "git": {"sha": COMMIT, "dirty": False, **git},
        "versions": library_versions(),
        "hardware": hardware(),
        "python": sys.version.split()[0],
    }
    run_id = registered(
        uri,
        *clinic,
        provenance=provenance,
        split={"strategy": "group", "sides": SIDES},
        source_sha256="s" * 64,
    )
    source = source_ref("s" * 64, {"/data/a.parquet": "1" * 64, "/data/b.parquet": "2" * 64})
    MlflowClient(uri, uri).log_text(run_id, source.model_dump_json(), "data/source.json")
    return read_origin("models:/clinic@champion", uri)


def source_ref(sha256: str, files: dict[str, str]) -> SourceRef:
    refs = tuple(FileRef(path=path, sha256=digest, num_bytes=1) for path, digest in files.items())
    return SourceRef(uri=("/data",), format="parquet", files=refs, sha256=sha256)


@pytest.mark.req("R3")
def test_what_was_recorded_is_found_and_nothing_differs_from_itself(
    uri: str, clinic: tuple[Case, ExportedModel]
) -> None:
    origin = origin_of(uri, clinic)
    assert (origin.uri, origin.commit, origin.diff, unlike(origin)) == (
        "models:/clinic/1",
        COMMIT,
        "",
        (),
    )
    assert not config_step(origin)[0].differs
    assert not source_step(origin, source_ref("s" * 64, origin.files))[0].differs
    steps = later_steps(origin, origin.evidence.model_dump(mode="json"))
    assert [s.name for s in steps] == [
        "validated table",
        "train side",
        "val side",
        "test side",
        "statistics",
        "arrays",
        "weights",
        "exported program",
    ]
    assert Reproduction(uri=origin.uri, commit=COMMIT, diff_applied=False, steps=steps).identical
    assert not Reproduction(
        uri=origin.uri, commit=COMMIT, diff_applied=False, steps=later_steps(origin, None)
    ).identical


@pytest.mark.req("R3")
def test_changed_data_and_declarations_are_named(
    uri: str, clinic: tuple[Case, ExportedModel]
) -> None:
    from dataclasses import replace

    origin = origin_of(uri, clinic)
    step, why = source_step(
        origin,
        source_ref(
            "t" * 64,
            {"/data/a.parquet": "1" * 64, "/data/b.parquet": "9" * 64, "/data/c.parquet": "3" * 64},
        ),
    )
    assert step.differs and why.startswith(
        "the data are not what they were: /data/b.parquet (SHA-256 was 222222222222…, is"
        " 999999999999…), /data/c.parquet (is new)"
    )
    assert "/data/a.parquet" not in why
    changed = clinic[0].declaration.model_copy(
        update={"train": clinic[0].declaration.train.model_copy(update={"epochs": 99})}
    )
    step, why = config_step(replace(origin, config=config_text(changed)))
    assert step.differs and why.endswith(
        f"was changed: train.epochs is '99', was '{clinic[0].declaration.train.epochs}'"
    )


@pytest.mark.req("R3")
@pytest.mark.parametrize(
    "step", ["validated table", "val side", "statistics", "arrays", "weights", "exported program"]
)
def test_the_first_step_that_differs_is_named(
    uri: str, clinic: tuple[Case, ExportedModel], step: str
) -> None:
    origin = origin_of(uri, clinic)
    again = copy.deepcopy(origin.evidence.model_dump(mode="json"))
    places = {
        "validated table": "validated_sha256",
        "statistics": "statistics_sha256",
        "arrays": "arrays_sha256",
        "weights": "model_sha256",
        "exported program": "program_sha256",
    }
    if step == "val side":
        again["split"]["sides"]["val"]["sha256"] = "other"
    else:
        again[places[step]] = "other"
    found = Reproduction(
        uri=origin.uri, commit=COMMIT, diff_applied=False, steps=later_steps(origin, again)
    )
    assert (
        found.first_difference is not None
        and found.first_difference.name == step
        and not found.identical
    )
    assert reason(origin, found.first_difference, ()).startswith(
        "nothing that is recorded explains it: commit aaaaaaaaaaaa"
    )
    assert (
        reason(origin, found.first_difference, ("torch is 2, was 1",))
        == "most likely because torch is 2, was 1"
    )


@pytest.mark.req("R3")
def test_other_versions_and_machines_are_named_beforehand(
    uri: str, clinic: tuple[Case, ExportedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = origin_of(uri, clinic, untracked_files=2)
    then = library_versions()
    monkeypatch.setattr(
        reproduce,
        "library_versions",
        lambda: {name: v for name, v in then.items() if name != "duckdb"} | {"torch": "9.9"},
    )
    monkeypatch.setattr(reproduce, "hardware", lambda: hardware() | {"cores": 1024})
    found = unlike(origin)
    assert (
        found[0] == f"duckdb is absent, was {then['duckdb']}"
        and found[1] == f"torch is 9.9, was {then['torch']}"
    )
    assert (
        found[2].startswith("the number of cores is 1024, was")
        and found[3] == "2 files next to the checkout were in no commit"
    )


@pytest.mark.req("S1")
def test_what_was_changed_after_registration_is_not_run(
    uri: str, clinic: tuple[Case, ExportedModel]
) -> None:
    from mlflow import MlflowClient

    diff = "--- a/x\n+++ b/x\n"
    with pytest.raises(RegistryError, match=r"dirty.diff of MLflow run \w+ is not there"):
        origin_of(uri, clinic, dirty=True, diff_sha256=reproduce.digest_of_text(diff))
    client = MlflowClient(uri, uri)
    run_id = str(client.get_model_version("clinic", "1").run_id)
    client.log_text(run_id, diff, "dirty.diff")
    assert read_origin("models:/clinic/1", uri).diff == diff
    for other in (diff + "+import os\n", ""):
        client.log_text(run_id, other, "dirty.diff")
        with pytest.raises(
            IntegrityError,
            match=(
                r"dirty.diff of run \w+ was changed after models:/clinic/1 was registered; it is"
                r" not run"
            ),
        ):
            read_origin("models:/clinic/1", uri)
    flip(in_store(uri, "evidence.json"))
    with pytest.raises(IntegrityError, match=r"evidence.json of version 1"):
        read_origin("models:/clinic/1", uri)


@pytest.mark.req("R3")
def test_code_outside_of_git_cannot_be_gone_back_to(
    uri: str, clinic: tuple[Case, ExportedModel], tmp_path: Path
) -> None:
    with pytest.raises(RegistryError, match="was made by code outside of git"):
        origin_of(uri, clinic, sha=None)
    assert set(
        made(
            {
                "split": {"sides": SIDES},
                **{
                    f"{n}_sha256": ""
                    for n in ("validated", "statistics", "arrays", "model", "program")
                },
            }
        )
    ) >= {"weights"}
