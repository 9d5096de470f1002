"""Own PostgreSQL server on loopback, if the programs are installed (apt-get install postgresql)."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.operated import free_port, until

PASSWORD = "s3cret-w0rd"


def program(name: str) -> str:
    """Return the path of one of PostgreSQL's programs."""
    found = shutil.which(name) or next(
        (
            str(path)
            for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
        ),
        None,
    )
    if found is None:
        pytest.skip(f"PostgreSQL is absent: no program {name} (apt-get install postgresql)")
    return found


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the address of an empty database; the server ends with the block."""
    initdb, server = program("initdb"), program("postgres")
    user = []
    folder = Path(tempfile.mkdtemp(prefix="bulkhead-postgres-"))
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        user = ["runuser", "-u", "postgres", "--"]
        os.chown(folder, pwd.getpwnam("postgres").pw_uid, -1)
    (folder / "password").write_text(PASSWORD)
    (folder / "password").chmod(0o644)
    port, data = free_port(), folder / "data"
    make = [
        *user,
        initdb,
        "-D",
        str(data),
        "-U",
        "ann",
        "--auth=scram-sha-256",
        f"--pwfile={folder / 'password'}",
        "--no-sync",
    ]
    subprocess.run(make, check=True, capture_output=True, cwd="/")
    with open(folder.with_suffix(".log"), "wb") as log:
        command = [
            *user,
            server,
            "-D",
            str(data),
            "-p",
            str(port),
            "-c",
            "listen_addresses=127.0.0.1",
            "-k",
            str(folder),
            "-c",
            "max_connections=200",
        ]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
    try:
        until(
            lambda: b"ready to accept connections" in folder.with_suffix(".log").read_bytes(),
            60,
            "PostgreSQL is ready",
        )
        yield f"postgresql://ann:{PASSWORD}@127.0.0.1:{port}/postgres"
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".log").unlink()
