"""Reports and bindings that tasks pass on: small, frozen, JSON round-trip; never tables."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from schemas.calibration_records import Calibrations, Choices, Coverages, Margins, Thresholds
from schemas.comparison_records import Interval, Standing, Yardsticks
from schemas.init_records import InitialWeights
from schemas.look_records import Claim, Looks
from schemas.member_records import Kept, Members, Uncertainty
from schemas.observed import Observed
from schemas.reason_records import MaybeReasons
from schemas.references import (
    FileRef,
    LabelColumn,
    Record,
    RemoteFile,
    SourceRef,
    SplitTables,
    TableRef,
    TableSpec,
    TestTable,
    TrainTable,
    ValidatedTable,
    ValTable,
    digest_of,
)
from schemas.refit import Refit, RefitPlan
from schemas.slice_records import MaybeSlices
from schemas.split_config import SplitName
from schemas.statistics import (
    CategoryStats,
    LabelStats,
    NumericStats,
    Statistics,
    TensorStats,
    TokenStats,
)

__all__ = [
    "ArraysRef",
    "CategoryStats",
    "CheckReport",
    "CheckResult",
    "EvaluationReport",
    "Evidence",
    "ExportedModel",
    "FileRef",
    "GateReport",
    "Interval",
    "LabelColumn",
    "LabelStats",
    "NumericStats",
    "PreflightReport",
    "Prepared",
    "Record",
    "Registered",
    "RemoteFile",
    "RunSpec",
    "SampleReport",
    "SourceRef",
    "SplitArrays",
    "SplitTables",
    "Standing",
    "Statistics",
    "TableRef",
    "TableSpec",
    "TensorStats",
    "TestTable",
    "TokenStats",
    "TrainReport",
    "TrainTable",
    "ValTable",
    "ValidatedTable",
    "Verdict",
    "Verification",
    "digest_of",
]

Verdict = Literal["pass", "warn", "fail", "allowed", "unknown"]


# ------------------------------------------------------------------------------------------ checks


class CheckResult(Record):
    """One check: verdict, one plain sentence, figures, and up to ten evidence rows; `unknown`: too
    little to judge by.
    """

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


# ------------------------------------------------------------------------------------------ arrays


class SplitArrays(Record):
    """The materialised rows of one side, ordered by id hash: array name → .npy file.

    `numeric` float32 [N, num_numeric]; `categorical` int64 [N, C]; `tensor_<column>` uint8|float32
    [N, *shape]; `label` float32 [N] (regression, scaled) or int64 [N] (class index; binary: 1 =
    positive), of several labels float32 [N, L] (class indices and scaled values, NaN where
    unknown); `weight` float32 [N]. Absent where the declaration has no such column. `ids` is a
    Parquet file with `__id`, `__group`, `__time`, `label` (several: `label_<name>`) in the same row
    order.

    Of a text column a row is a sequence: `tokens` and `label` int32 [N, T] (-100: no target),
    `segments` int16 [N, T] (from 1 in each row, 0: padding). `documents` is then a Parquet file
    with a row for each document in the order of the side's table: `__id`, `__group`, `__time`,
    `tokens` (targets), `characters`, `unknown` and perhaps `weight`; `ids` has the columns
    `documents` and `starts`: of each of a row's segments the document, and its first input's place
    in it.

    `windows`: of a feature of `data.windows` the steps of series, float32 [M, 2C]; its array
    names each row's part of them (`training.data.arrays.window_arrays`).
    """

    rows: int
    arrays: dict[str, FileRef]
    ids: FileRef
    documents: FileRef | None = None
    windows: dict[str, FileRef] = Field({}, exclude_if=lambda found: not found)


class ArraysRef(Record):
    """The materialised table: three sides and the statistics they were made with."""

    directory: str
    train: SplitArrays
    val: SplitArrays
    test: SplitArrays
    statistics: FileRef
    sha256: str

    def side(self, name: SplitName) -> SplitArrays:
        """Return the arrays of one split."""
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
    init: InitialWeights | None = Field(None, exclude_if=lambda found: found is None)


# ----------------------------------------------------------------------------------------- training


class RunSpec(Record):
    """`resolved.json`: everything the training program reads. No other flags exist.

    `prepared_sha256`: of the `prepared.json` next to it; empty where it was written by hand, or by
    an earlier version. `refit`: of a refit (training.engine.trainer). `members`: numbers of an
    ensemble's members that the weights consist of. `init`: weights that the training starts from.
    """

    run_id: str
    name: str
    declaration: dict[str, Any]
    spec: TableSpec
    statistics: Statistics
    arrays: ArraysRef
    raw_rows: FileRef | None = None
    prepared_sha256: str = ""
    refit: RefitPlan | None = None
    members: Kept = ()
    init: InitialWeights | None = Field(None, exclude_if=lambda found: found is None)


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

    `best_metric` is null, `best_step` 0 and `best_checkpoint` the newest weights only where a run
    was interrupted before its first evaluation. `skipped_steps`: left out because an fp16 gradient
    overflowed. `observed`: what the program saw of itself; null in reports of runs that did not
    look. `calibration`, `threshold`, `margins`: of each label, chosen on val after training if
    declared. `members`: of an ensemble; then steps and seconds are sums, epochs and `best_step` the
    most of a member, and `num_parameters` those of the members that were kept.
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
    skipped_steps: int = 0
    promise: str = ""
    observed: Observed | None = None
    calibration: Calibrations = ()
    threshold: Choices = ()
    margins: Margins = ()
    members: Members = ()


class SampleReport(Record):
    """Texts that a language model made up at temperature 1, and what was found of them.

    `molecules`: shares of valid, unique and novel SMILES; `note`: what was counted, or why not.
    """

    texts: tuple[str, ...]
    seed: int
    molecules: dict[str, float] = {}
    note: str = ""


class EvaluationReport(Record):
    """Metrics of one side with confidence intervals, next to baselines on the same rows.

    `interval_note`: what the intervals do not cover. `baselines`: name → metric → value.
    `differences`: name → model minus baseline in the declared metric, on the same resamples.
    `standing`: name → where the model stands to it beyond uncertainty. `chance`: p-value of a
    permutation test of skill, null where it was not needed. `too_few`: why so few rows can show no
    skill. `samples`: of a language model. `verdict`: one plain sentence on skill over them.
    `predictions`: Parquet with `__id`, `__group`, `label`, `prediction` and, for classes,
    `probability_<class>`; of several labels `label_<name>`, and the columns that the registered
    model gives. `calibration`: these rows before and after the temperature. `thresholds`: label →
    where its positive class begins. `coverage`: how often margins hold. `uncertainty`: mean over
    rows of an ensemble's column of this name, the standard deviation of its members (single label).
    `by_label`: of several labels, each one's known rows, base rate, metrics and baselines.
    `label_note`: which labels a mean over labels leaves out. `against`: estimators of
    `evaluate.against` on the same rows. `looks`: of test rows, how many models were scored on
    them, for each metric that decides. `slices`, `reasons`: parts of the test rows, and what the
    score rests on.
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
    standing: dict[str, Standing] = {}
    chance: float | None = None
    too_few: str = ""
    predictions: FileRef
    by_group: tuple[dict[str, Any], ...] = ()
    by_label: tuple[dict[str, Any], ...] = ()
    label_note: str = ""
    samples: SampleReport | None = None
    calibration: Calibrations = ()
    thresholds: Thresholds = {}
    coverage: Coverages = ()
    uncertainty: Uncertainty = None
    against: Yardsticks = ()
    looks: Looks = ()
    slices: MaybeSlices = None
    reasons: MaybeReasons = None


