"""The declaration: one pydantic tree = the YAML file = the config that is logged with the run.

Every section has defaults that suit the task, so that a useful file is about fifteen lines. Unknown
keys are refused everywhere (`extra="forbid"`); nothing is mutable (`frozen`). Each choice between
variants is a discriminated union on `kind`, one level deep, each variant titled.
"""

from __future__ import annotations

from itertools import chain
from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from schemas.candidates import candidate_conflicts, default_model, fitting_candidates
from schemas.checks_config import Allowance, ChecksConfig
from schemas.combinations import (
    check_declared_metrics,
    check_labels,
    check_loss,
    check_momentum,
    check_refit,
    check_rolling,
    init_problem,
    launch_problem,
    member_problem,
)
from schemas.cv_config import CvConfig, FoldKind, fold_kind, fold_problem
from schemas.data_config import Column, ColumnConfig, CsvConfig, DataConfig, Kind, Role, TaskConfig
from schemas.ensemble_config import DeclaredEnsemble, EnsembleConfig
from schemas.evaluate_config import Baseline, EvaluateConfig, require_labels
from schemas.group_config import GroupByConfig
from schemas.label_config import LabelConfig
from schemas.loss_config import LossConfig
from schemas.model_config import (
    AutoModel,
    CausalTransformerModel,
    CnnModel,
    CustomModel,
    FtTransformerModel,
    LinearModel,
    MlpModel,
    Model,
    RealMlpModel,
    ResMlpModel,
    TabMModel,
)
from schemas.optimizer_config import AdamConfig, AdamWConfig, ModuleRule, Optimizer, SgdConfig
from schemas.recipes import fill_recipe
from schemas.register_config import RegisterConfig, Threshold
from schemas.schedule_config import (
    ConstantSchedule,
    CosineRestartsSchedule,
    CosineSchedule,
    CosLog4Schedule,
    ExponentialSchedule,
    MultiStepSchedule,
    OneCycleSchedule,
    PlateauSchedule,
    Schedule,
    StepSchedule,
    WarmupCosineSchedule,
    WarmupLinearSchedule,
)
from schemas.search_config import SearchConfig
from schemas.section import Section
from schemas.slice_config import check_slices
from schemas.spark_config import SparkConfig
from schemas.split_config import (
    GROUPED,
    SPLITS,
    Fractions,
    GroupSplit,
    GroupTimeSplit,
    PredefinedSplit,
    RandomSplit,
    Split,
    SplitName,
    StratifiedGroupSplit,
    StratifiedSplit,
    TimeCuts,
    TimeSplit,
)
from schemas.task_metrics import (
    DEFAULT_METRIC,
    LOG_MEAN_LOSSES,
    METRICS,
    TASK_LOSSES,
    metrics_of,
)
from schemas.token_config import TokensConfig, conflicts, fill_defaults
from schemas.train_config import AugmentConfig, LossScaleConfig, ProfileConfig, TrainConfig
from schemas.trees_config import tree_baselines, tree_conflicts

__all__ = [
    "DEFAULT_METRIC",
    "GROUPED",
    "METRICS",
    "SPLITS",
    "TASK_LOSSES",
    "AdamConfig",
    "AdamWConfig",
    "Allowance",
    "AugmentConfig",
    "AutoModel",
    "Baseline",
    "CausalTransformerModel",
    "ChecksConfig",
    "CnnModel",
    "Column",
    "ColumnConfig",
    "ColumnNormalize",
    "ConstantSchedule",
    "CosLog4Schedule",
    "CosineRestartsSchedule",
    "CosineSchedule",
    "CsvConfig",
    "CustomModel",
    "CvConfig",
    "DataConfig",
    "Declaration",
    "EnsembleConfig",
    "EvaluateConfig",
    "ExponentialSchedule",
    "FoldKind",
    "Fractions",
    "FtTransformerModel",
    "GroupByConfig",
    "GroupSplit",
    "GroupTimeSplit",
    "Kind",
    "LabelConfig",
    "LinearModel",
    "LossConfig",
    "LossScaleConfig",
    "MlpModel",
    "Model",
    "ModuleRule",
    "MultiStepSchedule",
    "NormalizeConfig",
    "OneCycleSchedule",
    "Optimizer",
    "PlateauSchedule",
    "PredefinedSplit",
    "ProfileConfig",
    "RandomSplit",
    "RealMlpModel",
    "RegisterConfig",
    "ResMlpModel",
    "Role",
    "Schedule",
    "Section",
    "SgdConfig",
    "SparkConfig",
    "Split",
    "SplitName",
    "StepSchedule",
    "StratifiedGroupSplit",
    "StratifiedSplit",
    "TabMModel",
    "TaskConfig",
    "Threshold",
    "TimeCuts",
    "TimeSplit",
    "TokensConfig",
    "TrackingConfig",
    "TrainConfig",
    "WarmupCosineSchedule",
    "WarmupLinearSchedule",
]


