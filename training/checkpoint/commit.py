"""Write a checkpoint as a whole or not at all.

    temporary folder → files, each flushed → manifest with sizes and SHA-256, flushed → folder
    flushed → rename → parent flushed

A name without a leading dot is therefore always a whole checkpoint. The digests are those of the
bytes that were passed to the file system, not of bytes read back. `recover` repairs what a kill
leaves.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch

from schemas.digest import fsync_folder
from schemas.errors import CheckpointError
from training.checkpoint.manifest import MANIFEST, FileEntry, Manifest
from training.run.crash_points import reach
from training.run.lease import always

REPLACED = ".replaced"
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Draft:
    """Checkpoint that is being written: a temporary folder until `commit` gives it its name.

    Args:
        folder: the temporary folder, as `begin` made it; ranks that write their shard into it open
            it by its path.
        name: its name after `commit`.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name

    @classmethod
    def begin(cls, root: Path, name: str) -> Draft:
        """Make the temporary folder, and the folder of checkpoints around it."""
        root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=root))
        folder.chmod(0o755)
        reach("checkpoint.begun")
        return cls(folder, name)

    def write(self, file_name: str, value: Any) -> FileEntry:
        """Write tensors and plain values as a durable file by `torch.save`; return its digest."""
        entry = self._write(file_name, lambda file: torch.save(value, file))
        reach("checkpoint.file_written")
        return entry

    def commit(
        self,
        files: dict[str, FileEntry],
        facts: dict[str, Any],
        allowed: Callable[[], None] = always,
    ) -> Path:
        """Seal the files with a manifest and take the name; replace a checkpoint of the same name.

        Args:
            files: all written files, by name.
            facts: contents of the manifest besides the files.
            allowed: called just before the rename; raises if this process may no longer write.
        """
        root, place = self.folder.parent, self.folder.with_name(self.name)
        replaced = place.with_name(f"{self.name}{REPLACED}")
        manifest = Manifest(name=self.name, files=files, **facts).sealed()
        self._write(MANIFEST, lambda file: file.write(manifest.text()))
        fsync_folder(self.folder)
        reach("checkpoint.manifest_written")
        allowed()
        if place.exists():
            place.rename(replaced)
            reach("checkpoint.old_moved")
        self.folder.rename(place)
        reach("checkpoint.renamed")
        fsync_folder(root)
        shutil.rmtree(replaced, ignore_errors=True)
        reach("checkpoint.committed")
        return place

    def discard(self) -> None:
        """Remove the written files; does nothing after `commit`."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, file_name: str, write: Callable[[Any], object]) -> FileEntry:
        with open(self.folder / file_name, "wb") as file:
            hashing = _Hashing(file)
            write(hashing)
            file.flush()
            os.fsync(file.fileno())
        return FileEntry(sha256=hashing.digest.hexdigest(), num_bytes=hashing.num_bytes)


class _Hashing:
    """Writable file that counts and hashes its bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.num_bytes = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        """Write and hash bytes; return their number."""
        self.digest.update(data)
        self.num_bytes += memoryview(data).nbytes
        return self.file.write(data)

    def flush(self) -> None:
        """Flush the file."""
        self.file.flush()


def commit(
    root: Path,
    name: str,
    parts: dict[str, Any],
    facts: dict[str, Any],
    allowed: Callable[[], None] = always,
) -> Path:
    """Write a checkpoint as a whole or not at all.

    Args:
        root: the folder of checkpoints; created.
        name: of the checkpoint's folder; one that exists is replaced.
        parts: file name to its content for `torch.save`: tensors and plain values.
        facts: contents of the manifest besides the files.
        allowed: called just before the rename; raises if this process may no longer write.

    Raises:
        CheckpointError: the disk is full; nothing is left of the attempt.
    """
    with disk_full_said(root, num_bytes_of(parts)):
        draft = Draft.begin(root, name)
        try:
            return draft.commit(
                {file_name: draft.write(file_name, value) for file_name, value in parts.items()},
                facts,
                allowed,
            )
        except BaseException:
            draft.discard()
            raise


def recover(root: Path) -> None:
    """Finish a commit that a kill interrupted.

    Put back a checkpoint whose replacement is missing, and remove temporary folders.
    """
    for old in root.glob(f"*{REPLACED}"):
        place = old.with_name(old.name.removesuffix(REPLACED))
        if place.exists():
            shutil.rmtree(old)
        else:
            old.rename(place)
    for leftover in [*root.glob(".step-*"), *root.glob(".best-*")]:
        shutil.rmtree(leftover)


def num_bytes_of(value: Any) -> int:
    """Return the bytes of the tensors in a tree of plain values: nearly the size on disk.

    >>> num_bytes_of({"w": torch.zeros(3, dtype=torch.float64),
    ...     "state": [torch.ones(2), "text", 1]})
    32
    """
    if isinstance(value, torch.Tensor):
        return int(value.numel() * value.element_size())
    if isinstance(value, dict):
        return sum(map(num_bytes_of, value.values()))
    return sum(map(num_bytes_of, value)) if isinstance(value, list | tuple) else 0


@contextmanager
def disk_full_said(root: Path, needed: int) -> Iterator[None]:
    """Turn the system's refusal of more bytes into an error that says what to do.

    Raises:
        CheckpointError: in place of it, with the bytes needed and free.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause = full_disk(error)
        if cause is None:
            raise
        raise CheckpointError(
            f"{root}: {cause.strerror} while saving; {space(root, needed)}. Earlier checkpoints are"
            " intact: free space, then start again to go on"
        ) from error


def space(root: Path, needed: int) -> str:
    """Return bytes needed and free, in words."""
    return f"about {needed:,} bytes are needed, {shutil.disk_usage(root).free:,} are free"


def full_disk(error: BaseException | None) -> OSError | None:
    """Return the system's refusal of more bytes behind an error, or None.

    torch's writer raises its own error over it.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            return error
        error = error.__cause__ or error.__context__
    return None
