"""A home on which work could not end well is refused first, with its name and a remedy."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from schemas.errors import IntegrityError
from schemas.home import home
from tasks import sound_home
from tasks.sound_home import open_home, require_sound_databases
from tests.distributed.launch import ROOT
from training.run.record import StartedRun

Usage = namedtuple("Usage", "total used free")


def database(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as connection:
        connection.execute("create table aliases (alias varchar primary key, version integer)")
        connection.executemany(
            "insert into aliases values (?, ?)", [(f"champion-{n:04}", n) for n in range(2000)]
        )
    connection.close()
    return path


def flip(path: Path, place: int, bit: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= bit
    path.write_bytes(content)


@pytest.fixture(params=["mlflow.db", "prefect/prefect.db"])
def held_database(request: pytest.FixtureRequest, own_home: Path) -> Path:
    return database(own_home / request.param)


@pytest.mark.req("S2")
def test_a_sound_database_or_none_is_accepted(own_home: Path, held_database: Path) -> None:
    require_sound_databases()
    held_database.unlink()
    require_sound_databases()
    held_database.write_bytes(b"")
    require_sound_databases()


@pytest.mark.req("S2")
@pytest.mark.parametrize("cut", [50, 100, 4096, 10_000, 40_000])
def test_a_truncated_database_is_refused_by_name(held_database: Path, cut: int) -> None:
    held_database.write_bytes(held_database.read_bytes()[:cut])
    with pytest.raises(
        IntegrityError,
        match=(
            rf"{held_database.name}: expected a sound SQLite database, found a damaged one .*; it"
            r" holds"
        ),
    ):
        require_sound_databases()


@pytest.mark.req("S2")
def test_another_file_in_its_place_and_a_damaged_page_are_refused(held_database: Path) -> None:
    content = held_database.read_bytes()
    flip(held_database, 3)
    with pytest.raises(IntegrityError, match="file is not a database"):
        require_sound_databases()
    held_database.write_bytes(content)
    flip(held_database, content.index(b"champion-1234") + len("champion-"))
    with pytest.raises(IntegrityError, match=r"damaged one \(.*missing from index"):
        require_sound_databases()


@pytest.mark.req("S2")
def test_a_database_that_another_process_writes_to_is_no_finding(held_database: Path) -> None:
    with sqlite3.connect(held_database, isolation_level=None) as other:
        other.execute("begin immediate")
        require_sound_databases()
        other.execute("rollback")
    other.close()


@pytest.mark.req("S2")
@pytest.mark.parametrize("lost", ["gone", "empty"])
def test_a_registry_that_is_gone_is_not_begun_again_in_silence(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_dir = own_home / "runs" / "tiny" / "1"
    run_dir.mkdir(parents=True)
    record = StartedRun(
        run_id="1",
        name="tiny",
        kind="pipeline",
        tracking_uri="http://127.0.0.1:5000",
        mlflow_run_id="a",
        created="x",
    )
    record.write(run_dir)
    require_sound_databases()
    record.model_copy(update={"tracking_uri": f"sqlite:///{own_home / 'mlflow.db'}"}).write(run_dir)
    if lost == "empty":
        (own_home / "mlflow.db").touch()
    with pytest.raises(
        IntegrityError,
        match=(
            r"mlflow\.db: expected the database in which 1 run of .* no champion.*restore it from a"
            r" backup, or let BULKHEAD_HOME"
        ),
    ):
        require_sound_databases()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    require_sound_databases()


@pytest.mark.req("S5")
def test_a_nearly_full_disk_is_refused_before_work(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_home()
    monkeypatch.setattr(
        sound_home.shutil, "disk_usage", lambda _: Usage(10**9, 10**9 - 3 * 10**6, 3 * 10**6)
    )
    with pytest.raises(OSError, match=r"3\.0 MB are free, at least 50 MB are needed") as refused:
        open_home()
    assert refused.value.errno == errno.ENOSPC and refused.value.filename == str(own_home)


READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'


@pytest.mark.req("S5")
@pytest.mark.parametrize("part", ["", "prepared"])
def test_a_home_or_a_folder_of_it_that_cannot_be_written_to_is_one_sentence(
    own_home: Path, part: str
) -> None:
    (home() / "prepared").mkdir()
    folder, before = own_home / part, []
    if os.geteuid() == 0:  # root ignores the mode of a folder
        if subprocess.run(
            ["unshare", "--mount", "true"], check=False, capture_output=True
        ).returncode:
            pytest.skip("no mount of its own can be made here")
        before, cause = (
            [
                "unshare",
                "--mount",
                "sh",
                "-c",
                READ_ONLY,
                str(folder),
            ],
            "the file system cannot be written to",
        )
    else:
        folder.chmod(0o555)
        cause = "a file or folder is not permitted to this user"
    command = [*before, sys.executable, "-m", "flows.cli", "prepare", "tests/clinic_visits.yaml"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=120
    )
    folder.chmod(0o755)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert (
        cause in done.stderr
        and f"({folder}/" in done.stderr
        and len(done.stderr.strip().splitlines()) == 1
    )
    assert sorted(path.name for path in own_home.rglob("*")) == ["prepared"], "nothing was begun"
