"""Rules BH511: to BH513: loaders and samplers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import looks_held_out, looks_trained_on
from training.review.lookups import torch_calls
from training.review.program import Program
from training.review.settings import argument_of, partial_calls
from training.review.syntax import (
    FUNCTIONS,
    calls,
    constant,
    has_unpacking,
    identifiers,
    is_false,
    is_true,
    keyword,
    last_name,
    method,
    nodes_of,
    once,
    own_nodes_of,
    walk,
    words,
)

PREPARES = {
    "accelerate",
    "lightning",
    "pytorch_lightning",
    "lightning_fabric",
    "deepspeed",
    "composer",
}


@once
def loaders(program: Program) -> tuple[ast.Call, ...]:
    """Every `DataLoader` of torch that is made in the file."""
    called = [(c, program.resolve(c.func)) for c in program.all_calls]
    return tuple(
        c
        for c, name in called
        if name.endswith("DataLoader")
        and (
            program.is_torch(c.func, "DataLoader")
            or name.endswith("torch_geometric.loader.DataLoader")
        )
    )


def name_of(program: Program, call: ast.AST) -> str:
    """The name that a value is bound to; empty where it is none."""
    statement = program.statement(call)
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    if (
        isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Tuple)
        and isinstance(targets[0], ast.Tuple)
    ):
        return next(
            (
                last_name(t)
                for t, v in zip(targets[0].elts, statement.value.elts, strict=False)
                if v is call
            ),
            "",
        )
    return last_name(targets[0])


@once
def is_distributed(program: Program) -> bool:
    """Whether the file runs a process for each device itself."""
    names = (
        "DistributedDataParallel",
        "init_process_group",
        "FullyShardedDataParallel",
        "fully_shard",
        "init_device_mesh",
    )
    return any(torch_calls(program, name) for name in names)


@rule("BH511")
def sampler_and_shuffle(subject: Subject) -> Iterator[Place]:
    """Both arguments are given, the second as the literal True, the first not as None."""
    program = subject.program
    bound = [
        c
        for p in program.calls_of("partial")
        if p.args and program.is_torch(p.args[0], "DataLoader")
        for c in partial_calls(program, p)
    ]
    for call in (*loaders(program), *bound):
        if not is_true(argument_of(program, call, "shuffle", 2)):
            continue
        sampler = argument_of(program, call, "sampler", 3) or argument_of(
            program, call, "batch_sampler", 4
        )
        if sampler is not None and not isinstance(sampler, (ast.Constant, ast.IfExp)):
            yield call, "a sampler is given, and shuffle=True: the loader refuses both"


@rule("BH512")
def set_epoch_missing(subject: Subject) -> Iterator[Place]:
    """A shuffling DistributedSampler of train rows in a file that goes over them again and again
    and never calls `set_epoch` with the epoch.
    """
    program = subject.program
    told, samplers = (
        program.methods_of("set_epoch"),
        [
            *torch_calls(program, "DistributedSampler"),
            *_chosen_samplers(program),
        ],
    )
    if (
        not samplers
        or any(_tells_the_epoch(program, c) for c in told)
        or program.modules_imported & PREPARES
    ):
        return
    named: list[ast.AST] = [
        n for n in program.nodes[ast.For] if any("epoch" in w for w in words(last_name(n.target)))
    ]
    named += [
        n
        for n in program.nodes[ast.For]
        if any("epoch" in w for name in identifiers(n.iter) for w in words(name))
    ]
    for call in samplers:
        epochs = named or list(_passages(subject, call))
        if (
            not is_false(keyword(call, "shuffle", 3))
            and epochs
            and not has_unpacking(call)
            and not looks_held_out(name_of(program, call))
            and not any(looks_held_out(last_name(a)) for a in call.args)
            and not _told_elsewhere(program, call)
        ):
            if told:
                yield (
                    told[0],
                    "set_epoch gets the same number in every epoch: every epoch has the same order",
                    epochs[0],
                )
            else:
                yield call, "set_epoch is never called: every epoch has the same order", epochs[0]


def _chosen_samplers(program: Program) -> Iterator[ast.Call]:
    """Yield the calls of a class that a condition chose, where one choice is DistributedSampler."""
    imported = {of.rpartition(".")[2] for of in program.aliases.values()}
    chosen = "DistributedSampler" in imported | program.identifiers
    for call in program.all_calls if chosen else ():
        bound = (
            program.bindings_of(call.func, program.scope(call))
            if isinstance(call.func, (ast.Name, ast.Attribute))
            else ()
        )
        values = [b.value for b in bound if b.how == "assign"] or [call.func]
        choices = [
            c
            for v in values
            for c in ((v.body, v.orelse) if isinstance(v, ast.IfExp) else (v,) if bound else ())
        ]
        if any(program.is_torch(c, "DistributedSampler") for c in choices):
            yield call


def _told_elsewhere(program: Program, sampler: ast.Call) -> bool:
    """Whether the sampler is made anew in each epoch by another seed, or a loader of it goes to a
    function out of sight together with the epoch.
    """
    made_anew = keyword(sampler, "seed") is not None and any(
        "epoch" in words(n) for n in identifiers(keyword(sampler, "seed") or sampler)
    )
    for call in program.all_calls:
        given = [*call.args, *(k.value for k in call.keywords)]
        loader = any(
            words(last_name(a)) & {"loader", "dataloader", "sampler"}
            for a in given
            if isinstance(a, (ast.Name, ast.Attribute))
        )
        epoch = any("epoch" in words(last_name(a)) for a in given if isinstance(a, ast.Name))
        if (
            loader
            and epoch
            and "." in program.resolve(call.func)
            and not program.resolve(call.func).startswith("torch")
        ):
            return True
    return made_anew


def _tells_the_epoch(program: Program, call: ast.Call) -> bool:
    """Whether `set_epoch` may get another number in each epoch: not a literal, nor a name that no
    loop around it changes, which its function is not given.
    """
    given = call.args[0] if call.args else call.keywords[0].value if call.keywords else None
    if given is None or isinstance(given, ast.Constant):
        return given is None
    loops = [a for a in program.ancestors(call) if isinstance(a, (ast.For, ast.While))]
    scope = program.scope(call)
    named = nodes_of(given, ast.Name)
    if not named or any(
        not isinstance(n, (ast.Name, ast.BinOp, ast.operator, ast.Constant, ast.expr_context))
        for n in walk(given)
    ):
        return True  # an attribute, an element, what a call gives
    changed = {n.id for a in loops for n in nodes_of(a, ast.Name) if isinstance(n.ctx, ast.Store)}
    later = [n for n in own_nodes_of(scope.node, ast.For) if n not in loops]
    counts_here = any(
        isinstance(inner, (ast.For, ast.While)) or "epoch" in last_name(n.target)
        for n in later
        for inner in walk(n)
        if inner is not n
    )
    return any(n.id in changed for n in named) or not (loops or counts_here)


def _passages(subject: Subject, sampler: ast.Call) -> Iterator[ast.AST]:
    """Loops that train over a loader in each passage, and outlive this sampler's making."""
    program = subject.program
    for trace in subject.traces:
        made_in = {x for e in trace if e.node is sampler for x in e.loops}
        for loops in (e.loops for e in trace if e.kind == "backward" and len(e.loops) > 1):
            over_loader = [
                x
                for x in loops[1:]
                if isinstance(x.node, ast.For)
                and any(o.last == "DataLoader" for o in program.origins(x.node.iter, x.scope))
            ]
            if over_loader and loops[0] not in made_in:
                yield loops[0].node


