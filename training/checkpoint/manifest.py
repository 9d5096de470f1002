"""Write and verify a checkpoint's `manifest.json`, and read the files it lists.

The manifest is canonical JSON with its own digest, so that a changed byte anywhere is found. No
byte of another file is unpickled before its SHA-256 was compared with the manifest, and then only
with `weights_only`: a forged checkpoint with a forged manifest still runs nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import torch

from schemas.digest import sha256_file
from schemas.errors import CheckpointError, first_few
from schemas.records import Record, digest_of

FORMAT = 1
TRAINER = "trainer.pt"
FULL = ("model.pt", "optimizer.pt", TRAINER)
LIGHT = ("model.pt",)
MANIFEST = "manifest.json"
NAME = re.compile(r"(step|best)-(\d{8,})")  # of a committed checkpoint's folder


class FileEntry(Record):
    """One file of a checkpoint as it was written."""

    sha256: str
    num_bytes: int


class Manifest(Record):
    """Content of `manifest.json`: the checkpoint's facts, and the digests of its files.

    `sha256` is that of all the rest.
    """

    format: int = FORMAT
    name: str
    step: int
    best_step: int = 0
    identity: dict[str, Any]
    environment: dict[str, Any]
    files: dict[str, FileEntry]
    sha256: str = ""

    def sealed(self) -> Manifest:
        """Return the manifest with its own digest."""
        return self.model_copy(
            update={"sha256": digest_of(self.model_dump(mode="json", exclude={"sha256"}))}
        )

    def text(self) -> bytes:
        """Return canonical JSON, the only accepted form."""
        return json.dumps(
            self.model_dump(mode="json"),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
        ).encode()

    @property
    def num_shards(self) -> int:
        """Return the number of ranks that the state is sharded over; 0 if it is whole."""
        return 0 if "model.pt" in self.files else len(self.files) - 1

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all files that it lists."""
        return sum(entry.num_bytes for entry in self.files.values())


def shard_name(rank: int, num_shards: int) -> str:
    """Return the name of the file that one rank writes; it contains the number of files.

    >>> shard_name(1, 4)
    'shard-00001-of-00004.pt'
    """
    return f"shard-{rank:05d}-of-{num_shards:05d}.pt"


def sharded_names(num_shards: int) -> tuple[str, ...]:
    """Return the files of a checkpoint whose state is sharded over ranks.

    >>> sharded_names(2)
    ('trainer.pt', 'shard-00000-of-00002.pt', 'shard-00001-of-00002.pt')
    """
    return (TRAINER, *(shard_name(rank, num_shards) for rank in range(num_shards)))


def read_manifest(folder: Path, names: tuple[str, ...] | None = None) -> Manifest:
    """Return the manifest after a check of its own digest.

    Args:
        folder: of the checkpoint.
        names: the files it must list. Default: those of a full checkpoint, whole or sharded.

    Raises:
        CheckpointError: it is gone, was changed, or lists other files.
    """
    try:
        raw = _plain_file(folder / MANIFEST).read_bytes()
        manifest = Manifest.model_validate_json(raw)
        text = manifest.sealed().text()
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{folder}: {MANIFEST} cannot be read ({str(error).splitlines()[0]})"
        ) from error
    if raw != text:
        raise CheckpointError(f"{folder}: {MANIFEST} was changed after it was written")
    expected = names or (sharded_names(manifest.num_shards) if manifest.num_shards else FULL)
    if (
        manifest.format != FORMAT
        or manifest.name != folder.name
        or set(manifest.files) != set(expected)
    ):
        raise CheckpointError(
            f"{folder}: {MANIFEST} is of {manifest.name!r}, format {manifest.format}, with files"
            f" {first_few(sorted(manifest.files))}; expected format {FORMAT} with"
            f" {first_few(sorted(expected))}"
        )
    return manifest


def verify_checkpoint(folder: Path, names: tuple[str, ...] | None = None) -> Manifest:
    """Return the manifest after a check of the SHA-256 of every file that it lists.

    The arguments are those of `read_manifest`.

    Raises:
        CheckpointError: naming the file that is gone or was changed.
    """
    manifest = read_manifest(folder, names)
    for name, entry in manifest.files.items():
        try:
            found = sha256_file(_plain_file(folder / name))
        except OSError as error:
            raise _unreadable(folder / name, entry, error) from error
        _compare(folder / name, entry, found)
    return manifest


def load_part(folder: Path, name: str, manifest: Manifest) -> Any:
    """Load a file written by `torch.save` on the CPU.

    Exactly the bytes whose SHA-256 was compared are unpickled, with `weights_only`.

    Raises:
        CheckpointError: the bytes were changed, or hold other objects than tensors and plain
            values.
    """
    try:
        data = _plain_file(folder / name).read_bytes()
    except OSError as error:
        raise _unreadable(folder / name, manifest.files[name], error) from error
    _compare(folder / name, manifest.files[name], hashlib.sha256(data).hexdigest())
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (
        Exception
    ) as error:  # the unpickler may raise anything; in no case could the state be loaded
        raise CheckpointError(
            f"{folder / name}: holds something else than tensors and plain values"
            f" ({str(error).splitlines()[0]})"
        ) from error


def _plain_file(path: Path) -> Path:
    """Return the path if it is a plain file.

    A read from a pipe or a device that somebody put there would never end.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    return path


def _unreadable(path: Path, entry: FileEntry, error: OSError) -> CheckpointError:
    if isinstance(error, FileNotFoundError):
        return CheckpointError(f"{path}: expected {entry.num_bytes} bytes, found no file")
    return CheckpointError(
        f"{path}: expected {entry.num_bytes} bytes, but it cannot be read"
        f" ({error.strerror or error})"
    )


def _compare(path: Path, entry: FileEntry, found: str) -> None:
    if found != entry.sha256:
        raise CheckpointError(
            f"{path}: SHA-256 is {found[:12]}…, the manifest says {entry.sha256[:12]}…"
            f" ({path.stat().st_size} of {entry.num_bytes} bytes)"
        )


def differences(recorded: dict[str, Any], current: dict[str, Any], path: str = "") -> list[str]:
    """Return the differences of two trees of plain values, as sentences.

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
