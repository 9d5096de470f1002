"""An alias moves in one request, never past a version that nobody compared with, and there is a way
back.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from mlflow import MlflowClient

import tasks.promote
from schemas.errors import RegistryError
from schemas.records import ExportedModel, GateReport, Registered
from tests.training.cases import Case, evidence_of
from tests.training.mlflow_home import blank_database, clinic, uri
from tests.training.test_verify import flip, in_store
from training.data.split.unseen import trained_keys
from training.registry.promotion import holder, move_alias, roll_back
from training.registry.registry import register
from training.tracking.mlflow import start_run

__all__ = ["blank_database", "clinic", "uri"]


def versions(uri: str, clinic: tuple[Case, ExportedModel], count: int) -> None:
    """So many versions of one program, none with an alias."""
    case, exported = clinic
    keys = trained_keys([case.split.train, case.split.val])
    for _ in range(count):
        made = register(
            exported,
            case.run,
            evidence_of(case, exported),
            start_run(case.declaration, uri=uri),
            trained_on=keys,
            split_manifest={},
        )
        assert (made.alias, made.uri) == (None, f"models:/clinic/{made.version}")


def aliases(uri: str) -> dict[str, str]:
    return {
        name: str(version)
        for name, version in MlflowClient(uri, uri).get_registered_model("clinic").aliases.items()
    }


@pytest.mark.req("R2")
def test_champion_previous_and_the_way_back(uri: str, clinic: tuple[Case, ExportedModel]) -> None:
    versions(uri, clinic, 3)
    assert (
        holder("clinic", "champion", uri) is None and holder("never-seen", "champion", uri) is None
    )
    first = move_alias("clinic", "1", "champion", uri, None, "passed")
    assert (first.version, first.previous_version, first.uri, first.run_id, first.git_sha) == (
        "1",
        None,
        "models:/clinic/1",
        "run-0-0",
        "abc123",
    )
    with pytest.raises(
        RegistryError, match="no version at alias previous to go back to; promote one by its number"
    ):
        roll_back("clinic", uri)
    move_alias("clinic", "3", "challenger", uri, None, "passed")
    assert move_alias("clinic", "2", "champion", uri, "1", "passed").previous_version == "1"
    assert aliases(uri) == {"champion": "2", "previous": "1", "challenger": "3"}
    move_alias("clinic", "3", "champion", uri, "2", "passed")
    assert aliases(uri) == {"champion": "3", "previous": "2"}
    tags = MlflowClient(uri, uri).get_model_version("clinic", "3").tags
    assert tags["bulkhead.replaced"] == "2" and tags["bulkhead.promoted"].startswith("20")
    back = roll_back("clinic", uri)
    assert (back.version, back.previous_version, aliases(uri)) == (
        "2",
        "3",
        {"champion": "2", "previous": "3"},
    )
    assert (
        move_alias("clinic", "2", "champion", uri, "3", "passed").verdict
        == "version 2 is champion already"
    )
    assert aliases(uri) == {"champion": "2", "previous": "3"}


@pytest.mark.req("R2")
def test_a_champion_that_nobody_compared_with_stays(
    uri: str, clinic: tuple[Case, ExportedModel]
) -> None:
    versions(uri, clinic, 2)
    move_alias("clinic", "1", "champion", uri, None, "passed")
    with pytest.raises(
        RegistryError,
        match=(
            r"compared it with version None, while champion is now 1; bulkhead promote"
            r" models:/clinic/2 compares again"
        ),
    ):
        move_alias("clinic", "2", "champion", uri, None, "passed")
    with pytest.raises(RegistryError, match=r"the registry at .* refused 'clinic'"):
        move_alias("clinic", "9", "champion", uri, "1", "passed")
    assert aliases(uri)["champion"] == "1"


@pytest.mark.long
@pytest.mark.req("R2")
def test_a_version_that_does_not_work_any_more_is_not_gone_back_to(
    uri: str, clinic: tuple[Case, ExportedModel]
) -> None:
    versions(uri, clinic, 2)
    move_alias("clinic", "1", "champion", uri, None, "passed")
    flip(in_store(uri, "program.pt2"))
    move_alias("clinic", "2", "champion", uri, "1", "passed")
    with pytest.raises(
        RegistryError,
        match=(
            r"models:/clinic/1, the version before, does not work: program.pt2 .* champion stays at"
            r" version 2"
        ),
    ):
        roll_back("clinic", uri)
    assert aliases(uri) == {"champion": "2", "previous": "1"}


@pytest.mark.req("R2")
@pytest.mark.parametrize(
    ("promotion", "alias", "named", "replaces"),
    [
        ("never", None, {}, True),
        ("approval", "challenger", {"challenger": "1"}, True),
        ("automatic", "champion", {"champion": "1"}, True),
        ("approval", None, {}, False),  # equal within the noise
        ("automatic", None, {}, False),
    ],
)
def test_the_declaration_says_what_a_new_version_becomes(
    uri: str,
    clinic: tuple[Case, ExportedModel],
    promotion: str,
    alias: str | None,
    named: dict[str, str],
    replaces: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[dict[str, object]] = []
    monkeypatch.setattr(
        tasks.promote, "emit_event", lambda event, resource, payload: told.append(payload)
    )
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    versions(uri, clinic, 1)
    registered = Registered(
        registered=True,
        name="clinic",
        version="1",
        uri="models:/clinic/1",
        alias=None,
        verdict="passed",
    )
    section = clinic[0].declaration.register_.model_copy(update={"promotion": promotion})
    run = SimpleNamespace(
        declaration=clinic[0].declaration.model_copy(update={"register_": section}),
        tracker=SimpleNamespace(uri=uri),
    )
    made = tasks.promote.promote_registered.fn(
        registered,
        GateReport(passed=True, verdict="passed", conditions=(), replaces=replaces),
        run,
    )
    assert (made.alias, made.uri) == (
        alias,
        f"models:/clinic@{alias}" if alias else "models:/clinic/1",
    )
    assert aliases(uri) == named
    assert [t["uri"] for t in told] == (["models:/clinic/1"] if alias == "champion" else [])
