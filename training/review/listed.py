"""Short lists of values that are made in one go, `[prepare(side) for side in (train, val, test)]`,
written out value by value, so that rules can follow each.
"""

from __future__ import annotations

import ast
import copy
from bisect import bisect_left
from collections import defaultdict
from typing import Any, cast

from training.review.syntax import Rewriter, below, located, of_kind, walk_afresh

FEW = 4  # values of a list that is written out
NO_VALUES = (ast.Starred, ast.Constant, ast.Lambda)
SIMPLE = ast.Name | ast.Attribute | ast.Subscript
Functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def with_lists(tree: ast.Module) -> tuple[ast.Module, dict[str, str]]:
    """The tree with comprehensions over a few values written out, with a name for each value of a
    list that is asked for by its place, and what these stand for.

    >>> tree, named = with_lists(ast.parse("sets = [Rows(t) for t in (train, val)]; fit(sets[0]); a, b = (score(s) for s in sets)"))
    >>> print(ast.unparse(tree))
    sets_0 = Rows(train)
    sets_1 = Rows(val)
    sets = [sets_0, sets_1]
    fit(sets_0)
    a, b = (score(sets_0), score(sets_1))
    >>> named
    {'sets_0': 'sets[0]', 'sets_1': 'sets[1]'}
    """  # noqa: E501
    made: list[ast.expr] = [
        *of_kind(tree, ast.ListComp),
        *of_kind(tree, ast.GeneratorExp),
    ]
    kept = of_kind(tree, ast.Assign)
    if not made or not any(_begins(n) for n in (*made, *kept)):
        return tree, {}
    unpacked = [
        n
        for n in kept
        if isinstance(n.targets[0], (ast.Tuple, ast.List))
        or isinstance(n.value, (ast.List, ast.Tuple))
    ]
    places = [n for n in of_kind(tree, ast.Subscript) if _number(n.slice) is not None]
    lists = _Lists(sorted({n.lineno for nodes in (made, unpacked, places) for n in nodes}))
    written = cast(ast.Module, lists.visit(tree))
    return (located(written) if lists.changed else tree), lists.stand_for


def _begins(node: ast.AST) -> bool:
    """Whether a few values are written there, that something may be written out for: in a loop of a
    comprehension, or under a name.
    """
    match node:
        case ast.ListComp() | ast.GeneratorExp():
            over = node.generators[0].iter
        case ast.Assign(targets=[ast.Name()], value=ast.List() | ast.Tuple() as over):
            return 1 < len(over.elts) <= FEW and not any(
                isinstance(v, NO_VALUES) for v in over.elts
            )
        case _:
            return False
    return isinstance(over, (ast.List, ast.Tuple)) or (
        isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id == "zip"
    )


