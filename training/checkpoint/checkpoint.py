"""Checkpoints of a run: choose, keep, and set aside damaged ones.

    checkpoints/step-00000120/   trainer.pt model.pt optimizer.pt manifest.json       all of the run's state
    checkpoints/step-00000120/   trainer.pt shard-00000-of-00002.pt … manifest.json  cut over ranks
    checkpoints/best-00000100/   model.pt manifest.json                   weights only, by validation metric

`commit.py` writes one as a whole or not at all; `manifest.py` verifies and loads it.

Everything here is for rank 0, except `save_sharded` (collective) and the loading functions, which
any rank may call.
"""  # noqa: E501

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.digest import fsync_folder
from schemas.errors import CheckpointError, first_few
from training.checkpoint.commit import Draft, commit, disk_full_said, num_bytes_of, recover, space
from training.checkpoint.manifest import (
    FULL,
    LIGHT,
    NAME,
    TRAINER,
    FileEntry,
    Manifest,
    differences,
    load_part,
    read_manifest,
    shard_name,
    verify_checkpoint,
)
from training.distributed.parallel import Parallel
from training.run.crash_points import reach
from training.run.lease import always


def folder_name(kind: str, step: int) -> str:
    """Return the name of a checkpoint's folder.

    >>> folder_name("step", 120)
    'step-00000120'
    """
    return f"{kind}-{step:08d}"


