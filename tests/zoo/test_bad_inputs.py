"""Bad input ends with exit code 1 or 2 and words that name cause or remedy, without a traceback,
and leaves nothing half-written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from click.testing import Result
from prefect.testing.utilities import prefect_test_harness
from typer.testing import CliRunner

from flows.cli import app
from tests.zoo.bad_inputs import DATA, DECLARATIONS, Spoil, write


@pytest.fixture(scope="module")
def prefect() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=180):
        yield


def refused(folder: Path, monkeypatch: pytest.MonkeyPatch, spoil: Spoil) -> Result:
    """The command after the sound case in the folder was spoilt."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("BULKHEAD_HOME", str(folder / "home"))
    write(folder)
    with patch.dict(os.environ):  # the command sets what is not set, for itself
        command = spoil(folder) or ["prepare", "run.yaml"]
        return CliRunner().invoke(app, command)


def require_refusal(found: Result, folder: Path, words: str) -> None:
    """A stated error, and nothing left of the attempt."""
    assert isinstance(found.exception, SystemExit) and found.exit_code in (1, 2), found
    told = found.stderr
    assert words in told and "Traceback" not in told and "unexpected: " not in told, told
    assert len(told) < 20_000
    prepared = folder / "home" / "prepared"
    kept = (
        [
            p.name
            for p in prepared.iterdir()
            if not p.name.startswith(("source-", "validated-", "split-"))
        ]
        if prepared.is_dir()
        else []
    )
    assert not [name for name in kept if "tmp" in name or name.startswith(".")]
    assert not (folder / "out.parquet").exists() and not (folder / "home" / "runs").exists()


@pytest.mark.req("S2")
@pytest.mark.parametrize("case", DECLARATIONS)
def test_a_bad_declaration_or_command_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    spoil, words = DECLARATIONS[case]
    require_refusal(refused(tmp_path, monkeypatch, spoil), tmp_path, words)


@pytest.mark.long
@pytest.mark.req("S2")
@pytest.mark.parametrize("case", DATA)
def test_bad_data_are_refused(
    prefect: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    spoil, words = DATA[case]
    require_refusal(refused(tmp_path, monkeypatch, spoil), tmp_path, words)


@pytest.mark.long
@pytest.mark.req("S2")
def test_the_sound_case_is_prepared(
    prefect: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = refused(tmp_path, monkeypatch, lambda folder: None)
    assert found.exit_code == 0, found.stderr