class _Lists(Rewriter):
    def __init__(self, lines: list[int]) -> None:
        self.lines = lines  # on which something may change, in order
        self.stand_for: dict[str, str] = {}
        self.function: ast.Module | ast.FunctionDef = ast.Module([], [])  # at hand
        self.bound: dict[str, int] | None = (
            None  # how often each of its names gets a value, once that is asked
        )
        self.places: set[str] | None = None  # its names that are asked for by place
        self.known: dict[
            str, list[ast.expr]
        ] = {}  # the values of each list that the function at hand binds once

    def visit(self, node: ast.AST) -> Any:
        """What stands for a node; statements without a line on which something may change are left
        as they are.
        """
        if isinstance(node, ast.stmt):
            at = bisect_left(self.lines, node.lineno)
            if at == len(self.lines) or self.lines[at] > (node.end_lineno or node.lineno):
                return node
        return super().visit(node)

    def visit_Module(self, node: ast.Module) -> ast.AST:
        """The statements of the file."""
        return self._within(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """A function, whose names are its own."""
        return self._within(node)

    def _within(self, node: ast.Module | ast.FunctionDef) -> ast.AST:
        outer = (self.known, self.function, self.bound, self.places)
        self.function, self.bound, self.places = node, None, None
        if self.known:
            self.bound = _bound(node)
            self.known = {
                name: values for name, values in self.known.items() if name not in self.bound
            }
        body = [made for s in node.body for made in _listed(self.visit(s))]
        self.changed |= len(body) != len(node.body)
        node.body = body
        self.known, self.function, self.bound, self.places = outer
        return node

    def _is_bound_once(self, name: str) -> bool:
        if self.bound is None:
            self.bound = _bound(self.function)
        return self.bound.get(name) == 1

    def _is_asked_for(self, name: str) -> bool:
        if self.places is None:
            self.places = _asked_for(self.function)
        return name in self.places

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.stmt]:
        """A list under a name is kept; one that is unpacked is written out."""
        self.generic_visit(node)
        target = node.targets[0]
        if len(node.targets) != 1:
            return node
        if isinstance(target, (ast.Tuple, ast.List)):
            elements = self._elements(node.value)
            if (
                isinstance(node.value, (ast.Name, ast.Subscript))
                and elements
                and len(elements) == len(target.elts)
                and all(isinstance(e, ast.Name) for e in elements)
            ):
                node.value = ast.copy_location(
                    ast.Tuple([copy.deepcopy(e) for e in elements], ast.Load()), node.value
                )
                self.changed = True
            return node
        values = node.value.elts if isinstance(node.value, (ast.List, ast.Tuple)) else []
        if (
            not isinstance(target, ast.Name)
            or not 1 < len(values) <= FEW
            or any(isinstance(v, NO_VALUES) for v in values)
        ):
            return node
        if not self._is_bound_once(target.id):
            return node
        if all(isinstance(v, SIMPLE) for v in values):
            self.known[target.id] = values
            return node
        if not self._is_asked_for(target.id):
            return node
        made: list[ast.stmt] = []
        for at, value in enumerate(values):
            name = f"{target.id}_{at}"
            self.stand_for[name] = f"{target.id}[{at}]"
            made.append(
                ast.copy_location(
                    ast.Assign([ast.copy_location(ast.Name(name, ast.Store()), value)], value),
                    value,
                )
            )
            node.value.elts[at] = ast.copy_location(ast.Name(name, ast.Load()), value)  # type: ignore[attr-defined]
        self.known[target.id] = node.value.elts  # type: ignore[attr-defined]
        return [*made, node]

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """`sets[0]` of a list whose values have names."""
        self.generic_visit(node)
        values = (
            self.known.get(node.value.id, [])
            if isinstance(node.value, ast.Name) and isinstance(node.ctx, ast.Load)
            else []
        )
        at = _number(node.slice)
        if (
            at is None
            or not values
            or not -len(values) <= at < len(values)
            or not isinstance(values[at], ast.Name)
        ):
            return node
        return ast.copy_location(copy.deepcopy(values[at]), node)

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        """A list of a few values."""
        self.generic_visit(node)
        values = self._written(node)
        return ast.copy_location(ast.List(values, ast.Load()), node) if values else node

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.AST:
        """A few values in turn; those that a function takes at once, as `sum(…)`, stay."""
        self.generic_visit(node)
        values = self._written(node)
        return ast.copy_location(ast.Tuple(values, ast.Load()), node) if values else node

    def _written(self, node: ast.ListComp | ast.GeneratorExp) -> list[ast.expr]:
        loop = node.generators[0]
        elements = (
            self._elements(loop.iter)
            if len(node.generators) == 1 and not loop.ifs and not loop.is_async
            else []
        )
        filled = [_filling(loop.target, e) for e in elements]
        if (
            not elements
            or not all(filled)
            or any(
                isinstance(n, (Functions, ast.NamedExpr, ast.Await)) for n in walk_afresh(node.elt)
            )
        ):
            return []
        return [_Fill(values or {}).visit(copy.deepcopy(node.elt)) for values in filled]

    def _elements(self, over: ast.expr) -> list[ast.expr]:
        """The values of a list that is short and written there, or under a name; empty where it is
        no such list.
        """
        match over:
            case ast.Tuple() | ast.List():
                elements = over.elts
            case ast.Name(id=name):
                elements = self.known.get(name, [])
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Slice(step=None) as part):
                first, last = _number(part.lower), _number(part.upper)
                if (part.lower is not None and first is None) or (
                    part.upper is not None and last is None
                ):
                    return []
                elements = self.known.get(name, [])[first:last]
            case ast.Call(func=ast.Name(id="zip"), args=[_, _, *_] as beside, keywords=[]):
                columns = [self._elements(b) for b in beside]
                elements = [
                    ast.copy_location(ast.Tuple(list(row), ast.Load()), over)
                    for row in zip(*columns, strict=False)
                ]
                if len({len(c) for c in columns}) != 1:
                    return []
            case _:
                return []
        return elements if 1 < len(elements) <= FEW and all(_is_simple(e) for e in elements) else []


