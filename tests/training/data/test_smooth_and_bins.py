"""Smooth scaling, quantile bins and the label range: right numbers, of train alone, and no change
for declarations that use none of them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from prefect.states import State
from sklearn.preprocessing import RobustScaler

import training.preflight.poisoned_fit as stages
from schemas.config import Declaration, MlpModel
from schemas.errors import DataError
from schemas.records import (
    CategoryStats,
    LabelStats,
    NumericStats,
    Statistics,
    TrainTable,
    digest_of,
)
from tasks.statistics import fit_statistics
from tests.training.cases import make_case
from tests.training.data import sides
from tests.training.data.chain import declared, split_of, write_table
from tests.training.data.sides import declaration_of, numbers, spec_of, write_side
from training.data.arrays.apply import fitted_ranges, smoothly_clipped, transform_numeric
from training.data.engine.in_memory import holding
from training.data.fit.normalize import fit
from training.models.shape import model_shape
from training.serving import serving
from training.serving.export import export_model
from training.serving.numeric_block import NumericBlock

ROWS, BINS = 600, 12
SPEC = spec_of(numeric=("a", "b", "c", "d"), label_type="float")


class Binned(MlpModel):
    """A network that asks for bins and for the range of the label."""

    bins: int | None = BINS
    clamp: bool = True


def asking(declaration: Declaration, **needs: Any) -> Declaration:
    """Return the declaration with a model that asks the fit for bins and the label range."""
    return declaration.model_copy(update={"model": Binned(**needs)})


def table(rows: int = ROWS, seed: int = 0) -> dict[str, np.ndarray]:
    """Return a (normal), b (heavy tail, nulls), c (mostly one value), d (few values), label y."""
    rng = np.random.default_rng(seed)
    b = rng.lognormal(3, 2, rows)
    b[rng.random(rows) < 0.1] = np.nan
    return {
        "a": rng.normal(50, 9, rows),
        "b": b,
        "c": np.where(rng.random(rows) < 0.8, 5.0, rng.normal(size=rows)),
        "d": rng.integers(0, 4, rows).astype(float),
        "y": rng.normal(1000, 300, rows),
    }


def fitted(folder: Path, columns: dict[str, np.ndarray], **needs: Any) -> Statistics:
    """Fit smooth scaling, and what the model asks for, on these train rows."""
    train = write_side(
        folder / "train.parquet", {n: numbers(v) for n, v in columns.items()}, "train"
    )
    declaration = declaration_of("regression", normalize={"scale": "smooth"})
    return fit(train, SPEC, asking(declaration, **needs))


# ---------------------------------------------------------------------------------- right numbers


@pytest.mark.req("D7")
def test_smooth_scaling_is_scikit_learns_robust_scaling_and_the_formula(tmp_path: Path) -> None:
    columns = table()
    statistics = fitted(tmp_path, columns)
    x = np.stack([columns[n] for n in "abcd"], axis=1)
    v = RobustScaler().fit(x).transform(np.where(np.isnan(x), np.nanmedian(x, axis=0), x))
    c = columns["c"]
    assert np.quantile(c, 0.25) == np.quantile(c, 0.75)
    v[:, 2] = 2 * (c - np.median(c)) / (c.max() - c.min())
    expected = v / np.sqrt(1 + (v / 3) ** 2)
    got = transform_numeric(x, statistics)
    assert [s.method for s in statistics.numeric] == ["smooth"] * 4
    np.testing.assert_allclose(got[:, :4], expected, rtol=1e-6, atol=1e-6)
    assert 2.9 < got[:, 1].max() < 3.0, "the heavy tail comes near the bound"


@pytest.mark.req("D7")
@pytest.mark.parametrize("bins", [1, 12, 48])
def test_bins_are_numpys_quantiles_without_repeats(tmp_path: Path, bins: int) -> None:
    columns = table()
    statistics = fitted(tmp_path, columns, bins=bins)
    for column in statistics.numeric:
        present = columns[column.name][~np.isnan(columns[column.name])]
        expected = np.unique(np.quantile(present, np.arange(bins + 1) / bins))
        assert len(column.bins) == len(expected) and (np.diff(column.bins) > 0).all()
        np.testing.assert_allclose(column.bins, expected, rtol=1e-12)
        assert (column.bins[0], column.bins[-1]) == (present.min(), present.max())


@pytest.mark.req("D7")
@pytest.mark.parametrize("scale", ["standard", "robust", "quantile", "none"])
def test_bins_do_not_change_any_other_statistic(tmp_path: Path, scale: str) -> None:
    columns = {n: numbers(v) for n, v in table().items()}
    train = write_side(tmp_path / "train.parquet", columns, "train")
    plain = declaration_of("regression", normalize={"scale": scale})
    without, with_bins = fit(train, SPEC, plain), fit(train, SPEC, asking(plain, clamp=False))
    assert all(s.bins for s in with_bins.numeric)
    stripped = tuple(s.model_copy(update={"bins": ()}) for s in with_bins.numeric)
    assert digest_of(with_bins.model_copy(update={"numeric": stripped})) == digest_of(without)


@pytest.mark.req("D7")
@pytest.mark.parametrize("scale", ["standard", "smooth", "quantile", "none"])
def test_the_network_gets_edges_in_units_of_its_inputs(tmp_path: Path, scale: str) -> None:
    columns = table()
    train = write_side(
        tmp_path / "train.parquet", {n: numbers(v) for n, v in columns.items()}, "train"
    )
    declaration = asking(declaration_of("regression", normalize={"scale": scale, "clip": 2.0}))
    statistics = fit(train, SPEC, declaration)
    shape = model_shape(declaration, statistics)
    inputs = transform_numeric(np.stack([columns[n] for n in "abcd"], axis=1), statistics)
    assert len(shape.bins) == shape.numeric - shape.indicators == 4
    for edges, values in zip(shape.bins, inputs.T, strict=False):
        assert len(edges) >= 2 and (np.diff(np.float32(edges)) > 0).all()
        assert (edges[0], edges[-1]) == (values.min(), values.max())
    low, high = columns["y"].min(), columns["y"].max()
    assert (statistics.label_low, statistics.label_high) == (low, high)
    y = columns["y"]
    assert shape.label_range == pytest.approx(((y - y.mean()) / y.std())[[y.argmin(), y.argmax()]])


@pytest.mark.req("D7")
@pytest.mark.parametrize("value", [5.0, -3e8])
def test_a_column_with_one_value_and_nulls_has_a_bin_around_it(
    tmp_path: Path, value: float
) -> None:
    columns = table() | {"c": np.where(np.arange(ROWS) % 3, value, np.nan)}
    train = write_side(
        tmp_path / "train.parquet", {n: numbers(v) for n, v in columns.items()}, "train"
    )
    declaration = asking(declaration_of("regression", normalize={"scale": "none"}))
    statistics = fit(train, SPEC, declaration)
    assert statistics.numeric[2].bins == (value,)
    low, high = model_shape(declaration, statistics).bins[2]
    assert np.float32(low) < value < np.float32(high)


@pytest.mark.req("D7")
def test_classes_have_no_label_range_and_other_models_ask_for_nothing(tmp_path: Path) -> None:
    columns = {n: numbers(v) for n, v in table().items()} | {"y": [i % 2 for i in range(ROWS)]}
    train = write_side(tmp_path / "train.parquet", columns, "train")
    spec = spec_of(numeric=("a", "b", "c", "d"))
    classes = asking(declaration_of())
    statistics = fit(train, spec, classes)
    assert statistics.label_low is None and model_shape(classes, statistics).label_range is None
    plain = declaration_of()
    shape = model_shape(plain, fit(train, spec, plain))
    assert (shape.bins, shape.label_range) == ((), None)


@pytest.mark.req("S2")
def test_a_constant_column_is_refused_under_smooth_scaling(tmp_path: Path) -> None:
    columns = table() | {"c": np.full(ROWS, 2.5)}
    with pytest.raises(DataError, match=r"1 feature says nothing.*c \(always 2.5\)"):
        fitted(tmp_path, columns)
    varied = fitted(tmp_path, table())
    assert not varied.dropped


# -------------------------------------------------------------------------------- smooth clipping

FAR = [0.0, -0.0, 5e-324, 2.2e-308, 1e155, 1e300, -1e300, 1.7e308, np.inf, -np.inf]


@pytest.mark.req("D7")
@given(
    st.lists(
        st.one_of(st.floats(-1e4, 1e4), st.floats(allow_nan=False, width=32), st.sampled_from(FAR)),
        min_size=2,
        max_size=40,
    )
)
@example(FAR)
def test_smooth_clipping_keeps_the_order_and_the_bound(values: list[float]) -> None:
    found = smoothly_clipped(np.sort(np.array(values))).astype(np.float32)
    assert (np.diff(found) >= 0).all() and (np.abs(found) <= 3).all()
    np.testing.assert_array_equal(-smoothly_clipped(-np.array(values)), smoothly_clipped(values))


@pytest.mark.req("D7")
def test_smooth_clipping_is_strictly_increasing_where_float32_can_tell() -> None:
    steps = np.linspace(-30, 30, 5001)
    assert (np.diff(smoothly_clipped(steps).astype(np.float32)) > 0).all()


@pytest.mark.req("D7")
@pytest.mark.parametrize("clip", [None, 10.0, 2.0])
def test_a_declared_clip_below_the_bound_holds_and_its_range_is_exact(clip: float | None) -> None:
    column = NumericStats(name="x", method="smooth", center=7.0, scale=2.0)
    statistics = Statistics(
        train_sha256="", rows=2, numeric=(column,), categorical=(), tensor=(), clip=clip
    )
    ((low, high),) = fitted_ranges(statistics)
    if clip != 2.0:
        assert (low, high) == (None, None)
        return
    assert low is not None and high is not None
    inside = np.array([[low + 1e-3], [high - 1e-3]])
    outside = np.array([[low - 1.0], [high + 1.0]])
    assert (np.abs(transform_numeric(inside, statistics)) < 2).all()
    assert np.abs(transform_numeric(outside, statistics)).tolist() == [[2.0], [2.0]]


# ------------------------------------------------------------------------------------ the program

SPREADS = st.one_of(st.floats(1e-3, 1e3), st.sampled_from([5e-324, 1e-310, 1e300]))


@pytest.mark.req("R1")
@given(
    stats=st.lists(
        st.builds(
            NumericStats,
            name=st.just("s"),
            method=st.sampled_from(["smooth", "smooth", "robust"]),
            center=st.floats(-1e3, 1e3),
            scale=SPREADS,
            fill=st.none() | st.floats(-9, 9),
            indicator=st.booleans(),
            std=st.sampled_from([0.0, 1e3]),
            min=st.just(-1e3),
            max=st.just(1e3),
        ),
        min_size=1,
        max_size=4,
    ),
    clip=st.sampled_from([None, 2.0, 10.0]),
    data=st.data(),
)
def test_the_program_repeats_smooth_clipping_bit_for_bit(
    stats: list[NumericStats], clip: float | None, data: st.DataObject
) -> None:
    statistics = Statistics(
        train_sha256="0", rows=2, numeric=tuple(stats), categorical=(), tensor=(), clip=clip
    )
    value = st.one_of(st.floats(-1e6, 1e6), st.just(float("nan")), st.sampled_from(FAR))
    width = len(stats)
    rows = np.array(
        data.draw(st.lists(st.lists(value, min_size=width, max_size=width), min_size=1, max_size=6))
    )
    with np.errstate(over="ignore"):
        expected = transform_numeric(rows, statistics)
    found = NumericBlock(statistics)(torch.from_numpy(rows)).numpy()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.req("R1")
def test_a_model_on_smooth_columns_is_exported(tmp_path: Path) -> None:
    case = make_case(tmp_path, "regression", normalize={"scale": "smooth"})
    assert {s.method for s in case.run.statistics.numeric} == {"smooth"}
    exported = export_model(case.run, case.weights, tmp_path / "model", case.split.val)
    assert 0 <= exported.parity < 1e-9
    spec = serving.read_spec(exported.spec.path)
    assert {(c["low"], c["high"]) for c in spec["numeric"]} == {(None, None)}


# ------------------------------------------------------------------- what cannot change the numbers


def source(folder: Path, columns: dict[str, np.ndarray]) -> Declaration:
    """Write the columns as a source, and declare smooth scaling and a model with bins for it."""
    arrays = {n: pa.array(v, from_pandas=True) for n, v in columns.items()}
    declaration = declared(
        write_table(folder / "t.parquet", {"id": pa.array(range(len(columns["y"])))} | arrays),
        task="regression",
        normalize={"scale": "smooth"},
    )
    return asking(declaration)


@pytest.mark.req("D7")
def test_changed_rows_of_val_and_test_leave_bins_and_label_range_byte_identical(
    tmp_path: Path,
) -> None:
    columns, found = table(), list[str]()
    held = np.zeros(ROWS, dtype=bool)
    for name in ("before", "after", "train"):
        if name == "after":
            columns |= {n: np.where(held, -1e6 * v, v) for n, v in columns.items()}
        if name == "train":
            columns["a"][np.flatnonzero(~held)[0]] += 1e-6
        declaration = source(tmp_path / name, columns)
        validated, split = split_of(declaration, tmp_path / name / "out")
        with holding():
            found.append(digest_of(fit(split.train, validated.spec, declaration)))
        kept = pq.read_table(split.train.file.path, columns=["__id"])["__id"].to_pylist()
        held = ~np.isin(np.arange(ROWS), np.array(kept).astype(int))
    assert 50 < held.sum() < 400
    assert found[0] == found[1], "held-out rows do not count"
    assert found[1] != found[2], "a train row does"


@pytest.mark.req("D7")
def test_rows_in_memory_in_a_file_and_in_another_order_give_the_same_bytes(tmp_path: Path) -> None:
    columns = table(rows=3000)
    declaration = source(tmp_path, columns)
    with holding():
        validated, split = split_of(declaration, tmp_path / "out")
        held = fit(split.train, validated.spec, declaration)
    assert digest_of(held) == digest_of(fit(split.train, validated.spec, declaration))
    order = np.random.default_rng(1).permutation(3000)
    first, second = (
        fitted(tmp_path / name, {n: v[o] for n, v in columns.items()}).model_copy(
            update={"train_sha256": "same rows in another file"}
        )
        for name, o in (("first", np.arange(3000)), ("second", order))
    )
    assert digest_of(first) == digest_of(second)


@pytest.mark.req("D7")
def test_a_poisoned_fit_of_bins_is_found_and_a_sound_one_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declaration = source(tmp_path, table())
    validated, split = split_of(declaration, tmp_path / "out")
    assert stages.poison_check(split, validated, declaration).verdict == "pass"

    def leaky(train: TrainTable, spec: Any, own: Declaration) -> Statistics:
        statistics = fit(train, spec, own)
        first = statistics.numeric[0]
        test = pq.read_table(train.file.file.with_name("test.parquet"))[first.name].to_numpy()
        edges = tuple(sorted({*first.bins, float(test.max())}))
        return statistics.model_copy(
            update={"numeric": (first.model_copy(update={"bins": edges}), *statistics.numeric[1:])}
        )

    monkeypatch.setattr(stages, "fit", leaky)
    found = stages.poison_check(split, validated, declaration)
    assert found.verdict == "fail"
    assert any("bins" in str(e["artefact"]) for e in found.evidence)


# ------------------------------------------------------------------ declarations without any of it


def record(**label: Any) -> Statistics:
    """Return statistics as they were written before the fields for bins and label range."""
    numeric = (
        NumericStats(
            name="a",
            method="robust",
            center=1.5,
            scale=2.0,
            fill=0.5,
            mean=1.0,
            std=3.0,
            min=-4.0,
            max=8.0,
        ),
        NumericStats(name="q", method="quantile", knots=(0.0, 1.0, 3.0)),
    )
    return Statistics(
        train_sha256="0" * 64,
        rows=9,
        numeric=numeric,
        categorical=(CategoryStats(name="k", values=("b", "a"), counts=(5, 2)),),
        tensor=(),
        clip=10.0,
        label_mean=30.0,
        label_std=20.0,
        target_center=30.0,
        target_scale=20.0,
        **label,
    )


@pytest.mark.req("R1")
def test_records_without_bins_and_label_range_keep_their_digests_and_bytes() -> None:
    plain = record()
    assert digest_of(plain) == "bc4175ed89a223cbcb49a3847073c6ee9f4a11a7547263afd8585f00d9d8ee3e"
    dose = LabelStats(name="dose", kind="regression", known=5, share=0.75, label_mean=2.0)
    several = plain.model_copy(update={"labels": (dose,)})
    assert digest_of(several) == "d4817bd5bb88fef44096816787fa9d3c26c43c36f534a70ca5b6d34c42c48137"
    written = several.model_dump_json(indent=1)
    expected = "503c854d6d97c1c281a5bb9c5136507eb9f64e5618fe94f01981c2b156ce435a"
    assert hashlib.sha256(written.encode()).hexdigest() == expected
    assert Statistics.model_validate_json(written) == several


@pytest.mark.req("R1")
def test_bins_and_label_range_are_part_of_the_digest_and_read_back() -> None:
    plain = record()
    binned = plain.model_copy(
        update={"numeric": (plain.numeric[0].model_copy(update={"bins": (0.0, 1.0)}),)}
    )
    ranged = record(label_low=-5.0, label_high=0.0)
    assert len({digest_of(plain), digest_of(binned), digest_of(ranged)}) == 3
    for one in (binned, ranged):
        assert Statistics.model_validate_json(one.model_dump_json()) == one


@pytest.mark.req("P5")
def test_the_stored_fit_is_made_again_when_the_model_asks_for_other_bins(
    tmp_path: Path, own_home: Path
) -> None:
    columns = {n: numbers(v) for n, v in table().items()}
    split = sides.split_of(tmp_path, columns, columns, columns)
    plain, validated = declaration_of("regression"), sides.validated(split, SPEC)
    found = list[int | str]()
    for declaration in (plain, asking(plain), asking(plain, bins=4), asking(plain)):
        made = fit_statistics.task.fn(split.train, validated, declaration)
        found.append("stored" if isinstance(made, State) else len(made.numeric[0].bins))
    assert found == [0, BINS + 1, 5, "stored"] and own_home.exists()
