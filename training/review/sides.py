"""Rows that a program divides without a splitting helper: by positions, slices of an order, masks
and index labels that select rows of a table.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from training.review.program import Binding, Program, Scope, argument
from training.review.roles import looks_held_out
from training.review.splitting import handed_back, line_of, splits, values_read
from training.review.syntax import (
    calls,
    constant,
    keyword,
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

PERMUTED = {"permutation", "randperm"}
DRAWN = {
    "rand",
    "random",
    "rand_like",
    "uniform",
    "binomial",
    "bernoulli",
    "random_sample",
    "choice",
}
PIECES = {"array_split", "split", "tensor_split", "chunk", "hsplit"}
BY_ROW = {"iloc", "loc", "values"}


@dataclass(frozen=True, eq=False)
class Take:
    """Rows that an expression `node` selects of a table. `family` is what divided the rows,
    `member` which of its parts.
    """

    node: ast.expr
    rows: ast.expr
    selector: ast.expr
    scope: Scope
    family: tuple[str, object]
    member: str
    names: tuple[str, ...]

    @property
    def side(self) -> str:
        """Return `train`, `val` or `test`; empty if no name says which."""
        return side_of_names(self.names)


@dataclass(frozen=True, eq=False)
class Division:
    """Rows of one table that go to different splits: `node` selects the first rows, `parts` is the
    table; `groups` is what kept rows together, if anything did.
    """

    node: ast.expr
    scope: Scope
    parts: list[ast.expr]
    groups: ast.expr | None = None


POSITIONS = {"idx", "index", "indices", "ids", "rows", "mask", "positions", "inds", "ix"}
FITTED = re.compile(
    r"(?:fit|fitting)_(?:idx|ids|index|indices|inds|ix|rows|mask|positions|loader|set|part)"
)
ROWS = "x|y|i|ix|idx|ids|index|rows|mask|data|set|ds|dl|loader|df"
SHORT = re.compile(
    rf"(?:(?:{ROWS})_)?(?:te|va)|(?:te|va)_(?:{ROWS})"
)  # `te` alone is a target encoding as well


@lru_cache(maxsize=1 << 14)
def side_of(name: str) -> str:
    """Return the split that an identifier names; empty if it names none or two.

    >>> (side_of("x_train"), side_of("val_loader"), side_of("test"), side_of("train_val"),
    ...     side_of("rows"))
    ('train', 'val', 'test', '', '')
    >>> side_of("va"), side_of("X_te"), side_of("te_mean")
    ('val', 'test', '')
    """
    found = words(name)
    short = (SHORT.fullmatch(name.lower()) or [""])[0].split("_")
    train, test = (
        bool({"train", "training", "tr"} & found) or bool(FITTED.fullmatch(name.lower())),
        bool({"test", "testing", "tst"} & found) or "te" in short,
    )
    val = (looks_held_out(name) and not test) or "va" in short
    return "" if train + test + val != 1 else "train" if train else "test" if test else "val"


def side_of_names(names: tuple[str, ...]) -> str:
    """Return the only split that the names mention; empty for several."""
    found = {side_of(n) for n in names} - {""}
    return found.pop() if len(found) == 1 else ""


def targets_of(program: Program, node: ast.expr) -> tuple[str, ...]:
    """Return the names that get the value which contains an expression: for `a, b = x, y` the name
    in the same place, for `return x, y` the name at the call, for a dict its name with the key.
    """
    statement = program.statement(node)
    if isinstance(statement, ast.Return):
        return _returned_as(program, node, statement)
    targets = (
        statement.targets
        if isinstance(statement, ast.Assign)
        else [statement.target]
        if isinstance(statement, ast.AnnAssign)
        else []
    )
    value = getattr(statement, "value", None)
    found: list[str] = []
    if (
        isinstance(value, ast.Dict) and len(targets) == 1
    ):  # `parts = {"train": rows[a], "test": rows[b]}`
        keys = [
            constant(k)
            for k, v in zip(value.keys, value.values, strict=True)
            if k is not None and any(n is node for n in walk(v))
        ]
        if keys and isinstance(keys[0], str):
            return (f"{last_name(targets[0])}_{keys[0]}",)
    for target in targets:
        if (
            isinstance(target, ast.Tuple)
            and isinstance(value, ast.Tuple)
            and len(target.elts) == len(value.elts)
        ):
            at = next(
                (i for i, v in enumerate(value.elts) if any(n is node for n in walk(v))), None
            )
            found += [
                last_name(n)
                for n in (elements_of(target.elts[at]) if at is not None else target.elts)
            ]
        else:
            found += [last_name(e) for e in elements_of(target)]
    return tuple(n for n in found if n)


def _returned_as(program: Program, node: ast.expr, statement: ast.Return) -> tuple[str, ...]:
    """Return the names that callers give to the returned element that contains an expression."""
    made = statement.value
    if not isinstance(made, (ast.Tuple, ast.List)):
        return ()
    at = next((i for i, v in enumerate(made.elts) if any(n is node for n in walk(v))), None)
    found: list[str] = []
    for call, _ in program.call_sites[program.scope(statement)]:
        above = program.statement(call)
        targets = (
            elements_of(above.targets[0])
            if isinstance(above, ast.Assign) and above.value is call
            else []
        )
        found += (
            [last_name(t) for t in targets[at : at + 1]]
            if at is not None and len(targets) == len(made.elts)
            else []
        )
    return tuple(n for n in found if n)


@once
def all_names(program: Program) -> frozenset[str]:
    """Return the names, attributes and parameters of a file."""
    return program.identifiers | {p for s in program.scopes for p in s.parameters}


def elements_of(target: ast.expr) -> list[ast.expr]:
    """Return the targets of an unpacking; a single target as a list of one."""
    return target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]


@once
def row_takes(program: Program) -> tuple[tuple[ast.expr, ast.expr, ast.expr], ...]:
    """Return each expression, table and selector of `t[s]`, `t.iloc[s]`, `t.loc[s, …]`,
    `Subset(t, s)`, `t.take(s)` and `t.index_select(0, s)`. A selector may choose columns or rows.
    """
    return tuple(_row_takes(program))


def _row_takes(program: Program) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    for node in program.nodes[ast.Subscript]:
        if isinstance(node.ctx, ast.Load):
            rows = (
                node.value.value
                if isinstance(node.value, ast.Attribute) and node.value.attr in BY_ROW
                else node.value
            )
            selector = (
                node.slice.elts[0]
                if isinstance(node.slice, ast.Tuple) and node.slice.elts
                else node.slice
            )
            for chosen in _gone_through(program, selector) or [selector]:
                yield node, rows, chosen
    for call in program.calls_of("Subset", "take", "index_select"):
        if last_name(call.func) == "Subset" and len(call.args) == 2:
            yield call, call.args[0], call.args[1]
        elif (
            method(call) == "take" and len(call.args) == 1 and (given := receiver(call)) is not None
        ):
            yield call, given, call.args[0]
        elif (
            method(call) == "index_select"
            and len(call.args) == 2
            and constant(call.args[0]) == 0
            and (given := receiver(call)) is not None
        ):
            yield call, given, call.args[1]
    yield from ranges(program)


def _gone_through(program: Program, selector: ast.expr) -> list[ast.expr]:
    """Return the names that a selector loops over, as in `for rows in (fit, held)`."""
    if not isinstance(selector, ast.Name):
        return []
    for around in program.ancestors(selector):
        for loop in [around] if isinstance(around, ast.For) else getattr(around, "generators", []):
            if (
                isinstance(loop.target, ast.Name)
                and loop.target.id == selector.id
                and isinstance(loop.iter, (ast.Tuple, ast.List))
            ):
                return [e for e in loop.iter.elts if isinstance(e, ast.Name)]
    return []


def ranges(program: Program) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """Yield objects of a class of the file over adjacent ranges of one table, such as
    `Windows(rows, 0, cut)` and `Windows(rows, cut, end)`.
    """
    made = defaultdict[str, list[ast.Call]](list)
    for call in program.calls_of(*program.classes):
        if len(call.args) > 2 and isinstance(call.args[0], ast.Name):
            made[last_name(call.func)].append(call)
    for same in made.values():
        for at in range(1, min(len(c.args) for c in same) - 1):
            if {ast.dump(c.args[at]) for c in same} & {ast.dump(c.args[at + 1]) for c in same}:
                yield from ((c, c.args[0], ast.Slice(c.args[at], c.args[at + 1])) for c in same)
                break


@once
def takes(program: Program) -> list[Take]:
    """Return every expression that selects the rows of one split, in order of lines."""
    known = {id(call): call for call, _, _ in splits(program, by_group=True)}
    found = []
    for node, rows, selector in row_takes(program):
        scope = program.scope(node)
        if not values_read(rows):
            continue
        which = _member(program, selector, scope, known)
        if which is None:
            continue
        found.append(Take(node, rows, selector, scope, *which, targets_of(program, node)))
    return sorted(found, key=lambda t: (line_of(t.node), t.node.col_offset))


def _member(
    program: Program, selector: ast.expr, scope: Scope, known: dict[int, ast.Call], depth: int = 0
) -> tuple[tuple[str, object], str] | None:
    """Return what divided the rows of a selector, and which part it selects."""
    match selector:
        case ast.Name():
            bound = latest(program, selector, scope)
            if (
                bound is None
                and selector.id in scope.parameters
                and side_of(selector.id)
                and words(selector.id) & POSITIONS
            ):
                return ("given", id(scope)), selector.id  # positions that a caller divides
            return (
                _of_binding(program, selector.id, bound, known, depth)
                if bound is not None
                else None
            )
        case ast.Attribute(value=ast.Name(), attr="indices"):
            return _member(program, selector.value, scope, known, depth)
        case ast.Attribute(value=ast.Name(id=name), attr="index"):
            return (("index", ""), name)
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            inner = _member(program, operand, scope, known, depth)
            return (
                (inner[0], "~" + inner[1])
                if inner is not None and inner[0][0] == "mask"
                else (("mask", ast.dump(operand)), "~")
            )
        case ast.Subscript(value=ast.Name() as order, slice=ast.Slice() as part) if not moves(
            program, part, scope
        ):
            return (("slice", origin_key(program, order, scope)), ast.unparse(selector.slice))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return (("mask", ast.dump(left) + ast.dump(right)), type(op).__name__)
        case ast.Call() if (
            method(selector) == "isin" and (column := receiver(selector)) is not None
        ):
            return (("mask", ast.dump(column)), " ".join(ast.dump(a) for a in selector.args))
        case ast.Call() if method(selector) == "index":
            return (("mask", ast.dump(selector)), "")
        case ast.Call(func=ast.Name(), args=[ast.Name() as asked], keywords=[]) if _is_own(
            program, selector, scope
        ):  # `rows_of(train_people)`
            return _member(program, asked, scope, known, depth)
        case ast.Slice() if selector.step is None and (
            selector.lower is not None or selector.upper is not None
        ):
            return (("cut", ""), ast.unparse(selector))
    return None


def _is_own(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call runs a function of the file or a lambda."""
    bound = latest(program, call.func, scope) if isinstance(call.func, ast.Name) else None
    return program.callees_by_name(call, scope) is not None or (
        bound is not None and isinstance(bound.value, ast.Lambda)
    )


