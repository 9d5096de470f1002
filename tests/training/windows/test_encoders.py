"""Encoders of windows: each row for itself, causal, masked; trees get statistics of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from schemas.errors import ConfigError
from schemas.load import declare
from schemas.records import ExportedModel
from schemas.series_config import GruEncoder, TcnEncoder
from schemas.transformer_config import TransformerEncoder
from tests.training.kind_cases import Prepared, evaluated, exported, served
from tests.training.kind_runs import require_exact_resume, require_preflight
from tests.training.windows.tables import COLUMNS, prepared_series, series
from training.boosting.tree_inputs import matrix, num_columns
from training.boosting.tree_run import fit_trees
from training.data.arrays.shards import load_arrays
from training.evaluation.feature_frame import column_names
from training.models.build import build_model
from training.models.series_encoders import (
    Gru,
    build_series_encoder,
    series_summary,
    summary_columns,
)
from training.serving import serving
from training.serving.export import export_model
from training.serving.signature import input_example, input_types

SMALL: dict[str, Any] = {"width": 8, "size": 5, "dropout": 0.0}
ENCODERS = {
    "tcn": TcnEncoder(**SMALL),
    "gru": GruEncoder(**SMALL, depth=2),
    "transformer": TransformerEncoder(**SMALL, heads=2),
}
KINDS: dict[str, Any] = {
    "mlp": {"hidden": [8]},
    "realmlp": {"hidden": [8]},
    "tabm": {"width": 8, "members": 2},
    "linear": {},
    "ft_transformer": {"width": 8, "depth": 1, "heads": 2},
}
CASES = [(encoder, "mlp") for encoder in ENCODERS] + [("tcn", kind) for kind in KINDS]
TRAIN = {"epochs": 3, "batch_size": 16, "micro_batch_size": 6, "checkpoint_every": 4, "threads": 1}


def windows(rows: int = 6, channels: int = 2, length: int = 12, seed: int = 0) -> Tensor:
    """Scaled windows with unknown steps at their beginning and between."""
    torch.manual_seed(seed)
    known = torch.rand(rows, channels, length) > 0.2
    known[:, :, -1] = True
    known[0, :, :5] = False
    values = torch.where(known, torch.randn(rows, channels, length), 0.0)
    return torch.cat([values, known.float()], dim=1)


@pytest.mark.parametrize("kind", ENCODERS)
def test_each_row_is_for_itself_and_every_known_step_counts(kind: str) -> None:
    network = build_series_encoder(ENCODERS[kind], (4, 12)).double().eval()
    batch = windows().double().requires_grad_()
    vectors = network(batch)
    assert vectors.shape == (6, 5)
    alone = torch.cat([network(row[None]) for row in batch])
    torch.testing.assert_close(vectors, alone, rtol=0, atol=1e-12)
    vectors.square().sum().backward()
    values, known = batch.grad[:, :2], batch.detach()[:, 2:] > 0  # type: ignore[index]
    assert bool((values[known] != 0).all())


def test_a_gru_gives_what_torch_gives() -> None:
    network = build_series_encoder(ENCODERS["gru"], (4, 12)).eval()
    assert isinstance(network, Gru)
    torch.manual_seed(1)
    reference = torch.nn.GRU(4, 8, num_layers=2, batch_first=True)
    for layer, (reads, hears) in enumerate(zip(network.reads, network.hears, strict=True)):
        for part, name in ((reads, "ih"), (hears, "hh")):
            part.weight.data = getattr(reference, f"weight_{name}_l{layer}").data
            part.bias.data = getattr(reference, f"bias_{name}_l{layer}").data
    batch = windows()
    wanted = network.out(reference(batch.transpose(1, 2))[0][:, -1])
    torch.testing.assert_close(network(batch), wanted)


def test_the_convolutions_see_the_whole_window_and_no_later_step() -> None:
    network = build_series_encoder(TcnEncoder(**SMALL), (4, 40)).double()
    steps = torch.randn(2, 40, 8, dtype=torch.float64, requires_grad=True)
    x = steps
    for block in network.blocks:
        x = block(x)
    (early,) = torch.autograd.grad(x[:, 20].sum(), steps, retain_graph=True)
    assert not early[:, 21:].any() and bool(early[:, 20].any())
    (last,) = torch.autograd.grad(x[:, -1].sum(), steps)
    assert bool(last[:, 0].any())


def test_a_window_without_any_known_step_is_finite() -> None:
    for config in ENCODERS.values():
        assert build_series_encoder(config, (4, 12))(torch.zeros(2, 4, 12)).isfinite().all()
    assert not series_summary(torch.zeros(2, 4, 12)).any()


def test_the_summary_is_that_of_pandas_over_known_steps() -> None:
    batch = windows(rows=8, seed=3)
    found = series_summary(batch).reshape(8, 2, -1)
    names = summary_columns(("a", "b"), 12)
    assert found.shape[2] * 2 == len(names) and len(set(names)) == len(names)
    for row in range(8):
        for channel in range(2):
            values, known = batch[row, channel].numpy(), batch[row, 2 + channel].numpy() > 0
            wanted = [values[known][-1], values[known][-1] - values[known][-2], known.mean()]
            for begin in (0, 9):
                own, times = values[begin:][known[begin:]], np.flatnonzero(known[begin:])
                slope = np.polyfit(times, own, 1)[0] if len(own) > 1 else 0.0
                wanted += [own.mean(), own.std(), own.min(), own.max(), slope]
            np.testing.assert_allclose(found[row, channel], wanted, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared_series(tmp_path_factory.mktemp("encoders"), series())


def of(case: Prepared, encoder: str, kind: str) -> Prepared:
    """The case with another encoder and another body."""
    tree = case.run.declaration | {"model": {"kind": kind} | KINDS[kind]}
    tree["data"]["windows"]["past"]["encoder"] = ENCODERS[encoder].model_dump(mode="json")
    declaration = declare(tree)
    (stats,) = case.run.statistics.tensor
    own = declaration.data.windows["past"].encoder
    statistics = case.run.statistics.model_copy(
        update={"tensor": (stats.model_copy(update={"encoder": own}),)}
    )
    dumped = declaration.model_dump(mode="json", by_alias=True)
    run = case.run.model_copy(update={"declaration": dumped, "statistics": statistics})
    return case._replace(run=run, declaration=declaration)


@pytest.mark.long
@pytest.mark.parametrize(("encoder", "kind"), CASES)
def test_every_kind_is_exported_and_takes_rows_with_their_history(
    case: Prepared, tmp_path: Path, encoder: str, kind: str
) -> None:
    own = of(case, encoder, kind)
    require_answers(own, *exported(own, tmp_path))


def require_answers(case: Prepared, model: ExportedModel, weights: Path) -> None:
    """All rows of the table as one frame get the scores that evaluation gave the test rows."""
    assert model.parity < 1e-6
    wanted, frame = evaluated(case, weights, "test"), series()
    answers = dict(zip(frame["row"], served(model, frame), strict=True))
    np.testing.assert_allclose([answers[row] for row in wanted], list(wanted.values()), atol=1e-12)


def test_the_exported_model_takes_rows_with_their_history_or_windows(
    case: Prepared, tmp_path: Path
) -> None:
    model, weights = exported(case, tmp_path)
    require_answers(case, model, weights)
    spec = serving.read_spec(model.spec.path)
    wanted = evaluated(case, weights, "test")
    frame = series().set_index("row").sort_values("at")
    row = next(iter(wanted))
    past = frame[(frame["unit"] == frame["unit"][row]) & (frame["at"] <= frame["at"][row])][-5:]
    steps = past[["x", "z"]].astype(object).where(past[["x", "z"]].notna(), None).to_numpy()
    one = frame.loc[[row], ["x"]].assign(past=[steps.tolist()])
    np.testing.assert_allclose(served(model, one), wanted[row], atol=1e-12)
    with pytest.raises(ValueError, match="missing columns: 'unit', 'at', 'z'"):
        served(model, frame[["x"]])
    with pytest.raises(ValueError, match="'past': expected a list of steps, oldest first"):
        served(model, one.assign(past=[[[1.0]]]))
    with pytest.raises(ValueError, match="a moment that its series has twice in 1 rows"):
        served(model, pd.concat([frame, frame[:1]]))
    with pytest.raises(ValueError, match="'z': something else than numbers"):
        served(model, frame.assign(z="high"))
    served(model, input_example(spec))
    assert input_types(spec)["past"].startswith("5 steps of [x, z], or in the place of it")


def test_trees_get_statistics_of_the_window(case: Prepared) -> None:
    statistics = case.run.statistics
    inputs = matrix(statistics, load_arrays(case.run.arrays.train))
    assert inputs.shape[1] == num_columns(statistics) == len(column_names(statistics))
    assert {"past_x_last", "past_z_mean_of_2"} < set(column_names(statistics))


def test_every_value_of_the_window_reaches_the_scores(case: Prepared) -> None:
    network = build_model(case.declaration, case.run.statistics).eval()
    arrays = load_arrays(case.run.arrays.train)
    batch = {key: torch.tensor(np.array(arrays[key][:8])) for key in network.shape.keys}
    past = batch["tensor_past"].requires_grad_()
    network(batch).sum().backward()
    known = past.detach()[:, 2:] > 0
    assert past.grad is not None and bool((past.grad[:, :2][known] != 0).all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "random"}, "a train row would hold test rows"),
        (
            {"columns": COLUMNS | {"at": "ignore"}, "split": "group"},
            "declare a column of role time",
        ),
        ({"data": {"engine": "spark"}}, "spark cannot do data.windows.past"),
        ({"window": {"columns": ["x", "y"]}}, "holds the label 'y', which is not known"),
        ({"window": {"look_back": "3d"}}, "needs the distance of the window.s steps"),
        ({"window": {"look_back": "3d", "step": "7h"}}, "no whole number of steps"),
        ({"window": {"look_back": 1}}, "at least 2 steps"),
        ({"window": {"encoder": {"kind": "transformer", "width": 6}}}, "no multiple of heads"),
        ({"columns": COLUMNS | {"past": "numeric"}}, "data.columns has that name already"),
        ({"columns": COLUMNS | {"x": {"ahead": "3h"}}}, "ahead is for a column of role label"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        prepared_series(tmp_path, series(), **options)


def series_run(folder: Path, **sections: Any) -> Any:
    run = prepared_series(folder, series(), **sections).run
    (folder / "resolved.json").write_text(run.model_dump_json())
    return run


@pytest.mark.long
@pytest.mark.req("C5")
@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_run_stopped_and_resumed_ends_in_the_same_bits(tmp_path: Path, encoder: str) -> None:
    own = ENCODERS[encoder].model_dump(mode="json") | {"dropout": 0.1}
    series_run(tmp_path, window={"encoder": own}, train=TRAIN)
    require_exact_resume(tmp_path, (3, 9))


@pytest.mark.long
@pytest.mark.req("M4")
@pytest.mark.parametrize(("encoder", "kind"), [*CASES, ("tcn", "boosting")])
def test_the_preflight_passes(tmp_path: Path, encoder: str, kind: str) -> None:
    options = {} if kind in ("linear", "boosting") else KINDS[kind]
    options = {n: v for n, v in options.items() if n not in ("hidden", "width", "members")}
    own = {"kind": encoder, "width": 16}
    run = series_run(
        tmp_path,
        window={"encoder": own},
        model={"kind": kind, **options},
        train=TRAIN | {"clip": "none"},
    )
    require_preflight(run)


@pytest.mark.long
def test_boosting_takes_the_summary_and_serves_raw_rows(tmp_path: Path) -> None:
    case = prepared_series(tmp_path, series(), model={"kind": "boosting"})
    weights = Path(fit_trees(case.run, tmp_path / "run").best_checkpoint.path)
    model = export_model(case.run, weights, tmp_path / "model", case.split.val)
    require_answers(case, model, weights)
