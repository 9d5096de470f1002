"""Rules BH511 to BH521 but for BH510: data loaders, what they give, and random numbers."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to, torch_calls
from training.review.loops import innermost_loop, is_epoch_loop
from training.review.program import Program, Scope
from training.review.roles import PREPARES, WRAPPERS, looks_held_out, looks_trained_on
from training.review.sides import side_of_names, targets_of
from training.review.splitting import splits
from training.review.syntax import (
    calls,
    constant,
    dotted,
    has_unpacking,
    identifiers,
    is_false,
    is_true,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    receiver,
    walk,
    words,
)

# words
SEVERAL_VIEWS = {"tta", "views", "augmentations", "robust", "robustness", "corruption", "corrupted"}
RANKS = {"rank", "world"}

AUGMENTS = ("Random", "RandAugment", "AutoAugment", "TrivialAugment", "AugMix", "ColorJitter")
TIMES = {"perf_counter", "synchronize", "Event", "arange"}
SHARES = {"get_worker_info", "worker_init_fn", "split_dataset_by_node", "split_by_worker"}
SHARES |= {"sharding_filter", "get_rank", "StatefulDataLoader"}
DRAWS = {"randint", "choice", "choices", "random", "rand", "randrange", "integers", "randn"}
DRAWS |= {"sample", "normal", "uniform"}
GENERATORS = {"numpy.random.default_rng", "numpy.random.RandomState", "random.Random"}
GENERATORS |= {"torch.Generator"}
OF_WORKER = {"get_worker_info", "initial_seed"}
SEEDS = {"seed", "manual_seed", "seed_everything"}


def is_held_out(program: Program, call: ast.Call) -> bool:
    """Whether a loader, sampler or data set is called held-out, or what it is given first."""
    names = [*targets_of(program, call), last_name(keyword(call, "dataset", 0))]
    return any(map(looks_held_out, names))


def sampler_of(loader: ast.Call) -> ast.expr | None:
    """What a loader is given as its sampler."""
    return keyword(loader, "sampler", 3) or keyword(loader, "batch_sampler", 4)


def samplers(program: Program) -> list[ast.Call]:
    """The calls that make a DistributedSampler, of a class that a condition chose too."""
    found = torch_calls(program, "DistributedSampler")
    for call in program.all_calls if "DistributedSampler" in program.identifiers else ():
        bound = program.bindings_of(call.func, program.scope(call))
        chosen = [b.value for b in bound if isinstance(b.value, ast.IfExp)]
        classes = [c for pair in chosen for c in (pair.body, pair.orelse)]
        found += [call] if any(program.is_torch(c, "DistributedSampler") for c in classes) else []
    return found


@rule("BH511")
def sampler_and_shuffle(subject: Subject) -> Iterator[Place]:
    """A loader gets a sampler and the literal `shuffle=True`."""
    for call in torch_calls(subject.program, "DataLoader"):
        absent = isinstance(sampler_of(call), (type(None), ast.Constant, ast.IfExp))
        if not absent and is_true(keyword(call, "shuffle", 2)):
            yield call, "a sampler and shuffle=True: the loader rejects both"


@rule("BH512")
def set_epoch_missing(subject: Subject) -> Iterator[Place]:
    """A DistributedSampler shuffles train rows in a file that goes over them in epochs, and nothing
    calls `set_epoch`.
    """
    program = subject.program
    asked = [c for c in program.all_calls if not program.resolve(c.func).startswith("torch")]
    given = [a for c in asked if program.resolve(c.func) for a in c.args]
    told = any("epoch" in words(last_name(a)) for a in given)  # a function of another file is
    if told or program.modules_imported & PREPARES:
        return
    events = [e for trace in subject.traces for e in trace if e.loops]
    epochs = [x.node for e in events for x in e.loops if is_epoch_loop(x)]
    for event in (e for e in events if e.kind == "backward"):
        inner = [(getattr(x.node, "iter", None), x.scope) for x in event.loops[1:]]
        over = [o.last for iter, scope in inner for o in program.origins(iter, scope)]
        epochs += [event.loops[0].node] if "DataLoader" in over else []
    heads = {program.scope(n) for n in epochs}
    calls_in = [c for c in program.methods_of("set_epoch") if innermost_loop(program, c)]
    if calls_in or any(program.scope(c) not in heads for c in program.methods_of("set_epoch")):
        return
    for call in samplers(program) if epochs else ():
        shuffles = not is_false(keyword(call, "shuffle", 3)) and not has_unpacking(call)
        anew = any("epoch" in words(n) for n in identifiers(keyword(call, "seed", 4)))
        if shuffles and not anew and not is_held_out(program, call):
            yield call, "set_epoch is never called: all epochs have the same order", epochs[0]


@rule("BH513")
def loader_not_distributed(subject: Subject) -> Iterator[Place]:
    """A file that wraps a network in DDP or FSDP makes a shuffling loader without a sampler, of
    rows that were not shared out before; or a sampler for one rank, whatever rank it is.
    """
    program = subject.program
    own = any("split_dataset" in n or n == "shard" for n in program.called_names)
    if not torch_calls(program, *WRAPPERS) or own or program.modules_imported & PREPARES:
        return
    for call in torch_calls(program, "DataLoader"):
        shuffles = is_true(keyword(call, "shuffle", 2)) and not is_held_out(program, call)
        if shuffles and sampler_of(call) is None and not _may_be_shared(program, call):
            yield call, "every rank reads all rows: this loader has no DistributedSampler"
    for call in torch_calls(program, "DistributedSampler"):
        ranks, rank = keyword(call, "num_replicas", 1), constant(keyword(call, "rank", 2))
        alone = constant(ranks) == 1 and any(map(looks_trained_on, map(last_name, call.args)))
        if isinstance(rank, int) and ranks is not None and (alone or constant(ranks) is None):
            yield call, f"every process reads the rows of rank {rank}: this sampler is for one rank"


def _may_be_shared(program: Program, call: ast.Call) -> bool:
    """Whether a rank may decide what a loader is given, two names back, or a dict in which a
    sampler may be.
    """
    scope, given = program.scope(call), [call, *(k.value for k in call.keywords)]
    for _ in range(3):
        names = [n for a in given for n in nodes_of(a, ast.Name)]
        if any(RANKS & words(n) for a in given for n in identifiers(a)):
            return True
        given = [b.value for n in names for b in program.bindings_of(n, scope)]
    packed = [k.value for k in call.keywords if k.arg is None]
    held = [b.value for p in packed for b in program.bindings_of(p, scope)]
    known = [h for h in held if isinstance(h, ast.Dict) and "sampler" not in map(constant, h.keys)]
    return not len(packed) == len(held) == len(known)


@rule("BH514")
def same_noise_in_every_worker(subject: Subject) -> Iterator[Place]:
    """A data set draws in `__getitem__` from a generator of its `__init__`, and a loader has
    workers and no `worker_init_fn`; or that function seeds all workers alike.
    """
    program = subject.program
    loaders = torch_calls(program, "DataLoader")
    for loader in loaders:
        given = keyword(loader, "worker_init_fn")
        function = program.local_function(last_name(given), program.scope(loader))
        node = given if function is None else function.node
        if isinstance(node, (ast.Lambda, ast.FunctionDef)) and not OF_WORKER & identifiers(node):
            seeds = [c for c in calls(node) if last_name(c.func) in SEEDS and c.args]
            if seeds and not {a.arg for a in node.args.args} & names_read(node):
                told = f"every worker is seeded with {ast.unparse(seeds[0].args[0])}"
                yield seeds[0], f"{told}: all draw the same numbers, in every epoch", loader
    plain = [c for c in loaders if keyword(c, "worker_init_fn") is None]
    if not any(constant(keyword(c, "num_workers", 5) or ast.Constant(0)) != 0 for c in plain):
        return
    for owner, own in program.methods.items():
        used, pending = set[str](), [own[n] for n in ("__getitem__",) if n in own]
        while pending:
            named = identifiers(pending.pop().node)
            pending += [own[n] for n in named - used if n in own]
            used |= named
        if used & (SEEDS | OF_WORKER):
            continue  # each worker, or each row, has its own seed
        for name, bound in program.attributes[owner].items():
            made = [b.value for b in bound if _is_generator(program, b.value)]
            if name in used and len(made) == len(bound):
                yield made[0], f"self.{name} is in the same state in every worker"


def _is_generator(program: Program, node: ast.expr) -> bool:
    made = receiver(node) if method(node) == "manual_seed" else node
    return isinstance(made, ast.Call) and program.resolve(made.func) in GENERATORS


@rule("BH515")
def seed_incomplete(subject: Subject) -> Iterator[Place]:
    """A file that trains seeds `random` or numpy and not torch; or torch or numpy and not `random`,
    by which it shuffles rows that it cuts in two.
    """
    program = subject.program
    seeds = {n for n in program.called_names if "seed" in n.lower()} - {"initial_seed", "get_seed"}
    if not subject.trains or seeds - {"seed", "manual_seed", "manual_seed_all"}:
        return
    seeded = [c for c in calls_to(program, "random.seed", "numpy.random.seed") if c.args]
    if seeded and "torch" in program.modules_imported and seeds == {"seed"}:
        told = "initial weights and the order of batches differ from run to run"
        yield seeded[-1], f"torch is not seeded: {told}"
    if calls_to(program, "random.seed", "random.setstate") or (not seeds - {"seed"} and not seeded):
        return
    for call in calls_to(program, "random.shuffle", "random.sample"):
        drawn = getattr(program.statement(call), "targets", call.args)
        if drawn and _tells_sides(program.scope(call), dotted(drawn[0])):
            told = f"random.{last_name(call.func)} decides which rows go to which split"
            yield call, f"{told}, and random is not seeded: the split differs from run to run"


def _tells_sides(scope: Scope, rows: str) -> bool:
    """Whether a function takes `rows[:n]` and `rows[n:]`, or asks `in rows` and `not in rows`."""
    tests = [n for n in nodes_of(scope.node, ast.Compare) if dotted(n.comparators[0]) == rows]
    if rows and {type(n.ops[0]) for n in tests} >= {ast.In, ast.NotIn}:
        return True
    found = [n for n in nodes_of(scope.node, ast.Subscript) if rows and dotted(n.value) == rows]
    slices = [n.slice for n in found if isinstance(n.slice, ast.Slice)]
    heads = {ast.unparse(s.upper) for s in slices if s.upper is not None and s.lower is None}
    return bool(heads & {ast.unparse(s.lower) for s in slices if s.lower is not None})


@rule("BH516")
def determinism_contradicted(subject: Subject) -> Iterator[Place]:
    """`cudnn.deterministic` and `cudnn.benchmark` are both set to True in one block."""
    program = subject.program
    found = defaultdict[tuple[ast.AST, bool], dict[str, ast.AST]](dict)
    for node in (n for n in program.nodes[ast.Assign] if is_true(n.value)):
        if program.resolve(node.targets[0]).startswith("torch.backends.cudnn."):
            above = program.parents[node]
            block = above, node in getattr(above, "orelse", ())
            found[block][last_name(node.targets[0])] = node
    for flags in (f for f in found.values() if {"deterministic", "benchmark"} <= f.keys()):
        told = "benchmark measures kernels: results may differ"
        yield flags["benchmark"], f"{told} though deterministic is set"


@rule("BH517")
def batch_norm_with_batch_of_one(subject: Subject) -> Iterator[Place]:
    """A shuffling loader gives batches of one in a file that makes a batch norm and trains."""
    program = subject.program
    norms = any(n.startswith("BatchNorm") for n in program.called_names)
    own = [methods["train"] for methods in program.methods.values() if "train" in methods]
    frozen = any(method(c) == "eval" for s in own for c in calls(s.node))  # norms learn nothing
    for call in torch_calls(program, "DataLoader") if subject.trains and norms else ():
        size = keyword(call, "batch_size", 1)
        default = size is None and not has_unpacking(call) and not keyword(call, "batch_sampler")
        bags = keyword(call, "collate_fn") is not None  # each of which may hold many rows
        shuffles = is_true(keyword(call, "shuffle", 2)) and not is_held_out(program, call)
        if (default or constant(size) == 1) and shuffles and not bags and not frozen:
            yield call, "batches of one, and a batch norm in the network"


@rule("BH518")
def train_augmentation_in_validation(subject: Subject) -> Iterator[Place]:
    """A held-out data set gets a transform that draws at random; or a data set with one is split by
    `random_split`.
    """
    program = subject.program
    for call in program.all_calls:
        drawn = _augmentation(program, call, program.scope(call))
        held = drawn and side_of_names(targets_of(program, call)) in ("val", "test")
        views = {w for n in identifiers(program.statement(call)) for w in words(n)} & SEVERAL_VIEWS
        if held and not views:
            yield call, f"{drawn} is applied to held-out rows, which change at random"
    stored = [n.attr for n in program.nodes[ast.Attribute] if isinstance(n.ctx, ast.Store)]
    for call, scope, parts in splits(program) if "transform" not in stored else ():
        made = program.origins(parts[0], scope) if parts else ()
        drawn = next(filter(None, (_augmentation(program, o.call, o.scope) for o in made)), "")
        if drawn and last_name(call.func) == "random_split":
            yield call, f"{drawn} is applied to all parts of the split"


def _augmentation(program: Program, rows: ast.Call, scope: Scope) -> str:
    """The random change of images in the transform that a data set is given by a name."""
    of_images = program.resolve(rows.func).startswith("torchvision.datasets.")
    transform = keyword(rows, "transform", 1 if of_images else None)
    made = [c for o in program.origins(transform, scope) for c in calls(o.call)]
    drawn = [c for c in made if last_name(c.func).startswith(AUGMENTS)]
    drawn = [c for c in drawn if "transforms" in program.resolve(c.func)]
    return f"{last_name(drawn[0].func)} of line {drawn[0].lineno}" if drawn else ""


@rule("BH519")
def waits_for_device(subject: Subject) -> Iterator[Place]:
    """The loop that trains reads its loss by `.item()` or the like in every step."""
    for trace in subject.traces:
        for step in (e for e in trace if e.kind == "backward" and e.loops):
            for event in (e for e in trace if method(e.node) in ("item", "cpu", "tolist")):
                read = event.frame.key(receiver(event.node)) or dotted(receiver(event.node))
                always = event.loops == step.loops and event.branches == step.branches
                if read and read == step.key and always:
                    yield event.node, "every step waits for the device"


@rule("BH520")
def held_out_rows_dropped(subject: Subject) -> Iterator[Place]:
    """A loader over held-out rows has `drop_last=True`."""
    program = subject.program
    for call in torch_calls(program, "DataLoader"):
        node = program.scope(call).node
        if isinstance(node, ast.FunctionDef) and TIMES & identifiers(node):
            continue  # batches of one size are timed, or hold each other's negatives
        if is_true(keyword(call, "drop_last", 8)) and is_held_out(program, call):
            yield call, "drop_last skips held-out rows"


@rule("BH521")
def stream_in_every_worker(subject: Subject) -> Iterator[Place]:
    """A loader with several workers gets an IterableDataset of this file that goes once through
    something, and nothing asks for the worker.
    """
    program = subject.program
    given = {k.arg or "" for c in program.all_calls for k in c.keywords}
    if SHARES & (program.identifiers | given) or any("shard" in n for n in program.identifiers):
        return
    for call in torch_calls(program, "DataLoader"):
        workers = constant(keyword(call, "num_workers", 5))
        made = program.origins(keyword(call, "dataset", 0), program.scope(call))
        for owner in (program.classes[o.name] for o in made if o.name in program.classes):
            going = program.methods[owner].get("__iter__")
            nodes = list(walk(going.node)) if going is not None else []
            once = any(isinstance(n, (ast.For, ast.comprehension)) for n in nodes)
            drawn = any(last_name(c.func) in DRAWS for c in nodes if isinstance(c, ast.Call))
            endless = any(isinstance(n, ast.While) for n in nodes)
            stream = "IterableDataset" in map(last_name, owner.bases)
            several = isinstance(workers, int) and workers > 1
            if several and stream and once and not drawn and not endless:
                yield call, f"each of {workers} workers yields all rows of {owner.name}"
