"""Rules BH301, BH302, BH303, BH304, BH305, BH306, BH307."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_frozen_name, is_model
from training.review.lookups import torch_calls
from training.review.program import Program, Scope
from training.review.syntax import (
    calls,
    dotted,
    identifiers,
    is_true,
    keyword,
    last_name,
    method,
    nodes_of,
    receiver,
)
from training.review.values import LossCall, activation, loss_calls, reaching

SCORES = {
    "logits", "output", "outputs", "pred", "preds", "prediction", "predictions", "y_hat", "y_pred",
    "out", "scores",
}  # fmt: skip
DEVIATIONS, SQUARED = (
    {"std", "stds", "stdev", "stddev", "sd", "sigma", "sigmas", "deviation"},
    {
        "sq",
        "squared",
        "square",
        "2",
        "log",
        "var",
    },
)
OF_LOGITS = {
    "Categorical",
    "Bernoulli",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "RelaxedOneHotCategorical",
    "RelaxedBernoulli",
    "Multinomial",
}
TARGETS = {"label", "labels", "target", "targets", "y", "y_true", "yb", "gt"}


@rule("BH301")
def softmax_before_cross_entropy(subject: Subject) -> Iterator[Place]:
    """The scores that a cross-entropy, or a distribution as its `logits`, gets went through a
    softmax (or a sigmoid) last.
    """
    for loss in loss_calls(subject.program):
        if loss.kind == "cross_entropy" and (
            made := activation(subject.program, loss.scores, loss.scope)
        ) in ("softmax", "sigmoid"):
            yield (
                loss.call,
                f"{made} is applied before cross-entropy, which expects raw scores",
                _function(loss),
            )
    for call in torch_calls(subject.program, *OF_LOGITS):
        name = subject.program.resolve(call.func)
        if name.startswith("torch.distributions."):
            made = activation(subject.program, keyword(call, "logits"), subject.program.scope(call))
            if made in ("softmax", "sigmoid"):
                yield (
                    call,
                    (
                        f"{made} is applied before the logits of {name.rpartition('.')[2]}, which"
                        " expects raw scores"
                    ),
                )


def _function(loss: LossCall) -> ast.AST:
    return loss.scope.node if loss.scope.name else loss.call


@rule("BH302")
def sigmoid_before_bce_with_logits(subject: Subject) -> Iterator[Place]:
    """The scores that BCE with logits gets went through a sigmoid or softmax last."""
    for loss in loss_calls(subject.program):
        if loss.kind == "bce_logits" and (
            made := activation(subject.program, loss.scores, loss.scope)
        ) in ("sigmoid", "softmax", "log_sigmoid"):
            yield (
                loss.call,
                f"{made} is applied before BCE with logits, which expects raw scores",
                _function(loss),
            )
    for call in subject.program.calls_of("logsigmoid"):
        if (
            call.args
            and activation(subject.program, call.args[0], subject.program.scope(call)) == "sigmoid"
        ):
            yield call, "sigmoid is applied before logsigmoid, which expects raw scores"


@rule("BH303")
def nll_without_log_softmax(subject: Subject) -> Iterator[Place]:
    """The scores that the negative log-likelihood gets came out of something else last."""
    for loss in loss_calls(subject.program):
        if loss.kind in ("nll", "ctc") and (
            made := activation(subject.program, loss.scores, loss.scope)
        ) in ("softmax", "linear", "sigmoid", "relu"):
            yield (
                loss.call,
                f"{loss.kind.upper()}Loss expects log-probabilities and gets the output of {made}",
                _function(loss),
            )


@rule("BH304")
def bce_without_sigmoid(subject: Subject) -> Iterator[Place]:
    """The probabilities that BCE gets came straight out of a linear layer, a ReLU or a log."""
    for loss in loss_calls(subject.program):
        if loss.kind == "bce" and (
            made := activation(subject.program, loss.scores, loss.scope)
        ) in ("linear", "relu", "log_softmax", "log_sigmoid", "tanh"):
            yield (
                loss.call,
                f"BCELoss expects probabilities and gets the output of {made}",
                _function(loss),
            )


@rule("BH305")
def kl_without_log(subject: Subject) -> Iterator[Place]:
    """The first argument of a KL divergence went through a softmax, or its second through a
    log-softmax without `log_target`.
    """
    for loss in loss_calls(subject.program):
        if loss.kind != "kl":
            continue
        first, second = (
            activation(subject.program, part, loss.scope) for part in (loss.scores, loss.target)
        )
        if first in ("softmax", "sigmoid", "linear"):
            yield (
                loss.call,
                f"kl_div expects log-probabilities first and gets the output of {first}",
            )
        elif (
            second == "log_softmax"
            and dotted(loss.call.func).rpartition(".")[2] == "kl_div"
            and not is_true(keyword(loss.call, "log_target"))
        ):
            yield loss.call, "the target holds log-probabilities, and log_target=True is not set"


@rule("BH306")
def loss_arguments_swapped(subject: Subject) -> Iterator[Place]:
    """The first argument is a label, the second a score, by name or by where they come from, for a
    loss whose arguments differ.
    """
    for loss in loss_calls(subject.program):
        if (
            loss.kind in ("cross_entropy", "nll", "bce", "bce_logits")
            and len(loss.call.args) >= 2
            and loss.target is not None
        ):
            second = last_name(loss.target) in SCORES or activation(
                subject.program, loss.target, loss.scope
            ) in ("linear", "log_softmax")
            traced = _from_batch(loss.scores, loss.scope) and _from_network(
                subject.program, loss.target, loss.scope
            )
            if (last_name(loss.scores) in TARGETS and second) or traced:
                yield (
                    loss.call,
                    (
                        f"{ast.unparse(loss.scores)} comes first and {ast.unparse(loss.target)}"
                        " second: the loss expects scores, then labels"
                    ),
                )
        elif (
            loss.kind == "kl"
            and loss.target is not None
            and _learns_from_input(subject.program, loss)
        ):
            yield (
                loss.call,
                (
                    f"{ast.unparse(loss.scores)} has no gradient and comes first,"
                    f" {ast.unparse(loss.target)} is what learns: the divergence expects it first"
                ),
            )


def _learns_from_input(program: Program, loss: LossCall) -> bool:
    """Whether the first side of a divergence has no gradient, and the second is what learns."""
    if (
        loss.target is None
        or not _is_quiet(program, loss.scores, loss.scope)
        or _is_quiet(program, loss.target, loss.scope)
    ):
        return False
    return _of_learner(program, loss.target, loss.scope)


def _is_quiet(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Whether a value was computed without gradients, by all that is seen of it."""
    if isinstance(node, ast.Name):
        bound = scope.bindings.get(node.id, ())
        if len(bound) != 1 or bound[0].how != "assign" or depth > 3:
            return False
        blocks = [
            i.context_expr
            for a in program.ancestors(bound[0].value)
            if isinstance(a, ast.With)
            for i in a.items
        ]
        return any({"no_grad", "inference_mode"} & identifiers(b) for b in blocks) or _is_quiet(
            program, bound[0].value, scope, depth + 1
        )
    if method(node) == "detach":
        return True
    if isinstance(node, ast.Call):
        on = (
            keyword(node, "input", 0)
            if program.resolve(node.func).startswith("torch.")
            else receiver(node)
        )
        squashes = last_name(node.func) in ("softmax", "log_softmax", "log", "clamp", "float")
        return squashes and on is not None and _is_quiet(program, on, scope, depth)
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and _is_quiet(program, node.left, scope, depth)
    )


