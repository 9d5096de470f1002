"""Runs with pictures on several ranks, killed and elastic: they end in the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.distributed.test_bag_ranks import ELASTIC, REALMLP, TRAIN, outcome
from tests.training.picture_cases import picture_rows, picture_run


@pytest.mark.long
@pytest.mark.req("T1")
def test_one_process_ddp_and_fsdp2_train_the_same_encoders(tmp_path: Path) -> None:
    found = {}
    for name, ranks, parallel in (("one", 1, "ddp"), ("ddp", 2, "ddp"), ("fsdp", 2, "fsdp")):
        folder = tmp_path / name / "run"
        train = TRAIN | {"parallel": parallel, "ranks": ranks}
        picture_run(folder, picture_rows(folder, nulls=12), **REALMLP, train=train)
        found[name] = outcome(tmp_path / name, ranks)["run"]
    for name in ("ddp", "fsdp"):
        for kind in ("weights", "best"):
            np.testing.assert_allclose(found[name][kind], found["one"][kind], rtol=0, atol=1e-4)


@pytest.mark.long
@pytest.mark.req("C5")
def test_a_run_ends_in_the_same_bits_when_it_is_stopped_and_its_ranks_change(
    tmp_path: Path,
) -> None:
    train = TRAIN | ELASTIC | {"augment": {"flip": True, "shift": 1}}
    for name in ("one", "changing"):
        folder = tmp_path / name / "run"
        picture_run(folder, picture_rows(folder, nulls=12), **REALMLP, train=train)
    one = outcome(tmp_path / "one", 1)["run"]
    outcome(tmp_path / "changing", 4, (3,), finish=False)
    outcome(tmp_path / "changing", 1, (9,), finish=False)
    changing = outcome(tmp_path / "changing", 2)["run"]
    assert changing["state"] == one["state"]
