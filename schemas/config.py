"""
The declaration: one pydantic tree = the YAML file = the config that is logged with the run.

Every section has defaults that suit the task, so that a useful file is about fifteen lines.
Unknown keys are refused everywhere (`extra="forbid"`); nothing is mutable (`frozen`).
Each choice between variants is a discriminated union on `kind`, one level deep, each variant titled.
"""

from __future__ import annotations

import fnmatch
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

SPLITS = ("train", "val", "test")
SplitName = Literal["train", "val", "test"]
Role = Literal["id", "group", "time", "label", "weight", "split", "feature", "ignore"]
Kind = Literal["auto", "numeric", "categorical", "tensor"]
DURATION = re.compile(r"^(\d+(?:\.\d+)?)\s*(s|min|h|d|w)$")
SECONDS_PER_UNIT = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}


class Section(BaseModel):
    """A part of the declaration: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


# ------------------------------------------------------------------------------------------- data


class ColumnConfig(Section):
    """One column: its role, and for a feature its kind and limits."""

    role: Role = Field("feature", description="What the column is; several columns may be `id` (composite) or `group`.")
    kind: Kind = Field("auto", description="How a feature is read; `auto` goes by the column's type.")
    nullable: bool | None = Field(None, description="Nulls allowed. Default: yes for features, no for roles.")
    min: float | None = Field(None, description="Smallest value allowed.")
    max: float | None = Field(None, description="Largest value allowed.")
    allowed: tuple[str | int | float | bool, ...] | None = Field(None, description="The only values allowed.")
    unique: bool = Field(False, description="Refuse repeated values.")
    shape: tuple[int, ...] | None = Field(None, description="Shape of a tensor feature, e.g. [28, 28] or [3, 32, 32].")

    @model_validator(mode="after")
    def _possible(self) -> ColumnConfig:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        if self.role != "feature" and self.kind != "auto" and self.role != "label":
            raise ValueError(f"kind is for features; role {self.role!r} needs none")
        if (self.kind == "tensor") != (self.shape is not None):
            raise ValueError("a tensor feature needs kind: tensor together with shape: [..]")
        return self


def _column_shorthand(value: Any) -> Any:
    """`age: numeric` means `{role: feature, kind: numeric}`; `pid: group` means `{role: group}`."""
    if not isinstance(value, str):
        return value
    if value in ("numeric", "categorical", "auto"):
        return {"role": "feature", "kind": value}
    return {"role": value}


Column = Annotated[ColumnConfig, BeforeValidator(_column_shorthand)]


class CsvConfig(Section):
    """How delimited text is read."""

    delimiter: str = Field(",", min_length=1, max_length=1)
    quote: str = Field('"', max_length=1, description="Quote character; empty for files that do not quote.")
    null_values: tuple[str, ...] = Field(("",), description="Texts that stand for a null, e.g. ['', '?', 'NA'].")
    header: bool = True


class DataConfig(Section):
    """Where the rows are and what the columns mean."""

    uri: str | tuple[str, ...] = Field(description="Parquet, CSV, CSV.gz or Arrow file, a folder, a glob, or a list of them. ${NAME} is taken from the environment; a relative path starts at the declaration's folder.")
    format: Literal["auto", "parquet", "csv", "arrow"] = "auto"
    csv: CsvConfig = CsvConfig()
    derive: dict[str, str] = Field(default_factory=dict, description="New columns as SQL expressions over the row, e.g. {late: \"delay > 30\"}.")
    filter: str | None = Field(None, description="SQL condition; rows for which it is not true are left out and counted.")
    null_labels: Literal["refuse", "drop"] = Field("refuse", description="Rows without a label: refuse the table, or drop and count them.")
    columns: dict[str, Column] = Field(description="Column name or pattern (`X*`) to its role or kind; the first match counts, exact names before patterns. A column that nothing matches is refused.")

    @field_validator("columns")
    @classmethod
    def _some_columns(cls, columns: dict[str, ColumnConfig]) -> dict[str, ColumnConfig]:
        if not columns:
            raise ValueError("declare at least a label and one feature, e.g. {outcome: label, '*': feature}")
        return columns

    def column(self, name: str) -> ColumnConfig | None:
        """The declaration that applies to a source column, or None where nothing matches."""
        if name in self.columns:
            return self.columns[name]
        return next((c for pattern, c in self.columns.items() if fnmatch.fnmatchcase(name, pattern)), None)

    def named(self, role: Role) -> tuple[str, ...]:
        """Names declared with a role (patterns excluded)."""
        return tuple(n for n, c in self.columns.items() if c.role == role)


class TaskConfig(Section):
    """What is predicted."""

    kind: Literal["binary", "multiclass", "regression"] = Field(description="binary, multiclass or regression.")
    positive: str | int | float | bool | None = Field(None, description="The positive class (binary); default: the larger value.")

    @model_validator(mode="after")
    def _positive_is_binary(self) -> TaskConfig:
        if self.positive is not None and self.kind != "binary":
            raise ValueError("positive is for binary tasks only")
        return self


# ------------------------------------------------------------------------------------------ split


class Fractions(Section):
    """Shares of the three sides; they must add up to 1."""

    train: float = Field(0.7, gt=0, lt=1)
    val: float = Field(0.15, gt=0, lt=1)
    test: float = Field(0.15, gt=0, lt=1)

    @model_validator(mode="after")
    def _sum(self) -> Fractions:
        if abs(self.train + self.val + self.test - 1) > 1e-9:
            raise ValueError(f"train + val + test must be 1, got {self.train + self.val + self.test:g}")
        return self


def parse_duration(value: Any) -> float:
    """
    Seconds of `24h`, `7d`, `30min`; a bare number passes through (units of a numeric time column).

    >>> parse_duration("2h"), parse_duration(5)
    (7200.0, 5.0)
    """
    if isinstance(value, str):
        match = DURATION.match(value.strip())
        if not match:
            raise ValueError(f"expected a duration such as 24h, 7d or 30min, got {value!r}")
        return float(match[1]) * SECONDS_PER_UNIT[match[2]]
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"expected a duration of at least 0, got {value!r}")
    return float(value)


class TimeCuts(Section):
    """Absolute cut points: val starts at `val`, test starts at `test` (ISO date/time, or a number)."""

    val: str | float
    test: str | float


class _Hashed(Section):
    seed: int = Field(0, ge=0, description="Changes which keys land where.")
    fractions: Fractions = Fractions()


class RandomSplit(_Hashed):
    """Each id by its own hash; for rows that are independent of each other."""

    model_config = ConfigDict(title="Random")
    kind: Literal["random"] = "random"


class GroupSplit(_Hashed):
    """Whole groups by hash; for repeated measurements of the same patient, user, device or site."""

    model_config = ConfigDict(title="By group")
    kind: Literal["group"] = "group"
    pin: dict[str, SplitName] = Field(default_factory=dict, description="Groups whose side is fixed by hand.")


class StratifiedSplit(_Hashed):
    """Each id, with the label's shares equal on every side; decided at first sight, then frozen in the ledger."""

    model_config = ConfigDict(title="Stratified by label")
    kind: Literal["stratified"] = "stratified"
    bins: int = Field(10, ge=2, le=100, description="Quantile bins of a regression label.")


