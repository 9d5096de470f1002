"""Rule BH317: kl_div is averaged over classes as well as rows."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.settings import argument_of
from training.review.syntax import (
    calls,
    constant,
    has_unpacking,
    identifiers,
    keyword,
    last_name,
    nodes_of,
    words,
)
from training.review.values import loss_calls, number

SIZES = {
    "size", "shape", "len", "numel", "classes", "class", "labels", "vocab", "dim", "num", "n", "c",
    "k", "batch", "bs", "b", "width", "bins",
}  # fmt: skip
MANY = 50  # as a weight it makes up for a mean over classes


@rule("BH317")
def divergence_averaged_over_classes(subject: Subject) -> Iterator[Place]:
    """A `kl_div` or `KLDivLoss` with the reduction mean, given or by default, that is not
    multiplied back by a number of classes.
    """
    program = subject.program
    for loss in loss_calls(program):
        if (
            loss.kind != "kl"
            or _only_watched(program, loss.call)
            or _multiplied_back(program, loss.call)
        ):
            continue
        made = (
            [loss.call]
            if program.resolve(loss.call.func).startswith("torch.")
            else [o.call for o in program.origins(loss.call.func, loss.scope)]
        )
        if made and all(_takes_the_mean(program, c, c is loss.call) for c in made):
            yield (
                loss.call,
                (
                    'reduction="mean" divides by rows times classes: the divergence is as many'
                    " times too small as there are classes"
                ),
            )


def _takes_the_mean(program: Program, call: ast.Call, function: bool) -> bool:
    """Whether a loss is left at the reduction mean; `function`: it is computed here, and
    not made.
    """
    if (
        has_unpacking(call)
        or len(call.args) > (2 if function else 0)
        or any(keyword(call, old) is not None for old in ("size_average", "reduce"))
    ):
        return False
    given = argument_of(program, call, "reduction")
    return given is None or constant(given) == "mean"


def _multiplied_back(program: Program, call: ast.Call) -> bool:
    """Whether the value is multiplied by what may be a number of classes, at once or under the name
    that it gets.
    """
    factors = _factors(program, call)
    statement = program.statement(call)
    scope = program.scope(call)
    if isinstance(statement, ast.Return):
        factors += [f for site, _ in program.call_sites[scope] for f in _factors(program, site)]
    names = {t.id for t in getattr(statement, "targets", ()) if isinstance(t, ast.Name)}
    for node in (n for n in nodes_of(scope.node, ast.Name) if n.id in names):
        above = program.parents[node]
        if isinstance(node.ctx, ast.Load):
            factors += _factors(program, node)
        elif isinstance(above, ast.AugAssign) and isinstance(above.op, ast.Mult):
            factors.append(above.value)
    for factor in factors:
        named = {w for n in identifiers(factor) for w in words(n)} | {
            w for n in calls(factor) for w in words(last_name(n.func))
        }
        value, of_size = (
            constant(factor),
            isinstance(factor, ast.Name) and _of_shape(factor.id, scope),
        )
        if (
            named & SIZES
            or of_size
            or (isinstance(value, int) and value > 1)
            or (number(program, factor, scope) or 0) >= MANY
        ):
            return True
    return False


def _of_shape(name: str, scope: Scope) -> bool:
    """Whether a name is unpacked from the shape of something."""
    return any({"shape", "size"} & identifiers(b.value) for b in scope.bindings.get(name, ()))


def _only_watched(program: Program, call: ast.Call) -> bool:
    """Whether a divergence is a figure: computed without gradients, or turned into a number at
    once.
    """
    above = program.parents[call]
    quiet = [
        d
        for a in program.ancestors(call)
        if isinstance(a, ast.FunctionDef)
        for d in a.decorator_list
    ]
    quiet += [
        i.context_expr for a in program.ancestors(call) if isinstance(a, ast.With) for i in a.items
    ]
    return (isinstance(above, ast.Attribute) and above.attr == "item") or any(
        {"no_grad", "inference_mode"} & identifiers(q) for q in quiet
    )


def _factors(program: Program, node: ast.expr) -> list[ast.expr]:
    """By what a value is multiplied, one product after the other."""
    found, above = [], program.parents[node]
    while isinstance(above, ast.BinOp):
        if isinstance(above.op, ast.Mult):
            found.append(above.left if above.right is node else above.right)
        node, above = above, program.parents[above]
    if isinstance(above, ast.AugAssign) and isinstance(above.op, ast.Mult):
        found.append(above.value)
    if (
        isinstance(above, ast.Attribute)
        and above.attr in ("mul", "mul_")
        and isinstance(call := program.parents[above], ast.Call)
    ):
        found += call.args[:1]
    return found
