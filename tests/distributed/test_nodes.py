"""One run on two machines: two connected network namespaces if the system allows it, else two
loopback addresses.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from schemas.errors import ConfigError, LaunchError
from schemas.load import declare
from tests.distributed.launch import ROOT, environment, free_port, torchrun
from tests.faults.launches import processes_of
from tests.training.runs import declaration_tree, make_run
from training.launch.nodes import (
    RECORD,
    Launch,
    Node,
    announce,
    claim,
    interface_of,
    own_address,
    shared_environment,
    wait_for_launch,
)

TRAIN = {
    "epochs": 3,
    "batch_size": 16,
    "micro_batch_size": 3,
    "threads": 1,
    "ranks": 2,
    "log_every": 1,
}
SCRIPTED = {"kind": "custom", "path": "tests.training.networks:Scripted"}


class Machines(NamedTuple):
    """Command prefixes of two machines, and the first one's address."""

    kind: str
    first: list[str]
    second: list[str]
    host: str


def ip(*words: str) -> bool:
    return (
        shutil.which("ip") is not None
        and subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0
    )


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    names = [f"bulkhead{os.getpid()}{side}" for side in "ab"]
    made = all(ip("netns", "add", name) for name in names) and ip(
        "link",
        "add",
        "cable",
        "netns",
        names[0],
        "type",
        "veth",
        "peer",
        "cable",
        "netns",
        names[1],
    )
    for number, name in enumerate(names, start=1):
        made = made and ip("-n", name, "address", "add", f"10.83.7.{number}/24", "dev", "cable")
        made = (
            made
            and ip("-n", name, "link", "set", "cable", "up")
            and ip("-n", name, "link", "set", "lo", "up")
        )
    try:
        if made:
            yield Machines(
                "namespaces",
                ["ip", "netns", "exec", names[0]],
                ["ip", "netns", "exec", names[1]],
                "10.83.7.1",
            )
        else:
            yield Machines("loopback addresses", [], [], "127.0.0.2")
    finally:
        for name in names:
            ip("netns", "delete", name)


def on(prefix: list[str], *module: str, **extra: str) -> subprocess.Popen[str]:
    command = [*prefix, sys.executable, "-m", *module]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def make(folder: Path, machines: Machines, **sections: Any) -> Path:
    """Make a run directory for two machines."""
    run_dir = folder / "run"
    make_run(
        run_dir,
        rows=(101, 40),
        train=TRAIN | {"nodes": 2, "rendezvous": f"{machines.host}:{free_port()}"},
        **sections,
    )
    return run_dir


@pytest.mark.long
@pytest.mark.req("T1")
def test_two_machines_end_with_the_bytes_of_one(
    tmp_path: Path, machines: Machines, record_property: Any
) -> None:
    record_property("machines", machines.kind)
    make_run(tmp_path / "one", rows=(101, 40), train=TRAIN)
    assert torchrun(2, tmp_path / "one" / "resolved.json", tmp_path / "one").returncode == 0
    run_dir = make(tmp_path, machines)
    second = on(machines.second, "flows.cli", "join", str(run_dir), "--wait", "60")
    first = on(machines.first, "tests.distributed.head", str(run_dir))
    said = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), said
    results = [
        json.loads((folder / "result.json").read_text()) for folder in (tmp_path / "one", run_dir)
    ]
    assert (
        results[0]["model_sha256"] == results[1]["model_sha256"] and results[1]["world_size"] == 2
    )
    assert "machine 1 of 2, ranks 1 to 1" in said[1] and "done" in said[1]
    assert (
        "2 ranks on cpu" in (run_dir / "train.log").read_text() and not (run_dir / RECORD).exists()
    )