class StratifiedGroupSplit(StratifiedSplit):
    """Whole groups, with the label's shares as equal as groups allow; frozen in the ledger."""

    model_config = ConfigDict(title="Stratified by group")
    kind: Literal["stratified_group"] = "stratified_group"  # type: ignore[assignment]


class TimeSplit(Section):
    """Train before val before test, with an embargo between; cuts by share are frozen in the ledger."""

    model_config = ConfigDict(title="By time")
    kind: Literal["time"] = "time"
    fractions: Fractions = Fractions()
    cuts: TimeCuts | None = Field(None, description="Absolute cut points instead of shares.")
    embargo: Annotated[float, BeforeValidator(parse_duration)] = Field(0.0, description="Gap after each cut: 24h, 7d, or a number for a numeric time column; rows inside are left out and counted.")


class GroupTimeSplit(TimeSplit):
    """New groups in later time: a row is kept only where its group's side and its time's side agree."""

    model_config = ConfigDict(title="By group and time")
    kind: Literal["group_time"] = "group_time"  # type: ignore[assignment]
    seed: int = Field(0, ge=0, description="Changes which groups land where.")
    group_fractions: Fractions = Fractions(train=0.6, val=0.2, test=0.2)
    pin: dict[str, SplitName] = Field(default_factory=dict, description="Groups whose side is fixed by hand.")