@rule("BH520")
def held_out_rows_dropped(subject: Subject) -> Iterator[Place]:
    """A loader over held-out rows, by the name of the rows or its own, with `drop_last=True`."""
    for call in (c for c in loaders(subject.program) if is_true(keyword(c, "drop_last", 8))):
        node = subject.program.scope(call).node
        if isinstance(node, FUNCTIONS) and {
            "perf_counter",
            "synchronize",
            "Event",
            "arange",
        } & identifiers(node):
            continue  # batches of one size are timed, or hold each other's negatives
        held_out = looks_held_out(name_of(subject.program, call)) or any(
            looks_held_out(last_name(a)) for a in call.args[:1]
        )
        if held_out:
            yield call, "drop_last leaves out held-out rows"


@rule("BH513")
def loader_not_distributed(subject: Subject) -> Iterator[Place]:
    """In a file that wraps a network in DDP, a shuffling loader has no sampler, and its rows were
    not shared out before; or its sampler is made for one rank.
    """
    program = subject.program
    if not any(
        torch_calls(program, name)
        for name in ("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard")
    ):
        return
    if program.modules_imported & PREPARES or any(
        "split_dataset" in n or n == "shard" for n in program.called_names
    ):
        return
    for call in loaders(program):
        given = keyword(call, "sampler", 3) or keyword(call, "batch_sampler", 4)
        shared_out = bool({"rank", "world"} & _said_of(program, call))
        if (
            given is None
            and is_true(keyword(call, "shuffle", 2))
            and not shared_out
            and not _may_get_sampler(program, call)
            and not looks_held_out(name_of(program, call))
            and not _of_an_own_network(program, call)
        ):
            yield call, "every rank reads all rows: this loader has no DistributedSampler"
    for call in torch_calls(program, "DistributedSampler"):
        alone = constant(keyword(call, "num_replicas", 1)) == 1
        named = [name_of(program, call), *map(last_name, call.args)]
        if (
            alone
            and not is_false(keyword(call, "shuffle", 3))
            and any(map(looks_trained_on, named))
            and not any(map(looks_held_out, named))
        ):
            yield (
                call,
                "every rank reads all rows: this sampler is made for one rank (num_replicas=1)",
            )
        ranks, rank = keyword(call, "num_replicas", 1), constant(keyword(call, "rank", 2))
        if isinstance(rank, int) and ranks is not None and constant(ranks) is None:
            yield (
                call,
                f"every rank reads the share of rank {rank}: the other rows are read by none",
            )