class ExportedModel(Record):
    """The self-contained model: `program` is the pt2 file, `spec` the JSON of columns.

    `expressions`: zip of the code that computes derived features from raw rows; null where there
    are none.
    """

    program: FileRef
    spec: FileRef
    parity: float
    expressions: FileRef | None = None


class GateReport(Record):
    """Why a model was registered or not: one row per condition.

    `replaces`: it takes the champion's place; false of a model that is equal within the noise.
    `claim`: the score that the version claims; null where it was not compared.
    """

    passed: bool
    verdict: str
    conditions: tuple[CheckResult, ...]
    champion_version: str | None = None
    difference: Interval | None = None
    compared_rows: int = 0
    replaces: bool = Field(True, exclude_if=lambda found: found)
    claim: Claim | None = Field(None, exclude_if=lambda found: found is None)


class Registered(Record):
    """What the registry holds after the run; `note`: on the rows of a refit."""

    registered: bool
    name: str
    version: str | None
    uri: str | None
    alias: str | None
    verdict: str
    note: str = ""


class Evidence(Record):
    """`evidence.json`: digests, verdicts, versions; logged with the model version.

    `search`: what was tried before these values were chosen, with the test score and the gap to it.
    `init`: weights that training started from, and what they were trained on.
    """

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
    search: dict[str, Any] | None = Field(None, exclude_if=lambda found: found is None)
    thresholds: Thresholds = {}
    margins: Margins = ()
    refit: Refit | None = Field(None, exclude_if=lambda found: found is None)
    members: Members = ()
    against: Yardsticks = ()
    looks: Looks = ()
    slices: MaybeSlices = None
    init: dict[str, Any] | None = Field(None, exclude_if=lambda found: found is None)


class Verification(Record):
    """What was proven of a version, statement by statement."""

    uri: str
    name: str
    version: str
    aliases: tuple[str, ...]
    run_id: str
    git_sha: str
    results: tuple[CheckResult, ...]

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """Statements that are false."""
        return tuple(r for r in self.results if r.verdict == "fail")
