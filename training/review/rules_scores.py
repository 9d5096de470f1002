"""Rules BH221, BH222, BH226 and BH247: decisions where scores are wanted, scores where decisions are wanted, and either in the place of labels."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_model
from training.review.program import Program, Scope
from training.review.provenance import DECIDES, KEEPS_VALUES, PUTS_TOGETHER, role, sources
from training.review.syntax import constant, has_unpacking, identifiers, keyword, last_name, method, receiver, words
from training.review.values import activation, reaching

RANKS = {"roc_auc_score", "average_precision_score", "roc_curve", "precision_recall_curve", "log_loss", "brier_score_loss", "ndcg_score", "det_curve"}
IN_ORDER = RANKS | {
    "precision_score", "recall_score", "confusion_matrix", "classification_report", "balanced_accuracy_score", "fbeta_score", "precision_recall_fscore_support",
    "r2_score", "mean_absolute_percentage_error", "explained_variance_score", "top_k_accuracy_score", "hinge_loss",
}  # fmt: skip
SQUASHES = {"sigmoid", "softmax", "log_softmax", "logsigmoid", "expit", "Sigmoid", "Softmax", "LogSoftmax", "sigmoid_"}
PROBABLE = {"prob", "probs", "proba", "probability", "probabilities"}
KEEPS_SCORES = {"squeeze", "cpu", "numpy", "detach", "float", "flatten", "view", "reshape", "double", "tolist"}
OTHER_ORDER = ("torchmetrics.", "torcheval.metrics.")  # scores first


@rule(
    "BH221",
    "decisions-are-ranked",
    "error",
    title="A metric of scores is given decisions",
    why="AUROC, average precision and log loss judge the order or the size of scores. Cut at a threshold only two values are left: what comes out is a much lower number of another kind, that of one point.",
    remedy="give the scores themselves: probabilities or logits",
    bad="""
        import torch
        from sklearn.metrics import roc_auc_score

        @torch.no_grad()
        def auc(model, x, y):
            model.eval()
            prob = torch.sigmoid(model(x))
            return roc_auc_score(y, (prob > 0.5).float())
        """,
    good="""
        import torch
        from sklearn.metrics import roc_auc_score

        @torch.no_grad()
        def auc(model, x, y):
            model.eval()
            prob = torch.sigmoid(model(x))
            return roc_auc_score(y, prob)
        """,
)
def decisions_are_ranked(subject: Subject) -> Iterator[Place]:
    """The scores of such a metric of scikit-learn are a comparison, rounded, an argmax or the `predict` of a classifier."""
    program = subject.program
    for call in program.calls_of(*RANKS):
        name = last_name(call.func)
        if not program.resolve(call.func).startswith("sklearn.metrics."):
            continue
        names = ("y_score", "y_pred", "y_proba", "y_prob", "probas_pred")
        score = next((s for s in (keyword(call, n, 1) for n in names) if s is not None), None)
        if score is not None and (how := _decided(program, score, program.scope(call))):
            yield call, f"{name} is given {ast.unparse(score)}, which is {how}: decisions have no order"


def _decided(program: Program, score: ast.expr, scope: Scope) -> str:
    """In which way scores were turned into decisions; empty where they were not, or may not have been."""
    found = [s for s in sources(program, score, scope) if s.kind == "network"]
    if found:
        return "what is left after a threshold or an argmax" if all("decided" in s.done for s in found) else ""
    return _written_decided(program, score, scope)


def _written_decided(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> str:
    """The same by how it is written, whatever it was made of."""
    if depth > 4:
        return ""
    if isinstance(node, ast.Compare):
        return "a comparison" if isinstance(node.ops[0], (ast.Gt, ast.GtE, ast.Lt, ast.LtE)) else ""
    if isinstance(node, ast.Name):
        found = {_written_decided(program, value, scope, depth + 1) for value in reaching(program, node, scope)}
        return found.pop() if len(found) == 1 else ""
    if not isinstance(node, ast.Call):
        return ""
    name, on = last_name(node.func), receiver(node) if method(node) and not program.resolve(node.func) else node.args[0] if node.args else None
    if name in DECIDES - {"sign", "argsort"} and len(node.args) <= (on in node.args) + (name != "round") and not (name == "round" and node.keywords):
        return f"a result of {name}"
    made = program.origins(on, scope) if name == "predict" else ()
    made = tuple(f for o in made for f in (program.origins(receiver(o.call), o.scope) if method(o.call) == "fit" else (o,)))
    if any(o.name.startswith("sklearn.") and (o.last.endswith("Classifier") or o.last in ("LogisticRegression", "SVC", "LinearSVC")) for o in made):
        return "classes, not probabilities"
    return _written_decided(program, on, scope, depth + 1) if on is not None and name in KEEPS_VALUES | PUTS_TOGETHER else ""


@rule(
    "BH222",
    "labels-and-scores-swapped",
    "error",
    title="Labels and scores are given in the wrong order",
    why="scikit-learn takes labels first, torchmetrics scores first. Swapped, precision becomes recall, a table of confusion is turned round, and AUROC ranks the labels.",
    remedy="give them by name: `y_true=labels, y_score=scores`",
    bad="""
        import torch
        from sklearn.metrics import recall_score

        @torch.no_grad()
        def recall(model, val_loader):
            model.eval()
            said, truth = [], []
            for x, y in val_loader:
                said += (model(x) > 0).tolist()
                truth += y.tolist()
            return recall_score(said, truth)
        """,
    good="""
        import torch
        from sklearn.metrics import recall_score

        @torch.no_grad()
        def recall(model, val_loader):
            model.eval()
            said, truth = [], []
            for x, y in val_loader:
                said += (model(x) > 0).tolist()
                truth += y.tolist()
            return recall_score(truth, said)
        """,
)
def labels_and_scores_swapped(subject: Subject) -> Iterator[Place]:
    """The first argument comes from a network and the second from the labels of a batch, or their names say so; of torchmetrics the other way round."""
    program = subject.program
    if not {"sklearn", "torchmetrics", "torcheval"} & program.modules_imported:
        return
    for call in program.all_calls if {"torchmetrics", "torcheval"} & program.modules_imported else program.calls_of(*IN_ORDER):
        scope, wanted = program.scope(call), _order(program, call)
        if not wanted or has_unpacking(call):
            continue
        first, second = (keyword(call, a, i) for i, a in enumerate(("y_true", "y_pred") if wanted[0] == "labels" else ("preds", "target")))
        if first is None or second is None or any(k.arg in ("y_true", "y_pred", "y_score", "preds", "target", "input") for k in call.keywords):
            continue
        if (role(program, first, scope), role(program, second, scope)) == wanted[::-1] and not _turned(program, call):
            yield call, f"{last_name(call.func)} takes {wanted[0]} first, and {ast.unparse(first)} are {wanted[1]}"


def _order(program: Program, call: ast.Call) -> tuple[str, str] | None:
    """What a metric wants first and second; None for anything else, and for metrics that do not change when they are swapped."""
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
    made = program.origins(receiver(call) if method(call) == "update" else call.func, program.scope(call)) if not name else ()
    return ("scores", "labels") if made and all(o.name.startswith(OTHER_ORDER) for o in made) else None


def _turned(program: Program, call: ast.Call) -> bool:
    """Whether a table is turned round afterwards."""
    parent = program.parents[call]
    return isinstance(parent, ast.Attribute) and parent.attr in ("T", "transpose")


@rule(
    "BH226",
    "probabilities-equal-labels",
    "error",
    title="Probabilities are compared with labels for equality",
    why="A probability is hardly ever exactly 0 or 1: what is counted as right is next to nothing, or only rows whose score has run into its bound.",
    remedy="decide first: `(scores > 0.5) == labels`, or `scores.argmax(1) == labels`",
    bad="""
        import torch

        @torch.no_grad()
        def accuracy(model, val_loader):
            model.eval()
            right = 0
            for x, y in val_loader:
                prob = torch.sigmoid(model(x))
                right += (prob == y).sum().item()
            return right / len(val_loader.dataset)
        """,
    good="""
        import torch

        @torch.no_grad()
        def accuracy(model, val_loader):
            model.eval()
            right = 0
            for x, y in val_loader:
                prob = torch.sigmoid(model(x))
                right += ((prob > 0.5) == y).sum().item()
            return right / len(val_loader.dataset)
        """,
)
def probabilities_equal_labels(subject: Subject) -> Iterator[Place]:
    """One side of `==` is a network's output after a sigmoid or softmax, or of a network that ends so or in a linear layer, and nothing decides; the other side are labels."""
    program = subject.program
    for node in program.nodes[ast.Compare]:
        if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Eq) or len(node.ops) != 1:
            continue
        yield from _equal(program, node, node.left, node.comparators[0])
    for call in program.calls_of("eq"):
        if (on := receiver(call)) is not None and len(call.args) == 1 and not program.resolve(call.func):
            yield from _equal(program, call, on, call.args[0])