def _is_simple(element: ast.expr) -> bool:
    if isinstance(element, ast.Tuple):
        return (
            bool(element.elts)
            and all(isinstance(e, (SIMPLE, ast.Constant)) for e in element.elts)
            and any(isinstance(e, SIMPLE) for e in element.elts)
        )
    return isinstance(element, SIMPLE)


def _number(node: ast.expr | None) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _listed(made: ast.AST | list[ast.stmt] | None) -> list[ast.stmt]:
    return made if isinstance(made, list) else [] if made is None else [cast(ast.stmt, made)]


def _bound(function: ast.Module | ast.FunctionDef) -> dict[str, int]:
    """How often each name of a function, those of functions inside it left out, gets a value, what
    else changes a list counted too.
    """
    found = defaultdict[str, int](int)
    pending: list[ast.AST] = list(function.body)
    if isinstance(function, ast.FunctionDef):
        for argument in walk_afresh(function.args):
            if isinstance(argument, ast.arg):
                found[argument.arg] += 1
    while pending:
        node = pending.pop()
        if isinstance(
            node,
            (Functions, ast.ClassDef, ast.GeneratorExp, ast.ListComp, ast.DictComp, ast.SetComp),
        ):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            found[node.id] += 1
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            found[node.func.value.id] += node.func.attr in (
                "append",
                "extend",
                "insert",
                "pop",
                "reverse",
                "sort",
                "clear",
                "remove",
            )
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and isinstance(node.ctx, ast.Store)
        ):
            found[node.value.id] += 1
        pending += below(node)
    return found


def _asked_for(function: ast.Module | ast.FunctionDef) -> set[str]:
    """The names one of whose places is read, or that are gone through."""
    found: set[str] = set()
    for node in walk_afresh(function):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and isinstance(node.ctx, ast.Load)
        ):
            bounds = (
                [node.slice.lower, node.slice.upper]
                if isinstance(node.slice, ast.Slice)
                else [node.slice]
            )
            if any(_number(b) is not None for b in bounds):
                found.add(node.value.id)
        elif isinstance(node, ast.comprehension) and isinstance(node.iter, ast.Name):
            found.add(node.iter.id)
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Tuple)
            and isinstance(node.value, ast.Name)
        ):
            found.add(node.value.id)
    return found


def _filling(target: ast.expr, element: ast.expr) -> dict[str, ast.expr] | None:
    if isinstance(target, ast.Name):
        return {target.id: element}
    both = (
        isinstance(target, ast.Tuple)
        and isinstance(element, ast.Tuple)
        and len(target.elts) == len(element.elts)
    )
    names = target.elts if both and isinstance(target, ast.Tuple) else []
    values = element.elts if isinstance(element, ast.Tuple) else []
    return (
        {t.id: e for t, e in zip(names, values, strict=True) if isinstance(t, ast.Name)}
        if names and all(isinstance(t, ast.Name) for t in names)
        else None
    )


class _Fill(Rewriter):
    """Puts a value for a name, at the place of the name."""

    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A name that stands for a value."""
        value = self.values.get(node.id) if isinstance(node.ctx, ast.Load) else None
        if value is None:
            return node
        made = copy.deepcopy(value)
        for part in walk_afresh(made):
            if isinstance(part, ast.expr):
                ast.copy_location(part, node)
        return made
