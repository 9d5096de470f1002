"""Several labels on the data path: unknown stays unknown, whatever it is filled with; statistics
are over the known rows of train.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from schemas.errors import DataError, SchemaError, SplitError
from schemas.records import ArraysRef
from tests.training.data.chain import declared, split_of, validated_of, write_table
from tests.training.label_cases import label_rows, make_label_case
from training.data.arrays.shards import load_arrays
from training.data.fit.normalize import fit
from training.data.leakage import check_leakage

SIDES = ("train", "val", "test")


def files_of(arrays: ArraysRef) -> dict[str, str]:
    return {
        f"{side}/{name}": ref.sha256
        for side in SIDES
        for name, ref in arrays.side(side).arrays.items()
    }


@pytest.mark.req("M3")
@pytest.mark.parametrize("task", ["multilabel", "multitask"])
def test_arrays_hold_the_known_labels_and_nan_for_the_others(tmp_path: Path, task: str) -> None:
    case = make_label_case(tmp_path, task)
    raw = case.raw.set_index("row")
    for side in SIDES:
        ref = case.run.arrays.side(side)
        label, ids = load_arrays(ref, verify=True)["label"], pq.read_table(ref.ids.path).to_pandas()
        assert label.dtype == np.float32 and label.shape == (ref.rows, 3)
        rows = raw.loc[ids["__id"]]
        for i, fitted in enumerate(case.run.statistics.labels):
            known = rows[fitted.name].notna().to_numpy()
            np.testing.assert_array_equal(~np.isnan(label[:, i]), known)
            given = rows[fitted.name].to_numpy()[known]
            stored = label[known, i].astype(np.float64)
            found = (
                np.array(fitted.classes)[stored.astype(int)]
                if fitted.classes
                else stored * fitted.target_scale + fitted.target_center
            )
            assert (
                (found == given).all()
                if fitted.classes
                else np.allclose(found, given.astype(float), atol=1e-4)
            )
            assert (ids[f"label_{fitted.name}"].isna().to_numpy() == ~known).all()


@pytest.mark.req("D7")
def test_each_label_is_fitted_on_the_train_rows_that_know_it(tmp_path: Path) -> None:
    frame = label_rows()
    frame["importance"] = np.random.default_rng(1).uniform(0.1, 3.0, len(frame))
    weighted = make_label_case(
        tmp_path,
        "multitask",
        frame,
        data={
            "uri": str(tmp_path / "rows.parquet"),
            "null_labels": "drop",
            "columns": weighted_columns(),
        },
    )
    ids = pq.read_table(weighted.run.arrays.train.ids.path, columns=["__id"]).column(0).to_pylist()
    rows, total = (
        frame.set_index("row").loc[ids],
        frame.set_index("row").loc[ids, "importance"].sum(),
    )
    toxic, stage, dose = weighted.run.statistics.labels
    for fitted in (toxic, stage, dose):
        known = rows[rows[fitted.name].notna()]
        assert fitted.known == len(known)
        assert fitted.share == pytest.approx(known["importance"].sum() / total, rel=1e-12)
    assert toxic.classes == ("no", "yes") and stage.class_counts == tuple(
        (rows["stage"] == k).sum() for k in (1, 2, 3)
    )
    assert dose.target_center == pytest.approx(
        rows["dose"].mean()
    ) and dose.target_scale == pytest.approx(rows["dose"].std(ddof=0))
    plain = make_label_case(tmp_path / "plain", "multitask")
    assert (
        plain.run.statistics.labels[2].share
        == plain.run.statistics.labels[2].known / plain.run.statistics.rows
    )


def weighted_columns() -> dict[str, Any]:
    return {
        "row": "id",
        "x*": "numeric",
        "importance": "weight",
        "toxic": "label",
        "stage": "label",
        "dose": "label",
        "*": "ignore",
    }


@pytest.mark.req("M3")
def test_a_value_that_means_unknown_is_as_good_as_a_null(tmp_path: Path) -> None:
    frame = label_rows()
    marked = frame.assign(stage=frame["stage"].fillna(9))
    nulls, values = (
        make_label_case(tmp_path / "a", "multitask", frame),
        make_label_case(tmp_path / "b", "multitask", marked),
    )
    assert files_of(nulls.run.arrays) == files_of(values.run.arrays)
    assert values.validated.ignored_labels == {
        "stage": int(frame["stage"].isna().sum())
    } and nulls.validated.ignored_labels == {"stage": 0}
    other = make_label_case(
        tmp_path / "c", "multitask", frame.assign(stage=frame["stage"].fillna(2))
    )
    assert files_of(other.run.arrays) != files_of(nulls.run.arrays), "a known value counts"


@pytest.mark.req("M3")
@pytest.mark.parametrize(
    ("task", "label", "ignore", "kept"),
    [
        ("binary", ["no", "yes", "n/k", "yes"], ["n/k"], 3),
        ("multiclass", [1, 2, -1, 3], [-1], 3),
        ("regression", [0.5, 1.5, -999.0, 2.0], [-999], 3),
    ],
)
def test_a_single_label_that_means_unknown_leaves_its_row_out(
    tmp_path: Path, task: str, label: list[Any], ignore: list[Any], kept: int
) -> None:
    path = write_table(
        tmp_path / "t.parquet", {"id": [1, 2, 3, 4], "x": [1.0, 2.0, 3.0, 4.0], "y": label}
    )
    found = validated_of(declared(path, task={"kind": task, "ignore": ignore}), tmp_path)
    assert (found.table.rows, found.unlabelled_rows, found.ignored_labels) == (kept, 0, {"y": 1})
    with pytest.raises(SchemaError, match=r"null labels 0, task.ignore 4"):
        validated_of(declared(path, task={"kind": task, "ignore": label}), tmp_path)
    null = write_table(
        tmp_path / "n.parquet",
        {"id": [1, 2, 3, 4], "x": [1.0, 2.0, 3.0, 4.0], "y": [label[0], label[1], None, label[2]]},
    )
    with pytest.raises(SchemaError, match="expected a label in each row, but 1 row has not"):
        validated_of(declared(null, task={"kind": task, "ignore": ignore}), tmp_path)
    dropped = validated_of(
        declared(null, task={"kind": task, "ignore": ignore}, data={"null_labels": "drop"}),
        tmp_path,
    )
    assert (dropped.table.rows, dropped.unlabelled_rows, dropped.ignored_labels) == (2, 1, {"y": 1})


LABELLED = {"id": "id", "a": "label", "b": "label", "*": "feature"}


def table_of(path: Path, a: list[Any], b: list[Any]) -> Path:
    frame = pd.DataFrame(
        {
            "id": range(len(a)),
            "x": np.arange(len(a)) * 1.5,
            "a": pd.Series(a, dtype="Int64"),
            "b": pd.Series(b, dtype="Int64"),
        }
    )
    frame.to_parquet(path, index=False)
    return path


@pytest.mark.req("S2")
def test_a_row_without_any_label_is_refused_by_id_or_dropped(tmp_path: Path) -> None:
    path = table_of(tmp_path / "t.parquet", [0, 1, None, None], [1, 0, None, 1])
    with pytest.raises(
        SchemaError,
        match=r"1 row has none of the 2 labels, first ids: 2; set data.null_labels: drop",
    ):
        validated_of(declared(path, LABELLED, "multilabel"), tmp_path)
    found = validated_of(
        declared(path, LABELLED, "multilabel", data={"null_labels": "drop"}), tmp_path
    )
    assert (found.table.rows, found.unlabelled_rows) == (3, 1)


@pytest.mark.req("S2")
@pytest.mark.parametrize(
    ("a", "task", "message"),
    [
        (
            [0, 0, None, 0],
            {"kind": "multilabel"},
            r"column 'a': expected at least two classes, got one: 0 \(3 rows\)",
        ),
        (
            [0, 1, 2, None],
            {"kind": "multilabel"},
            r"a binary label has two values, got 3: .*set task.labels.a.kind: multiclass",
        ),
        (
            [0, 1, 1, None],
            {"kind": "multilabel", "labels": {"a": {"positive": 7}}},
            r"task.labels.a.positive: expected one of the label's values .*got 7",
        ),
        (
            [0, 1, 1, None],
            {"kind": "multilabel", "ignore": ["x"]},
            (
                r"column 'a' \(role label\): task.ignore must hold numbers, as the column does,"
                r" got 'x'"
            ),
        ),
        (
            [None] * 4,
            {"kind": "multitask", "labels": {"a": "regression", "b": "binary"}},
            "column 'a': expected values of the label, got nulls only",
        ),
    ],
)
def test_labels_that_do_not_suit_their_kind_are_refused(
    tmp_path: Path, a: list[Any], task: dict[str, Any], message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        validated_of(
            declared(table_of(tmp_path / "t.parquet", a, [1, 0, 1, 0]), LABELLED, task), tmp_path
        )


def test_a_pattern_that_finds_one_label_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SchemaError, match=r"expected several columns with role label .* got only 'a'"
    ):
        validated_of(
            declared(
                table_of(tmp_path / "t.parquet", [0, 1], [1, 0]),
                {"id": "id", "a*": "label", "*": "feature"},
                "multilabel",
            ),
            tmp_path,
        )


@pytest.mark.req("S2")
def test_a_label_of_one_class_in_train_is_refused_and_elsewhere_allowed(tmp_path: Path) -> None:
    rows = 60
    side = ["train"] * 40 + ["val"] * 10 + ["test"] * 10
    a, b = [i % 2 for i in range(rows)], [0] * 40 + [i % 2 for i in range(20)]
    columns = {**LABELLED, "s": "split"}
    frame = pd.DataFrame({"id": range(rows), "x": np.arange(rows) * 1.0, "a": a, "b": b, "s": side})
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    with pytest.raises(
        SplitError,
        match=(
            r"column 'b': expected at least two classes in train, got only '0' \(40 rows\).* or"
            r" leave this label out"
        ),
    ):
        split_of(declared(tmp_path / "t.parquet", columns, "multilabel", "predefined"), tmp_path)
    later = pd.array([i % 2 for i in range(40)] + [0] * 10 + [None] * 10, dtype="Int64")
    frame.assign(b=later).to_parquet(tmp_path / "u.parquet", index=False)
    validated, sides = split_of(
        declared(tmp_path / "u.parquet", columns, "multilabel", "predefined"), tmp_path / "u"
    )
    assert sides.summary["val"]["labels"]["b"] == {"counts": {"0": 10}} and sides.summary["test"][
        "labels"
    ]["b"] == {"counts": {}}
    assert (
        len(
            fit(
                sides.train,
                validated.spec,
                declared(tmp_path / "u.parquet", columns, "multilabel", "predefined"),
            ).labels
        )
        == 2
    )


@pytest.mark.req("D6")
def test_labels_of_equal_rows_conflict_where_both_know_them(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "id": range(9),
            "x": [1, 2, 3] * 3,
            "a": [0, 1, None, 0, 1, 1, 0, 1, 1],
            "b": [1, None, 0, 0, 0, 0, 1, 0, 0],
        }
    )
    frame["s"] = ["train"] * 3 + ["val"] * 3 + ["test"] * 3
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    declaration = declared(
        tmp_path / "t.parquet",
        {**LABELLED, "s": "split"},
        "multilabel",
        "predefined",
        checks={"max_duplicate_share": 1.0},
    )
    validated, sides = split_of(declaration, tmp_path)
    found = next(
        r for r in check_leakage(sides, validated, declaration).results if r.name == "duplicates"
    )
    assert (
        "3 of 3 val rows (100.00%) equal a train row in every feature, 1 of them with another label"
        in found.summary
    )  # id 3 knows another b
    assert (
        "3 of 3 test rows (100.00%) equal a train row in every feature, 0 of them with another"
        " label" in found.summary
    )
    assert {e.get("val_id", e.get("test_id")): e["label"] for e in found.evidence}["3"] in (
        "0.0, 0.0",
        "0.0, 0",
    )


@pytest.mark.req("M3")
def test_declared_class_weights_are_those_of_the_fit_and_a_wrong_class_is_refused(
    tmp_path: Path,
) -> None:
    path = write_table(
        tmp_path / "t.parquet",
        {
            "id": list(range(240)),
            "x": [float(i) for i in range(240)],
            "y": ["low", "mid", "high", "high"] * 60,
        },
    )
    declaration = declared(
        path, task="multiclass", loss={"class_weights": {"high": 0.25, "mid": 3}}
    )
    validated, sides = split_of(declaration, tmp_path)
    fitted = fit(sides.train, validated.spec, declaration)
    assert dict(zip(fitted.classes, fitted.class_weights, strict=True)) == {
        "high": 0.25,
        "low": 1.0,
        "mid": 3.0,
    }
    with pytest.raises(
        DataError,
        match=(
            r"loss.class_weights names 'hihg', but the classes in train are 'high', 'low', 'mid';"
            r" name those"
        ),
    ):
        fit(
            sides.train,
            validated.spec,
            declared(path, task="multiclass", loss={"class_weights": {"hihg": 2}}),
        )
