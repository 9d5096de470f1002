"""Rules BH308: losses are collected with their graphs; BH309: the loss is cut off from the
network.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kept import DETACHED, kept_by
from training.review.kinds import is_model
from training.review.loops import last_name_of_key
from training.review.program import Program, Scope
from training.review.syntax import (
    calls,
    dotted,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes,
    receiver,
    walk,
)
from training.review.trace import Event
from training.review.values import reaching

PLAIN = {"float", "int", "len", "tensor", "zeros", "ones"}
KEEPS_CUT = {
    "sum", "mean", "requires_grad_", "to", "cuda", "cpu", "clone", "float", "double", "view",
    "reshape", "squeeze",
}  # fmt: skip

NUMBERS = {
    "np",
    "numpy",
    "statistics",
    "math",
    "float",
    "round",
}  # modules and functions whose results have no graph


@rule("BH308")
def loss_kept_with_graph(subject: Subject) -> Iterator[Place]:
    """What `backward` was called on is added to, or appended to, something that outlives the
    passage of the loop.
    """
    if subject.framework and not subject.trains:
        return
    for trace in subject.traces:
        for region, inside in _regions(trace):
            losses = {e.key for e in inside if e.kind == "backward"} - {""}
            losses |= {key for e in inside if e.kind == "backward" for key in _terms(e, inside)}
            losses |= {
                e.key
                for e in inside
                if isinstance(e.node, ast.Assign) and _sums(e.node.value, e, losses)
            }
            losses |= {
                key
                for e in inside
                if e.kind == "assign" and e.key in losses
                for key in _parts(e, inside)
            }
            losses |= _outputs(subject.program, region, inside)
            for event in inside if losses else ():
                if event.key in losses or not (
                    isinstance(region, (ast.For, ast.While)) or _outlives(event)
                ):
                    continue
                for kept in kept_by(subject.program, event):
                    if (
                        event.frame.key(kept) in losses
                        and not event.within("no_grad", "inference_mode")
                        and not _rebound(event, inside, losses)
                        and not _bounded(event, region, trace)
                    ):
                        yield (
                            event.node,
                            (
                                f"{ast.unparse(kept)} is kept with its graph: memory grows with"
                                " every batch"
                            ),
                            region,
                        )


def _parts(event: Event, inside: list[Event]) -> Iterator[str]:
    """The names that are added up in a loss, where they are computed in the same region, and not as
    plain numbers.
    """
    value = event.node.value if isinstance(event.node, ast.Assign) else None
    pending, names = [value], []
    while pending:
        node = pending.pop()
        if isinstance(node, ast.BinOp):
            pending += [node.left, node.right]
        elif isinstance(node, ast.Name):
            names.append(event.frame.key(node))
    for other in inside:
        made = (
            other.node.value
            if other.kind == "assign" and isinstance(other.node, ast.Assign)
            else None
        )
        computed = isinstance(made, (ast.BinOp, ast.UnaryOp)) or (
            isinstance(made, ast.Call)
            and method(made) not in DETACHED
            and last_name(made.func) not in PLAIN
        )
        if (
            other.key in names
            and computed
            and not any(method(n) in DETACHED for n in walk(made or event.node))
        ):
            yield other.key


def _outputs(program: Program, region: ast.AST, inside: list[Event]) -> set[str]:
    """The names that hold a network's output in the loop itself, unless something is cleared or
    deleted there.
    """
    if not isinstance(region, ast.For) or any(
        isinstance(n, ast.Delete) or method(n) == "clear" for n in walk(region)
    ):
        return set()
    direct = [
        e
        for e in inside
        if e.kind == "assign"
        and isinstance(e.node, ast.Assign)
        and e.loops
        and e.loops[-1].node is region
    ]
    return {
        e.key
        for e in direct
        if isinstance(e.node, ast.Assign)
        and isinstance(e.node.value, ast.Call)
        and is_model(program, e.node.value.func, e.scope)
    }


def _regions(trace: list[Event]) -> Iterator[tuple[ast.AST, list[Event]]]:
    """Loops that hold a backward, and functions that hold one outside of any loop: a step that is
    called elsewhere.
    """
    backwards = [e for e in trace if e.kind == "backward"]
    for loop in dict.fromkeys(e.loops[-1] for e in backwards if e.loops):
        yield loop.node, [e for e in trace if loop in e.loops]
    for scope in dict.fromkeys(e.scope for e in backwards if not e.loops and e.scope.name):
        yield scope.node, [e for e in trace if e.scope is scope]


def _outlives(event: Event) -> bool:
    """Whether what an event appends to is there before and after the function: an attribute of its
    object, or a name of the function around it.
    """
    target, scope = receiver(event.node), event.scope
    if isinstance(target, ast.Attribute):
        return dotted(target).startswith("self.") and scope.name != "__init__"
    around = scope.parent
    return (
        isinstance(target, ast.Name)
        and around is not None
        and bool(around.name)
        and target.id in around.bindings
        and target.id not in scope.bindings
    )


def _terms(backward: Event, inside: list[Event]) -> Iterator[str]:
    """The loop variables over `terms.items()` or `terms.values()`, where the sum of `terms["a"]`
    and `terms["b"]` is propagated.
    """
    node = receiver(backward.node)
    held = (
        {n.value.id for n in nodes_of(node, ast.Subscript) if isinstance(n.value, ast.Name)}
        if isinstance(node, ast.BinOp)
        else set()
    )
    for loop in dict.fromkeys(x for e in inside for x in e.loops):
        head = loop.node.iter if not isinstance(loop.node, ast.While) else None
        if method(head) in ("items", "values") and dotted(receiver(head)) in held:
            target = loop.node.target if not isinstance(loop.node, ast.While) else None
            value = target.elts[-1] if isinstance(target, ast.Tuple) else target
            yield backward.frame.key(value)


def _sums(value: ast.expr, event: Event, losses: set[str]) -> bool:
    """Whether a value is a sum of nothing but losses."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return all(
            event.frame.key(side) in losses or _sums(side, event, losses)
            for side in (value.left, value.right)
        )
    return False


