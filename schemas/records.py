"""References and reports that tasks pass on: small, frozen, JSON round-trip; never tables.

A reference names a file by path, SHA-256 and rows. `TrainTable`, `ValTable` and `TestTable` are made by
`training.data.split` alone; every `fit_*` takes a `TrainTable` and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from schemas.config import SplitName

Verdict = Literal["pass", "warn", "fail", "allowed"]


class Record(BaseModel):
    """Frozen, unknown keys refused, JSON round-trip."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def digest_of(value: Any) -> str:
    """SHA-256 of the canonical JSON (sorted keys, no spaces) of a JSON-able value or record."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


# -------------------------------------------------------------------------------------- references


class FileRef(Record):
    """One file: absolute path, SHA-256 of its bytes, size in bytes."""

    path: str
    sha256: str
    num_bytes: int

    @property
    def file(self) -> Path:
        """The path as a `Path`."""
        return Path(self.path)


class SourceRef(Record):
    """The source files in sorted order and the SHA-256 over their digests (names do not count)."""

    uri: tuple[str, ...]
    format: Literal["parquet", "csv", "arrow"]
    files: tuple[FileRef, ...]
    sha256: str


class TableSpec(Record):
    """What each column of the validated table is; made from the declaration and the source's types.

    The validated table has these columns under their own names (numeric as float64, categorical as text,
    tensors as fixed-size lists) and three of ours: `__id` (text, unique), `__key` (text: what the split
    hashes when no group is declared) and `__group` (text or null; several group columns joined).
    `__time` is float64: UTC epoch seconds of a date or timestamp column, or the number itself.

    `derived`: trees of the derived features (see `training.data.serving_expressions`), by which the registered model
    computes them. `null_texts`: texts that a delimited source had for null.
    """

    id: tuple[str, ...]
    group: tuple[str, ...]
    time: str | None
    time_is_timestamp: bool = False
    label: str
    label_type: Literal["bool", "int", "float", "text"]
    weight: str | None
    split: str | None
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    tensor: dict[str, tuple[int, ...]]
    tensor_dtype: dict[str, Literal["uint8", "float32"]] = {}
    integer: tuple[str, ...] = ()
    boolean: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    derived: dict[str, dict[str, Any]] = {}
    null_texts: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """Feature columns in model order: numeric, categorical, tensors."""
        return (*self.numeric, *self.categorical, *self.tensor)


class TableRef(Record):
    """A Parquet file between tasks."""

    file: FileRef
    rows: int


class TrainTable(TableRef):
    """Rows that may be fitted on. Only the split makes one."""

    side: Literal["train"] = "train"


class ValTable(TableRef):
    """Rows that choose among models; nothing is fitted on them."""

    side: Literal["val"] = "val"


class TestTable(TableRef):
    """Rows that are scored once."""

    __test__ = False  # not a pytest class
    side: Literal["test"] = "test"


class ValidatedTable(Record):
    """The outcome of validation: the typed table, what its columns are, what was left out.

    `raw_rows`: Parquet with `__id` and, for some of the rows, the source columns that derived features are made of;
    the export is tried on them. Null where no feature is derived.
    """

    table: TableRef
    spec: TableSpec
    raw_rows: FileRef | None = None
    filtered_rows: int = 0
    unlabelled_rows: int = 0


class SplitTables(Record):
    """The three sides as separate files, and how they came about.

    `excluded`: rows on no side, by reason (`embargo`, `group_time`). `plan`: the strategy with its
    resolved cut points. `summary`: per side rows, groups, first and last time, label figures.
    """

    train: TrainTable
    val: ValTable
    test: TestTable
    strategy: str
    excluded: dict[str, int] = {}
    plan: dict[str, Any] = {}
    summary: dict[SplitName, dict[str, Any]] = {}
    ledger: FileRef | None = None

    def side(self, name: SplitName) -> TableRef:
        """The table of one side."""
        return {"train": self.train, "val": self.val, "test": self.test}[name]


# ------------------------------------------------------------------------------------------ checks


class CheckResult(Record):
    """One check: verdict, one plain sentence, figures, and up to ten evidence rows."""

    name: str
    verdict: Verdict
    summary: str
    figures: dict[str, float | int | str | None] = {}
    evidence: tuple[dict[str, Any], ...] = ()
    columns: tuple[str, ...] = ()
    remedy: str = ""
    reason: str = ""


class CheckReport(Record):
    """All checks of one stage."""

    results: tuple[CheckResult, ...]

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The checks that stop the run."""
        return tuple(r for r in self.results if r.verdict == "fail")


# -------------------------------------------------------------------------------------- statistics


class NumericStats(Record):
    """One numeric column: `(x - center) / scale`, or the knots of a quantile map; nulls become `fill` first.

    `knots` are train quantiles at equally spaced levels; the map is piecewise linear onto normal scores.
    `indicator`: a 0/1 column for nulls is added. `nullable`: a null at serving is filled, not refused.
    """

    name: str
    method: Literal["standard", "robust", "quantile", "none"]
    center: float = 0.0
    scale: float = 1.0
    knots: tuple[float, ...] = ()
    fill: float | None = None
    indicator: bool = False
    nulls: int = 0
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None


class CategoryStats(Record):
    """One categorical column. Code 0 is unknown (and rare), 1 is null, then `values` in this order."""

    name: str
    values: tuple[str, ...]
    counts: tuple[int, ...]
    nulls: int = 0
    rare_rows: int = 0


class TensorStats(Record):
    """One tensor column: per-channel mean and standard deviation over train (leading axis if 3-d)."""

    name: str
    shape: tuple[int, ...]
    dtype: Literal["uint8", "float32"]
    mean: tuple[float, ...]
    std: tuple[float, ...]


