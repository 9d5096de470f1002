"""Which names stand for test rows: by themselves, by what they were made of, and by what callers
pass for them.
"""

from __future__ import annotations

import ast

from training.review.kinds import HELD_OUT
from training.review.program import Binding, Program, Scope, argument
from training.review.syntax import (
    calls,
    constant,
    identifiers,
    last_name,
    names_read,
    nodes_of,
    words,
)

MAKES_ROWS = {"DataLoader", "TensorDataset", "Subset", "tensor", "as_tensor", "from_numpy"}
OTHER_SIDES = (HELD_OUT | {"train", "training"}) - {"test", "testing", "tst"}
BESIDE = {
    "known",
    "seen",
    "mask",
    "history",
    "exclude",
    "excluded",
    "positives",
    "interactions",
}  # pairs that a ranking leaves out
DEPTH = 3


NO_ROWS = {
    "transform",
    "transforms",
    "augmentation",
    "ab",
    "time",
    "fn",
    "bed",
}  # `test_transform`, `ab_test`
RUN_TOGETHER = (
    "testloader", "testset", "testdata", "testdl", "testds", "testx", "testy", "testiter",
    "testbatch", "testrows", "testing",
)  # fmt: skip


def is_test(name: str) -> bool:
    """Whether a name speaks of test rows."""
    return ("test" in words(name) and not words(name) & NO_ROWS) or name.lower().startswith(
        RUN_TOGETHER
    )


def names_test_rows(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Whether a value is the test rows: by its name, by the name of what a loader or data set of
    that name was made of, or by what every caller passes for it.
    """
    if isinstance(node, ast.Starred):
        node = node.value
    entry = constant(node.slice) if isinstance(node, ast.Subscript) else None
    name = entry if isinstance(entry, str) else last_name(node)  # `sides["test"]`
    if is_test(name):
        return True
    if depth > DEPTH or words(name) & OTHER_SIDES or not isinstance(node, ast.Name):
        return False
    if name in scope.parameters and name not in scope.bindings:
        given = [
            (argument(call, scope, name), caller) for call, caller in program.call_sites[scope]
        ]
        return bool(given) and all(
            value is not None and names_test_rows(program, value, caller, depth + 1)
            for value, caller in given
        )
    made = [b.value for b in scope.bindings.get(name, ()) if b.how == "assign" and b.index is None]
    rows = [
        v.args[0]
        for v in made
        if isinstance(v, ast.Call) and last_name(v.func) in MAKES_ROWS and v.args
    ]
    return (
        bool(rows)
        and len(rows) == len(made)
        and all(names_test_rows(program, r, scope, depth + 1) for r in rows)
    )


def measures_test(program: Program, binding: Binding, loop: ast.AST, depth: int = 0) -> bool:
    """Whether a value comes from test rows: by a call that gets them, a comprehension over them, or
    names that a loop over them counts up.
    """
    if any(from_test(program, n, binding.scope) for n in calls(binding.value)):
        return True
    around = program.ancestors(binding.statement)
    heads = [n.iter for n in nodes_of(binding.value, ast.comprehension)]
    heads += (
        [a.iter for a in around[: around.index(loop)] if isinstance(a, ast.For)]
        if binding.how == "augment" and loop in around
        else []
    )
    named = {n for head in heads for n in identifiers(head)}
    if any(map(is_test, named)) and not any(
        {"val", "valid", "validation", "dev"} & words(n) for n in named
    ):
        return True
    behind = [
        b
        for name in names_read(binding.value)
        for b in binding.scope.bindings.get(name, ())
        if b is not binding and b.how != "loop"
    ]
    return depth < 3 and any(
        loop in program.ancestors(b.statement) and measures_test(program, b, loop, depth + 1)
        for b in behind
    )


def from_test(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether an argument is the test set, by its name or that of what it was made of, and nothing
    says validation.
    """
    given = [*call.args, *(k.value for k in call.keywords)]
    said = [words(last_name(a)) for a in given]
    return any(names_test_rows(program, a, scope) for a in given) and not any(
        {"val", "valid", "validation", "dev"} & w and not BESIDE & w for w in said
    )