def _rebound(event: Event, inside: list[Event], losses: set[str]) -> bool:
    """Whether the loss became a plain number before it was kept, or the collection starts anew in
    each passage and is small.
    """
    before = inside[: inside.index(event)]
    if any(e.kind == "assign" and e.key == event.key and e is not event for e in inside):
        return True
    for other in before:
        if other.kind == "assign" and other.key in losses and isinstance(other.node, ast.Assign):
            made = other.node.value
            if method(made) in ("item", "detach", "cpu") or (
                isinstance(made, ast.Call) and dotted(made.func).partition(".")[0] in NUMBERS
            ):
                return True
    target = receiver(event.node)
    emptied = {f"{event.frame.key(target)}.{name}" for name in ("pop", "popleft", "clear")}
    if target is not None and any(e.kind == "call" and e.key in emptied for e in inside):
        return True  # a queue
    return bool(
        target is not None
        and any(e.kind == "assign" and last_name_of_key(e.key) == last_name(target) for e in before)
    )


def _bounded(event: Event, region: ast.AST, trace: list[Event]) -> bool:
    """Check that what an event adds to holds the graphs of few batches: it is local and begins
    again for each optimizer step, has a limited length, or is overwritten by an inner loop.
    """
    node, scope = event.node, event.scope
    at = next((i for i, x in enumerate(event.loops) if x.node is region), len(event.loops))
    target = node.target if isinstance(node, ast.AugAssign) else receiver(node)
    if isinstance(node, ast.Assign):
        target = node.targets[0]
    if isinstance(target, ast.Subscript):
        inner = [x.node.target for x in event.loops[at + 1 :] if not isinstance(x.node, ast.While)]
        keys = {n.id for t in inner for n in nodes_of(t, ast.Name)}
        if isinstance(node, ast.Assign) and names_read(target.slice) <= keys:
            return True
        target = target.value
    if not isinstance(target, ast.Name) or target.id not in scope.bindings:
        return False
    made = [b.value for b in scope.bindings[target.id]]
    if any(isinstance(m, ast.Call) and keyword(m, "maxlen") is not None for m in made):
        return True
    if at == len(event.loops) or any(
        event.loops[at] in e.loops and (e.kind in ("step", "zero") or method(e.node) == "step")
        for e in trace
    ):
        return False
    steps = [len(e.loops) for e in trace if e.kind == "step"]
    return any(
        e.kind == "assign"
        and e.key == event.frame.key(target)
        and event.loops[at] not in e.loops
        and (len(e.loops) >= max(steps) if steps else bool(scope.name))
        for e in trace
    )


