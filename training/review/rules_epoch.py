"""Rules BH128: training leaves the loop after its first batch; BH129: the network is made anew in
each epoch; BH130: the optimizer steps once an epoch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.additions import additions
from training.review.findings import Place, Subject, rule
from training.review.loops import is_loader_loop, names_loader, step_groups
from training.review.program import Program, Scope
from training.review.syntax import (
    calls,
    children,
    constant,
    dotted,
    identifiers,
    last_name,
    method,
    names_read,
    nodes_of,
    receiver,
    walk,
    words,
)
from training.review.trace import Loop


@rule("BH128")
def loop_left_after_one_batch(subject: Subject) -> Iterator[Place]:
    """The body of a loop that steps an optimizer over batches ends with a `break` that is under no
    condition; or that of one that adds something up with a `return`.
    """
    for steps in step_groups(subject):
        loop = steps.loop
        if (
            loop is not None
            and isinstance(loop.node, ast.For)
            and isinstance(loop.node.body[-1], ast.Break)
            and is_loader_loop(loop)
            and not _goes_on(loop.node)
        ):
            yield (
                loop.node.body[-1],
                "every passage over the batches ends after the first one",
                loop.node,
            )
    for node in subject.program.nodes[ast.For]:
        if (
            isinstance(node.body[-1], ast.Return)
            and names_loader(node.iter)
            and any(additions(node))
            and not _goes_on(node)
        ):
            yield (
                node.body[-1],
                (
                    "the function returns after the first batch, and what it adds up is of that one"
                    " alone"
                ),
                node,
            )


def _goes_on(loop: ast.For) -> bool:
    """Whether a `continue` of the loop itself leads past the break at its end."""
    pending: list[ast.AST] = list(loop.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Continue):
            return True
        if not isinstance(node, (ast.For, ast.While, ast.AsyncFor)):
            pending += children(node)
    return False


@rule("BH129")
def network_made_in_each_epoch(subject: Subject) -> Iterator[Place]:
    """Right in the body of a loop that is named after epochs, a network is made whose parameters
    are optimized there.
    """
    program = subject.program
    for loop in program.nodes[ast.For]:
        if not any(
            "epoch" in w and w != "epochs" for n in identifiers(loop.target) for w in words(n)
        ):
            continue
        if not (
            isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) in COUNTS_ROUNDS
        ):  # checkpoints, say: a network for each is meant
            continue
        kept = {
            last_name(a)
            for c in calls(loop)
            if method(c) in ("append", "add_module", "extend")
            for a in c.args
        }
        held = {dotted(receiver(c)) for c in calls(loop) if method(c) == "parameters"}
        for statement in loop.body:
            if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
                continue
            if (
                _makes_network(program, statement.value)
                and dotted(statement.targets[0]) in held - kept
            ):
                yield (
                    statement,
                    f"{dotted(statement.targets[0])} starts from new random weights in each epoch",
                    loop,
                )


COUNTS_ROUNDS = {"range", "trange", "tqdm", "count", "enumerate"}


def _makes_network(program: Program, call: ast.Call) -> bool:
    if program.is_torch(call.func, "Sequential"):
        return True
    owner = program.classes.get(dotted(call.func))
    return owner is not None and program.is_module(owner)


@rule("BH130")
def step_after_the_loop(subject: Subject) -> Iterator[Place]:
    """Every backward before a step stands in a loop over batches that does not hold the step, and
    clears in it too, or divides nothing; or behind it, of a loss that it left.
    """
    for steps in step_groups(subject):
        for loop in (
            found
            for b in steps.backwards
            if (found := _left_by(subject.program, b.event.node)) is not None
        ):
            yield (
                steps.step.node,
                "one update for each passage over the batches, by the loss of its last batch alone",
                loop,
            )
        loops = [
            b.event.loops[-1]
            for b in steps.backwards
            if b.event.loops and b.event.loops[-1] not in steps.step.loops
        ]
        if (
            steps.step.via
            or not loops
            or len(loops) < len(steps.backwards)
            or not all(map(_over_batches, loops))
        ):
            continue
        if any(e.kind == "step" and set(e.loops) & set(loops) for e in steps.trace):
            continue
        cleared = any(set(c.event.loops) & set(loops) for c in steps.clears)
        if not cleared and _changes_gradients(steps.step.scope):
            continue
        if cleared or not any(
            _divides(x.node) or any(map(_divides, _called_in(subject.program, x))) for x in loops
        ):
            of = (
                "the gradient of its last batch alone"
                if cleared
                else "a sum over all batches that nothing divides"
            )
            yield (
                steps.step.node,
                f"one update for each passage over the batches, by {of}",
                loops[0].node,
            )


def _left_by(program: Program, call: ast.AST) -> ast.For | None:
    """The loop over batches, beside a backward pass, in which alone its loss is made, anew for each
    batch.
    """
    loss, scope = receiver(call), program.scope(call)
    bound = scope.bindings.get(loss.id, []) if isinstance(loss, ast.Name) else []
    if not bound or not any(isinstance(a, (ast.For, ast.While)) for a in program.ancestors(call)):
        return None
    for binding in bound:
        loop = next(
            (a for a in program.ancestors(binding.statement) if isinstance(a, ast.For)), None
        )
        if (
            binding.how != "assign"
            or loop is None
            or loop in program.ancestors(call)
            or not names_loader(loop.iter)
            or {last_name(loss)} & names_read(binding.value)
        ):
            return None
    return loop


def _called_in(program: Program, loop: Loop) -> list[ast.AST]:
    """The functions of the file that a loop calls."""
    return [f.node for c in calls(loop.node) for f in program.callees(c, loop.scope)]


def _changes_gradients(scope: Scope) -> bool:
    """Whether a function divides or scales gradients itself, after all batches have added
    to them.
    """
    changed = [n for n in nodes_of(scope.node, ast.AugAssign) if last_name(n.target) == "grad"]
    return bool(changed) or any(
        method(c) in ("div_", "mul_") and last_name(receiver(c)) == "grad"
        for c in calls(scope.node)
    )


def _divides(loop: ast.AST) -> bool:
    """Whether something in a loop is divided, or as a whole multiplied by what is no written
    number, or a loss is a sum.
    """
    for node in walk(loop):
        if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Div):
            return True
        made = (
            node.value
            if isinstance(node, ast.Assign)
            else receiver(node)
            if method(node) == "backward"
            else None
        )
        if (
            isinstance(made, ast.BinOp)
            and isinstance(made.op, ast.Mult)
            and constant(made.left) is constant(made.right) is None
        ):
            return True
        if constant(node) == "sum" or method(node) in (
            "div",
            "div_",
            "accumulate",
            "backward_step",
        ):
            return True
    return False


def _over_batches(loop: Loop) -> bool:
    return isinstance(loop.node, ast.For) and is_loader_loop(loop)
