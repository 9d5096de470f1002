"""Slices: a planted bad part is found and nothing else, sizes are respected, chances corrected."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from sklearn.metrics import roc_auc_score

from schemas.config import Threshold
from schemas.digest import file_ref
from schemas.errors import IntegrityError
from schemas.records import Interval, TableRef, TableSpec
from schemas.slice_records import Slices, SliceScore, slice_figures
from tests.training.test_evaluate import trained_run
from tests.training.toys import declare
from training.evaluation.evaluate import evaluate
from training.evaluation.slice_cuts import Columns, Cut, declared_cuts, default_cuts
from training.evaluation.slice_scores import Rows, score_slices
from training.registry.gate import slices_keep
from training.report.slice_section import slice_blocks

WARDS = 12


def scored_rows(
    rng: np.random.Generator, rows: int, bad: bool, groups: int | None = None
) -> tuple[Rows, list[Cut]]:
    """Scores of an honest model, or of one that knows nothing of ward 0, 5 % of the rows."""
    ward = rng.integers(1, WARDS, rows)
    ward[rng.random(rows) < 0.05] = 0
    group = None if groups is None else rng.integers(0, groups, rows)
    shared = 0.0 if group is None else rng.normal(size=groups)[group]
    age = rng.uniform(0, 4, rows)
    signal = 0.8 * rng.normal(size=rows) + 0.6 * shared + 0.5 * age - 1
    signal += 0.05 * ward  # base rates differ
    label = (rng.random(rows) < 1 / (1 + np.exp(1.2 - 1.5 * signal))).astype(np.int64)
    score = signal + 0.3 * rng.normal(size=rows)
    if bad:
        score[ward == 0] = rng.normal(size=int((ward == 0).sum()))
    probability = 1 / (1 + np.exp(-score))
    others = [
        Cut(f"c{k}", rng.integers(0, k + 2, rows), [f"v{i}" for i in range(k + 2)], [], False)
        for k in range(5)
    ]
    cuts = [Cut("ward", ward, [f"W{i}" for i in range(WARDS)], [], False), *others]
    cuts.append(Cut("age", age.astype(np.int64), ["a", "b", "c", "d"], [], False))
    cuts = [cut._replace(kinds=["category"] * len(cut.names)) for cut in cuts]
    resampling = {"group": group, "weight": None, "resamples": 200, "confidence": 0.95}
    resampling |= {"seed": 0, "labels": (), "threshold": 0.5}
    predictions = np.stack([1 - probability, probability], axis=1)
    return Rows(declare("binary"), predictions, label, resampling), cuts


def worse(found: Slices | None) -> list[str]:
    assert found is not None
    return [one.name for one in found.worse]


# ----------------------------------------------------------------------------------- what is found


@pytest.mark.req("P8")
@pytest.mark.parametrize("groups", [1500, pytest.param(None, marks=pytest.mark.long)])
def test_a_bad_ward_of_a_twentieth_is_found_and_no_other(groups: int | None) -> None:
    rows, cuts = scored_rows(np.random.default_rng(1), 5000, bad=True, groups=groups)
    found = score_slices(rows, cuts, ())
    assert worse(found) == ["ward: W0"]
    assert found is not None and found.scores[0].value == "W0"  # the worst first
    assert found.looked_at == WARDS + sum(range(2, 7)) + 4


@pytest.mark.long
@pytest.mark.req("P8")
def test_an_honest_run_names_no_slice_though_each_range_of_a_feature_ranks_worse() -> None:
    rows, cuts = scored_rows(np.random.default_rng(2), 5000, bad=False)
    found = score_slices(rows, cuts, ())
    assert worse(found) == []
    whole = roc_auc_score(rows.target, rows.predictions[:, 1])
    ages = [one.score.value for one in found.scores if one.column == "age"]  # type: ignore[union-attr]
    assert len(ages) == 4 and all(value is not None and value < whole - 0.02 for value in ages)


@pytest.mark.long
@pytest.mark.req("P8")
@pytest.mark.parametrize(("groups", "bad"), [(None, False), (1500, False), (None, True)])
def test_of_100_runs_at_most_5_name_a_wrong_slice(groups: int | None, bad: bool) -> None:
    named = Counter(
        name
        for seed in range(100)
        for name in worse(
            score_slices(*scored_rows(np.random.default_rng(seed), 8000, bad, groups), ())
        )
    )
    assert named.pop("ward: W0", 0) >= (95 if bad else 0)
    assert sum(named.values()) <= 5


@pytest.mark.req("P8")
def test_a_regression_is_worse_where_its_errors_are_larger() -> None:
    rng = np.random.default_rng(3)
    ward, target = rng.integers(0, 5, 2000), rng.normal(size=2000)
    noise = rng.normal(size=2000) * np.where(ward == 3, 0.9, 0.5)
    base, _ = scored_rows(rng, 100, bad=False)
    rows = Rows(declare("regression"), target + noise, target, base.resampling)
    cut = Cut("ward", ward, list("ABCDE"), ["category"] * 5, False)
    assert worse(score_slices(rows, [cut], ())) == ["ward: D"]


# -------------------------------------------------------------------------------- sizes, intervals


@pytest.mark.req("P8")
def test_small_slices_are_counted_and_not_scored() -> None:
    rows, _ = scored_rows(np.random.default_rng(4), 1000, bad=False)
    code = np.zeros(1000, dtype=np.int64)
    code[:49] = 1  # too few rows
    code[np.flatnonzero(rows.target == 1)[-9:]] = 2
    code[np.flatnonzero(rows.target == 0)[-60:]] = 2  # too few positives
    found = score_slices(rows, [Cut("k", code, ["big", "few", "rare"], ["category"] * 3, True)], ())
    assert found is not None
    assert [one.value for one in found.scores] == ["big"] and found.small == 2
    assert found.looked_at == 0 and found.scores[0].chance is None  # nothing to compare with


@pytest.mark.req("P8")
def test_groups_that_are_few_make_no_slice() -> None:
    rows, _ = scored_rows(np.random.default_rng(5), 1000, bad=False, groups=40)
    few = (rows.resampling["group"] < 9).astype(np.int64)  # 9 groups, over 200 rows
    found = score_slices(rows, [Cut("k", few, ["many", "few"], ["category"] * 2, False)], ())
    assert found is not None and [one.value for one in found.scores] == ["many"]


@pytest.mark.req("P8")
def test_a_large_slice_has_the_metric_of_all_its_rows_and_a_narrow_interval() -> None:
    rows, _ = scored_rows(np.random.default_rng(6), 30_000, bad=False)
    half = (np.arange(30_000) % 2).astype(np.int64)
    found = score_slices(rows, [Cut("k", half, ["a", "b"], ["category"] * 2, True)], ())
    assert found is not None
    for one in found.scores:
        mine = half == (one.value == "b")
        wanted = roc_auc_score(rows.target[mine], rows.predictions[mine, 1])
        assert one.score.value == pytest.approx(wanted, rel=1e-12)
        assert one.metrics["auroc"] == one.score.value and "log_loss" in one.metrics
        assert one.score.low is not None and one.score.high is not None
        assert 0.005 < one.score.high - one.score.low < 0.03


# -------------------------------------------------------------------------------------------- cuts


def table_of(folder: Path, rows: int = 400) -> tuple[TableRef, TableSpec, Any]:
    """A side's table with every kind of column that can be cut."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "__id": [f"r{i}" for i in range(rows)],
        "__group": [f"p{i // 4}" for i in range(rows)],
        "__time": rng.uniform(1.6e9, 1.63e9, rows),
        "age": pa.array([None if i % 5 == 0 else float(i % 60) for i in range(rows)], pa.float64()),
        "beds": rng.integers(1, 5, rows).astype(float),
        "ward": pa.array([None if i % 10 == 0 else f"W{i % 3}" for i in range(rows)]),
        "code": [f"c{min(i, 39)}" for i in range(rows)],
    }
    pq.write_table(pa.table(columns), folder / "test.parquet")
    spec = TableSpec(
        id=("id",),
        group=("patient",),
        time="seen",
        time_is_timestamp=True,
        label="y",
        label_type="int",
        weight=None,
        split=None,
        numeric=("age", "beds"),
        categorical=("ward", "code"),
        tensor={},
    )
    ids = pq.read_table(folder / "test.parquet", columns=["__id"]).to_pandas()["__id"]
    return TableRef(file=file_ref(folder / "test.parquet"), rows=rows), spec, ids


