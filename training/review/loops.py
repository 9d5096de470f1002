"""Optimizer steps with the loop around them: backwards, gradient clears, and their places."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from training.review.findings import Subject
from training.review.program import Program, Scope
from training.review.roles import is_optimizer_origin
from training.review.syntax import (
    FUNCTIONS,
    LOOPS,
    dotted,
    last_name,
    names_read,
    nodes_of,
    once,
    own_nodes_of,
    receiver,
    walk,
    words,
)
from training.review.trace import Event, Loop


class Placed(NamedTuple):
    """An event and its index in the trace."""

    position: int
    event: Event


class Steps(NamedTuple):
    """One `step`, the innermost loop that holds it and a backward (or None), and the loop's events.

    `clears` are those that can concern this optimizer; `clears_outside` are in no such loop.
    `again`: no loop is in sight, and the code is one step of an optimizer that outlives it, such as
    `train_step(self, batch)`. Its caller has the loop.
    """

    step: Event
    position: int
    loop: Loop | None
    inside: list[Event]
    backwards: list[Placed]
    clears: list[Placed]
    clears_outside: list[Event]
    trace: list[Event]
    again: bool = False

    @property
    def around(self) -> ast.AST:
        """Return the repeated code: the loop, or the function."""
        return self.loop.node if self.loop is not None else _root(self.step).node

    @property
    def name(self) -> str:
        """Return the optimizer's name in the code."""
        return self.step.key.rpartition(":")[2] or "optimizer"


STEPPING = {
    "step",
    "update",
    "batch",
    "iteration",
    "optimize",
    "optimise",
    "learn",
    "backward",
}  # in names of functions that are one step


@once
def step_groups(subject: Subject) -> tuple[Steps, ...]:
    """Return every optimizer step of every trace."""
    steps = [
        (trace, position)
        for trace in subject.traces
        for position, event in enumerate(trace)
        if event.kind == "step"
    ]
    return tuple(
        _around(subject.program, trace, position, trace[position]) for trace, position in steps
    )


def _around(program: Program, trace: list[Event], position: int, step: Event) -> Steps:
    loops = [x for x in step.loops if _bound(x) != last_name_of_key(step.key)]
    backward = [e for e in trace if e.kind == "backward"]
    loop = next((x for x in reversed(loops) if any(x in e.loops for e in backward)), None)
    if loop is None and loops and not backward:
        loop = loops[-1]
    others = {
        e.key
        for e in trace
        if e.kind == "step" and last_name_of_key(e.key) != last_name_of_key(step.key)
    } - {"*", ""}
    clears = [
        Placed(i, e)
        for i, e in enumerate(trace)
        if not (e.kind == "zero" and e.key in others) and concerns(program, e, step)
    ]
    inside = [e for e in trace if loop is None or loop in e.loops]
    return Steps(
        step,
        position,
        loop,
        inside,
        [
            Placed(i, e)
            for i, e in enumerate(trace)
            if e.kind == "backward" and (loop is None or loop in e.loops)
        ],
        [c for c in clears if loop is None or loop in c.event.loops],
        [c.event for c in clears if loop is not None and loop not in c.event.loops],
        trace,
        loop is None and is_called_again(program, step),
    )


def _root(event: Event) -> Scope:
    """Return the function at which the trace of an event began."""
    frame = event.frame
    while frame.caller is not None:
        frame = frame.caller
    return frame.scope


def is_called_again(program: Program, event: Event) -> bool:
    """Return whether an event without a loop is in a function that is called again and again.

    Nobody in the file calls that function; the optimizer belongs to its object or is an argument.
    """
    function, owner = _root(event), event.key.partition(".")[0]
    if (
        event.loops
        or not isinstance(function.node, FUNCTIONS)
        or program.call_sites[function]
        or {"test", "tests", "main", "run"} & words(function.name)
    ):
        return False
    if function.name == "__init__" or any(
        "test" in words(last_name(b)) for b in getattr(function.owner, "bases", ())
    ):
        return False
    held = owner == "self" and "." in event.key and event.key.count(".") == 1
    made = any(
        last_name(n) == event.key.rpartition(".")[2]
        for s in own_nodes_of(function.node, ast.Assign)
        for n in s.targets
    )
    return not made and (
        held
        or (
            owner in function.parameters
            and event.key == owner
            and bool(STEPPING & words(function.name))
        )
    )


def last_name_of_key(key: str) -> str:
    """Return the last identifier of an event's key."""
    return key.rpartition(":")[2].rpartition(".")[2].partition("[")[0]


def _bound(loop: Loop) -> str:
    return (
        last_name(loop.node.target)
        if not isinstance(loop.node, ast.While) and isinstance(loop.node.target, ast.Name)
        else ""
    )


