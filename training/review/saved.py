"""What is saved to go on from: dicts of states, and the number of the epoch that was over then."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.kinds import is_optimizer
from training.review.leaves import key_read, leaves
from training.review.program import Program, Scope, argument
from training.review.syntax import (
    FUNCTIONS,
    calls,
    constant,
    last_name,
    method,
    nodes_of,
    receiver,
    words,
)

NOT_LAST = {"global", "best", "max", "num", "total", "next", "start", "epochs", "per"}
PASSED = {"epoch", "step", "iteration", "iter"}  # what a run that goes on has behind it
DEPTH = 4


def checkpoints(program: Program) -> Iterator[ast.Dict]:
    """Every literal dict with a state in it, and what a function of the file is given by name to
    save: `save(path, net=net.state_dict(), epoch=epoch)`.
    """
    for node in program.nodes[ast.Dict]:
        if any(isinstance(v, ast.Call) and method(v) == "state_dict" for v in node.values):
            yield node
    for call in program.all_calls:
        if not any(
            isinstance(k.value, ast.Call) and method(k.value) == "state_dict" for k in call.keywords
        ):
            continue
        named = last_name(call.func) == "dict" and not call.args
        if named or any(
            f.node.args.kwarg is not None
            for f in program.callees(call, program.scope(call))
            if isinstance(f.node, FUNCTIONS)
        ):
            given = [k for k in call.keywords if k.arg]
            keys: list[ast.expr | None] = [
                ast.copy_location(ast.Constant(k.arg), k.value) for k in given
            ]
            yield ast.copy_location(ast.Dict(keys, [k.value for k in given]), call)


def loads_optimizer(program: Program) -> bool:
    """Whether the state of an optimizer is loaded, as only a run that goes on does."""
    loads = program.methods_of("load_state_dict")
    return any(is_optimizer(program, receiver(c), program.scope(c)) for c in loads)


def epochs_saved(program: Program) -> Iterator[tuple[str, ast.For]]:
    """Each key of a checkpoint under which the number of a loop's passage is saved after the
    training in it, and that loop.
    """
    for made in checkpoints(program):
        for key, value in zip(made.keys, made.values, strict=True):
            name = constant(key)
            if (
                not isinstance(name, str)
                or not words(name) & PASSED
                or words(name) & NOT_LAST
                or not isinstance(value, ast.Name)
            ):
                continue
            found = list(_passages(program, value, value, program.scope(value)))
            loops = [
                loop
                for loop, anchor in found
                if loop is not None and _is_over(program, loop, anchor)
            ]
            if loops and len(loops) == len(found):
                yield from ((name, loop) for loop in dict.fromkeys(loops))


def _passages(
    program: Program, value: ast.expr, anchor: ast.AST, scope: Scope, depth: int = 0
) -> Iterator[tuple[ast.For | None, ast.AST]]:
    """The loops whose target a value is, each with what stands in the loop's own function; None for
    anything else.
    """
    if not isinstance(value, ast.Name) or depth > DEPTH:
        yield None, anchor
    elif value.id in scope.bindings:
        bound = scope.bindings[value.id]
        around = set(program.ancestors(anchor))
        loops = [
            b.statement
            for b in bound
            if isinstance(b.statement, ast.For) and b.index is None and b.statement in around
        ]
        counts = any(b.how not in ("loop",) for b in bound)
        yield (loops[-1] if loops and not counts else None), anchor
    elif value.id in scope.parameters:
        for call, caller in program.call_sites[scope]:
            given = argument(call, scope, value.id)
            if given is not None:
                yield from _passages(program, given, call, caller, depth + 1)


def _is_over(program: Program, loop: ast.For, anchor: ast.AST) -> bool:
    """Whether something stands in a loop over `range` after the training of a passage, and in no
    loop inside.
    """
    around = program.ancestors(anchor)
    inner = around[: around.index(loop)]
    if last_name(getattr(loop.iter, "func", None)) != "range" or any(
        isinstance(a, (ast.For, ast.While)) for a in inner
    ):
        return False
    own = next((s for s in loop.body if s is anchor or s in inner), None)
    return own is not None and any(trains(program, s) for s in loop.body[: loop.body.index(own)])


def trains(program: Program, node: ast.AST, depth: int = 0) -> bool:
    """Whether gradients are computed within, or in a helper of the file that is called there; of
    functions out of sight their names tell.
    """
    for call in calls(node):
        if method(call) == "backward":
            return True
        known = program.callees(call, program.scope(call)) if depth < DEPTH else []
        if any(trains(program, f.node, depth + 1) for f in known):
            return True
        if (
            not known
            and {"train", "fit"} & words(last_name(call.func))
            and (call.args or call.keywords)
        ):
            return True
    return False


def unread_starts(program: Program, loop: ast.For, key: str) -> Iterator[tuple[ast.AST, str]]:
    """Names before a loop that are bound to the epoch which was read under a key, or the next one,
    and that nothing reads.
    """
    scope = program.scope(loop)
    read = {n.id for n in nodes_of(scope.node, ast.Name) if isinstance(n.ctx, ast.Load)}
    for name, bindings in scope.bindings.items():
        for b in (
            b
            for b in bindings
            if b.how == "assign"
            and name not in read
            and getattr(b.statement, "lineno", 0) < loop.lineno
        ):
            if any(_of_key(leaf.node, key) for leaf in leaves(program, b.value, b.scope, b.index)):
                yield b.statement, name


def _of_key(node: ast.expr, key: str) -> bool:
    return any(
        key_read(n) == key for n in (node, getattr(node, "left", None)) if isinstance(n, ast.expr)
    )