def moves(program: Program, part: ast.Slice, scope: Scope) -> bool:
    """Return whether a loop changes the bounds of a slice: a batch, not a split."""
    names = nodes_of(part, ast.Name)
    return any(b.how in ("loop", "augment") for n in names for b in program.bindings_of(n, scope))


def latest(program: Program, name: ast.Name, scope: Scope) -> Binding | None:
    """Return the last binding of a name before it is read."""
    bound = program.bindings_of(name, scope)
    before = [
        b
        for b in bound
        if line_of(b.statement) <= line_of(name)
        and b.statement is not program.statement(name)
        and b.how in ("assign", "loop")
    ]
    loops = [b for b in bound if b.how == "loop" and b.statement in program.ancestors(name)]
    return max([*before, *loops], key=lambda b: line_of(b.statement), default=None)


def origin_key(program: Program, name: ast.Name, scope: Scope) -> str:
    """Return a name with the place of its last binding."""
    bound = latest(program, name, scope)
    return f"{name.id}@{line_of(bound.statement) if bound else 0}@{id(scope)}"


def _of_binding(
    program: Program, name: str, bound: Binding, known: dict[int, ast.Call], depth: int
) -> tuple[tuple[str, object], str] | None:
    value = bound.value
    split = next((n for n in walk(value) if id(n) in known), None)
    if split is not None and (bound.index is not None or bound.how == "loop" or value is not split):
        return ("split", id(split)), name
    if bound.index is not None and isinstance(value, ast.Call) and last_name(value.func) in PIECES:
        return ("pieces", id(value)), name
    if (
        bound.index is not None
        and isinstance(value, ast.Call)
        and side_of(name)
        and program.callees_by_name(value, bound.scope) is not None
    ):
        return (
            "returned",
            id(value),
        ), name  # positions from a function of the file, if they select rows
    if (
        isinstance(value, ast.Subscript)
        and isinstance(value.slice, ast.Slice)
        and isinstance(value.value, ast.Name)
    ):
        if moves(program, value.slice, bound.scope):
            return None
        return ("slice", origin_key(program, value.value, bound.scope)), ast.unparse(value.slice)
    if isinstance(value, (ast.UnaryOp, ast.Compare)) and depth < 3:
        inner = _member(program, value, bound.scope, known, depth + 1)
        if inner is not None:
            return inner
    drawn = any(last_name(c.func) in DRAWN | {"isin"} for c in calls(value))
    if (
        drawn
        and bound.how == "assign"
        and bound.index is None
        and any(
            isinstance(n, ast.Compare) or method(n) in ("bernoulli", "isin") for n in walk(value)
        )
    ):
        return ("mask", ast.dump(ast.Name(name, ast.Load()))), name
    if (
        isinstance(value, (ast.Name, ast.Subscript))
        and depth < 3
        and bound.how in ("assign", "loop")
    ):  # `splits = list(folds.split(X)); a, b = splits[0]`
        root = value if isinstance(value, ast.Name) else value.value
        if (
            isinstance(root, ast.Name)
            and root.id != name
            and (above := latest(program, root, bound.scope)) is not None
        ):
            held = next((n for n in walk(above.value) if id(n) in known), None)
            return (
                (("split", id(held)), name)
                if held is not None and bound.index is not None
                else None
            )
    return None