def concerns(program: Program, event: Event, step: Event) -> bool:
    """Return whether an event may clear the gradients that a step uses."""
    if event.kind == "call" and isinstance(event.node, ast.Call):
        name = last_name(event.node.func)
        return "zero" in name and "grad" in name
    if event.kind != "zero":
        return (
            any(k.arg == "zero_grad" for k in event.node.keywords)
            if isinstance(event.node, ast.Call)
            else False
        )
    if event.key in ("*", step.key) or not event.key:
        return True
    if last_name_of_key(event.key) == last_name_of_key(step.key):
        return not _other_element(event.key, step.key)
    target = event.call.func.value if isinstance(event.call.func, ast.Attribute) else None
    if isinstance(target, ast.Name) and any(
        b.how == "loop" for b in event.scope.bindings.get(target.id, ())
    ):
        among = _elements(event, target)
        return not among or step.key in among
    if _of_another_network(program, target, event, step):
        return False
    return not any(
        o.name.startswith("torch.optim.") for o in program.origins(target, event.scope)
    ) and "opt" not in last_name_of_key(event.key)


def _elements(event: Event, target: ast.Name) -> set[str]:
    """Return the optimizers of a loop such as `for o in (first, second):`; empty if not listed."""
    heads = [b.value for b in event.scope.bindings.get(target.id, ())]
    listed = (
        heads[0].elts if len(heads) == 1 and isinstance(heads[0], (ast.Tuple, ast.List)) else []
    )
    keys = {event.frame.key(e) for e in listed}
    return set() if "" in keys else keys


def _other_element(key: str, other: str) -> bool:
    """Return whether two keys differ by a literal index alone: `opts['gen']` and `opts['disc']`."""
    found = [re.fullmatch(r"(.*)\[('\w+'|-?\d+)\]", k) for k in (key, other)]
    return (
        all(found)
        and len({m.group(1) for m in found if m}) == 1
        and len({m.group(2) for m in found if m}) == 2
    )


def is_epoch_loop(loop: Loop) -> bool:
    """Return whether a loop counts epochs: its head says so, or it iterates over a loader."""
    if (
        isinstance(loop.node, ast.For)
        and last_name(getattr(loop.node.iter, "func", None)) == "range"
        and _goes_over_loader(loop.node.body)
    ):
        return True
    head = (
        loop.node.test
        if isinstance(loop.node, ast.While)
        else ast.Tuple([loop.node.target, loop.node.iter], ast.Load())
    )
    named = [words(last_name(n)) for n in walk(head) if isinstance(n, (ast.Name, ast.Attribute))]
    return any(
        "epoch" in w for said in named if "per" not in said for w in said
    )  # `range(steps_per_epoch)` counts batches


def _goes_over_loader(body: list[ast.stmt]) -> bool:
    """Return whether one of the statements is a loop over batches."""
    return any(isinstance(s, ast.For) and names_loader(s.iter) for s in body)


def is_loader_loop(loop: Loop) -> bool:
    """Return whether a loop iterates over batches, by the names in its head."""
    return not isinstance(loop.node, ast.While) and names_loader(loop.node.iter)


def innermost_loop(program: Program, node: ast.AST) -> ast.AST | None:
    """Return the nearest loop around a node, comprehensions left out."""
    return next((a for a in program.ancestors(node) if isinstance(a, LOOPS)), None)


def goes_over_again(outer: Loop, inner: Loop) -> bool:
    """Return whether the outer loop only counts and the inner one iterates over the same things.

    Such an outer loop counts epochs, by whatever name.
    """
    if (
        not isinstance(inner.node, ast.For)
        or isinstance(inner.node.iter, ast.Call)
        or not isinstance(outer.node, ast.For)
        or outer.scope is not inner.scope
    ):
        return False
    counts = isinstance(outer.node.iter, ast.Call) and last_name(outer.node.iter.func) == "range"
    changed = {n.id for n in nodes_of(outer.node, ast.Name) if isinstance(n.ctx, ast.Store)}
    return counts and not changed & names_read(inner.node.iter)


def counts_passages(program: Program, length: ast.expr | None) -> bool:
    """Return whether a number is the length of a loop that iterates over a loader each time."""
    counted = [n.iter for n in program.nodes[ast.For] if _goes_over_loader(n.body)]
    heads = {
        dotted(c.args[0])
        for c in counted
        if isinstance(c, ast.Call) and last_name(c.func) == "range" and len(c.args) == 1
    }
    return dotted(length) in heads - {""}


def _of_another_network(
    program: Program, cleared: ast.expr | None, event: Event, step: Event
) -> bool:
    """Return whether the cleared network has no parameter in this optimizer, as far as visible."""
    optimizer = step.call.args[0] if step.via == "scaler" else receiver(step.node)
    makers = [
        o for o in program.origins(optimizer, step.scope) if is_optimizer_origin(o) and o.call.args
    ]
    held = {
        o.call for made in makers for o in program.origins(receiver(made.call.args[0]), made.scope)
    }
    networks = {o.call for o in program.origins(cleared, event.scope)}
    return (
        bool(held and networks)
        and not held & networks
        and not any(n.args or n.keywords for n in networks)
    )


def names_loader(head: ast.expr) -> bool:
    """Return whether the head of a loop names a loader."""
    heads = {
        w
        for n in walk(head)
        if isinstance(n, (ast.Name, ast.Attribute))
        for w in words(last_name(n))
    }
    return bool(
        heads
        & {
            "loader",
            "dataloader",
            "batches",
            "dl",
            "trainloader",
            "testloader",
            "valloader",
            "iterator",
            "batch",
        }
    )
