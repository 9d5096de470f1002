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
from training.review.syntax import constant, identifiers, keyword, last_name, method, receiver, walk, words
from training.review.trace import Event, Loop
from training.review.unstepped import unstepped_attributes, unstepped_names

LENGTHS = {
    "CosineAnnealingLR": ("T_max", 1),
    "LinearLR": ("total_iters", 3),
    "PolynomialLR": ("total_iters", 1),
    "OneCycleLR": ("total_steps", 2),
    "get_scheduler": ("num_training_steps", 3),
    **{f"get_{kind}_schedule_with_warmup": ("num_training_steps", 2) for kind in ("linear", "cosine")},
}
PER_EPOCH_GAMMA = 0.99  # a factor below it, once a batch, leaves 4e-5 after 1,000 batches
FIRST_PERIOD = 20  # a constant first period up to it counts epochs
PER_EPOCH_STEPS = 200  # a constant length below it counts epochs


@rule(
    "BH111",
    "scheduler-before-optimizer",
    "error",
    title="The schedule steps before the optimizer",
    why="The first value of the schedule is skipped, and every step uses the rate of the next one; torch warns once and goes on.",
    remedy="call `scheduler.step()` after `optimizer.step()`",
    bad="""
        import torch

        def train(model, optimizer, scheduler, loader, loss_fn):
            for x, y in loader:
                optimizer.zero_grad()
                loss_fn(model(x), y).backward()
                scheduler.step()
                optimizer.step()
        """,
    good="""
        import torch

        def train(model, optimizer, scheduler, loader, loss_fn):
            for x, y in loader:
                optimizer.zero_grad()
                loss_fn(model(x), y).backward()
                optimizer.step()
                scheduler.step()
        """,
)
def scheduler_before_optimizer(subject: Subject) -> Iterator[Place]:
    """In the loop where the schedule steps unconditionally, the first optimizer step comes later."""
    for trace in subject.traces:
        for at, event in enumerate(trace):
            if event.kind != "schedule" or not event.loops or event.call.args or event.call.keywords:
                continue
            loop = event.loops[-1]
            if any(b not in _branches_at(trace, loop) for b in event.branches):
                continue
            steps = [i for i, e in enumerate(trace) if e.kind == "step" and loop in e.loops]
            if steps and min(steps) > at:
                yield event.node, f"{ast.unparse(event.call)} comes before the optimizer's step", loop.node


def _branches_at(trace: list[Event], loop: Loop) -> tuple[tuple[ast.AST, bool], ...]:
    """The branches in which a loop itself stands."""
    inside = [e.branches for e in trace if loop in e.loops]
    shortest = min(inside, key=len)
    while not all(b[: len(shortest)] == shortest for b in inside):
        shortest = shortest[:-1]
    return shortest


@rule(
    "BH112",
    "scheduler-never-stepped",
    "error",
    title="A schedule is made and never stepped",
    why="The learning rate stays at its first value for the whole run; of a warm-up, that is close to zero.",
    remedy="call `scheduler.step()` after `optimizer.step()`, at the cadence its length was given in; make it anew with a new optimizer",
    bad="""
        import torch

        def train(model, loader, loss_fn, epochs):
            optimizer = torch.optim.AdamW(model.parameters())
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
            for epoch in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    loss_fn(model(x), y).backward()
                    optimizer.step()
        """,
    good="""
        import torch

        def train(model, loader, loss_fn, epochs):
            optimizer = torch.optim.AdamW(model.parameters())
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
            for epoch in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    loss_fn(model(x), y).backward()
                    optimizer.step()
                scheduler.step()
        """,
)
def scheduler_never_stepped(subject: Subject) -> Iterator[Place]:
    """A local name or an attribute holds a schedule, nothing steps it, and it is handed to nobody; or it steps beside another optimizer than its own."""
    if not subject.framework:
        for made, name in (*unstepped_names(subject.program, subject.trains), *unstepped_attributes(subject.program, subject.trains)):
            yield made, f"{name} is made here and never stepped"
        yield from schedules_left_behind(subject.program)


