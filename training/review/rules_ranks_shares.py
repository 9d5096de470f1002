"""Rules BH620 to BH623: a forward outside of `no_sync`, a ratio that is divided by the ranks again, rows that are shared out twice, gradients that stay on their rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import torch_calls
from training.review.program import Program, Scope
from training.review.rules_distributed import REDUCES
from training.review.rules_sides import apart
from training.review.syntax import calls, constant, dotted, identifiers, keyword, last_name, method, names_read, receiver, walk, words

RANK_SHARES = {"shard", "split_dataset_by_node"}


@rule(
    "BH620",
    "forward-outside-no-sync",
    "warning",
    title="The forward pass stands outside of no_sync",
    why="DDP asks in its `forward` whether it is to average gradients: `no_sync` around the backward alone changes nothing, and gradients travel in every micro-batch.",
    remedy="put the forward and the backward under `no_sync`",
    bad="""
        import contextlib
        from torch.nn.parallel import DistributedDataParallel

        def train(network, optimizer, windows, loss_fn):
            ddp = DistributedDataParallel(network)
            for window in windows:
                optimizer.zero_grad()
                for i, (x, y) in enumerate(window):
                    loss = loss_fn(ddp(x), y) / len(window)
                    with ddp.no_sync() if i + 1 < len(window) else contextlib.nullcontext():
                        loss.backward()
                optimizer.step()
        """,
    good="""
        import contextlib
        from torch.nn.parallel import DistributedDataParallel

        def train(network, optimizer, windows, loss_fn):
            ddp = DistributedDataParallel(network)
            for window in windows:
                optimizer.zero_grad()
                for i, (x, y) in enumerate(window):
                    with ddp.no_sync() if i + 1 < len(window) else contextlib.nullcontext():
                        loss = loss_fn(ddp(x), y) / len(window)
                        loss.backward()
                optimizer.step()
        """,
)
def forward_outside_no_sync(subject: Subject) -> Iterator[Place]:
    """A block under `x.no_sync()` takes a loss backward that a name bound before the block holds, and `x(…)` is called in that loop, not in the block."""
    program = subject.program
    for block in (n for n in program.nodes[ast.With] if isinstance(n, ast.With)):
        scope = program.scope(block)
        wrapped = {dotted(receiver(c)) for item in block.items for c in _contexts(item.context_expr, scope) if method(c) == "no_sync"} - {""}
        inside = [c for s in block.body for c in calls(s)]
        backward = next((c for c in inside if method(c) == "backward"), None)
        loop = next((a for a in program.ancestors(block) if isinstance(a, (ast.For, ast.While))), None)
        if not wrapped or backward is None or loop is None or any(dotted(c.func) in wrapped for c in inside):
            continue
        called = [c for c in calls(loop) if dotted(c.func) in wrapped and c not in inside and c.lineno < block.lineno]
        bound = {last_name(t) for s in block.body for n in walk(s) if isinstance(n, ast.Assign) for t in n.targets}
        if called and names_read(receiver(backward)) and not names_read(receiver(backward)) & bound:
            yield block, f"{dotted(called[0].func)} is called in line {called[0].lineno}, before no_sync: gradients are averaged all the same"


def _contexts(node: ast.expr, scope: Scope) -> Iterator[ast.Call]:
    """The calls that a context manager may be, written there or bound to its name."""
    candidates = [b.value for b in scope.bindings.get(node.id, ())] if isinstance(node, ast.Name) else [node]
    for candidate in candidates:
        yield from calls(candidate)


@rule(
    "BH621",
    "ratio-divided-by-ranks",
    "error",
    title="A ratio of sums over ranks is divided by the ranks as well",
    why="A sum over all ranks by a count over all ranks is the mean already. Divided by the number of ranks it is half of it on two and an eighth on eight.",
    remedy="divide the summed loss by the summed count, and by nothing else",
    bad="""
        import torch
        import torch.distributed as dist

        def mean_loss(total, count):
            sums = torch.stack([total, count])
            dist.all_reduce(sums)
            return sums[0] / sums[1] / dist.get_world_size()
        """,
    good="""
        import torch
        import torch.distributed as dist

        def mean_loss(total, count):
            sums = torch.stack([total, count])
            dist.all_reduce(sums)
            return sums[0] / sums[1]
        """,
)
def ratio_divided_by_ranks(subject: Subject) -> Iterator[Place]:
    """`a / b / n` where both `a` and `b` were added up over ranks in the function, and `n` speaks of the world."""
    program = subject.program
    for ratio in program.nodes[ast.BinOp]:
        match ratio:
            case ast.BinOp(op=ast.Div(), left=ast.BinOp(op=ast.Div(), left=above, right=below), right=by) if _speaks_of_ranks(by, "world"):
                pass
            case _:
                continue
        scope = program.scope(ratio)
        summed = {
            ast.unparse(c.args[0])
            for c in calls(scope.node)
            if c.args and last_name(c.func) in REDUCES and c.lineno <= ratio.lineno and "AVG" not in {n for k in c.keywords for n in identifiers(k.value)}
        }
        sides = [ast.unparse(_whole(side)) for side in (above, below)]
        if all(side in summed for side in sides):
            yield ratio, f"{' and '.join(dict.fromkeys(sides))} were added up over all ranks: a ratio of such sums is a mean already"


def _whole(node: ast.expr) -> ast.expr:
    """The tensor of which an element or a number is taken."""
    while isinstance(node, ast.Subscript) or (isinstance(node, ast.Call) and method(node) in ("item", "float", "clamp", "cpu")):
        inner = node.value if isinstance(node, ast.Subscript) else receiver(node)
        if inner is None:
            break
        node = inner
    return node


@rule(
    "BH622",
    "shared-out-twice",
    "error",
    title="Rows are shared out over ranks twice",
    why="Each rank takes its share of the rows, and its DistributedSampler takes a share of that share: on four ranks an epoch goes over a quarter of the rows, the same ones each time.",
    remedy="give the DistributedSampler all train rows, or shuffle the rank's own share with a plain loader",
    bad="""
        import torch.distributed as dist
        from torch.utils.data import DataLoader, DistributedSampler, Subset

        def make_loader(dataset):
            rank, world = dist.get_rank(), dist.get_world_size()
            mine = Subset(dataset, list(range(len(dataset)))[rank::world])
            return DataLoader(mine, batch_size=32, sampler=DistributedSampler(mine, num_replicas=world, rank=rank))
        """,
    good="""
        import torch.distributed as dist
        from torch.utils.data import DataLoader, DistributedSampler

        def make_loader(dataset):
            rank, world = dist.get_rank(), dist.get_world_size()
            return DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset, num_replicas=world, rank=rank))
        """,
)
def shared_out_twice(subject: Subject) -> Iterator[Place]:
    """A DistributedSampler over the ranks is given rows that a stride by the ranks, or `shard`, took of all."""
    program = subject.program
    for call in torch_calls(program, "DistributedSampler"):
        rows, replicas = keyword(call, "dataset", 0), keyword(call, "num_replicas", 1)
        if isinstance(replicas, ast.Constant) and replicas.value is not None:
            continue
        taken = _share_of_rank(program, rows, program.scope(call), call.lineno) if rows is not None else None
        if taken is not None and not apart(program, taken, call):
            yield call, f"line {taken.lineno} takes this rank's share of the rows already, and the sampler takes a share of that"


def _share_of_rank(program: Program, rows: ast.expr, scope: Scope, before: int, depth: int = 0) -> ast.expr | None:
    """Where rows were taken by `[rank::world]`, `range(rank, n, world)` or `shard`, following names back."""
    for node in walk(rows):
        by_stride = isinstance(node, ast.Slice) and _speaks_of_ranks(node.lower, "rank") and _speaks_of_ranks(node.step, "world")
        by_range = isinstance(node, ast.Call) and last_name(node.func) == "range" and len(node.args) == 3
        if by_stride or (by_range and isinstance(node, ast.Call) and _speaks_of_ranks(node.args[0], "rank") and _speaks_of_ranks(node.args[2], "world")):
            return node if isinstance(node, ast.expr) else rows
        sharded = isinstance(node, ast.Call) and last_name(node.func) in RANK_SHARES
        if sharded and isinstance(node, ast.Call) and any(_speaks_of_ranks(a, "rank") for a in (*node.args, *(k.value for k in node.keywords))):
            return node
    if depth > 2:
        return None
    for name in names_read(rows):
        earlier = [b for b in scope.bindings.get(name, ()) if b.how == "assign" and program.statement(b.statement).lineno < before]
        for bound in earlier[-1:]:
            found = _share_of_rank(program, bound.value, scope, program.statement(bound.statement).lineno, depth + 1)
            if found is not None:
                return found
    return None


def _speaks_of_ranks(node: ast.expr | None, what: str) -> bool:
    return node is not None and any(what in words(n) or (what == "world" and {"num", "replicas"} <= words(n)) for n in identifiers(node))


@rule(
    "BH623",
    "averaged-before-the-step",
    "error",
    title="Gradients are averaged over ranks at another micro-batch than the one before the step",
    why="DDP averages what has been added up when a backward runs outside of `no_sync`. Where that is not the last one before the step, what follows it stays on its rank: ranks step differently, and drift apart.",
    remedy="one condition for both: `last = (i + 1) % k == 0`, `no_sync` unless it holds, and the step where it does",
    bad="""
        import contextlib
        import torch

        def epoch(ddp, loader, optimizer, criterion, k):
            for i, (x, y) in enumerate(loader):
                with contextlib.nullcontext() if i % k == 0 else ddp.no_sync():
                    (criterion(ddp(x), y) / k).backward()
                if (i + 1) % k == 0 or i + 1 == len(loader):
                    optimizer.step()
                    optimizer.zero_grad()
        """,
    good="""
        import contextlib
        import torch

        def epoch(ddp, loader, optimizer, criterion, k):
            for i, (x, y) in enumerate(loader):
                last = (i + 1) % k == 0 or i + 1 == len(loader)
                with contextlib.nullcontext() if last else ddp.no_sync():
                    (criterion(ddp(x), y) / k).backward()
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
        """,
)
def averaged_before_the_step(subject: Subject) -> Iterator[Place]:
    """In a loop the step and the backward outside of `no_sync` each come at one place of every k, and not at the same."""
    program = subject.program
    for choice in (*program.nodes.get(ast.IfExp, ()), *program.nodes.get(ast.If, ())) if program.methods_of("no_sync") else ():
        if not isinstance(choice, (ast.IfExp, ast.If)):
            continue
        local, shared = (any(method(c) == "no_sync" for n in _branch(side) for c in calls(n)) for side in (choice.body, choice.orelse))
        loop = next((a for a in program.ancestors(choice) if isinstance(a, (ast.For, ast.While))), None)
        if local is shared or loop is None:
            continue
        averaged = _turn(program, choice.test, program.scope(choice), local)
        for step in (n for n in walk(loop) if isinstance(n, ast.If) and any(method(c) == "step" for s in n.body for c in calls(s))):
            stepped = _turn(program, step.test, program.scope(step), False)
            if averaged and stepped and averaged[:2] == stepped[:2] and averaged[2] != stepped[2]:
                yield choice, f"gradients are averaged where {averaged[3]}, and the step is made where {stepped[3]}"


def _branch(side: ast.expr | list[ast.stmt]) -> list[ast.AST]:
    return list(side) if isinstance(side, list) else [side]


def _turn(program: Program, test: ast.expr, scope: Scope, negated: bool) -> tuple[str, str, int, str] | None:
    """Of `(i + 1) % k == 0` the counter, k, which of the k it is by the counter alone, and the words; of `% k != 0` and the like where that is negated."""
    if isinstance(test, ast.Name):
        bound = scope.bindings.get(test.id, ())
        return _turn(program, bound[0].value, scope, negated) if len(bound) == 1 and bound[0].index is None else None
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if negated else ast.Or):  # … or at the last batch
        return next((turn for value in test.values if (turn := _turn(program, value, scope, negated))), None)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _turn(program, test.operand, scope, not negated)
    right: ast.expr = ast.Constant(0)
    rest: ast.expr = test
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.NotEq if negated else ast.Eq):
        rest, right = test.left, test.comparators[0]
    elif not negated or isinstance(test, ast.Compare):
        return None
    if not isinstance(rest, ast.BinOp) or not isinstance(rest.op, ast.Mod):
        return None
    every, counter, ahead = ast.dump(rest.right), rest.left, 0
    if isinstance(counter, ast.BinOp) and isinstance(counter.op, ast.Add) and isinstance(more := constant(counter.right), int):
        counter, ahead = counter.left, more
    if isinstance(right, ast.BinOp) and isinstance(right.op, ast.Sub) and ast.dump(right.left) == every and isinstance(less := constant(right.right), int):
        place = -less
    elif isinstance(given := constant(right), int):
        place = given
    else:
        return None
    return (counter.id, every, place - ahead, f"{ast.unparse(rest)} == {ast.unparse(right)}") if isinstance(counter, ast.Name) else None
