"""What to change after a verdict: one line, from what the baselines and the training show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.config import Declaration
from schemas.model_config import BoostingModel
from schemas.records import Standing, TrainReport
from schemas.trees_config import LOSSES
from training.formatting import number, plural

NAMES = {
    "constant": "the constant prediction",
    "linear": "the linear model",
    "boosting": "gradient boosting",
    "morgan-forest": "the random forest on Morgan fingerprints",
    "last_value": "the last value",
    "seasonal_value": "the value one season earlier",
    "unigram": "the unigram model",
    "bigram": "the bigram model",
    "5-gram": "the 5-gram model",
}
CONSTANTS = ("constant", "unigram")  # independent of the row
KINDS = ("linear", "boosting")  # baselines that a model.kind stands for
FAR = 0.5  # of a baseline's gain over the constant: a model with less did not learn what it could
PERFECT = 1e-4  # least distance from 1 of a metric; of an error, 10 times this of the constant's
PROMISING = 0.1  # of the way from the constant to a perfect score, without being sure of it
FEW_STEPS = 500  # optimizer steps below which a network is seldom finished
MOST_TIMES = 10  # an advice raises epochs at most so many times

Values = Mapping[str, float | None]
Places = Mapping[str, Standing]


def has_skill(standing: Places) -> bool:
    """Return True if the model is better than a constant beyond uncertainty."""
    return any(standing.get(name) == "ahead" for name in CONSTANTS)


def advice(declaration: Declaration, own: float | None, values: Values, standing: Places) -> str:
    """Suggest what to do about the best baseline that the network does not beat.

    Args:
        declaration: gives the metric's direction and the model.
        own: the model's value of the metric.
        values: name of each baseline to its value.
        standing: where the model stands to each.
    """
    sign = 1 if declaration.greater_is_better else -1
    ranked = sorted(
        (b for b, v in values.items() if v is not None), key=lambda b: -sign * (values[b] or 0.0)
    )
    behind = [b for b in ranked if standing[b] == "behind" and b not in CONSTANTS]
    if behind and _is_far(declaration, own, values, behind[0]):
        return _learned_by(declaration, values, behind[0], standing)
    if not has_skill(standing):
        line = _line(declaration, behind[0]) if behind else ""
        no_skill = _no_skill(declaration, own, values)
        return f": {line}, which is ahead on the same rows" if line else no_skill
    level = [b for b in ranked if standing[b] == "level"]
    if behind:
        use = _line(declaration, behind[0]) or f"use {NAMES.get(behind[0], behind[0])}"
        return f": {use}, or {_instead(declaration)}"
    return f": {NAMES.get(level[0], level[0])} does as well and is simpler" if level else ""


def _no_skill(declaration: Declaration, own: float | None, values: Values) -> str:
    if _is_promising(declaration, own, values):
        return (
            ": better than the constant by its value, but so few rows cannot distinguish it from"
            " luck; take more test rows, or score the other rows too, with cv: {folds: 5}"
        )
    where = (
        "the text, its tokens"
        if declaration.task.kind == "causal_lm"
        else "the features, the label"
    )
    return f": no skill; look at {where} and the learning curves before anything else"


def _is_promising(declaration: Declaration, own: float | None, values: Values) -> bool:
    """Return True if a model has a tenth or more of the way from the constant to a perfect score.

    Of many rows that would be beyond their uncertainty.
    """
    constant = values.get("constant")
    if own is None or constant is None:
        return False
    way = (1.0 if declaration.greater_is_better else 0.0) - constant
    return way != 0 and (own - constant) / way >= PROMISING


def _is_far(declaration: Declaration, own: float | None, values: Values, best: str) -> bool:
    """Return True if a model has less than half of a baseline's gain over the constant."""
    constant, reached = values.get("constant"), values[best]
    if own is None or constant is None or reached is None or best not in KINDS:
        return False
    sign = 1 if declaration.greater_is_better else -1
    gain = sign * (reached - constant)
    return gain > 0 and sign * (own - constant) < FAR * gain


