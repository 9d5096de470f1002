"""Evaluations that no name gives away: what a loop does with the outputs of a network tells that it
measures or collects them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Subject
from training.review.kinds import is_frozen_name, looks_held_out
from training.review.program import Program, Scope
from training.review.syntax import (
    calls,
    dotted,
    identifiers,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes_of,
    receiver,
    walk,
)
from training.review.trace import Event, Loop

GRADIENTS = {"set_grad_enabled", "autograd", "enable_grad", "requires_grad", "requires_grad_"}
MODED = ("Dropout", "BatchNorm", "InstanceNorm")


def loops_without_learning(subject: Subject) -> Iterator[tuple[Loop, list[Event], list[Event]]]:
    """Loops that run a network which learns elsewhere, or may, and compute no gradient: the loop,
    its forward passes, and the trace.
    """
    for trace in subject.traces if not subject.framework else ():
        for loop in dict.fromkeys(e.loops[-1] for e in trace if e.loops):
            inside = [e for e in trace if loop in e.loops]
            learns = any(
                e.kind in ("backward", "step", "clip")
                or (e.kind == "call" and e.key.endswith(("autograd.grad", ".update", ".learn")))
                for e in inside
            )
            forwards = [e for e in inside if e.kind == "forward" and not is_frozen_name(e.key)]
            if forwards and not learns and not isinstance(loop.node, ast.While):
                yield loop, forwards, trace


def never_in_eval_mode(subject: Subject) -> Iterator[tuple[Loop, Event]]:
    """Loops over pairs under `no_grad` whose outputs are used, in a file with layers that have
    modes, a training loop, and nothing that sets eval mode.
    """
    program = subject.program
    if (
        not subject.trains
        or "training" in program.identifiers
        or _sets_mode(program)
        or not any(n.startswith(MODED) for n in program.identifiers)
    ):
        return
    learning = {
        e.loops[-1] for trace in subject.traces for e in trace if e.kind == "backward" and e.loops
    }
    trained = {
        last_name(e.call.func)
        for trace in subject.traces
        for e in trace
        if e.kind == "forward" and learning & set(e.loops)
    }
    for loop, forwards, _ in loops_without_learning(subject):
        first = forwards[0]
        name = last_name(first.call.func)
        known = name in trained or name in first.scope.parameters
        quiet = first.within("no_grad", "inference_mode") and isinstance(
            getattr(loop.node, "target", None), ast.Tuple
        )
        counts = isinstance(loop.node, (ast.For, ast.comprehension)) and last_name(
            getattr(loop.node.iter, "func", None)
        ) in ("range", "zip")
        if (
            known
            and quiet
            and not counts
            and not isinstance(program.parents[first.node], ast.Expr)
            and not _on_purpose(program, loop.scope)
        ):
            yield loop, first


def switching_never_off(subject: Subject) -> Iterator[tuple[ast.Call, ast.ClassDef]]:
    """Networks of the file that look at `self.training`, measured under `no_grad` on held-out rows,
    also by a helper, where nothing ever sets eval mode.
    """
    program = subject.program
    if "training" not in program.identifiers or _sets_mode(program):
        return
    stored = any(
        n.attr == "training" and isinstance(n.ctx, ast.Store) for n in program.nodes[ast.Attribute]
    )
    switching = {
        o
        for o in program.module_classes
        if any(_looks_at_mode(m.node) for m in program.methods[o].values())
    }
    if not subject.trains or subject.framework or stored or not switching:
        return
    for call in program.all_calls:
        given = [*call.args, *(k.value for k in call.keywords)]
        scope = program.scope(call)
        if (
            scope.owner in switching
            or not _quiet(program, call, scope)
            or not any(looks_held_out(n) for a in given for n in names_read(a))
        ):
            continue
        for network in (call.func, *given):
            owner = next(
                (
                    program.classes[o.name]
                    for o in program.origins(network, scope)
                    if o.name in program.classes
                ),
                None,
            )
            if owner in switching and not is_frozen_name(last_name(network)):
                yield call, owner
                break


def _sets_mode(program: Program) -> bool:
    """Whether anything is put into eval mode, or into a mode that is computed."""
    return bool(program.methods_of("eval")) or any(
        c.args or c.keywords for c in program.methods_of("train")
    )


def _looks_at_mode(node: ast.AST) -> bool:
    return any(
        n.attr == "training" and dotted(n) == "self.training" for n in nodes_of(node, ast.Attribute)
    )


def _quiet(program: Program, call: ast.Call, scope: Scope) -> bool:
    decorators = scope.node.decorator_list if not isinstance(scope.node, ast.Module) else []
    blocks = [
        i.context_expr for a in program.ancestors(call) if isinstance(a, ast.With) for i in a.items
    ]
    return any({"no_grad", "inference_mode"} & identifiers(d) for d in (*decorators, *blocks))


def _on_purpose(program: Program, scope: Scope) -> bool:
    """Whether a function that does not train puts something into train mode: dropout is wanted
    there, or statistics are measured.
    """
    here = [c for c in program.all_calls if program.scope(c) is scope]
    return any(method(c) == "train" for c in here) and not any(
        method(c) == "backward" for c in here
    )


def collected_with_gradients(subject: Subject) -> Iterator[tuple[Loop, Event]]:
    """Loops that collect the outputs of a network which the same function has put into eval mode,
    with gradients on.
    """
    program = subject.program
    if GRADIENTS & program.identifiers:
        return
    for loop, forwards, _ in loops_without_learning(subject):
        first, scope = forwards[0], loop.scope
        here = own_nodes_of(scope.node, ast.Call)
        network = dotted(first.call.func)
        modes = [
            c
            for c in here
            if method(c) in ("eval", "train")
            and dotted(receiver(c)) == network
            and c.lineno <= first.call.lineno
        ]
        last = max(modes, key=lambda c: c.lineno, default=None)
        if (
            first.scope is not scope
            or not scope.name
            or method(last) != "eval"
            or any(method(c) == "backward" for c in here)
        ):
            continue
        quiet = any(
            "grad" in name or name.endswith("inference_mode") or not name.startswith("torch.")
            for name, _ in first.contexts
        )
        if not quiet and _collects(program, first.call, loop):
            yield loop, first


def _collects(program: Program, call: ast.Call, loop: Loop) -> bool:
    """Whether the output itself, reshaped or moved at most, is an element of a list that outlives
    the passage of the loop.
    """
    if isinstance(loop.node, ast.comprehension):
        return True
    names = {dotted(t) for t in getattr(program.statement(call), "targets", ())} - {""}
    appended = [
        c.args[0]
        for c in calls(loop.node)
        if method(c) in ("append", "extend") and len(c.args) == 1
    ]
    free = [
        a
        for a in appended
        if not any(method(n) in ("detach", "item", "tolist", "detach_") for n in walk(a))
    ]
    cut = any(method(a) == "detach" for a in program.ancestors(call) if isinstance(a, ast.Call))
    return not cut and any(
        any(n is call or (isinstance(n, ast.Name) and n.id in names) for n in walk(a)) for a in free
    )