@rule(
    "BH113",
    "scheduler-per-batch",
    "error",
    title="A schedule that counts epochs steps once a batch",
    why="The rate runs through its whole course within the first epoch, and is then at its end (or rises again, of a cosine) for the rest of the run.",
    remedy="step it once an epoch, or give its length in batches: `epochs * len(loader)`",
    bad="""
        import torch

        def train(model, optimizer, loader, loss_fn, epochs):
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
            for epoch in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    loss_fn(model(x), y).backward()
                    optimizer.step()
                    scheduler.step()
        """,
    good="""
        import torch

        def train(model, optimizer, loader, loss_fn, epochs):
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
            for epoch in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    loss_fn(model(x), y).backward()
                    optimizer.step()
                    scheduler.step()
        """,
)
def scheduler_per_batch(subject: Subject) -> Iterator[Place]:
    """The step stands in a loop over batches inside one over epochs, the length counts epochs."""
    for event, made in stepped(subject.program, subject.traces):
        placed = made.last == "CosineAnnealingWarmRestarts" and (event.call.args or event.call.keywords)  # at a place on the curve
        if _cadence(event) == "batch" and _unit(subject.program, made) == "epoch" and not placed:
            yield event.node, f"{made.last} counts epochs by its arguments, and is stepped once a batch", made.call


@rule(
    "BH114",
    "scheduler-per-epoch",
    "error",
    title="A schedule that counts batches steps once an epoch",
    why="The rate hardly moves: a one-cycle schedule of 50,000 steps that is stepped 50 times never leaves its warm-up.",
    remedy="step it after every `optimizer.step()`, or give its length in epochs",
    bad="""
        import torch

        def train(model, optimizer, loader, loss_fn, epochs):
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, epochs=epochs, steps_per_epoch=len(loader))
            for epoch in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    loss_fn(model(x), y).backward()
                    optimizer.step()
                scheduler.step()
        """,
    good="""
        import torch

        def train(model, optimizer, loader, loss_fn, epochs):
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, epochs=epochs, steps_per_epoch=len(loader))
            for epoch in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    loss_fn(model(x), y).backward()
                    optimizer.step()
                    scheduler.step()
        """,
)
def scheduler_per_epoch(subject: Subject) -> Iterator[Place]:
    """The step stands in a loop over epochs, outside that over batches, and the length counts batches."""
    for event, made in stepped(subject.program, subject.traces):
        if _cadence(event) == "epoch" and _unit(subject.program, made) == "batch":
            yield event.node, f"{made.last} counts batches by its arguments, and is stepped once an epoch", made.call


def stepped(program: Program, traces: list[list[Event]]) -> Iterator[tuple[Event, Origin]]:
    """Every step of a schedule, and the one call that made it."""
    for trace in traces:
        for event in trace:
            if event.kind == "schedule":
                made = [o for o in program.origins(receiver(event.node), event.scope) if is_scheduler_origin(o)]
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
    return "batch" if len(event.loops) > 1 and (named or goes_over_again(event.loops[-2], inner)) else ""


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
        values = [constant(e) for e in length.elts] if isinstance(length, (ast.List, ast.Tuple)) else [constant(length)]
        return "epoch" if values and all(isinstance(v, int) and v <= PER_EPOCH_STEPS for v in values) else _unit_of(program, length, made.scope)
    if name == "CosineAnnealingWarmRestarts" and isinstance(first := constant(keyword(call, "T_0", 1)), int):
        return "epoch" if first <= FIRST_PERIOD else ""
    return _unit_of(program, keyword(call, *LENGTHS[name]), made.scope) if name in LENGTHS else ""


def _unit_of(program: Program, length: ast.expr | None, scope: Scope) -> str:
    """In what an expression counts, by the names in it, those in its own definition included."""
    seen = set(identifiers(length))
    counted = any(last_name(c.func) == "len" for c in walk(length) if isinstance(c, ast.Call)) if length is not None else False
    for name in list(seen):
        for binding in scope.bindings.get(name, ()):
            seen |= identifiers(binding.value)
            counted = counted or any(last_name(c.func) == "len" for c in walk(binding.value) if isinstance(c, ast.Call))
    found = {w for name in seen if not {"step", "size"} <= words(name) for w in words(name)}  # the height of a stair is counted in either
    if counted or any({"per", "epoch"} <= words(name) for name in seen) or found & {"steps", "step", "iters", "iterations", "batches", "updates", "iter"}:
        return "batch"
    return "epoch" if found & {"epochs", "epoch"} or counts_passages(program, length) else ""


@rule(
    "BH115",
    "plateau-without-metric",
    "error",
    title="ReduceLROnPlateau without its metric",
    why="`step()` of this schedule needs the watched value: it raises at the end of the first epoch.",
    remedy="pass the validation metric: `scheduler.step(val_loss)`",
    bad="""
        import torch

        def train(model, optimizer, train_epoch, epochs):
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            for epoch in range(epochs):
                val_loss = train_epoch(model, optimizer)
                scheduler.step()
        """,
    good="""
        import torch

        def train(model, optimizer, train_epoch, epochs):
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            for epoch in range(epochs):
                val_loss = train_epoch(model, optimizer)
                scheduler.step(val_loss)
        """,
)
def plateau_without_metric(subject: Subject) -> Iterator[Place]:
    """A plateau schedule, and nothing else it could be, stepped without arguments."""
    for event, made in stepped(subject.program, subject.traces):
        if made.last == "ReduceLROnPlateau" and not event.call.args and not event.call.keywords:
            yield event.node, "ReduceLROnPlateau.step() needs the metric it watches"


