"""Rule BH152: a step that takes the gradient of the last of several batches alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program
from training.review.syntax import calls, method, receiver, walk


@rule(
    "BH152",
    "only-last-batch-is-trained-on",
    "error",
    title="Of several batches only the last is trained on",
    why="Each round of the inner loop puts another loss under the same name, and backward stands behind it: the gradient is that of the last batch, the others were computed for nothing.",
    remedy="call `backward` within the loop, for each batch",
    bad="""
        import torch

        def step(model, optimizer, loss_fn, batches):
            optimizer.zero_grad()
            for x, y in batches:
                loss = loss_fn(model(x), y) / len(batches)
            loss.backward()
            optimizer.step()
        """,
    good="""
        import torch

        def step(model, optimizer, loss_fn, batches):
            optimizer.zero_grad()
            for x, y in batches:
                loss = loss_fn(model(x), y) / len(batches)
                loss.backward()
            optimizer.step()
        """,
)
def only_last_batch_is_trained_on(subject: Subject) -> Iterator[Place]:
    """A loop over inputs and labels gives a name its loss anew in each round, nothing in it reads that name, and `backward` of the name follows the loop."""
    program = subject.program
    for call in (c for c in program.methods_of("backward") if isinstance(receiver(c), ast.Name)):
        statement, name = program.statement(call), receiver(call).id  # type: ignore[union-attr]
        block = _block(program, statement)
        before = [s for s in block[: block.index(statement)] if isinstance(s, ast.For)] if statement in block else []
        for loop in before:
            if isinstance(loop.target, ast.Tuple) and _given_in(loop, name) and not _made_after(block, loop, statement, name):
                yield call, f"each round of the loop in line {loop.lineno} makes another {name}, and this is backward of the last one", loop


def _block(program: Program, statement: ast.stmt) -> list[ast.stmt]:
    """The statements among which one stands."""
    above = program.parents[statement]
    return next((b for part in ("body", "orelse", "finalbody") if statement in (b := getattr(above, part, []))), [])


def _given_in(loop: ast.For, name: str) -> bool:
    """Whether each round gives the name a loss of its own rows: it is made of the loop's targets in the loop's own block, read by nothing there, and rounds hand nothing on."""
    made = [s for s in loop.body if isinstance(s, ast.Assign) and [t.id for t in s.targets if isinstance(t, ast.Name)] == [name]]
    if len(made) != 1 or not any(isinstance(n, ast.Call) for n in walk(made[0].value)):
        return False
    own = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)}
    steps = [s for outer in loop.body for s in walk(outer) if isinstance(s, ast.stmt) and not isinstance(s, (ast.With, ast.If))]
    if any(isinstance(s, (ast.AugAssign, ast.Break, ast.For, ast.While)) for s in steps):
        return False
    given = {n: _stored(s) for n, s in enumerate(steps)}
    for n, s in enumerate(steps):  # what is read before it gets a value was handed on by the round before
        later = {name for m in range(n, len(steps)) for name in given[m]} - {name for m in range(n) for name in given[m]}
        if _loaded(s) & later:
            return False
        own |= given[n] if _loaded(s) & own else set()
    kept = any(name in _loaded(s) for s in steps)
    return not kept and bool(_loaded(made[0]) & own) and not any(method(c) in ("backward", "append", "step") for s in loop.body for c in calls(s))


def _loaded(node: ast.AST) -> set[str]:
    return {n.id for n in walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _stored(node: ast.AST) -> set[str]:
    return {n.id for n in walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _made_after(block: list[ast.stmt], loop: ast.For, until: ast.stmt, name: str) -> bool:
    """Whether the name gets another value between the loop and the backward."""
    between = block[block.index(loop) + 1 : block.index(until)]
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for s in between for n in walk(s))
