"""Rule BH118: LambdaLR is given a rate instead of a factor."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_optimizer_origin
from training.review.lookups import torch_calls
from training.review.program import Program, Scope
from training.review.syntax import (
    FUNCTIONS,
    constant,
    dotted,
    entry,
    keyword,
    last_name,
    own_nodes_of,
    words,
)


@rule("BH118")
def lambda_returns_rate(subject: Subject) -> Iterator[Place]:
    """A value that the function of a LambdaLR returns has the rate of its optimizer as a factor."""
    program = subject.program
    for call in torch_calls(program, "LambdaLR"):
        given, scope = keyword(call, "lr_lambda", 1), program.scope(call)
        if given is None or not call.args:
            continue
        rates = [
            keyword(o.call, "lr", 1)
            for o in program.origins(call.args[0], scope)
            if is_optimizer_origin(o)
        ]
        returned = [part for value in _returned(program, given, scope) for part in _bounded(value)]
        for rate in rates:
            if rate is not None and any(
                _same(rate, f) or _held_as(program, rate, f)
                for value in returned
                for f in _factors(value)
            ):
                yield (
                    call,
                    (
                        "what LambdaLR multiplies the rate with contains the rate"
                        f" {ast.unparse(rate)} itself"
                    ),
                )


def _returned(program: Program, given: ast.expr, scope: Scope) -> list[ast.expr]:
    """What a lambda, a function of the file, or the one that such a function returns, gives
    back.
    """
    if isinstance(given, ast.Lambda):
        return [given.body]
    if isinstance(given, ast.Name):
        function = program.local_function(given.id, scope)
        bound = program.bindings_of(given, scope)
        if function is None and len(bound) == 1 and bound[0].index is None:
            return _returned(program, bound[0].value, bound[0].scope)
        return [] if function is None else _returns(function)
    if (
        isinstance(given, ast.Attribute)
        and dotted(given.value) == "self"
        and scope.owner is not None
    ):
        own = program.find_method(scope.owner, given.attr)
        return [] if own is None else _returns(own)
    if isinstance(given, ast.Call) and last_name(given.func) == "partial" and given.args:
        return _returned(program, given.args[0], scope)
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Name):
        maker = program.local_function(given.func.id, scope)
        inner = _returns(maker) if maker is not None else []
        return _returned(program, inner[0], maker) if maker is not None and len(inner) == 1 else []
    return []


def _returns(function: Scope) -> list[ast.expr]:
    return (
        [n.value for n in own_nodes_of(function.node, ast.Return) if n.value is not None]
        if isinstance(function.node, FUNCTIONS)
        else []
    )


def _bounded(value: ast.expr) -> list[ast.expr]:
    """What `min` or `max` chooses from, else the value itself."""
    return (
        value.args
        if isinstance(value, ast.Call) and last_name(value.func) in ("min", "max")
        else [value]
    )


def _held_as(program: Program, rate: ast.expr, factor: ast.expr) -> bool:
    """Whether a name in the function of a schedule stands for the entry of a configuration that is
    the rate, there or where the schedule is made.
    """
    scope = program.scope(factor)
    for _ in range(2):  # a name, of which a parameter may be given the value
        if not isinstance(factor, ast.Name):
            break
        bound = program.bindings_of(factor, scope)
        given = [] if bound else _arguments(program, factor.id, scope)
        if len(bound) == 1 and bound[0].how == "assign" and bound[0].index is None:
            factor, scope = bound[0].value, bound[0].scope
        elif len(given) == 1:
            factor, scope = given[0]
        else:
            return False
    key = entry(factor)
    return key == entry(rate) and bool({"lr", "rate"} & words(key))


def _arguments(program: Program, name: str, scope: Scope | None) -> list[tuple[ast.expr, Scope]]:
    """What calls in this file give the function around that has a parameter of this name, and where
    they stand.
    """
    while scope is not None and name not in scope.parameters:
        scope = scope.parent
    if scope is None:
        return []
    given = [
        (keyword(call, name, scope.parameters.index(name)), around)
        for call, around in program.call_sites[scope]
    ]
    return [(value, around) for value, around in given if value is not None]


def _factors(value: ast.expr) -> list[ast.expr]:
    """The factors of a product; the numerator's of a quotient."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        return [*_factors(value.left), *_factors(value.right)]
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
        return (
            _factors(value.left)
            if ast.dump(value.right) not in {ast.dump(f) for f in _factors(value.left)}
            else []
        )
    return [value]


def _same(rate: ast.expr, factor: ast.expr) -> bool:
    """Whether both are the same name, or the same number other than 1."""
    number = constant(rate)
    if number is not None:
        return constant(factor) == number != 1
    of_self = dotted(factor).removeprefix("self.") == dotted(rate).removeprefix(
        "self."
    )  # `config.lr`, which an object keeps as `self.config`
    return bool(dotted(rate)) and (of_self or dotted(rate) == dotted(factor))