class Checkpoints:
    """Checkpoints of one run directory.

    Args:
        root: their folder.
        identity: all that decides the weights; a checkpoint with another one is refused.
        environment: facts that are only reported if they differ.
        keep: full checkpoints kept.
        notify: gets a sentence for each event that a person should know.
        allowed: called before anything changes in the folder; raises if this process may no longer
            write.
    """

    def __init__(
        self,
        root: Path,
        identity: dict[str, Any],
        environment: dict[str, Any],
        keep: int,
        notify: Callable[[str], None],
        allowed: Callable[[], None] = always,
    ) -> None:
        self.root, self.keep, self.notify, self.allowed = root, keep, notify, allowed
        self.facts = {"identity": identity, "environment": environment}

    def folders(self, kind: str) -> dict[int, Path]:
        """Return step to folder of the committed ones, newest first."""
        found = [
            (int(match[2]), path)
            for path in self.root.glob(f"{kind}-*")
            if (match := NAME.fullmatch(path.name))
        ]
        return dict(sorted(found, reverse=True))

    def save(self, step: int, best_step: int, parts: dict[str, Any]) -> None:
        """Commit the whole state of a step, then remove checkpoints that are no longer needed.

        Raises:
            CheckpointError: the disk is full; nothing is left of the attempt.
        """
        self._commit("step", step, parts, best_step=best_step)
        self.prune(best_step)

    def save_best(self, step: int, weights: dict[str, Any]) -> None:
        """Commit the light form; call it before the full checkpoint that refers to it."""
        self._commit("best", step, {"model.pt": weights})

    def save_sharded(
        self,
        step: int,
        best_step: int,
        trainer: dict[str, Any],
        shard: dict[str, Any],
        parallel: Parallel,
    ) -> None:
        """Commit a sharded state as a whole or not at all, then remove old checkpoints. Collective.

        Every rank writes its own file and flushes it; rank 0 seals all of them with one manifest.
        The run directory must be on a file system that all ranks share.

        Args:
            step: of the state.
            best_step: the light checkpoint that it refers to; 0 for none.
            trainer: state that is equal on all ranks; rank 0's is written.
            shard: this rank's own part, local tensors and plain values.
            parallel: the ranks.

        Raises:
            CheckpointError: a rank could not write its part, on every rank; nothing is left of the
                attempt.
        """
        name, needed = (
            folder_name("step", step),
            num_bytes_of(trainer) + parallel.world_size * num_bytes_of(shard),
        )
        draft = Draft(Path(parallel.on_main(lambda: self._begin(name, needed))), name)
        try:
            files = _write_shard(draft, shard, parallel)
            reach("checkpoint.shards_agreed")
            parallel.on_main(
                lambda: self._seal(draft, files, trainer, step=step, best_step=best_step)
            )
        except BaseException:
            if parallel.is_main:
                draft.discard()
            raise

    def _begin(self, name: str, needed: int) -> str:
        self._tell_if_short_of_space(needed)
        with disk_full_said(self.root, needed):
            return str(Draft.begin(self.root, name).folder)

    def _seal(
        self, draft: Draft, files: dict[str, FileEntry], trainer: dict[str, Any], **facts: int
    ) -> None:
        with disk_full_said(self.root, num_bytes_of(trainer)):
            draft.commit(
                {**files, TRAINER: draft.write(TRAINER, trainer)},
                {**self.facts, **facts},
                self.allowed,
            )
        self.prune(facts["best_step"])

    def _commit(self, kind: str, step: int, parts: dict[str, Any], best_step: int = 0) -> None:
        self._tell_if_short_of_space(num_bytes_of(parts))
        commit(
            self.root,
            folder_name(kind, step),
            parts,
            {**self.facts, "step": step, "best_step": best_step},
            self.allowed,
        )

    def _tell_if_short_of_space(self, needed: int) -> None:
        self.allowed()
        self.root.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(self.root).free < needed:
            self.notify(
                f"{self.root} is nearly full: {space(self.root, needed)}; saving is tried all the"
                " same"
            )

    def newest(self) -> int | None:
        """Return the step of the newest checkpoint that verifies and loads; None without any.

        Damaged ones are set aside.

        Raises:
            CheckpointError: it belongs to another declaration, data or number of ranks; or all are
                damaged.
        """
        self.allowed()
        recover(self.root)
        damaged = []
        for step, folder in self.folders("step").items():
            try:
                manifest = self._require_sound(folder)
            except CheckpointError as error:
                damaged.append(folder.name)
                self._set_aside(folder, str(error))
                continue
            self._require_same_run(folder, manifest)
            return step
        if damaged:
            raise CheckpointError(
                f"{self.root}: none of {len(damaged)} checkpoints verifies ({first_few(damaged)});"
                " they were renamed to *.damaged: put back a good copy, or start again to train"
                " from the first step"
            )
        return None

    def num_shards(self, step: int) -> int:
        """Return the number of ranks that the state of a step is sharded over; 0 if it is whole.

        Raises:
            CheckpointError: the manifest does not verify.
        """
        return read_manifest(self._folder(step)).num_shards

    def load(self, step: int) -> dict[str, Any]:
        """Return all parts of a whole state, by file name.

        Raises:
            CheckpointError: it does not verify or load, or is sharded over ranks.
        """
        folder = self._folder(step)
        manifest = read_manifest(folder, FULL)
        return {name: load_part(folder, name, manifest) for name in FULL}

    def load_trainer(self, step: int) -> dict[str, Any]:
        """Return the state that is equal on all ranks.

        Raises:
            CheckpointError: it does not verify or load.
        """
        return dict(load_part(self._folder(step), TRAINER, read_manifest(self._folder(step))))

    def load_shard(self, step: int, rank: int) -> dict[str, Any]:
        """Return the part that one of the saving ranks wrote.

        Raises:
            CheckpointError: it does not verify or load, or there is no such shard.
        """
        folder = self._folder(step)
        manifest = read_manifest(folder)
        name = shard_name(rank, manifest.num_shards)
        if name not in manifest.files:
            raise CheckpointError(
                f"{folder}: expected {name}, found {first_few(sorted(manifest.files))}; it was"
                f" saved by {manifest.num_shards} sharded ranks"
            )
        return dict(load_part(folder, name, manifest))

    def load_all_shards(self, step: int) -> list[dict[str, Any]]:
        """Return the parts of all saving ranks, by rank, for use by another number of ranks.

        Raises:
            CheckpointError: one does not verify or load.
        """
        return [self.load_shard(step, rank) for rank in range(self.num_shards(step))]

    def load_best(self, step: int) -> dict[str, Any]:
        """Return the weights of the light form.

        Raises:
            CheckpointError: it does not verify or load.
        """
        folder = self.root / folder_name("best", step)
        return dict(load_part(folder, "model.pt", read_manifest(folder, LIGHT)))

    def _folder(self, step: int) -> Path:
        return self.root / folder_name("step", step)

    def _require_sound(self, folder: Path) -> Manifest:
        manifest = verify_checkpoint(folder)
        # one at a time: all of a sharded state need not fit into this process
        for name in manifest.files:
            load_part(folder, name, manifest)
        if manifest.best_step:
            self.load_best(manifest.best_step)
        return manifest

    def _require_same_run(self, folder: Path, manifest: Manifest) -> None:
        changed = differences(manifest.identity, self.facts["identity"])
        if changed:
            raise CheckpointError(
                f"{folder}: belongs to another run;"
                f" {'; '.join(changed[:5])}{' …' if len(changed) > 5 else ''}. Train in a new run"
                " directory, or put the declaration and data back"
            )
        moved = differences(manifest.environment, self.facts["environment"])
        if moved:
            self.notify(
                f"the environment is not that of {folder.name}: {'; '.join(moved)}; bit-identity is"
                " not promised from here on"
            )

    def prune(self, best_step: int) -> None:
        """Keep the newest `keep` checkpoints, one that verifies, and every best one in use.

        A best one is in use if a kept checkpoint or the run refers to it.
        """
        self.allowed()
        kept: dict[int, Path] = {}
        verified = False
        for step, folder in self.folders("step").items():
            if len(kept) >= self.keep and verified:
                _remove(folder)
                continue
            kept[step] = folder
            verified = verified or self._verifies(folder)
        needed = {best_step, *(_best_of(folder) for folder in kept.values())}
        for step, folder in self.folders("best").items():
            if step not in needed:
                _remove(folder)

    def _verifies(self, folder: Path) -> bool:
        try:
            best_step = verify_checkpoint(folder).best_step
            if best_step:
                verify_checkpoint(self.root / folder_name("best", best_step), LIGHT)
        except CheckpointError as error:
            self.notify(
                f"checkpoint {folder.name} is damaged; an older one is kept for it: {error}"
            )
            return False
        return True

    def _set_aside(self, folder: Path, reason: str) -> None:
        target = folder.with_name(f"{folder.name}.damaged")
        number = 1
        while target.exists():
            number += 1
            target = folder.with_name(f"{folder.name}.damaged-{number}")
        folder.rename(target)
        fsync_folder(self.root)
        self.notify(
            f"checkpoint {folder.name} is damaged and was renamed to {target.name}: {reason}"
        )


