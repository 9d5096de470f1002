"""Rules of windows of several batches, of clipping, and of what is kept from step to step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.loops import Steps, is_epoch_loop, last_name_of_key, step_groups
from training.review.program import Origin, Program
from training.review.roles import is_optimizer_origin
from training.review.syntax import (
    calls,
    constant,
    dotted,
    identifiers,
    is_true,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    receiver,
    walk,
    words,
)
from training.review.trace import Loop
from training.review.values import loss_kind, value_of

# words
WINDOWS = {"accum", "accumulate", "accumulation", "micro", "microbatches", "window"}
ONLY_READ = {
    "print", "isnan", "isfinite", "float", "round", "log", "info", "debug", "add_scalar", "write",
    "len", "log_metrics", "append", "extend", "update", "add", "str",
}  # fmt: skip


def _window(program: Program, steps: Steps) -> tuple[ast.If, ast.expr] | None:
    """The `if (i + 1) % n == 0` around a step, where the backward is outside of it, and its
    condition.
    """
    backwards = [b.event for b in steps.backwards]
    if not backwards or any(e.within("accumulate") for e in (steps.step, *backwards)):
        return None
    for branch, taken in steps.step.branches if steps.loop is not None else ():
        if taken and isinstance(branch, ast.If):
            test = value_of(program, branch.test, steps.step.scope)
            if _sizes(test) and not any((branch, True) in b.branches for b in backwards):
                return branch, test
    return None


def _sizes(test: ast.AST) -> set[str]:
    """By what a condition divides with a rest, as names or numbers."""
    found = [n.right for n in nodes_of(test, ast.BinOp) if isinstance(n.op, ast.Mod)]
    return {last_name(n) or ast.unparse(n) for n in found}


def _stored(loop: Loop) -> set[str]:
    """The names and attributes that a loop gives a value."""
    found = [n for n in walk(loop.node) if isinstance(n, (ast.Name, ast.Attribute))]
    return {dotted(n) for n in found if isinstance(n.ctx, ast.Store)} - {""}


@rule("BH106")
def clip_misplaced(subject: Subject) -> Iterator[Place]:
    """A clip between step and the next backward of the loop, or before the first; or one after each
    backward of a window.
    """
    yield from _clipped_in_every_batch(subject)
    for trace in subject.traces:
        for at, clip in ((i, e) for i, e in enumerate(trace) if e.kind == "clip"):
            around = clip.loops[-1].node if clip.loops else clip.scope.node
            near = [
                (i, e.kind)
                for i, e in enumerate(trace)
                if e.kind in ("backward", "step")
                and (clip.loops[-1] in e.loops if clip.loops else not e.loops)
            ]
            before, after = [k for i, k in near if i < at], [k for i, k in near if i > at]
            if {"backward", "step"} - {*before, *after}:
                continue
            if before[-1:] == ["step"] and after[:1] != ["step"]:
                yield clip.node, "gradients are clipped after the step that used them", around
            elif clip.loops and not before and after[0] == "backward":
                yield clip.node, "gradients are clipped before backward has computed them", around


def _clipped_in_every_batch(subject: Subject) -> Iterator[Place]:
    """A clip next to a backward that adds to a window, whose step waits for the end of it."""
    for steps in step_groups(subject):
        waits = _window(subject.program, steps) is not None and steps.step.via != "closure"
        for clip in (e for e in steps.inside if e.kind == "clip" and not e.via and e.loops):
            place, inner = (clip.loops, clip.branches), clip.loops[-1]
            added = any((b.event.loops, b.event.branches) == place for b in steps.backwards)
            cleared = any((c.event.loops, c.event.branches) == place for c in steps.clears)
            apart = clip.scope is inner.scope and not any(
                e.kind == "step" and inner in e.loops for e in steps.trace
            )
            late = apart or (waits and clip.loops == steps.step.loops)
            most = keyword(clip.call, "max_norm", 1)
            measures = most is not None and "inf" in ast.unparse(most)
            of_passage = names_read(clip.call) & _stored(inner)  # another network each time
            if added and late and not (cleared or measures or of_passage):
                told = f"after every backward, and {steps.name}.step() comes once for several"
                yield clip.node, f"gradients are clipped {told}: their sum is larger", inner.node


@rule("BH121")
def accumulation_not_divided(subject: Subject) -> Iterator[Place]:
    """A step once per window, and in its loop nothing of the loss is divided or scaled."""
    if any(constant(k.value) == "sum" for k in subject.program.nodes[ast.keyword]):
        return
    for steps in step_groups(subject):
        window, sizes = _window(subject.program, steps), _counted_window(steps)
        if steps.loop is None or steps.step.via == "closure" or not (window or sizes):
            continue
        sizes |= _sizes(window[1]) if window else set()
        if not _scales(subject.program, steps, steps.loop, sizes):
            told = "the gradient of a window is a sum over its batches: the loss is not divided"
            yield steps.backwards[0].event.node, f"{told} by their number", steps.loop.node


def _counted_window(steps: Steps) -> set[str]:
    """The size of a `for … in range(accumulate):` that holds the backward, the step after it."""
    loops = {x for b in steps.backwards for x in b.event.loops} - {*steps.step.loops}
    heads = [identifiers(getattr(x.node, "iter", None)) for x in loops]
    return {n for head in heads if "range" in head for n in head if words(n) & WINDOWS}


def _scales(program: Program, steps: Steps, loop: Loop, sizes: set[str]) -> bool:
    """Whether the loss, a gradient, or anything by the window's size is divided or multiplied in
    the loop and the helpers called there, or the loss is computed out of sight.
    """
    for event in (b.event for b in steps.backwards):
        of = receiver(event.node)
        own = not isinstance(of, ast.Call) or method(of) in ("scale", "mean", "sum", "")
        seen = own or (isinstance(of, ast.Call) and loss_kind(program, of, event.scope))
        if not seen or any(isinstance(n, (ast.Div, ast.Mult)) for n in walk(event.node)):
            return True
    losses = {last_name_of_key(b.event.key) for b in steps.backwards} - {""}
    helpers = {e.scope.node for e in steps.inside if e.scope is not loop.scope}
    for part in (n for node in (loop.node, *helpers) for n in walk(node)):
        scales = isinstance(getattr(part, "op", None), (ast.Div, ast.Mult))
        if not scales or {"item", "detach"} & identifiers(part):
            continue  # a number alone
        statement = program.statement(part)
        plain = isinstance(statement, (ast.Assign, ast.AugAssign))
        touched = identifiers(statement if plain else part)
        of_loss = touched & losses if losses else any("loss" in n for n in touched)
        if of_loss or (sizes | {"grad"}) & touched:
            return True
    return False


@rule("BH122")
def last_window_dropped(subject: Subject) -> Iterator[Place]:
    """A step once per window by the counter of `enumerate`; no step follows the loop, and what
    is left is cleared.
    """
    program = subject.program
    for steps in step_groups(subject):
        window, loop = _window(program, steps), steps.loop
        head = loop.node.iter if loop and isinstance(loop.node, ast.For) else None
        if not isinstance(head, ast.Call) or last_name(head.func) != "enumerate" or not window:
            continue
        branch, test = window
        fits = any(last_name(a) in _sizes(test) for c in calls(head) for a in c.args)
        reckoned = any(  # `len(loader) // n`: the rest is left out knowingly
            isinstance(n.op, (ast.FloorDiv, ast.Mod))
            and "len" in identifiers(n.left)
            and last_name(n.right) in _sizes(test)
            for n in program.nodes[ast.BinOp]
        )
        outside = [e for e in steps.trace if loop not in e.loops]
        applied = any(e.kind == "step" and e.key == steps.step.key for e in outside)
        cleared = any(e.kind == "zero" for e in outside)
        counted = any(isinstance(x.node, ast.While) for x in steps.step.loops)
        plain = isinstance(branch.test, ast.Compare) and not (fits or reckoned or counted)
        if plain and cleared and not applied:
            yield branch, "batches after the last full window are never applied", steps.around


@rule("BH126")
def cleared_in_every_batch(subject: Subject) -> Iterator[Place]:
    """A step once per window, and in the same loop a clear that no condition guards."""
    for steps in step_groups(subject):
        if _window(subject.program, steps) is not None:
            for clear in _clears_of_each_batch(steps):
                told = "cleared in every batch, though the step comes once per window"
                yield clear, told, steps.around


def _clears_of_each_batch(steps: Steps) -> list[ast.AST]:
    """The clears in the loop of a step, under no other condition than its backward."""
    free = [b.event.branches for b in steps.backwards[:1]]
    clears = [c.event for c in steps.clears if c.event.loops[-1:] == (steps.loop,)]
    return [c.node for c in clears if c.branches in free]


@rule("BH140")
def first_window_of_one_batch(subject: Subject) -> Iterator[Place]:
    """After a backward that nothing guards, a step where a counter from 0 divides evenly: the
    counter of the loop itself, or of `enumerate`.
    """
    for steps in step_groups(subject):
        window, loop = _window(subject.program, steps), steps.loop
        if window is None or loop is None or not isinstance(loop.node, ast.For):
            continue
        (branch, test), counter = window, _from_zero(loop.node)
        asked = ast.unparse(test).split(" or ")
        rests = [n for n in nodes_of(test, ast.BinOp) if ast.unparse(n.left) == counter]
        texts = {ast.unparse(n) for n in rests if isinstance(n.op, ast.Mod)}
        first = any({f"not {text}", f"{text} == 0"} & {*asked} for text in texts)
        written = counter in {last_name(n.target) for n in nodes_of(loop.node, ast.AugAssign)}
        if counter and first and not written and not _clears_of_each_batch(steps):
            told = f"{ast.unparse(test)} is true for the first batch already, as {counter} counts"
            yield branch, f"{told} from 0: the first window holds one batch", loop.node


def _from_zero(loop: ast.For) -> str:
    """The name that counts the iterations of a loop from 0; empty where there is none."""
    head, target = loop.iter, loop.target
    while isinstance(head, ast.Call) and last_name(head.func) in ("tqdm", "track") and head.args:
        head = head.args[0]
    if not isinstance(head, ast.Call):
        return ""
    if last_name(head.func) == "enumerate" and isinstance(target, ast.Tuple):
        start = keyword(head, "start", 1)
        return last_name(target.elts[0]) if start is None or constant(start) == 0 else ""
    return last_name(target) if last_name(head.func) == "range" and len(head.args) == 1 else ""


@rule("BH123")
def optimizer_in_loop(subject: Subject) -> Iterator[Place]:
    """An optimizer of torch is made unconditionally in a loop over epochs or batches that trains,
    over parameters from outside of it.
    """
    for trace in subject.traces:
        for event in trace:
            if event.kind != "call" or not event.loops or not event.call.args:
                continue
            if not is_optimizer_origin(Origin(event.key, event.call, event.scope)):
                continue
            loop = event.loops[-1]
            learning = [e for e in trace if e.kind == "backward" and loop in e.loops]
            direct = any(e.loops[-1] is loop for e in learning) or is_epoch_loop(loop)
            conditional = any(b in set(walk(loop.node)) for b, _ in event.branches)
            local = event.scope is not loop.scope  # a helper may be given something new
            given = {dotted(n) for n in walk(event.call.args[0])}
            if learning and direct and not (conditional or local or given & _stored(loop)):
                told = "created again in every iteration of the loop: its state is lost"
                yield event.node, told, loop.node


@rule("BH124")
def retain_graph(subject: Subject) -> Iterator[Place]:
    """The only backward of a training loop keeps its graph, no other gradient is computed in it,
    and the loss is given to no function out of sight afterwards.
    """
    for trace in subject.traces:
        for event in (e for e in trace if e.kind == "backward" and e.loops):
            keeps = is_true(keyword(event.call, "retain_graph"))
            if not keeps or keyword(event.call, "create_graph") is not None:
                continue
            loop = event.loops[-1]
            inside = [e for e in trace if loop in e.loops and e is not event]
            again = any(
                e.kind == "backward" or e.key.rpartition(".")[2] in ("grad", "jacobian", "vjp")
                for e in inside
            )
            loss = names_read(receiver(event.call) or event.call)
            used = any(
                last_name(c.func) not in ONLY_READ and any(last_name(a) in loss for a in c.args)
                for c in calls(loop.node)
                if c.lineno > event.call.lineno
            )
            if any(e.kind == "step" for e in inside) and not again and not used:
                told = "this is the only backward of the loop: nothing uses the graph again"
                yield event.node, told, loop.node
