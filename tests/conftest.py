"""Fixtures of every test: no network calls, an own home, and the real data sets if they exist."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "true",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
    "OMP_WAIT_POLICY": "PASSIVE",  # as in training/__init__.py, also if torch is loaded first
    "OMP_NUM_THREADS": (
        "1"
    ),  # workers of pytest share the cores; a training that a test launches sets its own
}
for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)
settings.register_profile("untimed", deadline=None)  # a busy machine is no finding
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Return the folder of public data sets; skip tests that need it if it is absent."""
    folder = Path(os.environ.get("BULKHEAD_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data sets are absent: no folder {folder} (set BULKHEAD_DATA)")
    return folder


@pytest.fixture()
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a Bulkhead home that nothing else writes to."""
    folder = tmp_path / "home"
    monkeypatch.setenv("BULKHEAD_HOME", str(folder))
    return folder
