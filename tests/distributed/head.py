"""First machine of `bulkhead run`, without the flow: announce, start, wait, name the cause.

python -m tests.distributed.head RUN_DIR
"""

from __future__ import annotations

import sys
from pathlib import Path

from schemas.load import declare
from training.launch.nodes import announce, withdraw
from training.launch.torchrun import failure, forget_causes, start
from training.main import read_spec


def main() -> int:
    """Run the training of this machine; return its exit code."""
    run_dir = Path(sys.argv[1])
    spec = read_spec(run_dir / "resolved.json")
    train = declare(spec.declaration).train
    forget_causes(run_dir)
    node = announce(run_dir, train, spec.run_id)
    try:
        code = start(run_dir, train, node).wait()
    finally:
        withdraw(run_dir)
    if code:
        error = failure(run_dir, code, train.nodes)
        print(f"{type(error).__name__}: {error}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
