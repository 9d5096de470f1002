"""Rule BH609: gradients that `no_sync` keeps from ever being averaged."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.loops import Steps, step_groups
from training.review.program import Program, Scope
from training.review.rules_distributed import REDUCES
from training.review.rules_window import condition, window_of
from training.review.syntax import method
from training.review.trace import Event


@rule(
    "BH609",
    "gradients-never-averaged",
    "error",
    title="no_sync also covers the backward before the step",
    why="DDP averages all gradients of a window in its last backward: where `no_sync` covers that one too, each rank steps by its own rows, and the networks drift apart.",
    remedy="leave the last backward of the window outside of `no_sync`",
    bad="""
        import torch
        from torch.nn.parallel import DistributedDataParallel

        def train(network, optimizer, windows, loss_fn):
            ddp = DistributedDataParallel(network)
            for window in windows:
                optimizer.zero_grad()
                for x, y in window:
                    with ddp.no_sync():
                        (loss_fn(ddp(x), y) / len(window)).backward()
                optimizer.step()
        """,
    good="""
        import contextlib
        import torch
        from torch.nn.parallel import DistributedDataParallel

        def train(network, optimizer, windows, loss_fn):
            ddp = DistributedDataParallel(network)
            for window in windows:
                optimizer.zero_grad()
                for i, (x, y) in enumerate(window):
                    with ddp.no_sync() if i + 1 < len(window) else contextlib.nullcontext():
                        (loss_fn(ddp(x), y) / len(window)).backward()
                optimizer.step()
        """,
)
def gradients_never_averaged(subject: Subject) -> Iterator[Place]:
    """Every backward of a loop that steps is under `no_sync`, or just the one at the end of the window is, in a file that reduces nothing by hand."""
    program = subject.program
    if not any(method(c) == "no_sync" for c in program.all_calls) or REDUCES & program.called_names or "accelerate" in program.modules_imported:
        return
    for steps in step_groups(subject):
        held = [_held_back(program, b.event, steps) for b in steps.backwards]
        if steps.loop is None or not held:
            continue
        if all(h == "always" for h in held):
            yield steps.backwards[-1].event.node, "every backward before this step is under no_sync: ranks never average their gradients", steps.loop.node
        for backward, how in zip(steps.backwards, held, strict=True):
            if how == "at the end":
                yield backward.event.node, "the backward that ends the window is the one under no_sync: ranks never average their gradients", steps.loop.node


def _held_back(program: Program, backward: Event, steps: Steps) -> str:
    """Whether a backward is under `no_sync` always, at the end of its window, or in any other case (empty)."""
    window = window_of(steps)
    ends = "" if window is None else ast.unparse(condition(window, steps.step.scope))
    contexts = [node for name, node in backward.contexts if name.rpartition(".")[2] == "no_sync"]
    chosen = [i for _, node in backward.contexts for i in _choices(program, node, backward.scope)]
    if chosen:
        tests = [ast.unparse(_defined(program, i.test, backward.scope)) for i in chosen if method(i.body) == "no_sync"]
        return "at the end" if ends and ends in tests else ""
    if not contexts:
        return ""
    inside = [b for b in backward.branches if steps.loop is not None and steps.loop.node in program.ancestors(b[0])]
    if any(taken and isinstance(b, ast.If) and ast.unparse(_defined(program, b.test, backward.scope)) == ends for b, taken in inside):
        return "at the end"
    return "" if inside else "always"


def _choices(program: Program, node: ast.AST, scope: Scope) -> list[ast.IfExp]:
    """The conditional expressions that a context manager may be, written there or bound to its name."""
    if isinstance(node, ast.IfExp):
        return [node]
    bound = program.bindings_of(node, scope) if isinstance(node, ast.Name) else []
    return [b.value for b in bound if isinstance(b.value, ast.IfExp)]


def _defined(program: Program, test: ast.expr, scope: Scope) -> ast.expr:
    """What a name stands for that is bound once; anything else as it is."""
    bound = program.bindings_of(test, scope) if isinstance(test, ast.Name) else []
    return bound[0].value if len(bound) == 1 and bound[0].how == "assign" and bound[0].index is None else test
