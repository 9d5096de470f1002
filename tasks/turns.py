"""One run of a model at a time, whichever deployments ask for it.

Prefect's limits count by deployment or by queue; a form may name any declaration. So flow runs of
workers, and whatever may register a model, take turns on a lock of the model in the home they
share. The lock goes with its process, however that ends.
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
    """Hold a model's turn: wait for it, or, in a person's run that registers nothing, only say that
    another is at work.

    Args:
        name: of the model.
        registers: whether the run may register a version. Of two at once the second would be
            compared with a champion that is replaced meanwhile.
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
