"""Rule BH435: what a policy gradient is weighed with."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import identifiers, last_name, method, walk, words

CRITIC = {"value", "values", "baseline", "baselines", "critic", "v"}
LOGS = ({"log", "prob"}, {"log", "probs"}, {"logp"}, {"logprob"}, {"logprobs"}, {"log", "pi"}, {"nlp"})
CUTS = {"detach", "item", "no_grad", "numpy", "tolist", "stop_gradient", "data"}


@rule(
    "BH435",
    "advantage-with-gradient",
    "error",
    title="The policy loss trains the critic as well",
    why="The advantage holds the critic's value with its gradient: the policy loss pushes the values wherever that makes it smaller, away from the returns.",
    remedy="weigh with `advantage.detach()`",
    bad="""
        import torch

        def loss(log_probs, values, returns):
            advantage = returns - values
            actor = -(log_probs * advantage).mean()
            critic = advantage.pow(2).mean()
            return actor + 0.5 * critic
        """,
    good="""
        import torch

        def loss(log_probs, values, returns):
            advantage = returns - values
            actor = -(log_probs * advantage.detach()).mean()
            critic = advantage.pow(2).mean()
            return actor + 0.5 * critic
        """,
)
def advantage_with_gradient(subject: Subject) -> Iterator[Place]:
    """A difference with a critic's value is multiplied by log probabilities as it is, and the critic learns by it, or by that value, in the same function."""
    program = subject.program
    for node in program.nodes[ast.BinOp]:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
            continue
        for weight, other in ((node.left, node.right), (node.right, node.left)):
            scope = program.scope(node)
            if (
                isinstance(weight, ast.Name)
                and of_logs(other)
                and (value := _value_in(program, weight, scope))
                and _learned_by(program, {weight.id, value}, scope)
            ):
                yield node, f"{weight.id} holds the gradient of {value}, and weighs {ast.unparse(other)}"
                break


def of_logs(node: ast.expr) -> bool:
    """Whether it is named after log probabilities, as `rows["log_prob"]` is by its key."""
    if any(_is_log(name) for name in identifiers(node)):
        return True
    return any(isinstance(n, ast.Constant) and isinstance(n.value, str) and _is_log(n.value) for n in walk(node))


@lru_cache(maxsize=1 << 12)
def _is_log(name: str) -> bool:
    said = words(name)
    return any(kind <= said for kind in LOGS)


def _value_in(program: Program, weight: ast.Name, scope: Scope) -> str:
    """The critic's value that is taken from something in the only value of a name, where nothing cuts its gradient."""
    bound = program.bindings_of(weight, scope)
    if len(bound) != 1 or bound[0].how != "assign" or not isinstance(bound[0].value, ast.BinOp) or not isinstance(bound[0].value.op, ast.Sub):
        return ""
    made, within = bound[0].value, bound[0].scope
    if identifiers(made) & CUTS or any(isinstance(a, ast.With) and "no_grad" in identifiers(a) for a in program.ancestors(bound[0].statement)):
        return ""
    taken = made.right
    if not isinstance(taken, ast.Name) or not words(taken.id) & CRITIC or "old" in words(taken.id):
        return ""
    cut = any(identifiers(b.value) & CUTS for b in program.bindings_of(taken, within))
    return "" if cut else taken.id


def _is_figure(program: Program, node: ast.AST) -> bool:
    """Whether a square goes into what is only reported: the variance that is explained, a root mean square, a value whose gradient is cut."""
    statement = program.statement(node)
    target = last_name(getattr(statement, "targets", [None])[0] or ast.Constant(None)) if isinstance(statement, ast.Assign) else ""
    by_name = bool(words(target) & {"explained", "ev", "rmse", "error", "metric", "drift"})
    return by_name or "item" in {method(a) for a in program.ancestors(node) if isinstance(a, ast.Call)}


def _learned_by(program: Program, names: set[str], scope: Scope) -> bool:
    """Whether one of these names is squared, or given to a loss that the critic learns by."""
    for node in walk(scope.node):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and identifiers(node.left) & names and not _is_figure(program, node):
            return True
        if not isinstance(node, ast.Call):
            continue
        squared = method(node) in ("pow", "square") and bool(identifiers(node.func) & names) and not _is_figure(program, node)
        if squared or (program.is_torch(node.func, "mse_loss", "smooth_l1_loss", "huber_loss", "square") and any(identifiers(a) & names for a in node.args)):
            return True
    return False