class PredefinedSplit(Section):
    """The side stands in the column of role `split`; validation may be carved out of train."""

    model_config = ConfigDict(title="Predefined column")
    kind: Literal["predefined"] = "predefined"
    seed: int = Field(0, ge=0)
    train: tuple[str, ...] = Field(("train",), description="Values of the column that mean train.")
    val: tuple[str, ...] = Field(("val", "valid", "validation"), description="Values that mean validation.")
    test: tuple[str, ...] = Field(("test",), description="Values that mean test.")
    carve_val: float = Field(0.0, ge=0, lt=1, description="Share of train taken for validation, by group where one is declared.")


Split = Annotated[
    RandomSplit | GroupSplit | StratifiedSplit | StratifiedGroupSplit | TimeSplit | GroupTimeSplit | PredefinedSplit,
    Field(discriminator="kind"),
]
GROUPED = ("group", "stratified_group", "group_time")


# ----------------------------------------------------------------------------- checks, normalize


class Allowance(Section):
    """A finding that is accepted, with the reason that is logged with the model."""

    check: str = Field(description="Name of the check, as in its report.")
    column: str | None = Field(None, description="Only for this column.")
    reason: str = Field(min_length=10, description="Why this is right; logged with the model.")


class ChecksConfig(Section):
    """Thresholds of the checks, and findings that are allowed with a reason."""

    max_duplicate_share: float = Field(0.0, ge=0, le=1, description="Share of val or test rows whose features equal a train row's, above which the run stops.")
    min_rows: int = Field(1, ge=1, description="Fewest rows that each side must have.")
    constant_features: Literal["fail", "drop"] = Field("fail", description="A feature that is constant or all-null in train: stop, or drop it and say so.")
    allow: tuple[Allowance, ...] = ()


class ColumnNormalize(Section):
    """Exceptions for one numeric column."""

    scale: Literal["standard", "robust", "quantile", "none"] | None = None
    impute: Literal["mean", "median", "zero"] | None = None


class NormalizeConfig(Section):
    """Statistics fitted on train only."""

    scale: Literal["standard", "robust", "quantile", "none"] = Field("standard", description="standard: (x - mean) / sd; robust: (x - median) / IQR; quantile: rank mapped to a normal.")
    impute: Literal["mean", "median", "zero"] = Field("median", description="What fills a null of a numeric feature.")
    indicators: bool = Field(True, description="Add a 0/1 column for each numeric feature with nulls in train.")
    clip: float | None = Field(10.0, gt=0, description="Bound of the scaled value; null for none.")
    min_count: int = Field(1, ge=1, description="Categories seen less often in train share the unknown slot.")
    max_categories: int = Field(10_000, ge=2, description="Most categories kept for a column, by count.")
    target: Literal["standard", "none"] = Field("standard", description="Scaling of a regression label; predictions come back in its units.")
    columns: dict[str, ColumnNormalize] = Field(default_factory=dict, description="Exceptions by column.")


# ------------------------------------------------------------------------------------ model, loss


class LinearModel(Section):
    """One linear layer over numeric features and category embeddings of size 1 per output."""

    model_config = ConfigDict(title="Linear")
    kind: Literal["linear"] = "linear"