def _said_of(program: Program, call: ast.Call) -> set[str]:
    """The words of what a loader is given, and of what its names stand for, two names back."""
    given: list[ast.expr] = [*call.args, *(k.value for k in call.keywords)]
    found: set[str] = set()
    for _ in range(3):
        found |= {w for a in given for n in identifiers(a) for w in words(n)}
        given = [
            b.value
            for a in given
            for n in nodes_of(a, ast.Name)
            for b in program.bindings_of(n, program.scope(call))
            if b.how == "assign"
        ]
    return found


def _of_an_own_network(program: Program, call: ast.Call) -> bool:
    """Whether the function trains a network that it makes itself and wraps in nothing, as before
    the ranks begin.
    """
    scope = program.scope(call)
    steps = any(method(c) == "backward" for c in calls(scope.node))
    made = any(
        (o := program.classes.get(last_name(c.func))) is not None and program.is_module(o)
        for c in calls(scope.node)
    )
    return (
        bool(scope.name)
        and steps
        and made
        and not any(
            {"ddp", "distributed", "fsdp"} & words(n) or n in ("DDP", "FSDP")
            for n in identifiers(scope.node)
        )
    )


def _may_get_sampler(program: Program, call: ast.Call) -> bool:
    """Whether arguments are unpacked from anything but a dict in sight, which is unpacked alone,
    and holds no sampler.
    """
    if any(isinstance(a, ast.Starred) for a in call.args):
        return True
    for value in (k.value for k in call.keywords if k.arg is None):
        bound = program.bindings_of(value, program.scope(call))
        held = bound[0].value if len(bound) == 1 else None
        uses = [
            program.parents[n]
            for n in program.nodes[ast.Name]
            if isinstance(n.ctx, ast.Load) and n.id == last_name(value)
        ]
        if (
            not isinstance(held, ast.Dict)
            or None in held.keys
            or not all(isinstance(p, ast.keyword) and p.arg is None for p in uses)
        ):
            return True
        if {"sampler", "batch_sampler"} & set(map(constant, held.keys)):
            return True
    return False
