"""Rule BH143: schedules that start anew in each epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_scheduler_origin
from training.review.loops import is_epoch_loop, is_loader_loop
from training.review.program import Origin
from training.review.syntax import constant, keyword, last_name, nodes_of, walk, words
from training.review.trace import Event, Loop

OF_THEIR_OWN = {
    "task", "round", "stage", "phase", "cycle", "fold", "session", "client", "trial", "seed", "run",
    "restart", "snapshot", "experience", "domain",
}  # fmt: skip
RESETS = {"reset", "restart", "rewind"}


@rule("BH143")
def schedule_made_in_each_epoch(subject: Subject) -> Iterator[Place]:
    """In a loop whose passages each go over a loader once a schedule is made unconditionally, for
    an optimizer from outside of it, and stepped there.

    A loop over stages, each of several epochs, is sound; so is one that sets the rate by hand or
    makes the optimizer anew.
    """
    for trace in subject.traces:
        for at, event in enumerate(trace):
            if (
                event.kind != "call"
                or not event.loops
                or not is_scheduler_origin(Origin(event.key, event.call, event.scope))
            ):
                continue
            loop, optimizer = event.loops[-1], event.frame.key(keyword(event.call, "optimizer", 0))
            if keyword(event.call, "last_epoch") is not None or _cycle_of_one_passage(event.call):
                continue
            inside = [e for e in trace if loop in e.loops]
            passages = {e.loops[e.loops.index(loop) + 1 :] for e in inside if e.kind == "backward"}
            once = len(passages) == 1 and len(next(iter(passages))) == 1
            if (
                not optimizer
                or not once
                or not _counts_epochs(loop)
                or is_loader_loop(loop)
                or _conditional(subject, event, loop)
                or _begins_anew(inside, optimizer)
            ):
                continue
            key = next(
                (
                    e.key
                    for e in trace[at + 1 : at + 4]
                    if e.kind == "assign" and event.node in set(walk(e.node))
                ),
                "",
            )
            if key and any(e.kind == "schedule" and e.key == key for e in inside):
                yield (
                    event.node,
                    (
                        f"{last_name(event.call.func)} begins from its first step in every passage"
                        " of the loop"
                    ),
                    loop.node,
                )


def _cycle_of_one_passage(call: ast.Call) -> bool:
    """Whether a schedule sets its own first rate when it is made, and is said to be one epoch long:
    a cycle in each.
    """
    return last_name(call.func) == "OneCycleLR" and constant(keyword(call, "epochs")) == 1


def _counts_epochs(loop: Loop) -> bool:
    """Whether a loop counts passages over the rows, and nothing that may have a schedule of its
    own.
    """
    head = loop.node.test if isinstance(loop.node, ast.While) else loop.node.target
    named = {
        w
        for n in walk(head)
        if isinstance(n, (ast.Name, ast.Attribute))
        for w in words(last_name(n))
    }
    return is_epoch_loop(loop) and not OF_THEIR_OWN & named


def _conditional(subject: Subject, event: Event, loop: Loop) -> bool:
    """Whether it is made in some passages only."""
    return any(
        isinstance(b, (ast.If, ast.ExceptHandler))
        for b, _ in event.branches
        if loop.node in _around(subject, b, event, loop)
    )


def _around(subject: Subject, branch: ast.AST, event: Event, loop: Loop) -> set[ast.AST]:
    """The loop, where a branch lies in it: as it is written, or in a function that is called from
    there.
    """
    written = loop.node in subject.program.ancestors(branch)
    return {loop.node} if written or event.scope is not loop.scope else set()


def _begins_anew(inside: list[Event], optimizer: str) -> bool:
    """Whether the optimizer is made, loaded, or given its rate within the loop."""
    root = optimizer.partition("[")[0]
    for event in inside:
        if event.kind in ("assign", "augment") and (
            event.key == optimizer or event.key.partition("[")[0] == root
        ):
            return True
        if isinstance(event.node, (ast.Assign, ast.AugAssign)) and any(
            n.value in ("lr", "initial_lr") for n in nodes_of(event.node, ast.Constant)
        ):
            return True
        if (
            event.kind == "call"
            and RESETS & words(last_name(event.call.func))
            and {"lr", "lrs", "rate", "rates"} & words(last_name(event.call.func))
        ):
            return True
        if (
            event.kind == "call"
            and event.key.endswith("load_state_dict")
            and event.key.partition(".")[0] == root.partition(".")[0]
        ):
            return True
    heads = {e.loops for e in inside}
    return any(
        not isinstance(x.node, ast.While) and last_name(x.node.target) == root
        for loops in heads
        for x in loops
    )
