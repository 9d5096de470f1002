"""Bounds of slices as shares and numbers of rows, and whether two slices of the same rows
overlap.
"""

from __future__ import annotations

import ast
import math
from typing import NamedTuple

from training.review.program import Program, Scope
from training.review.syntax import constant, last_name, method, receiver

ROUNDED = {"int", "round", "floor", "ceil", "trunc"}
DEPTH = 6


class Amount(NamedTuple):
    """`share * len(of) + rows`."""

    share: float
    rows: float
    of: str = ""


class Interval(NamedTuple):
    """From the first row to the one before `stop`; None: to the end."""

    start: Amount
    stop: Amount | None


ALL = Interval(Amount(0, 0), None)


def interval(program: Program, node: ast.Slice, scope: Scope, base: str) -> Interval | None:
    """The bounds of a slice of what `base` names; None where they are not known."""
    if node.step is not None:
        return None
    start = Amount(0, 0) if node.lower is None else _bound(program, node.lower, scope, base)
    stop = None if node.upper is None else _bound(program, node.upper, scope, base)
    return (
        None
        if start is None or (stop is None and node.upper is not None)
        else Interval(start, stop)
    )


def _bound(program: Program, node: ast.expr, scope: Scope, base: str) -> Amount | None:
    found = amount(program, node, scope, base)
    return (
        Amount(found.share + 1, found.rows, "N")
        if found is not None and found.share <= 0 and found.rows < 0 and found.of in ("", "N")
        else found
    )


def amount(
    program: Program, node: ast.expr, scope: Scope, base: str, depth: int = 0
) -> Amount | None:
    """A number of rows; of a name that is bound once its value."""
    value = constant(node)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Amount(0, value)
    if depth > DEPTH:
        return None
    match node:
        case ast.Call() if last_name(node.func) == "len" and len(node.args) == 1:
            return Amount(
                1, 0, "N" if ast.unparse(node.args[0]) == base else ast.unparse(node.args[0])
            )
        case ast.Subscript(value=ast.Attribute(value=of, attr="shape")) if (
            constant(node.slice) == 0
        ):
            return Amount(1, 0, "N" if ast.unparse(of) == base else ast.unparse(of))
        case ast.Call() if (
            method(node) == "size"
            and node.args
            and constant(node.args[0]) == 0
            and (given := receiver(node)) is not None
        ):
            return Amount(1, 0, "N" if ast.unparse(given) == base else ast.unparse(given))
        case ast.Call() if last_name(node.func) in ROUNDED and len(node.args) == 1:
            return amount(program, node.args[0], scope, base, depth + 1)
        case ast.Name():
            bound = program.bindings_of(node, scope)
            once = len(bound) == 1 and bound[0].index is None and bound[0].how == "assign"
            return (
                amount(program, bound[0].value, bound[0].scope, base, depth + 1) if once else None
            )
        case ast.BinOp(left=left, op=op, right=right):
            a, b = (
                amount(program, left, scope, base, depth + 1),
                amount(program, right, scope, base, depth + 1),
            )
            return _combined(a, op, b) if a is not None and b is not None else None
    return None


def _combined(a: Amount, op: ast.operator, b: Amount) -> Amount | None:
    of = a.of or b.of
    if a.of and b.of and a.of != b.of:
        return None
    match op:
        case ast.Add():
            return Amount(a.share + b.share, a.rows + b.rows, of)
        case ast.Sub():
            return Amount(a.share - b.share, a.rows - b.rows, of)
        case ast.Mult() if not a.of or not b.of:
            factor, other = (a, b) if not a.of else (b, a)
            return Amount(other.share * factor.rows, other.rows * factor.rows, of)
        case ast.Div() | ast.FloorDiv() if not b.of and b.rows:
            return Amount(a.share / b.rows, a.rows / b.rows, of)
    return None


def least(a: Amount | None, b: Amount | None) -> Amount | None:
    """The earlier of two bounds, None being the end.

    Raises:
        ValueError: which one that is depends on how many rows there are.
    """
    if a is None or b is None:
        return b if a is None else a
    return a if before(a, b) else b


def before(a: Amount, b: Amount) -> bool:
    """Whether a bound comes before another one, or is the same.

    Raises:
        ValueError: that depends on how many rows there are.
    """
    if not a.share and not a.rows:
        return True
    share, rows = b.share - a.share, b.rows - a.rows
    same = math.isclose(share, 0, abs_tol=1e-9)
    if (a.of and b.of and a.of != b.of) or (
        not same and abs(rows) > 1 and (share > 0) != (rows > 0)
    ):
        raise ValueError("bounds of different rows")
    return rows >= -1e-9 if same else share > 0


def overlap(a: Interval, b: Interval) -> str:
    """`inside` where `b` lies in `a`, `partly` where they share rows; empty where they share none,
    or it is not known.
    """
    try:
        start = b.start if before(a.start, b.start) else a.start
        stop = least(a.stop, b.stop)
        if stop is not None and before(stop, start):
            return ""
        return "inside" if start == b.start and stop == b.stop else "partly"
    except ValueError:
        return ""


def share_of(a: Interval, b: Interval) -> float:
    """Which share of `b` lies in `a`; 0 where it is not known."""
    try:
        start, stop = (b.start if before(a.start, b.start) else a.start), least(a.stop, b.stop)
    except ValueError:
        return 0.0
    end, last = stop or Amount(1, 0), b.stop or Amount(1, 0)
    if math.isclose(end.share, start.share) and math.isclose(last.share, b.start.share):
        return (end.rows - start.rows) / max(1.0, last.rows - b.start.rows)
    if end.rows or start.rows or last.rows or b.start.rows:
        return 0.0
    return (end.share - start.share) / max(1e-9, last.share - b.start.share)