@rule("BH309")
def loss_cut_from_graph(subject: Subject) -> Iterator[Place]:
    """The last value of what `backward` is called on, in the same function, is a new tensor,
    detached, or was told to require a gradient.
    """
    program = subject.program
    for trace in subject.traces:
        for event in (e for e in trace if e.kind == "backward"):
            target = (
                receiver(event.node)
                if not event.via
                else (event.call.args[0] if event.call.args else None)
            )
            if target is not None and _cut(program, target):
                yield event.node, f"backward on {ast.unparse(target)}: it has no graph"
            if not isinstance(target, ast.Name):
                continue
            for value in reaching(program, target, event.scope):
                made = _returned_tensor(program, value, event.scope)
                cut = _cut(program, value)
                if made is not None:
                    yield made, f"{target.id} is cut off from the network here", event.node
                elif cut:
                    yield value, f"{target.id} is cut off from the network here", event.node
                elif isinstance(value, ast.Call) and _of_detached_scores(
                    program, value, event.scope
                ):
                    yield value, f"{target.id} is computed of scores that are detached", event.node
            for node in own_nodes(event.scope.node):
                forced = (
                    isinstance(node, ast.Call)
                    and method(node) == "requires_grad_"
                    and dotted(receiver(node)) == target.id
                )
                assigned = (
                    isinstance(node, ast.Assign)
                    and dotted(node.targets[0]) == f"{target.id}.requires_grad"
                )
                if (forced or assigned) and not _begins_with(event, target.id):
                    yield (
                        node,
                        (
                            f"{target.id} would have a gradient by itself if it depended on the"
                            " network"
                        ),
                        event.node,
                    )


def _begins_with(event: Event, name: str) -> bool:
    """Whether a function adds terms to what it names: a zero that it begins with may ask for a
    gradient.
    """
    bound = event.scope.bindings.get(name, ())
    return any(
        b.how == "augment" or (isinstance(b.value, ast.BinOp) and name in names_read(b.value))
        for b in bound
    )


def _cut(program: Program, node: ast.expr) -> bool:
    """Whether a value has no path back: detached, or made anew of computed numbers, under
    arithmetic with more of the kind and methods that keep that so.
    """
    if isinstance(node, ast.BinOp):
        sides = [side for side in (node.left, node.right) if not isinstance(side, ast.Constant)]
        return bool(sides) and all(_cut(program, side) for side in sides)
    if isinstance(node, ast.UnaryOp):
        return _cut(program, node.operand)
    if isinstance(node, ast.Attribute):
        return node.attr == "data"
    if not isinstance(node, ast.Call):
        return False
    if program.is_torch(node.func, "tensor", "as_tensor", "FloatTensor", "from_numpy", "Variable"):
        return _recomputed(node) and (
            not program.is_torch(node.func, "as_tensor", "Variable") or _numbers(node.args[0])
        )
    if method(node) in KEEPS_CUT and not program.resolve(node.func):
        return _cut(program, node.func.value) if isinstance(node.func, ast.Attribute) else False
    return method(node) in ("detach", "item") and not node.args


def _numbers(node: ast.expr) -> bool:
    """Whether a value is no tensor with a graph any more."""
    return any(
        (isinstance(n, ast.Attribute) and n.attr == "data")
        or method(n) in ("item", "tolist", "numpy", "detach")
        for n in walk(node)
    )


def _returned_tensor(program: Program, value: ast.expr, scope: Scope) -> ast.Call | None:
    """The `torch.tensor(…)` of computed values that a function of the file returns as the loss,
    perhaps summed.
    """
    function = program.callees_by_name(value, scope) if isinstance(value, ast.Call) else None
    for node in own_nodes(function.node) if function is not None else ():
        made = node.value if isinstance(node, ast.Return) else None
        while (
            isinstance(made, ast.Call)
            and method(made) in ("sum", "mean")
            and not program.resolve(made.func)
        ):
            made = receiver(made)
        if (
            isinstance(made, ast.Call)
            and program.is_torch(made.func, "tensor")
            and _recomputed(made)
        ):
            return made
    return None


def _of_detached_scores(program: Program, loss: ast.Call, scope: Scope) -> bool:
    """Whether one argument of a loss is the detached output of a network, and no other one comes
    from a network.
    """
    values = [
        v
        for a in loss.args
        for v in (reaching(program, a, scope) if isinstance(a, ast.Name) else [a])
    ]
    forwards = [v for v in values if any(is_model(program, c.func, scope) for c in calls(v))]
    if any(
        isinstance(a, ast.Name)
        and a.id not in scope.parameters
        and not reaching(program, a, scope)
        and not _from_loop(a, scope)
        for a in loss.args
    ):
        return False
    return (
        len(forwards) == 1 and isinstance(forwards[0], ast.Call) and method(forwards[0]) == "detach"
    )


def _from_loop(node: ast.Name, scope: Scope) -> bool:
    return all(b.how == "loop" for b in scope.bindings.get(node.id, ()))


def _recomputed(call: ast.Call) -> bool:
    """Whether a new tensor is made of a computed value: a literal one is a start to add to."""
    return (
        bool(call.args)
        and not isinstance(call.args[0], ast.Constant)
        and bool(names_read(call.args[0]))
    )
