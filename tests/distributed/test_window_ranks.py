"""Runs with windows of series: on several ranks, elastic; they end in the same bits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.same_runs import require_one_network, require_same_bits
from tests.training.windows.tables import COLUMNS, prepared_series, series

pytestmark = pytest.mark.long
OPTIONS: dict[str, Any] = {
    "model": {"kind": "mlp", "hidden": [12], "dropout": 0.0},
    "columns": COLUMNS | {"z": "numeric"},
}
SGD = {"kind": "sgd", "lr": 0.05}
# with its usual eps Adam would divide the gradient of the keys' biases, rounding alone, by itself
ADAM = {"kind": "adamw", "lr": 0.01, "eps": 1e-3}


def write(encoder: str, folder: Path, train: dict[str, Any]) -> None:
    own = {"kind": encoder, "width": 8, "size": 4, "dropout": 0.0}
    options = OPTIONS | {"optimizer": SGD if encoder == "gru" else ADAM}
    run = prepared_series(folder, series(), {"encoder": own}, train=train, **options).run
    (folder / "resolved.json").write_text(run.model_dump_json())


@pytest.mark.req("T1")
@pytest.mark.parametrize("encoder", ["tcn", "gru", "transformer"])
def test_one_process_ddp_and_fsdp2_train_the_same_encoder(tmp_path: Path, encoder: str) -> None:
    require_one_network(tmp_path, partial(write, encoder))


@pytest.mark.req("C5")
def test_a_run_ends_in_the_same_bits_when_it_is_stopped_and_its_ranks_change(
    tmp_path: Path,
) -> None:
    require_same_bits(tmp_path, partial(write, "gru"), (3, 7))