def _of_learner(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a value is the softmax of what a network gave that is not frozen by its name."""
    names = nodes_of(node, ast.Name)
    values = [node, *(v for n in names for v in reaching(program, n, scope))]
    made = [c for v in values for c in calls(v) if is_model(program, c.func, scope)]
    return bool(made) and not any(is_frozen_name(last_name(c.func)) for c in made)


def _from_batch(node: ast.expr, scope: Scope) -> bool:
    """Whether a name is a part of what a loop gives, at most moved."""
    bindings = scope.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
    moved = all(
        b.how == "loop"
        or (method(b.value) in ("to", "cuda") and last_name(receiver(b.value)) == last_name(node))
        for b in bindings
    )
    return moved and any(b.how == "loop" and b.index is not None for b in bindings)


def _from_network(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a name holds what a network that learns gave."""
    values = reaching(program, node, scope) if isinstance(node, ast.Name) else [node]
    return bool(values) and all(
        isinstance(v, ast.Call)
        and is_model(program, v.func, scope)
        and not is_frozen_name(last_name(v.func))
        for v in values
    )


@rule("BH307")
def loss_on_decision(subject: Subject) -> Iterator[Place]:
    """The scores that a loss gets came out of `argmax` last."""
    for loss in loss_calls(subject.program):
        if activation(subject.program, loss.scores, loss.scope) == "argmax":
            yield loss.call, "argmax has no gradient: nothing before it can learn from this loss"
