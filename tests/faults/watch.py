"""Record of a process's actions while it handles untrusted bytes."""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

FORBIDDEN = (
    "pickle.find_class",
    "exec",
    "compile",
    "import",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "ctypes.dlopen",
)


@dataclass
class Seen:
    """`unpickled`: SHA-256 of each byte string given to the unpickler. `events`: forbidden audit
    events.
    """

    unpickled: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)


_watchers: list[Seen] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _watchers and event in FORBIDDEN:
        for watcher in _watchers:
            watcher.events.append(f"{event} {arguments!r}"[:300])


sys.addaudithook(_hook)


@contextmanager
def watched() -> Iterator[Seen]:
    """Record every byte string that reaches the unpickler, and everything that runs code, imports
    or starts a process.

    The unpickler only gets bytes in memory: a path would let it read what was not hashed.
    """
    seen, real = Seen(), torch.load

    def load(file: Any, *arguments: Any, **keywords: Any) -> Any:
        assert isinstance(file, io.BytesIO) and keywords.get("weights_only") is True, (
            "only verified bytes in memory, and only as plain values"
        )
        seen.unpickled.append(hashlib.sha256(file.getvalue()).hexdigest())
        return real(file, *arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "load", load)
        _watchers.append(seen)
        try:
            yield seen
        finally:
            _watchers.remove(seen)
