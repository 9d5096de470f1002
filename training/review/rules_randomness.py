"""Rules BH514: to BH519: randomness, and what a loader costs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.augmented import augmented_held_out, train_transform_held_out
from training.review.findings import Place, Subject, rule
from training.review.kinds import looks_held_out
from training.review.lookups import attributes_of, calls_to
from training.review.program import Program, Scope
from training.review.rules_loader import loaders, name_of
from training.review.splitting import splits
from training.review.syntax import (
    FUNCTIONS,
    calls,
    constant,
    dotted,
    has_unpacking,
    identifiers,
    is_true,
    keyword,
    last_name,
    method,
    receiver,
    walk,
)
from training.review.trace import Event
from training.review.unseeded import unseeded_split

GENERATORS = {
    "numpy.random.default_rng",
    "numpy.random.RandomState",
    "random.Random",
    "torch.Generator",
}


@rule("BH514")
def same_noise_in_every_worker(subject: Subject) -> Iterator[Place]:
    """A data set keeps a generator from its `__init__` for `__getitem__`, and a loader of the file
    has workers and no `worker_init_fn`.
    """
    program = subject.program
    many = [
        c
        for c in loaders(program)
        if (workers := keyword(c, "num_workers", 5)) is not None
        and constant(workers) != 0
        and keyword(c, "worker_init_fn") is None
    ]
    yield from _seeded_alike(program)
    for owner in program.classes.values() if many else ():
        getter, init = (
            program.methods[owner].get("__getitem__"),
            program.methods[owner].get("__init__"),
        )
        if (
            getter is None
            or init is None
            or any(method(c) in ("manual_seed", "seed") for c in calls(getter.node))
        ):
            continue  # also where each row has a seed of its own
        used = _used_within(program, owner, getter)
        for name, bindings in program.attributes[owner].items():
            made = [b for b in bindings if _is_generator(program, b.value)]
            if made and len(made) == len(bindings) and name in used:
                yield made[0].value, f"self.{name} is in the same state in every worker"


def _seeded_alike(program: Program) -> Iterator[Place]:
    """A `worker_init_fn` that seeds every worker with the same number."""
    for loader in loaders(program):
        given = keyword(loader, "worker_init_fn")
        function = (
            program.local_function(given.id, program.scope(loader))
            if isinstance(given, ast.Name)
            else None
        )
        node = (
            given
            if isinstance(given, ast.Lambda)
            else (
                function.node
                if function is not None and not isinstance(function.node, ast.Module)
                else None
            )
        )
        if node is None or {"get_worker_info", "initial_seed"} & identifiers(node):
            continue
        asked = node.args.args[0].arg if node.args.args else ""
        seeded = [
            c
            for c in calls(node)
            if last_name(c.func) in ("seed", "manual_seed", "seed_everything") and c.args
        ]
        if seeded and not any(
            isinstance(n, ast.Name) and n.id == asked
            for n in walk(node)
            if not isinstance(n, ast.arg)
        ):
            yield (
                seeded[0],
                (
                    f"every worker is seeded with {ast.unparse(seeded[0].args[0])}: they draw the"
                    " same, and in each epoch again"
                ),
                loader,
            )


def _is_generator(program: Program, node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and method(node) == "manual_seed":
        node = receiver(node) or node
    return isinstance(node, ast.Call) and program.resolve(node.func) in GENERATORS


def _used_within(program: Program, owner: ast.ClassDef, getter: Scope) -> set[str]:
    """What a method names, and the methods of its class that it names in turn; where one asks for
    its worker, nothing.
    """
    used, pending = set[str](), [getter]
    while pending:
        named = identifiers(pending.pop().node)
        pending += [program.methods[owner][n] for n in named - used if n in program.methods[owner]]
        used |= named
    return set() if {"get_worker_info", "initial_seed"} & used else used


@rule("BH515")
def seed_incomplete(subject: Subject) -> Iterator[Place]:
    """`random.seed` or `numpy.random.seed` with a value in a file that trains, and nothing that
    seeds torch; or a split by `random`, that alone unseeded.
    """
    program = subject.program
    if subject.trains:
        yield from unseeded_split(program)
    seeded = [c for c in calls_to(program, "random.seed", "numpy.random.seed") if c.args]
    others = {n for n in program.called_names if "seed" in n} - {"seed", "initial_seed", "get_seed"}
    if (
        seeded
        and not others
        and subject.trains
        and "torch" in program.modules_imported
        and "seed_everything" not in program.identifiers
    ):
        yield (
            seeded[-1],
            "torch is not seeded: initial weights and the order of batches differ from run to run",
        )


@rule("BH516")
def determinism_contradicted(subject: Subject) -> Iterator[Place]:
    """Both flags are set to True in the same block."""
    program = subject.program
    blocks: dict[tuple[ast.AST, bool], dict[str, ast.AST]] = {}
    for node in program.nodes[ast.Assign]:
        if is_true(node.value) and program.resolve(node.targets[0]).startswith(
            "torch.backends.cudnn."
        ):
            above = program.parents[node]
            blocks.setdefault((above, node in getattr(above, "orelse", ())), {})[
                last_name(node.targets[0])
            ] = node
    for flags in blocks.values():
        if {"deterministic", "benchmark"} <= flags.keys():
            yield (
                flags["benchmark"],
                (
                    "benchmark picks kernels by measuring: results may differ though deterministic"
                    " is set"
                ),
            )


@rule("BH517")
def batch_norm_with_batch_of_one(subject: Subject) -> Iterator[Place]:
    """A train loader with the literal batch size 1 in a file that makes a batch norm and trains."""
    program = subject.program
    if (
        not subject.trains
        or not any(n.startswith("BatchNorm") for n in program.called_names)
        or _norms_stay(program)
    ):
        return
    for call in loaders(program):
        size = keyword(call, "batch_size", 1)
        single = (
            size is None and not has_unpacking(call) and keyword(call, "batch_sampler") is None
        ) or constant(size) == 1
        if keyword(call, "collate_fn") is not None or "torch_geometric" in program.resolve(
            call.func
        ):
            continue  # one bag, or one graph, is many rows
        if (
            single
            and is_true(keyword(call, "shuffle", 2))
            and not looks_held_out(name_of(program, call))
        ):
            yield call, "batches of one, and a batch norm in the network"


def _norms_stay(program: Program) -> bool:
    """Whether a network's own `train` puts its norms into eval mode again."""
    return any(
        "train" in own and any(method(c) == "eval" for c in calls(own["train"].node))
        for own in program.methods.values()
    )


