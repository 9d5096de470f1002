"""Settings of a run with value and origin, and the reason why each default suits the task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from schemas.config import ColumnConfig, Declaration, LabelConfig
from schemas.duration import seconds_of
from schemas.records import Prepared
from training.formatting import duration, plain, show
from training.report.loss_reasons import LOSS_HIDDEN_UNLESS, LOSS_REASONS
from training.report.recipe_reasons import OWN_REASONS, recipe_reason
from training.report.source_reasons import SOURCE_REASONS
from training.report.tree_words import tree_reason
from training.run.provenance import masked

# Looked up by path and task or variant, then by path; in terms of the task, for a report's reader.
REASONS: dict[str, str] = {
    "description": "No description was written.",
    "data.format": "The file's ending and first bytes tell the format.",
    **SOURCE_REASONS,
    "data.derive": "No column is computed from others.",
    "data.filter": "Every row is used.",
    "data.group_by": "No group is derived; rows belong together by declared groups alone.",
    "data.group_by.scaffold": "No column is taken for molecules.",
    "data.group_by.duplicates": "Equal rows are not tied together.",
    "data.group_by.near_duplicates": "Nearly equal rows are not tied together.",
    "data.group_by.smiles": "No compared column is taken for molecules.",
    "data.group_by.tolerance": (
        "Closer than measurements usually are, wider than noise added to a copy."
    ),
    "data.engine": "The embedded engine needs no cluster and spills to disk past memory.",
    "data.spark.master": "A session of this process, on all cores.",
    "data.spark.remote": "No Spark Connect server is named.",
    "data.spark.conf": "The session's own settings.",
    "data.memory_limit": (
        "The rows are expected to fit; the engine spills to disk past most of the machine's memory."
    ),
    "data.null_labels": (
        "A row without a label is a mistake until someone says that it may be dropped."
    ),
    "task.positive": (
        "The larger of the two values is the positive class (1 of 0/1, yes of no/yes)."
    ),
    "task.ignore": "Every value of the label is taken at its word; only a null is unknown.",
    "task.labels": "Each label is binary, its larger value is positive, and all count alike.",
    "split.seed": (
        "Any fixed number; another one deals the keys again and gives another estimate of the same"
        " thing."
    ),
    "split.fractions.train": "Most rows train; enough stay aside to choose and to test.",
    "split.fractions.val": "Enough rows to choose the best step without noise deciding.",
    "split.fractions.test": "Enough rows for a useful confidence interval.",
    "split.group_fractions.train": (
        "Fewer groups train than in a plain group split, because a row needs its group's side and"
        " its time's side to agree."
    ),
    "split.group_fractions.val": (
        "More groups than in a plain group split, because a row needs its group's side and its"
        " time's side to agree."
    ),
    "split.group_fractions.test": (
        "More groups than in a plain group split, because a row needs its group's side and its"
        " time's side to agree."
    ),
    "split.pin": "No group's side is fixed by hand.",
    "split.balance": "A hash alone says the side of a group; few groups may fall unevenly.",
    "split.bins": "Enough quantile bins to keep the label's spread alike on every side.",
    "split.cuts": (
        "Cut points follow from the shares and are then frozen; later rows do not move them."
    ),
    "split.embargo": (
        "No gap after a cut; declare one where features look back or labels look ahead."
    ),
    "split.train": "The usual name of the side.",
    "split.val": "The usual names of the side.",
    "split.test": "The usual name of the side.",
    "cv.folds": "One model is trained, on the declared sides.",
    "cv.kind": "Folds follow the split.",
    "cv.seed": "Any fixed number; another one deals the keys again.",
    "cv.val": "Enough rows of each fold to choose the best step.",
    "cv.embargo": "The same gap as the split's.",
    "cv.horizon": (
        "Labels are taken to be known at the row's time, or at that of the role label_time."
    ),
    "cv.window": "All that was before a test block may be learnt from.",
    "cv.bins": "Enough quantile bins to keep the label's spread alike in every fold.",
    "cv.concurrency": "One fold at a time, with all cores.",
    "split.carve_val": "The column is taken to name a validation side.",
    "checks.max_duplicate_share": (
        "A validation or test row that equals a train row is not unseen; none is accepted unless"
        " declared."
    ),
    "checks.min_rows": "A side must not be empty; what is enough, only the reader knows.",
    "checks.stratify_tolerance": (
        "Wider than the rounding of whole rows and groups, narrower than a bias that would change a"
        " comparison."
    ),
    "checks.constant_features": (
        "A constant feature is usually a broken join or an empty column: better to stop than to"
        " train without it unnoticed."
    ),
    "checks.proxy_strength": (
        "Honest single columns stay far below; at this strength a column is the label under another"
        " name."
    ),
    "checks.proxy_warning": (
        "So strong a column is seldom known before the outcome; a warning asks when it is written."
    ),
    "checks.dominance_ratio": (
        "A column that knows more than all others together is either the label's shadow or worth a"
        " look."
    ),
    "checks.combination_error": "Only rounding leaves so little; no honest column comes near.",
    "checks.equal_values": "So many equal values are out of reach of chance.",
    "checks.missingness_strength": (
        "Nulls of honest data follow the label weakly; at this strength they are written with the"
        " outcome."
    ),
    "checks.pure_value_chance": (
        "One table in a thousand by luck, over all values that could be a finding."
    ),
    "checks.collision_chance": (
        "Measured against the rate between groups of train, so that tables of few values give no"
        " finding."
    ),
    "checks.collision_warning": "Rare enough by luck that the rows should be looked at.",
    "checks.text_similarity": (
        "Texts of different authors share hardly any run of three words; copies share nearly all."
    ),
    "checks.shared_time_correlation": "Groups that are independent in time do not move together.",
    "checks.order_strength": "A shuffled table says nothing by its row numbers.",
    "checks.look_ahead_gain": (
        "A column from the past explains the past at least as well as the future."
    ),
    "checks.pooled_chance": (
        "A statistic that meets all rows and misses train by luck is rarer than this."
    ),
    "checks.allow": "No finding was excused.",
    "normalize.scale": (
        "(x − mean) / standard deviation of train puts features on one scale for gradient descent."
    ),
    "normalize.impute": "The median of train is a typical value that outliers do not move.",
    "normalize.indicators": "That a value is missing often says something; the network can see it.",
    "normalize.clip": (
        "One wild value must not steer a whole batch; ordinary tails stay as they are."
    ),
    "normalize.min_count": "Every category seen in train gets its own embedding.",
    "normalize.max_categories": (
        "Bounds the embedding tables; rarer categories share the unknown slot."
    ),
    "normalize.target": (
        "A target with mean 0 and deviation 1 suits the initial weights and learning rate;"
        " predictions come back in its units."
    ),
    "normalize.columns": "No column is an exception.",
    "tokens.tokenizer": "Characters need no rule of any language, and nothing is lost.",
    "tokens.min_count": "Every token that train has is known.",
    "tokens.context": "So far back a token can see; twice as much costs more than twice the time.",
    "tokens.packing": (
        "No place of a sequence is wasted on padding, and a mask keeps its documents apart."
    ),
    "tokens.stride": (
        "A token of a later window has half a window before it, at most twice the work."
    ),
    "tokens.samples": "Enough to see what the model has learned, with no one choosing among them.",
    "tokens.sample_tokens": "Long enough to see whether it holds together.",
    "model.kind=causal_lm": (
        "Attention reads any token of the context alike near and far, and all places are trained at"
        " once."
    ),
    "model.heads": "Some heads can look near and others far.",
    "model.positions": (
        "What counts in text is how far back a token is; small models learn that many times sooner"
        " than a vector for each place."
    ),
    "model.tied": "Half the parameters of a small model would otherwise only score tokens.",
    "model.dropout=causal_transformer": (
        "Light regularisation; raise it where the validation loss turns while the train loss falls."
    ),
    "model.hidden": "Wide enough for interactions and small enough for a laptop.",
    "model.dropout": "Light regularisation; the learning curves above say whether it is enough.",
    "model.width": "Room for interactions among features at a cost that suits a CPU.",
    "model.depth": "Deep enough for interactions, shallow enough to train without care.",
    "model.numeric_embedding": (
        "Lets the network fit steps and bumps over a single number, which trees do with ease and"
        " plain layers learn slowly."
    ),
    "model.expansion": "A block widens and narrows again, by the usual factor.",
    "model.channels": "Each stage has more channels while it halves the picture.",
    "model.hidden=cnn": "One hidden layer on top of the pooled features.",
    "model.dropout=cnn": "None: group normalisation and the early stop regularise a small network.",
    "model.options": "The class is built with its own defaults.",
    "model.kind": (
        "Residual blocks train reliably over many table sizes, need no tuning to start with, and"
        " take numbers and categories together."
    ),
    **LOSS_REASONS,
    "model.activation": "A gated unit, as in the model's source.",
    "model.attention_dropout": "As in the model's source.",
    "model.residual_dropout": "None, as in the model's source.",
    "optimizer.kind": (
        "AdamW scales each step by its own gradient history and works over a wide range of learning"
        " rates."
    ),
    "optimizer.lr": (
        "The customary rate for Adam on networks of this size; the warm-up shields the first steps."
    ),
    "optimizer.lr=sgd": "The customary rate for momentum on normalised inputs.",
    "optimizer.weight_decay=adamw": (
        "Mild, decoupled, and on weight matrices only: norms, biases and embeddings are in a group"
        " without decay."
    ),
    "optimizer.weight_decay=sgd": "None unless declared.",
    "optimizer.weight_decay=adam": (
        "None unless declared: Adam's own is an L2 penalty, which its scaling distorts."
    ),
    "optimizer.layer_decay": (
        "Every layer learns at the same rate; lower rates near the input suit networks that were"
        " trained before."
    ),
    "optimizer.modules": "No module has its own rate.",
    "optimizer.lr_scaling": "The rate is meant for this batch size as it stands.",
    "optimizer.amsgrad": "Adam as it is customary.",
    "optimizer.dampening": "Momentum takes up each gradient whole.",
    "optimizer.beta1": "The customary length of the gradient's running average.",
    "optimizer.beta2": "The customary length of the squared gradient's running average.",
    "optimizer.eps": "The customary guard against division by zero.",
    "optimizer.momentum": "The customary length of the gradient's running average.",
    "optimizer.nesterov": "Plain momentum.",
    "schedule.kind": (
        "A warm-up keeps the first steps small while the optimizer's averages fill; the cosine then"
        " ends in small steps, which settles the weights."
    ),
    "schedule.warmup": "A short start: enough for the averages of the gradient to settle.",
    "schedule.final": "Ends at a small share of the peak, so that the last steps only refine.",
    "schedule.every": "A few reductions in the course of the run.",
    "schedule.milestones": "Half and three quarters of the run, as is customary.",
    "schedule.period": "Four periods in the course of the run.",
    "schedule.growth": "Every period is as long as the first.",
    "schedule.anneal": "A smooth way up and down.",
    "schedule.initial": "1/25 of the peak, as is customary.",
    "schedule.cycle_momentum": (
        "Momentum goes down while the rate goes up, as in the method's source."
    ),
    "schedule.low_momentum": "The customary lower end.",
    "schedule.high_momentum": "The customary upper end.",
    "schedule.threshold": "Any improvement counts.",
    "schedule.threshold_mode": "As a share it does not depend on the metric's unit.",
    "schedule.cooldown": "Every evaluation counts.",
    "schedule.factor": "A smaller rate gets further down where a larger one circles.",
    "schedule.patience": "So many evaluations without improvement are more than noise.",
    "schedule.min_lr": "Below this nothing moves any more.",
    "train.epochs": "An upper limit; the early stop usually decides.",
    "train.batch_size": (
        "A gradient with little noise, yet hundreds of steps an epoch on mid-sized tables. It"
        " counts the rows over all ranks, so that ranks do not change the result."
    ),
    "train.micro_batch_size": "Each rank takes its share of the batch in one pass.",
    "train.drop_last": "Every train row counts; the last, smaller batch is weighted by its rows.",
    "train.ranks": (
        "One for each GPU of the machine; without a GPU one, whose threads use all cores and need"
        " no coordination."
    ),
    "train.nodes": "One machine needs no shared file system.",
    "train.parallel": "A model that fits on each device trains fastest as a whole.",
    "train.loss_scale.initial": (
        "High enough that small gradients survive in half precision; it falls by itself where it is"
        " too high."
    ),
    "train.loss_scale.growth_interval": "Seldom enough that overflows cost little.",
    "train.logical_shards": "Enough for up to four ranks; more parts are smaller and cost more.",
    "train.augment.noise": "Inputs are taken at their word.",
    "train.augment.flip": (
        "A mirrored image may mean something else (a digit, a side of the body): only the reader"
        " knows."
    ),
    "train.augment.shift": "Images are taken as they are.",
    "train.compile": "Compilation takes half a minute, which small networks do not win back.",
    "train.recompute_activations": (
        "Memory suffices until someone says that it does not; computing twice costs a third more."
    ),
    "train.refit": "The registered weights are those that were evaluated.",
    "train.ema": "The weights are used as they are at the best evaluation.",
    "train.ema.decay": "An average over about a thousand updates.",
    "train.ema.warmup": "The average of a short run forgets its random start.",
    "train.profile": "No trace is taken.",
    "train.threads": "The cores are shared evenly among the ranks.",
    "train.device": "A GPU where there is one, else the CPU.",
    "train.precision": "Full precision: networks of this size gain little from less.",
    "train.matmul_precision": "No rounding of inputs inside matrix products.",
    "train.mode": (
        "The same machine type, software and ranks give bit-identical weights, so that the run can"
        " be checked."
    ),
    "train.seed": (
        "Any fixed number; it decides the initial weights, the order of rows and dropout."
    ),
    "train.clip": "Scales down a rare huge gradient without changing its direction.",
    "train.clip_at": "A usual bound; the gradient norm above shows how often it was reached.",
    "train.eval_every": "Once an epoch: each evaluation has seen every train row once more.",
    "train.metric=binary": (
        "AUROC measures ranking without a threshold and does not move with the share of positives."
    ),
    "train.metric=multiclass": (
        "Macro F1 counts every class alike, so that a rare class is not drowned by a common one."
    ),
    "train.batch_size=causal_lm": (
        "Some thousand tokens a step: each row is a whole sequence. It counts the rows over all"
        " ranks, so that ranks do not change the result."
    ),
    "train.metric=causal_lm": (
        "Loss per token is what is trained for; perplexity puts weights in the same order."
    ),
    "train.metric=regression": (
        "RMSE is in the label's units and is what the squared loss trains for."
    ),
    "train.metric=multilabel": (
        "The mean AUROC over labels: each counts alike, common or rare, and none needs a threshold."
    ),
    "train.metric=multitask": (
        "What is left unexplained of each label (log loss over entropy, squared error over"
        " variance), averaged by their weights: without unit, so that kinds can be added."
    ),
    "train.patience": (
        "So many evaluations without improvement are more than noise; the best weights are"
        " restored."
    ),
    "train.min_delta": "Any improvement counts.",
    "train.checkpoint_every": "At each evaluation: a kill repeats the steps since the last one.",
    "train.keep": "If the newest is damaged, older ones are there.",
    "train.log_every": "Fine enough to see a spike, coarse enough to cost nothing.",
    "evaluate.bootstrap": "Enough resamples for two stable digits of an interval's ends.",
    "evaluate.confidence": "The customary level.",
    "evaluate.baselines": (
        "A constant, a linear model and boosted trees on the same rows: a network that does not"
        " beat them has not earned its place."
    ),
    "evaluate.baselines=causal_lm": (
        "Counts of the tokens that follow the last 0, 1 and 4 ones in the same train sequences: a"
        " network that does not beat them has not earned its place."
    ),
    "register.enabled": "A model that passes the gate is registered.",
    "register.thresholds": (
        "No absolute bound was set; the gate compares with the constant baseline and the champion."
    ),
    "register.metric": "The champion is compared on the metric that chose the weights.",
    "register.tolerance": "A new version must not be worse than the champion.",
    "register.promotion": "A version that passes every condition is put to use at once.",
    "register.require_skill": "A model that is not better than a constant must not be served.",
    "register.allow_behind": (
        "Boosted trees are no simpler than a network; a model behind a simpler one, such as the"
        " linear model, must not be served."
    ),
    "tracking.uri": (
        "MLFLOW_TRACKING_URI, else a SQLite file in the Bulkhead home: no server is needed."
    ),
    "tracking.experiment": "Runs of one declaration stand together.",
    "tracking.tensorboard": "MLflow has the same curves.",
    "tracking.tags": "No tag was set.",
} | OWN_REASONS
HIDDEN_UNLESS: dict[str, str] = {  # settings that are shown only if they matter
    "data.spark": "spark",
    "task.labels": "several",
    **LOSS_HIDDEN_UNLESS,
    "task.positive": "one binary label",
    "normalize": "features",
    "normalize.target": "regression",
    "checks.constant_features": "features",
    "tokens": "causal_lm",
    "split.bins": "regression",
    "train.clip_at": "clipped",
    "train.loss_scale": "fp16",
    "train.logical_shards": "elastic",
    "train.rendezvous": "several machines",
    "optimizer.reference_batch_size": "scaled rates",
    "data.csv": "csv",
}


@dataclass(frozen=True)
class Setting:
    """One resolved value: its origin, and for a default the reason."""

    path: str
    value: str
    given: bool
    reason: str


def settings(
    declaration: Declaration, given: Iterable[str], prepared: Prepared
) -> tuple[Setting, ...]:
    """List every setting that matters for this run in the declaration's order.

    `data.columns` has its own table.

    Args:
        declaration: the resolved declaration.
        given: dotted paths that the file or an override set; a path covers everything below it.
        prepared: gives the format of the source, whose other formats are not shown, and if times
            are timestamps.
    """
    traits = _traits(declaration, prepared.source.format)
    explicit = tuple(given)
    found = []
    for path, value in _leaves(declaration.model_dump(mode="json", by_alias=True)):
        if any(
            (path == hidden or path.startswith(hidden + ".")) and trait not in traits
            for hidden, trait in HIDDEN_UNLESS.items()
        ):
            continue
        is_given = any(
            path == g or path.startswith(g + ".") or g.startswith(path + ".") for g in explicit
        )
        found.append(
            Setting(
                path,
                _resolved(path, value, declaration, prepared.validated.spec.time_is_timestamp),
                is_given,
                "" if is_given else reason(path, declaration),
            )
        )
    return tuple(found)


def reason(path: str, declaration: Declaration) -> str:
    """Return why the default at `path` suits this declaration; empty without a default."""
    if own_words := tree_reason(path, declaration) or recipe_reason(path, declaration):
        return own_words
    section = path.partition(".")[0]
    variant = getattr(getattr(declaration, section, None), "kind", "")
    own, scale = (f"{path}={k}" for k in (declaration.loss_kind, declaration.task.transform))
    for key in (own, scale, f"{path}={declaration.task.kind}", f"{path}={variant}", path):
        if key in REASONS:
            return REASONS[key]
    return ""


def _traits(declaration: Declaration, source_format: str) -> set[str]:
    task = declaration.task
    kinds = (
        {label.kind for label in task.labels.values()}
        if task.kind == "multitask"
        else {"binary" if task.kind == "multilabel" else task.kind}
    )
    classes = {"classes"} if kinds & {"binary", "multiclass"} else set()
    several = {"several"} if task.has_several else {f"one {task.kind} label"}
    features = {"features"} if task.kind != "causal_lm" else set()
    clipped = {"clipped"} if declaration.train.clip != "none" else set()
    train = declaration.train
    scaled = {"scaled rates"} if declaration.optimizer.lr_scaling != "none" else set()
    machines = {"several machines"} if train.nodes > 1 else set()
    losses = {label.loss for label in task.labels.values()} - {"auto"}
    return (
        {declaration.loss_kind, declaration.data.engine, source_format, train.precision, train.mode}
        | scaled
        | machines
        | kinds
        | several
        | classes
        | features
        | losses
        | clipped
    )


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Return dotted paths of all values except sections and `data.columns`, with empty mappings."""
    if path == "data.columns":
        return
    if path.startswith("task.labels."):  # one line for each label
        declared = LabelConfig.model_validate(value)
        yield (
            path,
            {"kind": declared.kind} | declared.model_dump(mode="json", exclude_defaults=True),
        )
    elif isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _resolved(path: str, value: Any, declaration: Declaration, timestamps: bool) -> str:
    """Return the value in words, with the resolved `auto` or absent value."""
    train = declaration.train
    meanings = {
        "train.metric": declaration.metric,
        "train.micro_batch_size": f"{-(-train.batch_size // train.ranks)} (batch_size / ranks)",
        "train.eval_every": "once an epoch",
        "train.checkpoint_every": "at each evaluation",
        "train.threads": "cores / ranks",
        "register.metric": declaration.metric,
        "tracking.experiment": declaration.name,
        "tracking.uri": "from the environment or the Bulkhead home",
        "task.positive": "the larger value",
        "tokens.stride": "context // 2",
        "split.cuts": "by share",
    }
    if value is None:
        return meanings.get(path, "none")
    if path == "loss.kind" and value == "auto":
        return f"{declaration.loss_kind} (auto)"
    if path == "split.embargo" and timestamps and value:
        return duration(seconds_of(value) if isinstance(value, str) else value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return masked(show(value))


def column_rows(columns: dict[str, ColumnConfig]) -> list[tuple[str, str, str, str]]:
    """Return name or pattern, role, kind and limits of each declared column."""
    rows: list[tuple[str, str, str, str]] = []
    for name, column in columns.items():
        limits = column.model_dump(mode="json", exclude_defaults=True, exclude={"role", "kind"})
        kind = column.kind if column.role in ("feature", "label") else ""
        rows.append((plain(name), column.role, kind, "" if not limits else show(limits)))
    return rows