class Statistics(Record):
    """Everything fitted on train, and nothing else is. `digest_of(statistics)` identifies it."""

    train_sha256: str
    rows: int
    numeric: tuple[NumericStats, ...]
    categorical: tuple[CategoryStats, ...]
    tensor: tuple[TensorStats, ...]
    dropped: dict[str, str] = {}
    clip: float | None = None
    classes: tuple[bool | int | float | str, ...] = ()
    class_counts: tuple[int, ...] = ()
    class_weights: tuple[float, ...] = ()
    label_mean: float = 0.0
    label_std: float = 1.0
    target_center: float = 0.0
    target_scale: float = 1.0

    @property
    def num_numeric(self) -> int:
        """Width of the numeric block: scaled columns, then indicators."""
        return len(self.numeric) + sum(s.indicator for s in self.numeric)


# ------------------------------------------------------------------------------------------ arrays


class SplitArrays(Record):
    """The materialised rows of one side, ordered by id hash: array name → .npy file.

    `numeric` float32 [N, num_numeric]; `categorical` int64 [N, C]; `tensor_<column>` uint8|float32
    [N, *shape]; `label` float32 [N] (regression, scaled) or int64 [N] (class index; binary: 1 = positive);
    `weight` float32 [N]. Absent where the declaration has no such column. `ids` is a Parquet file with
    `__id`, `__group`, `__time`, label in the same row order.
    """

    rows: int
    arrays: dict[str, FileRef]
    ids: FileRef


class ArraysRef(Record):
    """The materialised table: three sides and the statistics they were made with."""

    directory: str
    train: SplitArrays
    val: SplitArrays
    test: SplitArrays
    statistics: FileRef
    sha256: str

    def side(self, name: SplitName) -> SplitArrays:
        """The arrays of one side."""
        return {"train": self.train, "val": self.val, "test": self.test}[name]


class Prepared(Record):
    """All that `prepare` leaves: what training, evaluation, registry and report build on."""

    key: str
    directory: str
    source: SourceRef
    validated: ValidatedTable
    split: SplitTables
    checks: CheckReport
    statistics: Statistics
    arrays: ArraysRef
    cached: bool = False


# ----------------------------------------------------------------------------------------- training


class RunSpec(Record):
    """`resolved.json`: everything the training program reads. No other flags exist."""

    run_id: str
    name: str
    declaration: dict[str, Any]
    spec: TableSpec
    statistics: Statistics
    arrays: ArraysRef
    raw_rows: FileRef | None = None


class PreflightReport(Record):
    """Checks on one batch, with the one-batch overfit curve (loss by step)."""

    checks: CheckReport
    num_parameters: int
    num_trainable: int
    initial_loss: float
    expected_loss: float | None
    overfit_losses: tuple[float, ...] = ()
    overfit_steps: int = 0
    seconds: float = 0.0


class TrainReport(Record):
    """`result.json` in the run directory, written by rank 0 at the end of training.

    `best_metric` is null, `best_step` 0 and `best_checkpoint` the newest weights only where a run was interrupted
    before its first evaluation.
    """

    run_id: str
    status: Literal["finished", "stopped_early", "interrupted"]
    epochs: int
    steps: int
    best_step: int
    best_metric: float | None
    metric: str
    seconds: float
    world_size: int
    num_parameters: int
    best_checkpoint: FileRef
    model_sha256: str
    rows_per_second: float
    instabilities: tuple[str, ...] = ()
    promise: str = ""


class Interval(Record):
    """A metric with its bootstrap confidence interval; null where it is not defined on these rows."""

    value: float | None
    low: float | None = None
    high: float | None = None


class EvaluationReport(Record):
    """Metrics of one side with confidence intervals, beside baselines on the same rows.

    `interval_note`: what the intervals do not cover. `baselines`: name → metric → value. `differences`: name → model minus baseline in the declared metric, on the same
    resamples. `verdict`: one plain sentence on skill over them.
    `predictions`: Parquet with `__id`, `__group`, `label`, `prediction` and, for classes, `probability_<class>`.
    """

    side: SplitName
    rows: int
    metrics: dict[str, Interval]
    baselines: dict[str, dict[str, float | None]] = {}
    differences: dict[str, Interval] = {}
    base_rate: dict[str, float] = {}
    resampled_by: Literal["row", "group"] = "row"
    interval_note: str = ""
    verdict: str = ""
    has_skill: bool = True
    predictions: FileRef
    by_group: tuple[dict[str, Any], ...] = ()


class ExportedModel(Record):
    """The self-contained model: `program` is the pt2 file, `spec` the JSON of columns.

    `expressions`: zip of the code that computes derived features from raw rows; null where there are none.
    """

    program: FileRef
    spec: FileRef
    parity: float
    expressions: FileRef | None = None


class GateReport(Record):
    """Why a model was registered or not: one row per condition."""

    passed: bool
    verdict: str
    conditions: tuple[CheckResult, ...]
    champion_version: str | None = None
    difference: Interval | None = None
    compared_rows: int = 0


class Registered(Record):
    """What the registry holds after the run."""

    registered: bool
    name: str
    version: str | None
    uri: str | None
    alias: str | None
    verdict: str


class Evidence(Record):
    """`evidence.json`: digests, verdicts, versions; logged with the model version."""

    run_id: str
    name: str
    created: str
    config_sha256: str
    source_sha256: str
    validated_sha256: str
    split: dict[str, Any]
    statistics_sha256: str
    arrays_sha256: str
    checkpoint_sha256: str
    model_sha256: str
    program_sha256: str
    checks: tuple[CheckResult, ...]
    metrics: dict[str, Interval]
    gate: GateReport | None
    seeds: dict[str, int]
    mode: str
    promise: str
    provenance: dict[str, Any]
