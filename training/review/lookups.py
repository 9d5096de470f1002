"""Calls and keyword arguments of a file by their meaning, found once for all rules."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import cast

from training.review.program import Program, Scope
from training.review.roles import is_optimizer_origin
from training.review.syntax import dotted, once, words


@once
def _by_name(program: Program) -> dict[str, list[tuple[int, ast.Call]]]:
    """Return the calls by canonical dotted name, each with its index in `all_calls`.

    Calls of names that are not imported are left out.
    """
    found: dict[str, list[tuple[int, ast.Call]]] = defaultdict(list)
    for at, call in enumerate(program.all_calls):
        if name := program.resolve(call.func):
            found[name].append((at, call))
    return found


@once
def _names_in_torch(program: Program) -> dict[str, list[str]]:
    """Return the canonical names of called torch functions by their last part."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in _by_name(program):
        if name.startswith("torch."):
            found[name.rpartition(".")[2]].append(name)
    return found


def calls_to(program: Program, *names: str) -> list[ast.Call]:
    """Return the calls of these canonical dotted names, in the order of `all_calls`."""
    known = _by_name(program)
    return [call for _, call in sorted(c for name in names for c in known.get(name, ()))]


def torch_calls(program: Program, *names: str) -> list[ast.Call]:
    """Return the calls of one of these names from anywhere in torch (see `Program.is_torch`).

    They are in the order of `all_calls`.
    """
    known = _names_in_torch(program)
    return calls_to(
        program, *(full for name in dict.fromkeys(names) for full in known.get(name, ()))
    )


@once
def made_names(program: Program) -> frozenset[str]:
    """Return the last part of each called name, as in an `Origin`."""
    return frozenset(
        [(program.resolve(c.func) or dotted(c.func)).rpartition(".")[2] for c in program.all_calls]
    )


@once
def spoken_words(program: Program) -> frozenset[str]:
    """Return the words of all names and attributes of the file."""
    return frozenset[str]().union(*map(words, program.identifiers))


@once
def _keywords(program: Program) -> dict[str | None, list[tuple[ast.Call, ast.keyword]]]:
    found: dict[str | None, list[tuple[ast.Call, ast.keyword]]] = defaultdict(list)
    for call in program.all_calls:
        for item in call.keywords:
            found[item.arg].append((call, item))
    return found


def keywords_of(program: Program, name: str) -> list[ast.keyword]:
    """Return the keyword arguments of that name in all calls of the file."""
    return [item for _, item in _keywords(program).get(name, ())]


def calls_given(program: Program, name: str) -> list[ast.Call]:
    """Return the calls with a keyword argument of that name, in the order of `all_calls`."""
    return [call for call, _ in _keywords(program).get(name, ())]


@once
def _named(program: Program) -> dict[tuple[type[ast.AST], str], list[ast.AST]]:
    found: dict[tuple[type[ast.AST], str], list[ast.AST]] = defaultdict(list)
    for name in program.nodes[ast.Name]:
        found[ast.Name, name.id].append(name)
    for attribute in program.nodes[ast.Attribute]:
        found[ast.Attribute, attribute.attr].append(attribute)
    return found


def names_of(program: Program, name: str) -> list[ast.Name]:
    """Return every use of a plain name, in order of the tree walk."""
    return cast(list[ast.Name], _named(program).get((ast.Name, name), []))


def attributes_of(program: Program, name: str) -> list[ast.Attribute]:
    """Return every use of an attribute, in order of the tree walk."""
    return cast(list[ast.Attribute], _named(program).get((ast.Attribute, name), []))


def places_of(program: Program, text: str) -> list[ast.Name | ast.Attribute]:
    """Return every use of a dotted name such as `net` or `self.net`."""
    last = text.rpartition(".")[2]
    found: list[ast.Name | ast.Attribute] = [
        *names_of(program, last),
        *attributes_of(program, last),
    ]
    return [n for n in found if dotted(n) == text]


@once
def optimizers_made(program: Program) -> tuple[tuple[ast.Call, Scope], ...]:
    """Return every call that makes a torch optimizer and has arguments, and its scope."""
    named = [
        c
        for c in program.all_calls
        if c.args and (program.resolve(c.func) or dotted(c.func)).startswith("torch.optim.")
    ]
    made = [(c, program.scope(c)) for c in named]
    return tuple(
        (call, scope)
        for call, scope in made
        if any(is_optimizer_origin(o) and o.call is call for o in program.origins(call, scope))
    )
