"""The fit on train: right numbers, and nothing but train's rows can change them."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import duckdb
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import RobustScaler, StandardScaler

from schemas.errors import DataError, IntegrityError, LeakageError
from schemas.records import NumericStats, Statistics, TableRef, TrainTable, digest_of
from tests.training.data.sides import declaration_of, images, numbers, spec_of, write_side
from training.data.arrays.apply import quantile_points, rounded_columns, transform_numeric
from training.data.fit.normalize import fit

FEW = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
REPOSITORY = Path(__file__).parents[3]


def labels(rows: int) -> list[int]:
    return [i % 2 for i in range(rows)]


def table(rows: int = 400, seed: int = 0, nulls: float = 0.1) -> tuple[dict, np.ndarray]:
    """Columns a (normal), b (heavy tail, nulls), c (many ties), category k; and the numeric ones as
    a matrix.
    """
    rng = np.random.default_rng(seed)
    x = np.stack(
        [
            rng.normal(50, 9, rows),
            rng.lognormal(3, 2, rows),
            rng.integers(0, 4, rows).astype(float),
        ],
        axis=1,
    )
    x[rng.random(rows) < nulls, 1] = np.nan
    k = [None if v == 0 else f"k{v % 5}" for v in rng.integers(0, 30, rows)]
    return {
        "a": numbers(x[:, 0]),
        "b": numbers(x[:, 1]),
        "c": numbers(x[:, 2]),
        "k": k,
        "y": labels(rows),
    }, x


SPEC = spec_of(numeric=("a", "b", "c"), categorical=("k",))


def fit_table(folder: Path, content: dict, spec=SPEC, **sections) -> Statistics:
    return fit(
        write_side(folder / "train.parquet", content, "train"), spec, declaration_of(**sections)
    )


@pytest.mark.req("D7")
@pytest.mark.parametrize("scale", ["standard", "robust"])
@pytest.mark.parametrize("impute", ["mean", "median", "zero"])
def test_equals_scikit_learn(tmp_path, scale, impute):
    columns, x = table()
    statistics = fit_table(
        tmp_path, columns, normalize={"scale": scale, "impute": impute, "clip": None}
    )
    imputer = SimpleImputer(
        strategy="constant" if impute == "zero" else impute, fill_value=0.0, add_indicator=True
    ).fit(x)
    scaler = (StandardScaler() if scale == "standard" else RobustScaler()).fit(x)
    filled = imputer.transform(x)
    expected = np.concatenate([scaler.transform(filled[:, :3]), filled[:, 3:]], axis=1)
    got = transform_numeric(x, statistics)
    assert got.dtype == np.float32 and got.shape == (400, statistics.num_numeric) == (400, 4)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.req("D7")
def test_quantile_map_gives_normal_scores_and_copes_with_ties(tmp_path):
    columns, x = table(rows=4000, nulls=0)
    statistics = fit_table(tmp_path, columns, normalize={"scale": "quantile"})
    knots = np.array(statistics.numeric[1].knots)
    np.testing.assert_allclose(knots, np.quantile(x[:, 1], np.arange(257) / 256), rtol=1e-12)
    scaled = transform_numeric(x, statistics)
    assert abs(scaled[:, 1].mean()) < 0.01 and abs(scaled[:, 1].std() - 1) < 0.03
    order = np.argsort(x[:, 1])
    assert (np.diff(scaled[order, 1]) >= 0).all()
    points, scores = quantile_points(statistics.numeric[2])
    assert points.tolist() == [0, 1, 2, 3] and (np.diff(scores) > 0).all()
    beyond = transform_numeric(np.array([[0, 1e9, -5], [0, -1e9, 9]], dtype=float), statistics)
    assert beyond[0, 1] == pytest.approx(2.886, abs=1e-3) and beyond[1, 1] == pytest.approx(
        -2.886, abs=1e-3
    )


@pytest.mark.req("D7")
def test_scale_none_passes_values_through_unclipped(tmp_path):
    columns, x = table(nulls=0)
    statistics = fit_table(
        tmp_path, columns, normalize={"columns": {"a": {"scale": "none"}}, "clip": 1.0}
    )
    got = transform_numeric(x, statistics)
    np.testing.assert_array_equal(got[:, 0], x[:, 0].astype(np.float32))
    assert np.abs(got[:, 1:]).max() == 1.0


@pytest.mark.req("D7")
def test_robust_without_spread_falls_back_to_standard_and_says_so(tmp_path, caplog):
    values = [5.0] * 90 + [1.0, 9.0, 30.0, 2.0, 7.0, 8.0, 6.0, 4.0, 3.0, 10.0]
    statistics = fit_table(
        tmp_path,
        {"a": values, "y": labels(100)},
        spec_of(numeric=("a",)),
        normalize={"scale": "robust"},
    )
    (column,) = statistics.numeric
    assert (column.method, column.center) == ("standard", pytest.approx(np.mean(values)))
    assert column.scale == pytest.approx(np.std(values))
    assert "IQR 0" in caplog.text and "a:" in caplog.text


@pytest.mark.req("D7")
def test_null_policy(tmp_path):
    values = numbers([1.0, None, 3.0, 8.0])
    whole = numbers([1.0, 2.0, 3.0, 8.0])
    columns = {"seen": values, "never": whole, "declared": whole, "strict": whole, "y": labels(4)}
    declared = {"declared": {"nullable": True}, "strict": {"nullable": False}}
    statistics = fit_table(
        tmp_path,
        columns,
        spec_of(numeric=("seen", "never", "declared", "strict")),
        columns=declared,
    )
    found = {s.name: (s.fill, s.indicator, s.nulls) for s in statistics.numeric}
    assert found == {
        "seen": (3.0, True, 1),
        "never": (None, False, 0),
        "declared": (2.5, False, 0),
        "strict": (None, False, 0),
    }
    assert statistics.num_numeric == 5
    quiet = fit_table(
        tmp_path, columns, spec_of(numeric=("seen",)), normalize={"indicators": False}
    )
    assert not quiet.numeric[0].indicator and quiet.num_numeric == 1


@pytest.mark.req("D7")
def test_vocabulary_order_rare_and_null(tmp_path):
    values = ["b", "b", "a", "a", "c", "d", None, "é", "é", "é"]
    columns = {"k": values, "y": labels(10)}
    spec = spec_of(categorical=("k",))
    (every,) = fit_table(tmp_path, columns, spec).categorical
    assert (every.values, every.counts, every.nulls, every.rare_rows) == (
        ("é", "a", "b", "c", "d"),
        (3, 2, 2, 1, 1),
        1,
        0,
    )
    (twice,) = fit_table(tmp_path, columns, spec, normalize={"min_count": 2}).categorical
    assert (twice.values, twice.rare_rows) == (("é", "a", "b"), 2)
    (most,) = fit_table(tmp_path, columns, spec, normalize={"max_categories": 2}).categorical
    assert (most.values, most.rare_rows) == (("é", "a"), 4)


@pytest.mark.req("D7")
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_tensor_moments_by_channel(tmp_path, dtype):
    rng = np.random.default_rng(1)
    flat = rng.integers(0, 255, (50, 6, 5)).astype(dtype)
    stack = (rng.normal(size=(50, 3, 4, 4)) * np.array([1, 100, 1e-3])[None, :, None, None]).astype(
        "float32"
    )
    stack[:, 2] = 7  # a channel without spread
    spec = spec_of(
        tensor={"flat": (6, 5), "stack": (3, 4, 4)},
        tensor_dtype={"flat": dtype, "stack": "float32"},
    )
    statistics = fit_table(
        tmp_path, {"flat": images(flat), "stack": images(stack), "y": labels(50)}, spec
    )
    one, three = statistics.tensor
    np.testing.assert_allclose(
        [one.mean[0], one.std[0]], [flat.astype(float).mean(), flat.astype(float).std()], rtol=1e-10
    )
    wide = stack.astype(np.float64)
    np.testing.assert_allclose(three.mean, wide.mean(axis=(0, 2, 3)), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(three.std, [*wide.std(axis=(0, 2, 3))[:2], 1.0], rtol=1e-8)


# ------------------------------------------------------------------------------ what cannot change
# it


@pytest.mark.req("D7")
@FEW
@given(
    seed=st.integers(0, 1000), scale=st.sampled_from(["standard", "robust", "smooth", "quantile"])
)
def test_row_order_and_threads_leave_the_statistics_byte_identical(tmp_path, seed, scale):
    columns, _ = table(rows=3000, seed=seed)
    columns["y"] = numbers(np.random.default_rng(seed + 1).lognormal(2, 3, 3000))
    columns["t"] = images(np.random.default_rng(seed).normal(size=(3000, 4)).astype("float32"))
    spec = spec_of(
        numeric=("a", "b", "c"),
        categorical=("k",),
        tensor={"t": (4,)},
        tensor_dtype={"t": "float32"},
        label_type="float",
    )
    declaration = declaration_of("regression", normalize={"scale": scale})
    order = pa.array(np.random.default_rng(seed).permutation(3000))
    shuffled = {
        n: (v if isinstance(v, pa.Array) else pa.array(v)).take(order) for n, v in columns.items()
    }
    digests = set()
    for name, content, threads, group in (
        ("one", columns, 1, 3000),
        ("two", columns, 2, 200),
        ("shuffled", shuffled, 2, 333),
    ):
        train = write_side(tmp_path / f"{name}.parquet", content, "train", row_group=group)
        with duckdb.connect(config={"threads": threads}) as connection:
            statistics = fit(train, spec, declaration, connection)
        digests.add(
            digest_of(statistics.model_copy(update={"train_sha256": "same rows in another file"}))
        )
    assert len(digests) == 1


@pytest.mark.req("D7")
@FEW
@given(
    values=st.lists(st.floats(-1e300, 1e300) | st.none(), min_size=2, max_size=60),
    seed=st.integers(0, 99),
)
def test_moments_of_any_numbers_are_exact_and_order_free(tmp_path, values, seed):
    present = [v for v in values if v is not None]
    if len(set(present)) < 2:
        return
    spec = spec_of(numeric=("a",))
    found = []
    for order in (
        values,
        np.random.default_rng(seed).permutation(np.array(values, dtype=object)).tolist(),
    ):
        statistics = fit_table(tmp_path, {"a": numbers(order), "y": labels(len(values))}, spec)
        found.append(digest_of(statistics.numeric[0]))
    column = statistics.numeric[0]
    biggest = max(map(abs, present))
    assert found[0] == found[1]
    assert column.mean == pytest.approx(
        math.fsum(v / len(present) for v in present), rel=1e-14, abs=biggest * 1e-15
    )
    deviations = [(v - column.mean) / biggest for v in present]
    assert column.std == pytest.approx(
        biggest * math.sqrt(math.fsum(d * d for d in deviations) / len(present)), rel=1e-9
    )


@pytest.mark.req("D7")
def test_refuses_anything_but_the_train_side(tmp_path):
    columns, _ = table(rows=20)
    declaration = declaration_of()
    val = write_side(tmp_path / "val.parquet", columns, "val")
    with pytest.raises(
        LeakageError,
        match=r"fitted on train only: expected a TrainTable made by the split, got ValTable",
    ):
        fit(val, SPEC, declaration)
    with pytest.raises(LeakageError, match="got TableRef"):
        fit(TableRef(file=val.file, rows=20), SPEC, declaration)
    with pytest.raises(LeakageError, match="says it holds 'val'"):
        fit(TrainTable(file=val.file, rows=20), SPEC, declaration)
    train = write_side(tmp_path / "train.parquet", columns, "train")
    pq.write_table(
        pq.read_table(train.file.path).replace_schema_metadata(None), tmp_path / "train.parquet"
    )
    with pytest.raises(IntegrityError, match="changed after it was written"):
        fit(train, SPEC, declaration)


# ------------------------------------------------------------------------------------ planted
# faults


@pytest.mark.req("S2")
def test_constant_features_are_refused_by_name_or_dropped_with_the_reason(tmp_path):
    columns, _ = table(rows=40, nulls=0)
    columns |= {
        "flat": [2.5] * 40,
        "empty": numbers([None] * 40),
        "one": ["x"] * 40,
        "half": numbers([7, None] * 20),
        "pic": images(np.zeros((40, 4), "uint8")),
    }
    spec = spec_of(
        numeric=("a", "flat", "empty", "half"),
        categorical=("k", "one"),
        tensor={"pic": (2, 2)},
        tensor_dtype={"pic": "uint8"},
    )
    with pytest.raises(
        DataError,
        match=(
            r"4 features say nothing.*40 train rows: flat \(always 2.5\), empty \(all null\), one"
            r" \(always 'x'\).*pic.*role ignore.*constant_features: drop"
        ),
    ) as caught:
        fit_table(tmp_path, columns, spec)
    assert "half" not in str(caught.value), "a constant with nulls still says which rows are null"
    statistics = fit_table(tmp_path, columns, spec, checks={"constant_features": "drop"})
    assert set(statistics.dropped) == {"flat", "empty", "one", "pic"}
    assert (
        [s.name for s in statistics.numeric] == ["a", "half"]
        and [s.name for s in statistics.categorical] == ["k"]
        and not statistics.tensor
    )
    assert statistics.numeric[1].scale == 1.0
    with pytest.raises(DataError, match="no feature is left: all 1 "):
        fit_table(
            tmp_path, columns, spec_of(numeric=("flat",)), checks={"constant_features": "drop"}
        )


@pytest.mark.req("S2")
def test_checks_hold_under_python_O(tmp_path):
    train = write_side(tmp_path / "train.parquet", {"a": [1.0, 1.0], "y": [0, 1]}, "train")
    code = f"""
