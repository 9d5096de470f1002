"""Rules BH201: to BH203: train and eval modes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import HELD_OUT, is_frozen_name, looks_held_out
from training.review.loops import last_name_of_key
from training.review.program import Program, Scope
from training.review.syntax import (
    calls,
    dotted,
    identifiers,
    is_false,
    last_name,
    method,
    nodes_of,
    once,
    own_nodes_of,
    receiver,
    words,
)
from training.review.trace import Event, Loop
from training.review.unnamed import (
    collected_with_gradients,
    never_in_eval_mode,
    switching_never_off,
)

QUIET = {"no_grad", "inference_mode", "set_grad_enabled", "eval_mode"}


@once
def evaluations(subject: Subject) -> tuple[tuple[Loop, list[Event], list[Event]], ...]:
    """Loops over validation or test batches: the loop, the forward passes in it, and the trace.

    A loop with a backward is none; nor is one in a class whose base runs the loop.
    """
    return () if subject.framework else tuple(_evaluations(subject))


def _evaluations(subject: Subject) -> Iterator[tuple[Loop, list[Event], list[Event]]]:
    for trace in subject.traces:
        loops = list(dict.fromkeys(e.loops[-1] for e in trace if e.loops))
        for loop in loops:
            inside = [e for e in trace if loop in e.loops]
            own = (
                loop.scope.owner is not None
                and loop.scope.name == "forward"
                and subject.program.is_module(loop.scope.owner)
            )  # a pass of the network
            if (
                own
                or any(
                    e.kind in ("backward", "step")
                    or (e.kind == "call" and e.key.endswith("autograd.grad"))
                    for e in inside
                )
                or not _over_held_out(loop, inside)
            ):
                continue
            forwards = [e for e in inside if e.kind == "forward" and not is_frozen_name(e.key)]
            if forwards:
                yield loop, forwards, trace


def _over_held_out(loop: Loop, inside: list[Event]) -> bool:
    """Whether a loop goes over held-out batches, by the names in its head, those its caller passes
    for them, or that of its function.
    """
    if isinstance(loop.node, ast.While):
        return False
    frame = next((e.frame for e in inside if e.scope is loop.scope), None)
    passed = (
        {last_name_of_key(frame.key(n)) for n in nodes_of(loop.node.iter, ast.Name)}
        if frame is not None
        else set()
    )
    heads = identifiers(loop.node.iter) | passed
    if any(looks_held_out(n) for n in heads):
        return True
    owner = loop.scope.owner.name if loop.scope.owner is not None else ""
    spoken = words(loop.scope.name) | words(owner)  # EvalCallback.on_epoch_end
    named = bool((HELD_OUT | {"validate", "evaluate"}) & spoken) and not {"train", "fit"} & spoken
    return named and any(
        w in ("loader", "dataloader", "batches", "dl", "data", "dataset", "iterator")
        for n in heads
        for w in words(n)
    )


@rule("BH201")
def eval_mode_missing(subject: Subject) -> Iterator[Place]:
    """Before a loop over held-out batches the last change of mode is not `eval`; or nothing sets
    it, and the network is measured under `no_grad`.
    """
    for loop, forwards, trace in evaluations(subject):
        first = trace.index(forwards[0])
        modes = [e for e in trace[:first] if e.kind in ("eval", "train")]
        if not modes and _called_elsewhere(subject.program, loop.scope, trace):
            continue
        if modes and (
            modes[-1].kind == "eval" or modes[-1].via or not _same_network(modes[-1], forwards[0])
        ):
            continue
        if any(
            name.endswith(("eval_mode", "evaluating", "eval")) for name, _ in forwards[0].contexts
        ) or "eval" in _unseen_calls(trace[:first]):
            continue
        yield (
            forwards[0].node,
            f"{forwards[0].key.rpartition(':')[2]} is not in eval mode in this evaluation",
            loop.scope.node if loop.scope.name else loop.node,
        )
    for loop, forward in never_in_eval_mode(subject):
        yield (
            forward.node,
            (
                f"{dotted(forward.call.func)} is measured here, and nothing in the file puts it"
                " into eval mode"
            ),
            loop.node,
        )
    for call, owner in switching_never_off(subject):
        yield (
            call,
            (
                f"{owner.name} looks at self.training, is measured here, and nothing in the file"
                " puts it into eval mode"
            ),
        )


def _same_network(mode: Event, forward: Event) -> bool:
    return (
        mode.key == forward.key
        or mode.key.startswith(forward.key)
        or forward.key.startswith(mode.key)
        or last_name_of_key(mode.key) in ("self", "model")
    )


def _called_elsewhere(program: Program, scope: Scope, trace: list[Event]) -> bool:
    """Whether the modes may be set by a caller in another file: nobody calls it here, and it does
    not train.
    """
    if program.call_sites[scope] or any(e.kind == "backward" for e in trace):
        return False
    return (
        scope.name == ""
        or (scope.owner is not None and "eval" in identifiers(scope.owner))
        or any(m in program.identifiers for m in ("eval_mode", "set_mode"))
    )


def _unseen_calls(events: list[Event]) -> set[str]:
    """Words of the helpers that run before and whose body is not in the file."""
    return {w for e in events if e.kind == "call" for w in words(last_name_of_key(e.key))} & {
        "eval"
    }


@rule("BH202")
def no_grad_missing(subject: Subject) -> Iterator[Place]:
    """A forward pass in a loop over held-out batches, or one that collects what a network in eval
    mode gives, with gradients on.
    """
    program = subject.program
    if {"set_grad_enabled", "autograd", "enable_grad"} & program.identifiers:
        return
    for loop, forwards, _ in evaluations(subject):
        first = forwards[0]
        quiet = any(
            name.rpartition(".")[2] in QUIET or (not name.startswith("torch.") and "grad" in name)
            for name, _ in first.contexts
        )
        if not quiet and not _frozen_before(loop) and (loop.scope.name or subject.trains):
            yield (
                first.node,
                "gradients are on in this evaluation",
                loop.scope.node if loop.scope.name else loop.node,
            )
    for loop, forward in collected_with_gradients(subject):
        yield (
            forward.node,
            (
                f"{dotted(forward.call.func)} is in eval mode, and its outputs are collected with"
                " their graphs"
            ),
            loop.scope.node,
        )


def _frozen_before(loop: Loop) -> bool:
    """Whether the same function has set every parameter free of gradients: `for p in
    model.parameters(): p.requires_grad = False`.
    """
    for node in own_nodes_of(loop.scope.node, ast.For):
        if method(node.iter) == "parameters" and node.lineno < getattr(loop.node, "lineno", 0):
            bare = [
                s
                for s in node.body
                if isinstance(s, ast.Assign)
                and isinstance(s.targets[0], ast.Attribute)
                and s.targets[0].attr == "requires_grad"
            ]
            called = [
                s
                for s in node.body
                if isinstance(s, ast.Expr) and method(s.value) == "requires_grad_"
            ]
            if any(is_false(s.value) for s in bare) or any(
                is_false(s.value.args[0])
                for s in called
                if isinstance(s.value, ast.Call) and s.value.args
            ):
                return True
    return False


@rule("BH203")
def train_mode_not_restored(subject: Subject) -> Iterator[Place]:
    """In a loop that trains, the network that learns is put into eval mode, and nothing puts it
    back within the loop.
    """
    for trace in subject.traces:
        for event in trace:
            if event.kind != "eval" or not event.loops or is_frozen_name(event.key):
                continue
            for loop in event.loops:
                inside = [e for e in trace if loop in e.loops]
                if (
                    not any(e.kind == "backward" for e in inside)
                    or any(e.kind == "train" for e in inside)
                    or _sets_mode(subject.program, inside)
                ):
                    continue
                if _made_in_each_round(subject.program, event, loop):
                    continue
                if _learns(subject.program, event, inside, trace) and not event.within("eval_mode"):
                    yield (
                        event.node,
                        (
                            f"{event.key.rpartition(':')[2]} is put into eval mode in the training"
                            " loop, and never back into train mode"
                        ),
                        loop.node,
                    )
                    break


def _made_in_each_round(program: Program, mode: Event, loop: Loop) -> bool:
    """Whether the network that changes its mode is made by a call within the loop, so that the next
    round has another one.
    """
    network = receiver(mode.node)
    made = (
        mode.scope.bindings.get(network.id, [])
        if isinstance(network, ast.Name) and network.id not in mode.scope.parameters
        else []
    )
    called = [
        b
        for b in made
        if b.how == "assign" and isinstance(b.value, ast.Call) and not _is_wrapped(b.value, network)
    ]
    return (
        bool(made)
        and len(called) == len(made)
        and all(
            loop.scope is not mode.scope or loop.node in program.ancestors(b.statement)
            for b in made
        )
    )


def _is_wrapped(call: ast.Call, network: ast.expr | None) -> bool:
    """Whether a call is given the network itself, as `net = compile(net)`."""
    return (
        any(ast.dump(a) == ast.dump(network) for a in call.args) if network is not None else False
    )


def _sets_mode(program: Program, events: list[Event]) -> bool:
    """Whether a call that is no plain `model.train()`, and whose body is not in sight, may set the
    mode.
    """
    unseen = [
        e
        for e in events
        if e.kind == "call"
        and isinstance(e.node, ast.Call)
        and not program.callees(e.node, e.scope)
    ]
    return any(
        last_name(e.call.func) in ("train", "set_mode", "set_train", "train_mode") for e in unseen
    )


def _learns(program: Program, mode: Event, inside: list[Event], trace: list[Event]) -> bool:
    """Whether the network, perhaps in its wrapper, is called with gradients in the loop, or was in
    train mode before.
    """
    made = _made(program, receiver(mode.node), mode.scope)
    forwards = [e for e in inside if e.kind == "forward" and not e.within(*QUIET)]
    if any(e.key == mode.key or made & _made(program, e.call.func, e.scope) for e in forwards):
        return True
    return any(e.kind == "train" and e.key == mode.key for e in trace)


def _made(program: Program, network: ast.expr | None, scope: Scope) -> set[ast.Call]:
    """The calls that made a network; none where it is a copy of another one."""
    made = program.origins(network, scope)
    return set() if any(o.last == "deepcopy" for o in made) else {o.call for o in made}


@rule("BH208")
def frozen_network_with_gradients(subject: Subject) -> Iterator[Place]:
    """In a loop that trains, a copy or a teacher is called on the batch itself with gradients on,
    and nothing switches them off or cuts its output.
    """
    program = subject.program
    if {
        "requires_grad_",
        "detach",
        "detach_",
        "stop_gradient",
    } & program.called_names or "requires_grad" in program.identifiers:
        return
    for trace in subject.traces:
        learning = {e.loops[-1] for e in trace if e.kind == "backward" and e.loops}
        for event in trace if learning else ():
            if (
                not isinstance(event.node, ast.Call)
                or event.loops[-1:] == ()
                or event.loops[-1] not in learning
                or event.within(*QUIET)
            ):
                continue
            if (
                _is_copy(program, event)
                and not _in_optimizer(program, event.node)
                and _of_the_batch(event)
            ):
                yield (
                    event.node,
                    f"{last_name(event.node.func)} does not learn, and is run with gradients on",
                    event.loops[-1].node,
                )


def _is_copy(program: Program, event: Event) -> bool:
    """Whether a network that is called is a deep copy, or called a teacher or target network, and
    no method of it.
    """
    function = event.call.func
    if (
        not isinstance(function, (ast.Name, ast.Attribute))
        or program.resolve(function)
        or program.local_function(last_name(function), event.scope)
    ):
        return False
    if any(o.last == "deepcopy" for o in program.origins(function, event.scope)):
        return True
    named = words(last_name(function))
    return "teacher" in named or (
        bool({"target", "ema", "frozen"} & named)
        and bool({"net", "network", "model", "q", "critic", "actor", "policy"} & named)
    )


def _in_optimizer(program: Program, call: ast.Call) -> bool:
    """Whether an optimizer holds the parameters of the network that is called."""
    name = last_name(call.func)
    held = [
        n
        for c in program.all_calls
        if program.resolve(c.func).startswith("torch.optim.")
        for a in c.args
        for n in calls(a)
    ]
    return any(last_name(receiver(c)) == name for c in held)


def _of_the_batch(event: Event) -> bool:
    """Whether all that is passed are names that a loop gives, and nothing that a network made."""
    given = [*event.call.args, *(k.value for k in event.call.keywords)]
    return bool(given) and all(
        isinstance(a, ast.Name) and all(b.how == "loop" for b in event.scope.bindings.get(a.id, ()))
        for a in given
    )