def is_random_order(program: Program, key: str, scope: Scope) -> bool:
    """Return whether the name of an `origin_key` is a permutation, or is shuffled in place."""
    name = key.partition("@")[0]
    values = [b.value for b in program.bindings_of(ast.Name(name, ast.Load()), scope)]
    if any(
        isinstance(c, ast.Call) and last_name(c.func) in PERMUTED for v in values for c in walk(v)
    ):
        return True
    return any(c.args and last_name(c.args[0]) == name for c in program.calls_of("shuffle"))


@once
def dividing(program: Program) -> list[list[Take]]:
    """Return the selections that belong together, one list for each way to divide rows."""
    families: dict[tuple[int, object, str], list[Take]] = defaultdict(list)
    for take in takes(program):
        families[
            (
                id(take.scope),
                take.family,
                ast.dump(take.rows) if take.family[0] in ("cut", "index") else "",
            )
        ].append(take)
    return [members for members in families.values() if _divides(program, members)]


@once
def divisions(program: Program) -> list[Division]:
    """Return every place where rows of one table go to different splits.

    A place is in the dividing function, or where a caller passes the table to it.
    """
    calls_by_id = {id(call): call for call, _, _ in splits(program, by_group=True)}
    found: list[Division] = []
    for members in dividing(program):
        kind, key = members[0].family
        split = calls_by_id.get(key) if kind == "split" and isinstance(key, int) else None
        by = (
            members[0].selector if kind == "returned" else None
        )  # the function knows what it keeps together
        tables: dict[str, Take] = {}
        for take in members:
            if not _is_order(program, take.rows, take.scope):
                tables.setdefault(ast.dump(take.rows), take)
        found += [
            Division(
                t.node,
                t.scope,
                [t.rows],
                keyword(split, "groups", 2) if split is not None else by or column_of(t),
            )
            for t in tables.values()
        ]
    return found + [lifted for d in found for lifted in _handed(program, d)]