@rule("BH518")
def train_augmentation_in_validation(subject: Subject) -> Iterator[Place]:
    """`random_split` of a data set whose transform draws at random; or a held-out data set that is
    told to draw, or given a transform that does.
    """
    program = subject.program
    for held, name, given in augmented_held_out(program):
        yield (
            held,
            (
                f"{name}={ast.unparse(given) if given is not None else 'its default'} has these"
                " rows changed at random"
            ),
        )
    for held, name, by in train_transform_held_out(program):
        yield held, f"{name} holds {by}: held-out rows are changed at random"
    if any(isinstance(n.ctx, ast.Store) for n in attributes_of(program, "transform")):
        return
    for call, scope, parts in splits(program):
        if last_name(call.func) != "random_split":
            continue
        for origin in program.origins(parts[0], scope) if parts else ():
            transform = keyword(origin.call, "transform")
            made = program.origins(transform, origin.scope) if transform is not None else ()
            for maker in made:
                drawn = [
                    c
                    for c in calls(maker.call)
                    if last_name(c.func).startswith("Random")
                    and "transforms" in program.resolve(c.func)
                ]
                if drawn:
                    yield (
                        call,
                        (
                            f"{last_name(drawn[0].func)} of line {drawn[0].lineno} is applied to"
                            " all parts of the split"
                        ),
                    )
                    break


@rule("BH519")
def waits_for_device(subject: Subject) -> Iterator[Place]:
    """`.item()` of the loss in the loop of its backward, unconditionally."""
    for trace in subject.traces:
        for backward in (e for e in trace if e.kind == "backward" and e.loops):
            for event in trace:
                if (
                    event.kind == "call"
                    and _reads(event) == backward.key
                    and event.loops == backward.loops
                    and event.branches == backward.branches
                ):
                    yield event.node, "the device is waited for in every step"


def _reads(event: Event) -> str:
    node = event.node
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("item", "cpu", "tolist")
        and not isinstance(node, FUNCTIONS)
    ):
        return event.frame.key(node.func.value) or dotted(node.func.value) or "?"
    return "?"
