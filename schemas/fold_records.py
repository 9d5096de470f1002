"""Results of a cross-validation: the metrics of each fold, their mean and spread."""

from __future__ import annotations

from typing import Any

from schemas.records import CheckReport, Interval, Record
from schemas.split_config import SplitName


class FoldResult(Record):
    """One fold, trained and tested.

    `number` counts from 1. `excluded`: rows on no side, by reason. `plan`: where its blocks or keys
    lie. `metrics`: of its test rows, with bootstrap intervals. `baselines`: name → metric → value
    on the same rows.
    """

    number: int
    rows: dict[SplitName, int]
    excluded: dict[str, int]
    plan: dict[str, Any]
    metrics: dict[str, Interval]
    baselines: dict[str, dict[str, float | None]]
    epochs: int
    best_step: int
    seconds: float
    model_sha256: str
    checks: CheckReport
    run_dir: str
    mlflow_run_id: str


class Spread(Record):
    """A metric over folds: mean, standard deviation (n - 1; null of a single fold), least,
    greatest; null where it is defined in none.

    `folds`: in how many it is defined. The standard deviation says how much folds differ; it is no
    error of the mean, because folds share rows to train on.
    """

    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    folds: int


class CrossValidation(Record):
    """The outcome of a cross-validation; nothing is registered.

    `metrics`: over the folds' test rows. `baselines`: name → metric → spread. `coverage`: the check
    over all folds.
    """

    name: str
    run_id: str
    run_dir: str
    task: str
    label: str
    kind: str
    metric: str
    folds: tuple[FoldResult, ...]
    metrics: dict[str, Spread]
    baselines: dict[str, dict[str, Spread]]
    coverage: CheckReport
    verdict: str
    report: str
    tracking_uri: str
    mlflow_run_id: str
    flow_run_id: str | None
