"""Rules BH131: to BH135: mixed precision."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.half import half_casts
from training.review.kinds import is_frozen_name, is_scaler
from training.review.program import Program
from training.review.syntax import (
    calls,
    dotted,
    identifiers,
    is_false,
    keyword,
    last_name,
    method,
    receiver,
    words,
)
from training.review.trace import Event, Loop


@rule("BH131")
def clip_before_unscale(subject: Subject) -> Iterator[Place]:
    """Between a scaled backward and the clip that follows it nothing unscales."""
    for trace in subject.traces:
        for at, clip in enumerate(trace):
            if clip.kind != "clip" or clip.via or _bound_is_scaled(clip.call):
                continue
            before = next(
                (e for e in reversed(trace[:at]) if e.kind in ("backward", "unscale", "step")), None
            )
            if (
                before is None
                or before.kind != "backward"
                or before.via != "scaler"
                or _handed_on(subject.program, before, clip)
            ):
                continue
            if any(e.kind == "step" and e.via == "scaler" for e in trace[at:]):
                around = clip.loops[-1].node if clip.loops else clip.node
                yield clip.node, "the gradients are still multiplied by the loss scale here", around


def _handed_on(program: Program, step: Event, until: Event | Loop) -> bool:
    """Whether a function out of sight is given the scaler, or called on the object that holds it,
    after that event.
    """
    scaler = receiver(step.node) if step.kind == "step" else None
    name = dotted(scaler) if scaler is not None else ""
    last = getattr(until.node, "end_lineno" if isinstance(until, Loop) else "lineno", 0) or 0
    for call in calls(step.scope.node):
        if (
            not getattr(step.node, "lineno", 0) < call.lineno <= last
            or program.callees(call, step.scope)
            or program.resolve(call.func).startswith("torch")
        ):
            continue
        if any("scaler" in dotted(a).lower() if not name else dotted(a) == name for a in call.args):
            return True
        owner = step.scope.owner
        foreign = owner is not None and any(
            last_name(b) not in program.classes and last_name(b) != "object" for b in owner.bases
        )
        if (
            foreign
            and name.startswith("self.")
            and dotted(call.func).count(".") == 1
            and dotted(call.func).startswith("self.")
        ):
            return True
    return False


def _is_foreign(step: Event) -> bool:
    """Whether the scaler is a parameter that is said to be of a class other than torch's."""
    name = last_name(receiver(step.node))
    node = step.scope.node
    arguments = [] if isinstance(node, ast.Module) else [*node.args.args, *node.args.kwonlyargs]
    said = [a.annotation for a in arguments if a.arg == name and a.annotation is not None]
    return any(not {"GradScaler", "Any", "None"} & identifiers(a) for a in said)


def _bound_is_scaled(clip: ast.Call) -> bool:
    """Whether a clip only measures, as its bound is infinite, or its bound is multiplied by the
    scale.
    """
    most = keyword(clip, "max_norm", 1)
    return most is not None and ("inf" in ast.unparse(most) or "get_scale" in identifiers(most))


@rule("BH132")
def scaler_not_updated(subject: Subject) -> Iterator[Place]:
    """`scaler.step(optimizer)` in a loop, and no `update` of a scaler in the trace."""
    for trace in subject.traces:
        if any(e.kind == "scaler_update" for e in trace):
            continue
        for event in trace:
            if (
                event.kind != "step"
                or event.via != "scaler"
                or not is_scaler(subject.program, receiver(event.node), event.scope)
            ):
                continue
            if (
                _updates(subject.program, event)
                or _handed_on(subject.program, event, event.loops[-1] if event.loops else event)
                or _is_foreign(event)
            ):
                continue
            if event.loops:
                yield event.node, "the scaler is stepped and never updated", event.loops[-1].node
            elif (
                event.scope.parent in subject.program.call_sites
            ):  # a step of its own, called elsewhere
                yield event.node, "the scaler is stepped and never updated", event.scope.node


def _updates(program: Program, step: Event) -> bool:
    """Whether a method or function that the file calls may update the scaler that is stepped: by
    its own name, or under another one where it is passed.
    """
    name = last_name(receiver(step.node))
    asked = [
        c for c in program.methods_of("update") if is_scaler(program, receiver(c), program.scope(c))
    ]
    alone = not step.loops
    return any(
        alone or (program.scope(c) is not step.scope and last_name(receiver(c)) == name)
        for c in asked
    )


