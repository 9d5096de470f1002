"""Temporary folders whose owner is known: what a kill left behind is removed by the next command,
what is in use never.

The owner holds the kernel's lock of the folder itself, which ends with its process, however that
ends.
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
    """A temporary folder `.<prefix>-<8 letters>.scratch`; removed at the end, where it was not
    renamed.

    Args:
        parent: where it is made, so that a rename stays on one file system.
        prefix: first part of its name.
    """
    folder, handle = _owned(parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def remove_abandoned(*parents: Path) -> list[Path]:
    """Remove the temporary folders whose process is gone; the folders that were removed."""
    removed = []
    for folder in (found for parent in parents for found in parent.glob(f".*{SUFFIX}")):
        with suppress(OSError):  # removed by another command meanwhile, or of another user
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                removed.append(folder)
            finally:
                os.close(handle)
    return removed


def _owned(parent: Path, prefix: str) -> tuple[Path, int]:
    """A new folder and the handle that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{prefix}-", suffix=SUFFIX, dir=parent))
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # taken for abandoned before its lock was held
            continue
        # a file system without locks: nobody else can lock the folder either, so it is left alone
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        if folder.exists():
            return folder, handle
        os.close(handle)
