"""A tracking database of its own for each test, copied from one that was set up once, and a case
that was exported once.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from schemas.load import declare
from schemas.records import ExportedModel, Registered
from tests.training.cases import Case, make_case
from training.registry.promotion import move_alias
from training.registry.registry import CHAMPION
from training.serving.export import export_model
from training.tracking.mlflow import SQLITE, default_tracking_uri, probe


@pytest.fixture(scope="session")
def blank_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database as it is after its first use, which takes seconds."""
    path = tmp_path_factory.mktemp("blank") / "mlflow.db"
    assert probe(f"{SQLITE}{path}") == ""
    return path


@pytest.fixture
def uri(blank_database: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of a fresh database in a Bulkhead home of its own."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    own_home.mkdir()
    shutil.copy(blank_database, own_home / "mlflow.db")
    found = default_tracking_uri(None)
    assert found == f"{SQLITE}{own_home}/mlflow.db"
    return found


@pytest.fixture(scope="session")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, ExportedModel]:
    """The binary case with every kind of column, and its exported model; nobody changes them."""
    folder = tmp_path_factory.mktemp("clinic")
    case = make_case(folder)
    return case, export_model(case.run, case.weights, folder / "model", case.split.val)


def champion(registered: Registered, uri: str, expected: str | None = None) -> Registered:
    """The version that was registered, after it took alias `champion` from version `expected`."""
    move_alias(registered.name, str(registered.version), CHAMPION, uri, expected, "passed")
    return registered


def declaration(**sections: object) -> object:
    """The shortest declaration that tracking can log."""
    tree = {
        "name": "clinic",
        "data": {"uri": "rows.parquet", "columns": {"y": "label", "x*": "feature"}},
        "task": {"kind": "binary"},
        "split": {"kind": "random"},
    }
    return declare(tree | sections)
