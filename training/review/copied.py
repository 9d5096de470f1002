"""Rows that get copies, in a function or not, before they are split: labels that are joined with
themselves.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place
from training.review.program import Program, Scope
from training.review.splitting import line_of, shuffled_cuts, sources_of, splits
from training.review.syntax import (
    calls,
    dotted,
    identifiers,
    last_name,
    method,
    names_read,
    nodes_of,
    receiver,
    words,
)

JOINS = {"cat", "concatenate", "concat", "vstack", "hstack"}


def copies_before_split(program: Program) -> Iterator[Place]:
    """Labels are joined with themselves, here or by a function that returns them, and what they
    become is split at random further down.
    """
    divided = [*splits(program), *shuffled_cuts(program)]
    for call in program.calls_of(*JOINS) if divided else ():
        name = _joined_with_itself(call) or _listed_with_itself(program, call)
        if not name or "train" in words(name):
            continue
        for scope, line, names in _holders(program, call):
            for split, where, parts in divided:
                behind = {
                    s
                    for part in parts
                    for n in names_read(part)
                    for s in sources_of(n, where, line_of(split))
                }
                if where is scope and line < line_of(split) and names & behind:
                    yield (
                        call,
                        (
                            f"rows and their copies are split in line {line_of(split)}, {name} with"
                            " them"
                        ),
                        scope.node if scope.name else split,
                    )
                    return


def _joined_with_itself(call: ast.Call) -> str:
    """The name that a join is given twice, as labels are whose rows get copies."""
    if (
        last_name(call.func) not in JOINS
        or not call.args
        or not isinstance(call.args[0], (ast.List, ast.Tuple))
    ):
        return ""
    given = [e.id for e in call.args[0].elts if isinstance(e, ast.Name)]
    return next(
        (n for n in given if given.count(n) > 1 and len(given) == len(call.args[0].elts)), ""
    )


def _listed_with_itself(program: Program, call: ast.Call) -> str:
    """The same of a list: `ys = [labels]`, in a loop `ys.append(labels)`, then
    `concatenate(ys)`.
    """
    joined = call.args[0] if last_name(call.func) in JOINS and call.args else None
    scope = program.scope(call)
    bound = scope.bindings.get(joined.id, []) if isinstance(joined, ast.Name) else []
    first = bound[0].value if bound else None
    if (
        not isinstance(first, ast.List)
        or len(first.elts) != 1
        or not isinstance(first.elts[0], ast.Name)
        or not isinstance(joined, ast.Name)
    ):
        return ""
    name = first.elts[0].id
    if (
        any(b.how in ("loop", "augment") for b in scope.bindings.get(name, ()))
        or len(scope.bindings.get(name, ())) > 1
    ):
        return ""
    added = [
        c
        for c in calls(scope.node)
        if method(c) == "append"
        and dotted(receiver(c)) == joined.id
        and c.args
        and dotted(c.args[0]) == name
    ]
    return name if added else ""


def _holders(program: Program, call: ast.Call) -> Iterator[tuple[Scope, int, set[str]]]:
    """Where the joined rows are held, from which line on, by which names: in the function itself,
    and where it is called with other rows than those of train.
    """
    scope = program.scope(call)
    statement = program.statement(call)
    if isinstance(statement, ast.Assign):
        yield (
            scope,
            line_of(call),
            {dotted(n) for t in statement.targets for n in nodes_of(t, ast.Name)},
        )
    given_back = {
        n
        for r in nodes_of(scope.node, ast.Return)
        if r.value is not None
        for n in names_read(r.value)
    }
    held = {dotted(t) for t in getattr(statement, "targets", ())}
    if not scope.name or not (isinstance(statement, ast.Return) or held & given_back):
        return
    for site, where in program.call_sites[scope]:
        spoken = {
            w
            for a in (*site.args, *(k.value for k in site.keywords))
            for n in identifiers(a)
            for w in words(n)
        }
        bound = program.statement(site)
        if not {"train", "tr", "fit"} & spoken and isinstance(bound, ast.Assign):
            yield (
                where,
                line_of(site),
                {n.id for t in bound.targets for n in nodes_of(t, ast.Name)},
            )
