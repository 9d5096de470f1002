"""Watches many programs, each in a child of a process that has loaded torch once: `python -m
tests.training.watch.forking FOLDER`.

For each `NAME.py` of the folder `NAME.json` is what the watch reports.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401  (the first optimizer would load it, in every child)

from training.watch.main import one_rank, watch

SECONDS = 60.0


def main() -> None:
    """Watch every program of a folder."""
    for program in sorted(Path(sys.argv[1]).glob("*.py")):
        child = os.fork()
        if not child:
            one_rank(program)
            told = watch(program, [], SECONDS)
            program.with_suffix(".json").write_text(json.dumps(told))
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
