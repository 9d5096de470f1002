"""What is learned from all rows of a table though sides of it are taken in the same function, and
what each side learns of itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from typing import NamedTuple

from training.review.program import Program, Scope
from training.review.provenance import named_role
from training.review.rules_codes import per_side
from training.review.shares import derived
from training.review.sides import (
    divisions,
    elements_of,
    of_one_side,
    row_takes,
    side_of,
    takes,
    targets_of,
)
from training.review.splitting import cuts, is_part, line_of, splits, stored
from training.review.syntax import (
    calls,
    constant,
    dotted,
    keyword,
    last_name,
    method,
    names_read,
    once,
    own_nodes_of,
    receiver,
    walk,
    words,
)
from training.review.whole import CENTRES, LABEL_WORDS, centred, label_columns, over_rows

STATISTICS = CENTRES | {
    "std",
    "var",
    "max",
    "quantile",
    "percentile",
    "nanstd",
    "nanpercentile",
    "nanquantile",
}
COUNTED = {
    "unique",
    "value_counts",
    "mode",
    "nunique",
    "groupby",
}  # what categories are numbered by
COLUMNS = {
    "columns",
    "cols",
    "features",
    "numeric",
    "numerical",
    "num",
    "continuous",
    "names",
    "feats",
}


class Sides(NamedTuple):
    """A table, the function that takes sides of it, where it does so first, the calls that take
    them, and the names that hold rows of them.
    """

    table: str
    scope: Scope
    node: ast.expr
    taken: frozenset[int]
    parts: frozenset[str]


@once
def sides_of_tables(program: Program) -> list[Sides]:
    """Every table that has one value in its function, and of which sides are taken there."""
    found: dict[tuple[Scope, str], tuple[ast.expr, set[int], set[str]]] = {}
    divided = [(d.node, d.scope, d.parts) for d in divisions(program)]
    for node, scope, parts in (*splits(program, by_group=True), *cuts(program), *divided):
        for part in parts:
            if (
                isinstance(part, ast.Name)
                and not is_part(part.id)
                and not words(part.id) & LABEL_WORDS
            ):
                _, taken, names = found.setdefault((scope, part.id), (node, set(), set()))
                taken.add(id(node))
                statement = program.statement(node)
                names |= stored(statement) if isinstance(statement, ast.Assign) else set()
    for take in takes(program):
        if isinstance(take.rows, ast.Name) and (take.scope, take.rows.id) in found:
            _, taken, names = found[(take.scope, take.rows.id)]
            taken.add(id(take.node))
            names |= set(take.names)
    plain = []
    for (scope, table), (node, taken, names) in found.items():
        values = [b for b in scope.bindings.get(table, ()) if b.how != "augment"]
        held = derived(scope, names - {table})
        if len(values) <= 1 and table not in held:
            plain.append(Sides(table, scope, node, frozenset(taken), frozenset(held)))
    return plain


def whole_table(program: Program, rows: ast.expr, sides: Sides, with_labels: bool = False) -> bool:
    """Whether an expression holds all rows of the table: it, columns of it, filled or converted;
    and not the label, unless asked for.
    """
    labels: Set[str] = set[str]() if with_labels else label_columns(program)
    node: ast.expr | None = rows
    while not isinstance(node, ast.Name):
        match node:
            case ast.Subscript(value=inner, slice=by):
                column = constant(by)
                if column in labels or not (
                    isinstance(column, str) or _selects_columns(program, by, sides.scope)
                ):
                    return False
                node = inner
            case ast.BinOp(left=inner, right=ast.Constant()):
                node = inner
            case ast.Attribute(value=inner, attr="values" | "iloc" | "loc" | "T") if (
                node.attr != "T"
            ):
                node = inner
            case ast.Call() if method(node) in (
                "fillna",
                "astype",
                "to_numpy",
                "copy",
                "float",
                "numpy",
                "select_dtypes",
                "reshape",
                "ravel",
            ):
                node = receiver(node)
            case _:
                return False
    return node.id == sides.table and not of_one_side(program, rows)


def _selects_columns(program: Program, by: ast.expr, scope: Scope) -> bool:
    """Whether an index is a list of names, or leaves all rows: `[NUMERIC]`, `[["a", "b"]]`, `[:,
    0]`.
    """
    if isinstance(by, ast.Tuple):
        return (
            isinstance(by.elts[0], ast.Slice)
            and by.elts[0].lower is None
            and by.elts[0].upper is None
        )
    if isinstance(by, ast.List):
        return all(isinstance(constant(e), str) for e in by.elts)
    if not isinstance(by, ast.Name):
        return False
    bound = program.bindings_of(by, scope)
    lists = [
        b
        for b in bound
        if isinstance(b.value, (ast.List, ast.Tuple))
        and b.value.elts
        and all(isinstance(constant(e), str) for e in b.value.elts)
    ]
    return bool(lists and len(lists) == len(bound)) or bool(words(by.id) & COLUMNS)


def of_the_whole(program: Program) -> Iterator[tuple[ast.Call, str, Sides]]:
    """Every statistic of all rows by which rows of a side are scaled or filled in the same
    function: the call, which statistic, and the sides.
    """
    if not STATISTICS & program.called_names:
        return
    told: set[ast.stmt] = set()
    for sides in sides_of_tables(program):
        for call in (
            n for n in own_nodes_of(sides.scope.node, ast.Call) if last_name(n.func) in STATISTICS
        ):
            rows, rest = receiver(call), call.args
            if rows is None or (isinstance(rows, ast.Name) and rows.id in program.aliases):
                rows, rest = (call.args[0], call.args[1:]) if call.args else (None, [])
            axis = (
                keyword(call, "axis")
                or keyword(call, "dim")
                or (
                    rest[0]
                    if rest and last_name(call.func) not in ("quantile", "percentile")
                    else None
                )
            )
            if rows is None or (axis is not None and not over_rows(axis)):
                continue
            names = (
                set(targets_of(program, call))
                if isinstance(program.statement(call), ast.Assign)
                else set()
            )
            of_labels = whole_table(program, rows, sides, with_labels=True) and _standardises(
                call, names, sides
            )
            if not of_labels and not whole_table(program, rows, sides):
                continue
            if program.statement(call) not in told and _is_used(program, call, names, sides):
                told.add(program.statement(call))
                yield call, last_name(call.func), sides


def _standardises(call: ast.Call, names: set[str], sides: Sides) -> bool:
    """Whether rows of a side are scaled by it: `(part["days"] - mean) / deviation`, as labels are
    too where they are to be near 0.
    """
    for node in walk(sides.scope.node):
        match node:
            case ast.BinOp(
                op=ast.Div(), left=ast.BinOp(op=ast.Sub(), left=rows, right=mean), right=deviation
            ):
                read = names_read(mean) | names_read(deviation)
                if names_read(rows) & sides.parts and (read & names or call in walk(node)):
                    return True
    return False


def _is_used(program: Program, call: ast.Call, names: set[str], sides: Sides) -> bool:
    """Whether rows of a side meet a statistic: `part - s`, `part / s`, `part.fillna(s)`, or both
    are given to a class or function of the file.
    """

    def reads(node: ast.AST | None) -> bool:
        return node is not None and any(
            n is call or (isinstance(n, ast.Name) and n.id in names) for n in walk(node)
        )

    within = {
        a.arg
        for n in walk(sides.scope.node)
        if isinstance(n, (ast.Lambda, ast.FunctionDef)) and n is not sides.scope.node
        for a in n.args.args
    }
    for node in walk(sides.scope.node):
        match node:
            case ast.BinOp(op=ast.Sub() | ast.Div(), left=left, right=right) if reads(right):
                if (_taken(left, sides) or names_read(left) & (sides.parts | within)) and not any(
                    named_role(n) for n in (left,)
                ):
                    return True
            case ast.Call() if node is not call:
                given = [*node.args, *(k.value for k in node.keywords)]
                if not any(reads(a) for a in given):
                    continue
                filled = method(node) == "fillna" and bool(names_read(receiver(node)) & sides.parts)
                own = isinstance(node.func, ast.Name) and (
                    node.func.id in program.classes or bool(program.callees(node, sides.scope))
                )
                if filled or (
                    own
                    and (
                        id(node) in sides.taken
                        or any(names_read(a) & sides.parts or _taken(a, sides) for a in given)
                    )
                ):
                    return True
    return False


def _taken(node: ast.expr, sides: Sides) -> bool:
    """Whether rows of a side are taken in an expression."""
    return any(id(n) in sides.taken for n in walk(node))


def own_learner(program: Program, call: ast.Call) -> str:
    """The class of the file whose `fit` keeps statistics of what it is given, as a scaler's does;
    empty where it is a network, or learns from no rows.
    """
    for fit in program.callees(call, program.scope(call)):
        given = [p for p in fit.parameters if p != "self"][:1]
        if (
            fit.owner is None
            or program.is_module(fit.owner)
            or not given
            or {"backward", "step", "zero_grad"} & {last_name(c.func) for c in calls(fit.node)}
        ):
            continue
        rows = derived(fit, set(given))
        kept = [
            s.value
            for s in own_nodes_of(fit.node, ast.Assign)
            if any(last_name(t) != dotted(t) for e in s.targets for t in elements_of(e))
        ]
        kept += [b.value for v in kept for n in names_read(v) for b in fit.bindings.get(n, ())]
        for made in (
            c for v in kept for c in calls(v) if last_name(c.func) in STATISTICS | COUNTED
        ):
            if names_read(made) & rows:
                return fit.owner.name
    return ""


def fitted_on_the_whole(program: Program, call: ast.Call, rows: ast.expr) -> Sides | None:
    """The sides of the table of which all rows are learned from behind the split, where what was
    fitted transforms rows of one of them.
    """
    learner = set(targets_of(program, call)) | {last_name(receiver(call))} - {""}
    for sides in sides_of_tables(program):
        if (
            sides.scope is not program.scope(call)
            or line_of(call) <= line_of(sides.node)
            or not whole_table(program, rows, sides)
        ):
            continue
        for used in calls(sides.scope.node):
            transforms = method(used) == "transform" and last_name(receiver(used)) in learner
            given = [*used.args, *(k.value for k in used.keywords)]
            handed = isinstance(used.func, ast.Name) and any(
                isinstance(a, ast.Name) and a.id in learner for a in given
            )  # `Rows(train, scaler)`
            if (transforms or handed) and any(names_read(a) & sides.parts for a in given):
                return sides
    return None


def of_each_side(program: Program) -> Iterator[tuple[ast.expr, str, str]]:
    """Rows that are scaled or filled by a statistic of themselves, for train rows and for others:
    where, which statistic, and which sides.
    """
    if not CENTRES & program.called_names:
        return
    for node in (*program.nodes[ast.BinOp], *program.methods_of("fillna")):
        if not isinstance(node, ast.Call) and not (
            isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
        ):
            continue
        inner = node if isinstance(node, ast.Call) else node.left
        if not isinstance(inner, (ast.Call, ast.BinOp)) or (
            isinstance(inner, ast.Call) and method(inner) != "fillna"
        ):
            continue
        found = centred(program, inner, program.scope(node), program.statement(node))
        if found is None or named_role(found[0]) or words(last_name(found[0])) & LABEL_WORDS:
            continue
        where = per_side(program, node, found[0]) or _held_out_alone(program, node, found[0])
        if where:
            yield node, found[1], where
    yield from _by_itself_elsewhere(program)
    yield from _given_with_itself(program)
    for call in program.calls_of(*CENTRES):
        where = _by_ranges(program, call)
        if where:
            yield call, last_name(call.func), where


def _held_out_alone(program: Program, node: ast.expr, rows: ast.expr) -> str:
    """Held-out rows whose place is taken by such rows of the same name: `X_val = (X_val -
    X_val.mean(0)) / X_val.std(0)`; their text.
    """
    statement = program.statement(node)
    if not isinstance(node, ast.BinOp) or not isinstance(statement, ast.Assign):
        return ""
    targets = [t for t in statement.targets if statement.value is node]
    for target in statement.targets:  # `a, b = (a - m) / s, (b - b.mean(0)) / b.std(0)`
        if (
            isinstance(target, ast.Tuple)
            and isinstance(statement.value, ast.Tuple)
            and node in statement.value.elts
        ):
            targets += [
                t for t, v in zip(target.elts, statement.value.elts, strict=False) if v is node
            ]
    named = (
        rows.slice if isinstance(rows, ast.Subscript) and isinstance(rows.slice, ast.Name) else rows
    )
    held = isinstance(named, ast.Name) and side_of(named.id) in ("val", "test")
    return (
        ast.unparse(rows)
        if held and any(ast.unparse(t) == ast.unparse(rows) for t in targets)
        else ""
    )


def _given_with_itself(program: Program) -> Iterator[tuple[ast.expr, str, str]]:
    """Held-out rows that are given to a function or class of the file together with their own mean:
    `Rows(x[test], x[test].mean(), x[test].std())`.
    """
    for call in (c for c in program.all_calls if isinstance(c.func, ast.Name)):
        given = [*call.args, *(k.value for k in call.keywords)]
        made = {
            last_name(a.func): receiver(a)
            for a in given
            if isinstance(a, ast.Call) and last_name(a.func) in CENTRES
        }
        for statistic, rows in made.items():
            held = (
                rows is not None
                and {side_of(n) for n in names_read(rows)} & {"val", "test"}
                and any(ast.dump(a) == ast.dump(rows) for a in given)
            )
            if (
                held
                and rows is not None
                and isinstance(call.func, ast.Name)
                and (call.func.id in program.classes or program.callees(call, program.scope(call)))
            ):
                yield call, statistic, ast.unparse(rows)


def _by_itself_elsewhere(program: Program) -> Iterator[tuple[ast.expr, str, str]]:
    """Held-out rows that are scaled by their own mean in one function, as train rows are by theirs
    in another.
    """
    made: dict[str, tuple[ast.expr, str, str]] = {}
    for node in program.nodes[ast.BinOp]:
        if not (isinstance(node.op, ast.Div) and isinstance(node.left, ast.BinOp)):
            continue
        rows, taken = node.left.left, node.left.right
        over = (
            keyword(taken, "dim", 0) or keyword(taken, "axis", 0)
            if isinstance(taken, ast.Call) and method(taken) == "mean"
            else ast.Constant(1)
        )
        if (
            isinstance(rows, ast.Name)
            and isinstance(node.left.op, ast.Sub)
            and dotted(receiver(taken)) == rows.id
            and (over is None or constant(over) == 0)
        ):
            made.setdefault(side_of(rows.id), (node, "mean", rows.id))
    held = made.get("test") or made.get("val")
    if (
        "train" in made
        and held is not None
        and program.scope(held[0]) is not program.scope(made["train"][0])
    ):
        yield held[0], "mean", f"{made['train'][2]} and {held[2]}"


def _by_ranges(program: Program, call: ast.Call) -> str:
    """Names of the sides for each of which a class of the file takes a range of one table, and
    centres it by the mean of that range.
    """
    scope, rows = program.scope(call), receiver(call)
    if (
        scope.name != "__init__"
        or not isinstance(program.parents[call], ast.BinOp)
        or any(isinstance(a, (ast.If, ast.IfExp)) for a in program.ancestors(call))
    ):
        return ""
    bound = scope.bindings.get(rows.id, []) if isinstance(rows, ast.Name) else []
    values = [rows] if isinstance(rows, ast.Subscript) else [b.value for b in bound]
    if (
        len(values) != 1
        or not (isinstance(values[0], ast.Subscript) and isinstance(values[0].slice, ast.Slice))
        or not names_read(values[0].value) & set(scope.parameters)
    ):
        return ""
    made = {id(n) for n, _, _ in row_takes(program)}
    named = {
        side_of(n): n
        for c, _ in program.call_sites[scope]
        if id(c) in made
        for n in targets_of(program, c)
    }
    others = [named[s] for s in ("val", "test") if s in named]
    return f"{named['train']} and {others[0]}" if "train" in named and others else ""
