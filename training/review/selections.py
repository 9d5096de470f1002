"""Which rows each side of a split is made of, where names say which side it is: of one table the
slice, the positions or the draw.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from training.review.intervals import ALL, Interval, interval
from training.review.program import Binding, Program, Scope
from training.review.sides import (
    PERMUTED,
    latest,
    origin_key,
    row_takes,
    side_of,
    side_of_names,
    targets_of,
)
from training.review.splitting import line_of
from training.review.syntax import (
    calls,
    constant,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    once,
    receiver,
    walk,
)

ANEW = {
    "read",
    "readlines",
    "pop",
    "next",
    "uuid4",
    "uuid1",
    "token_hex",
    "urandom",
}  # which give something else each time
SEEDED = {"manual_seed", "default_rng", "RandomState", "Random"}


@dataclass(frozen=True, eq=False)
class Chosen:
    """Rows of a table that one side is made of: `base` says by what they are chosen, and `within`
    which part of that.
    """

    node: ast.expr
    table: str
    side: str
    base: str
    within: Interval
    scope: Scope
    draw: ast.Call | None = None


@once
def chosen(program: Program) -> tuple[Chosen, ...]:
    """Every row selection that is bound to the name of a side."""
    return tuple(_chosen(program))


def _chosen(program: Program) -> Iterator[Chosen]:
    for node, rows, selector in row_takes(program):
        scope = program.scope(node)
        side = side_of_names(targets_of(program, node))
        if (
            not side
            or not names_read(rows)
            or _one_by_one(program, selector)
            or not _are_rows(program, node)
        ):
            continue
        if any(last_name(n.func) in ANEW for n in calls(rows)):
            continue
        found = _selection(program, selector, rows, scope)
        if found is not None:
            yield Chosen(node, table_key(program, rows, scope), side, *found[:2], scope, found[2])
    for call in program.methods_of("sample"):
        of = receiver(call)
        if isinstance(of, ast.Name) and any(
            k.arg in ("frac", "random_state") for k in call.keywords
        ):
            scope, side = program.scope(call), side_of_names(targets_of(program, call))
            if side and constant(keyword(call, "frac")) != 1:
                yield Chosen(
                    call, table_key(program, of, scope), side, ast.dump(call), ALL, scope, call
                )


def _are_rows(program: Program, node: ast.expr) -> bool:
    """Whether it is part of what a statement assigns as rows: no type, no bound of a slice, no part
    of a path, and none of which a key takes one side.
    """
    statement, inner = program.statement(node), node
    if isinstance(statement, ast.AnnAssign) and any(n is node for n in walk(statement.annotation)):
        return False
    for above in program.ancestors(node):
        if above is statement:
            return True
        if isinstance(above, (ast.Slice, ast.Compare)) or (
            isinstance(above, ast.BinOp) and isinstance(above.right, ast.JoinedStr)
        ):
            return False
        if (
            isinstance(above, ast.Subscript)
            and above.value is inner
            and side_of(str(constant(above.slice) or last_name(above.slice)))
        ):
            return False  # `folds[i]["train"]`
        if isinstance(above, ast.expr):
            inner = above
    return True


def _one_by_one(program: Program, selector: ast.expr) -> bool:
    """Whether a comprehension around it goes through what selects: `[code[c] for c in text]`."""
    loops = [g for a in program.ancestors(selector) for g in getattr(a, "generators", [])]
    return isinstance(selector, ast.Name) and any(
        isinstance(n, ast.Name) and n.id == selector.id for g in loops for n in walk(g.target)
    )


def table_key(program: Program, rows: ast.expr, scope: Scope) -> str:
    """A table together with the places where its names got their values."""
    names = sorted(nodes_of(rows, ast.Name), key=lambda n: n.id)
    return ast.unparse(rows) + " of " + " ".join(origin_key(program, n, scope) for n in names)


def _selection(
    program: Program, selector: ast.expr, rows: ast.expr, scope: Scope, depth: int = 0
) -> tuple[str, Interval, ast.Call | None] | None:
    """By what rows are chosen, which part of that, and the draw that it comes from."""
    match selector:
        case ast.Slice():
            found = interval(program, selector, scope, ast.unparse(rows))
            if found is None:  # the same bounds are the same rows
                return _pure(program, selector, scope)
            return (
                ("rows of " + table_key(program, rows, scope), found, None)
                if found != ALL
                else None
            )
        case ast.Subscript(value=order, slice=ast.Slice() as part):
            draw = drawn(program, order, scope)
            within = interval(program, part, scope, ast.unparse(order))
            if within is None:
                return _pure(program, selector, scope)
            if draw is not None:
                return draw_key(draw), within, draw
            return (
                ("order " + table_key(program, order, scope), within, None)
                if isinstance(order, ast.Name)
                else None
            )
        case ast.Name() if depth < 3:
            bound = latest(program, selector, scope)
            if bound is None or bound.how not in ("assign", "loop") or _is_key(bound):
                return None
            draw = drawn(program, selector, scope)
            if draw is not None:
                return draw_key(draw), ALL, draw
            if (
                bound.how == "assign"
                and bound.index is None
                and isinstance(bound.value, ast.Subscript)
            ):
                return _selection(program, bound.value, rows, bound.scope, depth + 1)
            return _pure(program, selector, scope)
        case ast.Attribute(value=ast.Name(), attr="indices" | "index"):
            return _pure(program, selector, scope)
    return None


def _is_key(bound: Binding) -> bool:
    """Whether a loop goes through numbers or keys, of which each takes one entry: `for name, metric
    in metrics.items()`.
    """
    asked = (
        last_name(bound.value.func)
        if bound.how == "loop" and isinstance(bound.value, ast.Call)
        else ""
    )
    return (asked in ("range", "keys")) or (asked in ("items", "enumerate") and bound.index == 0)


def _pure(
    program: Program, selector: ast.expr, scope: Scope
) -> tuple[str, Interval, ast.Call | None] | None:
    if any(last_name(n.func) not in ("int", "len") for n in calls(selector)):
        return None
    return "chosen by " + table_key(program, selector, scope), ALL, None


def drawn(program: Program, order: ast.expr, scope: Scope) -> ast.Call | None:
    """The call that put numbers of rows in random order, or drew some of them without
    replacement.
    """
    value: ast.expr | None = order
    if isinstance(order, ast.Name):
        bound = latest(program, order, scope)
        value = (
            bound.value
            if bound is not None and bound.index is None and bound.how == "assign"
            else None
        )
    if isinstance(value, ast.Call) and method(value) in ("numpy", "tolist", "copy"):
        value = receiver(value)
    if not isinstance(value, ast.Call) or not value.args:
        return None
    from_all = last_name(value.func) == "choice" and len(value.args) > 1
    return value if last_name(value.func) in PERMUTED or from_all else None


def draw_key(call: ast.Call) -> str:
    """One name for draws that give the same numbers: those that are seeded alike in the call
    itself; any other call is one of its own.
    """
    seeded = any(last_name(c.func) in SEEDED and c.args for c in calls(call))
    return ast.dump(call) if seeded else f"draw in line {line_of(call)}, {call.col_offset}"