@pytest.mark.req("P8")
def test_by_default_categories_missing_values_and_periods_are_cut(tmp_path: Path) -> None:
    cuts, notes = default_cuts(declare("binary"), Columns(*table_of(tmp_path)))
    assert notes == []
    found = {cut.column: cut for cut in cuts}
    assert list(found) == ["ward", "code", "age", "seen"]  # beds: a number without nulls
    assert sorted(found["ward"].names) == ["W0", "W1", "W2", "missing"]
    assert found["code"].names[0] == "c39" and found["code"].names[-1] == "25 other values"
    assert found["age"].names == ["missing", "known"]
    assert np.bincount(found["age"].codes).tolist() == [80, 320]
    assert found["seen"].kinds == ["time"] * 4
    assert np.bincount(found["seen"].codes).tolist() == [100] * 4
    assert all((cut.codes >= 0).all() and len(cut.codes) == 400 for cut in cuts)


@pytest.mark.req("P8")
def test_declared_columns_are_cut_as_declared(tmp_path: Path) -> None:
    wanted: list[Any] = ["ward", {"age": {"bins": 5}}, "beds", "patient", "seen", "gone"]
    declaration = declare("binary", evaluate={"slices": wanted})
    cuts, notes = declared_cuts(declaration, Columns(*table_of(tmp_path)))
    found = {cut.column: cut for cut in cuts}
    assert len(found["age"].names) == 6 and found["age"].names[-1] == "missing"
    assert found["beds"].names == ["1", "2", "3", "4"]
    assert found["patient"].is_group and found["seen"].kinds[0] == "time"
    assert notes == ["gone was not cut: the prepared rows hold no such number or category"]
    assert all(cut.declared for cut in cuts)


