"""Calls of helpers of the file that compare a score with the best so far: a keeper of checkpoints, an early stopper."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.program import Program, Scope, argument
from training.review.syntax import dotted, identifiers, words

KEEPS = {"save", "state", "deepcopy", "patience", "stop", "stopper", "stopping", "counter", "wait", "waited", "strikes", "keeper", "checkpoint"}


def keeper_calls(program: Program) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Each call of a function, method or object that keeps the best of what it is given, and the argument that it compares."""
    for call in program.all_calls:
        scope = program.scope(call)
        for function in {*program.callees(call, scope), *_called_objects(program, call, scope)}:
            name = _compared(program, function)
            given = argument(call, function, name) if name else None
            if given is not None:
                yield call, given


def _called_objects(program: Program, call: ast.Call, scope: Scope) -> list[Scope]:
    """The `__call__` of an object of this file."""
    owners = [program.classes[o.name] for o in program.origins(call.func, scope) if o.name in program.classes]
    return [m for m in (program.find_method(owner, "__call__") for owner in owners if not program.is_module(owner)) if m is not None]


def _compared(program: Program, function: Scope) -> str:
    """The parameter that a function compares with something which becomes that parameter, in code that keeps weights or counts patience."""
    around = function.owner if function.owner is not None else function.node
    spoken = {w for name in (*identifiers(around), getattr(around, "name", "")) for w in words(name)}
    if not KEEPS & spoken:
        return ""
    tests = [n for n in ast.walk(function.node) if isinstance(n, ast.Compare) and len(n.comparators) == 1]
    becomes = {dotted(t): dotted(n.value) for n in ast.walk(function.node) if isinstance(n, ast.Assign) for t in n.targets}
    for test in tests:
        for score, best in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
            names = {n.id for n in ast.walk(score) if isinstance(n, ast.Name)} & set(function.parameters)
            kept = {dotted(n) for n in ast.walk(best) if isinstance(n, ast.Name | ast.Attribute)} & set(becomes)
            found = [name for name in sorted(names - {"self"}) if any(becomes[k] == name for k in kept)]
            if found:
                return found[0]
    return ""
