"""For which sides of a split something is computed anew."""

from __future__ import annotations

import ast

from training.review.program import Program, Scope, argument
from training.review.sides import side_of, takes, targets_of
from training.review.splitting import line_of, values_read
from training.review.syntax import (
    last_name,
    names_read,
    own_nodes_of,
    receiver,
)

DEPTH = 3  # callers of callers


def per_side(program: Program, node: ast.expr, rows: ast.expr, depth: int = 0) -> str:
    """The sides for each of which an expression is computed anew: it stands in a loop over them, or
    in a function that is called for them; else empty.
    """
    names, scope = values_read(rows), program.scope(node)
    for around in program.ancestors(node):
        if isinstance(around, (ast.If, ast.IfExp)):
            return ""
        generators = [around] if isinstance(around, ast.For) else getattr(around, "generators", [])
        for loop in generators:
            sides = _sides(loop.iter) or _unpacked(program.parents[around])
            if names_read(rows) & names_read(loop.target) and sides:
                return " and ".join(sides)
    return _by_calls(program, scope, names, node, depth)


def _unpacked(statement: ast.AST) -> list[str]:
    """The names of sides that get a value each: `train, val, test = (numbered(p) for p in
    parts)`.
    """
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    names = [last_name(e) for e in target.elts] if isinstance(target, ast.Tuple) else []
    sides = {side_of(n) for n in names}
    return names if "train" in sides and sides & {"val", "test"} else []


def _sides(over: ast.expr) -> list[str]:
    """The sides that a loop goes through: a literal of train rows and others."""
    if isinstance(over, ast.Call) and last_name(over.func) in ("enumerate", "items", "zip"):
        over = over.args[0] if over.args else receiver(over) or over
    elements = (
        over.elts
        if isinstance(over, (ast.List, ast.Tuple))
        else over.values
        if isinstance(over, ast.Dict)
        else []
    )
    named = [(ast.unparse(e), {side_of(n) for n in names_read(e)}) for e in elements]
    others = any({"val", "test"} & s for _, s in named) or any(
        isinstance(e, ast.Starred) for e in elements[1:]
    )
    return [text for text, _ in named] if others and any("train" in s for _, s in named) else []


def _by_calls(program: Program, scope: Scope, names: set[str], node: ast.expr, depth: int) -> str:
    """The rows of several sides that a function is given, whose parameter is read."""
    bound = {b for n in names for b in scope.bindings.get(n, ()) if b.how == "assign"}
    read = names | {n for b in bound for n in values_read(b.value)}
    if len(scope.parameters) != len(set(scope.parameters)) or (
        not depth and _is_lent(program, node, scope)
    ):
        return ""
    for name in sorted(read & set(scope.parameters) - {"self"}):
        given = [(argument(c, scope, name), c) for c, _ in program.call_sites[scope]]
        sides = {
            side_of(n): ast.unparse(v)
            for v, c in given
            if v is not None
            for n in (*names_read(v), *values_read(v), *_given_to(program, v, c))
        }
        others = [sides[s] for s in ("val", "test") if s in sides]
        same = (
            len(
                {
                    tuple(ast.dump(a) for a in c.args[1:] if isinstance(a, ast.Constant))
                    for _, c in given
                }
            )
            == 1
        )
        if (
            "train" in sides
            and others
            and same
            and len({tuple(sorted(k.arg or "" for k in c.keywords)) for _, c in given}) == 1
        ):
            return f"{sides['train']} and {others[0]}"
        if same and (both := _complements(program, given)):
            return both
        passed_on = given[0][0] if len(given) == 1 and depth < DEPTH else None
        if passed_on is not None and (
            above := per_side(program, given[0][1], passed_on, depth + 1)
        ):
            return above
    return ""


def _given_to(program: Program, rows: ast.expr, call: ast.Call) -> tuple[str, ...]:
    """The names that get what a call makes of rows that are called after no side: of `train, val =
    prepare(table[:a]), prepare(table[a:])`.
    """
    statement = program.statement(call)
    if (
        any(side_of(n) for n in names_read(rows))
        or not isinstance(rows, ast.Subscript)
        or not isinstance(statement, ast.Assign)
    ):
        return ()
    made = (
        statement.value.elts
        if isinstance(statement.value, (ast.Tuple, ast.List))
        else [statement.value]
    )
    return targets_of(program, call) if call in made else ()


def _complements(program: Program, given: list[tuple[ast.expr | None, ast.Call]]) -> str:
    """Two arguments that are the rows of one table on either side of a condition, whatever they are
    called: `past` and `recent`.
    """
    named = [(v.id, program.scope(c)) for v, c in given if isinstance(v, ast.Name)]
    found = [
        t
        for t in takes(program)
        if t.family[0] == "mask" and len(t.names) == 1 and (t.names[0], t.scope) in named
    ]
    for a, b in ((a, b) for a in found for b in found if line_of(a.node) <= line_of(b.node)):
        alike = a.scope is b.scope and a.family == b.family and ast.dump(a.rows) == ast.dump(b.rows)
        if alike and a.member != b.member and a.names != b.names:
            return f"{a.names[0]} and {b.names[0]}"
    return ""


def _is_lent(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether what was learned is given back, to be used for another side."""
    kept = receiver(node)
    returned = [n for n in own_nodes_of(scope.node, ast.Return) if n.value is not None]
    if isinstance(node, ast.DictComp):
        made = set(targets_of(program, node))
        return any(r.value is node or made & _bare_names(r.value) for r in returned)
    return isinstance(kept, ast.Name) and any(kept.id in names_read(r.value) for r in returned)


def _bare_names(node: ast.expr | None) -> set[str]:
    """The names that are given back as they are, alone or in a tuple."""
    return {
        e.id
        for e in (node.elts if isinstance(node, ast.Tuple) else [node])
        if isinstance(e, ast.Name)
    }
