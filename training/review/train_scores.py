"""Which scores are of train rows, whatever they are called: what the loop that calls `backward`
computes and adds up.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.kinds import looks_held_out
from training.review.program import Binding, Program, Scope
from training.review.syntax import (
    calls,
    identifiers,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes_of,
    receiver,
    walk,
)

READS = {
    "item", "float", "detach", "cpu", "len", "size", "mean", "sum", "numpy", "round", "max", "min",
    "abs", "tensor", "fmean", "average", "double", "tolist",
}  # fmt: skip
Loops = ast.For | ast.AsyncFor | ast.While


def is_train_score(program: Program, score: ast.expr, scope: Scope, loop: ast.AST) -> bool:
    """Whether a score that is looked at in a loop is one that a loop with a `backward` in it made
    of its loss.
    """
    names = {n for n in names_read(score) if n in scope.bindings}
    if not names or any(looks_held_out(n) for n in identifiers(score)) or not _only_reads(score):
        return False
    chosen = [
        b
        for n in names
        for b in scope.bindings[n]
        if any(isinstance(a, ast.If) for a in program.ancestors(b.statement))
    ]
    if any(looks_held_out(i) for b in chosen for i in identifiers(b.value)):
        return False  # in another branch it is a held-out score
    made = [_of_backward(program, name, scope, score, loop, 0) for name in sorted(names)]
    return True in made and False not in made


def held_out_at_hand(loop: ast.AST) -> str:
    """What a loop measures on held-out rows, as it is written; empty where it measures nothing
    there.
    """
    for node in nodes_of(loop, ast.Assign):
        if isinstance(node.value, ast.Call):
            given = [*node.value.args, *(k.value for k in node.value.keywords)]
            if any(looks_held_out(n) for a in given for n in identifiers(a)) and any(
                isinstance(n, ast.Name) for t in node.targets for n in walk(t)
            ):
                return ast.unparse(node.value)
    held = (
        n
        for n in nodes_of(loop, ast.For)
        if n is not loop and any(map(looks_held_out, identifiers(n.iter)))
    )
    return next(
        (
            f"the loop over {ast.unparse(n.iter)}"
            for n in held
            if not any(method(c) in ("backward", "manual_backward") for c in calls(n))
        ),
        "",
    )


def _of_backward(
    program: Program, name: str, scope: Scope, use: ast.expr, loop: ast.AST, depth: int
) -> bool | None:
    """Whether a name holds such a score at its use; None where it is a mere number or counter."""
    last = _last_binding(program, name, scope, use, loop)
    if last is None or depth > 3:
        return (
            None
            if depth <= 3
            and scope.bindings.get(name)
            and all(b.how != "loop" for b in scope.bindings[name])
            else False
        )
    inner = next((a for a in program.ancestors(last.statement) if isinstance(a, Loops)), loop)
    losses = loss_names(program, inner)
    if name in losses or (_only_reads(last.value) and losses & names_read(last.value)):
        return last.how in ("assign", "augment")
    if any(
        losses_of(program, name, scope, inside)
        for inside in walk(loop)
        if isinstance(inside, Loops)
    ):
        return True
    if (
        last.how == "augment"
        and losses
        and _made_in(inner, last.value)
        and isinstance(inner, Loops)
        and _unconditional(program, inner)
    ):
        return True  # right answers are counted where the network learns
    if last.how == "augment":
        return None if isinstance(last.value, ast.Constant) or _counts(last.value) else False
    if (
        isinstance(last.value, ast.Call)
        and (function := program.callees_by_name(last.value, scope)) is not None
    ):
        given = {
            n
            for a in (*last.value.args, *(k.value for k in last.value.keywords))
            for n in identifiers(a)
        }
        return not any(map(looks_held_out, given)) and _returns_train_score(program, function)
    if isinstance(last.value, ast.Constant):
        return None
    if not _only_reads(last.value):
        return False
    behind = {n for n in names_read(last.value) if n in scope.bindings}
    found = [
        _of_backward(program, n, scope, last.value, loop, depth + 1)
        for n in sorted(behind)
        if n != name
    ]
    return True if True in found and False not in found else False if False in found else None


def _made_in(loop: ast.AST, value: ast.expr) -> bool:
    """Whether an expression reads what the rounds of a loop make, and does no more than
    count it.
    """
    made = {
        n.id for s in nodes_of(loop, ast.Assign) for t in s.targets for n in nodes_of(t, ast.Name)
    }
    return (
        _only_reads(value)
        and not isinstance(value, ast.Constant)
        and not _counts(value)
        and bool(names_read(value) & made)
    )


def _unconditional(program: Program, loop: ast.AST) -> bool:
    """Whether each round of a loop trains."""
    backward = [c for c in calls(loop) if method(c) in ("backward", "manual_backward")]
    return any(
        not any(
            isinstance(a, ast.If) and loop in program.ancestors(a) for a in program.ancestors(c)
        )
        for c in backward
    )


def losses_of(program: Program, name: str, scope: Scope, inside: ast.AST) -> bool:
    """Whether a list is filled with losses by a loop that calls `backward` itself."""
    losses = loss_names(program, inside)
    filled = (
        [
            c
            for c in calls(inside)
            if method(c) == "append" and last_name(receiver(c)) == name and c.args
        ]
        if losses
        else []
    )
    return any(_only_reads(c.args[0]) and losses & names_read(c.args[0]) for c in filled) and bool(
        scope.bindings.get(name)
    )


def loss_names(program: Program, loop: ast.AST) -> set[str]:
    """The names of the losses whose `backward` is called in a loop, in no loop inside of it."""
    found: set[str] = set()
    for call in calls(loop):
        if (
            method(call) not in ("backward", "manual_backward")
            or next((a for a in program.ancestors(call) if isinstance(a, Loops)), None) is not loop
        ):
            continue
        for part in (receiver(call), *call.args):
            found |= (
                {n.id for n in nodes_of(part, ast.Name) if not _is_called_on(program, n)}
                if part is not None
                else set()
            )
    return found


def _is_called_on(program: Program, name: ast.Name) -> bool:
    """Whether a name is that of an object whose method is called, as the scaler of
    `scaler.scale(loss).backward()`.
    """
    parent = program.parents[name]
    above = program.parents[parent] if isinstance(parent, ast.Attribute) else None
    return (
        isinstance(above, ast.Call)
        and above.func is parent
        and method(above) in ("scale", "backward", "manual_backward")
        and bool(above.args)
    )


def _last_binding(
    program: Program, name: str, scope: Scope, use: ast.expr, loop: ast.AST
) -> Binding | None:
    """The last binding before a use within the loop."""
    inside = set(walk(loop))
    line = program.statement(use).lineno
    found = [
        b
        for b in scope.bindings.get(name, ())
        if b.statement in inside and program.statement(b.statement).lineno < line
    ]
    return max(found, key=lambda b: program.statement(b.statement).lineno, default=None)


def _only_reads(value: ast.expr) -> bool:
    """Whether an expression does arithmetic and reads numbers, and calls nothing else."""
    return all((method(c) or last_name(c.func)) in READS for c in calls(value))


def _counts(value: ast.expr) -> bool:
    """Whether it is a number of rows."""
    return any(
        last_name(c.func) in ("len", "size", "numel") for c in calls(value)
    ) or "shape" in identifiers(value)


def _returns_train_score(program: Program, function: Scope) -> bool:
    """Whether a function trains without condition, and returns what its loop made of the loss."""
    for call in (c for c in calls(function.node) if method(c) == "backward"):
        around = program.ancestors(call)
        loop = next((a for a in around if isinstance(a, Loops)), None)
        if loop is None or any(isinstance(a, ast.If) for a in around):
            continue
        for returned in _returned(function):
            names = sorted(n for n in names_read(returned) if n in function.bindings)
            found = [_of_backward(program, n, function, returned, function.node, 1) for n in names]
            if _only_reads(returned) and True in found and False not in found:
                return True
    return False


def _returned(function: Scope) -> Iterator[ast.expr]:
    """What a function returns, where that is one value."""
    yield from (
        n.value
        for n in own_nodes_of(function.node, ast.Return)
        if n.value is not None and not isinstance(n.value, ast.Tuple)
    )
