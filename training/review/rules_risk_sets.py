"""Rule BH480: risk sets of a partial likelihood that hold those who are gone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import calls, identifiers, is_true, keyword, last_name, method, receiver, walk, words

SUMS = ("logcumsumexp", "cumsum")
TIMES = {"time", "times", "duration", "durations", "days", "months", "survival", "tte"}
EVENTS = {"event", "events", "status", "censored", "observed", "death", "deaths", "died", "failure"}
SORTS = {"argsort", "sort"}
TURNS = {"flip", "flipud"}


@rule(
    "BH480",
    "risk-set-of-the-past",
    "error",
    title="A risk set holds those whose time came before",
    why="At an event those are at risk whose own time is the same or later. Summed up in the order of rising times, each sum holds the earlier ones instead: the likelihood rewards the wrong order.",
    remedy="sort by falling time: `torch.argsort(time, descending=True)`, or sum up from the end",
    bad="""
        import torch

        def cox_loss(log_risk, time, event):
            order = torch.argsort(time)
            log_risk, event = log_risk[order], event[order]
            return -((log_risk - torch.logcumsumexp(log_risk, 0)) * event).sum() / event.sum()
        """,
    good="""
        import torch

        def cox_loss(log_risk, time, event):
            order = torch.argsort(time, descending=True)
            log_risk, event = log_risk[order], event[order]
            return -((log_risk - torch.logcumsumexp(log_risk, 0)) * event).sum() / event.sum()
        """,
)
def risk_set_of_the_past(subject: Subject) -> Iterator[Place]:
    """Risks that are put in the order of times are summed up from the earliest one, or put in falling order and summed up from the end, where events are told of."""
    program = subject.program
    if not SORTS & program.called_names:
        return
    for call in program.calls_of(*SUMS):
        functional = bool(program.resolve(call.func))
        given = (call.args[0] if call.args else None) if functional else receiver(call)
        scope = program.scope(call)
        names = identifiers(scope.node) | set(scope.parameters)
        if given is None or not any(EVENTS & words(n) for n in names) or not _of_risks(call, given) or _is_taken_off(program, call):
            continue
        falling = {order for name in _names(given) for order in _orders(scope, name)}
        if len(falling) == 1 and falling.pop() == _is_turned(given):
            yield call, "the sum over those at risk runs over earlier times: it holds those who are gone, and leaves out those who are still there"


def _of_risks(call: ast.Call, given: ast.expr) -> bool:
    """Whether exponentials are summed up: of their logarithm, or as they are."""
    return last_name(call.func) == "logcumsumexp" or any(last_name(c.func) == "exp" for c in calls(given))


def _is_taken_off(program: Program, call: ast.Call) -> bool:
    """`risks.sum() - risks.cumsum(0)`: what is left of the sum is that of the later ones."""
    above = program.parents[call]
    return last_name(call.func) == "cumsum" and isinstance(above, ast.BinOp) and isinstance(above.op, ast.Sub) and above.right is call


def _names(node: ast.expr) -> set[str]:
    return {n.id for n in walk(node) if isinstance(n, ast.Name)}


def _orders(scope: Scope, name: str) -> set[bool]:
    """Whether a name is put in the order of falling times, `x = x[order]`; empty where it is in no order of times."""
    found = set()
    for binding in scope.bindings.get(name, ()):
        taken = binding.value
        if isinstance(taken, ast.Subscript) and isinstance(taken.slice, ast.Name):
            found |= {f for b in scope.bindings.get(taken.slice.id, ()) if (f := _falls(b.value)) is not None}
    return found


def _falls(order: ast.expr) -> bool | None:
    """Whether an order of times falls; None for any other value."""
    sorts = [c for c in calls(order) if last_name(c.func) in SORTS]
    if len(sorts) != 1:
        return None
    of = sorts[0].args[0] if sorts[0].args else receiver(sorts[0])
    if of is None or not TIMES & {w for n in identifiers(of) for w in words(n)}:
        return None
    turned = isinstance(of, ast.UnaryOp) and isinstance(of.op, ast.USub)
    return (is_true(keyword(sorts[0], "descending")) or turned) != _is_turned(order)


def _is_turned(node: ast.expr) -> bool:
    """Whether something is turned end for end: `.flip(0)`, `[::-1]`."""
    steps = [n.slice.step for n in walk(node) if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Slice) and n.slice.step is not None]
    return any(method(c) in TURNS or last_name(c.func) in TURNS for c in calls(node)) or any(isinstance(s, ast.UnaryOp) for s in steps)