def _equal(program: Program, node: ast.expr, left: ast.expr, right: ast.expr) -> Iterator[Place]:
    """The finding, where one side is made of scores and the other of labels."""
    if constant(left) is not None or constant(right) is not None:
        return
    scope = program.scope(node)
    for scores, labels in ((left, right), (right, left)):
        made = [s for s in sources(program, scores, scope) if s.kind == "network"]
        if made and all(_undecided(program, s.node, s.done) for s in made) and role(program, labels, scope) == "labels":
            yield node, f"{ast.unparse(scores)} are scores that nothing rounds, and are compared with {ast.unparse(labels)} for equality"
            return


def _undecided(program: Program, forward: ast.AST, done: frozenset[str]) -> bool:
    """Whether a network's output is a number between others, and nothing made a class of it."""
    ends = activation(program, forward, program.scope(forward)) if isinstance(forward, ast.Call) else ""
    return "decided" not in done and ends != "argmax" and ("squashed" in done or ends in ("sigmoid", "softmax", "log_softmax", "linear"))


@rule(
    "BH247",
    "scores-called-probabilities",
    "warning",
    title="Scores are kept under the name of probabilities, and cut at a share",
    why="The loss takes logits, so that the network gives numbers from below -5 to above 5. Cut at 0.5, or averaged, they are no probabilities: a score of 0.3 stands for 57 %.",
    remedy="`torch.sigmoid(model(x))`, or softmax, before they are kept",
    bad="""
        import torch
        from torch.nn import functional as F

        def step(model, x, y):
            return F.binary_cross_entropy_with_logits(model(x), y)

        @torch.no_grad()
        def recall(model, loader):
            model.eval()
            probs, truth = [], []
            for x, y in loader:
                probs.append(model(x))
                truth.append(y)
            probs, truth = torch.cat(probs), torch.cat(truth)
            return ((probs > 0.3) & (truth > 0.5)).sum() / truth.sum()
        """,
    good="""
        import torch
        from torch.nn import functional as F

        def step(model, x, y):
            return F.binary_cross_entropy_with_logits(model(x), y)

        @torch.no_grad()
        def recall(model, loader):
            model.eval()
            probs, truth = [], []
            for x, y in loader:
                probs.append(torch.sigmoid(model(x)))
                truth.append(y)
            probs, truth = torch.cat(probs), torch.cat(truth)
            return ((probs > 0.3) & (truth > 0.5)).sum() / truth.sum()
        """,
)
def scores_called_probabilities(subject: Subject) -> Iterator[Place]:
    """`probs = model(x)` or `probs.append(model(x))` in a file whose loss takes logits, whose networks end without sigmoid and softmax, and where neither is taken of that name."""
    program = subject.program
    if not {"binary_cross_entropy_with_logits", "BCEWithLogitsLoss"} & program.identifiers:
        return
    squashed = program.calls_of(*SQUASHES)
    inside = [program.scope(c).owner for c in squashed]
    if any(owner is not None and program.is_module(owner) for owner in inside):
        return  # the network may give probabilities in eval mode
    taken = {n for c in squashed for n in identifiers(c)}
    for call in program.all_calls:
        named = _name_of(_kept(program, call))
        if not words(named) & PROBABLE or named in taken or words(named) & {"log", "logit", "logits"}:
            continue
        if is_model(program, call.func, program.scope(call)):
            yield call, f"{named} holds what {ast.unparse(call.func)} gives, which are logits"


def _kept(program: Program, call: ast.Call) -> ast.AST:
    """What surrounds a call but for conversions: `model(x).squeeze(1).cpu().numpy()`."""
    node: ast.AST = call
    while True:
        above = program.parents[node]
        if isinstance(above, ast.Attribute):
            after = program.parents[above]
            if not (isinstance(after, ast.Call) and after.func is above and above.attr in KEEPS_SCORES):
                return above
            node = after
        else:
            return above


def _name_of(above: ast.AST) -> str:
    """The name that a value is bound to, or whose list it is appended to."""
    if isinstance(above, ast.Assign) and len(above.targets) == 1:
        return last_name(above.targets[0])
    if isinstance(above, ast.Call) and method(above) == "append":
        return last_name(receiver(above))
    return ""
