"""`bulkhead up --idle`: commands use its server, it ends itself, and a kill breaks no run."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.test_stop_command import Command, clinic

__all__ = ["clinic"]  # a fixture
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
IDLE_SECONDS, READY_SECONDS = 15, 180
SMALL = ["tests/clinic_visits.yaml"]


def free_ports() -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


class Up(Command):
    """`bulkhead up --idle` of a home; its log is `up.log`."""

    def __init__(self, folder: Path, clinic: Path) -> None:
        self.ports = free_ports()
        (folder / "up").mkdir()
        (folder / "up" / "home").symlink_to(folder / "home")
        (folder / "home").mkdir()
        options = [
            f"--{name}-port={p}" for name, p in zip(("prefect", "mlflow"), self.ports, strict=True)
        ]
        super().__init__(folder / "up", clinic, "up", *options, f"--idle={IDLE_SECONDS}s")
        self.wait_for(lambda c: "ends after" in c.output())


@pytest.fixture
def up(tmp_path: Path, clinic: Path) -> Iterator[Up]:
    found = Up(tmp_path, clinic)
    yield found
    if found.process.poll() is None:
        found.send(signal.SIGKILL)
    found.end()


def listening_on(port: int) -> set[str]:
    """Return the addresses, in hexadecimal, on which something listens at a port."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            address, number = line.split()[1].rsplit(":", 1)
            if line.split()[3] == "0A" and int(number, 16) == port:
                found.add(address)
    return found


def flow_runs(up: Up) -> int:
    """Return the number of flow runs that the server knows."""
    login = (Path(up.home) / "keys" / "servers").read_text().strip()
    url = f"http://127.0.0.1:{up.ports[0]}/api"
    manager = urllib.request.HTTPPasswordMgrWithPriorAuth()
    manager.add_password(None, url, *login.split(":", 1), is_authenticated=True)
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(manager))
    request = urllib.request.Request(
        f"{url}/flow_runs/count", b"{}", {"Content-Type": "application/json"}
    )
    with opener.open(request, timeout=30) as answer:
        return int(json.load(answer))


def test_two_commands_use_its_server_and_then_it_ends_itself(
    tmp_path: Path, clinic: Path, up: Up
) -> None:
    assert {len(listening_on(port)) for port in up.ports} == {1}
    assert {a for port in up.ports for a in listening_on(port)} == {"0100007F"}, "loopback alone"
    for number in (1, 2):
        command = Command(tmp_path, clinic, "prepare", *SMALL)
        while command.process.poll() is None:
            assert not any("tasks.embedded" in text for text in command.family().values())
            time.sleep(0.1)
        assert command.process.returncode == 0, command.output()[-3000:]
        assert flow_runs(up) == number
        assert "reused" in command.output() or number == 1
    assert up.process.poll() is None
    began = time.monotonic()
    assert up.process.wait(IDLE_SECONDS + 60) == 0, up.output()[-3000:]
    assert time.monotonic() - began > IDLE_SECONDS - 5
    up.end()
    assert not up.family() and not any(listening_on(port) for port in up.ports)
    alone = Command(tmp_path, clinic, "prepare", *SMALL)
    alone.wait_for(lambda c: any("tasks.embedded" in text for text in c.family().values()))
    assert alone.process.wait(READY_SECONDS) == 0, alone.output()[-3000:]


def test_a_killed_server_breaks_no_command(tmp_path: Path, clinic: Path, up: Up) -> None:
    command = Command(
        *(tmp_path, clinic, "run", *SMALL, "train.epochs=3", "register.thresholds={}")
    )
    command.wait_for(lambda c: "✓ source" in c.output())
    os.kill(up.process.pid, signal.SIGKILL)
    up.process.wait()
    assert command.process.wait(600) == 0, command.output()[-3000:]
    assert "promoted" in command.output()
    deadline = time.monotonic() + 30
    while command.family() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not command.family()
    again = Command(tmp_path, clinic, "prepare", *SMALL)
    assert again.process.wait(READY_SECONDS) == 0, again.output()[-3000:]