def column_of(take: Take) -> ast.expr | None:
    """Return the column whose values select rows, as in `rows[rows.person.isin(some)]`, or None."""
    column = receiver(take.selector) if method(take.selector) == "isin" else None
    return None if column is None or getattr(column, "attr", "") == "index" else column


def divided(program: Program) -> Iterator[tuple[ast.expr, Scope, list[ast.expr]]]:
    """Yield the divisions in the form of `splits`."""
    return ((d.node, d.scope, d.parts) for d in divisions(program))


def _is_order(program: Program, rows: ast.expr, scope: Scope) -> bool:
    return isinstance(rows, ast.Name) and is_random_order(program, rows.id, scope)


def _divides(program: Program, members: list[Take]) -> bool:
    """Return whether selections that belong together make a train, val or test split."""
    kind, key = members[0].family
    if kind == "split":
        return True
    several = len({t.member for t in members}) > 1
    if kind == "slice" and isinstance(key, str) and is_random_order(program, key, members[0].scope):
        return several
    sides = {side_of(t.member) if kind in ("given", "returned") else t.side for t in members} - {""}
    if kind == "mask":
        random = any(
            t.member.lstrip("~")
            and isinstance(t.selector, (ast.Name, ast.UnaryOp))
            and _random_mask(program, t)
            for t in members
        )
        return several and (random or ("train" in sides and len(sides) > 1))
    return several and "train" in sides and len(sides) > 1


