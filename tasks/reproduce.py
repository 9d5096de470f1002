"""Reproduce a registered version from its recorded commit, declaration and data in a new home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from schemas.confinement import require_registered
from schemas.errors import RegistryError, TrainingError
from schemas.home import home
from schemas.registry_records import Reproduction, Step
from schemas.scratch import scratch_folder
from tasks.context import ROOT
from tasks.say import say
from training.data.sources.source import fingerprint
from training.registry import reproduce
from training.registry.reproduce import Origin
from training.registry.worktree import checked_out
from training.tracking.mlflow import default_tracking_uri

GRACE_SECONDS = 30.0


@task(
    name="read origin",
    description="Evidence, declaration, commit and uncommitted changes of a registered version.",
    tags=["register"],
    cache_policy=NO_CACHE,
)
def read_origin(model_uri: str) -> Origin:
    """Return the origin of the version."""
    require_registered(model_uri)
    origin = reproduce.read_origin(model_uri, default_tracking_uri(None))
    say(
        "origin",
        f"{origin.uri}: commit"
        f" {origin.commit[:12]}{' with uncommitted changes' if origin.diff else ''}, run"
        f" {origin.evidence.run_id}",
    )
    return origin


@task(
    name="compare origin",
    description="Declaration, libraries, machine and source, before anything is made again.",
    tags=["register", "check"],
    cache_policy=NO_CACHE,
)
def compare_origin(origin: Origin) -> Reproduction:
    """Compare declaration and source with the record; the steps after the source are not run."""
    notes = reproduce.unlike(origin)
    for note in notes:
        say("", note, "warn")
    config, why = reproduce.config_step(origin)
    steps = [config]
    if not config.differs:
        source, why = reproduce.source_step(origin, fingerprint(reproduce.data_as_recorded(origin)))
        steps.append(source)
    else:
        steps.append(Step(name=reproduce.SOURCE, recorded=origin.evidence.source_sha256))
    for step in steps:
        _shown(step)
    return Reproduction(
        uri=origin.uri,
        commit=origin.commit,
        diff_applied=False,
        steps=(*steps, *reproduce.later_steps(origin, None)),
        notes=notes,
        reason=why,
    )


@task(
    name="retrain",
    description=(
        "The recorded commit's own code, run to its end in a temporary home: nothing is tracked or"
        " registered in yours."
    ),
    tags=["train"],
    cache_policy=NO_CACHE,
)
def retrain(origin: Origin, before: Reproduction, apply_diff: bool) -> Reproduction:
    """Reproduce the version; return the first step that differs.

    Raises:
        RegistryError: the commit is not in this repository, or uncommitted changes were not allowed
            to run.
        TrainingError: the recorded code did not finish.
    """
    if origin.diff and not apply_diff:
        raise RegistryError(
            f"{origin.uri} was made with uncommitted changes ({origin.diff.count(chr(10))} lines):"
            f" read dirty.diff of MLflow run {origin.run_id}, then allow them to be run with"
            " --apply-diff"
        )
    if origin.declaration.train.nodes > 1:
        raise RegistryError(
            f"{origin.uri} was trained on {origin.declaration.train.nodes} machines; it is made"
            " again on one only where it was made on one"
        )
    started = time.monotonic()
    with scratch_folder(home(), "reproduce") as place:
        missing = reproduce.copy_ledgers(
            origin, home() / "ledgers" / origin.name, place / "home" / "ledgers" / origin.name
        )
        with checked_out(ROOT, origin.commit, origin.diff, place / "code"):
            evidence = _run(origin, place)
    steps = (*before.steps[:2], *reproduce.later_steps(origin, evidence))
    for step in steps[2:]:
        _shown(step)
    notes = (*before.notes, *filter(None, [missing]))
    first = next((step for step in steps if step.differs), None)
    why = reproduce.reason(origin, first, notes) if first else ""
    return before.model_copy(
        update={
            "steps": steps,
            "notes": notes,
            "reason": why,
            "diff_applied": bool(origin.diff),
            "seconds": round(time.monotonic() - started, 1),
        }
    )


def _run(origin: Origin, place: Path) -> dict[str, Any]:
    """Run the checked-out code; return its `evidence.json`."""
    config, store = place / "config.yaml", place / "home" / "mlflow.db"
    config.write_text(origin.config, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "flows.cli",
        "run",
        str(config),
        f"tracking.uri=sqlite:///{store}",
        "register.enabled=false",
        *reproduce.as_it_ran(origin),
        *reproduce.source_as_recorded(origin),
        "--json",
    ]
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "MLFLOW_"))
    }
    path = os.pathsep.join(filter(None, [str(place / "code"), os.environ.get("PYTHONPATH")]))
    environment = kept | {
        "BULKHEAD_HOME": str(place / "home"),
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with _process(command, environment, place / "code") as process:
        answer = process.communicate()[0]
    if process.returncode != 0:
        raise TrainingError(
            f"the code of commit {origin.commit[:12]} did not make {origin.uri} again: exit code"
            f" {process.returncode}, its own words are above"
        )
    evidence = reproduce.read_evidence(Path(json.loads(answer)["run_dir"]))
    ran = (evidence["provenance"].get("git") or {}).get("sha")
    if ran != origin.commit:
        raise RegistryError(
            f"other code was run: commit {ran}, not {origin.commit}; is another copy of the project"
            " before it on the path?"
        )
    return evidence


@contextmanager
def _process(
    command: list[str], environment: dict[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program that ends with the block; its output goes to ours."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment, cwd=folder
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _shown(step: Step) -> None:
    if step.found is not None:
        say(
            step.name[:14],
            (
                f"{step.recorded[:12]}, now {step.found[:12]}"
                if step.differs
                else f"{step.recorded[:12]} again"
            ),
            "fail" if step.differs else "done",
        )


def tell(found: Reproduction, stop: bool) -> Reproduction:
    """Show the outcome.

    Raises:
        RegistryError: something differs, and `stop` is set.
    """
    rows = "\n".join(
        f"| {s.name} | `{s.recorded[:12]}` | {f'`{s.found[:12]}`' if s.found else '–'} |"
        f" {'differs' if s.differs else ''} |"
        for s in found.steps
    )
    verdict = f"{found.uri} was made again, bit by bit" if found.identical else told(found)
    create_markdown_artifact(
        key="reproduction",
        markdown=f"# {verdict}\n\n| step | then | now | |\n|---|---|---|---|\n{rows}\n",
        description=found.uri,
    )
    say("reproduce", verdict, "done" if found.identical else "fail")
    if stop and not found.identical:
        raise RegistryError(verdict)
    return found


def told(found: Reproduction) -> str:
    """Describe the first step that differs, and why."""
    first = found.first_difference
    return (
        f"{found.uri} is not reproduced: the {first.name if first else 'run'} differs first;"
        f" {found.reason}"
    )
