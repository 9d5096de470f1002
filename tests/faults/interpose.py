"""Count a process's operations on files, and kill it at the n-th, half done if it has halves."""

from __future__ import annotations

import builtins
import io
import os
import signal
from collections.abc import Callable
from typing import Any

CALLS = (
    "fsync",
    "rename",
    "replace",
    "unlink",
    "remove",
    "rmdir",
    "mkdir",
    "chmod",
    "ftruncate",
    "pwrite",
)


class Interposer:
    """Count writes to files, and system calls that change files or make them durable, once
    installed.

    Args:
        fatal: the operation at which this process kills itself with SIGKILL; 0 = never. A write
            writes half of its bytes first; anything else is not done.
    """

    def __init__(self, fatal: int = 0) -> None:
        self.fatal, self.names = fatal, list[str]()

    def install(self) -> Interposer:
        """Install the counter for the life of this process."""
        for name in CALLS:
            setattr(os, name, self._around(name, getattr(os, name)))
        io.open = builtins.open = self._open  # os.fdopen and pathlib look it up in io
        return self

    def count(self, name: str, half: Callable[[], object] = lambda: None) -> None:
        """Count one more operation, perhaps the last one."""
        self.names.append(name)
        if len(self.names) == self.fatal:
            half()
            os.kill(os.getpid(), signal.SIGKILL)

    def _around(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            self.count(name)
            return real(*arguments, **keywords)

        return call

    def _open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        *arguments: Any,
        **keywords: Any,
    ) -> Any:
        if not set(mode) & set("wax+"):
            return _real_open(file, mode, buffering, encoding, *arguments, **keywords)
        self.count("open")
        raw = _Raw(self, file, mode.replace("b", "").replace("t", ""))
        buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding=encoding or "utf-8")


_real_open = builtins.open


class _Raw(io.FileIO):
    def __init__(self, interposer: Interposer, file: Any, mode: str) -> None:
        super().__init__(file, mode)
        self.interposer = interposer

    def write(self, data: Any) -> int:
        """Write and count; at the fatal operation write half and die."""
        view = memoryview(data)
        self.interposer.count("write", lambda: super(_Raw, self).write(view[: view.nbytes // 2]))
        return super().write(data)
