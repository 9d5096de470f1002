"""Preflight on several labels: what is planted is found, and a clean case passes (see
test_label_runs.py for that).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from schemas.digest import file_ref
from schemas.errors import PreflightError
from schemas.records import CheckResult, RunSpec, SplitArrays
from tests.training.label_cases import LabelCase, make_label_case
from tests.training.test_label_losses import MIXED, THREE, labels_of, problem
from training.objectives.targets import targets_of
from training.preflight.label_checks import check_labels
from training.preflight.run import preflight
from training.preflight.subject import rarest_class, spread_rows

Plant = Callable[[np.ndarray], None]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> LabelCase:
    return make_label_case(tmp_path_factory.mktemp("labels"), "multitask")


def planted(case: LabelCase, folder: Path, **faults: Plant) -> RunSpec:
    """The run with a side's label array changed."""
    arrays = case.run.arrays
    for side, plant in faults.items():
        ref: SplitArrays = getattr(arrays, side)
        label = np.load(ref.arrays["label"].path)
        plant(label)
        np.save(folder / f"{side}.npy", label)
        arrays = arrays.model_copy(
            update={
                side: ref.model_copy(
                    update={"arrays": ref.arrays | {"label": file_ref(folder / f"{side}.npy")}}
                )
            }
        )
    return case.run.model_copy(update={"arrays": arrays})


def checked(run: RunSpec, case: LabelCase) -> CheckResult:
    return check_labels(case.declaration, run.statistics, run.arrays)


def fill(column: int, value: float, rows: slice = slice(None)) -> Plant:
    def plant(label: np.ndarray) -> None:
        label[rows, column] = value

    return plant


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    ("side", "plant", "message"),
    [
        (
            "train",
            fill(1, 3.0, slice(4, 6)),
            (
                r"train: label 'stage': expected class indices 0 to 2 \(1, 2, 3\) or NaN, found 3.0"
                r" in 2 rows \(first: 4, 5\)"
            ),
        ),
        (
            "val",
            fill(0, 0.5, slice(1)),
            (
                r"val: label 'toxic': expected class indices 0 to 1 \(no, yes\) or NaN, found 0.5"
                r" in 1 rows"
            ),
        ),
        (
            "train",
            fill(2, np.inf, slice(1)),
            "train: label 'dose': expected finite values or NaN, found inf in 1 rows",
        ),
        (
            "train",
            fill(0, np.nan),
            "train: 'toxic' has fewer than two different values; there is nothing to learn",
        ),
        (
            "val",
            lambda label: label.fill(np.nan),
            "val: no label has two different values, so no best weights can be chosen",
        ),
    ],
)
def test_labels_that_cannot_be_trained_on_stop_the_run(
    case: LabelCase, tmp_path: Path, side: str, plant: Plant, message: str
) -> None:
    with pytest.raises(PreflightError, match=message):
        preflight(planted(case, tmp_path, **{side: plant}))


@pytest.mark.req("M4")
def test_a_label_that_validation_cannot_judge_is_a_warning(case: LabelCase, tmp_path: Path) -> None:
    assert checked(case.run, case).verdict == "pass"
    found = checked(planted(case, tmp_path, val=fill(0, 1.0)), case)
    assert (
        found.verdict == "warn"
        and found.summary
        == "val: 'toxic' has fewer than two different values: means over labels count the other 2."
    )


@pytest.mark.req("M4")
def test_two_labels_under_one_name_are_refused(case: LabelCase) -> None:
    toxic, stage, dose = case.run.statistics.labels
    renamed = case.run.statistics.model_copy(
        update={"labels": (toxic.model_copy(update={"name": "stage_1"}), stage, dose)}
    )
    found = check_labels(case.declaration, renamed, case.run.arrays)
    assert (
        found.verdict == "fail"
        and "two labels would be given out as 'probability_stage_1'" in found.summary
    )


def test_the_rows_looked_at_hold_every_class_of_every_label() -> None:
    for kinds in (THREE, MIXED):
        label = labels_of(kinds, rows=400, missing=0.5).numpy()
        # positives of the first label become rare
        label[30:, 0] = np.where(np.isnan(label[30:, 0]), np.nan, 0.0)
        declaration, statistics = problem(
            (
                {"kind": "multilabel"}
                if kinds == THREE
                else {"kind": "multitask", "labels": dict(MIXED)}
            ),
            kinds,
            labels_of(kinds),
        )
        labels = targets_of(declaration, statistics)
        inputs = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
        probe = spread_rows({"numeric": inputs, "label": label.astype(np.float32)}, 32, labels)
        for i, target in enumerate(labels):
            values = probe.label[:, i][~probe.label[:, i].isnan()]
            wanted = 2 if target.kind == "regression" else len(target.statistics.classes)
            assert (
                len(set((values > 0).tolist() if target.kind == "regression" else values.tolist()))
                == wanted
            ), target.name
        codes = rarest_class(label, labels)
        assert (
            set(codes[np.isnan(label).all(axis=1)].tolist()) <= {-1}
            and (codes[~np.isnan(label).all(axis=1)] >= 0).all()
        )