class MlpModel(Section):
    """Multi-layer perceptron with category embeddings."""

    model_config = ConfigDict(title="MLP")
    kind: Literal["mlp"] = "mlp"
    hidden: tuple[Annotated[int, Field(ge=1)], ...] = Field((256, 128), min_length=1, description="Widths of the hidden layers.")
    dropout: float = Field(0.1, ge=0, lt=1)
    numeric_embedding: Literal["none", "periodic"] = Field("periodic", description="periodic: each numeric column also enters as a learned mixture of cosines, so that steps and bumps can be fitted; none: as it is.")


class ResMlpModel(Section):
    """Residual MLP: pre-norm blocks `x + W2(dropout(gelu(W1(norm(x)))))` on a common width."""

    model_config = ConfigDict(title="Residual MLP")
    kind: Literal["resmlp"] = "resmlp"
    width: int = Field(192, ge=1)
    depth: int = Field(3, ge=1)
    expansion: float = Field(2.0, gt=0, description="Hidden width of a block as a multiple of `width`.")
    dropout: float = Field(0.1, ge=0, lt=1)
    numeric_embedding: Literal["none", "periodic"] = Field("periodic", description="periodic: each numeric column also enters as a learned mixture of cosines, so that steps and bumps can be fitted; none: as it is.")


class CnnModel(Section):
    """Small convolutional network with group normalisation for image-shaped tensors."""

    model_config = ConfigDict(title="CNN")
    kind: Literal["cnn"] = "cnn"
    channels: tuple[Annotated[int, Field(ge=1)], ...] = Field((32, 64), min_length=1, description="Channels of the stages; each halves the picture.")
    hidden: int = Field(128, ge=1)
    dropout: float = Field(0.0, ge=0, lt=1)


class CustomModel(Section):
    """Your own `nn.Module`, from a package that BULKHEAD_ALLOW_IMPORTS names."""

    model_config = ConfigDict(title="Your own module")
    kind: Literal["custom"] = "custom"
    path: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", description="package.module:ClassName")
    options: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the class.")


Model = Annotated[LinearModel | MlpModel | ResMlpModel | CnnModel | CustomModel, Field(discriminator="kind")]


class LossConfig(Section):
    """The training loss; `auto` takes the one that suits the task."""

    kind: Literal["auto", "cross_entropy", "bce", "mse", "mae", "huber"] = "auto"
    class_weights: Literal["none", "balanced"] = Field("none", description="balanced: weights n / (classes * count), fitted on train.")
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    delta: float = Field(1.0, gt=0, description="Where Huber turns linear, in units of the scaled label.")


# ------------------------------------------------------------------- optimizer, schedule, training


class AdamWConfig(Section):
    """AdamW with decoupled weight decay."""

    model_config = ConfigDict(title="AdamW")
    kind: Literal["adamw"] = "adamw"
    lr: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.01, ge=0, description="On matrices of linear, convolution layers only; never on norms, biases, embeddings.")
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)


