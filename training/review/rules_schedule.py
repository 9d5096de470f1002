"""Rules BH111: to BH117: learning-rate schedules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_scheduler_origin
from training.review.loops import counts_passages, goes_over_again, is_epoch_loop, is_loader_loop
from training.review.program import Origin, Program, Scope
from training.review.replaced import schedules_left_behind
from training.review.syntax import (
    calls,
    constant,
    identifiers,
    keyword,
    last_name,
    method,
    nodes_of,
    receiver,
    words,
)
from training.review.trace import Event, Loop
from training.review.unstepped import unstepped_attributes, unstepped_names

LENGTHS = {
    "CosineAnnealingLR": ("T_max", 1),
    "LinearLR": ("total_iters", 3),
    "PolynomialLR": ("total_iters", 1),
    "OneCycleLR": ("total_steps", 2),
    "get_scheduler": ("num_training_steps", 3),
    **{
        f"get_{kind}_schedule_with_warmup": ("num_training_steps", 2)
        for kind in ("linear", "cosine")
    },
}
PER_EPOCH_GAMMA = 0.99  # a factor below it, once a batch, leaves 4e-5 after 1,000 batches
FIRST_PERIOD = 20  # a constant first period up to it counts epochs
PER_EPOCH_STEPS = 200  # a constant length below it counts epochs


@rule("BH111")
def scheduler_before_optimizer(subject: Subject) -> Iterator[Place]:
    """In the loop where the schedule steps unconditionally, the first optimizer step comes
    later.
    """
    for trace in subject.traces:
        for at, event in enumerate(trace):
            if (
                event.kind != "schedule"
                or not event.loops
                or event.call.args
                or event.call.keywords
            ):
                continue
            loop = event.loops[-1]
            if any(b not in _branches_at(trace, loop) for b in event.branches):
                continue
            steps = [i for i, e in enumerate(trace) if e.kind == "step" and loop in e.loops]
            if steps and min(steps) > at:
                yield (
                    event.node,
                    f"{ast.unparse(event.call)} comes before the optimizer's step",
                    loop.node,
                )


def _branches_at(trace: list[Event], loop: Loop) -> tuple[tuple[ast.AST, bool], ...]:
    """The branches in which a loop itself stands."""
    inside = [e.branches for e in trace if loop in e.loops]
    shortest = min(inside, key=len)
    while not all(b[: len(shortest)] == shortest for b in inside):
        shortest = shortest[:-1]
    return shortest


@rule("BH112")
def scheduler_never_stepped(subject: Subject) -> Iterator[Place]:
    """A local name or an attribute holds a schedule, nothing steps it, and it is handed to nobody;
    or it steps beside another optimizer than its own.
    """
    if not subject.framework:
        for made, name in (
            *unstepped_names(subject.program, subject.trains),
            *unstepped_attributes(subject.program, subject.trains),
        ):
            yield made, f"{name} is made here and never stepped"
        yield from schedules_left_behind(subject.program)


@rule("BH113")
def scheduler_per_batch(subject: Subject) -> Iterator[Place]:
    """The step stands in a loop over batches inside one over epochs, the length counts epochs."""
    for event, made in stepped(subject.program, subject.traces):
        placed = made.last == "CosineAnnealingWarmRestarts" and (
            event.call.args or event.call.keywords
        )  # at a place on the curve
        if _cadence(event) == "batch" and _unit(subject.program, made) == "epoch" and not placed:
            yield (
                event.node,
                f"{made.last} counts epochs by its arguments, and is stepped once a batch",
                made.call,
            )


@rule("BH114")
def scheduler_per_epoch(subject: Subject) -> Iterator[Place]:
    """The step stands in a loop over epochs, outside that over batches, and the length counts
    batches.
    """
    for event, made in stepped(subject.program, subject.traces):
        if _cadence(event) == "epoch" and _unit(subject.program, made) == "batch":
            yield (
                event.node,
                f"{made.last} counts batches by its arguments, and is stepped once an epoch",
                made.call,
            )


def stepped(program: Program, traces: list[list[Event]]) -> Iterator[tuple[Event, Origin]]:
    """Every step of a schedule, and the one call that made it."""
    for trace in traces:
        for event in trace:
            if event.kind == "schedule":
                made = [
                    o
                    for o in program.origins(receiver(event.node), event.scope)
                    if is_scheduler_origin(o)
                ]
                if len(made) == 1:
                    yield event, made[0]


def _cadence(event: Event) -> str:
    """Whether a step comes once a batch or once an epoch; empty where the loops do not say."""
    if not event.loops:
        return ""
    inner = event.loops[-1]
    if is_epoch_loop(inner):
        return "epoch"
    named = any(is_epoch_loop(x) for x in event.loops[:-1]) and is_loader_loop(inner)
    return (
        "batch"
        if len(event.loops) > 1 and (named or goes_over_again(event.loops[-2], inner))
        else ""
    )


def _unit(program: Program, made: Origin) -> str:
    """In what a schedule counts, by its arguments."""
    call, name = made.call, made.last
    if name == "OneCycleLR" and (keyword(call, "steps_per_epoch") is not None):
        return "batch"
    if name in ("ExponentialLR",):
        gamma = constant(keyword(call, "gamma", 1))
        return "epoch" if isinstance(gamma, float) and gamma < PER_EPOCH_GAMMA else ""
    if name in ("StepLR", "MultiStepLR"):
        length = keyword(call, "step_size" if name == "StepLR" else "milestones", 1)
        values = (
            [constant(e) for e in length.elts]
            if isinstance(length, (ast.List, ast.Tuple))
            else [constant(length)]
        )
        return (
            "epoch"
            if values and all(isinstance(v, int) and v <= PER_EPOCH_STEPS for v in values)
            else _unit_of(program, length, made.scope)
        )
    if name == "CosineAnnealingWarmRestarts" and isinstance(
        first := constant(keyword(call, "T_0", 1)), int
    ):
        return "epoch" if first <= FIRST_PERIOD else ""
    return _unit_of(program, keyword(call, *LENGTHS[name]), made.scope) if name in LENGTHS else ""


def _unit_of(program: Program, length: ast.expr | None, scope: Scope) -> str:
    """In what an expression counts, by the names in it, those in its own definition included."""
    seen = set(identifiers(length))
    counted = (
        any(last_name(c.func) == "len" for c in calls(length)) if length is not None else False
    )
    for name in list(seen):
        for binding in scope.bindings.get(name, ()):
            seen |= identifiers(binding.value)
            counted = counted or any(last_name(c.func) == "len" for c in calls(binding.value))
    found = {
        w for name in seen if not {"step", "size"} <= words(name) for w in words(name)
    }  # the height of a stair is counted in either
    if (
        counted
        or any({"per", "epoch"} <= words(name) for name in seen)
        or found & {"steps", "step", "iters", "iterations", "batches", "updates", "iter"}
    ):
        return "batch"
    return "epoch" if found & {"epochs", "epoch"} or counts_passages(program, length) else ""


@rule("BH115")
def plateau_without_metric(subject: Subject) -> Iterator[Place]:
    """A plateau schedule, and nothing else it could be, stepped without arguments."""
    for event, made in stepped(subject.program, subject.traces):
        if made.last == "ReduceLROnPlateau" and not event.call.args and not event.call.keywords:
            yield event.node, "ReduceLROnPlateau.step() needs the metric it watches"


@rule("BH116")
def plateau_per_batch(subject: Subject) -> Iterator[Place]:
    """A plateau schedule is stepped unconditionally in the loop over batches."""
    for event, made in stepped(subject.program, subject.traces):
        if (
            made.last == "ReduceLROnPlateau"
            and _cadence(event) == "batch"
            and not any(
                event.loops[-1].node in subject.program.ancestors(b) for b, _ in event.branches
            )
        ):
            yield event.node, "ReduceLROnPlateau is stepped once a batch: patience counts batches"


def _part_stepped(program: Program) -> Iterator[Place]:
    """`cosine.step()` where `SequentialLR(optimizer, [warmup, cosine], …)` is stepped too."""
    wholes = [
        c for c in program.all_calls if program.is_torch(c.func, "SequentialLR", "ChainedScheduler")
    ]
    for whole in wholes:
        parts = {
            e.id for n in whole.args for e in getattr(n, "elts", ()) if isinstance(e, ast.Name)
        }
        names = {
            t.id
            for t in getattr(program.statement(whole), "targets", ())
            if isinstance(t, ast.Name)
        } - parts
        steps = program.methods_of("step")
        if not any(last_name(receiver(c)) in names for c in steps):
            continue
        for call in steps:
            if isinstance(on := receiver(call), ast.Name) and on.id in parts:
                yield (
                    call,
                    (
                        f"{on.id} is a part of {sorted(names)[0]}, which steps it, and is stepped"
                        " here again"
                    ),
                )


@rule("BH117")
def rate_written_by_hand(subject: Subject) -> Iterator[Place]:
    """In one loop a schedule steps and `group["lr"]` is assigned, both unconditionally; or a
    schedule that is a part of another one is stepped beside it.
    """
    yield from _part_stepped(subject.program)
    chained = re.compile(
        r"^(CosineAnnealingLR|LinearLR|ExponentialLR|StepLR|MultiStepLR|PolynomialLR)$"
    )
    for event, made in stepped(subject.program, subject.traces):
        if not chained.match(made.last) or not event.loops or event.branches:
            continue
        for node in nodes_of(event.loops[-1].node, ast.Assign):
            if (
                isinstance(node.targets[0], ast.Subscript)
                and constant(node.targets[0].slice) == "lr"
                and not any(isinstance(a, ast.If) for a in subject.program.ancestors(node))
                and method(event.node) == "step"
            ):
                yield node, f"this rate is overwritten by, and bends, {made.last}"