def _write_shard(draft: Draft, shard: dict[str, Any], parallel: Parallel) -> dict[str, FileEntry]:
    """Return entries of the files that all ranks wrote, by name. Collective.

    Raises:
        CheckpointError: on every rank, with the error of the first rank that failed.
    """
    name = shard_name(parallel.rank, parallel.world_size)
    try:
        answer = {"name": name, "entry": _written(draft, name, shard).model_dump()}
    except CheckpointError as error:
        answer = {"name": name, "error": str(error)}
    answers = [
        json.loads(payload) for payload in parallel.gather_bytes(json.dumps(answer).encode())
    ]
    failed = [f"rank {rank}: {a['error']}" for rank, a in enumerate(answers) if "error" in a]
    if failed:
        raise CheckpointError(
            f"{len(failed)} of {len(answers)} ranks could not write their part of the state;"
            f" {failed[0]}"
        )
    return {a["name"]: FileEntry(**a["entry"]) for a in answers}


def _written(draft: Draft, name: str, shard: dict[str, Any]) -> FileEntry:
    try:
        with disk_full_said(draft.folder.parent, num_bytes_of(shard)):
            return draft.write(name, shard)
    except OSError as error:
        raise CheckpointError(
            f"{draft.folder / name}: cannot be written ({error.strerror or error}); sharded"
            " checkpoints need a run directory that all ranks share"
        ) from error


def _remove(folder: Path) -> None:
    """Remove the name first, so that a named folder is always whole."""
    hidden = folder.with_name(f".{folder.name}.pruned")
    folder.rename(hidden)
    reach("checkpoint.pruned")
    shutil.rmtree(hidden)


def _best_of(folder: Path) -> int:
    try:
        return read_manifest(folder).best_step
    except CheckpointError:
        return 0  # reported by `_verifies` or `newest`; an unreadable state needs no weights