@pytest.mark.long
@pytest.mark.req("T11")
def test_a_machine_that_dies_ends_the_other_soon_and_a_failure_there_is_the_cause_here(
    tmp_path: Path, machines: Machines
) -> None:
    run_dir = make(tmp_path, machines, model=SCRIPTED)
    (run_dir / "error-node-1.json").write_text('{"message": "of an earlier launch"}')
    second = on(
        machines.second,
        "flows.cli",
        "join",
        str(run_dir),
        "--wait",
        "60",
        BULKHEAD_TEST_SIGNAL="KILL:1:9",
    )
    first = on(machines.first, "tests.distributed.head", str(run_dir))
    said = first.communicate(timeout=60)[0]
    ended = time.time()
    assert second.wait(30) == 1 and first.returncode != 0
    assert ended - (run_dir / "metrics.jsonl").stat().st_mtime < 20
    assert (
        said.startswith("LaunchError: machine 1 (") and "Signal 9 (SIGKILL) received by PID" in said
    ), said
    assert not [pid for pid in processes_of(run_dir) if pid != os.getpid()]


@pytest.mark.long
@pytest.mark.req("T1")
def test_ctrl_c_on_a_joined_machine_saves_and_ends_both(tmp_path: Path, machines: Machines) -> None:
    run_dir = make(tmp_path, machines, model=SCRIPTED)
    second = on(
        machines.second,
        "flows.cli",
        "join",
        str(run_dir),
        "--wait",
        "60",
        BULKHEAD_TEST_SIGNAL="TERM:1:9",
    )
    first = on(machines.first, "tests.distributed.head", str(run_dir))
    for process in (first, second):
        process.communicate(timeout=60)
    assert second.returncode == 1
    assert json.loads((run_dir / "result.json").read_text())["status"] == "interrupted"
    assert list((run_dir / "checkpoints").glob("step-*"))


@pytest.mark.req("T1")
def test_other_software_and_a_full_house_are_refused(tmp_path: Path) -> None:
    port = free_port()
    train = declare(
        declaration_tree(train=TRAIN | {"nodes": 2, "rendezvous": f"127.0.0.1:{port}"})
    ).train
    node = announce(tmp_path, train, "run-1")
    assert (
        node is not None
        and node.launch.ranks_per_node == 1
        and announce(tmp_path, declare(declaration_tree()).train, "run-1") is None
    )
    other = node.launch.model_copy(
        update={"environment": shared_environment() | {"torch": "1.13.0", "code": "0"}}
    )
    with pytest.raises(
        ConfigError,
        match=(
            r"code is [0-9a-f]{64} here, 0 there; torch is 2.* here, 1.13.0 there; install the same"
        ),
    ):
        claim(tmp_path, other)
    assert claim(tmp_path, node.launch).number == 1
    with pytest.raises(LaunchError, match="all 2 machines are there already"):
        claim(tmp_path, node.launch)
    with pytest.raises(LaunchError, match=r"within 0 s, but there is no launch.json"):
        wait_for_launch(tmp_path / "elsewhere", 0)
    make_run(tmp_path)
    with pytest.raises(LaunchError, match=rf"its rendezvous 127.0.0.1:{port} does not answer"):
        wait_for_launch(tmp_path, 0)


def test_ranks_talk_over_the_interface_on_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Launch(
        launch="a",
        run_id="r",
        nodes=2,
        ranks_per_node=3,
        rendezvous="127.0.0.1:29400",
        environment={},
    )
    node = Node(number=1, launch=launch)
    assert (
        own_address("127.0.0.1:1") == "127.0.0.1"
        and interface_of("127.0.0.1") == "lo"
        and interface_of("192.0.2.1") == ""
    )
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert node.variables() == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "ib0"}
    arguments = node.arguments()
    assert (
        arguments[arguments.index("--node-rank") + 1] == "1"
        and arguments[arguments.index("--local-addr") + 1] == "127.0.0.1"
    )
    with pytest.raises(LaunchError, match="this machine has no route there"):
        own_address("no.such.host.invalid:1")


@pytest.mark.req("P1")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 2, "ranks": 2}, "several machines need an address where they meet"),
        ({"rendezvous": "node1:29400"}, "one needs none"),
        ({"nodes": 2, "ranks": 3, "rendezvous": "node1:29400"}, "cannot be shared evenly"),
        ({"nodes": 2, "ranks": 2, "rendezvous": "node1"}, "String should match pattern"),
    ],
)
def test_machines_that_cannot_meet_are_refused_before_anything_runs(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        declare(declaration_tree(train=options))
