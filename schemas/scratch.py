"""Temporary folders with a known owner: the next command removes abandoned ones, never used ones.

The owner holds the kernel's lock on the folder, which ends with its process, even when it is
killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SUFFIX = ".scratch"


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Create a temporary folder `.<prefix>-<8 letters>.scratch`; remove it at the end unless
    renamed.

    Args:
        parent: its parent folder; a later rename stays on one file system.
        prefix: first part of its name.
    """
    folder, handle = _owned(parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def remove_abandoned(*parents: Path) -> list[Path]:
    """Remove temporary folders whose process is gone, and return them."""
    removed = []
    for folder in (found for parent in parents for found in parent.glob(f".*{SUFFIX}")):
        with suppress(OSError):  # removed by another command, or of another user
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                removed.append(folder)
            finally:
                os.close(handle)
    return removed


def _owned(parent: Path, prefix: str) -> tuple[Path, int]:
    """Create a folder and lock it; return it with the handle that holds the lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{prefix}-", suffix=SUFFIX, dir=parent))
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # removed as abandoned before its lock was held
            continue
        # a file system without locks: no other process can lock it, so none removes it
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        if folder.exists():
            return folder, handle
        os.close(handle)
