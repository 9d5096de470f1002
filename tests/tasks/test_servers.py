"""Supervised programs: ports are checked first, ended programs restart, stops reach every child,
and repeated failures end in time.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from schemas.errors import ConfigError, LaunchError
from tasks import servers
from tasks.postgres import prepare_postgres
from tasks.servers import Program, kept, require_free, wait_until, watch

ROOT = Path(__file__).resolve().parent.parent.parent
FAMILY = (
    "import subprocess, sys, time; print('up', flush=True); subprocess.Popen([sys.executable, '-c',"
    " 'import time; time.sleep(60)']); time.sleep(60)"
)


def program(folder: Path, code: str, **settings: str | None) -> Program:
    return Program("server", ["python", "-c", code], folder / "server.log", settings)


def at_work(folder: Path) -> int:
    """Return the processes whose environment names a folder; zombies have none."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            found += f"FOLDER={folder}".encode() in path.read_bytes().split(b"\0")
    return found


@pytest.mark.req("P3")
def test_a_taken_port_is_named_with_its_option_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            ConfigError,
            match=rf"port {port} of 127.0.0.1 cannot be used .*choose another with --mlflow-port N",
        ):
            require_free({"--mlflow-port": port})
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", "up", "--prefect-port", str(port)],
            env=os.environ | {"BULKHEAD_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (
            done.returncode == 2
            and f"port {port}" in done.stderr
            and "Traceback" not in done.stderr
        )
    require_free({"--mlflow-port": port})
    with pytest.raises(ConfigError, match="--prefect-port and --mlflow-port are both"):
        require_free({"--prefect-port": port, "--mlflow-port": port})


def test_a_program_is_stopped_with_its_children_also_when_the_block_fails(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        kept(program(tmp_path, FAMILY, PREFECT_API_URL=None, FOLDER=str(tmp_path))) as (running,),
    ):
        assert "PREFECT_API_URL" not in running.environment and running.process is not None
        wait_until(lambda: "up" in running.log.read_text(), running, "its log")
        wait_until(lambda: at_work(tmp_path) == 2, running, "its child")
        raise KeyboardInterrupt
    deadline = time.monotonic() + 5
    while at_work(tmp_path) and time.monotonic() < deadline:  # a kill takes a moment
        time.sleep(0.05)
    assert at_work(tmp_path) == 0


@pytest.mark.req("S3")
def test_a_program_that_ends_is_started_again_and_one_that_keeps_ending_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "RESTART_SECONDS", 0.01)
    monkeypatch.setattr(servers, "POLL_SECONDS", 0.01)
    looks: list[float] = []

    def look() -> bool:
        looks.append(time.monotonic())
        return True

    with (
        pytest.raises(
            LaunchError,
            match=r"(?s)server ended 6 times within 300 s; the end of .*server.log:.*out of luck",
        ),
        kept(program(tmp_path, "print('out of luck')")) as running,
    ):
        watch(running, look)
    assert (tmp_path / "server.log").read_text().count("out of luck") == 6 and looks


def test_a_program_that_does_not_start_is_told_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pytest.raises(
            LaunchError, match=r"(?s)server ended instead of starting; .*no such database"
        ),
        kept(program(tmp_path, "print('no such database')")) as (running,),
    ):
        wait_until(lambda: False, running, "http://127.0.0.1:1")
    monkeypatch.setattr(servers, "START_SECONDS", 0.2)
    with (
        pytest.raises(LaunchError, match=r"server was not ready at http://127.0.0.1:1 within 0 s"),
        kept(program(tmp_path, FAMILY)) as (running,),
    ):
        wait_until(lambda: False, running, "http://127.0.0.1:1")


@pytest.mark.req("S1")
def test_a_wrong_address_of_postgresql_is_refused_and_its_password_is_never_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for url in ("mysql://ann:secret@host/db", "postgresql://ann:secret@host"):
        with pytest.raises(
            ConfigError,
            match=r"expected postgresql://user:password@host:5432/database, got '.*://\*\*\*@host",
        ) as caught:
            prepare_postgres(url)
        assert "secret" not in str(caught.value)
    monkeypatch.setattr("tasks.postgres.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'bulkhead\[postgres\]'"):
        prepare_postgres("postgresql://ann:secret@127.0.0.1:9/db")
    monkeypatch.setattr("tasks.postgres.find_spec", lambda name: name)
    with pytest.raises(
        LaunchError, match=r"PostgreSQL at postgresql://\*\*\*@127.0.0.1:9/db cannot be used"
    ) as refused:
        prepare_postgres("postgresql://ann:secret@127.0.0.1:9/db")
    assert "secret" not in str(refused.value)
