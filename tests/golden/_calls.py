"""Call programs many times, each in a fork of one process that has loaded what is slow to load.

    python -m tests.golden._calls CALLS.json OUT.json

CALLS: {load: modules, calls: list of {program: "module:function", arguments, folder, variables}};
OUT: of each call its exit code and what it printed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def call(given: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Call a program in a fork; its exit code, standard output and standard error."""
    paths = [scratch / "stdout", scratch / "stderr"]
    child = os.fork()
    if child == 0:
        code = 70
        try:
            for number, path in enumerate(paths, start=1):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
            os.chdir(given["folder"])
            os.environ.clear()
            os.environ.update(given["variables"])
            code = _ended(given["program"], given["arguments"])
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {
        "code": code,
        "stdout": paths[0].read_text(errors="replace"),
        "stderr": paths[1].read_text(errors="replace"),
    }


def _ended(program: str, arguments: list[str]) -> int:
    """Exit code of a program that is called as the command `bulkhead` with these arguments."""
    module, _, name = program.partition(":")
    sys.argv = ["bulkhead", *arguments]
    sys.modules["__main__"].__package__ = ""  # else help names this module as the program
    try:
        ended = getattr(importlib.import_module(module), name)()
    except SystemExit as end:
        ended = end.code
    return ended if isinstance(ended, int) else int(ended is not None)


def run() -> None:
    """Read the calls, make them, write what came of them."""
    source, target = map(Path, sys.argv[1:])
    given = json.loads(source.read_text())
    for module in given["load"]:
        importlib.import_module(module)
    target.write_text(json.dumps([call(one, target.parent) for one in given["calls"]]))


if __name__ == "__main__":
    run()
