"""Train one run.

    torchrun --nproc-per-node R -m training.main --config resolved.json --run-dir DIR

There are no other flags: `resolved.json` (a RunSpec) has every setting. Restarted on the same run
directory, it continues where it was. SIGTERM or SIGINT ends it at the next step boundary with a
checkpoint and exit code 0 (during startup at once, as nothing is lost). The result is `result.json`
in the run directory. A failure's cause goes to TORCHELASTIC_ERROR_FILE, where torchrun's parent
reads it, and to standard error.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

from schemas.errors import BulkheadError, ConfigError, IntegrityError, TrainingError
from schemas.load import declare
from schemas.records import RunSpec
from schemas.seal import read_record
from training.launch.stop_signal import AGENT, StopSignal, follow_parent


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m training.main", description="Train one run from its resolved declaration."
    )
    parser.add_argument("--config", type=Path, required=True, help="resolved.json")
    parser.add_argument(
        "--run-dir", type=Path, required=True, help="where checkpoints, metrics and the result go"
    )
    options = parser.parse_args(arguments)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        os.environ.setdefault(AGENT, str(os.getppid()))  # under a plain torchrun
    follow_parent(AGENT)
    stop = StopSignal().install_when_ready()
    # loading torch creates a million objects that stay: scanning them repeatedly takes a tenth of
    # the time
    gc.disable()
    from torch.distributed.elastic.multiprocessing.errors import record

    # The group closes after the failure was recorded: peers fail when it closes, and the earliest
    # failure is reported.
    with ExitStack() as stack:
        record(_run)(options.config, options.run_dir, stop, stack)
    return 0


def _run(config: Path, run_dir: Path, stop: StopSignal, stack: ExitStack) -> None:
    from training.checkpoint.commit import full_disk
    from training.distributed.parallel import Parallel
    from training.engine.trainer import train
    from training.launch.prestart import wait_to_begin

    wait_to_begin()
    gc.freeze()
    gc.enable()
    spec = read_spec(config)
    parallel = stack.enter_context(
        Parallel.open(declare(spec.declaration, str(config)).train.device)
    )
    logging.basicConfig(
        level=logging.INFO if parallel.is_main else logging.ERROR,
        format="%(asctime)s %(message)s",
        stream=sys.stdout,
    )
    try:
        train(spec, run_dir.absolute(), parallel, stop)
    except Exception as error:
        parallel.let_the_cause_be_first(error)
        refusal = full_disk(error)
        if refusal is None or isinstance(error, BulkheadError):
            raise
        raise TrainingError(
            f"{refusal.filename or run_dir}: {refusal.strerror}"
            f" ({shutil.disk_usage(run_dir).free:,} bytes are free); free space, then start again:"
            " training goes on from the newest checkpoint"
        ) from error


def read_spec(path: Path) -> RunSpec:
    """Return the run that a `resolved.json` describes.

    Raises:
        ConfigError: the file cannot be read, is not a RunSpec, or does not match its seal; a file
            written by hand has none.
    """
    try:
        return read_record(path, RunSpec, "write it with `bulkhead run`", required=False)
    except (OSError, IntegrityError) as error:
        raise ConfigError(f"{path}: expected a resolved run (RunSpec as JSON): {error}") from error


if __name__ == "__main__":
    sys.exit(main())
