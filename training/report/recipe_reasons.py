"""Reasons of the defaults of several networks, of kinds with a recipe, and of what is chosen."""

from __future__ import annotations

from schemas.config import AdamWConfig, Declaration
from training.report.member_section import MEMBER_REASONS

NAMES = {"realmlp": "RealMLP", "tabm": "TabM"}
RECIPE_REASONS: dict[str, str] = {  # of kinds with a recipe, by path, or by path and kind
    "model.hidden": "As published.",
    "model.width": "As published.",
    "model.depth": "As published: embedded numbers need a layer less.",
    "model.dropout": "As published.",
    "model.activation": "As published: selu for classes, mish for numbers.",
    "model.dropout_schedule": "As published: the last steps see the whole network.",
    "model.numeric_embedding": "As published: cosines let a layer bend at many places.",
    "model.frequency_std": "As published: slow waves at first, which the data may quicken.",
    "model.one_hot": "Few values need no embedding; more of them share one.",
    "model.embedding_size": "As published: enough to tell values apart.",
    "model.clamp": "No value beyond those of train was learned.",
    "model.members": "As published: more members hardly gain.",
    "model.bins": "As published: fine enough for steps in a column.",
}
SET_BY_RECIPE = (
    "normalize.scale",
    "schedule.kind",
    "train.epochs",
    "train.batch_size",
    "train.patience",
    "train.patience_factor",
    "train.clip",
)
OF_ADAMW = (
    "optimizer.lr",
    "optimizer.beta2",
    "optimizer.weight_decay",
    "optimizer.weight_decay_schedule",
)
PORTFOLIO = {
    "normalize.scale": "As for RealMLP; the other candidates are hardly affected.",
    "train.epochs": "An upper limit of each candidate; its recipe and the early stop decide.",
    "model.effort": "Some minutes: enough for the best single candidates.",
}
OWN_REASONS: dict[str, str] = MEMBER_REASONS | {
    "optimizer.weight_decay_schedule": "The decay holds to the last step.",
    "train.patience_factor": "The wait is the same wherever the best evaluation was.",
    "evaluate.calibrate": "The model as it was trained.",
    "checks.dependence_fall": (
        "Quick learners lose as much on some honest splits; a tenth asks for a look."
    ),
    "checks.dependence_left": (
        "A score that falls below two fifths of its strength rests on rows that belong together."
    ),
    "evaluate.threshold": "The model as it was trained.",
    "evaluate.threshold.at": "Only a rule for recall or precision has a least value.",
    "evaluate.threshold.costs": "Only a rule for costs has them.",
    "evaluate.costs.false_negative": "The unit of costs.",
    "evaluate.costs.false_positive": "The unit of costs.",
    "search.trials": "Enough for the usual values of a model.",
    "search.hours": "Trials are limited by their number alone.",
    "search.space": "The usual values of the kind of model.",
    "search.pruner": "A trial that lies behind half of the earlier ones seldom wins.",
    "search.seed": "Any fixed number; it makes the search repeatable.",
    "search.concurrency": "As many as cores and memory allow.",
    "search.found": "The search has not been run.",
}


def recipe_reason(path: str, declaration: Declaration) -> str:
    """Return why the default at `path` suits a kind with a recipe; empty where the usual does."""
    kind = declaration.model.kind
    if kind == "auto":
        return PORTFOLIO.get(path, "")
    if kind not in NAMES:
        return ""
    is_recipes = isinstance(declaration.optimizer, AdamWConfig) and path in OF_ADAMW
    if is_recipes or path in SET_BY_RECIPE:
        return f"Of the recipe that {NAMES[kind]} was published with."
    return RECIPE_REASONS.get(path, "")
