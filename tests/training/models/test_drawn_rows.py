"""Drawn rows vary as train rows do, so a network initialised by them starts at unit scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from schemas.records import CategoryStats, NumericStats, Statistics
from training.data.arrays.apply import transform_numeric
from training.models.drawn_rows import drawn_rows
from training.models.realmlp import NtkLinear

ROWS = 4000


def columns(method: Any) -> tuple[np.ndarray, Statistics]:
    """Return raw columns (even, skewed, two towns, mostly zero) and what a fit records of them."""
    rng = np.random.default_rng(0)
    even, skewed = rng.normal(40, 3, ROWS), rng.exponential(900.0, ROWS)
    towns = np.where(rng.random(ROWS) < 0.4, -122.0, -118.0) + rng.normal(0, 0.3, ROWS)
    raw = np.stack([even, skewed, towns, np.where(rng.random(ROWS) < 0.9, 0, skewed)], axis=1)
    found = []
    for i, x in enumerate(raw.T):
        low, median, high = np.quantile(x, (0.25, 0.5, 0.75))
        robust = method in ("robust", "smooth")
        scale = (high - low or (x.max() - x.min()) / 2) if robust else x.std()
        found.append(
            NumericStats(
                name=f"x{i}",
                method=method,
                center=median if robust else x.mean(),
                scale=scale if method != "quantile" else 1.0,
                knots=tuple(np.quantile(x, np.linspace(0, 1, 257))) if method == "quantile" else (),
                mean=x.mean(),
                std=x.std(),
                min=x.min(),
                max=x.max(),
            )
        )
    return raw, Statistics(
        train_sha256="", rows=ROWS, numeric=tuple(found), categorical=(), tensor=()
    )


@pytest.mark.req("M1")
@pytest.mark.parametrize("method", ["smooth", "standard", "quantile"])
def test_a_layer_initialised_by_drawn_rows_has_unit_scale_on_train_rows(method: str) -> None:
    torch.manual_seed(0)
    raw, statistics = columns(method)
    train = torch.from_numpy(transform_numeric(raw, statistics))
    drawn = drawn_rows(statistics, ROWS)["numeric"]
    assert drawn.dtype == torch.float32 and drawn.shape == (ROWS, 4)
    assert bool(((drawn >= train.amin(0)) & (drawn <= train.amax(0))).all())
    layer = NtkLinear(4, 300)
    layer.init_on_(drawn)
    assert 0.9 < float(layer(train).detach().std(0).mean()) < 1.15
    if method == "smooth":  # the case that standard normal rows get wrong
        layer.init_on_(torch.randn(ROWS, 4))
        assert float(layer(train).detach().std(0).mean()) < 0.8


@pytest.mark.req("M1")
def test_nulls_and_codes_are_as_frequent_as_in_train_and_follow_from_the_random_state() -> None:
    _, whole = columns("smooth")
    nulled = whole.numeric[0].model_copy(
        update={"fill": 40.0, "nulls": ROWS // 4, "indicator": True}
    )
    code = CategoryStats(name="c", values=("a", "b"), counts=(1800, 200), nulls=400, rare_rows=0)
    statistics = whole.model_copy(
        update={"numeric": (nulled, *whole.numeric[1:]), "categorical": (code,)}
    )
    torch.manual_seed(1)
    batch = drawn_rows(statistics, ROWS)
    assert float(batch["numeric"][:, 4].mean()) == pytest.approx(0.25, abs=0.03)
    shares = torch.bincount(batch["categorical"][:, 0], minlength=4) / ROWS
    assert shares.tolist() == pytest.approx([0, 400 / 2400, 1800 / 2400, 200 / 2400], abs=0.03)
    torch.manual_seed(1)
    again = drawn_rows(statistics, ROWS)
    assert all(torch.equal(batch[key], again[key]) for key in batch)
