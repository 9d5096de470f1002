"""Rules BH121: to BH125: accumulation, optimizers in loops, graphs that are kept."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.loops import Steps, is_epoch_loop, last_name_of_key, step_groups
from training.review.program import Scope
from training.review.signs import READ
from training.review.syntax import (
    calls,
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
from training.review.trace import Event
from training.review.values import loss_kind


def window_of(steps: Steps) -> ast.If | None:
    """The `if (i + 1) % n == 0` around a step, where the backward stands outside of it."""
    if steps.loop is None or any(
        e.within("accumulate") for e in (steps.step, *(b.event for b in steps.backwards))
    ):
        return None
    for branch, taken in steps.step.branches:
        if not (
            taken
            and isinstance(branch, ast.If)
            and bool(nodes_of(condition(branch, steps.step.scope), ast.Mod))
        ):
            continue
        if any((branch, True) in b.event.branches for b in steps.backwards):
            continue
        return branch
    return None


def fits(steps: Steps, branch: ast.If) -> bool:
    """Whether the loop's rows come from something that is given the size of the window too: there
    is no rest.
    """
    head = getattr(steps.loop.node, "iter", None) if steps.loop is not None else None
    sizes = {
        n.right.id
        for n in nodes_of(branch.test, ast.BinOp)
        if isinstance(n.op, ast.Mod) and isinstance(n.right, ast.Name)
    }
    return head is not None and any(
        isinstance(a, ast.Name) and a.id in sizes for c in calls(head) for a in c.args
    )


def _counts_full_windows(subject: Subject, branch: ast.If) -> bool:
    """Whether the file reckons with `len(loader) // n` steps an epoch, or looks at `len(loader) %
    n`, n being the window's size.
    """
    sizes = {
        ast.unparse(n.right) for n in nodes_of(branch.test, ast.BinOp) if isinstance(n.op, ast.Mod)
    }
    sizes |= {size.rpartition(".")[2] for size in sizes}
    return any(
        isinstance(n.op, (ast.FloorDiv, ast.Mod))
        and isinstance(n.left, ast.Call)
        and last_name(n.left.func) == "len"
        and ({ast.unparse(n.right), last_name(n.right)} & sizes)
        for n in subject.program.nodes[ast.BinOp]
    )


def condition(branch: ast.If, scope: Scope) -> ast.expr:
    """The condition of a branch; of a name that is bound once, as `last = (i + 1) % n == 0`, what
    it stands for.
    """
    bound = scope.bindings.get(branch.test.id, []) if isinstance(branch.test, ast.Name) else []
    return (
        bound[0].value
        if len(bound) == 1 and bound[0].how == "assign" and bound[0].index is None
        else branch.test
    )


def _inner_window(steps: Steps) -> bool:
    """Whether the backward stands in a loop of its own, which counts the batches of a window, and
    the step after it.
    """
    heads = [
        x.node.iter
        for b in steps.backwards
        for x in b.event.loops
        if x not in steps.step.loops and isinstance(x.node, ast.For)
    ]
    named = {
        w
        for head in heads
        if isinstance(head, ast.Call) and last_name(head.func) == "range"
        for n in identifiers(head)
        for w in words(n)
    }
    return bool({"accum", "accumulate", "accumulation", "micro", "microbatches", "window"} & named)


@rule("BH121")
def accumulation_not_divided(subject: Subject) -> Iterator[Place]:
    """A step once a window, and between the loss and its backward nothing is divided or scaled."""
    for steps in step_groups(subject):
        if (
            steps.loop is None
            or steps.step.via == "closure"
            or not (window_of(steps) or _inner_window(steps))
            or _scales(subject, steps)
        ):
            continue
        yield (
            steps.backwards[0].event.node,
            (
                "the gradient of a window is a sum over its batches: the loss is not divided by"
                " their number"
            ),
            steps.loop.node,
        )


def _scales(subject: Subject, steps: Steps) -> bool:
    """Whether anything of the loss or of the gradients is divided or multiplied within the loop, or
    where that cannot be seen.
    """
    if steps.loop is None:
        return True
    nodes = [
        steps.loop.node,
        *{e.scope.node for e in steps.inside if e.scope is not steps.loop.scope},
    ]
    for backward in steps.backwards:
        target = receiver(backward.event.node)
        unseen = (
            isinstance(target, ast.Call)
            and method(target) not in ("scale", "mean", "sum", "")
            and not loss_kind(subject.program, target, backward.event.scope)
        )
        if unseen or any(isinstance(n, (ast.Div, ast.Mult)) for n in walk(backward.event.node)):
            return True
    losses = {last_name_of_key(b.event.key) for b in steps.backwards} - {""}
    for node in nodes:
        for part in walk(node):
            arithmetic = (isinstance(part, (ast.BinOp, ast.AugAssign))) and isinstance(
                part.op, (ast.Div, ast.Mult)
            )
            if not arithmetic:
                continue
            statement = subject.program.statement(part)
            touched = identifiers(part) | (
                identifiers(statement)
                if isinstance(statement, (ast.Assign, ast.AugAssign))
                else set()
            )
            if (
                (losses and touched & losses and not _only_logs(statement, losses))
                or "grad" in touched
                or (not losses and any("loss" in n for n in touched))
            ):
                return True
    return any(
        getattr(k.value, "value", "") == "sum"
        for b in calls(subject.program.tree)
        for k in b.keywords
        if k.arg == "reduction"
    )


def _only_logs(statement: ast.stmt, losses: set[str]) -> bool:
    """Whether a statement reads the loss as a number alone, as in `running += loss.item() * n`."""
    plain = [n for n in nodes_of(statement, ast.Name) if n.id in losses]
    read = [
        n
        for n in nodes_of(statement, ast.Attribute)
        if n.attr in ("item", "detach") and last_name(n.value) in losses
    ]
    return len(read) >= len(plain)


@rule("BH122")
def last_window_dropped(subject: Subject) -> Iterator[Place]:
    """A step once a window in a loop that ends, its condition looks at the window alone, no step
    follows the loop, and what is left is cleared.
    """
    for steps in step_groups(subject):
        branch = window_of(steps)
        if (
            branch is None
            or steps.loop is None
            or isinstance(steps.loop.node, ast.While)
            or fits(steps, branch)
            or not isinstance(branch.test, ast.Compare)
        ):
            continue
        if not (
            isinstance(steps.loop.node.iter, ast.Call)
            and last_name(steps.loop.node.iter.func) == "enumerate"
        ):
            continue
        if _counts_full_windows(subject, branch):
            continue  # the rest is left out knowingly, as by drop_last
        if not any(steps.loop not in e.loops for e in steps.trace if e.kind == "zero"):
            # what is left over is carried into the next epoch's first window, and not lost
            continue
        outside = [
            e
            for e in steps.trace
            if e.kind == "step"
            and last_name_of_key(e.key) == last_name_of_key(steps.step.key)
            and steps.loop not in e.loops
        ]
        if not outside and not names_read(branch.test) & {
            n
            for a in subject.program.ancestors(branch)
            if isinstance(a, ast.While)
            for n in names_read(a.test)
        }:
            yield branch, "batches after the last full window are never applied", steps.loop.node


@rule("BH126")
def cleared_in_every_batch(subject: Subject) -> Iterator[Place]:
    """A step once a window, and in the same loop a clear that no condition guards."""
    for steps in step_groups(subject):
        branch = window_of(steps)
        if branch is None or steps.loop is None or not steps.backwards:
            continue
        for clear in steps.clears:
            if (
                clear.event.loops[-1:] == (steps.loop,)
                and clear.event.branches == steps.backwards[0].event.branches
            ):
                yield (
                    clear.event.node,
                    "cleared in every batch, though the step comes once a window",
                    steps.loop.node,
                )


@rule("BH123")
def optimizer_in_loop(subject: Subject) -> Iterator[Place]:
    """An optimizer of torch is made unconditionally in a loop over epochs or batches that trains,
    over parameters from outside of it.
    """
    for trace in subject.traces:
        for event in trace:
            if (
                event.kind != "call"
                or not event.key.startswith("torch.optim.")
                or "lr_scheduler" in event.key
                or last_name_of_key(event.key).islower()
                or not event.loops
                or not event.call.args
            ):
                continue
            loop = event.loops[-1]
            direct = any(e.kind == "backward" and e.loops[-1:] == (loop,) for e in trace)
            if not (direct or is_epoch_loop(loop)) or not any(
                e.kind == "backward" and loop in e.loops for e in trace
            ):
                continue
            inside = {n.id for n in nodes_of(loop.node, ast.Name) if isinstance(n.ctx, ast.Store)}
            conditional = any(
                isinstance(b, ast.If) and loop.node in subject.program.ancestors(b)
                for b, _ in event.branches
            )
            local = (
                event.scope is not loop.scope
            )  # a helper that is called in the loop: what it gets may be new
            if not conditional and not local and not names_read(event.call.args[0]) & inside:
                yield (
                    event.node,
                    "made anew in every passage of the loop: its state is lost",
                    loop.node,
                )


@rule("BH124")
def retain_graph(subject: Subject) -> Iterator[Place]:
    """The only backward of a training loop keeps its graph, and no other gradient is computed in
    it; or the same loss goes backward twice in a row.
    """
    yield from _twice(subject)
    for trace in subject.traces:
        for event in trace:
            if (
                event.kind != "backward"
                or not event.loops
                or not is_true(keyword(event.call, "retain_graph"))
                or keyword(event.call, "create_graph") is not None
            ):
                continue
            inside = [e for e in trace if event.loops[-1] in e.loops]
            others = [
                e
                for e in inside
                if e is not event
                and (
                    e.kind == "backward"
                    or (
                        e.kind == "call" and e.key.rpartition(".")[2] in ("grad", "jacobian", "vjp")
                    )
                )
            ]
            inner = any(e.loops[len(event.loops) :] for e in inside if e is event)
            if _uses_graph(event):
                continue
            if not others and not inner and any(e.kind == "step" for e in inside):
                yield (
                    event.node,
                    "this is the only backward of the loop: nothing uses the graph again",
                    event.loops[-1].node,
                )


def _uses_graph(event: Event) -> bool:
    """Whether what the loss was, or was made of, is given to a function out of sight after backward
    in the same loop.
    """
    statements = [
        n
        for n in walk(event.loops[-1].node)
        if isinstance(n, ast.stmt) and n.lineno > getattr(event.node, "lineno", 0)
    ]
    loss = names_read(receiver(event.call) or event.call)
    made = {
        n
        for s in nodes_of(event.loops[-1].node, ast.Assign)
        if {last_name(t) for t in s.targets} & loss
        for n in names_read(s.value)
    }
    given = [
        c
        for s in statements
        for c in calls(s)
        if any(
            isinstance(a, ast.Name) and a.id in loss | (made & _collected(event)) for a in c.args
        )
    ]
    return any(
        last_name(c.func) not in READ | {"append", "extend", "update", "add", "str", "item"}
        for c in given
    )


def _collected(event: Event) -> set[str]:
    """Names of the loop that hold losses: lists and tables of terms."""
    found = {last_name(t) for s in nodes_of(event.loops[-1].node, ast.Assign) for t in s.targets}
    return {n for n in found if words(n) & {"loss", "losses", "terms", "nll", "objective"}}


def _twice(subject: Subject) -> Iterator[Place]:
    """Two statements in a row that take the same loss backward."""
    program = subject.program
    for statement in program.nodes[ast.Expr]:
        loss = dotted(receiver(statement.value)) if method(statement.value) == "backward" else ""
        parent = program.parents[statement] if loss else None
        body = next(
            (
                b
                for b in (getattr(parent, "body", None), getattr(parent, "orelse", None))
                if isinstance(b, list) and statement in b
            ),
            [],
        )
        after = body[body.index(statement) + 1 :][:1] if body else []
        if (
            after
            and isinstance(after[0], ast.Expr)
            and method(after[0].value) == "backward"
            and dotted(receiver(after[0].value)) == loss
        ):
            yield (
                after[0],
                f"{loss} goes backward a second time, and every gradient is counted twice",
            )


@rule("BH125")
def backward_under_no_grad(subject: Subject) -> Iterator[Place]:
    """A backward inside `no_grad` or `inference_mode` with no `enable_grad` inside of that."""
    for trace in subject.traces:
        for event in trace:
            if (
                event.kind == "backward"
                and event.within("no_grad", "inference_mode")
                and not event.within("enable_grad", "set_grad_enabled")
                and _always(event)
                and not _asked_for(event)
                and not _computed_outside(event, trace)
            ):
                yield event.node, "backward under no_grad: nothing in there has a gradient"


def _computed_outside(event: Event, trace: list[Event]) -> bool:
    """Whether the loss was computed before the block, so that its graph is there."""
    of = receiver(event.node)
    made = [
        e
        for e in trace[: trace.index(event)]
        if e.kind == "assign" and of is not None and e.key == event.frame.key(of)
    ]
    return bool(made) and not made[-1].within("no_grad", "inference_mode")


def _always(event: Event) -> bool:
    """Whether the context is there for certain, and not one of two that a variable may hold."""
    return any(
        name.rpartition(".")[2] in ("no_grad", "inference_mode") and not isinstance(node, ast.Name)
        for name, node in event.contexts
    )


def _asked_for(event: Event) -> bool:
    """Whether a helper does it only where its caller says so, as `if optimizer is not None:`, which
    the caller under `no_grad` need not say.
    """
    asked = {
        n
        for owner, _ in event.branches
        if isinstance(owner, ast.If) and owner in set(walk(event.scope.node))
        for n in names_read(owner.test)
    }
    return event.frame.caller is not None and bool(asked & set(event.scope.parameters))
