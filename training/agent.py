"""The torchrun agent, which ends with the process that launched it.

    python -m training.agent --nproc-per-node 2 --rdzv-backend c10d … -m training.main --config
    resolved.json --run-dir DIR

It is torchrun, with torchrun's arguments and two differences. When the launcher ends in any way,
the agent asks its ranks to save and stop. After the grace period nothing of the run is left. The
launcher's process id is in BULKHEAD_LAUNCHER; without it the agent follows no process. The second:
it removes the folder of its ranks' error files, which torchrun leaves in the system's temporary
folder.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path

from schemas.scratch import scratch_folder
from training.launch.stop_signal import AGENT, LAUNCHER, follow_parent

RANK_GRACE_SECONDS = 15  # for a checkpoint at the step boundary, before the agent kills its ranks


def main(arguments: list[str] | None = None) -> None:
    """Run torchrun with these arguments, or those of the command line."""
    follow_parent(LAUNCHER)
    os.environ[AGENT] = str(os.getpid())
    # loading torch creates a million objects that stay: scanning them repeatedly takes a tenth of
    # the time
    gc.disable()
    from torch.distributed.run import get_args_parser
    from torch.distributed.run import main as torchrun

    gc.freeze()
    gc.enable()
    given = sys.argv[1:] if arguments is None else arguments
    with scratch_folder(Path(tempfile.gettempdir()), "bulkhead-agent") as causes:
        torchrun(["--log-dir", str(causes), *with_known(given, get_args_parser())])


def with_known(arguments: list[str], parser: ArgumentParser) -> list[str]:
    """Return the arguments, after those of our options that this torchrun knows (2.11 has no
    `--shutdown-timeout`, and gives ranks 30 s).
    """
    known = parser._option_string_actions  # argparse has no public list of its options
    return [
        *(["--shutdown-timeout", str(RANK_GRACE_SECONDS)] if "--shutdown-timeout" in known else []),
        *arguments,
    ]


if __name__ == "__main__":
    main()