def _learned_by(declaration: Declaration, values: Values, best: str, standing: Places) -> str:
    lacking = "" if has_skill(standing) else "no skill, but "
    who = "the trees" if declaration.model.kind == "boosting" else "the network"
    carried = f"{lacking}the features carry it ({NAMES[best]} {number(values[best])})"
    line, instead = _line(declaration, best), _instead(declaration)
    longer = "" if declaration.model.kind == "auto" else ", or train longer (train.epochs)"
    return f": {carried} and {who} did not learn it; {line + longer if line else instead}"


def _line(declaration: Declaration, best: str) -> str:
    """Return the line that makes a baseline the model; empty if it cannot be."""
    if best not in KINDS or declaration.model.kind == best:
        return ""
    loss_fits = declaration.loss_kind in LOSSES
    wide = any(column.kind == "tensor" for column in declaration.data.columns.values())
    if best == "boosting" and (wide or not loss_fits):
        return ""
    return f"set model: {{kind: {best}}}"


def _instead(declaration: Declaration) -> str:
    if declaration.task.kind == "causal_lm":
        return "train a larger network for longer"
    if declaration.model.kind == "boosting":
        return "improve the features or the settings of the trees"
    return "improve the features or the network"


def perfect_baselines(declaration: Declaration, values: Values) -> list[str]:
    """Return the baselines without an error: a rule over the columns tells the label.

    >>> from schemas.load import declare
    >>> tree = {"name": "toy", "data": {"uri": "t.csv", "columns": {"y": "label", "*": "feature"}},
    ...     "task": {"kind": "binary"}, "split": {"kind": "random"}}
    >>> perfect_baselines(declare(tree), {"constant": 0.5, "linear": 0.98, "boosting": 1.0})
    ['boosting']
    """
    constant = values.get("constant")
    if declaration.greater_is_better:
        found = [b for b in KINDS if (values.get(b) or 0.0) >= 1 - PERFECT]
    else:
        limit = 10 * PERFECT * (constant or 0.0)
        found = [b for b in KINDS if (v := values.get(b)) is not None and v <= limit]
    return found if constant is not None and any(values.get(b) != constant for b in found) else []


def perfect_note(declaration: Declaration, values: Values) -> str:
    """Return a sentence on perfect baselines; empty without one."""
    found = perfect_baselines(declaration, values)
    if not found:
        return ""
    names = " and ".join(NAMES[b] for b in found)
    return (
        f" {names[0].upper()}{names[1:]} {'make' if len(found) > 1 else 'makes'} no error on these"
        " rows: a rule over the columns, or rows that are in train too, tells the label; see which"
        " column it is, and whether it is known when predicting."
    )


def unfinished(declaration: Declaration, trained: TrainReport) -> str:
    """Return a sentence on a training that ended while it still became better; empty otherwise.

    It did if its schedule ended it and the last evaluation is the best one. Nothing is said of an
    ensemble, whose members ended one by one.
    """
    ended_best = trained.best_metric is not None and trained.best_step == trained.steps
    if trained.status != "finished" or trained.members or not ended_best:
        return ""
    count = "iteration" if isinstance(declaration.model, BoostingModel) else "update"
    return (
        f" The training was not finished: the last of {plural(trained.steps, count)} was the best;"
        f" set {longer_line(declaration, trained)}."
    )


def longer_line(declaration: Declaration, trained: TrainReport) -> str:
    """Return the line of the declaration that lets a training go on for longer."""
    if isinstance(declaration.model, BoostingModel):
        return f"model.max_iter: {2 * declaration.model.max_iter}"
    times = min(MOST_TIMES, max(2, -(-FEW_STEPS // max(1, trained.steps))))
    return f"train.epochs: {times * declaration.train.epochs}"


def add_unfinished(compared: dict[str, Any], note: str) -> dict[str, Any]:
    """Add the sentence on an unfinished training to a verdict that it may explain.

    It stays away from a model that no baseline is ahead of, and where rows are too few to say.
    """
    behind = "behind" in compared.get("standing", {}).values()
    if not note or compared.get("too_few") or not (behind or not compared.get("has_skill", True)):
        return compared
    return compared | {"verdict": compared["verdict"] + note}
