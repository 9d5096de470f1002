"""A torch.profiler trace of a few declared steps on rank 0, for chrome://tracing or Perfetto.

RUN_DIR/profile/steps-00000011-00000015.json.gz the trace
RUN_DIR/profile/steps-00000011-00000015.txt its most expensive operations, also in train.log

The loop calls it once at the start and after each step. Without a declaration the second call
returns at once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from schemas.config import ProfileConfig
from schemas.digest import write_atomic
from schemas.errors import ConfigError
from training.distributed.parallel import Parallel

log = logging.getLogger("training")

FOLDER = "profile"
NUM_OPERATIONS = 20


class StepProfiler:
    """Trace the declared steps of this process, if it runs them all.

    Args:
        config: steps to trace; None = none.
        run_dir: gets the folder `profile`.
        parallel: only rank 0 traces.
        position: completed steps when this process starts.
        total_steps: steps of the run.
        allowed: called before each write; raises if this process may no longer write.

    Raises:
        ConfigError: the run ends before the declared steps do.
    """

    def __init__(
        self,
        config: ProfileConfig | None,
        run_dir: Path,
        parallel: Parallel,
        position: int,
        total_steps: int,
        allowed: Callable[[], None],
    ) -> None:
        self._profile: profile | None = None
        self._config = config if parallel.is_main else None
        self._folder, self._allowed = run_dir / FOLDER, allowed
        self._on_gpu = parallel.device.type == "cuda"
        if config is None:
            return
        if config.start + config.steps > total_steps:
            raise ConfigError(
                f"train.profile: steps {config.start + 1} to {config.start + config.steps} are"
                f" declared, but the run has {total_steps}; lower start or steps"
            )
        self.step(position)

    def step(self, made: int) -> None:
        """Begin or end the trace if it is due. Call after each step.

        Args:
            made: steps of the run so far.
        """
        if self._config is None:
            return
        if made == self._config.start:
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self._on_gpu
            self._profile = profile(activities=activities, record_shapes=True)
            self._profile.start()
        elif made == self._config.start + self._config.steps and self._profile is not None:
            self._profile.stop()
            self._write(self._profile, f"steps-{self._config.start + 1:08d}-{made:08d}")
            self._profile = self._config = None

    def _write(self, found: profile, name: str) -> None:
        self._allowed()
        self._folder.mkdir(parents=True, exist_ok=True)
        # torch compresses if the name ends in .gz
        trace, temporary = (self._folder / f"{name}.json.gz", self._folder / f".{name}.json.gz")
        found.export_chrome_trace(str(temporary))
        os.replace(temporary, trace)
        table = found.key_averages().table(
            sort_by="self_device_time_total" if self._on_gpu else "self_cpu_time_total",
            row_limit=NUM_OPERATIONS,
        )
        write_atomic(self._folder / f"{name}.txt", table)
        log.info("profile of %s in %s:\n%s", name, trace, table)
