"""Rules BH101, BH102, BH103, BH104, BH105, BH106, BH107."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_model, is_optimizer, is_scheduler, is_scheduler_origin
from training.review.loops import (
    Placed,
    Steps,
    common_loop,
    is_called_again,
    last_name_of_key,
    step_groups,
)
from training.review.program import Program
from training.review.reached import is_asked_for, is_started
from training.review.rules_window import window_of
from training.review.syntax import (
    calls,
    dotted,
    identifiers,
    keyword,
    last_name,
    method,
    nodes_of,
    own_nodes_of,
    receiver,
    walk,
    words,
)
from training.review.trace import Event
from training.review.values import loss_kind


@rule("BH101")
def zero_grad_missing(subject: Subject) -> Iterator[Place]:
    """A loop with `backward` and `step`, or a method that is called once a batch, and nothing in it
    that clears the gradients of that optimizer.
    """
    for steps in step_groups(subject):
        if (
            not steps.backwards
            or steps.clears
            or not (
                steps.loop is not None or (steps.again and not _clears_elsewhere(subject.program))
            )
        ):
            continue
        if any(e.kind == "assign" and e.key == steps.step.key for e in steps.inside):
            continue  # a new one for new tensors
        where = "is cleared outside this loop only" if steps.clears_outside else "is never cleared"
        yield steps.step.node, f"the gradient that {steps.name}.step() uses {where}", steps.around


def _clears_elsewhere(program: Program) -> bool:
    """Whether any gradient is cleared in the file, by a method or by hand."""
    by_hand = any(
        isinstance(t, ast.Attribute) and t.attr == "grad"
        for n in program.nodes[ast.Assign]
        for t in n.targets
    )
    return by_hand or any("zero" in name and "grad" in name for name in program.called_names)


@rule("BH102")
def cleared_before_use(subject: Subject) -> Iterator[Place]:
    """In one passage of the loop: backward, clear, step, with no other backward after the clear; or
    one whose gradient serves no step that comes before the clear.
    """
    groups = step_groups(subject)
    for steps in groups:
        clear = _cleared_since_backward(steps)
        if clear is not None and any(b.position < clear.position for b in steps.backwards):
            yield (
                clear.event.node,
                (
                    f"{ast.unparse(clear.event.node)} stands between backward and"
                    f" {steps.name}.step(): the gradient is lost"
                ),
            )
            continue
        for first, clear, second in _wasted(steps, groups):
            lost = f"what line {first.node.lineno} computed is lost before {steps.name}.step() can use it"  # type: ignore[attr-defined]  # noqa: E501
            yield (
                clear.event.node,
                f"{ast.unparse(clear.event.node)} stands between two backwards of one step: {lost}",
                second.node,
            )


def _wasted(steps: Steps, groups: tuple[Steps, ...]) -> Iterator[tuple[Event, Placed, Event]]:
    """A backward, the clear after it and the backward after that, ahead of one step, where nothing
    else steps by the first or reads its gradient.
    """
    if len(steps.backwards) < 2 or not steps.clears:
        return
    named = identifiers(steps.around)
    alone = (
        steps.step.via != "closure"
        and not READS_GRADIENT & named
        and not any("hook" in name for name in named)
    )
    for clear in steps.clears if alone and (steps.loop is not None or steps.again) else ():
        earlier = [b for b in steps.backwards if b.position < clear.position]
        later = [b for b in steps.backwards if clear.position < b.position < steps.position]
        if not earlier or not later:
            continue
        first, second = earlier[-1], later[0]
        in_line = [first.event, clear.event, second.event, steps.step]
        since = steps.trace[first.position + 1 : clear.position]
        asks = any(
            e.kind in ("step", "zero", "clip") or (e.kind == "call" and _hands_over(e, steps))
            for e in since
        )
        if asks or any(
            e.loops != steps.step.loops or e.branches != steps.step.branches for e in in_line
        ):
            continue
        if all(
            _cleared_for(other, first, steps)
            for other in groups
            if other.trace is steps.trace and other.step.key != steps.step.key
        ):
            yield first.event, clear, second.event


READS_GRADIENT = {
    "grad",
    "requires_grad",
    "requires_grad_",
    "retain_grad",
    "first_step",
    "perturb",
    "no_sync",
}


def _hands_over(event: Event, steps: Steps) -> bool:
    """Whether a call gets the whole network or the optimizer, and may read gradients there."""
    call = event.node
    given = [*call.args, *(k.value for k in call.keywords)] if isinstance(call, ast.Call) else []
    whole = any(
        last_name(a) in ("self", last_name_of_key(steps.step.key))
        or words(last_name(a)) & {"model", "net", "network"}
        for a in given
    )
    return whole or (
        isinstance(call, ast.Call) and last_name(receiver(call)) == last_name_of_key(steps.step.key)
    )


def _cleared_for(other: Steps, first: Placed, steps: Steps) -> bool:
    """Whether the gradient of a backward is cleared for another optimizer too, before that one
    steps.
    """
    if other.loop is not steps.loop:
        return False
    return any(
        first.position < c.position < other.position
        or (other.position < first.position and c.position < other.position)
        for c in other.clears
    )


@rule("BH103")
def step_before_backward(subject: Subject) -> Iterator[Place]:
    """In one passage of the loop the step comes first, and the gradient is cleared before it can be
    used.
    """
    for steps in step_groups(subject):
        clear = _cleared_since_backward(steps)
        if (
            clear is not None
            and steps.backwards
            and not any(b.position < steps.position for b in steps.backwards)
        ):
            yield (
                steps.step.node,
                f"{steps.name}.step() comes before backward: its gradient is empty",
                steps.around,
            )


def _cleared_since_backward(steps: Steps) -> Placed | None:
    """The unconditional clear that lies, going round the loop, between the last backward and the
    step.
    """
    if not (steps.loop is not None or steps.again) or steps.step.via == "closure":
        return None
    ring = sorted(
        [
            *((b.position, "B", b.event) for b in steps.backwards),
            *((c.position, "Z", c.event) for c in steps.clears),
        ],
        key=lambda item: item[0],
    )
    before = [item for item in ring if item[0] < steps.position] or ring
    position, what, event = before[-1] if before else (0, "", steps.step)
    if what != "Z" or not steps.step.under(event) or event.loops != steps.step.loops:
        return None
    return Placed(position, event)


@rule("BH104")
def backward_missing(subject: Subject) -> Iterator[Place]:
    """A loop that clears and steps the same optimizer and computes a loss, where nothing in it
    computes a gradient.
    """
    if subject.framework:
        return
    elsewhere = bool(
        {"backward", "manual_backward", "grad", "grad_and_value", "value_and_grad"}
        & (subject.program.called_names | subject.program.identifiers)
    )
    for steps in step_groups(subject):
        if (
            not (steps.loop is not None or steps.again)
            or not steps.clears
            or steps.step.via
            or steps.step.call.args
            or _computes_gradients(steps)
        ):
            continue
        losses = {
            name
            for e in steps.inside
            if isinstance(e.node, ast.Assign)
            and (_is_computed(subject.program, e) if elsewhere else _is_loss(subject.program, e))
            for name in map(last_name, e.node.targets)
        }
        handed_on = any(
            e.kind == "call" and _hands_on(subject.program, e.call, losses)
            for e in steps.inside
            if isinstance(e.node, ast.Call) and not _only_tells(subject.program, e.call)
        )
        if losses and not handed_on:
            yield (
                steps.step.node,
                f"{steps.name}.step() without a backward: nothing is learned",
                steps.around,
            )


def _computes_gradients(steps: Steps) -> bool:
    """Whether a gradient may be computed in the loop of a step: by what is called there, or by
    hand.
    """
    if any("backward" in last_name(b.event.call.func) for b in steps.backwards):
        return True
    inside = [*(e.node for e in steps.inside), steps.around]
    called = {last_name(c.func) for n in inside for c in calls(n)}
    by_hand = any(
        isinstance(n, ast.Attribute) and n.attr in ("grad", "_grad")
        for node in inside
        for n in walk(node)
    )
    return by_hand or any(
        "backward" in name
        or ("grad" in name and "zero" not in name and "no_grad" not in name and "clip" not in name)
        for name in called
    )


def _is_computed(program: Program, event: Event) -> bool:
    """Whether an assignment keeps what a known loss function gives."""
    value = event.node.value if isinstance(event.node, ast.Assign) else None
    return (
        event.kind == "assign"
        and isinstance(value, ast.Call)
        and loss_kind(program, value, event.scope) != ""
    )


def _is_loss(program: Program, event: Event) -> bool:
    """Whether an assignment keeps a loss, by its name or by what computes it."""
    value = event.node.value if isinstance(event.node, ast.Assign) else None
    by_call = isinstance(value, ast.Call) and bool(
        loss_kind(program, value, event.scope)
        or words(last_name(value.func)) & {"loss", "criterion"}
    )
    return event.kind == "assign" and (by_call or "loss" in event.key.lower())


TELLS = {
    "append", "item", "update", "print", "detach", "write", "log", "info", "debug", "warning",
    "add_scalar", "add_scalars", "set_postfix", "set_description", "report", "float", "str",
    "format", "len", "round", "isnan", "isfinite", "mean", "sum", "log_metrics", "record", "extend",
    "save",
}  # fmt: skip


def _only_tells(program: Program, call: ast.Call) -> bool:
    """Whether a call counts, prints or keeps what it is given, and computes no gradient of it."""
    return last_name(call.func) in TELLS or program.resolve(call.func).startswith(
        ("numpy.", "torch.", "math.", "statistics.", "wandb.")
    )


def _hands_on(program: Program, call: ast.Call, losses: set[str]) -> bool:
    """Whether a call gets a loss itself, not only its number."""
    given = [
        n
        for a in call.args
        for n in walk(a)
        if isinstance(n, (ast.Name, ast.Attribute)) and last_name(n) in losses
    ]
    parents = [program.parents[n] for n in given]
    return any(not (isinstance(p, ast.Attribute) and p.attr in ("item", "detach")) for p in parents)


@rule("BH105")
def step_missing(subject: Subject) -> Iterator[Place]:
    """An optimizer is cleared in a loop with a backward, and no `step` of anything but schedules
    stands in the file, or none of this one in its loop.
    """
    program = subject.program
    yield from _left_to_nobody(subject)
    yield from _in_no_use(subject)
    steps = [n for n in program.nodes[ast.Attribute] if n.attr == "step"]
    if subject.framework or any(
        not any(map(is_scheduler_origin, program.origins(n.value, program.scope(n)))) for n in steps
    ):
        return
    if any("step" in name and name != "step" for name in program.called_names):
        return
    for trace in subject.traces:
        for event in trace:
            if (
                event.kind == "zero"
                and event.key != "*"
                and event.loops
                and _makes_optimizer(subject.program, event)
                and any(e.kind == "backward" and common_loop(e, event) for e in trace)
            ):
                yield event.node, f"{event.key} is cleared and never steps", event.loops[-1].node


def _in_no_use(subject: Subject) -> Iterator[Place]:
    """A method that is one step of training, the only one of its optimizer, in a file that trains
    something else when it is started; and nothing calls it.
    """
    program = subject.program
    if (
        subject.framework
        or not {"step", "backward"} <= program.called_names
        or not is_started(program)
    ):
        return
    for scope in (s for s in program.scopes if s.owner is not None):
        called = own_nodes_of(scope.node, ast.Call)
        stepped = [
            c for c in called if method(c) == "step" and is_optimizer(program, receiver(c), scope)
        ]
        keys = {dotted(receiver(c)) for c in stepped}
        if (
            not keys
            or not all(k.startswith("self.") for k in keys)
            or not any(method(c) == "backward" for c in called)
            or is_asked_for(program, scope)
        ):
            continue
        siblings = [s for s in program.scopes if s is not scope and s.owner is scope.owner]
        elsewhere = {
            dotted(receiver(c)) for s in siblings for c in calls(s.node) if method(c) == "step"
        }
        if not keys & elsewhere and any(
            e.kind == "backward" and e.scope is not scope for trace in subject.traces for e in trace
        ):
            yield (
                scope.node,
                (
                    f"nothing calls {scope.name}: {ast.unparse(receiver(stepped[0]) or stepped[0])}"
                    " never steps"
                ),
            )


def _left_to_nobody(subject: Subject) -> Iterator[Place]:
    """An optimizer is cleared in the loop of its backward, or in a method that is one step, and
    there neither steps nor is handed on; nothing reads the gradients either.
    """
    program = subject.program
    stepping = [n.value for n in program.nodes[ast.Attribute] if n.attr == "step"]
    for trace in subject.traces if not subject.framework else ():
        for event in (
            e
            for e in trace
            if e.kind == "zero" and e.key != "*" and _clears_what_is_trained(program, e)
        ):
            loop, name = (event.loops[-1] if event.loops else None), last_name_of_key(event.key)
            if loop is None and (
                not is_called_again(program, event)
                or any(_is_step(program, c) for c in program.all_calls)
            ):
                continue
            inside = [e for e in trace if loop is None or loop in e.loops]
            if loop is None and any(e.kind == "backward" for e in trace[: trace.index(event)]):
                continue  # a pass whose gradients are thrown away, before another one
            steps = any(
                last_name(s) == name
                and (program.scope(s) is event.scope or not isinstance(s, ast.Name))
                for s in stepping
            )
            if steps or not any(
                e.kind == "backward" and e.loops[-1:] == event.loops[-1:] for e in inside
            ):
                continue
            around = loop.node if loop is not None else event.scope.node
            handed = any(
                last_name(a) == name
                for c in calls(around)
                for a in (*c.args, *(k.value for k in c.keywords))
            )
            reads = any(n.attr == "grad" for n in nodes_of(around, ast.Attribute))
            own = is_optimizer(program, receiver(event.call), event.scope)
            cleared = {e.key for e in inside if e.kind == "zero" and own} - {event.key}
            others = {
                id(e.node) for e in inside if e.kind == "step" and e.key in cleared
            }  # of optimizers that are cleared here too, by other names
            unknown = any(e.kind == "step" and id(e.node) not in others for e in inside)
            if (
                not handed
                and not reads
                and not unknown
                and not any(_is_step(program, c) and id(c) not in others for c in calls(around))
            ):
                yield event.node, f"{event.key} is cleared and never steps", around


NO_OPTIMIZERS = {
    "env", "envs", "environment", "environments", "world", "simulator", "sim", "profiler", "prof",
    "early", "stop", "stopper", "stopping", "ema", "updater", "tracker", "logger", "bar", "pbar",
    "progress",
}  # fmt: skip


def _clears_what_is_trained(program: Program, event: Event) -> bool:
    """Whether an optimizer is cleared, or a network in a file that makes an optimizer."""
    of = receiver(event.call)
    if is_optimizer(program, of, event.scope):
        return True
    return (
        bool(event.loops)
        and is_model(program, of, event.scope)
        and any(program.resolve(c.func).startswith("torch.optim.") for c in program.all_calls)
    )


def _is_step(program: Program, call: ast.Call) -> bool:
    """Whether a call may be an optimizer's step, by its name: anything but a schedule's."""
    name = last_name(call.func)
    if "step" not in name or "mark" in words(name) or method(call) != "step":
        return "step" in name and "mark" not in words(name)
    return not words(last_name(receiver(call))) & NO_OPTIMIZERS and not is_scheduler(
        program, receiver(call), program.scope(call)
    )


def _makes_optimizer(program: Program, event: Event) -> bool:
    target = event.call.func.value if isinstance(event.call.func, ast.Attribute) else None
    return any(o.name.startswith("torch.optim.") for o in program.origins(target, event.scope))


@rule("BH106")
def clip_misplaced(subject: Subject) -> Iterator[Place]:
    """A clip with no backward before it and no step after it in the same passage of the loop,
    between step and the next backward, or after each backward of a window.
    """
    yield from _clipped_in_every_batch(subject)
    for trace in subject.traces:
        for clip in (e for e in trace if e.kind == "clip"):
            inside = [
                (i, e)
                for i, e in enumerate(trace)
                if (clip.loops[-1] in e.loops if clip.loops else not e.loops)
            ]
            at = next(i for i, e in inside if e is clip)
            order = [(i, e.kind) for i, e in inside if e.kind in ("backward", "step")]
            before, after = (
                [kind for i, kind in order if i < at],
                [kind for i, kind in order if i > at],
            )
            if "backward" not in before + after or "step" not in before + after:
                continue
            if before and before[-1] == "step" and after[:1] != ["step"]:
                yield (
                    clip.node,
                    "gradients are clipped after the step that used them",
                    clip.loops[-1].node if clip.loops else clip.scope.node,
                )
            elif clip.loops and not before and after[0] == "backward":
                yield (
                    clip.node,
                    "gradients are clipped before backward has computed them",
                    clip.loops[-1].node,
                )


def _clipped_in_every_batch(subject: Subject) -> Iterator[Place]:
    """A clip that stands under the conditions of a backward which adds to a window, while the step
    waits for the end of the window.
    """
    for steps in step_groups(subject):
        for clip in (
            e for e in steps.inside if e.kind == "clip" and not e.via and not _only_measures(e.call)
        ):
            added = [
                b.event
                for b in steps.backwards
                if b.event.loops == clip.loops and b.event.branches == clip.branches
            ]
            cleared = any(
                c.event.loops == clip.loops and c.event.branches == clip.branches
                for c in steps.clears
            )
            inner = (
                bool(clip.loops)
                and clip.loops[-1] not in steps.step.loops
                and not any(e.kind == "step" and clip.loops[-1] in e.loops for e in steps.trace)
            )
            if (
                added
                and not cleared
                and not _of_each_passage(clip)
                and steps.step.via != "closure"
                and (inner or (clip.loops == steps.step.loops and window_of(steps)))
            ):
                told = (
                    f"gradients are clipped after every backward, and {steps.name}.step() comes"
                    " once for several: their sum is larger than what was clipped"
                )
                yield clip.node, told, steps.loop.node if steps.loop else clip.node


def _of_each_passage(clip: Event) -> bool:
    """Whether other parameters are clipped in each passage of the loop, as those of one network
    after the other.
    """
    if not clip.loops:
        return False
    loop, helpers, frame = clip.loops[-1], set(), clip.frame
    inside = {n.id for n in nodes_of(loop.node, ast.Name) if isinstance(n.ctx, ast.Store)}
    while frame.scope is not loop.scope and frame.caller is not None:
        helpers.add(frame.scope.name)
        frame = frame.caller
    keys = [
        clip.frame.key(n).rpartition(":") for a in clip.call.args[:1] for n in nodes_of(a, ast.Name)
    ]
    of_loop = ("", loop.scope.name)
    return any(
        where in helpers
        or (where in of_loop and name.partition(".")[0].partition("[")[0] in inside)
        for where, _, name in keys
    )


def _only_measures(call: ast.Call) -> bool:
    """Whether nothing is clipped, as the largest norm is infinite."""
    most = keyword(call, "max_norm", 1)
    return most is not None and "inf" in ast.unparse(most)


@rule("BH107")
def call_missing(subject: Subject) -> Iterator[Place]:
    """An expression statement that only names a method of training."""
    methods = {
        "backward",
        "step",
        "zero_grad",
        "eval",
        "train",
        "update",
        "cuda",
        "detach",
        "item",
        "barrier",
        "synchronize",
    }
    for node in subject.program.nodes[ast.Expr]:
        if isinstance(node.value, ast.Attribute) and node.value.attr in methods:
            yield (
                node.value,
                f"{dotted(node.value) or node.value.attr} is named, not called: it does nothing",
            )
