"""Rules BH605, BH613, BH614 and BH534: what each rank knows of its share alone, how shares are
added up, and how they are drawn.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.freezing import switches
from training.review.kinds import is_model, looks_held_out
from training.review.leaves import leaves
from training.review.lookups import torch_calls
from training.review.program import Program, Scope
from training.review.rules_distributed import REDUCES
from training.review.rules_loader import PREPARES, is_distributed, name_of
from training.review.rules_loader import loaders as loaders_of
from training.review.shares import (
    adds_up,
    divided_later,
    is_whole_share,
    keeps_to_itself,
    means_over_rows,
    on_one_share,
)
from training.review.syntax import (
    calls,
    constant,
    has_unpacking,
    identifiers,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes,
    receiver,
    words,
)
from training.review.values import reaching


@rule("BH605")
def metric_of_one_rank(subject: Subject) -> Iterator[Place]:
    """Held-out rows have a DistributedSampler, or each rank takes every n-th of them, and no
    reduction over ranks meets what is computed of them.
    """
    program = subject.program
    if not is_distributed(program) or program.modules_imported & (
        PREPARES | {"torchmetrics", "torcheval"}
    ):
        return
    reduces = REDUCES & program.called_names or any(
        "reduce" in n or "gather" in n for n in program.called_names
    )
    if _adds_up_otherwise(program):
        return
    evaluated = any(e.kind == "eval" for trace in subject.traces for e in trace)
    for call in program.all_calls:
        sampler = program.is_torch(call.func, "DistributedSampler")
        if not (sampler and not is_whole_share(call)) and not _every_nth_row(program, call):
            continue
        sites = (
            [c for c, _ in program.call_sites[program.scope(call)]]
            if isinstance(program.parents[call], ast.Return)
            else []
        )
        held_out = any(
            looks_held_out(n)
            for c in (call, *sites)
            for n in (name_of(program, c), *map(last_name, c.args))
        )
        if not held_out or not evaluated:
            continue
        if not reduces:
            yield call, "held-out rows are shared out over ranks, and nothing adds the results up"
            continue
        yield from _rate_by_own_share(
            program, [m for m in loaders_of(program) if _reads(program, m, call)]
        )
        loops = [
            loop
            for made in loaders_of(program)
            if _reads(program, made, call)
            for loop in on_one_share(program, made)
        ]
        if loops:
            yield (
                call,
                (
                    "held-out rows are shared out over ranks, and nothing adds up what the loop in"
                    f" line {loops[0].lineno} computes of them"
                ),
            )
    for loop in program.nodes[ast.For]:
        if (
            evaluated
            and _own_share(program, loop.iter)
            and _asks_a_network(program, loop)
            and keeps_to_itself(program, loop)
        ):
            yield (
                loop,
                (
                    "each rank goes through rows of its own, and nothing adds up what it computes"
                    " of them"
                ),
            )


def _rate_by_own_share(program: Program, shared: list[ast.Call]) -> Iterator[Place]:
    """`plateau.step(loss)` of a loss that a rank computed of its own share, and that meets no other
    rank's before.
    """
    names = {name_of(program, loader) for loader in shared} - {""}
    for call in program.all_calls if names else ():
        scope = program.scope(call)
        if (
            method(call) != "step"
            or not call.args
            or not any(
                o.last == "ReduceLROnPlateau" for o in program.origins(receiver(call), scope)
            )
        ):
            continue
        known, behind, reduced = names_read(call.args[0]), set[str](), False
        while known - behind:
            name = min(known - behind)
            behind.add(name)
            for binding in (
                b for b in scope.bindings.get(name, ()) if b.how in ("assign", "augment")
            ):
                known |= names_read(binding.value)
                reduced |= any(adds_up(program, c) for c in calls(binding.value))
        within = [
            c
            for c in program.all_calls
            if program.scope(c) is scope and c.lineno < call.lineno and adds_up(program, c)
        ]
        reduced |= any(
            names_read(a) & behind
            for c in within
            for a in c.args
            if isinstance(program.parents[c], ast.Expr)
        )  # in place
        if names & behind and not reduced:
            yield (
                call,
                (
                    f"{ast.unparse(call.args[0])} is that of one rank's rows: ranks lower their"
                    " rates at different times, and their weights drift apart"
                ),
            )


def _adds_up_otherwise(program: Program) -> bool:
    """Whether results meet without a collective: through a queue, a store, files named by rank
    behind a barrier, or a metric of another module.
    """
    for call in program.all_calls:
        if (
            method(call) == "put"
            or program.resolve(call.func) in ("torch.distributed.recv", "torch.distributed.irecv")
            or (method(call) == "add" and "store" in words(last_name(receiver(call))))
        ):
            return True
        if (
            last_name(call.func) == "open"
            and call.args
            and "barrier" in program.called_names
            and any("rank" in words(n) for n in identifiers(call.args[0]))
        ):
            return True
        made = (
            program.origins(receiver(call), program.scope(call))
            if method(call) == "compute"
            else ()
        )
        if made and all(
            not o.name.startswith("torch.") and o.name not in program.classes for o in made
        ):
            return True
    return False


def _asks_a_network(program: Program, loop: ast.For) -> bool:
    """Whether a network is run on the rows of a loop."""
    return any(
        is_model(program, c.func, program.scope(loop))
        for s in loop.body
        for c in calls(s)
        if isinstance(c.func, ast.Name)
    )


def _reads(program: Program, loader: ast.Call, rows: ast.Call) -> bool:
    """Whether a loader has this sampler, or these rows."""
    given = (keyword(loader, "sampler", 3), keyword(loader, "dataset", 0))
    return any(
        leaf.node is rows
        for value in given
        if value is not None
        for leaf in leaves(program, value, program.scope(loader))
    )


def _every_nth_row(program: Program, call: ast.Call) -> bool:
    """Whether it is `Subset(rows, range(rank, len(rows), world))`, in one line or two, or
    `Subset(rows, order[rank::world])`: the share of one rank.
    """
    if not program.is_torch(call.func, "Subset"):
        return False
    rows, scope = keyword(call, "indices", 1), program.scope(call)
    for _ in range(3):  # `share = range(…)`, then `list(share)`
        if isinstance(rows, ast.Name):
            values = reaching(program, rows, scope)
            rows = values[0] if len(values) == 1 else rows
        if (
            isinstance(rows, ast.Call)
            and last_name(rows.func) in ("list", "tuple")
            and len(rows.args) == 1
        ):
            rows = rows.args[0]
    return rows is not None and _own_share(program, rows)


def _own_share(program: Program, rows: ast.expr) -> bool:
    """Whether it is `range(rank, len(rows), world)` or `order[rank::world]`."""
    start: ast.expr | None = None
    if (
        isinstance(rows, ast.Call)
        and last_name(rows.func) in ("range", "arange")
        and len(rows.args) == 3
    ):
        start = rows.args[0]
    elif (
        isinstance(rows, ast.Subscript)
        and isinstance(rows.slice, ast.Slice)
        and rows.slice.step is not None
    ):
        start = rows.slice.lower
    return start is not None and (
        any("rank" in words(n) for n in identifiers(start))
        or last_name(start) in program.rank_names
    )


@rule("BH613")
def means_summed_over_ranks(subject: Subject) -> Iterator[Place]:
    """What `all_reduce` adds up is a sum over the rank's own rows divided by their number, or a
    mean, and nothing is divided afterwards, there or by a caller.
    """
    program = subject.program
    for call in torch_calls(program, "all_reduce"):
        scope, how = program.scope(call), keyword(call, "op", 1)
        summed = how is None or last_name(how) == "SUM"
        given = keyword(call, "tensor", 0)
        if (
            program.resolve(call.func) != "torch.distributed.all_reduce"
            or not summed
            or given is None
            or keyword(call, "group", 2) is not None
        ):
            continue
        if {"isfinite", "isnan", "isinf"} & identifiers(scope.node):
            continue
        found = [
            f
            for f in means_over_rows(program, given, scope)
            if not divided_later(program, call, given, scope)
        ]
        if found:
            yield (
                call,
                (
                    f"{ast.unparse(found[0])} is the mean of one rank, and the sum over all ranks"
                    " is used as if it were one"
                ),
            )


@rule("BH534")
def sampler_seeded_by_rank(subject: Subject) -> Iterator[Place]:
    """The seed of a DistributedSampler that shuffles is computed from a rank."""
    program = subject.program
    for call in torch_calls(program, "DistributedSampler"):
        seed = keyword(call, "seed", 4)
        if seed is None or constant(keyword(call, "shuffle", 3)) is False:
            continue
        scope = program.scope(call)
        behind = [
            seed,
            *(v for n in nodes_of(seed, ast.Name) for v in reaching(program, n, scope)),
        ]
        named = {n for value in behind for n in identifiers(value)}
        ranks = sorted(n for n in named if "rank" in words(n) or n in program.rank_names)
        if ranks:
            yield (
                call,
                (
                    f"the seed of this sampler depends on {ranks[0]}: shares of ranks overlap, and"
                    " some rows are in none"
                ),
            )


@rule("BH614")
def frozen_after_wrapping(subject: Subject) -> Iterator[Place]:
    """Parameters of a network that was wrapped higher up in the function, with no word about unused
    ones, are frozen, and it is not wrapped anew.
    """
    program = subject.program
    wrappings = torch_calls(program, "DistributedDataParallel")
    for scope in dict.fromkeys(map(program.scope, wrappings)):
        turned = list(switches(program, scope))
        for s in (s for s in turned if not s.free):
            if any(o.free and o.network == s.network for o in turned):
                continue  # in turns, as of adversaries
            if not _trained_later(program, scope, s.node):
                continue
            root = s.network.split(".module")[0]
            bound = [
                b
                for b in scope.bindings.get(root, ())
                if getattr(b.statement, "lineno", 0) < s.node.lineno
            ]
            later = [c for c in wrappings if c.lineno > s.node.lineno]
            made = bound[-1].value if bound else None
            wrapped = isinstance(made, ast.Call) and program.is_torch(
                made.func, "DistributedDataParallel"
            )
            if (
                isinstance(made, ast.Call)
                and wrapped
                and not later
                and not has_unpacking(made)
                and not {"find_unused_parameters", "static_graph"} & _given(made)
            ):
                yield (
                    s.node,
                    (
                        f"{s.network} is frozen after it was wrapped in line {made.lineno}: the"
                        " wrapper waits for its gradients"
                    ),
                )


def _trained_later(program: Program, scope: Scope, freeze: ast.AST) -> bool:
    """Whether training may follow: where the freeze is in a loop, or anything below it trains, or
    the function gives the network back.
    """
    line = getattr(freeze, "lineno", 0)
    looped = any(
        isinstance(a, ast.While)
        or (isinstance(a, ast.For) and "parameters" not in identifiers(a.iter))
        for a in program.ancestors(freeze)
    )
    below = [n for n in own_nodes(scope.node) if getattr(n, "lineno", 0) > line]
    trains = any(
        isinstance(n, ast.Call)
        and (
            method(n) in ("backward", "step")
            or words(last_name(n.func)) & {"train", "fit", "epoch", "optim", "optimizer"}
            or last_name(n.func)[:1].isupper()
        )
        for n in below
    )
    teaches = any({"teacher"} & words(n) for n in identifiers(freeze))
    before = any(
        words(last_name(c.func)) & {"train", "fit", "epoch"}
        for c in calls(scope.node)
        if c.lineno < line and method(c) != "train"
    )
    returned = any(isinstance(n, ast.Return) and n.value is not None for n in below) and not before
    return (looped or trains or returned) and not teaches


def _given(call: ast.Call) -> set[str]:
    """The names of the arguments that a call is given by name."""
    return {str(k.arg) for k in call.keywords}