from schemas.records import TrainTable
from tests.training.data.sides import declaration_of, spec_of
from training.data.fit.normalize import fit
try:
    fit(TrainTable.model_validate_json({train.model_dump_json()!r}), spec_of(numeric=("a",)), declaration_of())
except ValueError as error:
    print("refused:", error)
"""  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-O", "-c", code],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "refused: 1 feature says nothing" in done.stdout, done.stderr


@pytest.mark.req("S2")
@pytest.mark.parametrize("value", [math.inf, -math.inf, 1.1e300])
def test_values_that_no_statistic_survives_are_refused(tmp_path, value):
    with pytest.raises(
        DataError, match=r"expected finite numbers up to 1e\+300; 1 column holds others: a "
    ):
        fit_table(tmp_path, {"a": [1.0, value, 2.0], "y": [0, 1, 0]}, spec_of(numeric=("a",)))


# -------------------------------------------------------------------------------------------- label


@pytest.mark.req("D7")
@pytest.mark.parametrize(
    ("values", "kind", "positive", "classes"),
    [
        ([True, False, False], "bool", None, (False, True)),
        ([0, 1, 0], "int", 0, (1, 0)),
        (["NO", "<30", "NO"], "text", "<30", ("NO", "<30")),
        (["NO", "<30", "NO"], "text", None, ("<30", "NO")),
    ],
)
def test_binary_classes_are_negative_then_positive(tmp_path, values, kind, positive, classes):
    statistics = fit_table(
        tmp_path,
        {"a": [1.0, 2.0, 4.0], "y": values},
        spec_of(numeric=("a",), label_type=kind),
        task={"kind": "binary", "positive": positive},
    )
    assert statistics.classes == classes
    assert statistics.class_counts == tuple(values.count(c) for c in classes)
    assert statistics.class_weights == (1.0, 1.0)
    assert statistics.label_mean == pytest.approx(values.count(classes[1]) / 3)


@pytest.mark.req("D7")
def test_balanced_class_weights(tmp_path):
    values = ["b"] * 5 + ["a"] * 3 + ["c"] * 2
    statistics = fit_table(
        tmp_path,
        {"a": list(range(10)), "y": values},
        spec_of(numeric=("a",), label_type="text"),
        task={"kind": "multiclass"},
        loss={"class_weights": "balanced"},
    )
    assert (statistics.classes, statistics.class_counts) == (("a", "b", "c"), (3, 5, 2))
    assert statistics.class_weights == pytest.approx((10 / 9, 10 / 15, 10 / 6))


@pytest.mark.req("D7")
def test_regression_target(tmp_path):
    columns = {"a": [1.0, 2.0, 4.0], "y": [10, 20, 60]}
    scaled = fit_table(tmp_path, columns, spec_of(numeric=("a",)), task={"kind": "regression"})
    assert (scaled.target_center, scaled.target_scale) == (
        30.0,
        pytest.approx(np.std([10, 20, 60])),
    )
    plain = fit_table(
        tmp_path,
        columns,
        spec_of(numeric=("a",)),
        task={"kind": "regression"},
        normalize={"target": "none"},
    )
    assert (plain.target_center, plain.target_scale, plain.label_mean) == (0.0, 1.0, 30.0)


@pytest.mark.req("S2")
@pytest.mark.parametrize(
    ("values", "task", "message"),
    [
        ([1, 1, 1], {"kind": "binary"}, "expected at least two classes in train, got only 1"),
        ([0, 1, 2], {"kind": "binary"}, r"expects two classes, train has 3 \(0, 1, 2\)"),
        (
            ["no", "yes", "no"],
            {"kind": "binary", "positive": True},
            "task.positive is True, but the classes in train are 'no', 'yes'.*quote",
        ),
        ([4, 4, 4], {"kind": "regression"}, "expected a spread of values in train, all are 4.0"),
    ],
)
def test_labels_that_cannot_be_learned_are_refused(tmp_path, values, task, message):
    with pytest.raises(DataError, match=message):
        fit_table(tmp_path, {"a": [1.0, 2.0, 4.0], "y": values}, spec_of(numeric=("a",)), task=task)


@pytest.mark.req("R1")
@pytest.mark.parametrize("method", ["standard", "robust", "smooth", "quantile", "none"])
def test_float32_rows_give_the_very_numbers_of_float64_rows_where_that_loses_nothing(method):
    values = np.random.default_rng(3).normal([1013, 0, 1.7e9], [10, 1, 40], size=(500, 3))
    columns = [
        NumericStats(
            name=str(i),
            method=method,
            center=c.mean(),
            scale=c.std(),
            knots=tuple(np.quantile((c - c.mean()) / c.std(), np.linspace(0, 1, 9))),
            std=c.std(),
            min=c.min(),
            max=c.max(),
        )
        for i, c in enumerate(values.T)
    ]
    statistics = Statistics(
        train_sha256="", rows=500, numeric=tuple(columns), categorical=(), tensor=(), clip=10.0
    )
    assert rounded_columns(statistics).tolist() == [
        True,
        True,
        False,
    ], "a time stamp would lose its seconds"
    single = transform_numeric(values.astype("float32").astype("float64"), statistics)
    double = transform_numeric(values, statistics)
    np.testing.assert_array_equal(single[:, :2], double[:, :2])
    assert (single[:, 2] != double[:, 2]).any()
