"""Output of a command: an error as its sentence and exit code, JSON on standard output."""

from __future__ import annotations

import errno
import json
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import typer

from schemas.errors import BulkheadError, ConfigError, shortened
from schemas.home import home
from tasks.stop import reason, say_stopped

ROOT = Path(__file__).resolve().parents[2]
MOST_CHARACTERS = 10_000  # most characters of an error in the terminal
STORAGE = {
    errno.ENOSPC: (
        "the disk is full; free some space, or let BULKHEAD_HOME name a folder of a larger one"
    ),
    errno.EDQUOT: (
        "the quota of the disk is used up; free some space, or let BULKHEAD_HOME name a folder"
        " elsewhere"
    ),
    errno.EFBIG: (
        "a file would be larger than its file system or this user's limit (ulimit -f) allows; raise"
        " it, or let BULKHEAD_HOME name a folder elsewhere"
    ),
    errno.EROFS: (
        "the file system cannot be written to; let BULKHEAD_HOME name a folder of another one"
    ),
    errno.EMFILE: (
        "too many files are open at once for this shell; raise its limit, e.g. ulimit -n 1024"
    ),
    errno.ENFILE: "too many files are open at once on this machine; end other programs",
    errno.ENOMEM: "memory ran out; free some, or raise the limit of this shell (ulimit -v)",
    errno.ENAMETOOLONG: "a name is longer than the file system allows; give a shorter path",
    errno.EACCES: (
        "a file or folder is not permitted to this user; change its rights, or let BULKHEAD_HOME"
        " name a folder of this user"
    ),
}
# characters that JSON leaves as they are, and that a terminal takes as commands
CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
FULL_BYTES = 2_000_000  # less free space than this explains a database error


@contextmanager
def stated_errors(debug: bool = False) -> Iterator[None]:
    """Turn an error into its sentence and exit code: a stated one, one of the machine, or a bug."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, typer.Exit | typer.Abort | SystemExit):
            raise
        if reason() or isinstance(error, KeyboardInterrupt):
            raise typer.Exit(say_stopped()) from None
        if debug or not isinstance(error, Exception):
            raise
        if isinstance(error, BrokenPipeError):  # the reader, e.g. head, has seen enough
            raise typer.Exit(1) from None
        with suppress(OSError):  # standard error may be what failed
            print(f"\n✗ {shortened(told(error), MOST_CHARACTERS, plain=True)}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None


def storage_refusal(error: BaseException) -> OSError | None:
    """Return the storage failure behind an error; None if it has another cause.

    On a full disk Prefect and MLflow fail with their own errors (an HTTP status, SQLite's "database
    or disk is full"), so the free space is checked.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in STORAGE:
            return cause
        cause = cause.__cause__ or cause.__context__
    place = home()
    if isinstance(error, OSError) or (free := shutil.disk_usage(place).free) >= FULL_BYTES:
        return None
    return OSError(
        errno.ENOSPC,
        f"{free:,} bytes are free; what was saved stays, and `bulkhead resume` goes on from there",
        str(place),
    )


def told(error: Exception) -> str:
    """Return the sentence of an error; for an unexpected one, also its place and a request to
    report it.
    """
    if isinstance(error, BulkheadError):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError):
        return (
            "memory ran out; free some, raise the limit of this shell (ulimit -v), or set"
            " data.memory_limit"
        )
    refusal = storage_refusal(error)
    if refusal is not None:
        where = f" ({refusal.filename})" if refusal.filename else ""
        return f"{STORAGE[refusal.errno or 0]}{where}: {refusal.strerror}"
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if Path(f.filename).is_relative_to(ROOT) and "site-packages" not in f.filename
    ]
    where = (
        f" at {Path(frames[-1].filename).relative_to(ROOT)}:{frames[-1].lineno}" if frames else ""
    )
    cause = " ".join(str(error).split()) or "no message"
    return (
        f"unexpected: {type(error).__name__}{where}: {shortened(cause, 500, plain=True)}; please"
        " report it; --debug shows the traceback"
    )


def print_json(value: Any) -> None:
    """Print a value as JSON, for scripts."""
    # an ASCII terminal could not show other characters
    plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    text = json.dumps(value, indent=2, ensure_ascii=plain, default=str)
    print(text.translate(CONTROLS))
