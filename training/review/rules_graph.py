"""Rules BH308 and BH309: a loss that keeps its graph too long, or has none."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_model
from training.review.loops import last_name_of_key
from training.review.program import Program, Scope
from training.review.syntax import dotted, last_name, method, names_read, own_nodes, receiver
from training.review.trace import Event
from training.review.values import reaching

DETACHED = {"item", "detach", "float", "numpy", "tolist", "data", "detach_", "int", "len", "isfinite", "isnan", "reduce_mean", "gather", "mean_item"}


@rule(
    "BH308",
    "loss-kept-with-graph",
    "error",
    title="Losses are collected with their graphs",
    why="Each kept loss keeps all activations of its batch: memory grows by a batch each step, until it ends.",
    remedy="keep a number: `total += loss.item()`, or `loss.detach()` to avoid waiting for the device",
    bad="""
        import torch

        def train(model, optimizer, loader, loss_fn):
            total = 0.0
            for x, y in loader:
                optimizer.zero_grad()
                loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
                total += loss
            return total / len(loader)
        """,
    good="""
        import torch

        def train(model, optimizer, loader, loss_fn):
            total = 0.0
            for x, y in loader:
                optimizer.zero_grad()
                loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
                total += loss.detach()
            return total / len(loader)
        """,
)
def loss_kept_with_graph(subject: Subject) -> Iterator[Place]:
    """What `backward` was called on is added to, or appended to, something that outlives the passage of the loop."""
    if subject.framework and not subject.trains:
        return
    for trace in subject.traces:
        for region, inside in _regions(trace):
            losses = {e.key for e in inside if e.kind == "backward"} - {""}
            losses |= {key for e in inside if e.kind == "backward" for key in _terms(e, inside)}
            losses |= {e.key for e in inside if isinstance(e.node, ast.Assign) and _sums(e.node.value, e, losses)}
            for event in inside:
                kept = _keeps(subject.program, event)
                if (
                    kept is not None
                    and (isinstance(region, ast.For | ast.While) or _outlives(event))
                    and event.frame.key(kept) in losses
                    and not event.within("no_grad", "inference_mode")
                    and event.key not in losses
                    and not _rebound(event, inside, losses)
                ):
                    yield event.node, f"{ast.unparse(kept)} is kept with its graph: memory grows with every batch", region


def _regions(trace: list[Event]) -> Iterator[tuple[ast.AST, list[Event]]]:
    """Loops that hold a backward, and functions that hold one outside of any loop: a step that is called elsewhere."""
    backwards = [e for e in trace if e.kind == "backward"]
    for loop in dict.fromkeys(e.loops[-1] for e in backwards if e.loops):
        yield loop.node, [e for e in trace if loop in e.loops]
    for scope in dict.fromkeys(e.scope for e in backwards if not e.loops and e.scope.name):
        yield scope.node, [e for e in trace if e.scope is scope]


def _outlives(event: Event) -> bool:
    """Whether what an event appends to is there before and after the function: an attribute of its object, or a name of the function around it."""
    target, scope = receiver(event.node), event.scope
    if isinstance(target, ast.Attribute):
        return dotted(target).startswith("self.") and scope.name != "__init__"
    around = scope.parent
    return isinstance(target, ast.Name) and around is not None and bool(around.name) and target.id in around.bindings and target.id not in scope.bindings


def _terms(backward: Event, inside: list[Event]) -> Iterator[str]:
    """The loop variables over `terms.items()` or `terms.values()`, where the sum of `terms["a"]` and `terms["b"]` is propagated."""
    node = receiver(backward.node)
    held = {n.value.id for n in ast.walk(node) if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name)} if isinstance(node, ast.BinOp) else set()
    for loop in dict.fromkeys(x for e in inside for x in e.loops):
        head = loop.node.iter if not isinstance(loop.node, ast.While) else None
        if method(head) in ("items", "values") and dotted(receiver(head)) in held:
            target = loop.node.target if not isinstance(loop.node, ast.While) else None
            value = target.elts[-1] if isinstance(target, ast.Tuple) else target
            yield backward.frame.key(value)


def _sums(value: ast.expr, event: Event, losses: set[str]) -> bool:
    """Whether a value is a sum of nothing but losses."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return all(event.frame.key(side) in losses or _sums(side, event, losses) for side in (value.left, value.right))
    return False


def _keeps(program: Program, event: Event) -> ast.expr | None:
    """The loss that an event adds to something with its graph."""
    node = event.node
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return _bare(node.value)
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add) and len(node.targets) == 1:
        left, right = node.value.left, node.value.right
        if dotted(left) and dotted(left) == dotted(node.targets[0]):
            return _bare(right)
        return _bare(left) if dotted(right) and dotted(right) == dotted(node.targets[0]) else None
    if isinstance(node, ast.Call) and method(node) == "append" and len(node.args) == 1:
        return _bare(node.args[0])
    if isinstance(node, ast.Call) and method(node) in ("update", "add") and node.args and _accumulates(program, node, event.scope):
        return _bare(node.args[0])
    return None


def _bare(node: ast.expr) -> ast.expr | None:
    """The value that still has its graph, under arithmetic alone."""
    if isinstance(node, ast.BinOp):
        return _bare(node.left) or _bare(node.right)
    if isinstance(node, ast.Call) and method(node) in ("cpu", "mean", "sum", "clone", "to"):
        return _bare(node.func.value) if isinstance(node.func, ast.Attribute) else None
    return node if isinstance(node, ast.Name | ast.Attribute) and last_name(node) not in ("data",) else None


