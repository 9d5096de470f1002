"""The best of several runs: what is taken out of a list or a dict of them, and by which score."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.held_out import from_test, measures_test
from training.review.program import Binding, Program, Scope
from training.review.syntax import calls, constant, last_name, receiver


def best_of_runs(program: Program) -> Iterator[tuple[ast.Call, str]]:
    """Each `max(runs, key=…)`, `min` or first of `sorted` whose score is measured on test rows, and
    that score as it is written.
    """
    for call in program.calls_of("argmin", "argmax", "max", "min", "sorted"):
        name, scope = last_name(call.func), program.scope(call)
        if name in ("argmin", "argmax") and len(call.args) == 1 and _indexes(program, call):
            listed = (
                [call.args[0].elt]
                if isinstance(call.args[0], ast.ListComp)
                else [s for s, _ in _appended(program, call.args[0], scope)]
            )
            scores_of_runs = [
                s
                for s in listed
                if _of_test(program, s, scope)
                or any(from_test(program, c, scope) for c in calls(s))
            ]
            if scores_of_runs:
                yield call, ast.unparse(scores_of_runs[0])
        first = isinstance(program.parents[call], ast.Subscript) and constant(
            getattr(program.parents[call], "slice", None)
        ) in (0, -1)
        key = next((k.value for k in call.keywords if k.arg == "key"), None)
        if (
            not isinstance(call.func, ast.Name)
            or not (name in ("max", "min") or (name == "sorted" and first))
            or len(call.args) != 1
            or key is None
        ):
            continue
        runs = call.args[0]
        scores = [
            (s, h)
            for s, h in _entries(program, runs, scope, key)
            if s is not None and _of_test(program, s, h)
        ]
        if scores:
            yield call, ast.unparse(scores[0][0])


def _indexes(program: Program, call: ast.Call) -> bool:
    """Whether a number is what something is looked up by, at once or as `int(…)`; of rows of scores
    it would be a class.
    """
    node: ast.AST = call
    while (
        isinstance(program.parents[node], ast.Call)
        and last_name(program.parents[node].func) == "int"  # type: ignore[attr-defined]
    ):
        node = program.parents[node]
    above = program.parents[node]
    return isinstance(above, ast.Subscript) and above.slice is node


def _entries(
    program: Program, runs: ast.expr, scope: Scope, key: ast.expr
) -> Iterator[tuple[ast.expr | None, Scope]]:
    """The scores by which a list or dict, filled in a loop, is looked through."""
    if not isinstance(runs, ast.Name):
        return
    for run, where in _appended(program, runs, scope):
        yield _element(run, key), where
    for node in program.nodes[ast.Assign]:
        target = node.targets[0]
        if (
            isinstance(target, ast.Subscript)
            and last_name(target.value) == runs.id
            and program.scope(node) is scope
        ):
            by_value = (
                isinstance(key, ast.Attribute)
                and key.attr == "get"
                and last_name(key.value) == runs.id
            )
            yield (node.value if by_value else _element(node.value, key)), scope


def _appended(program: Program, runs: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """What is put into a list in its function, one after the other."""
    name = runs.id if isinstance(runs, ast.Name) else ""
    for call in program.methods_of("append") if name else ():
        if call.args and last_name(receiver(call)) == name and program.scope(call) is scope:
            yield call.args[0], scope


def _element(run: ast.expr, key: ast.expr) -> ast.expr | None:
    """The part of a run that a key looks at: `lambda r: r[0]`, `lambda r: r["test"]`,
    `itemgetter(0)`; None where that cannot be seen.
    """
    chosen = key.body if isinstance(key, ast.Lambda) else None
    at = constant(chosen.slice) if isinstance(chosen, ast.Subscript) else None
    if isinstance(key, ast.Call) and last_name(key.func) == "itemgetter" and len(key.args) == 1:
        at = constant(key.args[0])
    if (
        isinstance(run, (ast.Tuple, ast.List))
        and isinstance(at, int)
        and -len(run.elts) <= at < len(run.elts)
    ):
        return run.elts[at]
    if isinstance(run, ast.Dict):
        return next(
            (
                v
                for k, v in zip(run.keys, run.values, strict=True)
                if k is not None and constant(k) == at
            ),
            None,
        )
    return None


def _of_test(program: Program, score: ast.expr, scope: Scope) -> bool:
    """Whether a score is measured on test rows in the loop that fills the list."""
    around = program.ancestors(score)
    loop = next((a for a in around if isinstance(a, (ast.For, ast.While, ast.ListComp))), None)
    return loop is not None and measures_test(
        program, Binding(program.statement(score), score, scope), loop
    )
