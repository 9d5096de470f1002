"""Rule BH149: a schedule that is stepped in each phase of an epoch."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_scheduler_origin
from training.review.syntax import receiver


@rule(
    "BH149",
    "schedule-stepped-in-each-phase",
    "error",
    title="The schedule is stepped in each phase of an epoch",
    why="A loop over training and validation steps the schedule in both: the rate falls twice as fast as its length says, and a plateau compares the loss of one phase with that of the other.",
    remedy='step it in the train phase alone: `if phase == "train": scheduler.step()`; a plateau in the validation phase',
    bad="""
        import torch

        def fit(optimizer, run_phase, epochs):
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
            for epoch in range(epochs):
                for phase in ["train", "val"]:
                    run_phase(phase, learns=phase == "train")
                    scheduler.step()
        """,
    good="""
        import torch

        def fit(optimizer, run_phase, epochs):
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
            for epoch in range(epochs):
                for phase in ["train", "val"]:
                    run_phase(phase, learns=phase == "train")
                    if phase == "train":
                        scheduler.step()
        """,
)
def schedule_stepped_in_each_phase(subject: Subject) -> Iterator[Place]:
    """Of a loop over phases that was written out, several blocks hold the same step of a schedule."""
    program = subject.program
    same = defaultdict[tuple[int, int], list[ast.Call]](list)
    for call in program.methods_of("step"):
        if hasattr(call, "turn"):
            same[program.lines.get(call.lineno, call.lineno), call.col_offset].append(call)
    for steps in same.values():
        of, scope = receiver(steps[0]), program.scope(steps[0])
        made = program.origins(of, scope)
        named = isinstance(of, (ast.Name, ast.Attribute)) and "sched" in ast.unparse(of).lower()
        if len(steps) > 1 and ((made and all(map(is_scheduler_origin, made))) or (not made and named)):
            yield steps[0], f"{ast.unparse(steps[0].func)} runs in {len(steps)} phases of each epoch"
