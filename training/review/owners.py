"""Rows made one after another for each of several persons, and the list that says whose each is."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.program import Program, Scope
from training.review.splitting import line_of, shuffled_cuts, sources_of, splits
from training.review.syntax import identifiers, last_name, method, own_nodes, words

PERSONS = {"patient", "subject", "speaker", "writer", "household", "person", "participant", "user", "driver", "student", "player", "animal"}
LOOKS = {"print", "len", "unique", "set", "info", "bincount", "Counter"}


def rows_of_owners(program: Program) -> Iterator[tuple[ast.expr, str]]:
    """`for p in range(PATIENTS): for _ in …: owners.append(p)`, returned beside the rows, and by a caller looked at only: the rows are split at random."""
    for maker in program.scopes:
        for group, loop in _lists_of_owners(maker):
            for call, caller in program.call_sites[maker]:
                for name, rows in _unpacked(program, maker, call, caller, group):
                    if not _only_looked_at(program, caller, name):
                        continue
                    for split, scope, parts in (*splits(program), *shuffled_cuts(program)):
                        behind = {b for part in parts for n in {*identifiers(part)} for b in sources_of(n, scope, line_of(split))}
                        if scope is caller and rows & behind:
                            told = f"rows are split at random, though {group} (line {line_of(loop)}) says that several belong together"
                            yield split, told


def _lists_of_owners(maker: Scope) -> Iterator[tuple[str, ast.For]]:
    """Lists to which the variable of a loop over persons is appended in a loop inside it, as other lists are."""
    for outer in (n for n in own_nodes(maker.node) if isinstance(n, ast.For) and isinstance(n.target, ast.Name)):
        for inner in (n for n in own_nodes(outer) if isinstance(n, ast.For)):
            put = [c for c in own_nodes(inner) if isinstance(c, ast.Call) and method(c) == "append" and len(c.args) == 1]
            for call in put:
                given = call.args[0]
                group = last_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
                named = {w for n in {group, outer.target.id, *identifiers(outer.iter)} for w in words(n)} if isinstance(outer.target, ast.Name) else set()
                persons = PERSONS & (named | {w.removesuffix("s") for w in named})
                if isinstance(given, ast.Name) and given.id == outer.target.id and persons and len(put) > 1:  # type: ignore[attr-defined]
                    yield group, outer


def _unpacked(program: Program, maker: Scope, call: ast.Call, caller: Scope, group: str) -> Iterator[tuple[str, set[str]]]:
    """The name that a caller gives the list, and those of the other arrays that come with it."""
    returned = [n.value for n in own_nodes(maker.node) if isinstance(n, ast.Return)]
    if len(returned) != 1 or not isinstance(returned[0], ast.Tuple):
        return
    places = [i for i, e in enumerate(returned[0].elts) if group in identifiers(e)]
    statement = program.statement(call)
    target = statement.targets[0] if isinstance(statement, ast.Assign) and statement.value is call else None
    if len(places) == 1 and isinstance(target, ast.Tuple) and len(target.elts) == len(returned[0].elts):
        names = [last_name(e) for e in target.elts]
        yield names[places[0]], set(names) - {names[places[0]], ""}


def _only_looked_at(program: Program, caller: Scope, name: str) -> bool:
    """Whether a name is read nowhere but to be shown or counted."""
    for node in ast.walk(caller.node):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            above = program.parents[node]
            if not (isinstance(above, ast.Call) and last_name(above.func) in LOOKS) and not (isinstance(above, ast.Attribute) and above.attr == "max"):
                return False
            statement = program.statement(node)
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and last_name(statement.value.func) in ("print", "info")):
                return False
    return True
