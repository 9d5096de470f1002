"""Draws of Python's own `random` that decide the rows of a split, or their order, and that nothing
seeds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.program import Program
from training.review.syntax import FUNCTIONS, calls, dotted, last_name, method, nodes_of, walk

ORDERS = {"random.shuffle", "random.sample"}
CHOOSES = {"random.random", "random.uniform", "random.choice", "random.choices"}
GLOBAL_SEEDS = {"numpy.random.seed", "torch.manual_seed", "torch.random.manual_seed"}
SETS_SEEDS = GLOBAL_SEEDS | {
    "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
    "numpy.random.default_rng",
}


def unseeded_split(program: Program) -> Iterator[tuple[ast.Call, str]]:
    """`random.shuffle(rows)` and two sides cut of them, or `random.random() < 0.8` that picks the
    side, where torch or numpy are seeded and `random` is not.
    """
    if "random" not in program.modules_imported:
        return
    seeds = {program.resolve(c.func) for c in program.all_calls if c.args}
    if not seeds & GLOBAL_SEEDS or {"random.seed", "random.setstate"} & seeds:
        return
    own = {s.name for s in program.scopes if isinstance(s.node, FUNCTIONS)}
    named = [
        c
        for c in program.all_calls
        if "seed" in last_name(c.func).lower() and last_name(c.func) not in own
    ]
    if any(
        program.resolve(c.func) not in SETS_SEEDS
        and method(c) not in ("manual_seed", "initial_seed")
        for c in named
    ):
        return  # by a helper of another file
    by = sorted(seeds & GLOBAL_SEEDS)[-1]
    for call in program.all_calls:
        name = program.resolve(call.func)
        if (name in ORDERS and _is_cut(program, call)) or (
            name in CHOOSES and _picks_side(program, call)
        ):
            yield (
                call,
                (
                    f"{name} decides which rows go to which side, and only {by} is seeded: the"
                    " split differs from run to run"
                ),
            )


def _is_cut(program: Program, call: ast.Call) -> bool:
    """Whether what is put in order is cut in two: `rows[:n]` and `rows[n:]`; or what is drawn tells
    the two sides apart.
    """
    scope, statement = program.scope(call), program.statement(call)
    name = dotted(call.args[0]) if call.args else ""
    if program.resolve(call.func) == "random.sample":
        given = statement.targets[0] if isinstance(statement, ast.Assign) else None
        name = dotted(given)
        tests = [
            n
            for n in nodes_of(scope.node, ast.Compare)
            if name in {dotted(c) for c in n.comparators}
        ]
        if name and {type(o) for n in tests for o in n.ops} >= {ast.In, ast.NotIn}:
            return True
    slices = [
        n.slice
        for n in nodes_of(scope.node, ast.Subscript)
        if name and dotted(n.value) == name and isinstance(n.slice, ast.Slice)
    ]
    uppers = {ast.unparse(s.upper) for s in slices if s.lower is None and s.upper is not None}
    return bool(uppers & {ast.unparse(s.lower) for s in slices if s.lower is not None})


def _picks_side(program: Program, call: ast.Call) -> bool:
    """Whether a draw is the condition by which a row is put into one list or another: an `if` with
    `a.append(row)` and `b.append(row)`.
    """
    for around in program.ancestors(call):
        if isinstance(around, ast.If) and any(n is call for n in walk(around.test)):
            put = [
                [n for s in part for n in calls(s) if method(n) == "append"]
                for part in (around.body, around.orelse)
            ]
            rows = [{ast.unparse(a) for c in found for a in c.args} for found in put]
            return bool(rows[0] & rows[1])
        if isinstance(around, ast.IfExp) and any(n is call for n in walk(around.test)):
            above = program.parents[around]
            sides = [dotted(around.body), dotted(around.orelse)]
            return isinstance(above, ast.Attribute) and above.attr == "append" and all(sides)
    return False
