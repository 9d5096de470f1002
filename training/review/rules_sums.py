"""Rule BH612: gradients that are added up over ranks and never divided."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to
from training.review.program import Program, Scope
from training.review.syntax import (
    constant,
    identifiers,
    keyword,
    last_name,
    method,
    nodes_of,
    receiver,
    walk,
    words,
)

RANKS = {
    "gpus", "devices", "processes", "world", "ranks", "replicas", "nprocs", "procs", "workers",
    "peers", "nodes", "ws",
}  # fmt: skip
DIVIDES = {"div", "div_", "mul", "mul_", "true_divide", "_foreach_div_", "_foreach_mul_"}


@rule("BH612")
def gradients_summed_over_ranks(subject: Subject) -> Iterator[Place]:
    """A gradient is reduced by a sum in a file that divides nothing by the number of ranks and
    makes no loss that is a sum.
    """
    program = subject.program
    found = [
        c
        for c in calls_to(program, "torch.distributed.all_reduce")
        if _gradient(c, program.scope(c)) and _is_sum(c)
    ]
    if found and not _divided(program) and not _loss_is_sum(program):
        yield from (
            (
                c,
                (
                    "gradients are added up over all ranks, and nothing here divides by how many"
                    " they are"
                ),
            )
            for c in found
        )


def _gradient(call: ast.Call, scope: Scope) -> bool:
    """Whether what is reduced is a gradient, or was put together of gradients."""
    if not call.args:
        return False
    given = call.args[0]
    if keyword(call, "group", 2) is not None:
        return False  # parts of one sum, as under tensor or sequence parallelism
    made = (
        [b.value for b in scope.bindings.get(given.id, ())] if isinstance(given, ast.Name) else []
    )
    if any(
        (isinstance(c, ast.Call) and method(c) in SCALARS | {"pow"})
        or last_name(getattr(c, "func", None)) in SCALARS
        for v in made
        for c in walk(v)
    ):
        return False  # a norm, or a flag
    return any(
        isinstance(n, ast.Attribute) and n.attr == "grad"
        for value in (given, *made)
        for n in walk(value)
    )


SCALARS = {
    "norm",
    "isfinite",
    "isnan",
    "isinf",
    "sum",
    "any",
    "all",
    "vector_norm",
    "get_total_norm",
}


def _is_sum(call: ast.Call) -> bool:
    op = keyword(call, "op", 1)
    return op is None or last_name(op) == "SUM"


def _divided(program: Program) -> bool:
    """Whether anything is divided by the number of ranks, whatever it is called."""
    counted = {
        t.id
        for n in program.nodes[ast.Assign]
        if (
            {"get_world_size", "WORLD_SIZE"}
            & ({constant(c) for c in walk(n.value)} | identifiers(n.value))
        )
        for target in n.targets
        for t in nodes_of(target, ast.Name)
    }
    by = [n.right for n in program.nodes[ast.BinOp] if isinstance(n.op, ast.Div)]
    by += [n.value for n in program.nodes[ast.AugAssign] if isinstance(n.op, (ast.Div, ast.Mult))]
    by += [a for c in program.calls_of(*DIVIDES) for a in c.args]
    reduced = {
        n
        for c in program.calls_of("all_reduce")
        if c.args and isinstance(c.args[0], ast.Name)
        for n in (c.args[0].id,)
    }
    if any(isinstance(b, ast.Name) and b.id in reduced for b in by):
        return True  # the rows of all ranks
    return any(
        name in counted or words(name) & RANKS for divisor in by for name in identifiers(divisor)
    )


def _loss_is_sum(program: Program) -> bool:
    """Whether what is differentiated is a sum over rows, which is divided by a number of rows of
    all ranks if by anything.
    """
    for call in program.methods_of("backward"):
        loss = receiver(call)
        if loss is None:
            continue
        values = [loss, *(b.value for b in program.bindings_of(loss, program.scope(call)))]
        if any(
            constant(n) == "sum" or (isinstance(n, ast.Call) and method(n) == "sum")
            for v in values
            for n in walk(v)
        ):
            return True
    return any(
        constant(keyword(c, "reduction")) == "sum" and last_name(c.func).endswith("Loss")
        for c in program.all_calls
    )
