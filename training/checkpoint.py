"""Checkpoints that are whole, verified and loaded without running code.

    checkpoints/step-00000120/   model.pt optimizer.pt trainer.pt manifest.json   all of the run's state
    checkpoints/best-00000100/   model.pt manifest.json                           weights only, by validation metric

Commit: temporary folder → files, each flushed → manifest with sizes and SHA-256, flushed → folder flushed → rename →
parent flushed. A name without a leading dot is therefore always a whole checkpoint. The manifest is canonical JSON
that holds its own digest, so that a changed byte anywhere is found. No byte is unpickled before its SHA-256 was
compared, and then only with `weights_only`.

Everything here is for rank 0, except `Checkpoints.load` and `load_best`, which any rank may call.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from schemas.digest import fsync_folder, sha256_file
from schemas.errors import CheckpointError, first_few
from schemas.records import Record, digest_of

FORMAT = 1
FULL = ("model.pt", "optimizer.pt", "trainer.pt")
LIGHT = ("model.pt",)
MANIFEST = "manifest.json"
REPLACED = ".replaced"
NAME = re.compile(r"(step|best)-(\d{8,})")


class FileEntry(Record):
    """One file of a checkpoint as it was written."""

    sha256: str
    num_bytes: int


class Manifest(Record):
    """`manifest.json`: what the checkpoint is of, and the digests of its files; `sha256` is that of all the rest."""

    format: int = FORMAT
    name: str
    step: int
    best_step: int = 0
    identity: dict[str, Any]
    environment: dict[str, Any]
    files: dict[str, FileEntry]
    sha256: str = ""

    def sealed(self) -> Manifest:
        """With its own digest."""
        return self.model_copy(update={"sha256": digest_of(self.model_dump(mode="json", exclude={"sha256"}))})

    def text(self) -> bytes:
        """Canonical JSON: the only form that is accepted."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def folder_name(kind: str, step: int) -> str:
    """Name of a checkpoint's folder.

    >>> folder_name("step", 120)
    'step-00000120'
    """
    return f"{kind}-{step:08d}"


# ----------------------------------------------------------------------------------------- writing


def commit(root: Path, name: str, parts: dict[str, Any], facts: dict[str, Any]) -> Path:
    """Write a checkpoint whole or not at all; one of the same name is replaced.

    Args:
        root: the folder of checkpoints; created.
        name: of the checkpoint's folder.
        parts: file name to what `torch.save` writes there: tensors and plain values.
        facts: what the manifest says besides the files.
    """
    root.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=root))
    try:
        temporary.chmod(0o755)
        files = {file_name: _write(temporary / file_name, partial(torch.save, value)) for file_name, value in parts.items()}
        manifest = Manifest(name=name, files=files, **facts).sealed()
        _write(temporary / MANIFEST, lambda file: file.write(manifest.text()))
        fsync_folder(temporary)
        if (root / name).exists():
            (root / name).rename(root / f"{name}{REPLACED}")
        temporary.rename(root / name)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync_folder(root)
    shutil.rmtree(root / f"{name}{REPLACED}", ignore_errors=True)
    return root / name


def recover(root: Path) -> None:
    """Finish what a kill during a commit left: put back a checkpoint whose replacement did not come, remove temporary folders."""
    for old in root.glob(f"*{REPLACED}"):
        place = old.with_name(old.name.removesuffix(REPLACED))
        if place.exists():
            shutil.rmtree(old)
        else:
            old.rename(place)
    for leftover in root.glob(".*-*"):
        shutil.rmtree(leftover)


