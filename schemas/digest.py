"""SHA-256 of files, and atomic reads and writes of small JSON files."""

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

LEFTOVER = re.compile(r"\..+\.[a-z0-9_]{8}")  # .<name>.<suffix of tempfile.mkstemp>
LARGE = 16 << 20  # bytes from which a digest is cached


class FileState(NamedTuple):
    """Inode, size, and times (ns) of last write and status change; each write changes one of
    them.
    """

    device: int
    inode: int
    size: int
    written: int
    changed: int


_read: dict[FileState, str] = {}  # digests that this process computed


def sha256_file(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, read in chunks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_once(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes; a process reads an unchanged large file only once.

    A file is changed if its `FileState` differs: nobody can set its time of status change by hand.
    Small files are read every time: this is cheap and safe within one tick of the clock.
    """
    before = _state(path)
    if before.size < LARGE:
        return sha256_file(path)
    if before not in _read:
        found = sha256_file(path)
        if _state(path) != before:
            return found  # the file is being written
        _read[before] = found
    return _read[before]


def settle(path: str | Path) -> None:
    """Flush a finished file to disk; hash a large file at the same time and cache its digest.

    Its folder may be renamed afterwards, but the file must not change: see `sha256_once`.
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
    """Return a reference to the current content of a file."""
    file = Path(path).absolute()
    return FileRef(path=str(file), sha256=sha256_once(file), num_bytes=file.stat().st_size)


def verify(ref: FileRef) -> Path:
    """Return the file's path after its digest matches the recorded one.

    Raises:
        IntegrityError: the file is missing or its bytes differ.
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
    """Open a file that gets its name only when it is complete; see `replacing_path`."""
    with replacing_path(path) as temporary, open(temporary, "wb") as file:
        yield file


@contextmanager
def replacing_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; at the end fsync, rename, and fsync the folder.

    After an error the previous file is unchanged and nothing else is left.
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
        _read[_state(target)] = found  # the rename changed its status time
    fsync_folder(target.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that a killed `replacing` left; only where no other process writes."""
    for path in folder.iterdir():
        if LEFTOVER.fullmatch(path.name) and path.is_file():
            path.unlink()


def write_atomic(path: str | Path, content: bytes | str) -> FileRef:
    """Write a small file completely or not at all; see `replacing`."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return file_ref(path)
