"""Schedules that are made and that nothing steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.kinds import is_optimizer, is_scheduler_origin
from training.review.lookups import attributes_of, names_of
from training.review.program import Origin, Program, Scope
from training.review.syntax import last_name, method, receiver

READ_OR_SAVED = ("state_dict", "load_state_dict", "get_last_lr", "last_epoch")


def unstepped_names(program: Program, trains: bool) -> Iterator[tuple[ast.Call, str]]:
    """Local names that hold a schedule, which is neither stepped, handed on, returned nor stored:
    what made it, and the name.

    Args:
        program: the file.
        trains: whether a gradient is computed in it.
    """
    for scope in program.scopes:
        for name, bindings in scope.bindings.items():
            made = next(
                (b.value for b in bindings if b.index is None and _makes(program, b.value, scope)),
                None,
            )
            if (
                isinstance(made, ast.Call)
                and (scope.parent is not None or trains)
                and not _is_used(program, name, scope)
            ):
                yield made, name


def unstepped_attributes(program: Program, trains: bool) -> Iterator[tuple[ast.Call, str]]:
    """Attributes that hold a schedule in a file that trains, and are read nowhere but to be saved;
    as `unstepped_names`.
    """
    for attributes in program.attributes.values() if trains else ():
        for name, bindings in attributes.items():
            made = next(
                (
                    b.value
                    for b in bindings
                    if b.index is None and _makes(program, b.value, b.scope)
                ),
                None,
            )
            if made is None:
                continue
            reads = [n for n in attributes_of(program, name) if isinstance(n.ctx, ast.Load)]
            parents = [program.parents[n] for n in reads]
            if isinstance(made, ast.Call) and all(
                isinstance(p, ast.Attribute) and p.attr in READ_OR_SAVED for p in parents
            ):
                yield made, f"self.{name}"


def _makes(program: Program, value: ast.expr, scope: Scope) -> bool:
    return isinstance(value, ast.Call) and is_scheduler_origin(
        Origin(program.resolve(value.func), value, scope)
    )


def _is_used(program: Program, name: str, scope: Scope) -> bool:
    """Whether a name is stepped, handed on, returned or stored."""
    for node in names_of(program, name):
        if not isinstance(node.ctx, ast.Load):
            continue
        parent = program.parents[node]
        if (isinstance(parent, ast.Attribute) and parent.attr in READ_OR_SAVED) or (
            isinstance(parent, ast.Call) and last_name(parent.func) == "prepare"
        ):
            continue
        if not isinstance(parent, (ast.IfExp, ast.Compare)) and not (
            isinstance(parent, ast.Dict) and not _steps_what_it_holds(program, parent)
        ):
            return True
    return scope.parent is None and not any(
        program.scope(n) is scope for n in program.nodes[ast.For]
    )


def _steps_what_it_holds(program: Program, held: ast.Dict) -> bool:
    """Whether something in a dict may be stepped: the dict is handed on, or something other than an
    optimizer is stepped in the file.
    """
    statement = program.statement(held)
    name = (
        last_name(statement.targets[0])
        if isinstance(statement, ast.Assign) and statement.value is held
        else ""
    )
    readers = [
        program.parents[n]
        for n in program.nodes[ast.Name]
        if n.id == name and isinstance(n.ctx, ast.Load)
    ]
    handed_on = not name or any(
        not isinstance(p, ast.Attribute) or p.attr not in ("items", "values", "keys")
        for p in readers
    )
    return handed_on or any(
        method(c) == "step" and not is_optimizer(program, receiver(c), program.scope(c))
        for c in program.all_calls
    )
