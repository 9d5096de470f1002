"""Checklist items on the run directory: verify its checkpoints again, open the newest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from schemas.config import Declaration
from schemas.errors import CheckpointError
from schemas.observed import Statement
from training.checkpoint.manifest import (
    LIGHT,
    NAME,
    TRAINER,
    load_part,
    read_manifest,
    verify_checkpoint,
)
from training.formatting import count, plain, plural
from training.report.checklist_facts import (
    LOG,
    CheckpointFacts,
    FileFacts,
    Items,
    RunFacts,
    fact,
    not_shown,
    warning,
)
from training.run.lease import LEASE
from training.tracking.tensorboard import EVENTS, FOLDER

DISK = "checkpoints, verified again for this page"
WANTED = ("config.yaml", "metrics.jsonl", "train.log", "result.json", "checkpoints")
STATE = ("state", "schedule", "scaler", "rng")


def read_files(run_dir: Path, declaration: Declaration) -> FileFacts:
    """Read a run directory as it is now, comparing every checkpoint's digests.

    Args:
        run_dir: directory of the run.
        declaration: traces and TensorBoard events are counted only if declared.
    """
    root = run_dir / "checkpoints"
    folders = sorted(
        (p for p in root.glob("*") if NAME.fullmatch(p.name)),
        key=lambda p: (p.name.startswith("step"), p.name),
        reverse=True,
    )
    state, streams, refused = _trainer_state(
        next((f for f in folders if f.name.startswith("step")), None)
    )
    return FileFacts(
        names=frozenset(p.name for p in run_dir.glob("*")),
        checkpoints=tuple(_verified(folder) for folder in folders),
        set_aside=tuple(sorted(p.name for p in root.glob("*.damaged*"))),
        unfinished=tuple(sorted(p.name for p in root.glob(".*"))),
        state=state,
        streams=streams,
        generation=_generation(run_dir / LEASE),
        boards=(
            len(list((run_dir / FOLDER).glob(EVENTS))) if declaration.tracking.tensorboard else 0
        ),
        profiled=(
            sum(p.is_file() for p in (run_dir / "profile").rglob("*"))
            if declaration.train.profile
            else 0
        ),
        refused=refused,
    )


def _verified(folder: Path) -> CheckpointFacts:
    try:
        manifest = verify_checkpoint(folder, LIGHT if folder.name.startswith("best") else None)
    except CheckpointError as error:
        return CheckpointFacts(
            folder.name, (), 0, str(error).removeprefix(f"{folder}").lstrip("/: ")
        )
    return CheckpointFacts(folder.name, tuple(sorted(manifest.files)), manifest.num_bytes, "")


def _trainer_state(folder: Path | None) -> tuple[tuple[str, ...], int, str]:
    if folder is None:
        return (), 0, ""
    try:
        state = load_part(folder, TRAINER, read_manifest(folder))
    except CheckpointError as error:
        return (), 0, str(error)
    return tuple(state), len(state.get("rng", ())), ""


def _generation(path: Path) -> int | None:
    try:
        return int(json.loads(path.read_bytes())["generation"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


# --------------------------------------------------------------------------------------- statements


def folder(facts: RunFacts) -> Iterator[Statement]:
    """Check the files that every run writes."""
    missing = [name for name in WANTED if name not in facts.files.names]
    yield fact(
        not missing,
        f"{', '.join(WANTED)} are there",
        "the run directory",
        f"missing: {', '.join(missing)}",
    )
    lines = facts.history
    yield fact(
        bool(lines.evaluations),
        f"{plural(len(lines.steps), 'line')} of steps, {count(len(lines.evaluations))} of"
        f" evaluations, {count(len(lines.events))} of events",
        LOG,
        "the log holds no evaluation",
    )


def complete(facts: RunFacts) -> Iterator[Statement]:
    """Check that a checkpoint contains all of a run's state, as tensors and plain values."""
    files = facts.files
    if files.refused:
        yield fact(False, plain(files.refused, 300), DISK)
        return
    if not files.state:
        yield not_shown("there is no full checkpoint to open", DISK)
        return
    newest = files.checkpoints[0]
    missing = [key for key in STATE if key not in files.state]
    yield fact(
        not missing,
        f"{newest.name} opened with weights_only: {', '.join(newest.parts)}; position, best metric,"
        " patience, schedule, loss scaler",
        DISK,
        f"{newest.name} lacks {', '.join(missing)}",
    )
    ranks = facts.train.world_size
    yield fact(
        files.streams == ranks,
        f"random streams of {plural(files.streams, 'rank')}, of {ranks} that trained",
        DISK,
    )


