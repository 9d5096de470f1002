"""Times that end with an event or with the last contact, and what a file says of rows that were lost before it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from training.review.program import Program
from training.review.syntax import constant, last_name, method, receiver, walk, words

FOLLOWED = {"followup", "follow", "followed", "tenure", "survival", "observed", "contact"}  # words of a time up to the event or the loss, whichever comes first
TIMES = {
    *("day", "days", "time", "times", "month", "months", "hour", "hours", "week", "weeks", "year", "years", "until", "lifetime", "t"),
    *("duration", "durations", "period"),
}  # fmt: skip
BOUNDS = {"horizon", "horizons", "cutoff"}
METHODS = {
    *("cox", "coxph", "hazard", "hazards", "kaplan", "meier", "kmf", "nelson", "breslow", "ipcw", "ipw", "lifelines", "sksurv", "pycox", "riskset", "logrank"),
}  # of survival analysis  # fmt: skip
KNOWN = {
    *("eligible", "evaluable", "uncensored", "determinable", "ascertained", "mature", "matured", "undetermined", "unresolved"),
}  # of rows whose label is known  # fmt: skip
ENTRY = {"enrolled", "enrolment", "enrollment", "entry", "entered", "signup", "joined"}
ORDERED = {"le": ast.LtE, "lt": ast.Lt, "ge": ast.GtE, "gt": ast.Gt, "less_equal": ast.LtE, "less": ast.Lt, "greater_equal": ast.GtE, "greater": ast.Gt}


@dataclass(frozen=True, eq=False)
class Within:
    """The event has happened and its time is within a bound: the conjunction, its two columns by their names, and the bound."""

    node: ast.expr
    event: frozenset[str]
    time: frozenset[str]
    bound: ast.expr
    compare: ast.expr


def accounts_for_censoring(program: Program) -> bool:
    """Whether the file knows of censoring: a survival method, weights for it, or rows whose label is known."""
    texts = [n.value for n in program.nodes[ast.Constant] if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    strings = [t for t in texts if t.isidentifier() and t.lower() != "unknown"]  # which is a category often
    named = [words(n) for n in {*program.identifiers, *strings, *program.modules_imported, *(s.name for s in program.scopes)} if n]
    for found in named:
        if (METHODS | KNOWN | ENTRY) & found or {"at", "risk"} <= found or {"partial", "likelihood"} <= found:
            return True
        censored = any(w.startswith("censor") for w in found)
        if (censored and any(w.startswith(("weight", "prob", "surviv")) or w == "w" for w in found)) or {"inverse", "probability"} <= found:
            return True
        if {"known", "complete", "unknown"} & found and len(found) < 3:
            return True
    return False


def told_apart(program: Program, within: Within, own: set[int]) -> bool:
    """Whether the file compares the time, or another one with the same bound, anywhere else, or asks for it in the text of a query."""
    bound = frozenset(w for n in walk(within.bound) for w in _of_node(n)) - TIMES
    numbers = {constant(n) for n in walk(within.bound) if isinstance(constant(n), (int, float))}
    for node in (*program.nodes[ast.Compare], *program.all_calls):
        if id(node) in own:
            continue
        if isinstance(node, ast.Call) and method(node) in ("between", "min", "mask") and receiver(node) is not None:
            if within.time & _mentioned(receiver(node)):
                return True
            continue
        sides = _sides(node)
        if not sides:
            continue
        mentioned = frozenset(m for s in sides for m in _mentioned(s))
        if within.time & mentioned and not any(is_zero(s) for s in sides):
            return True
        others = [s for s in sides if constant(s) is None]
        same = (bound | BOUNDS) & frozenset(w for m in mentioned for w in words(m)) or numbers & {constant(n) for s in sides for n in walk(s)}
        if (
            same
            and any((FOLLOWED | TIMES) & words(m) for s in others for m in _mentioned(s))
            and not all(isinstance(s, (ast.Name, ast.Attribute)) and BOUNDS & words(last_name(s)) for s in others)
        ):
            return True
    texts = [n.value for n in program.nodes[ast.Constant] if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return any(time in text and ("<" in text or ">" in text) for time in within.time for text in texts)


def ordered(node: ast.AST) -> tuple[ast.expr, type[ast.cmpop], ast.expr] | None:
    """The two sides of a comparison by order, and its operator, as `<=`, `.le(...)` or `torch.le(...)`."""
    match node:
        case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE() as op], comparators=[right]):
            return left, type(op), right
        case ast.Call(args=[left, right]) if last_name(node.func) in ORDERED:
            return left, ORDERED[last_name(node.func)], right
        case ast.Call(func=ast.Attribute(value=left, attr=name), args=[right]) if name in ORDERED:
            return left, ORDERED[name], right
    return None


def _sides(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators] if any(isinstance(o, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for o in node.ops) else []
    found = ordered(node) if isinstance(node, ast.Call) else None
    return [found[0], found[2]] if found is not None else []


def _of_node(node: ast.AST) -> frozenset[str]:
    """The words of one name, attribute or key."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else constant(node)
    return words(name) - {"cfg", "config", "self", "args", "np", "torch"} if isinstance(name, str) else frozenset()


def _mentioned(node: ast.expr | None) -> frozenset[str]:
    """All names, attributes and keys within."""
    found: set[str] = set()
    for n in walk(node) if node is not None else ():
        name = n.id if isinstance(n, ast.Name) else n.attr if isinstance(n, ast.Attribute) else constant(n)
        if isinstance(name, str):
            found.add(name)
    return frozenset(found)


def is_zero(node: ast.AST | None) -> bool:
    """Whether it is the number 0, or False."""
    value = constant(node)
    return isinstance(value, (int, float)) and value == 0