@rule(
    "BH116",
    "plateau-per-batch",
    "error",
    title="ReduceLROnPlateau steps once a batch",
    why="Patience then counts noisy batches instead of evaluations: the rate is cut to nothing within minutes.",
    remedy="step it once for each evaluation, with the validation metric",
    bad="""
        import torch

        def train(model, optimizer, loader, loss_fn, epochs):
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=5)
            for epoch in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    loss = loss_fn(model(x), y)
                    loss.backward()
                    optimizer.step()
                    scheduler.step(loss.item())
        """,
    good="""
        import torch

        def train(model, optimizer, loader, loss_fn, epochs, evaluate):
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=5)
            for epoch in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    loss = loss_fn(model(x), y)
                    loss.backward()
                    optimizer.step()
                scheduler.step(evaluate(model))
        """,
)
def plateau_per_batch(subject: Subject) -> Iterator[Place]:
    """A plateau schedule is stepped unconditionally in the loop over batches."""
    for event, made in stepped(subject.program, subject.traces):
        if (
            made.last == "ReduceLROnPlateau"
            and _cadence(event) == "batch"
            and not any(event.loops[-1].node in subject.program.ancestors(b) for b, _ in event.branches)
        ):
            yield event.node, "ReduceLROnPlateau is stepped once a batch: patience counts batches"


def _part_stepped(program: Program) -> Iterator[Place]:
    """`cosine.step()` where `SequentialLR(optimizer, [warmup, cosine], …)` is stepped too."""
    wholes = [c for c in program.all_calls if program.is_torch(c.func, "SequentialLR", "ChainedScheduler")]
    for whole in wholes:
        parts = {e.id for n in whole.args for e in getattr(n, "elts", ()) if isinstance(e, ast.Name)}
        names = {t.id for t in getattr(program.statement(whole), "targets", ()) if isinstance(t, ast.Name)} - parts
        steps = program.methods_of("step")
        if not any(last_name(receiver(c)) in names for c in steps):
            continue
        for call in steps:
            if isinstance(on := receiver(call), ast.Name) and on.id in parts:
                yield call, f"{on.id} is a part of {sorted(names)[0]}, which steps it, and is stepped here again"


@rule(
    "BH117",
    "warmup-overwritten",
    "warning",
    title="The learning rate is set by hand beside a schedule",
    why="Schedules like CosineAnnealingLR and LinearLR compute the next rate from the present one: a value written between their steps bends the rest of the course.",
    remedy="put the warm-up into the schedule with SequentialLR or LambdaLR",
    bad="""
        import torch

        def train(model, optimizer, loader, loss_fn, steps):
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
            for i, (x, y) in enumerate(loader):
                for group in optimizer.param_groups:
                    group["lr"] = 1e-3 * min(1, i / 100)
                optimizer.zero_grad()
                loss_fn(model(x), y).backward()
                optimizer.step()
                scheduler.step()
        """,
    good="""
        import torch

        def train(model, optimizer, loader, loss_fn, steps):
            warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=100)
            cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps - 100)
            scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[100])
            for x, y in loader:
                optimizer.zero_grad()
                loss_fn(model(x), y).backward()
                optimizer.step()
                scheduler.step()
        """,
)
def rate_written_by_hand(subject: Subject) -> Iterator[Place]:
    """In one loop a schedule steps and `group["lr"]` is assigned, both unconditionally; or a schedule that is a part of another one is stepped beside it."""
    yield from _part_stepped(subject.program)
    chained = re.compile(r"^(CosineAnnealingLR|LinearLR|ExponentialLR|StepLR|MultiStepLR|PolynomialLR)$")
    for event, made in stepped(subject.program, subject.traces):
        if not chained.match(made.last) or not event.loops or event.branches:
            continue
        for node in walk(event.loops[-1].node):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Subscript)
                and constant(node.targets[0].slice) == "lr"
                and not any(isinstance(a, ast.If) for a in subject.program.ancestors(node))
                and method(event.node) == "step"
            ):
                yield node, f"this rate is overwritten by, and bends, {made.last}"