@pytest.mark.req("P8")
def test_rows_of_another_table_are_refused(tmp_path: Path) -> None:
    table, spec, ids = table_of(tmp_path)
    with pytest.raises(IntegrityError, match="in their order"):
        Columns(table, spec, ids[::-1])


# ------------------------------------------------------------------------------- declaration, gate


@pytest.mark.req("C2")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("y", "has role label"),
        ("gone", "is not in data.columns"),
        ("secret", "has role ignore, so prepared rows do not hold its values"),
        ("scan", "is of kind tensor"),
        ("born", "is of kind date, which has no slices; slice by the time"),
    ],
)
def test_a_column_without_values_is_refused_at_declaration(name: str, why: str) -> None:
    columns = {"y": "label", "secret": "ignore", "x*": "feature", "born": "date"}
    columns |= {"scan": {"kind": "tensor", "shape": [2, 2]}}  # type: ignore[dict-item]
    data = {"uri": "t.parquet", "columns": columns}
    with pytest.raises(ValidationError, match=why):
        declare("binary", data=data, evaluate={"slices": [name]})
    declare("binary", data=data, evaluate={"slices": ["x1", {"x2": {"bins": 3}}]})


@pytest.mark.req("C2")
def test_slices_are_read_back_as_written_and_change_no_old_declaration() -> None:
    plain = declare("binary").model_dump(mode="json", by_alias=True)
    assert "slices" not in plain["evaluate"] and "slices" not in plain["register"]
    wanted = declare("binary", evaluate={"slices": ["a", {"b": {"bins": 3}}, {"column": "c"}]})
    again = type(wanted).model_validate(wanted.model_dump(mode="json", by_alias=True))
    assert again == wanted and [s.column for s in again.evaluate.slices or ()] == ["a", "b", "c"]
    with pytest.raises(ValidationError, match="named twice"):
        declare("binary", evaluate={"slices": ["a", {"a": {"bins": 3}}]})
    with pytest.raises(ValidationError, match=r"register\.slices bounds the slices"):
        declare("binary", register={"slices": {"auroc": {"min": 0.6}}})
    with pytest.raises(ValidationError, match=r"register\.slices: unknown metric 'rmse'"):
        declare("binary", evaluate={"slices": ["a"]}, register={"slices": {"rmse": {"max": 1}}})


def made(**values: float | None) -> Slices:
    scores = tuple(
        SliceScore(
            column="ward",
            value=name,
            kind="category",
            rows=100,
            units=100,
            score=Interval(value=value),
            declared=True,
            metrics={"auroc": value},
        )
        for name, value in values.items()
    )
    return Slices(metric="auroc", scores=scores, looked_at=len(scores), small=0, limit=0.025)


@pytest.mark.req("R2")
def test_the_gate_refuses_a_bad_slice_by_name() -> None:
    bounds = {"auroc": Threshold(min=0.6)}
    (kept,) = slices_keep(bounds, made(A=0.7, B=0.61))
    assert (kept.name, kept.verdict) == ("slices: auroc", "pass")
    assert kept.summary == "test auroc is at least 0.6 on each of 2 slices"
    (broken,) = slices_keep(bounds, made(A=0.7, B=0.59, C=None))
    assert broken.verdict == "fail" and "slices.auroc" in broken.remedy
    assert broken.summary == (
        "test auroc of slice ward: B (0.5900), ward: C (–), expected at least 0.6 on each"
    )
    assert slices_keep(bounds, None)[0].verdict == "fail"
    assert slices_keep({}, None) == ()


@pytest.mark.req("T6")
def test_only_declared_slices_are_metrics_of_the_run() -> None:
    assert slice_figures(made(A=0.7)) == {"slice/ward/A/auroc": 0.7}
    hidden = made(A=0.7).scores[0].model_copy(update={"declared": False})
    assert slice_figures(made(A=0.7).model_copy(update={"scores": (hidden,)})) == {}


@pytest.mark.req("P8")
def test_the_record_and_the_report_hold_the_slices(tmp_path: Path) -> None:
    run, weights = trained_run(tmp_path, "binary")
    ids = pq.read_table(run.arrays.test.ids.path)["__id"]
    shape = np.where(np.arange(200) % 2 > 0, "round", "flat")
    pq.write_table(pa.table({"__id": ids, "shape": shape}), tmp_path / "test.parquet")
    table = TableRef(file=file_ref(tmp_path / "test.parquet"), rows=200)
    run = run.model_copy(
        update={"spec": run.spec.model_copy(update={"categorical": ("shape",), "numeric": ()})}
    )
    report = evaluate(run, weights, "test", tmp_path / "evaluation", table=table)
    assert report.slices is not None
    assert sorted(one.name for one in report.slices.scores) == ["shape: flat", "shape: round"]
    assert type(report).model_validate_json(report.model_dump_json()) == report
    blocks = slice_blocks(report)
    assert [type(block).__name__ for block in blocks] == ["Words", "Table", "Words"]
    assert slice_blocks(report.model_copy(update={"slices": None})) == []
