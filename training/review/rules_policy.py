"""Rule BH435: what a policy gradient is weighed with."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import entry, identifiers, last_name, method, walk, words

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
            if not isinstance(weight, ast.Name) or not of_logs(other):
                continue
            value = _value_in(program, weight, scope)
            if value is not None and _learned_by(program, {weight.id, ast.unparse(value)}, scope):
                yield node, f"{weight.id} holds the gradient of {ast.unparse(value)}, and weighs {ast.unparse(other)}"
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


def _value_in(program: Program, weight: ast.Name, scope: Scope) -> ast.expr | None:
    """The critic's value that is taken from something in the only value of a name, where nothing cuts its gradient."""
    bound = program.bindings_of(weight, scope)
    if len(bound) != 1 or bound[0].how != "assign" or not isinstance(bound[0].value, ast.BinOp) or not isinstance(bound[0].value.op, ast.Sub):
        return None
    made, within = bound[0].value, bound[0].scope
    if identifiers(made) & CUTS or any(isinstance(a, ast.With) and "no_grad" in identifiers(a) for a in program.ancestors(bound[0].statement)):
        return None
    taken = made.right
    if not words(_called(taken)) & CRITIC or "old" in words(_called(taken)):
        return None
    cut = isinstance(taken, ast.Name) and any(identifiers(b.value) & CUTS for b in program.bindings_of(taken, within))
    return None if cut else taken


def _called(value: ast.expr) -> str:
    """The name of a value, or the key or attribute by which a batch holds it: `values`, `batch["value"]`, `batch.value`."""
    return value.id if isinstance(value, ast.Name) else entry(value)


def _parts(node: ast.AST) -> set[str]:
    """The names, attributes and looked up entries within an expression, as they are written."""
    return {ast.unparse(n) for n in walk(node) if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript))}


def _is_of(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression holds one of these values, and no other of a critic: values of before are compared with new ones, and learn nothing."""
    critics = {ast.unparse(n) for n in walk(node) if isinstance(n, (ast.Subscript, ast.Attribute)) and words(_called(n)) & CRITIC}
    return bool(_parts(node) & names) and critics <= names


def _is_figure(program: Program, node: ast.AST) -> bool:
    """Whether a square goes into what is only reported: the variance that is explained, a root mean square, a value whose gradient is cut."""
    statement = program.statement(node)
    target = last_name(getattr(statement, "targets", [None])[0] or ast.Constant(None)) if isinstance(statement, ast.Assign) else ""
    by_name = bool(words(target) & {"explained", "ev", "rmse", "error", "metric", "drift"})
    return by_name or "item" in {method(a) for a in program.ancestors(node) if isinstance(a, ast.Call)}


def _learned_by(program: Program, names: set[str], scope: Scope) -> bool:
    """Whether one of these names is squared, or given to a loss that the critic learns by."""
    for node in walk(scope.node):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and _is_of(node.left, names) and not _is_figure(program, node):
            return True
        if not isinstance(node, ast.Call):
            continue
        squared = method(node) in ("pow", "square") and _is_of(node.func, names) and not _is_figure(program, node)
        if squared or (
            program.is_torch(node.func, "mse_loss", "smooth_l1_loss", "huber_loss", "square")
            and any(_parts(a) & names for a in node.args)
            and all(_is_of(a, names) for a in node.args if _parts(a) & names)
        ):
            return True
    return False