class ColumnNormalize(Section):
    """Exceptions for one numeric column."""

    scale: Literal["standard", "robust", "smooth", "quantile", "none"] | None = None
    impute: Literal["mean", "median", "zero"] | None = None


class NormalizeConfig(Section):
    """Statistics fitted on train only."""

    scale: Literal["standard", "robust", "smooth", "quantile", "none"] = Field(
        "standard",
        description=(
            "standard: (x - mean) / sd; robust: (x - median) / IQR; smooth: v / sqrt(1 + (v/3)^2)"
            " of the robust v, so outliers approach 3; quantile: rank mapped to a normal."
        ),
    )
    impute: Literal["mean", "median", "zero"] = Field(
        "median", description="What fills a null of a numeric feature."
    )
    indicators: bool = Field(
        True, description="Add a 0/1 column for each numeric feature with nulls in train."
    )
    clip: float | None = Field(10.0, gt=0, description="Bound of the scaled value; null for none.")
    min_count: int = Field(
        1, ge=1, description="Categories seen less often in train share the unknown slot."
    )
    max_categories: int = Field(
        10_000, ge=2, description="Most categories kept for a column, by count."
    )
    target: Literal["standard", "none"] = Field(
        "standard",
        description=(
            "Scaling of a regression label; predictions come back in its units. Of loss poisson and"
            " tweedie standard divides by the train mean, without centring."
        ),
    )
    columns: dict[str, ColumnNormalize] = Field(
        default_factory=dict, description="Exceptions by column."
    )


class TrackingConfig(Section):
    """Where MLflow keeps runs and models."""

    uri: str | None = Field(
        None,
        description=(
            "MLflow tracking URI. Default: MLFLOW_TRACKING_URI, else a SQLite file in the Bulkhead"
            " home."
        ),
    )
    experiment: str | None = Field(None, description="Default: the declaration's name.")
    tags: dict[str, str] = Field(default_factory=dict)
    tensorboard: bool = Field(
        False,
        description=(
            "Also write the metrics as TensorBoard scalars to RUN_DIR/tensorboard; needs the extra"
            " `tensorboard`."
        ),
    )