@rule("BH133")
def scaler_bypassed(subject: Subject) -> Iterator[Place]:
    """The last backward before a direct step went through a scaler, nothing asks whether the
    gradients are finite, and nothing steps through it; not where the file makes its own scaler.
    """
    if "scale" in subject.program.method_names:
        return
    for trace in subject.traces:
        for at, step in enumerate(trace):
            if step.kind != "step" or step.via:
                continue
            inside = [e for e in trace if not step.loops or step.loops[-1] in e.loops]
            before = next(
                (e for e in reversed(trace[:at]) if e.kind == "backward" and e in inside), None
            )
            stepped = any(e.kind == "step" and e.via == "scaler" for e in inside)
            checked = any(
                {"isfinite", "isinf", "isnan"} & identifiers(b.test)
                for b, _ in step.branches
                if isinstance(b, ast.If)
            )
            if (
                before is not None
                and before.via == "scaler"
                and step.under(before)
                and not stepped
                and not checked
            ):
                yield (
                    step.node,
                    (
                        f"{step.key.rpartition(':')[2]}.step() passes by the scaler: gradients may"
                        " be scaled or infinite"
                    ),
                )


@rule("BH134")
def float16_without_scaler(subject: Subject) -> Iterator[Place]:
    """A forward under float16 autocast, a backward that is not scaled, and no scaler in the
    file.
    """
    program = subject.program
    if (
        "GradScaler" in program.identifiers
        or subject.framework
        or not subject.trains
        or "accelerate" in program.modules_imported
    ):
        return
    if any(
        words(dotted(receiver(c))) & {"accelerator", "fabric", "engine"}
        for c in program.methods_of("backward")
    ):
        return  # these scale it themselves
    if (
        any("scal" in name.lower() for name in program.identifiers)
        or "set_autocast_dtype" in program.identifiers
        or _divides_gradients(program)
    ):
        return
    for trace in subject.traces:
        for call in _half_networks(program, trace):
            yield call, "this network is trained in float16, and the gradient is not scaled"
        for event in (e for e in trace if e.kind == "backward"):
            for other in (e for e in trace if not e.within("no_grad", "inference_mode")):
                for name, node in other.contexts:
                    if (
                        other.loops[:1] == event.loops[:1]
                        and isinstance(node, ast.Call)
                        and _is_half(program.resolve(node.func) or name, node)
                    ):
                        yield node, "this forward runs in float16, and the gradient is not scaled"


def _divides_gradients(program: Program) -> bool:
    """Whether gradients are scaled back by hand: `p.grad.div_(factor)`, `p.grad /= factor`."""
    by_method = any(
        method(c) in ("div_", "mul_") and last_name(receiver(c)) == "grad"
        for c in program.all_calls
    )
    return by_method or any(last_name(n.target) == "grad" for n in program.nodes[ast.AugAssign])


def _half_networks(program: Program, trace: list[Event]) -> Iterator[ast.Call]:
    """What casts a network to float16 whose forward stands, with gradients, in a loop with a
    backward.
    """
    looped = {e.loops[-1] for e in trace if e.kind == "backward" and e.loops}
    for event in trace:
        if (
            event.kind == "forward"
            and looped & set(event.loops)
            and not event.within("no_grad", "inference_mode")
            and not is_frozen_name(event.key)
        ):
            last = max(getattr(loop.node, "end_lineno", 0) for loop in event.loops)
            casts = half_casts(program, event.call.func, event.scope)
            yield from (
                c for c in casts if program.scope(c) is not event.scope or c.lineno <= last
            )  # not what is cast when training is over


def _is_half(name: str, call: ast.Call) -> bool:
    if not (name.startswith("torch.") and name.endswith(".autocast")):
        return False
    if keyword(call, "enabled") is not None:
        return False
    dtype = keyword(call, "dtype", 0 if "cuda" in name else 1)
    if dtype is None:  # float16 is the default of cuda alone
        device = call.args[0] if call.args else keyword(call, "device_type")
        return "cuda" in name or (isinstance(device, ast.Constant) and device.value == "cuda")
    return last_name(dtype) in ("float16", "half")


@rule("BH135")
def autocast_around_backward(subject: Subject) -> Iterator[Place]:
    """A backward directly inside an autocast block."""
    for trace in subject.traces:
        for event in (
            e
            for e in trace
            if e.kind == "backward" and e.via != "accelerator" and e.within("autocast")
        ):
            inner = next(
                (node for name, node in reversed(event.contexts) if name.endswith("autocast")), None
            )
            if not (isinstance(inner, ast.Call) and is_false(keyword(inner, "enabled"))):
                yield event.node, "backward stands inside the autocast block"
