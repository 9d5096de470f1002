"""Rules BH616 to BH618: a sum that one rank holds and all act on, a norm that each rank takes of its own shards, gradients that are exchanged too early."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to, torch_calls
from training.review.program import Program, Scope
from training.review.rules_distributed import RANKS
from training.review.syntax import calls, constant, dotted, identifiers, keyword, last_name, method, names_read, own_nodes, receiver, walk, words


@rule(
    "BH616",
    "sum-of-one-rank-decides",
    "error",
    title="All ranks act on a sum that one rank holds",
    why="`dist.reduce` leaves the sum on its destination; the others keep a partial one. Where it decides about stopping, or which weights are the best, ranks decide differently: one goes on alone and waits for ever.",
    remedy="`dist.all_reduce`, or broadcast what rank 0 decided",
    bad="""
        import torch
        import torch.distributed as dist

        def fit(net, train, count, epochs):
            best, waited = 0.0, 0
            while waited < 3:
                train(net)
                right = count(net)
                dist.reduce(right, 0)
                if right.item() > best:
                    best, waited = right.item(), 0
                else:
                    waited += 1
        """,
    good="""
        import torch
        import torch.distributed as dist

        def fit(net, train, count, epochs):
            best, waited = 0.0, 0
            while waited < 3:
                train(net)
                right = count(net)
                dist.all_reduce(right)
                if right.item() > best:
                    best, waited = right.item(), 0
                else:
                    waited += 1
        """,
)
def sum_of_one_rank_decides(subject: Subject) -> Iterator[Place]:
    """What `dist.reduce` left is asked for in a condition of a loop that no rank is named in, there or where a function returns it; nothing is broadcast."""
    program = subject.program
    if {"broadcast", "broadcast_object_list", "all_gather", "all_gather_object", "scatter"} & program.called_names:
        return
    for call in calls_to(program, "torch.distributed.reduce"):
        if not call.args:
            continue
        scope = program.scope(call)
        names = names_read(call.args[0])
        if _on_one_rank(program, call) or _names_a_rank(program, scope.node):
            continue
        if (decides := _decides(program, scope, names, call)) is not None:
            yield call, f"line {decides.lineno} decides by {ast.unparse(call.args[0])}, which is the sum of all ranks on one of them alone"


def _decides(program: Program, scope: Scope, names: set[str], call: ast.Call) -> ast.If | ast.While | None:
    """A condition within a loop that is made of these names, or of what a function returns of them."""
    grown = set(names)
    for _ in range(3):
        grown |= {last_name(t) for n in own_nodes(scope.node) if isinstance(n, ast.Assign) and names_read(n.value) & grown for t in n.targets} - {""}
    for node in own_nodes(scope.node):
        if (
            isinstance(node, ast.If)
            and node.lineno > call.lineno
            and names_read(node.test) & grown
            and any(isinstance(a, (ast.For, ast.While)) for a in program.ancestors(node))
            and not _left_before(scope, call, node)
            and not _of_destination(call, node)
            and any(isinstance(n, (ast.Assign, ast.AugAssign, ast.Break, ast.Continue, ast.Return)) for s in (*node.body, *node.orelse) for n in walk(s))
        ):
            return node
    if not any(isinstance(n, ast.Return) and n.value is not None and names_read(n.value) & grown for n in own_nodes(scope.node)):
        return None
    for site, caller in program.call_sites[scope]:
        given = {last_name(t) for t in getattr(program.statement(site), "targets", ())} - {""}
        for node in (n for n in own_nodes(caller.node) if isinstance(n, ast.If) and names_read(n.test) & given):
            looped = any(isinstance(a, (ast.For, ast.While)) for a in program.ancestors(node))
            if looped and not _names_a_rank(program, node.test) and not _on_one_rank(program, node):
                return node
    return None


def _of_destination(call: ast.Call, node: ast.If) -> bool:
    """Whether the condition asks for the process that the sum is sent to."""
    to = keyword(call, "dst", 1)
    sides = [s for n in walk(node.test) if isinstance(n, ast.Compare) for s in (n.left, *n.comparators)]
    return to is not None and not isinstance(to, ast.Constant) and any(ast.dump(s) == ast.dump(to) for s in sides)


def _left_before(scope: Scope, call: ast.Call, node: ast.If) -> bool:
    """Whether other processes leave the passage between the sum and the condition, as those without a writer, or the condition names a first process by its number."""
    between = [n for n in own_nodes(scope.node) if isinstance(n, ast.If) and call.lineno < n.lineno < node.lineno]
    left = any(isinstance(n.body[-1], (ast.Continue, ast.Return)) for n in between)
    return left or any(isinstance(n, ast.Compare) and constant(n.comparators[0]) == 0 and isinstance(n.ops[0], ast.Eq) for n in walk(node.test))


def _on_one_rank(program: Program, node: ast.AST) -> bool:
    return any(isinstance(a, ast.If) and _names_a_rank(program, a.test) for a in program.ancestors(node))


def _names_a_rank(program: Program, node: ast.AST) -> bool:
    """Whether a rank is spoken of."""
    named = identifiers(node) | {last_name(c.func) for c in calls(node)}
    return bool(named & program.rank_names) or any(words(n) & RANKS for n in named)


@rule(
    "BH618",
    "averaged-before-backward",
    "error",
    title="Gradients are averaged before backward has computed them",
    why="What is exchanged are the gradients of the step before, or none at all; those of this step stay with their rank, and the networks drift apart.",
    remedy="exchange between `backward` and `step`",
    bad="""
        import torch.distributed as dist

        def train(net, optimizer, loader, loss_fn, world):
            for x, y in loader:
                optimizer.zero_grad(set_to_none=False)
                loss = loss_fn(net(x), y)
                for p in net.parameters():
                    dist.all_reduce(p.grad)
                    p.grad /= world
                loss.backward()
                optimizer.step()
        """,
    good="""
        import torch.distributed as dist

        def train(net, optimizer, loader, loss_fn, world):
            for x, y in loader:
                optimizer.zero_grad(set_to_none=False)
                loss = loss_fn(net(x), y)
                loss.backward()
                for p in net.parameters():
                    dist.all_reduce(p.grad)
                    p.grad /= world
                optimizer.step()
        """,
)
def averaged_before_backward(subject: Subject) -> Iterator[Place]:
    """In the loop of a backward gradients are reduced over ranks before it, and none after it; `step` follows."""
    program = subject.program
    for call in calls_to(program, "torch.distributed.all_reduce"):
        if not call.args or last_name(call.args[0]) != "grad":
            continue
        loops = [a for a in program.ancestors(call) if isinstance(a, (ast.For, ast.While))]
        around = next((a for a in loops if any(method(c) == "backward" for c in calls(a))), None)
        inside = list(calls(around)) if around is not None else []
        backward = [c.lineno for c in inside if method(c) == "backward"]
        reduced = [c.lineno for c in inside if program.resolve(c.func) == "torch.distributed.all_reduce"]
        steps = [c.lineno for c in inside if method(c) == "step"]
        if backward and steps and max(reduced) < min(backward) < min(steps):
            yield call, f"gradients are exchanged here, and computed in line {min(backward)}"


@rule(
    "BH617",
    "shards-clipped-apart",
    "error",
    title="Each rank clips by the norm of its own shards",
    why="Under FullyShardedDataParallel a rank sees its shards of the gradient. `nn.utils.clip_grad_norm_` takes the norm of these alone: ranks scale their shards differently, and the update is no gradient.",
    remedy="`model.clip_grad_norm_(max_norm)` of FSDP; with `fully_shard` torch's own function is right",
    bad="""
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel

        def train(net, loader, loss_fn):
            model = FullyShardedDataParallel(net)
            optimizer = torch.optim.AdamW(model.parameters())
            for x, y in loader:
                optimizer.zero_grad()
                loss_fn(model(x), y).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        """,
    good="""
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel

        def train(net, loader, loss_fn):
            model = FullyShardedDataParallel(net)
            optimizer = torch.optim.AdamW(model.parameters())
            for x, y in loader:
                optimizer.zero_grad()
                loss_fn(model(x), y).backward()
                model.clip_grad_norm_(1.0)
                optimizer.step()
        """,
)
def shards_clipped_apart(subject: Subject) -> Iterator[Place]:
    """`nn.utils.clip_grad_norm_` of the parameters of what FullyShardedDataParallel wraps, which is not told to keep all of them on each rank."""
    program = subject.program
    if "FullyShardedDataParallel" not in {n for name in program.aliases.values() for n in name.split(".")} or "NO_SHARD" in program.identifiers:
        return
    for call in torch_calls(program, "clip_grad_norm_", "clip_grad_norm"):
        given = call.args[0] if call.args else None
        network = receiver(given) if isinstance(given, ast.Call) and method(given) == "parameters" else None
        if any(isinstance(a, ast.If) and "isinstance" in identifiers(a.test) for a in program.ancestors(call)):
            continue  # told apart
        made = program.origins(network, program.scope(call)) if network is not None else ()
        if made and all(o.last == "FullyShardedDataParallel" for o in made):
            yield call, f"each rank takes the norm of its own shards of {dotted(network)}"
