"""Random splits of rows, and the values computed from those rows before."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set

from training.review.program import Program, Scope, argument
from training.review.syntax import (
    dotted,
    last_name,
    method,
    names_read,
    nodes_of,
    once,
    own_nodes_of,
    receiver,
    walk,
    words,
)

SPLITTERS = {
    "train_test_split": slice(None),
    "random_split": slice(1),
    "cross_val_score": slice(1, None),
    "cross_validate": slice(1, None),
    "cross_val_predict": slice(1, None),
}
GROUP_FOLDS = {
    "GroupKFold",
    "StratifiedGroupKFold",
    "GroupShuffleSplit",
    "LeaveOneGroupOut",
    "TimeSeriesSplit",
}
FOLDS = {
    "KFold",
    "StratifiedKFold",
    "ShuffleSplit",
    "StratifiedShuffleSplit",
    "RepeatedKFold",
    "RepeatedStratifiedKFold",
}


Split = tuple[ast.Call, Scope, list[ast.expr]]


def splits(program: Program, by_group: bool = False) -> tuple[Split, ...]:
    """Return every random split of rows, with `by_group` of groups too.

    Each is the call, its scope and the arguments: rows first, then labels.
    """
    return _splits_by_group_too(program) if by_group else _splits_of_rows(program)


@once
def _splits_of_rows(program: Program) -> tuple[Split, ...]:
    return tuple(_splits(program, FOLDS))


@once
def _splits_by_group_too(program: Program) -> tuple[Split, ...]:
    return tuple(_splits(program, FOLDS | GROUP_FOLDS))


def _splits(program: Program, folds: Set[str]) -> Iterator[Split]:
    for call in program.calls_of("split", *SPLITTERS):
        name, scope = last_name(call.func), program.scope(call)
        if name in SPLITTERS and program.resolve(call.func).startswith(
            ("sklearn.model_selection.", "torch.utils.data.")
        ):
            yield call, scope, call.args[SPLITTERS[name]]
        elif method(call) == "split" and any(
            o.name.startswith("sklearn.") and o.last in folds
            for o in program.origins(receiver(call), scope)
        ):
            yield call, scope, call.args


@once
def cuts(program: Program) -> tuple[tuple[ast.expr, Scope, list[ast.expr]], ...]:
    """Find `rows[:cut]` and `rows[cut:]` in one function, where the cut is a share of the rows."""
    return tuple(_cuts(program))


def _cuts(program: Program) -> Iterator[tuple[ast.expr, Scope, list[ast.expr]]]:
    heads: dict[tuple[Scope, str, str], ast.Subscript] = {}
    tails: list[tuple[Scope, str, str]] = []
    for node in program.nodes[ast.Subscript]:
        if not (
            isinstance(node.value, ast.Name)
            and isinstance(node.slice, ast.Slice)
            and node.slice.step is None
        ):
            continue
        lower, upper, scope = node.slice.lower, node.slice.upper, program.scope(node)
        if lower is None and isinstance(upper, ast.Name):
            heads.setdefault((scope, node.value.id, upper.id), node)
        elif upper is None and isinstance(lower, ast.Name):
            tails.append((scope, node.value.id, lower.id))
    for key in dict.fromkeys(tails):
        scope, _, cut = key
        if key in heads and any(_is_share(b.value) for b in scope.bindings.get(cut, ())):
            yield heads[key], scope, [heads[key].value]


def shuffled_cuts(program: Program) -> Iterator[tuple[ast.expr, Scope, list[ast.expr]]]:
    """Yield cuts of rows in random order: `order[:cut]` and `order[cut:]` of a permutation."""
    for head, scope, parts in cuts(program):
        values = [b.value for n in names_read(parts[0]) for b in scope.bindings.get(n, ())]
        if any(
            isinstance(c, ast.Call) and last_name(c.func) in ("permutation", "randperm")
            for v in values
            for c in walk(v)
        ):
            yield head, scope, parts


def stored(statement: ast.AST) -> set[str]:
    """Return the names that a statement assigns."""
    return {n.id for n in nodes_of(statement, ast.Name) if isinstance(n.ctx, ast.Store)}


def _is_share(value: ast.expr) -> bool:
    """Return whether a number is computed from the row count: `int(0.8 * len(rows))`."""
    counted = any(
        (isinstance(n, ast.Call) and last_name(n.func) == "len")
        or (isinstance(n, ast.Attribute) and n.attr == "shape")
        for n in walk(value)
    )
    return counted and any(
        isinstance(n.op, (ast.Mult, ast.Div, ast.FloorDiv, ast.Sub))
        for n in nodes_of(value, ast.BinOp)
    )


def before(program: Program, node: ast.AST, split: ast.AST) -> bool:
    """Return whether a node precedes a split in the same function."""
    return program.scope(node) is program.scope(split) and (line_of(node) < line_of(split))


def line_of(node: ast.AST) -> int:
    """Return the line of a node."""
    return int(getattr(node, "lineno", 0))


def sources_of(
    name: str, scope: Scope, line: int, depth: int = 0, numbers: bool = True
) -> set[str]:
    """Return a name and the names from which it was computed before a line.

    Without `numbers`, names that only index are left out.
    """
    found = {name}
    for binding in scope.bindings.get(name, ()):
        if (
            line_of(binding.statement) <= line
            and depth < 5
            and binding.how in ("assign", "augment")
        ):
            for other in (
                names_read(binding.value) if numbers else values_read(binding.value)
            ) - found:
                found |= (
                    sources_of(other, scope, line_of(binding.statement), depth + 1, numbers)
                    if other in scope.bindings
                    else {other}
                )
    return found


def values_read(node: ast.expr) -> set[str]:
    """Return the names that an expression reads, without those that only index."""
    inside = {id(n) for s in nodes_of(node, ast.Subscript) for n in walk(s.slice)}
    return {n.id for n in nodes_of(node, ast.Name) if id(n) not in inside}


def is_part(name: str) -> bool:
    """Return whether a name contains train, val or test."""
    return (
        bool({"train", "test", "val", "valid", "validation", "dev", "holdout"} & words(name))
        or "train" in name.lower()
        or "test" in name.lower()
    )


def shares_rows(
    program: Program,
    call: ast.expr,
    rows: ast.expr,
    parts: list[ast.expr],
    scope: Scope,
    split: ast.expr,
) -> bool:
    """Return whether the split rows are those of the fit, or its result."""
    statement = program.statement(call)
    made = {n.id for n in nodes_of(statement, ast.Name) if isinstance(n.ctx, ast.Store)} | {
        dotted(t.value) for t in getattr(statement, "targets", ()) if isinstance(t, ast.Subscript)
    }
    behind = {
        b
        for part in parts[:1]
        for n in names_read(part)
        for b in sources_of(n, scope, split.lineno)
    }
    return bool((made | names_read(rows)) & behind) and not any(
        is_part(n) for part in parts[:1] for n in names_read(part) if n not in made
    )


def asked_by(
    program: Program, split: ast.expr, scope: Scope, parts: list[ast.expr]
) -> Iterator[tuple[ast.expr, Scope, list[ast.expr]]]:
    """Yield the calls of a function that splits rows it is given, and those arguments."""
    behind = {
        b
        for part in parts[:1]
        for n in names_read(part)
        for b in sources_of(n, scope, line_of(split))
    }
    for name in (n for n in scope.parameters if n in behind):
        for call, caller in program.call_sites[scope]:
            given = argument(call, scope, name)
            if given is not None and caller is not scope:
                yield call, caller, [given]


def handed_back(program: Program, call: ast.expr | ast.stmt) -> list[ast.Call]:
    """Return the call sites of the function that computes a value from rows.

    Empty if the function does not return that value, or splits rows itself.
    """
    scope, statement = program.scope(call), program.statement(call)
    if (
        any(split_scope is scope for _, split_scope, _ in splits(program, by_group=True))
        or not scope.name
    ):
        return []
    made = stored(statement) | {
        last_name(t.value)
        for t in getattr(statement, "targets", ())
        if isinstance(t, ast.Subscript)
    }
    if isinstance(call, ast.Call) and method(call) in ("append", "extend"):
        made.add(last_name(receiver(call)))
    returned = [
        n
        for n in nodes_of(scope.node, ast.Return)
        if n.value is not None and program.scope(n) is scope
    ]
    behind = {
        b for r in returned for n in names_read(r.value) for b in sources_of(n, scope, r.lineno)
    }
    listed = [
        c
        for c in own_nodes_of(scope.node, ast.Call)
        if method(c) in ("append", "extend") and last_name(receiver(c)) in behind
    ]
    behind |= {
        b
        for c in listed
        for a in c.args
        for n in names_read(a)
        for b in sources_of(n, scope, c.lineno)
    }
    sites = (
        [c for c, _ in program.call_sites[scope]]
        if made & behind or isinstance(statement, ast.Return)
        else []
    )
    return [c for c in sites if not any(is_part(n) for a in c.args for n in names_read(a))]
