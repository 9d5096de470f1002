"""Tensors with an encoder of their own: vectors before the body, summaries for trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from schemas.encoder_config import CnnEncoder
from schemas.errors import ConfigError
from schemas.load import declare
from tests.subset import some
from tests.training.kind_cases import Prepared, evaluated, exported, prepared, served
from tests.training.kind_runs import require_exact_resume, require_preflight
from training.boosting.tree_inputs import matrix, num_columns
from training.boosting.tree_run import fit_trees
from training.data.arrays.shards import load_arrays
from training.evaluation.feature_frame import column_names
from training.models.build import build_model
from training.models.encoders import build_encoder, summary
from training.optim.depth import parameter_depths
from training.serving.export import export_model

ENCODER = {"kind": "cnn", "channels": [4], "size": 5}
COLUMNS: dict[str, Any] = {
    "row": "id",
    "y": "label",
    "scan": {"kind": "tensor", "shape": [10, 9], "encoder": ENCODER},
    "other": {"kind": "tensor", "shape": [3]},
    "ward": "categorical",
    "x": "numeric",
}
KINDS: dict[str, Any] = {
    "realmlp": {"hidden": [8]},
    "mlp": {"hidden": [8]},
    "tabm": {"width": 8, "members": 2},
    "linear": {},
    "ft_transformer": {"width": 8, "depth": 1, "heads": 2},
}
TRAIN = {"epochs": 3, "batch_size": 16, "micro_batch_size": 6, "checkpoint_every": 4, "threads": 1}


def rows(count: int = 160) -> pd.DataFrame:
    """Rows with a picture of 10 x 9, bright where the label is 1, a tensor, and plain columns."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, count)
    scans = rng.integers(0, 200, (count, 90)) + 55 * y[:, None]
    return pd.DataFrame(
        {
            "row": [f"r{i:03d}" for i in range(count)],
            "y": y,
            "scan": list(scans.astype(np.uint8)),
            "other": list(rng.normal(size=(count, 3)).astype(np.float32)),
            "ward": rng.choice(["a", "b", "c"], count),
            "x": rng.normal(size=count).round(3),
        }
    )


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared(tmp_path_factory.mktemp("encoders"), rows(), COLUMNS)


@pytest.mark.parametrize("kind", some(KINDS, len(KINDS)))
def test_the_exported_model_takes_raw_tensors(case: Prepared, tmp_path: Path, kind: str) -> None:
    declaration = case.run.declaration | {"model": {"kind": kind} | KINDS[kind]}
    run = case.run.model_copy(
        update={"declaration": declare(declaration).model_dump(mode="json", by_alias=True)}
    )
    own = case._replace(run=run, declaration=declare(run.declaration))
    model, weights = exported(own, tmp_path)
    assert model.parity < 1e-6
    wanted = evaluated(own, weights, "test")
    raw = rows().set_index("row").loc[list(wanted)]
    np.testing.assert_allclose(served(model, raw), list(wanted.values()), atol=1e-12)


def test_every_value_of_the_tensor_reaches_the_scores(case: Prepared) -> None:
    network = build_model(case.declaration, case.run.statistics).eval()
    arrays = load_arrays(case.run.arrays.train)
    batch = {key: torch.tensor(np.array(arrays[key][:8])) for key in network.shape.keys}
    scan = batch["tensor_scan"] = batch["tensor_scan"].float().requires_grad_()
    network(batch).sum().backward()
    assert scan.grad is not None and bool((scan.grad != 0).all())


def test_trees_get_averages_of_patches(case: Prepared) -> None:
    picture = torch.arange(2 * 3 * 20 * 16, dtype=torch.uint8).reshape(2, 3, 20, 16)
    found = summary(CnnEncoder(), picture)
    padded = torch.nn.functional.pad(picture.float(), (0, 0, 0, 1))
    wanted = torch.nn.functional.avg_pool2d(padded, (3, 2)).flatten(1)
    torch.testing.assert_close(found, wanted)
    statistics = case.run.statistics
    inputs = matrix(statistics, load_arrays(case.run.arrays.train))
    assert inputs.shape[1] == num_columns(statistics) == len(column_names(statistics))
    assert num_columns(statistics) == 1 + 5 * 5 + 3 + 1


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"x": {"encoder": ENCODER}}, "encoder is for kinds tensor"),
        (
            {"scan": {"kind": "tensor", "shape": [10, 9], "encoder": {"kind": "vit"}}},
            "kind: expected one of cnn, resnet",
        ),
        ({"scan": {"kind": "tensor", "shape": [90], "encoder": ENCODER}}, "needs shape .height"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, column: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        case = prepared(tmp_path, rows(), COLUMNS | column)
        build_model(case.declaration, case.run.statistics)


def test_the_layers_of_an_encoder_are_the_lowest(case: Prepared) -> None:
    network = build_model(case.declaration, case.run.statistics)
    depths = parameter_depths(network)
    assert {depths[p] for p in network.encoders.parameters()} == {0} and max(depths.values()) > 0


def encoded_run(folder: Path, **sections: Any) -> Any:
    run = prepared(folder, rows(), COLUMNS, **sections).run
    (folder / "resolved.json").write_text(run.model_dump_json())
    return run


@pytest.mark.long
@pytest.mark.req("C5")
def test_a_run_stopped_and_resumed_ends_in_the_same_bits(tmp_path: Path) -> None:
    encoded_run(tmp_path, train=TRAIN)
    require_exact_resume(tmp_path)


@pytest.mark.long
@pytest.mark.req("M4")
@pytest.mark.parametrize("kind", [*KINDS, "boosting"])
def test_the_preflight_passes(tmp_path: Path, kind: str) -> None:
    options = {} if kind in ("linear", "boosting") else KINDS[kind]
    options = {n: v for n, v in options.items() if n not in ("hidden", "width", "members")}
    run = encoded_run(tmp_path, model={"kind": kind, **options}, train=TRAIN | {"clip": "none"})
    require_preflight(run)


@pytest.mark.long
def test_boosting_takes_the_summary_and_serves_raw_rows(tmp_path: Path) -> None:
    case = prepared(tmp_path, rows(), COLUMNS, model={"kind": "boosting"})
    weights = Path(fit_trees(case.run, tmp_path / "run").best_checkpoint.path)
    assert export_model(case.run, weights, tmp_path / "model", case.split.val).parity < 1e-6


def test_an_encoder_that_cannot_read_a_shape_says_so() -> None:
    with pytest.raises(ConfigError, match="encoder cnn needs shape"):
        build_encoder(CnnEncoder(), "tensor_scan", (4,))
