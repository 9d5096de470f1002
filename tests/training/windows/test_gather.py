"""Windows as they are stored and gathered: equal to loops over pandas, none crosses a cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config import SplitName
from schemas.errors import DataError, SchemaError
from schemas.references import WindowSpec
from tests.training.kind_cases import Prepared
from tests.training.windows.tables import (
    COLUMNS,
    GRID,
    HOURS,
    WINDOW,
    prepared_series,
    series,
    slow_windows,
)
from training.data.arrays.fold_arrays import write_fold
from training.data.arrays.shards import load_arrays
from training.data.arrays.union import join_splits
from training.data.leakage.poison import find_poisoned
from training.data.serving_expressions.series_windows import with_windows
from training.data.split.histories import Series, windows_of
from training.data.split.split import sampled
from training.engine.batches import as_tensors
from training.engine.window_tensors import gather_windows
from training.preflight.poisoned_fit import poison_check


def stored_windows(case: Prepared, side: str) -> dict[str, np.ndarray]:
    """The windows of a side as written [L, C], NaN where unknown, by id."""
    arrays = case.run.arrays.side(side)  # type: ignore[arg-type]
    block = np.asarray(load_arrays(arrays)["tensor_past"], dtype=np.float64)
    values, flags = np.split(block, 2, axis=1)
    steps = np.where(flags > 0, values, np.nan).swapaxes(1, 2)
    return dict(zip(pd.read_parquet(arrays.ids.path)["__id"], steps, strict=True))


@pytest.mark.parametrize(
    ("window", "clock"),
    [({}, False), ({"lag": 1}, True), (GRID, False), (HOURS | {"lag": 2}, True)],
)
def test_windows_equal_loops_over_the_source(
    tmp_path: Path, window: dict[str, Any], clock: bool
) -> None:
    frame = series(clock=clock)
    case = prepared_series(tmp_path, frame, window)
    wanted = slow_windows(frame, WINDOW | window)
    for side in ("train", "val", "test"):
        for row, found in stored_windows(case, side).items():
            np.testing.assert_allclose(found, wanted[row], rtol=1e-6)


@given(
    seed=st.integers(0, 10_000),
    length=st.integers(2, 7),
    lag=st.integers(0, 3),
    grid=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_any_rows_of_any_series_get_the_windows_of_loops_also_at_serving(
    seed: int, length: int, lag: int, grid: bool
) -> None:
    rng = np.random.default_rng(seed)
    frame = series(units=int(rng.integers(1, 5)), rows=int(rng.integers(1, 12)), seed=seed)
    window = {"columns": ["x", "z"], "look_back": length, "lag": lag}
    window |= {"look_back": 2.0 * length, "step": 2.0} if grid else {}
    wanted = slow_windows(frame, window)
    ordered = frame.sort_values(["unit", "at"]).reset_index(drop=True)
    # training: some rows of all series
    number = pd.factorize(ordered["unit"])[0]
    first = ordered.groupby("unit")["at"].transform("first")
    place = ((ordered["at"] - first) / 2).astype(int) if grid else pd.Series(ordered.index)
    spec = WindowSpec(
        channels=("x", "z"), series=("unit",), length=length, step=2.0, lag=lag, types={}
    )
    rows = rng.permutation(len(ordered))[: int(rng.integers(1, len(ordered) + 1))]
    part = windows_of(Series(None, number, place.to_numpy()), spec, rows)  # type: ignore[arg-type]
    steps = ordered[["x", "z"]].to_numpy()[part.rows]
    steps[part.rows < 0] = np.nan
    steps = torch.from_numpy(np.concatenate([np.full((1, 2), np.nan), steps]))
    ends = np.stack([part.ends + 1, part.counts, part.counts], axis=1)
    found = gather_windows(steps, torch.from_numpy(ends), length).transpose(1, 2).numpy()
    np.testing.assert_array_equal(found, [wanted[ordered["row"][row]] for row in rows])
    assert len(part.rows) <= len(rows) * length
    # serving: all rows, in the order of the frame
    rule = spec.model_dump() | {"name": "past", "time": "at", "is_timestamp": False}
    rule |= {"step": spec.step if grid else None, "fill": [7.0, 8.0], "values": "made"}
    block = np.stack(with_windows(frame, [rule])["made"])
    values = np.where(block[:, 2:] > 0, block[:, :2], np.nan).swapaxes(1, 2)
    np.testing.assert_allclose(values, [wanted[row] for row in frame["row"]], rtol=1e-6)
    assert (block[:, :2][block[:, 2:] == 0].reshape(-1)[:1] >= 7).all()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared_series(tmp_path_factory.mktemp("windows"), series())


def test_unknown_steps_are_zero_after_scaling_and_statistics_are_those_of_train(
    case: Prepared,
) -> None:
    (stats,) = case.run.statistics.tensor
    arrays = load_arrays(case.run.arrays.train)["tensor_past"]
    mean = np.float32(np.array(stats.mean)[:, None])
    scaled = (np.asarray(arrays) - mean) / np.float32(np.array(stats.std)[:, None])
    flags = np.asarray(arrays)[:, 2:]
    assert (scaled[:, :2][flags == 0] == 0).all() and 0 < flags.mean() < 1
    steps = arrays.steps[1:]
    known = steps[steps[:, 3] > 0, 1]
    np.testing.assert_allclose([stats.mean[1], stats.std[1]], [known.mean(), known.std()], 1e-4)


def test_a_changed_held_out_row_changes_nothing_of_train(case: Prepared, tmp_path: Path) -> None:
    ids = pd.read_parquet(case.run.arrays.test.ids.path)["__id"]
    frame = series()
    frame.loc[frame["row"] == ids[0], ["x", "z"]] = [99.0, -99.0]
    other = prepared_series(tmp_path, frame)
    one, two = case.run.arrays, other.run.arrays
    own = {name: ref.sha256 for name, ref in {**one.train.arrays, **one.train.windows}.items()}
    own_two = {name: r.sha256 for name, r in {**two.train.arrays, **two.train.windows}.items()}
    assert own == own_two and one.statistics.sha256 == two.statistics.sha256
    assert one.test.windows["tensor_past"].sha256 != two.test.windows["tensor_past"].sha256


def test_batches_joined_splits_and_folds_hold_the_same_windows(
    case: Prepared, tmp_path: Path
) -> None:
    arrays = case.run.arrays
    train, val = (load_arrays(side)["tensor_past"] for side in (arrays.train, arrays.val))
    tensor = as_tensors({"t": train})["t"]
    rows = torch.tensor([3, 0, 3])
    np.testing.assert_array_equal(tensor.index_select(0, rows), train[rows.numpy()])
    np.testing.assert_array_equal(tensor[2:6], np.asarray(train[2:6]))
    both = join_splits(arrays, ("train", "val"), tmp_path / "joined")
    joined = load_arrays(both.train)["tensor_past"]
    np.testing.assert_array_equal(joined, np.concatenate([train, val]))
    ids = [pd.read_parquet(side.ids.path)["__id"] for side in (arrays.train, arrays.val)]
    own = dict(zip(pd.concat(ids), np.concatenate([train, val]), strict=True))

    parts = pa.array([*ids[0][:20], *ids[1][:9]]), pa.array([*ids[0][20:], *ids[1][9:]])
    fold = write_fold(arrays, *parts, tmp_path / "fold")
    for side in (fold.train, fold.val):
        found = pd.read_parquet(side.ids.path)["__id"]
        np.testing.assert_array_equal(
            np.asarray(load_arrays(side)["tensor_past"]), [own[row] for row in found]
        )


def test_the_label_ahead_is_the_value_of_its_series_and_purges_train(tmp_path: Path) -> None:
    frame = series(clock=True).assign(y=lambda f: f["x"])
    columns = COLUMNS | {"y": {"role": "label", "ahead": "4h"}, "x": "numeric"}
    options = {"task": "regression", "data": {"null_labels": "drop"}, "columns": columns}
    case = prepared_series(tmp_path, frame, {"columns": ["x", "y"]}, **options)
    later = frame.assign(at=frame["at"] - pd.Timedelta("4h")).set_index(["unit", "at"])["x"]
    wanted = frame.set_index("row").join(later.rename("ahead"), on=["unit", "at"])["ahead"]
    plan = case.split.plan["cuts"]
    cut = pd.to_datetime(plan["val"], unit="s")
    for side in ("train", "val", "test"):
        table = pd.read_parquet(case.split.side(side).file.path)  # type: ignore[arg-type]
        np.testing.assert_array_equal(table["y"], wanted[table["__id"]])
        if side == "train":
            assert (pd.to_datetime(table["__time"], unit="s") + pd.Timedelta("4h") < cut).all()
        for found in stored_windows(case, side).values():
            np.testing.assert_array_equal(found[:, 0], found[:, 1])  # the value of the moment
    assert case.split.excluded["label_interval"] > 0
    assert case.validated.unlabelled_rows == wanted.isna().sum() > 0


@pytest.mark.parametrize(
    ("change", "window", "message"),
    [
        (lambda f: pd.concat([f, f[:2].assign(row=["a", "b"])]), {}, "2 moments have several"),
        (lambda f: f.assign(z="text"), {}, "'z' holds text, and a window holds numbers"),
        (lambda f: f, {"columns": ["q"]}, "'q' is none of the source"),
    ],
)
def test_tables_that_are_no_series_are_refused(
    tmp_path: Path, change: Any, window: dict[str, Any], message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        prepared_series(tmp_path, change(series()), window)


def test_moments_beside_the_grid_are_named(tmp_path: Path) -> None:

    frame = series()
    frame.loc[5, "at"] += 0.5
    with pytest.raises(DataError, match="1 row beside a grid of step 2"):
        prepared_series(tmp_path, frame, GRID)


@pytest.mark.req("D6")
def test_the_poison_test_reaches_the_windows_of_held_out_rows(
    case: Prepared, tmp_path: Path
) -> None:
    spec = case.validated.spec

    def steps(corrupt: Any, of: tuple[SplitName, ...], folder: Path) -> dict[str, Any]:
        made = sampled(case.split, spec, 50, folder, corrupt)
        kept = {s: pq.read_table(made.side(s).histories["past"].steps.path) for s in of}
        return {side: table.select(["x", "z"]) for side, table in kept.items()}

    held_out = find_poisoned(lambda c: steps(c, ("val", "test"), tmp_path / "held"), spec)
    assert {name.split(".")[0].strip("['\"]") for name in held_out.changed} >= {"val", "test"}
    assert not find_poisoned(lambda c: steps(c, ("train",), tmp_path / "train"), spec).changed
    found = poison_check(case.split, case.validated, case.declaration)
    assert found.verdict == "pass", found.summary
