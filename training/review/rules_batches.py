"""Rules BH243 to BH245: rows that a loop over batches leaves out or pairs with others, and masks that a function is given and does not read."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope, argument
from training.review.syntax import calls, constant, last_name, method, names_read, own_nodes, walk, words

MASKS = {"mask", "masks", "known", "seen", "padding", "censored", "exclude", "excluded"}
FLAGS = {"return", "path", "paths", "use", "with", "has", "is", "num", "size", "mode", "same", "idx", "ids", "id"}
REDUCED = {"softmax", "mean", "sum", "cross_entropy", "scaled_dot_product_attention", "matmul", "bmm", "einsum", "max", "topk", "argsort", "sort", "baddbmm"}


@rule(
    "BH243",
    "batches-leave-rows-out",
    "error",
    title="A loop over batches goes further than a batch is long",
    why="The rows between the end of one batch and the start of the next are never seen: not in training, or not in the score.",
    remedy="step by the length of the slice: `for start in range(0, len(rows), size): rows[start : start + size]`",
    bad="""
        import torch

        def epoch(model, optimizer, loss_fn, x, y, size):
            order = torch.randperm(len(x))
            for start in range(0, len(x), 2 * size):
                rows = order[start : start + size]
                optimizer.zero_grad()
                loss_fn(model(x[rows]), y[rows]).backward()
                optimizer.step()
        """,
    good="""
        import torch

        def epoch(model, optimizer, loss_fn, x, y, size):
            order = torch.randperm(len(x))
            for start in range(0, len(x), size):
                rows = order[start : start + size]
                optimizer.zero_grad()
                loss_fn(model(x[rows]), y[rows]).backward()
                optimizer.step()
        """,
)
def batches_leave_rows_out(subject: Subject) -> Iterator[Place]:
    """`range(a, b, k * size)` with a whole k above 1, or a larger number than `size`, where the loop takes `[start : start + size]` and nothing else by its start."""
    program = subject.program
    for loop in program.nodes[ast.For]:
        match loop:
            case ast.For(target=ast.Name(id=start), iter=ast.Call(func=ast.Name(id="range"), args=[_, _, step])):
                reads = [n for n in walk(loop) if isinstance(n, ast.Name) and n.id == start and isinstance(n.ctx, ast.Load)]
                taken = [size for n in walk(loop) if isinstance(n, ast.Slice) and (size := _length(n, start)) is not None]
                learns = any(method(c) == "backward" for c in calls(loop)) or any(isinstance(c.func, ast.Name) and "model" in c.func.id for c in calls(loop))
                if learns and taken and len(reads) == 2 * len(taken) and all(_times(step, size) for size in taken):
                    yield loop, f"batches are {ast.unparse(taken[0])} rows long and begin {ast.unparse(step)} apart: the rows between are left out"


def _length(part: ast.Slice, start: str) -> ast.expr | None:
    """The length of `start : start + length`."""
    match part:
        case ast.Slice(lower=ast.Name(id=first), upper=ast.BinOp(left=ast.Name(id=again), op=ast.Add(), right=length), step=None) if first == again == start:
            return length
    return None


def _times(step: ast.expr, size: ast.expr) -> bool:
    """Whether a step is a whole multiple of a size, above 1."""
    whole, long = constant(step), constant(size)
    if isinstance(whole, int) and isinstance(long, int):
        return whole > long
    match step:
        case ast.BinOp(left=a, op=ast.Mult(), right=b):
            factors = [constant(f) for f, other in ((a, b), (b, a)) if ast.dump(other) == ast.dump(size)]
            return any(isinstance(f, int) and f > 1 for f in factors)
    return False


@rule(
    "BH244",
    "rows-beside-others",
    "error",
    title="One part of a batch is taken in a drawn order, the other as it stands",
    why="Rows are taken by positions that were drawn, and what belongs to them by the places at which these positions stand: every row meets the label of another.",
    remedy="take both by the same positions: `x[rows], y[rows]`",
    bad="""
        import torch

        def epoch(model, optimizer, loss_fn, x, y, size):
            order = torch.randperm(len(x))
            for start in range(0, len(x), size):
                rows = order[start : start + size]
                optimizer.zero_grad()
                loss_fn(model(x[rows]), y[start : start + size]).backward()
                optimizer.step()
        """,
    good="""
        import torch

        def epoch(model, optimizer, loss_fn, x, y, size):
            order = torch.randperm(len(x))
            for start in range(0, len(x), size):
                rows = order[start : start + size]
                optimizer.zero_grad()
                loss_fn(model(x[rows]), y[rows]).backward()
                optimizer.step()
        """,
)
def rows_beside_others(subject: Subject) -> Iterator[Place]:
    """A loop binds `rows = order[a:b]` of a permutation, takes `x[rows]`, and `y[a:b]` of something that is not put in that order."""
    program = subject.program
    for scope in program.scopes:
        for name, bindings in scope.bindings.items():
            value = bindings[0].value if len(bindings) == 1 and bindings[0].index is None else None
            if not (isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice) and isinstance(value.value, ast.Name)):
                continue
            loop = next((a for a in program.ancestors(value) if isinstance(a, (ast.For, ast.While))), None)
            if loop is None or not _permuted(scope, value.value.id) or not any(method(c) == "backward" for c in calls(loop)):
                continue
            tables = [n for n in walk(loop) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load) and isinstance(n.value, ast.Name)]
            drawn = {n.value.id for n in tables if isinstance(n.slice, ast.Name) and n.slice.id == name and isinstance(n.value, ast.Name)}
            for other in tables:
                plain = isinstance(other.slice, ast.Slice) and ast.dump(other.slice) == ast.dump(value.slice) and other is not value
                table = last_name(other.value)
                ordered = _permuted(scope, table) or any(value.value.id in names_read(b.value) for b in scope.bindings.get(table, ()))
                if plain and drawn and table not in drawn and not ordered:
                    yield other, f"{ast.unparse(other)} are not the rows of {sorted(drawn)[0]}[{name}], which come in the order of {value.value.id}", loop
                    break


def _permuted(scope: Scope, name: str) -> bool:
    """Whether a name is a permutation of numbers."""
    return any(isinstance(b.value, ast.Call) and last_name(b.value.func) in ("randperm", "permutation") for b in scope.bindings.get(name, ()))


@rule(
    "BH245",
    "mask-never-read",
    "warning",
    title="A mask is given to a function that does not read it",
    why="The caller counts on it: padding, pairs that are known already, or rows of no weight are meant to be left out, and they are in the result.",
    remedy="apply it, or take the parameter away",
    bad="""
        import torch

        def loss(scores, labels, mask):
            return ((scores - labels) ** 2).mean()

        def step(model, batch):
            x, y, mask = batch
            return loss(model(x), y, mask)
        """,
    good="""
        import torch

        def loss(scores, labels, mask):
            return ((scores - labels) ** 2 * mask).sum() / mask.sum()

        def step(model, batch):
            x, y, mask = batch
            return loss(model(x), y, mask)
        """,
)
def mask_never_read(subject: Subject) -> Iterator[Place]:
    """A parameter that is called a mask, or known pairs, is read nowhere in its function; a caller gives it, and no other function of that name takes it."""
    program = subject.program
    for scope in program.scopes:
        node = scope.node
        if not isinstance(node, ast.FunctionDef) or (node.decorator_list and any(last_name(d) in ("abstractmethod", "overload") for d in node.decorator_list)):
            continue
        masks = [p for p in scope.parameters if MASKS & words(p) and not FLAGS & words(p) and p != "padding" and not p.startswith("_")]
        if not masks:
            continue
        read = {n.id for n in walk(node) if isinstance(n, ast.Name)}
        unread = [p for p in masks if p not in read]
        if not unread or not _computes(node) or "locals" in read or _one_of_several(program, scope):
            continue
        for name in unread:
            site = next((c for c, _ in program.call_sites[scope] if (given := argument(c, scope, name)) is not None and constant(given) is None), None)
            if site is not None and not isinstance(argument(site, scope, name), ast.Constant):
                yield node, f"{name} is given in line {site.lineno}, and {node.name} does not read it"


def _computes(node: ast.FunctionDef) -> bool:
    """Whether a function sums up, weighs or ranks something that a mask could leave out, and gives back a value."""
    returns = any(isinstance(n, ast.Return) and n.value is not None and not isinstance(n.value, ast.Constant) for n in own_nodes(node))
    over = any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult) for n in own_nodes(node))
    return returns and (over or any(last_name(c.func) in REDUCED or "loss" in words(last_name(c.func)) for c in calls(node)))


def _one_of_several(program: Program, scope: Scope) -> bool:
    """Whether there are others of that name or with that signature, which are called in its place."""
    node = scope.node
    if not isinstance(node, ast.FunctionDef):
        return False
    alike = [
        s for s in program.scopes if isinstance(s.node, ast.FunctionDef) and s is not scope and (s.node.name == node.name or s.parameters == scope.parameters)
    ]
    named = any(isinstance(n, ast.Name) and n.id == node.name and not _is_called(program, n) for n in program.nodes[ast.Name])
    return bool(alike) or named


def _is_called(program: Program, name: ast.Name) -> bool:
    above = program.parents[name]
    return isinstance(above, ast.Call) and above.func is name
