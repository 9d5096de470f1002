"""Rules BH522, BH534, BH605, BH613 and BH614: one network for all folds, and what ranks divide."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import optimizers_made, torch_calls
from training.review.program import Program, Scope, argument
from training.review.roles import PREPARES, is_model, is_model_origin, looks_held_out
from training.review.rules.loaders import is_held_out
from training.review.splitting import splits
from training.review.syntax import (
    calls,
    constant,
    dotted,
    has_unpacking,
    identifiers,
    is_false,
    keyword,
    last_name,
    method,
    nodes_of,
    own_nodes,
    own_nodes_of,
    receiver,
    words,
)
from training.review.values import loss_kind, reaching

# words
OF_RANKS = {"rank", "ranks", "world", "replicas", "nprocs", "processes", "gpus", "devices"}
SETS_BACK = {"reset", "reinit", "init", "initialize", "initialise", "deepcopy", "apply", "clone"}
TRAINS = {"train", "fit", "epoch", "optim", "optimizer", "backward", "step"}

LAUNCHES = {"DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"}
LAUNCHES |= {"init_process_group", "init_device_mesh"}
MEETS = ("reduce", "gather", "sync", "all_to_all", "recv")
SAME_VALUE = {"item", "detach", "clone", "float", "double", "to", "cpu", "cuda", "view", "squeeze"}
DIVIDES = {"div", "div_", "mul", "mul_", "divide", "true_divide"}


@rule("BH522")
def one_network_for_all_folds(subject: Subject) -> Iterator[Place]:
    """The network of an optimizer that is used in a loop over folds was made before the loop, and
    nothing in the loop sets it back.
    """
    program = subject.program
    folds = [c for c, _, _ in splits(program, by_group=True) if method(c) == "split"]
    for loop in program.nodes[ast.For] if folds else ():
        scope = program.scope(loop)
        named = nodes_of(loop.iter, ast.Name)
        heads = [loop.iter, *(b.value for n in named for b in program.bindings_of(n, scope))]
        over = any(c in folds for part in heads for c in calls(part))
        once = any(isinstance(s, ast.Break) for s in loop.body)
        if not over or once or _sets_back(program, loop, scope):
            continue
        for call, where in optimizers_made(program):
            network = receiver(call.args[0]) if method(call.args[0]) == "parameters" else None
            sites = [c for c, _ in program.call_sites[where] if loop in program.ancestors(c)]
            if sites and isinstance(network, ast.Name):
                network = argument(sites[0], where, network.id)
            if network is None or not (sites or where is scope):
                continue
            made = any(is_model_origin(program, o) for o in program.origins(network, scope))
            bound, used = program.bindings_of(network, scope), last_name(network)
            early = [b for b in bound if b.scope.name in ("", "__init__", scope.name)]
            early = [b for b in early if loop not in program.ancestors(b.value)]
            if made and len(bound) == len(early) == 1 and used in identifiers(loop):
                told = f"was made before the loop over folds of line {loop.lineno}"
                yield early[0].value, f"{dotted(network)} {told}, and trains in all of them", loop


def _sets_back(program: Program, loop: ast.For, scope: Scope) -> bool:
    """Whether a loop, or a function that it calls, may give a network its first weights again; the
    best weights of the same iteration, kept there, are others.
    """
    inside = calls(loop)
    inside += [c for call in inside for f in program.callees(call, scope) for c in calls(f.node)]
    states = [s for s in nodes_of(loop, ast.Assign) if "state_dict" in identifiers(s.value)]
    kept = {n.id for s in states for n in nodes_of(s, ast.Name)}
    loaded = [c for c in inside if method(c) == "load_state_dict"]
    others = [c for c in inside if SETS_BACK & words(last_name(c.func))]
    anew = any(last_name(a) not in kept for c in loaded for a in c.args[:1])
    return anew or any("state_dict" not in identifiers(c) for c in others)


@rule("BH534")
def sampler_seeded_by_rank(subject: Subject) -> Iterator[Place]:
    """The seed of a DistributedSampler that shuffles is computed from a rank."""
    program = subject.program
    for call in torch_calls(program, "DistributedSampler"):
        seed, scope = keyword(call, "seed", 4), program.scope(call)
        if is_false(keyword(call, "shuffle", 3)):
            continue
        values = [v for n in nodes_of(seed, ast.Name) for v in reaching(program, n, scope)]
        named = {n for value in (seed, *values) for n in identifiers(value)}
        ranks = sorted(n for n in named if "rank" in words(n) or n in program.rank_names)
        if ranks:
            told = f"the seed of this sampler depends on {ranks[0]}"
            yield call, f"{told}: shards overlap, and some rows are in none"


@rule("BH605")
def metric_of_one_rank(subject: Subject) -> Iterator[Place]:
    """Held-out rows are divided among ranks, and nothing in the file brings results of ranks
    together.
    """
    program = subject.program
    meets = any(part in n for n in program.called_names for part in MEETS)
    meets |= bool({"put", "open", "compute", "TCPStore", "FileStore"} & program.called_names)
    meets |= bool(program.modules_imported & (PREPARES | {"torchmetrics", "torcheval"}))
    evaluated = any(e.kind == "eval" for trace in subject.traces for e in trace)
    if not torch_calls(program, *LAUNCHES) or not evaluated or meets:
        return
    told = "held-out rows are divided among ranks, and the results are not reduced"
    for call in torch_calls(program, "DistributedSampler"):
        returned = isinstance(program.parents[call], ast.Return)
        sites = [c for c, _ in program.call_sites[program.scope(call)]] if returned else []
        alone = constant(keyword(call, "num_replicas", 1)) == 1
        if not alone and any(is_held_out(program, c) for c in (call, *sites)):
            yield call, told
    for node in (*program.nodes[ast.Call], *program.nodes[ast.Subscript]):
        if not _is_share(program, node):
            continue
        statement, scope = program.statement(node), program.scope(node)
        asks = any(is_model(program, c.func, scope) for c in calls(statement))
        learns = any(method(c) == "backward" for c in calls(statement))
        held = any(map(looks_held_out, identifiers(statement)))
        if asks and not learns if isinstance(statement, ast.For) else held:
            yield node, told


def _is_share(program: Program, node: ast.AST) -> bool:
    """Whether it is `range(rank, len(rows), world)` or `order[rank::world]`."""
    match node:
        case ast.Call(args=[ast.expr() as start, _, _]) if last_name(node.func) == "range":
            pass
        case ast.Subscript(slice=ast.Slice(lower=ast.expr() as start, step=ast.expr())):
            pass
        case _:
            return False
    return any("rank" in words(n) or n in program.rank_names for n in identifiers(start))


@rule("BH613")
def means_summed_over_ranks(subject: Subject) -> Iterator[Place]:
    """`all_reduce` adds up means of ranks, and nothing divides the sum there or where it is handed
    back.
    """
    program = subject.program
    for call in torch_calls(program, "all_reduce"):
        scope, how = program.scope(call), keyword(call, "op", 1)
        given, group = keyword(call, "tensor", 0), keyword(call, "group", 2)
        plain = program.resolve(call.func) == "torch.distributed.all_reduce" and group is None
        flags = {"isfinite", "isnan", "isinf"} & identifiers(scope.node)
        if not plain or flags or last_name(how) not in ("", "SUM"):
            continue
        if _is_mean(program, given, scope) and not _is_scaled(program, call, scope):
            told = "is the mean of one rank, and the sum over all ranks is used as if it were one"
            yield call, f"{last_name(given)} {told}"


def _is_mean(program: Program, node: ast.expr | None, scope: Scope, depth: int = 0) -> bool:
    """Whether a value is a quotient by what a loop counts, a mean over a tensor, or a loss."""
    match node:
        case ast.Name() if depth < 4:
            values = reaching(program, node, scope)
            return bool(values) and all(_is_mean(program, v, scope, depth + 1) for v in values)
        case ast.BinOp(op=ast.Div(), right=right):
            sums = [n for n in own_nodes_of(scope.node, ast.AugAssign) if dotted(right)]
            counted = [n for n in sums if dotted(n.target) == dotted(right)]
            return any(isinstance(a, ast.For) for n in counted for a in program.ancestors(n))
        case ast.Call(func=ast.Attribute(attr=name, value=inner)) if name in SAME_VALUE:
            return _is_mean(program, inner, scope, depth)
        case ast.Call(args=[inner, *_]) if program.is_torch(node.func, "tensor", "as_tensor"):
            return _is_mean(program, inner, scope, depth)
        case ast.Call(keywords=[]):
            made = [k.arg for o in program.origins(node.func, scope) for k in o.call.keywords]
            loss = bool(loss_kind(program, node, scope)) and "reduction" not in made
            return loss or (method(node) == "mean" and not node.args)
    return False


def _is_scaled(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether anything is divided or scaled below a reduction, or in a caller, or the number of
    ranks is spoken of.
    """
    nodes = [n for n in own_nodes(scope.node) if getattr(n, "lineno", 0) >= call.lineno]
    nodes += [n for _, s in program.call_sites[scope] for n in own_nodes(s.node)]
    scaled = any(isinstance(getattr(n, "op", None), (ast.Div, ast.Mult)) for n in nodes)
    return scaled or any(method(n) in DIVIDES or OF_RANKS & words(last_name(n)) for n in nodes)