class SgdConfig(Section):
    """Stochastic gradient descent."""

    model_config = ConfigDict(title="SGD")
    kind: Literal["sgd"] = "sgd"
    lr: float = Field(0.1, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = False

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> SgdConfig:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs momentum above 0")
        return self


Optimizer = Annotated[AdamWConfig | SgdConfig, Field(discriminator="kind")]


class ConstantSchedule(Section):
    """The learning rate stays as declared."""

    model_config = ConfigDict(title="Constant")
    kind: Literal["constant"] = "constant"


class WarmupCosineSchedule(Section):
    """Linear warm-up, then a cosine down to `final` of the peak; counted in optimizer steps."""

    model_config = ConfigDict(title="Warm-up + cosine")
    kind: Literal["warmup_cosine"] = "warmup_cosine"
    warmup: float = Field(0.05, ge=0, lt=1, description="Share of all optimizer steps spent warming up.")
    final: float = Field(0.01, ge=0, le=1, description="Learning rate at the end as a share of the peak.")


class PlateauSchedule(Section):
    """Multiply the rate by `factor` when the watched metric has not improved for `patience` evaluations."""

    model_config = ConfigDict(title="Reduce on plateau")
    kind: Literal["plateau"] = "plateau"
    factor: float = Field(0.5, gt=0, lt=1)
    patience: int = Field(3, ge=0)
    min_lr: float = Field(1e-6, ge=0)


Schedule = Annotated[ConstantSchedule | WarmupCosineSchedule | PlateauSchedule, Field(discriminator="kind")]


class TrainConfig(Section):
    """The training loop."""

    epochs: int = Field(30, ge=1)
    batch_size: int = Field(256, ge=1, description="Rows of one optimizer step over all ranks.")
    micro_batch_size: int | None = Field(None, ge=1, description="Rows of one forward pass on one rank; smaller ones accumulate. Default: batch_size / ranks.")
    drop_last: bool = Field(False, description="Leave out the last, smaller batch of an epoch.")
    ranks: int = Field(1, ge=1, description="Processes of the torchrun launch.")
    threads: int | None = Field(None, ge=1, description="CPU threads of each rank. Default: cores / ranks.")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    mode: Literal["exact", "fast"] = Field("exact", description="exact: same machine type, software and ranks give bit-identical weights; fast: autotuning allowed, no such promise.")
    seed: int = Field(0, ge=0)
    clip: Literal["norm", "value", "none"] = "norm"
    clip_at: float = Field(1.0, gt=0)
    eval_every: int | None = Field(None, ge=1, description="Validate every so many optimizer steps. Default: once an epoch.")
    metric: str | None = Field(None, description="Validation metric that picks the best weights. Default: auroc, macro_f1 or rmse by task.")
    patience: int = Field(8, ge=1, description="Evaluations without improvement before stopping early.")
    min_delta: float = Field(0.0, ge=0, description="Smallest change that counts as an improvement.")
    checkpoint_every: int | None = Field(None, ge=1, description="Also save every so many optimizer steps. Default: at each evaluation only.")
    keep: int = Field(3, ge=2, description="Checkpoints kept besides the best.")
    log_every: int = Field(20, ge=1, description="Optimizer steps between two lines of step metrics.")

    @model_validator(mode="after")
    def _ranks_fit(self) -> TrainConfig:
        if self.batch_size < self.ranks:
            raise ValueError(f"batch_size {self.batch_size} is smaller than ranks {self.ranks}: each rank needs a row; raise batch_size or lower ranks")
        return self


Baseline = Literal["constant", "linear", "boosting"]


class EvaluateConfig(Section):
    """Test metrics, their uncertainty, and what they are compared with."""

    bootstrap: int = Field(500, ge=20, le=10_000, description="Resamples of the confidence intervals (by group where rows are grouped).")
    confidence: float = Field(0.95, gt=0.5, lt=1)
    baselines: tuple[Baseline, ...] = Field(("constant", "linear", "boosting"), description="Fitted on the same train rows and features, scored on the same test rows.")


class Threshold(Section):
    """Bounds that a test metric must keep."""

    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _one(self) -> Threshold:
        if self.min is None and self.max is None:
            raise ValueError("give min, max or both")
        return self


class RegisterConfig(Section):
    """The gate before the registry."""

    enabled: bool = True
    thresholds: dict[str, Threshold] = Field(default_factory=dict, description="Test metric to its bounds, e.g. {auroc: {min: 0.65}}.")
    metric: str | None = Field(None, description="Metric of the champion comparison. Default: the one of train.metric.")
    tolerance: float = Field(0.0, ge=0, description="Loss of that metric against the champion that is still accepted.")
    require_skill: bool = Field(True, description="Refuse a model that is not better than the constant baseline.")


class TrackingConfig(Section):
    """Where MLflow keeps runs and models."""

    uri: str | None = Field(None, description="MLflow tracking URI. Default: MLFLOW_TRACKING_URI, else a SQLite file in the Bulkhead home.")
    experiment: str | None = Field(None, description="Default: the declaration's name.")
    tags: dict[str, str] = Field(default_factory=dict)


# ------------------------------------------------------------------------------------ declaration

METRICS: dict[str, dict[str, bool]] = {  # task -> metric -> greater is better
    "binary": {"auroc": True, "pr_auc": True, "log_loss": False, "brier": False, "accuracy": True, "balanced_accuracy": True, "f1": True},
    "multiclass": {"macro_f1": True, "accuracy": True, "balanced_accuracy": True, "log_loss": False},
    "regression": {"rmse": False, "mae": False, "r2": True},
}
DEFAULT_METRIC = {"binary": "auroc", "multiclass": "macro_f1", "regression": "rmse"}
TASK_LOSSES = {"binary": ("bce",), "multiclass": ("cross_entropy",), "regression": ("mse", "mae", "huber")}


class Declaration(Section):
    """A run, whole: data, split, checks, normalization, model, training, evaluation, promotion."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="Name of experiment, runs and registered model: small letters, digits, - and _.")
    description: str = ""
    data: DataConfig
    task: TaskConfig
    split: Split
    checks: ChecksConfig = ChecksConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    model: Model = ResMlpModel()
    loss: LossConfig = LossConfig()
    optimizer: Optimizer = AdamWConfig()
    schedule: Schedule = WarmupCosineSchedule()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    register_: RegisterConfig = Field(RegisterConfig(), alias="register")
    tracking: TrackingConfig = TrackingConfig()

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    @property
    def metric(self) -> str:
        """The validation metric that picks the best weights."""
        return self.train.metric or DEFAULT_METRIC[self.task.kind]

    @property
    def greater_is_better(self) -> bool:
        """Direction of `metric`."""
        return METRICS[self.task.kind][self.metric]

    @property
    def loss_kind(self) -> str:
        """The loss with `auto` resolved."""
        return TASK_LOSSES[self.task.kind][0] if self.loss.kind == "auto" else self.loss.kind

    @model_validator(mode="after")
    def _roles_fit_split(self) -> Declaration:
        if len(self.data.named("label")) != 1:
            raise ValueError(f"data.columns must declare exactly one column with role label, got {list(self.data.named('label'))}")
        for role in ("time", "weight", "split"):
            if len(self.data.named(role)) > 1:  # type: ignore[arg-type]
                raise ValueError(f"data.columns declares several columns with role {role}: {list(self.data.named(role))}; keep one")  # type: ignore[arg-type]
        needs = [("group", self.split.kind in GROUPED), ("time", self.split.kind in ("time", "group_time")), ("split", self.split.kind == "predefined")]
        for role, needed in needs:
            if needed and not self.data.named(role):  # type: ignore[arg-type]
                raise ValueError(f"split.kind {self.split.kind!r} needs a column with role {role} in data.columns")
        return self

    @model_validator(mode="after")
    def _loss_and_metrics_fit_task(self) -> Declaration:
        known = METRICS[self.task.kind]
        if self.loss.kind != "auto" and self.loss.kind not in TASK_LOSSES[self.task.kind]:
            raise ValueError(f"loss.kind {self.loss.kind!r} does not fit task {self.task.kind!r}; use one of {list(TASK_LOSSES[self.task.kind])}")
        if self.loss.class_weights == "balanced" and self.task.kind == "regression":
            raise ValueError("loss.class_weights needs a classification task")
        if self.loss.label_smoothing and self.task.kind != "multiclass":
            raise ValueError("loss.label_smoothing needs a multiclass task")
        for where, metric in [("train.metric", self.train.metric), ("register.metric", self.register_.metric), *[("register.thresholds", m) for m in self.register_.thresholds]]:
            if metric is not None and metric not in known:
                raise ValueError(f"{where}: unknown metric {metric!r} for task {self.task.kind!r}; use one of {list(known)}")
        return self
