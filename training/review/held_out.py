"""Which names stand for test rows: by themselves, by what they were made of, and by what callers pass for them."""

from __future__ import annotations

import ast

from training.review.kinds import HELD_OUT
from training.review.program import Program, Scope, argument
from training.review.syntax import last_name, words

MAKES_ROWS = {"DataLoader", "TensorDataset", "Subset", "tensor", "as_tensor", "from_numpy"}
OTHER_SIDES = (HELD_OUT | {"train", "training"}) - {"test", "testing", "tst"}
DEPTH = 3


def is_test(name: str) -> bool:
    """Whether a name speaks of test rows."""
    return "test" in words(name) or name.lower().startswith("test")


def names_test_rows(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Whether a value is the test rows: by its name, by the name of what a loader or data set of that name was made of, or by what every caller passes for it."""
    name = last_name(node)
    if is_test(name):
        return True
    if depth > DEPTH or words(name) & OTHER_SIDES or not isinstance(node, ast.Name):
        return False
    if name in scope.parameters and name not in scope.bindings:
        given = [(argument(call, scope, name), caller) for call, caller in program.call_sites[scope]]
        return bool(given) and all(value is not None and names_test_rows(program, value, caller, depth + 1) for value, caller in given)
    made = [b.value for b in scope.bindings.get(name, ()) if b.how == "assign" and b.index is None]
    rows = [v.args[0] for v in made if isinstance(v, ast.Call) and last_name(v.func) in MAKES_ROWS and v.args]
    return bool(rows) and len(rows) == len(made) and all(names_test_rows(program, r, scope, depth + 1) for r in rows)