def _write(path: Path, write: Callable[[Any], object]) -> FileEntry:
    with open(path, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(sha256=sha256_file(path), num_bytes=path.stat().st_size)


# ----------------------------------------------------------------------------------------- reading


def read_manifest(folder: Path, names: tuple[str, ...]) -> Manifest:
    """The manifest, after its own digest was compared.

    Raises:
        CheckpointError: it is gone, was changed, or lists other files than `names`.
    """
    try:
        raw = (folder / MANIFEST).read_bytes()
        manifest = Manifest.model_validate_json(raw)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: {MANIFEST} cannot be read ({str(error).splitlines()[0]})") from error
    if raw != manifest.sealed().text():
        raise CheckpointError(f"{folder}: {MANIFEST} was changed after it was written")
    if manifest.format != FORMAT or manifest.name != folder.name or set(manifest.files) != set(names):
        raise CheckpointError(
            f"{folder}: {MANIFEST} is of {manifest.name!r}, format {manifest.format}, with files {sorted(manifest.files)}; expected format {FORMAT} with {sorted(names)}"
        )
    return manifest


def verify_checkpoint(folder: Path, names: tuple[str, ...]) -> Manifest:
    """The manifest, after the SHA-256 of every file was compared.

    Raises:
        CheckpointError: naming the file that is gone or was changed.
    """
    manifest = read_manifest(folder, names)
    for name in names:
        _compare(folder / name, manifest.files[name], sha256_file(folder / name) if (folder / name).is_file() else None)
    return manifest


def load_part(folder: Path, name: str, manifest: Manifest) -> Any:
    """What `torch.save` wrote, on the CPU; exactly the bytes whose SHA-256 was compared are unpickled, with `weights_only`.

    Raises:
        CheckpointError: the bytes were changed, or hold anything but tensors and plain values.
    """
    try:
        data = (folder / name).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{folder / name}: cannot be read ({error})") from error
    _compare(folder / name, manifest.files[name], hashlib.sha256(data).hexdigest())
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler raises what it likes; none of it is a state that could be loaded
        raise CheckpointError(f"{folder / name}: holds something else than tensors and plain values ({str(error).splitlines()[0]})") from error


def _compare(path: Path, entry: FileEntry, found: str | None) -> None:
    if found is None:
        raise CheckpointError(f"{path}: expected {entry.num_bytes} bytes, found no file")
    if found != entry.sha256:
        raise CheckpointError(f"{path}: SHA-256 is {found[:12]}…, the manifest says {entry.sha256[:12]}… ({path.stat().st_size} of {entry.num_bytes} bytes)")


def differences(recorded: dict[str, Any], current: dict[str, Any], path: str = "") -> list[str]:
    """Where two trees of plain values differ, as sentences.

    >>> differences({"train": {"seed": 1}}, {"train": {"seed": 2}})
    ['train.seed is 2, the checkpoint has 1']
    """
    found: list[str] = []
    for key in sorted(recorded.keys() | current.keys()):
        old, new = recorded.get(key), current.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{path}{key}.")
        elif old != new:
            found.append(f"{path}{key} is {new!r}, the checkpoint has {old!r}")
    return found


# ------------------------------------------------------------------------------- a run's checkpoints


class Checkpoints:
    """The checkpoints of one run directory.

    Args:
        root: their folder.
        identity: all that decides the weights; a checkpoint with another one is refused.
        environment: what is only told when it differs.
        keep: full checkpoints kept.
        notify: gets a sentence for each thing that a person should know.
    """

    def __init__(self, root: Path, identity: dict[str, Any], environment: dict[str, Any], keep: int, notify: Callable[[str], None]) -> None:
        self.root, self.keep, self.notify = root, keep, notify
        self.facts = {"identity": identity, "environment": environment}

    def folders(self, kind: str) -> dict[int, Path]:
        """Step to folder of the committed ones, newest first."""
        found = [(int(match[2]), path) for path in self.root.glob(f"{kind}-*") if (match := NAME.fullmatch(path.name))]
        return dict(sorted(found, reverse=True))

    def save(self, step: int, best_step: int, parts: dict[str, Any]) -> None:
        """Commit the whole state of a step, then remove what is no longer needed."""
        commit(self.root, folder_name("step", step), parts, {**self.facts, "step": step, "best_step": best_step})
        self.prune(best_step)

    def save_best(self, step: int, weights: dict[str, Any]) -> None:
        """Commit the light form; before the full checkpoint that refers to it."""
        commit(self.root, folder_name("best", step), {"model.pt": weights}, {**self.facts, "step": step})

    def newest(self) -> int | None:
        """Step of the newest checkpoint that verifies and loads; damaged ones are set aside. None where there was none.

        Raises:
            CheckpointError: it belongs to another declaration, data or number of ranks; or all are damaged.
        """
        recover(self.root)
        damaged = []
        for step, folder in self.folders("step").items():
            try:
                manifest = self._require_sound(step, folder)
            except CheckpointError as error:
                damaged.append(folder.name)
                self._set_aside(folder, str(error))
                continue
            self._require_same_run(folder, manifest)
            return step
        if damaged:
            raise CheckpointError(
                f"{self.root}: none of {len(damaged)} checkpoints verifies ({first_few(damaged)}); they were renamed to *.damaged: "
                "put back a good copy, or start again to train from the first step"
            )
        return None

    def load(self, step: int) -> dict[str, Any]:
        """All parts of a full checkpoint, by file name.

        Raises:
            CheckpointError: it does not verify or load.
        """
        folder = self.root / folder_name("step", step)
        manifest = read_manifest(folder, FULL)
        return {name: load_part(folder, name, manifest) for name in FULL}

    def load_best(self, step: int) -> dict[str, Any]:
        """Weights of the light form.

        Raises:
            CheckpointError: it does not verify or load.
        """
        folder = self.root / folder_name("best", step)
        return dict(load_part(folder, "model.pt", read_manifest(folder, LIGHT)))

    def prune(self, best_step: int) -> None:
        """Keep the newest `keep` checkpoints, in any case one that verifies, and every best one that they or the run refer to."""
        kept: dict[int, Path] = {}
        verified = False
        for step, folder in self.folders("step").items():
            if len(kept) >= self.keep and verified:
                shutil.rmtree(folder)
                continue
            kept[step] = folder
            verified = verified or _verifies(folder)
        needed = {best_step, *(_best_of(folder) for folder in kept.values())}
        for step, folder in self.folders("best").items():
            if step not in needed:
                shutil.rmtree(folder)

    def _require_sound(self, step: int, folder: Path) -> Manifest:
        manifest = verify_checkpoint(folder, FULL)
        self.load(step)
        if manifest.best_step:
            self.load_best(manifest.best_step)
        return manifest

    def _require_same_run(self, folder: Path, manifest: Manifest) -> None:
        changed = differences(manifest.identity, self.facts["identity"])
        if changed:
            raise CheckpointError(
                f"{folder}: belongs to another run; {'; '.join(changed[:5])}{' …' if len(changed) > 5 else ''}. Train in a new run directory, or put the declaration and data back"
            )
        moved = differences(manifest.environment, self.facts["environment"])
        if moved:
            self.notify(f"the environment is not that of {folder.name}: {'; '.join(moved)}; bit-identity is not promised from here on")

    def _set_aside(self, folder: Path, reason: str) -> None:
        target = folder.with_name(f"{folder.name}.damaged")
        number = 1
        while target.exists():
            number += 1
            target = folder.with_name(f"{folder.name}.damaged-{number}")
        folder.rename(target)
        fsync_folder(self.root)
        self.notify(f"checkpoint {folder.name} is damaged and was renamed to {target.name}: {reason}")


def _verifies(folder: Path) -> bool:
    try:
        verify_checkpoint(folder, FULL)
    except CheckpointError:
        return False
    return True


def _best_of(folder: Path) -> int:
    try:
        return read_manifest(folder, FULL).best_step
    except CheckpointError:
        return 0
