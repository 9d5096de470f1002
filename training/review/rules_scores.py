"""Rules BH221: a metric of scores is given decisions; BH222: labels and scores are given in the
wrong order.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.provenance import DECIDES, KEEPS_VALUES, PUTS_TOGETHER, role, sources
from training.review.syntax import has_unpacking, keyword, last_name, method, receiver, words
from training.review.values import reaching

RANKS = {
    "roc_auc_score",
    "average_precision_score",
    "roc_curve",
    "precision_recall_curve",
    "log_loss",
    "brier_score_loss",
    "ndcg_score",
    "det_curve",
}
IN_ORDER = RANKS | {
    "precision_score", "recall_score", "confusion_matrix", "classification_report",
    "balanced_accuracy_score", "fbeta_score", "precision_recall_fscore_support", "r2_score",
    "mean_absolute_percentage_error", "explained_variance_score", "top_k_accuracy_score",
    "hinge_loss",
}  # fmt: skip
OTHER_ORDER = ("torchmetrics.", "torcheval.metrics.")  # scores first


@rule("BH221")
def decisions_are_ranked(subject: Subject) -> Iterator[Place]:
    """The scores of such a metric of scikit-learn are a comparison, rounded, an argmax or the
    `predict` of a classifier.
    """
    program = subject.program
    for call in program.calls_of(*RANKS):
        name = last_name(call.func)
        if not program.resolve(call.func).startswith("sklearn.metrics."):
            continue
        names = ("y_score", "y_pred", "y_proba", "y_prob", "probas_pred")
        score = next((s for s in (keyword(call, n, 1) for n in names) if s is not None), None)
        if score is not None and (how := _decided(program, score, program.scope(call))):
            yield (
                call,
                f"{name} is given {ast.unparse(score)}, which is {how}: decisions have no order",
            )


def _decided(program: Program, score: ast.expr, scope: Scope) -> str:
    """In which way scores were turned into decisions; empty where they were not, or may not have
    been.
    """
    found = [s for s in sources(program, score, scope) if s.kind == "network"]
    if found:
        return (
            "what is left after a threshold or an argmax"
            if all("decided" in s.done for s in found)
            else ""
        )
    return _written_decided(program, score, scope)


def _written_decided(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> str:
    """The same by how it is written, whatever it was made of."""
    if depth > 4:
        return ""
    if isinstance(node, ast.Compare):
        return "a comparison" if isinstance(node.ops[0], (ast.Gt, ast.GtE, ast.Lt, ast.LtE)) else ""
    if isinstance(node, ast.Name):
        found = {
            _written_decided(program, value, scope, depth + 1)
            for value in reaching(program, node, scope)
        }
        return found.pop() if len(found) == 1 else ""
    if not isinstance(node, ast.Call):
        return ""
    name, on = (
        last_name(node.func),
        (
            receiver(node)
            if method(node) and not program.resolve(node.func)
            else node.args[0]
            if node.args
            else None
        ),
    )
    if (
        name in DECIDES - {"sign", "argsort"}
        and len(node.args) <= (on in node.args) + (name != "round")
        and not (name == "round" and node.keywords)
    ):
        return f"a result of {name}"
    made = program.origins(on, scope) if name == "predict" else ()
    made = tuple(
        f
        for o in made
        for f in (program.origins(receiver(o.call), o.scope) if method(o.call) == "fit" else (o,))
    )
    if any(
        o.name.startswith("sklearn.")
        and (o.last.endswith("Classifier") or o.last in ("LogisticRegression", "SVC", "LinearSVC"))
        for o in made
    ):
        return "classes, not probabilities"
    return (
        _written_decided(program, on, scope, depth + 1)
        if on is not None and name in KEEPS_VALUES | PUTS_TOGETHER
        else ""
    )


@rule("BH222")
def labels_and_scores_swapped(subject: Subject) -> Iterator[Place]:
    """The first argument comes from a network and the second from the labels of a batch, or their
    names say so; of torchmetrics the other way round.
    """
    program = subject.program
    if not {"sklearn", "torchmetrics", "torcheval"} & program.modules_imported:
        return
    for call in (
        program.all_calls
        if {"torchmetrics", "torcheval"} & program.modules_imported
        else program.calls_of(*IN_ORDER)
    ):
        scope, wanted = program.scope(call), _order(program, call)
        if not wanted or has_unpacking(call):
            continue
        first, second = (
            keyword(call, a, i)
            for i, a in enumerate(
                ("y_true", "y_pred") if wanted[0] == "labels" else ("preds", "target")
            )
        )
        if (
            first is None
            or second is None
            or any(
                k.arg in ("y_true", "y_pred", "y_score", "preds", "target", "input")
                for k in call.keywords
            )
        ):
            continue
        if (role(program, first, scope), role(program, second, scope)) == wanted[
            ::-1
        ] and not _turned(program, call):
            yield (
                call,
                (
                    f"{last_name(call.func)} takes {wanted[0]} first, and {ast.unparse(first)} are"
                    f" {wanted[1]}"
                ),
            )


def _order(program: Program, call: ast.Call) -> tuple[str, str] | None:
    """What a metric wants first and second; None for anything else, and for metrics that do not
    change when they are swapped.
    """
    name = program.resolve(call.func)
    if name.startswith("sklearn.metrics.") and last_name(call.func) in IN_ORDER:
        return "labels", "scores"
    if not {"torchmetrics", "torcheval"} & program.modules_imported:
        return None
    if (
        name.startswith(OTHER_ORDER)
        and ".functional." in name
        and not last_name(call.func).startswith("_")
        and not words(last_name(call.func)) & {"pairwise", "kl"}
    ):
        return "scores", "labels"
    made = (
        program.origins(
            receiver(call) if method(call) == "update" else call.func, program.scope(call)
        )
        if not name
        else ()
    )
    return (
        ("scores", "labels") if made and all(o.name.startswith(OTHER_ORDER) for o in made) else None
    )


def _turned(program: Program, call: ast.Call) -> bool:
    """Whether a table is turned round afterwards."""
    parent = program.parents[call]
    return isinstance(parent, ast.Attribute) and parent.attr in ("T", "transpose")