class Declaration(Section):
    """A run, whole: data, split, checks, normalization, model, training, evaluation, promotion."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description=(
            "Name of experiment, runs and registered model: small letters, digits, - and _."
        ),
    )
    description: str = ""
    data: DataConfig
    task: TaskConfig
    split: Split
    cv: CvConfig = CvConfig()
    checks: ChecksConfig = ChecksConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    tokens: TokensConfig | None = Field(
        None, description="Of a language model alone; null for every other task."
    )
    model: Model = Field(
        AutoModel(),
        description=(
            "Default: auto, a blend of networks and trees; realmlp where one network is needed"
            " (cv.folds, ensemble, search, train.refit, several machines or processes); mlp on"
            " tensors, and where optimizer, schedule or train.patience are given;"
            " causal_transformer for a language model."
        ),
    )
    ensemble: DeclaredEnsemble = None
    loss: LossConfig = LossConfig()
    optimizer: Optimizer = AdamWConfig()
    schedule: Schedule = WarmupCosineSchedule()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    register_: RegisterConfig = Field(RegisterConfig(), alias="register")
    tracking: TrackingConfig = TrackingConfig()
    search: SearchConfig | None = Field(
        None,
        exclude_if=lambda section: section is None,  # an old declaration keeps its digest
        description="Try other values first: {trials: 40}; null: run what is declared.",
    )

    model_config = ConfigDict(
        validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )

    @property
    def metric(self) -> str:
        """The validation metric that picks the best weights."""
        return self.train.metric or self.task.default_metric(self.loss_kind)

    @property
    def greater_is_better(self) -> bool:
        """Direction of `metric`."""
        return self.metrics[self.metric]

    @property
    def metrics(self) -> dict[str, bool]:
        """Every metric of the task → True if greater is better; a multitask task adds
        `<label>/<metric>`.
        """
        each = self.task.labels.items() if self.task.kind == "multitask" else ()
        evaluate = self.evaluate
        costs = evaluate.costs is not None
        own = metrics_of(self.task.kind, self.loss_kind, evaluate.top_k, costs, self.task.transform)
        return own | {
            f"{name}/{metric}": greater
            for name, label in each
            for metric, greater in metrics_of(label.kind, label.loss).items()
        }

    @property
    def fold_kind(self) -> FoldKind:
        """Kind of folds, with `auto` resolved."""
        return fold_kind(self.cv, self.split.kind, self.grouped)

    @property
    def grouped(self) -> bool:
        """True if rows belong to declared or derived groups."""
        return bool(self.data.named("group")) or self.data.group_by is not None

    @property
    def loss_kind(self) -> str:
        """The loss with `auto` resolved."""
        return TASK_LOSSES[self.task.kind][0] if self.loss.kind == "auto" else self.loss.kind

    def label_loss(self, name: str) -> str:
        """Return the loss of a label column, also when there is only one, with `auto` resolved."""
        if not self.task.has_several:
            return self.loss_kind
        label = self.task.label(name)
        return TASK_LOSSES[label.kind][0] if label.loss == "auto" else label.loss

    @property
    def non_negative_labels(self) -> list[str]:
        """Names of the label columns whose loss takes no value below 0."""
        named = self.task.labels if self.task.has_several else self.data.named("label")
        return [name for name in named if self.label_loss(name) in LOG_MEAN_LOSSES]

    @model_validator(mode="after")
    def _kind_of_model(self) -> Declaration:
        fill_defaults(self)
        if "model" not in self.model_fields_set and self.task.kind != "causal_lm":
            needs_one = bool(self.cv.folds or self.ensemble or self.search)
            model = default_model(self.data, self.train, needs_one, self.model_fields_set)
            object.__setattr__(self, "model", model)
        loss = (self.train, self.loss, self.task, self.loss_kind)
        object.__setattr__(self, "model", fitting_candidates(self.model, *loss))
        fill_recipe(self)
        object.__setattr__(self, "evaluate", tree_baselines(self.model, self.evaluate))
        candidates = candidate_conflicts(self.model, self.optimizer, self.schedule, *loss)
        found = chain(conflicts(self), tree_conflicts(self.model, *loss), candidates)
        problem = next(found, None)
        if problem is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _roles_fit_split(self) -> Declaration:
        if self.task.kind != "causal_lm":
            check_labels(self.data, self.task, self.split.kind)
        for role in ("time", "weight", "split"):
            if len(self.data.named(role)) > 1:
                raise ValueError(
                    f"data.columns declares several columns with role {role}:"
                    f" {list(self.data.named(role))}; keep one"
                )
        kind = self.split.kind
        needs: list[tuple[Role, bool]] = [
            ("group", kind in GROUPED and self.data.group_by is None),
            ("time", kind in ("time", "group_time")),
            ("split", kind == "predefined"),
        ]
        for needed, applies in needs:
            if applies and not self.data.named(needed):
                derived = ", or groups derived by data.group_by" if needed == "group" else ""
                raise ValueError(
                    f"split.kind {kind!r} needs a column with role {needed} in"
                    f" data.columns{derived}"
                )
        if self.data.group_by is not None and kind in ("random", "stratified"):
            instead = "group" if kind == "random" else "stratified_group"
            torn = f"data.group_by derives groups, which split.kind {kind!r} would tear apart"
            raise ValueError(f"{torn}; use {instead}")
        one_label = not self.task.has_several and self.task.kind != "causal_lm"
        timed = bool(self.data.named("time"))
        problem = fold_problem(self.cv, kind, self.grouped, timed, one_label)
        if problem is not None:
            raise ValueError(problem)
        check_rolling(self.split, self.cv, self.register_)
        refitted = (self.train, self.task, self.schedule.kind, self.model, self.ensemble)
        check_refit(*refitted, self.evaluate.calibrate)
        return self

    @model_validator(mode="after")
    def _can_be_trained(self) -> Declaration:
        parts = (self.data, self.task, self.cv, self.train, self.ensemble)
        problem = launch_problem(*parts) or member_problem(self.model, self.split.kind, *parts)
        problem = problem or init_problem(self.model, self.cv, self.ensemble)
        if problem is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _loss_and_metrics_fit_task(self) -> Declaration:
        check_momentum(self.optimizer, self.schedule)
        check_loss(self.loss, self.task, TASK_LOSSES[self.task.kind])
        check_declared_metrics(self.evaluate.top_k, self.evaluate.costs, self.task)
        require_labels(self.evaluate, self.task, self.loss_kind)
        check_slices(self.evaluate.slices, self.data, self.task.kind, bool(self.register_.slices))
        for where, metric in [("train.metric", self.train.metric), *self.register_.named_metrics]:
            if metric is not None and metric not in self.metrics:
                raise ValueError(
                    f"{where}: unknown metric {metric!r} for task {self.task.kind!r}; use one of"
                    f" {list(self.metrics)}"
                )
        return self
