"""SHA-256 of files, and reading and writing small JSON files whole or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from schemas.errors import IntegrityError
from schemas.records import FileRef

LEFTOVER = re.compile(r"\..+\.[a-z0-9_]{8}")  # .<name>.<what tempfile.mkstemp adds>
LARGE = 16 << 20  # bytes from which on a file is worth remembering


class FileState(NamedTuple):
    """What changes with any write to a file: its inode or size, or the times (ns) of its last write
    and of its last change of state.
    """

    device: int
    inode: int
    size: int
    written: int
    changed: int


_read: dict[FileState, str] = {}  # the SHA-256 that this process found


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes, streamed."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_once(path: str | Path) -> str:
    """SHA-256 of a file's bytes; a large file is read once in a process, as long as nobody touches
    it.

    Touched is what has another `FileState`: its time of change cannot be set by hand. Small files
    are read every time, which costs nothing and leaves no doubt about changes within a tick of the
    clock.
    """
    before = _state(path)
    if before.size < LARGE:
        return sha256_file(path)
    if before not in _read:
        found = sha256_file(path)
        if _state(path) != before:
            return found  # somebody writes to it
        _read[before] = found
    return _read[before]


def settle(path: str | Path) -> None:
    """Flush a finished file to the disk; the SHA-256 of a large one is found while the disk works,
    and remembered.

    A rename of its folder may follow, but nothing that touches the file: see `sha256_once`.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < LARGE:
            os.fsync(file.fileno())
            return
        with ThreadPoolExecutor(1) as beside:
            flushed = beside.submit(os.fsync, file.fileno())
            sha256_once(path)
            flushed.result()


def _state(path: str | Path) -> FileState:
    found = Path(path).stat()
    return FileState(
        found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )


def file_ref(path: str | Path) -> FileRef:
    """A reference to a file as it is now."""
    file = Path(path).absolute()
    return FileRef(path=str(file), sha256=sha256_once(file), num_bytes=file.stat().st_size)


def verify(ref: FileRef) -> Path:
    """The file's path, after its bytes were found to be those recorded.

    Raises:
        IntegrityError: the file is gone or its bytes differ.
    """
    if not ref.file.is_file():
        raise IntegrityError(
            f"{ref.path}: expected a file with SHA-256 {ref.sha256[:12]}…, found none; prepare"
            " again"
        )
    found = sha256_once(ref.path)
    if found != ref.sha256:
        raise IntegrityError(
            f"{ref.path}: SHA-256 is {found[:12]}…, recorded was {ref.sha256[:12]}…: the file was"
            " changed after it was written; delete it and run again"
        )
    return ref.file


def fsync_folder(path: str | Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write that takes its name only when whole; see `replacing_path`."""
    with replacing_path(path) as temporary, open(temporary, "wb") as file:
        yield file


@contextmanager
def replacing_path(path: str | Path) -> Iterator[Path]:
    """Where to write a file that takes its name only when whole: temporary file in the same folder,
    fsync, rename, fsync of the folder.

    An error inside leaves what stood under the name before, and nothing else.
    """
    target = Path(path).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        settle(temporary)
        found = _read.pop(_state(temporary), None)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if found is not None:
        _read[_state(target)] = found  # renamed, it has another time of change
    fsync_folder(target.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that a process killed inside of `replacing` left in a folder; only
    where nobody else writes.
    """
    for path in folder.iterdir():
        if LEFTOVER.fullmatch(path.name) and path.is_file():
            path.unlink()


def write_atomic(path: str | Path, content: bytes | str) -> FileRef:
    """Write a small file whole or not at all; see `replacing`."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return file_ref(path)
