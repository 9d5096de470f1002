"""Words of the report for boosted trees, where those for a network would be wrong."""

from __future__ import annotations

from schemas.config import Declaration

# of `train`, what a fit of trees uses; the rest, with optimizer and schedule, is for networks
USED = ("train.seed", "train.threads", "train.metric", "train.eval_every", "train.ranks")
UNUSED = "Not used: trees are fitted without it."
TREE_REASONS: dict[str, str] = {
    "model.learning_rate": "The customary rate; the early stop decides how many trees it takes.",
    "model.max_iter": "An upper limit; the early stop usually decides.",
    "model.patience": "The validation loss of boosting is smooth: twenty iterations are no chance.",
    "model.max_leaf_nodes": "scikit-learn's size of a tree, for interactions of several columns.",
    "model.min_samples_leaf": "A leaf of fewer rows would follow single ones.",
    "model.l2": "None: the early stop and the size of leaves hold the trees back.",
    "model.max_features": "A split may use every column.",
    "model.max_bins": "As fine as one byte can number.",
    "evaluate.baselines": (
        "A constant and a linear model on the same rows: trees that do not beat them have not"
        " earned their place."
    ),
    "normalize.indicators": "That a value is missing often says something; trees can split on it.",
    "register.allow_behind": (
        "Boosting is not compared with itself; a model behind a simpler one must not be served."
    ),
    "train.eval_every": "About fifty evaluations of the growing ensemble.",
}
TERMS = (
    (
        "The network knows its train rows better than new ones: more data, more dropout or weight"
        " decay, or a smaller network would narrow the gap.",
        "The trees know their train rows better than new ones: more data, model.l2, larger leaves"
        " (model.min_samples_leaf) or smaller trees would narrow the gap.",
    ),
    (
        "the learning rate, the size of the network or the number of epochs is too small",
        "the learning rate, the size of the trees or the number of iterations is too small",
    ),
    (
        "The kept weights are those of the best validation step, from before most of that rise;"
        " training longer would not help.",
        "The kept trees are those up to the lowest validation loss, from before most of that rise;"
        " more of them would not help.",
    ),
    ("The schedule ended, not the learning", "The iterations ended, not the learning"),
    ("its epoch limit", "its limit of iterations"),
    ("More epochs", "More iterations (model.max_iter)"),
    ("kept step", "kept iteration"),
)


def is_boosting(declaration: Declaration) -> bool:
    """Check if the model is boosted trees."""
    return declaration.model.kind == "boosting"


def in_terms_of_trees(words: str) -> str:
    """Return a reading of the curves in terms of trees.

    >>> in_terms_of_trees("At the kept step the loss is 0.2.")
    'At the kept iteration the loss is 0.2.'
    """
    for of_network, of_trees in TERMS:
        words = words.replace(of_network, of_trees)
    return words


def tree_reason(path: str, declaration: Declaration) -> str:
    """Return why the default at `path` suits boosted trees; empty where the usual reason does."""
    if not is_boosting(declaration):
        return ""
    if path.startswith(("optimizer.", "schedule.", "train.")) and path not in USED:
        return UNUSED
    return TREE_REASONS.get(path, "")


def preflight_question(declaration: Declaration) -> str:
    """Return the question that the section of preflight answers."""
    if is_boosting(declaration):
        return "Can such trees be fitted, exported and served?"
    return "Could this network and loss learn at all?"
