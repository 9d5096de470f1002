"""One run of a model at a time, from any deployment.

Prefect's limits count by deployment or by queue, but a form may name any declaration. Therefore
flow runs of workers, and runs that may register a model, lock the model in their shared home. The
lock ends with its process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from schemas.home import home
from tasks.say import say
from training.run.record import locked

POLL_SECONDS, TELL_SECONDS = 1.0, 600.0


@contextmanager
def turn(name: str, registers: bool) -> Iterator[None]:
    """Hold a model's turn: wait for it, or, in a person's run that registers nothing, only report
    another run.

    Args:
        name: name of the model.
        registers: the run may register a version. Of two at once, the second would be compared with
            a champion that is being replaced.
    """
    folder = home() / "locks"
    folder.mkdir(exist_ok=True)
    with open(folder / f"run-{name}.lock", "a+", errors="replace") as file:
        told = -TELL_SECONDS
        while not locked(file.fileno()):
            file.seek(0)
            other = f"another run of {name} is at work (process {file.read().strip() or 'unknown'})"
            if not registers and not os.environ.get("PREFECT__FLOW_RUN_ID"):
                say("run", f"{other}; both go on, as this one registers nothing", "warn")
                yield
                return
            if time.monotonic() - told >= TELL_SECONDS:
                told = time.monotonic()
                say(
                    "run",
                    f"{other}; this one waits for its end, and can be cancelled at any time",
                    "warn",
                )
            time.sleep(POLL_SECONDS)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