def _random_mask(program: Program, take: Take) -> bool:
    name = next(iter(nodes_of(take.selector, ast.Name)), None)
    bound = latest(program, name, take.scope) if name is not None else None
    return bound is not None and any(last_name(c.func) in DRAWN for c in calls(bound.value))


def _handed(program: Program, division: Division, depth: int = 0) -> Iterator[Division]:
    """Yield the calls that pass a table to a function which divides it."""
    scope = division.scope
    for name in (
        sorted(values_read(division.parts[0]) & set(scope.parameters))
        if scope.name and depth < 2
        else ()
    ):
        if any(
            b.how == "assign" and name not in names_read(b.value)
            for b in scope.bindings.get(name, ())
        ):
            continue
        for call, caller in program.call_sites[scope]:
            given = argument(call, scope, name)
            if given is not None and isinstance(given, (ast.Name, ast.Attribute, ast.Subscript)):
                lifted = Division(call, caller, [given], division.groups)
                yield lifted
                yield from _handed(program, lifted, depth + 1)


def of_one_side(program: Program, rows: ast.expr) -> bool:
    """Return whether an expression reads rows of one split alone: the result of an earlier
    division, or a part of it, by whatever name.
    """
    scope, line, inside = program.scope(rows), line_of(rows), {id(n) for n in walk(rows)}
    before: set[str] = set()
    for take in (t for members in dividing(program) for t in members):
        if id(take.node) in inside:
            return True
        if take.scope is scope and line_of(take.node) < line:
            before |= set(take.names)
    for call, split_scope, _ in splits(program, by_group=True):
        statement = program.statement(call)
        if (
            split_scope is scope
            and line_of(call) < line
            and isinstance(statement, ast.Assign)
            and statement.value is call
        ):
            before |= {n.id for n in nodes_of(statement, ast.Name) if isinstance(n.ctx, ast.Store)}
    return bool(values_read(rows) & before)


def given_back(program: Program, node: ast.expr | ast.stmt) -> list[ast.Call]:
    """Return the calls of `handed_back` that do not pass rows of one split."""
    return [
        c for c in handed_back(program, node) if not any(of_one_side(program, a) for a in c.args)
    ]


def trivial_groups(program: Program, groups: ast.expr | None, scope: Scope) -> bool:
    """Return whether groups number the rows: `frame.index`, `range(len(x))`, `np.arange(n)`."""
    if isinstance(groups, ast.Name):
        bound = latest(program, groups, scope)
        groups = bound.value if bound is not None and bound.index is None else groups
    if (
        isinstance(groups, ast.Attribute)
        and groups.attr in ("index", "values")
        and isinstance(groups.value, (ast.Name, ast.Attribute, ast.Call))
    ):
        return groups.attr == "index" or trivial_groups(program, groups.value, scope)
    if isinstance(groups, ast.Call) and method(groups) in ("to_numpy", "tolist"):
        return trivial_groups(program, receiver(groups), scope)
    if isinstance(groups, ast.Call) and last_name(groups.func) == "list" and groups.args:
        return trivial_groups(program, groups.args[0], scope)
    return (
        isinstance(groups, ast.Call)
        and last_name(groups.func) in ("arange", "range")
        and len(groups.args) == 1
    )


def reads_in(scope: Scope, name: str) -> Iterator[ast.Name]:
    """Yield every place in a function that reads a name."""
    return (
        n
        for n in own_nodes_of(scope.node, ast.Name)
        if n.id == name and isinstance(n.ctx, ast.Load)
    )
