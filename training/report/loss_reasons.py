"""Reasons of the defaults of losses, and of the metrics that belong to them."""

from __future__ import annotations

LOSS_REASONS: dict[str, str] = {
    "loss.kind=binary": (
        "Cross-entropy of a yes/no outcome: a proper score, so that its minimum is the true"
        " probability."
    ),
    "loss.kind=causal_lm": (
        "Cross-entropy of each token over the vocabulary: a proper score, so that its minimum is"
        " the true distribution."
    ),
    "loss.kind=multiclass": (
        "Cross-entropy over the classes: a proper score, so that its minimum is the true"
        " probabilities."
    ),
    "train.metric=log": (
        "Errors of the logarithm are relative errors, and what task.transform trains for: in the"
        " label's units the largest rows alone would decide."
    ),
    "train.metric=log1p": (
        "Errors of log(1 + label) are relative errors of large labels, and what task.transform"
        " trains for."
    ),
    "loss.kind=regression": (
        "The mean squared error agrees with RMSE, the metric that chooses the weights; its minimum"
        " is the mean."
    ),
    "loss.kind=multilabel": (
        "Cross-entropy of each yes/no label, averaged over the labels that are known; unknown ones"
        " are masked."
    ),
    "loss.kind=multitask": (
        "The weighted sum of each label's own mean loss, over the rows that know it."
    ),
    "loss.pos_weight": (
        "None: a weight on positives would distort the probabilities. Ranking metrics do not"
        " need it."
    ),
    "loss.class_weights": (
        "None: weights would distort the probabilities. Ranking metrics do not need them."
    ),
    "loss.class_weights=multiclass": (
        "None: weights would distort the probabilities. Declare balanced where rare classes matter"
        " more than calibration."
    ),
    "loss.label_smoothing": (
        "None: labels are taken at their word and probabilities stay calibrated."
    ),
    "loss.delta": "One standard deviation of the label: beyond it an error counts linearly.",
    "loss.power": "Halfway between counts (1) and amounts (2), as for sums of few amounts.",
    "loss.gamma": "As published: a row that is right with 0.9 counts a hundredth.",
    "loss.order": "The classes are numbers: their own order.",
    "evaluate.top_k": "The accuracy of the most probable class is enough for few classes.",
    "evaluate.costs": "No cost was declared: errors count alike.",
    "train.metric=quantile": "The quantile loss is what is trained for; RMSE asks for the mean.",
    "train.metric=poisson": "The deviance is what is trained for; RMSE sees large labels alone.",
    "train.metric=tweedie": "The deviance is what is trained for; RMSE sees large labels alone.",
    "train.metric=ordinal": "Quadratic kappa counts an error by how far it lies from the class.",
}
LOSS_HIDDEN_UNLESS: dict[str, str] = {  # settings that are shown only with such a loss or label
    "loss.delta": "huber",
    "loss.quantile": "quantile",
    "loss.power": "tweedie",
    "loss.gamma": "focal",
    "loss.order": "ordinal",
    "evaluate.top_k": "multiclass",
    "evaluate.costs": "classes",
    "loss.label_smoothing": "multiclass",
    "loss.pos_weight": "binary",
    "loss.class_weights": "classes",
}