@rule("BH614")
def frozen_after_wrapping(subject: Subject) -> Iterator[Place]:
    """Parameters of a network are frozen below its wrapping in DistributedDataParallel, in the same
    function, and training may follow.
    """
    program = subject.program
    for call in torch_calls(program, "DistributedDataParallel"):
        scope, made = program.scope(call), program.statement(call)
        wrapped = {*map(dotted, getattr(made, "targets", ()))} - {""}
        said = {k.arg for k in call.keywords} & {"find_unused_parameters", "static_graph"}
        written = [n for n in own_nodes(scope.node) if isinstance(n, ast.stmt)]
        below = [n for n in written if n.lineno > call.lineno]
        bound = {dotted(t) for n in below for t in getattr(n, "targets", ())}
        switches = [(n, *_switched(n)) for n in below]
        freed = any(free is True for _, _, free in switches)
        if said or has_unpacking(call) or wrapped & bound or freed:
            continue
        for node, network, free in switches:
            mine = network.partition(".module")[0] in wrapped and "teacher" not in words(network)
            if mine and free is False and _trains_after(scope, node):
                told = f"was wrapped in line {call.lineno}: the wrapper waits for its gradients"
                yield node, f"{network} is frozen after it {told}"


def _switched(node: ast.stmt) -> tuple[str, object]:
    """The network whose parameters a statement freezes (False) or sets free (True)."""
    over = receiver(node.iter if isinstance(node, ast.For) else getattr(node, "value", None))
    stored = [n for n in nodes_of(node, ast.Assign) if isinstance(n.targets[0], ast.Attribute)]
    flags = [constant(n.value) for n in stored if last_name(n.targets[0]) == "requires_grad"]
    turned = [c for c in calls(node) if method(c) == "requires_grad_"]
    flags += [constant(c.args[0]) if c.args else True for c in turned]
    return dotted(over), flags[-1] if flags else None


def _trains_after(scope: Scope, freeze: ast.stmt) -> bool:
    """Whether training may follow: below, or by whoever gets the network from a function that has
    not trained it yet.
    """
    made = own_nodes_of(scope.node, ast.Call)
    trains = [c.lineno for c in made if TRAINS & words(last_name(c.func))]
    returned = [n.lineno for n in own_nodes_of(scope.node, ast.Return) if n.value is not None]
    return max(trains or returned, default=0) > freeze.lineno