def _accumulates(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether the method, in this file, adds its first argument to an attribute without detaching it."""
    for function in program.callees(call, scope):
        if len(function.parameters) < 2:
            continue
        name = function.parameters[1]
        detached = any(isinstance(n, ast.Attribute) and n.attr in DETACHED and names_read(n) == {name} for n in own_nodes(function.node)) or any(
            isinstance(n, ast.Call) and last_name(n.func) in DETACHED and name in names_read(n) for n in own_nodes(function.node)
        )
        adds = any(isinstance(n, ast.AugAssign) and name in names_read(n.value) for n in own_nodes(function.node))
        return adds and not detached
    return False


def _rebound(event: Event, inside: list[Event], losses: set[str]) -> bool:
    """Whether the loss became a plain number before it was kept, or the collection starts anew in each passage and is small."""
    before = inside[: inside.index(event)]
    if any(e.kind == "assign" and e.key == event.key and e is not event for e in inside):
        return True
    for other in before:
        if other.kind == "assign" and other.key in losses and isinstance(other.node, ast.Assign) and method(other.node.value) in ("item", "detach", "cpu"):
            return True
    target = receiver(event.node)
    return bool(target is not None and any(e.kind == "assign" and last_name_of_key(e.key) == last_name(target) for e in before))


@rule(
    "BH309",
    "loss-cut-from-graph",
    "error",
    title="The loss is cut off from the network",
    why="A loss that is rebuilt with `torch.tensor(...)`, detached, or given `requires_grad` by hand has no path back: `backward` runs without an error and no weight changes.",
    remedy="call `backward` on what the loss function returned",
    bad="""
        import torch

        def train(model, optimizer, loader, loss_fn):
            for x, y in loader:
                optimizer.zero_grad()
                loss = torch.tensor(loss_fn(model(x), y).item(), requires_grad=True)
                loss.backward()
                optimizer.step()
        """,
    good="""
        import torch

        def train(model, optimizer, loader, loss_fn):
            for x, y in loader:
                optimizer.zero_grad()
                loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
        """,
)
def loss_cut_from_graph(subject: Subject) -> Iterator[Place]:
    """The last value of what `backward` is called on, in the same function, is a new tensor, detached, or was told to require a gradient."""
    program = subject.program
    for trace in subject.traces:
        for event in (e for e in trace if e.kind == "backward"):
            target = receiver(event.node) if not event.via else (event.call.args[0] if event.call.args else None)
            if isinstance(target, ast.Call) and (method(target) in ("detach", "item") or (program.is_torch(target.func, "tensor") and _recomputed(target))):
                yield event.node, f"backward on {ast.unparse(target)}: it has no graph"
            if not isinstance(target, ast.Name):
                continue
            for value in reaching(program, target, event.scope):
                made = _returned_tensor(program, value, event.scope)
                cut = isinstance(value, ast.Call) and (method(value) == "detach" or (program.is_torch(value.func, "tensor") and _recomputed(value)))
                if made is not None:
                    yield made, f"{target.id} is cut off from the network here", event.node
                elif cut:
                    yield value, f"{target.id} is cut off from the network here", event.node
                elif isinstance(value, ast.Call) and _of_detached_scores(program, value, event.scope):
                    yield value, f"{target.id} is computed of scores that are detached", event.node
            for node in own_nodes(event.scope.node):
                forced = isinstance(node, ast.Call) and method(node) == "requires_grad_" and dotted(receiver(node)) == target.id
                assigned = isinstance(node, ast.Assign) and dotted(node.targets[0]) == f"{target.id}.requires_grad"
                if forced or assigned:
                    yield node, f"{target.id} would have a gradient by itself if it depended on the network", event.node


def _returned_tensor(program: Program, value: ast.expr, scope: Scope) -> ast.Call | None:
    """The `torch.tensor(…)` of computed values that a function of the file returns as the loss, perhaps summed."""
    function = program.callees_by_name(value, scope) if isinstance(value, ast.Call) else None
    for node in own_nodes(function.node) if function is not None else ():
        made = node.value if isinstance(node, ast.Return) else None
        while isinstance(made, ast.Call) and method(made) in ("sum", "mean") and not program.resolve(made.func):
            made = receiver(made)
        if isinstance(made, ast.Call) and program.is_torch(made.func, "tensor") and _recomputed(made):
            return made
    return None


def _of_detached_scores(program: Program, loss: ast.Call, scope: Scope) -> bool:
    """Whether one argument of a loss is the detached output of a network, and no other one comes from a network."""
    values = [v for a in loss.args for v in (reaching(program, a, scope) if isinstance(a, ast.Name) else [a])]
    forwards = [v for v in values if any(isinstance(c, ast.Call) and is_model(program, c.func, scope) for c in ast.walk(v))]
    if any(isinstance(a, ast.Name) and a.id not in scope.parameters and not reaching(program, a, scope) and not _from_loop(a, scope) for a in loss.args):
        return False
    return len(forwards) == 1 and isinstance(forwards[0], ast.Call) and method(forwards[0]) == "detach"


def _from_loop(node: ast.Name, scope: Scope) -> bool:
    return all(b.how == "loop" for b in scope.bindings.get(node.id, ()))


def _recomputed(call: ast.Call) -> bool:
    """Whether a new tensor is made of a computed value: a literal one is a start to add to."""
    return bool(call.args) and not isinstance(call.args[0], ast.Constant) and bool(names_read(call.args[0]))
