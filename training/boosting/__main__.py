"""Fit one run of `model.kind: boosting`.

    python -m training.boosting --config resolved.json --run-dir DIR

Like `training.main`, without ranks: restarted on the same run directory it fits again, or returns
the result of a finished run. SIGTERM or SIGINT ends it at once; nothing half-written is left. A
failure's cause goes to TORCHELASTIC_ERROR_FILE and to standard error.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
from pathlib import Path

from training.launch.stop_signal import LAUNCHER, StopSignal, follow_parent


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m training.boosting", description="Fit one run from its resolved declaration."
    )
    parser.add_argument("--config", type=Path, required=True, help="resolved.json")
    parser.add_argument(
        "--run-dir", type=Path, required=True, help="where the trees, metrics and the result go"
    )
    options = parser.parse_args(arguments)
    follow_parent(LAUNCHER)
    StopSignal().install_when_ready()  # nothing to save before the end: signals end it
    gc.disable()  # as in training.main: what is loaded stays
    from torch.distributed.elastic.multiprocessing.errors import record

    record(_fit)(options.config, options.run_dir)
    return 0


def _fit(config: Path, run_dir: Path) -> None:
    from training.boosting.tree_run import fit_trees
    from training.launch.prestart import wait_to_begin
    from training.main import read_spec

    wait_to_begin()
    gc.freeze()
    gc.enable()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    fit_trees(read_spec(config), run_dir.absolute())


if __name__ == "__main__":
    sys.exit(main())
