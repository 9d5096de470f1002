"""Rules of the training step: clear, backward, step, each in its place."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.loops import Placed, Steps, last_name_of_key, step_groups
from training.review.program import Program
from training.review.roles import is_optimizer, is_scheduler
from training.review.syntax import calls, dotted, identifiers, last_name, receiver, words
from training.review.trace import Event

# words
LOSSES = {"loss", "losses", "cost", "criterion", "objective", "nll"}
TELLS = {"add", "append", "extend", "update", "print", "log", "info", "write", "add_scalar"}

COMPUTE_GRADIENTS = {"grad", "_grad", "grad_and_value", "value_and_grad", "scale_loss"}
NAMED_ALONE = {
    "backward", "step", "zero_grad", "eval", "train", "update", "cuda", "detach", "item", "barrier",
    "synchronize",
}  # fmt: skip


@rule("BH101")
def zero_grad_missing(subject: Subject) -> Iterator[Place]:
    """A loop with `backward` and `step`, or a method called once per batch, and nothing that clears
    the gradients of that optimizer.
    """
    named = subject.program.identifiers | subject.program.called_names
    clears = any(n == "grad" or ("zero" in n and "grad" in n) for n in named)
    for steps in step_groups(subject):
        if steps.clears or not steps.backwards:
            continue
        name = last_name_of_key(steps.step.key).strip("_")
        sound = any(
            (e.kind == "assign" and e.key == steps.step.key)  # a new one for new tensors
            or (e.kind == "zero" and last_name_of_key(e.key).strip("_") == name)
            for e in steps.inside
        )
        if not sound and (steps.loop is not None or (steps.again and not clears)):
            where = "cleared outside this loop only" if steps.clears_outside else "never cleared"
            told = f"the gradient that {steps.name}.step() uses is {where}"
            yield steps.step.node, told, steps.around


@rule("BH102")
def cleared_before_use(subject: Subject) -> Iterator[Place]:
    """In one iteration: backward, clear, step, with no other backward after the clear."""
    for steps in step_groups(subject):
        clear = _cleared_since_backward(steps)
        if clear is not None and any(b.position < clear.position for b in steps.backwards):
            text = ast.unparse(clear.event.node)
            told = f"{text} is between backward and {steps.name}.step(): the gradient is lost"
            yield clear.event.node, told


@rule("BH103")
def step_before_backward(subject: Subject) -> Iterator[Place]:
    """In one iteration the step comes first, and the gradient is cleared before it can be
    used.
    """
    for steps in step_groups(subject):
        late = all(b.position > steps.position for b in steps.backwards)
        if steps.backwards and late and _cleared_since_backward(steps) is not None:
            told = f"{steps.name}.step() comes before backward: its gradient is empty"
            yield steps.step.node, told, steps.around


def _cleared_since_backward(steps: Steps) -> Placed | None:
    """The unconditional clear that lies, going round the loop, between the last backward and the
    step.
    """
    if not (steps.loop is not None or steps.again) or steps.step.via == "closure":
        return None
    ring = sorted([*steps.backwards, *steps.clears], key=lambda placed: placed.position)
    before = [placed for placed in ring if placed.position < steps.position] or ring
    if not before or before[-1] not in steps.clears:
        return None
    clear = before[-1].event
    always = steps.step.under(clear) and clear.loops == steps.step.loops
    return before[-1] if always else None


@rule("BH104")
def backward_missing(subject: Subject) -> Iterator[Place]:
    """A loop that clears and steps an optimizer and computes a loss, in a file where nothing
    computes a gradient.
    """
    program = subject.program
    named = program.called_names | program.identifiers
    if subject.framework or any("backward" in n or n in COMPUTE_GRADIENTS for n in named):
        return
    for steps in step_groups(subject):
        repeated = steps.loop is not None or steps.again
        if not repeated or not steps.clears or steps.step.via or steps.step.call.args:
            continue
        kept = [e.node for e in steps.inside if isinstance(e.node, ast.Assign)]
        losses = {
            last_name(target)
            for node in kept
            if any(words(n) & LOSSES for n in identifiers(node))
            for target in node.targets
        }
        handed_on = any(
            last_name(c.func) not in TELLS and any(last_name(a) in losses for a in c.args)
            for c in (e.node for e in steps.inside if isinstance(e.node, ast.Call))
            if isinstance(program.parents[c], ast.Expr)
        )
        if losses and not handed_on:
            told = f"{steps.name}.step() without a backward: nothing is learned"
            yield steps.step.node, told, steps.around


@rule("BH105")
def step_missing(subject: Subject) -> Iterator[Place]:
    """An optimizer is cleared in the loop of its backward; in the file it never steps, and nothing
    else could step it.
    """
    program = subject.program
    helpers = {n for n in program.called_names if "step" in n}
    cleared = {
        last_name(receiver(c))
        for c in program.methods_of("zero_grad")
        if is_optimizer(program, receiver(c), program.scope(c))
    }
    stepped = {
        last_name(of)
        for c in program.methods_of("step")
        for of in (receiver(c), *c.args)
        if not is_scheduler(program, of, program.scope(c))
    }
    if subject.framework or helpers - {"step"} or stepped - cleared:
        return  # under another name, perhaps
    for trace in subject.traces:
        for event in (e for e in trace if e.kind == "zero" and e.loops):
            around, name = event.loops[-1].node, last_name_of_key(event.key)
            learns = any(e.kind == "backward" and e.loops == event.loops for e in trace)
            given = [a for c in calls(around) for a in (*c.args, *(k.value for k in c.keywords))]
            unseen = name in map(last_name, given) or "grad" in identifiers(around)
            if name in cleared - stepped and learns and not unseen:
                yield event.node, f"{event.key} is cleared but never steps", around


@rule("BH107")
def call_missing(subject: Subject) -> Iterator[Place]:
    """An expression statement that only names a method of training."""
    for node in subject.program.nodes[ast.Expr]:
        if isinstance(node.value, ast.Attribute) and node.value.attr in NAMED_ALONE:
            named = dotted(node.value) or node.value.attr
            yield node.value, f"{named} is named but not called: it does nothing"


@rule("BH125")
def backward_under_no_grad(subject: Subject) -> Iterator[Place]:
    """A backward inside `no_grad` or `inference_mode` of the same function, with a loss from
    inside, in a file that never enables gradients again.
    """
    program = subject.program
    if {"enable_grad", "set_grad_enabled"} & program.identifiers:
        return
    for trace in subject.traces:
        for event in (e for e in trace if e.kind == "backward"):
            key = event.frame.key(receiver(event.node))
            made = [e for e in trace if e.kind == "assign" and e.key == key != ""]
            if _is_off(program, event) and all(_is_off(program, e) for e in made):
                yield event.node, "backward under no_grad: nothing inside has a gradient"


def _is_off(program: Program, event: Event) -> bool:
    """Whether its function switches gradients off around an event, and no variable decides it."""
    return any(
        name.rpartition(".")[2] in ("no_grad", "inference_mode")
        and not isinstance(node, ast.Name)
        and program.scope(node) is event.scope
        for name, node in event.contexts
    )
