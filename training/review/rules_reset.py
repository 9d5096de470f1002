"""Rule BH231: sums of an evaluation that go on from epoch to epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_model
from training.review.program import Program, Scope
from training.review.rules_last import evaluating
from training.review.syntax import (
    FUNCTIONS,
    calls,
    dotted,
    last_name,
    method,
    names_read,
    nodes_of,
    receiver,
    walk,
    words,
)

ADDS, EMPTIES = {"append", "extend", "update", "add"}, {"clear", "reset", "zero_", "reset_states"}
HISTORY = {"history", "log", "logs", "curve", "curves", "trace", "record", "records", "timeline"}


@rule("BH231")
def sums_never_reset(subject: Subject) -> Iterator[Place]:
    """Within a loop that trains, a loop that evaluates adds to what neither of them sets back, and
    the outer one reads it.
    """
    program = subject.program
    for loop, scope in evaluating(program):
        held = _added(program, loop, scope)
        if not held:
            continue
        outer = next(
            (
                a
                for a in program.ancestors(loop)
                if isinstance(a, (ast.For, ast.While)) and _trains(program, a, scope)
            ),
            None,
        )
        if outer is not None:
            for name, place in held.items():
                if (
                    not _set_back(outer, name)
                    and not _resets_itself(program, name, scope)
                    and _is_read(program, outer, loop, name)
                ):
                    yield (
                        place,
                        (
                            f"{name} is added to in each epoch, and never set back: the score is"
                            " one of all epochs so far"
                        ),
                        outer,
                    )
        elif isinstance(scope.node, FUNCTIONS):
            for name, place in held.items():
                lasting = (
                    _outlives(scope, name)
                    and not _set_back(scope.node, name)
                    and _set_in_one_place(program, scope, name)
                )
                if (
                    lasting
                    and _called_in_training(program, scope)
                    and _is_read(program, scope.node, loop, name)
                ):
                    yield (
                        place,
                        (
                            f"{name} outlives {scope.name}, which is called in each epoch and never"
                            " sets it back: the score is one of all epochs so far"
                        ),
                    )


def _added(program: Program, loop: ast.For, scope: Scope) -> dict[str, ast.stmt]:
    """Names, attributes included, to which a loop over batches adds what a network gave, or that
    count beside it.
    """
    made = {
        n.id for s in nodes_of(loop, ast.Assign) for t in s.targets for n in nodes_of(t, ast.Name)
    }
    drawn = names_read(loop.target)
    found: dict[str, ast.stmt] = {}
    for node in walk(loop):
        name, value = "", list[ast.expr]()
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            name, value = dotted(node.target), [node.value]
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and method(node.value) in ADDS
        ):
            name, value = dotted(receiver(node.value)), node.value.args
        if not name or HISTORY & words(name.rpartition(".")[2]) or name in made | drawn:
            continue
        forward = any(
            is_model(program, c.func, scope) and not program.resolve(c.func)
            for v in value
            for c in calls(v)
        )
        if forward or any(names_read(v) & made for v in value):
            found.setdefault(name, node if isinstance(node, ast.stmt) else loop)
    return found


def _trains(program: Program, outer: ast.For | ast.While, scope: Scope) -> bool:
    """Whether a loop trains, itself or by a function: passes over held-out rows with no training
    between them are added up on purpose.
    """
    return any(
        method(c) == "backward"
        or any(method(i) == "backward" for f in program.callees(c, scope) for i in calls(f.node))
        or "train" in words(last_name(c.func))
        for c in calls(outer)
        if c.args or method(c) == "backward"
    )


def _set_back(within: ast.AST, name: str) -> bool:
    """Whether something is bound to a name within, or it is emptied, or handed on, which may empty
    it.
    """
    for node in walk(within):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.For, ast.With, ast.NamedExpr)):
            targets = (
                node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            )
            if any(
                dotted(n) == name
                for t in targets
                if t is not None
                for n in walk(t)
                if isinstance(n, (ast.Name, ast.Attribute))
            ):
                return True
            if any(
                isinstance(n, ast.Subscript) and dotted(n.value) == name
                for t in targets
                if t is not None
                for n in walk(t)
            ):
                return True
        if (
            isinstance(node, ast.Call)
            and dotted(receiver(node)) == name
            and method(node) in EMPTIES
        ):
            return True
        if isinstance(node, ast.Delete) and any(
            dotted(getattr(t, "value", t)) == name for t in node.targets
        ):
            return True
    return False


def _resets_itself(program: Program, name: str, scope: Scope) -> bool:
    """Whether the object behind a name is of a class of this file whose other methods set
    it back.
    """
    made = [c for b in scope.bindings.get(name, ()) for c in calls(b.value)]
    owners = [o for c in made for o in program.nodes[ast.ClassDef] if o.name == last_name(c.func)]
    resets = [
        f
        for o in owners
        for f in o.body
        if isinstance(f, FUNCTIONS) and f.name not in ("__init__", *EMPTIES)
    ]
    return any(
        method(c) in EMPTIES or last_name(c.func) == "__init__" for f in resets for c in calls(f)
    ) or (
        bool(owners)
        and not any(isinstance(f, FUNCTIONS) and f.name in EMPTIES for o in owners for f in o.body)
    )


def _is_read(program: Program, within: ast.AST, loop: ast.For, name: str) -> bool:
    """Whether a score is made of it behind the loop: a quotient, a metric, a mean; a difference
    from what was there before is one of this epoch.
    """
    inside, metric = set(walk(loop)), False
    for node in walk(within):
        if (
            node in inside
            or not isinstance(node, (ast.Name, ast.Attribute))
            or dotted(node) != name
            or not isinstance(node.ctx, ast.Load)
        ):
            continue
        around = [program.parents[node], *program.ancestors(node)]
        if any(isinstance(a, ast.BinOp) and isinstance(a.op, ast.Sub) for a in around):
            return False
        sliced = any(isinstance(a, ast.Subscript) and a.value is node for a in around)
        used = any(isinstance(a, ast.BinOp) and isinstance(a.op, ast.Div) for a in around) or any(
            isinstance(a, ast.Call)
            and (
                last_name(a.func)
                in (
                    "cat",
                    "concatenate",
                    "stack",
                    "mean",
                    "vstack",
                    "hstack",
                    "compute",
                    "result",
                    "sum",
                )
                or method(a) == "item"
            )
            for a in around
        )
        metric |= (
            (used or isinstance(program.parents[node], (ast.Compare, ast.Return)))
            and not sliced
            and getattr(node, "lineno", 0) > loop.lineno
        )
    return metric


def _outlives(scope: Scope, name: str) -> bool:
    """Whether a name of a function is one of its object, or declared to be one of the file."""
    declared = {
        n for d in walk(scope.node) if isinstance(d, (ast.Global, ast.Nonlocal)) for n in d.names
    }
    return name in declared or (name.startswith("self.") and name.count(".") == 1)


def _set_in_one_place(program: Program, scope: Scope, name: str) -> bool:
    """Whether nothing but a constructor, or the file itself, binds it."""
    for node in program.nodes[ast.Assign]:
        targets = node.targets
        if any(
            dotted(n) == name
            for t in targets
            for n in walk(t)
            if isinstance(n, (ast.Name, ast.Attribute))
        ):
            where = program.scope(node)
            if (
                where is scope
                or where.name not in ("", "__init__", "__post_init__")
                or any(isinstance(a, (ast.For, ast.While)) for a in program.ancestors(node))
            ):
                return False
    return not any(dotted(receiver(c)) == name for c in program.methods_of(*EMPTIES))


def _called_in_training(program: Program, scope: Scope) -> bool:
    """Whether it is called in a loop that trains, in this file."""
    return any(
        isinstance(a, (ast.For, ast.While)) and _trains(program, a, caller)
        for site, caller in program.call_sites[scope]
        for a in program.ancestors(site)
    )
