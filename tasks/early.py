"""Work that is begun before its turn, while something else waits: ranks, and imports."""

from __future__ import annotations

import gc
import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from schemas.members import has_members, members_of
from schemas.records import ValidatedTable
from tasks.context import RunContext
from tasks.stop import take
from training.launch.prestart import end_waiting, prestart
from training.run.record import SPEC
from training.run.result_files import member_folder
from training.uncollected import uncollected

# of the typed table: the preparation of a larger one takes so long that start-up is nothing next to
# it, and needs the memory
MOST_BYTES = 200_000_000
# what the steps after training import; torch where preflight was reused
AFTER_TRAINING = (
    "training.evaluation.evaluate",
    "training.evaluation.finish",
    "training.serving.export",
    "training.registry.compare_champion",
    "training.registry.registry",
    "training.registry.evidence",
    "training.registry.promotion",
    "training.report.page",
    "training.report.checklist",
    "sklearn.ensemble",
    "sklearn.linear_model",
    "mlflow.pyfunc",
    "matplotlib.figure",
    "matplotlib.backends.backend_svg",
)


@contextmanager
def early_ranks(run: RunContext) -> Iterator[Callable[[ValidatedTable], None]]:
    """Yield a function that starts the run's first ranks, which import and wait for their inputs.

    At the end of the block those that were not needed are ended, e.g. after a refusal.
    """
    with ending_early_ranks():
        yield lambda validated: start_ranks(run, validated, 1)


@contextmanager
def ending_early_ranks() -> Iterator[None]:
    """End the ranks that still wait at the end of the block; a second signal does not stop that."""
    try:
        yield
    except BaseException:
        take()  # else the same signal is raised again while the ranks end
        raise
    finally:
        end_waiting()


def start_ranks(run: RunContext, validated: ValidatedTable, number: int) -> None:
    """Start the ranks of a run, or of its member with a number from 1, unless they have started."""
    if validated.table.file.num_bytes > MOST_BYTES:
        return
    declaration, folder = run.declaration, run.run_dir
    if has_members(declaration):
        members = members_of(declaration)
        if number > len(members):
            return
        declaration, folder = members[number - 1], member_folder(run.run_dir, number)
    if not (folder / SPEC).exists():
        prestart(folder, declaration.train, declaration.model.kind)


@contextmanager
def importing_later() -> Iterator[None]:
    """Import what follows training, in a thread, while the block waits for the ranks."""
    thread = threading.Thread(target=_import_all, name="imports", daemon=True)
    thread.start()
    yield
    thread.join()  # not after an error: then nothing follows
    gc.freeze()  # what is loaded stays: scanning it repeatedly takes a sixth of the time


def _import_all() -> None:
    with uncollected():
        for name in AFTER_TRAINING:
            with suppress(Exception):  # where it is used, the error has a place
                importlib.import_module(name)
