"""Loops over held-out batches, for the rules that choose by them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Subject
from training.review.kinds import HELD_OUT, is_frozen_name, looks_held_out
from training.review.loops import last_name_of_key
from training.review.syntax import (
    identifiers,
    nodes_of,
    once,
    words,
)
from training.review.trace import Event, Loop


@once
def evaluations(subject: Subject) -> tuple[tuple[Loop, list[Event], list[Event]], ...]:
    """Loops over validation or test batches: the loop, the forward passes in it, and the trace.

    A loop with a backward is none; nor is one in a class whose base runs the loop.
    """
    return () if subject.framework else tuple(_evaluations(subject))


def _evaluations(subject: Subject) -> Iterator[tuple[Loop, list[Event], list[Event]]]:
    for trace in subject.traces:
        loops = list(dict.fromkeys(e.loops[-1] for e in trace if e.loops))
        for loop in loops:
            inside = [e for e in trace if loop in e.loops]
            own = (
                loop.scope.owner is not None
                and loop.scope.name == "forward"
                and subject.program.is_module(loop.scope.owner)
            )  # a pass of the network
            if (
                own
                or any(
                    e.kind in ("backward", "step")
                    or (e.kind == "call" and e.key.endswith("autograd.grad"))
                    for e in inside
                )
                or not _over_held_out(loop, inside)
            ):
                continue
            forwards = [e for e in inside if e.kind == "forward" and not is_frozen_name(e.key)]
            if forwards:
                yield loop, forwards, trace


def _over_held_out(loop: Loop, inside: list[Event]) -> bool:
    """Whether a loop goes over held-out batches, by the names in its head, those its caller passes
    for them, or that of its function.
    """
    if isinstance(loop.node, ast.While):
        return False
    frame = next((e.frame for e in inside if e.scope is loop.scope), None)
    passed = (
        {last_name_of_key(frame.key(n)) for n in nodes_of(loop.node.iter, ast.Name)}
        if frame is not None
        else set()
    )
    heads = identifiers(loop.node.iter) | passed
    if any(looks_held_out(n) for n in heads):
        return True
    owner = loop.scope.owner.name if loop.scope.owner is not None else ""
    spoken = words(loop.scope.name) | words(owner)  # EvalCallback.on_epoch_end
    named = bool((HELD_OUT | {"validate", "evaluate"}) & spoken) and not {"train", "fit"} & spoken
    return named and any(
        w in ("loader", "dataloader", "batches", "dl", "data", "dataset", "iterator")
        for n in heads
        for w in words(n)
    )
