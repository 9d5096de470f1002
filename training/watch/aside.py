"""Trying something beside the program, which goes on as if nothing had been tried."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from training.watch.record import Watch


@contextmanager
def aside(watch: Watch) -> Iterator[None]:
    """Nothing inside is listened to, and the generators of numbers are left as they were."""
    python, numbers = random.getstate(), np.random.get_state()
    try:
        with watch.unwatched(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)
