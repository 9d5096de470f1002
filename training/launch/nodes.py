"""One run on several machines: announcement, comparison and rendezvous.

RUN_DIR/launch.json while the run is started: rendezvous, ranks, versions
RUN_DIR/nodes/<launch>-<n>.json the n-th machine has joined

The run directory and the arrays must be on a file system that all machines share under the same
paths. The rendezvous is an address and port of the first machine that the others can reach. Anyone
who reaches it can join, so the network must be trusted.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import secrets
import socket
import struct
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

import schemas
import training
from schemas.config import TrainConfig
from schemas.errors import ConfigError, IntegrityError, LaunchError
from schemas.records import Record, RunSpec
from schemas.seal import read_record, remove_sealed, write_sealed

RECORD, FOLDER = "launch.json", "nodes"
JOIN_SECONDS = 900  # longest wait of the first machine for the others
LOOK_SECONDS = 0.5
SIOCGIFADDR = 0x8915


class Launch(Record):
    """`launch.json`.

    `launch` identifies this start of the run; `environment` must be equal on all machines.
    """

    launch: str
    run_id: str
    nodes: int
    ranks_per_node: int
    rendezvous: str
    environment: dict[str, str]


class Node(Record):
    """One machine of a launch; number 0 announced it and holds the rendezvous."""

    number: int
    launch: Launch

    def arguments(self) -> list[str]:
        """Torchrun's arguments for it: ranks follow the numbers of the machines."""
        launch = self.launch
        place = [
            "--nnodes",
            str(launch.nodes),
            "--node-rank",
            str(self.number),
            "--rdzv-backend",
            "static",
            "--rdzv-endpoint",
            launch.rendezvous,
        ]
        return [
            *place,
            "--rdzv-id",
            launch.launch,
            "--rdzv-conf",
            f"timeout={JOIN_SECONDS}",
            "--local-addr",
            own_address(launch.rendezvous),
        ]

    def variables(self) -> dict[str, str]:
        """Environment that makes ranks use the interface on the route to the rendezvous.

        Variables that are already set stay.
        """
        interface = interface_of(own_address(self.launch.rendezvous))
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        return {
            name: os.environ.get(name, interface)
            for name in names
            if interface or name in os.environ
        }


# ----------------------------------------------------------------------------------- announce, join


def announce(run_dir: Path, train: TrainConfig, run_id: str) -> Node | None:
    """Announce a launch and return the first machine's place; None for a run on one machine."""
    if train.rendezvous is None:
        return None
    launch = Launch(
        launch=secrets.token_hex(8),
        run_id=run_id,
        nodes=train.nodes,
        ranks_per_node=train.ranks // train.nodes,
        rendezvous=train.rendezvous,
        environment=shared_environment(),
    )
    (run_dir / FOLDER).mkdir(exist_ok=True)
    write_sealed(run_dir / RECORD, launch.model_dump_json(indent=1))
    return Node(number=0, launch=launch)


def withdraw(run_dir: Path) -> None:
    """End the announcement: nobody can join any more."""
    remove_sealed(run_dir / RECORD)


def wait_for_launch(run_dir: Path, wait_seconds: float) -> Launch:
    """Return the launch that the first machine announced, once its rendezvous answers.

    Raises:
        LaunchError: nothing was announced, or nobody answered, in time.
    """
    deadline, launch = time.monotonic() + wait_seconds, None
    while True:
        launch = _announced(run_dir)
        # not one that was replaced meanwhile
        if launch is not None and _answers(launch.rendezvous) and launch == _announced(run_dir):
            return launch
        if time.monotonic() > deadline:
            why = (
                f"its rendezvous {launch.rendezvous} does not answer"
                if launch
                else f"there is no {RECORD}"
            )
            raise LaunchError(
                f"{run_dir}: expected a run that waits for this machine within {wait_seconds:.0f}"
                f" s, but {why}; start it on the first machine with train.nodes and"
                " train.rendezvous, on a file system that both share"
            )
        time.sleep(LOOK_SECONDS)


def claim(run_dir: Path, launch: Launch) -> Node:
    """Take the next free place in a launch for this machine.

    Raises:
        ConfigError: Python, libraries, code or machine type differ from the first machine's.
        LaunchError: all places are taken.
    """
    require_same_environment(launch.environment)
    for number in range(1, launch.nodes):
        try:
            handle = os.open(
                run_dir / FOLDER / f"{launch.launch}-{number}.json",
                os.O_CREAT | os.O_EXCL | os.O_WRONLY,
                0o644,
            )
        except FileExistsError:
            continue
        os.write(handle, f'{{"host": "{socket.gethostname()}", "pid": {os.getpid()}}}'.encode())
        os.close(handle)
        return Node(number=number, launch=launch)
    raise LaunchError(
        f"{run_dir}: all {launch.nodes} machines are there already; train.nodes says how many"
        " there are"
    )


def _announced(run_dir: Path) -> Launch | None:
    try:
        read_record(run_dir / "resolved.json", RunSpec, "", required=False)
        return read_record(run_dir / RECORD, Launch, "", required=False)
    except (OSError, IntegrityError):
        return None


def _answers(rendezvous: str) -> bool:
    try:
        with socket.create_connection(address_of(rendezvous), timeout=2):
            return True
    except OSError:
        return False


# -------------------------------------------------------------------------------------- environment


def shared_environment() -> dict[str, str]:
    """Return what all machines of a run must share: interpreter, libraries, machine, code."""
    digest = hashlib.sha256()
    for package in (schemas, training):
        root = Path(str(package.__file__)).parent
        for file in sorted(root.rglob("*.py")):
            digest.update(
                f"{package.__name__}/{file.relative_to(root)}\0".encode()
                + file.read_bytes()
                + b"\0"
            )
    versions = {
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": np.__version__,
    }
    return versions | {"machine": platform.machine(), "code": digest.hexdigest()}


def require_same_environment(first: dict[str, str]) -> None:
    """Refuse to join with other software than the first machine's.

    Raises:
        ConfigError: the message names each difference.
    """
    here = shared_environment()
    wrong = [
        f"{name} is {here.get(name)} here, {first.get(name)} there"
        for name in sorted(here.keys() | first.keys())
        if here.get(name) != first.get(name)
    ]
    if wrong:
        raise ConfigError(
            f"this machine is not set up as the first one: {'; '.join(wrong)}; install the same"
            " versions and the same checkout on both"
        )


# ------------------------------------------------------------------------------------------ network


def address_of(rendezvous: str) -> tuple[str, int]:
    """Parse host and port.

    >>> address_of("node1.local:29400"), address_of("[fe80::1]:29400")
    (('node1.local', 29400), ('fe80::1', 29400))
    """
    host, _, port = rendezvous.rpartition(":")
    return host.strip("[]"), int(port)


def own_address(rendezvous: str) -> str:
    """Return this machine's address on the route to the rendezvous.

    Raises:
        LaunchError: the host is unknown, or there is no route to it.
    """
    host, port = address_of(rendezvous)
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # nothing is sent: it only chooses the route
            return str(probe.getsockname()[0])
    except OSError as error:
        raise LaunchError(
            f"train.rendezvous {rendezvous}: this machine has no route there ({error}); give an"
            " address of the first machine"
        ) from error


def interface_of(address: str) -> str:
    """Return the name of the network interface that has an IPv4 address; empty without one."""
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                found = fcntl.ioctl(
                    probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15])
                )
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return ""
