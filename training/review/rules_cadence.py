"""Rules BH119 and BH120: a plateau schedule that waits for the wrong direction, and schedules beside an accumulation window."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.direction import direction
from training.review.findings import Place, Subject, rule
from training.review.loops import Steps, last_name_of_key, step_groups
from training.review.program import Origin, Program, Scope
from training.review.rules_schedule import stepped
from training.review.rules_window import condition, fits, window_of
from training.review.syntax import calls, constant, identifiers, keyword, last_name, walk, words

PLAIN = {"len", "int", "round", "ceil", "floor", "max", "float"}


@rule(
    "BH119",
    "plateau-in-wrong-direction",
    "error",
    title="ReduceLROnPlateau waits for the wrong direction",
    why='With `mode="max"` a falling loss is no progress, and with the default `mode="min"` a rising accuracy is none: the rate is cut every few epochs while all goes well.',
    remedy='give `mode="min"` for losses and errors, `mode="max"` for scores',
    bad="""
        from torch.optim.lr_scheduler import ReduceLROnPlateau

        def fit(optimizer, train_epoch, evaluate, epochs):
            schedule = ReduceLROnPlateau(optimizer, mode="max")
            for epoch in range(epochs):
                train_epoch()
                val_loss = evaluate()
                schedule.step(val_loss)
        """,
    good="""
        from torch.optim.lr_scheduler import ReduceLROnPlateau

        def fit(optimizer, train_epoch, evaluate, epochs):
            schedule = ReduceLROnPlateau(optimizer, mode="min")
            for epoch in range(epochs):
                train_epoch()
                val_loss = evaluate()
                schedule.step(val_loss)
        """,
)
def plateau_in_wrong_direction(subject: Subject) -> Iterator[Place]:
    """The literal mode of a plateau schedule is not the one in which the value that it is stepped with gets better, by all that names it."""
    for event, made in stepped(subject.program, subject.traces):
        watched = keyword(event.call, "metrics", 0)
        if made.last != "ReduceLROnPlateau" or watched is None or any(k.arg is None for k in made.call.keywords):
            continue
        given = keyword(made.call, "mode", 1)
        mode = "min" if given is None else constant(given)
        better = direction(subject.program, watched, event.scope)
        if mode in ("min", "max") and better and better != mode:
            yield made.call, f"mode is {mode!r}, and {ast.unparse(watched)} gets better the other way", event.node


@rule(
    "BH120",
    "schedule-beside-window",
    "error",
    title="A schedule counts in another unit than its window",
    why="Beside gradient accumulation an update is several batches: a schedule of updates that is stepped in every batch is over after a fraction of the run, one of batches that is stepped once a window never gets there.",
    remedy="step it where the optimizer steps, with its length in updates",
    bad="""
        import torch

        def train(model, loader, loss_fn, epochs, window):
            optimizer = torch.optim.AdamW(model.parameters())
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * (len(loader) // window))
            for epoch in range(epochs):
                for i, (x, y) in enumerate(loader):
                    (loss_fn(model(x), y) / window).backward()
                    if (i + 1) % window == 0 or i + 1 == len(loader):
                        optimizer.step()
                        optimizer.zero_grad()
                    schedule.step()
        """,
    good="""
        import torch

        def train(model, loader, loss_fn, epochs, window):
            optimizer = torch.optim.AdamW(model.parameters())
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * (len(loader) // window))
            for epoch in range(epochs):
                for i, (x, y) in enumerate(loader):
                    (loss_fn(model(x), y) / window).backward()
                    if (i + 1) % window == 0 or i + 1 == len(loader):
                        optimizer.step()
                        schedule.step()
                        optimizer.zero_grad()
        """,
)
def schedule_beside_window(subject: Subject) -> Iterator[Place]:
    """The optimizer steps once a window; the schedule counts updates and steps in every batch, or counts batches and steps once a window."""
    if subject.framework or "accelerate" in subject.program.modules_imported:
        return
    found = list(stepped(subject.program, subject.traces))
    for steps in step_groups(subject) if found else ():
        branch = window_of(steps)
        if branch is not None and fits(steps, branch):
            continue
        for event, made in found if branch is not None else ():
            if steps.loop is None or event.loops[-1:] != (steps.loop,) or event not in steps.trace:
                continue
            own = last_name(keyword(made.call, "optimizer", 0))
            if own and last_name_of_key(steps.step.key) != own and own in {last_name_of_key(e.key) for e in steps.trace if e.kind == "step"}:
                continue  # the schedule of another optimizer
            around = [b for b, taken in event.branches if taken and steps.loop.node in subject.program.ancestors(b)]
            unit = _unit(subject.program, made, _modulus(steps, branch))
            if unit == "updates" and not around:
                yield event.node, f"{made.last} counts updates by its arguments, and is stepped in every batch of a window", made.call
            elif unit == "batches" and around == [branch]:
                yield event.node, f"{made.last} counts batches by its arguments, and is stepped once a window", made.call


def _modulus(steps: Steps, branch: ast.If | None) -> ast.expr:
    """How many batches a window has, as it is written in the condition of the step."""
    test = condition(branch, steps.step.scope) if branch is not None else None
    found = [n.right for n in walk(test) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod)] if test is not None else []
    return found[0] if found else ast.Constant(None)


def _unit(program: Program, made: Origin, window: ast.expr) -> str:
    """Whether a schedule counts updates (something is divided by the window, or is called so) or batches (a multiple of `len(…)`, and nothing is divided)."""
    given = [] if made.last in ("StepLR", "ExponentialLR", "MultiStepLR", "ReduceLROnPlateau", "SequentialLR", "ChainedScheduler") else _lengths(made.call)
    nodes = [n for value in given for n in _behind(program, value, made.scope)]
    divided = [n for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, (ast.Div, ast.FloorDiv))]
    named = {last_name(n) for n in nodes if isinstance(n, (ast.Name, ast.Attribute))} | {n.arg for n in nodes if isinstance(n, ast.arg)}
    arguments = {n.arg for n in nodes if isinstance(n, ast.arg)}
    if any(isinstance(n.left, ast.Name) and n.left.id in arguments and _same(n.right, window) for n in divided):
        return ""  # a function that is given the number of batches, and counts updates of it
    if any(_same(n.right, window) for n in divided) or any({"update", "updates"} & words(n) for n in named):
        return "updates"
    called = {last_name(n.func) for n in nodes if isinstance(n, ast.Call)}
    multiplied = any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult) for n in nodes)
    length_given = made.last in ("OneCycleLR", "CosineAnnealingLR") or made.last.endswith("_with_warmup")
    plain = length_given and "len" in called and called <= PLAIN and (multiplied or keyword(made.call, "steps_per_epoch") is not None)
    return "batches" if plain and not divided and constant(window) != 1 else ""


def _lengths(call: ast.Call) -> list[ast.expr]:
    """The arguments of a schedule that can be numbers of steps, or a function of them."""
    first = 2 if last_name(call.func) == "OneCycleLR" else 1
    return [*call.args[first:], *(k.value for k in call.keywords if k.arg not in ("max_lr", "optimizer"))]


def _behind(program: Program, value: ast.expr, scope: Scope, depth: int = 0) -> Iterator[ast.AST]:
    """All nodes of an expression, of the definitions of its names, and of the functions of this file among them."""
    for node in walk(value):
        yield node
        if depth < 4 and isinstance(node, (ast.Name, ast.Attribute)):
            function = program.local_function(node.id, scope) if isinstance(node, ast.Name) else None
            if function is not None:
                for inner in walk(function.node):
                    yield inner
                    if isinstance(inner, (ast.Name, ast.Attribute)) and isinstance(inner.ctx, ast.Load):
                        yield from (n for b in program.bindings_of(inner, function) for n in _behind(program, b.value, b.scope, depth + 2))
            for binding in program.bindings_of(node, scope):
                if binding.how == "assign":
                    yield from _behind(program, binding.value, binding.scope, depth + 1)


def _same(divisor: ast.expr, window: ast.expr) -> bool:
    """Whether something is divided by the number of batches in a window."""
    number = constant(window)
    return (
        constant(divisor) == number
        if number is not None
        else bool(identifiers(divisor) - {"self"} & identifiers(window) - {"self"}) and not list(calls(window))
    )
