"""Findings of `bulkhead doctor`: one line per requirement of a run, with the remedy if missing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from schemas.home import home
from schemas.records import Record

FREE_GIGABYTES = 2.0


class Finding(Record):
    """One line of the examination."""

    what: str
    ok: bool
    found: str
    remedy: str = ""


def examine() -> list[Finding]:
    """List every finding, in the order in which a run would fail on them."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python,
        _packages,
        _torch,
        _machine,
        _folder,
        _key,
        _git,
        _tracking,
        _prefect,
    )
    return [finding for check in checks for finding in check()]


def _python() -> Iterator[Finding]:
    ok = sys.version_info >= (3, 11)
    yield Finding(
        what="python",
        ok=ok,
        found=f"{platform.python_version()} on {platform.platform(terse=True)}",
        remedy="" if ok else "install Python 3.11 or newer",
    )


def _packages() -> Iterator[Finding]:
    wrong = []
    for text in requires("bulkhead") or ():
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(wanted.name)
        except PackageNotFoundError:
            wrong.append(f"{wanted.name} is missing")
            continue
        if not wanted.specifier.contains(found.split("+")[0], prereleases=True):
            wrong.append(f"{wanted.name} {found}, wanted {wanted.specifier}")
    yield Finding(
        what="packages",
        ok=not wrong,
        found="; ".join(wrong) or "all as declared",
        remedy="pip install -c constraints.txt -e ." if wrong else "",
    )


def _torch() -> Iterator[Finding]:
    import torch
    import torch.distributed as dist

    devices = (
        ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        or "CPU only"
    )
    ok = dist.is_available() and dist.is_gloo_available()
    yield Finding(
        what="torch",
        ok=ok,
        found=f"{torch.__version__}, {devices}, gloo {'yes' if ok else 'no'}",
        remedy="" if ok else "install a torch build with distributed support",
    )


def _machine() -> Iterator[Finding]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield Finding(what="machine", ok=True, found=f"{os.cpu_count()} cores, {memory:.0f} GiB memory")


def _folder() -> Iterator[Finding]:
    free = shutil.disk_usage(home()).free / 2**30
    ok = os.access(home(), os.W_OK) and free >= FREE_GIGABYTES
    remedy = "" if ok else "set BULKHEAD_HOME to a writable folder with free space"
    yield Finding(what="home", ok=ok, found=f"{home()}, {free:.0f} GiB free", remedy=remedy)


def _key() -> Iterator[Finding]:
    from schemas.errors import ConfigError
    from training.registry.signing import TRUSTED, fingerprint, own_key, trusted_keys

    try:
        own, trusted = own_key(), trusted_keys()
    except ConfigError as error:
        yield Finding(
            what="signing key",
            ok=False,
            found=str(error),
            remedy=f"restore the key, or correct {TRUSTED}",
        )
        return
    found = f"{own} ({fingerprint(own)})" if own else "none yet: the first registration makes it"
    others = len(trusted) - (own is not None)
    yield Finding(
        what="signing key",
        ok=True,
        found=found + (f"; {others} more in {TRUSTED}" if others else ""),
    )


def _git() -> Iterator[Finding]:
    done = (
        subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parent,
        )
        if shutil.which("git")
        else None
    )
    ok = done is not None and done.returncode == 0
    yield Finding(
        what="git",
        ok=ok,
        found=f"commit {done.stdout.strip()}" if ok and done else "no repository",
        remedy="" if ok else "run from a git checkout, so that runs record their commit",
    )


def _tracking() -> Iterator[Finding]:
    from training.run.provenance import masked
    from training.tracking.mlflow import default_tracking_uri, probe

    uri = default_tracking_uri(None)
    problem = probe(uri)
    yield Finding(
        what="tracking",
        ok=not problem,
        found=masked(uri) + (f": {problem}" if problem else ""),
        remedy="start the MLflow server, or unset MLFLOW_TRACKING_URI" if problem else "",
    )


def _prefect() -> Iterator[Finding]:
    try:
        from prefect.settings import PREFECT_API_URL

        url = PREFECT_API_URL.value()
    except Exception as error:  # any failure of the import is the finding
        yield Finding(
            what="prefect",
            ok=False,
            found=f"{type(error).__name__}: {error}",
            remedy="pip install 'fastapi>=0.139,<0.151'",
        )
        return
    yield Finding(
        what="prefect",
        ok=True,
        found=f"{version('prefect')}, "
        + (str(url) if url else "no server set: each run starts its own"),
    )
