"""Runs with windows of series: on several ranks, elastic; they end in the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.distributed.test_bag_ranks import ELASTIC, TRAIN, outcome
from tests.training.windows.tables import COLUMNS, prepared_series, series

OPTIONS: dict[str, Any] = {
    "model": {"kind": "mlp", "hidden": [12], "dropout": 0.0},
    # Adam would divide the gradient of the keys' biases, which is zero but for rounding, by itself
    "optimizer": {"kind": "adamw", "lr": 0.01, "eps": 1e-3},
    "columns": COLUMNS | {"z": "numeric"},
}


def write_run(folder: Path, encoder: str, train: dict[str, Any]) -> None:
    own = {"kind": encoder, "width": 8, "size": 4, "dropout": 0.0}
    options = OPTIONS | ({"optimizer": {"kind": "sgd", "lr": 0.05}} if encoder == "gru" else {})
    run = prepared_series(folder, series(), {"encoder": own}, train=train, **options).run
    (folder / "resolved.json").write_text(run.model_dump_json())


@pytest.mark.long
@pytest.mark.req("T1")
@pytest.mark.parametrize("encoder", ["tcn", "gru", "transformer"])
def test_one_process_ddp_and_fsdp2_train_the_same_encoder(tmp_path: Path, encoder: str) -> None:
    found = {}
    for name, ranks, parallel in (("one", 1, "ddp"), ("ddp", 2, "ddp"), ("fsdp", 2, "fsdp")):
        train = TRAIN | {"parallel": parallel, "ranks": ranks}
        write_run(tmp_path / name / "run", encoder, train)
        found[name] = outcome(tmp_path / name, ranks)["run"]
    for name in ("ddp", "fsdp"):
        for kind in ("weights", "best"):
            np.testing.assert_allclose(found[name][kind], found["one"][kind], rtol=0, atol=1e-4)


@pytest.mark.long
@pytest.mark.req("C5")
def test_a_run_ends_in_the_same_bits_when_it_is_stopped_and_its_ranks_change(
    tmp_path: Path,
) -> None:
    for name in ("one", "changing"):
        write_run(tmp_path / name / "run", "gru", TRAIN | ELASTIC)
    one = outcome(tmp_path / "one", 1)["run"]
    outcome(tmp_path / "changing", 4, (3,), finish=False)
    outcome(tmp_path / "changing", 1, (7,), finish=False)
    changing = outcome(tmp_path / "changing", 2)["run"]
    assert changing["state"] == one["state"]
    assert changing["report"]["model_sha256"] == one["report"]["model_sha256"]