def whole(facts: RunFacts) -> Iterator[Statement]:
    """Check that every checkpoint verifies, and that damage was reported."""
    files = facts.files
    damaged = [c for c in files.checkpoints if c.damage]
    if not files.checkpoints:
        yield not_shown("there is no checkpoint", DISK)
        return
    good = len(files.checkpoints) - len(damaged)
    size = sum(c.num_bytes for c in files.checkpoints)
    yield fact(
        not damaged,
        f"all {plural(good, 'checkpoint')} hold the bytes of their manifests ({size / 1e6:,.1f} MB"
        " by SHA-256)",
        DISK,
        f"{len(damaged)} of {len(files.checkpoints)} checkpoints do not verify: "
        + "; ".join(f"{c.name}: {plain(c.damage, 160)}" for c in damaged),
    )
    if files.set_aside:
        yield warning(
            f"{plural(len(files.set_aside), 'damaged checkpoint')} set aside, an older one was"
            f" used: {', '.join(files.set_aside[:5])}",
            DISK,
        )
    yield fact(
        not files.unfinished,
        "no half-written checkpoint is left",
        DISK,
        f"left from commits that did not end: {', '.join(files.unfinished[:5])}",
    )


def kept(facts: RunFacts) -> Iterator[Statement]:
    """Check that the newest checkpoints and the best one exist."""
    full = [c.name for c in facts.files.checkpoints if c.name.startswith("step")]
    best = [c.name for c in facts.files.checkpoints if c.name.startswith("best")]
    keep, wanted = facts.declaration.train.keep, f"best-{facts.train.best_step:08d}"
    if not full:
        yield not_shown("there is no full checkpoint", DISK)
        return
    yield fact(
        len(full) <= keep,
        f"{plural(len(full), 'full checkpoint')} kept of at most {keep}; newest {full[0]}",
        DISK,
    )
    yield fact(
        wanted in best,
        f"the best weights by validation stand alone in {wanted}",
        DISK,
        f"the best weights, {wanted}, are gone",
    )


def resumed(facts: RunFacts) -> Iterator[Statement]:
    """Check if the run was interrupted, and continued."""
    starts = [e.message for e in facts.history.events if e.message.startswith("resumed from")]
    if not starts:
        yield not_shown(
            "nothing broke this run off, so it never had to go on from a checkpoint; that it could"
            " was tried in preflight",
            LOG,
        )
        return
    often = "once" if len(starts) == 1 else plural(len(starts), "time")
    yield fact(
        bool(starts),
        f"broken off {often} and {starts[-1]}; `bulkhead reproduce` shows whether an undisturbed"
        " run ends with the same bytes",
        LOG,
    )


def stopped(facts: RunFacts) -> Iterator[Statement]:
    """Check if a signal arrived."""
    stops = [e.message for e in facts.history.events if e.message.startswith("interrupted")]
    if not stops:
        yield not_shown("no signal came while it trained", LOG)
        return
    yield fact(
        True,
        f"{plural(len(stops), 'signal')} ended it at a step boundary, last:"
        f" {plain(stops[-1], 160)}",
        LOG,
    )


def one_writer(facts: RunFacts) -> Iterator[Statement]:
    """Check the lease's number."""
    generation = facts.files.generation
    if generation is None:
        yield not_shown("there is no lease.json", "lease.json")
        return
    starts = 1 + sum(e.message.startswith("resumed from") for e in facts.history.events)
    held = (
        "one process held the right to write here"
        if generation == 1
        else f"{count(generation)} processes held the right to write here, one after the other"
    )
    yield fact(
        generation >= starts,
        held,
        "lease.json",
        f"{starts} starts, but the lease counts {generation}",
    )


ITEMS: Items = {
    "C1": ("The run has its own directory with all that it wrote", folder),
    "C2": ("A checkpoint holds all of the run's state and opens without running code", complete),
    "C3": ("Checkpoints are written whole, and verified", whole),
    "C4": ("The newest checkpoints and the best are kept", kept),
    "C5": ("Broken off, it goes on as if nothing had happened", resumed),
    "C6": ("Told to stop, it saves at a step boundary first", stopped),
    "C7": ("One process at a time may write", one_writer),
}
