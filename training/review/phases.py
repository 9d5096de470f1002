"""Loops over the phases of an epoch, `for phase in ["train", "val"]`, written out phase by phase,
so that rules see which statements train and which evaluate.
"""

from __future__ import annotations

import ast
import copy
from typing import cast

from training.review.syntax import (
    Rewriter,
    below,
    dotted,
    last_name,
    located,
    nodes_of,
    of_kind,
    walk_afresh,
    whole,
    words,
)

TRAIN, HELD = (
    {"train", "training", "tr", "fit"},
    {
        "val",
        "valid",
        "validation",
        "test",
        "testing",
        "eval",
        "evaluation",
        "dev",
        "holdout",
    },
)
MOST = 4  # phases


def sides_by_name(tree: ast.Module) -> tuple[ast.Module, dict[str, str]]:
    """The tree with `loaders["train"]` and `loaders["val"]` under names of their own, and what each
    of these stands for.

    >>> tree, named = sides_by_name(ast.parse("fit(loaders['train'], loaders['val'])"))
    >>> ast.unparse(tree), named["val_loaders"]
    ('fit(train_loaders, val_loaders)', "loaders['val']")
    """
    keys: dict[str, set[str]] = {}
    for node in of_kind(tree, ast.Subscript):
        if (key := _side_key(node)) and (of := dotted(node.value)):
            keys.setdefault(of, set()).add(key)
    sided = {
        of
        for of, said in keys.items()
        if any(words(k) & TRAIN for k in said) and any(words(k) & HELD for k in said)
    }
    if not sided:
        return tree, {}
    names = _Names(sided)
    return located(cast(ast.Module, names.visit(tree))), names.stand_for


def _side_key(node: ast.Subscript) -> str:
    key = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return (
        key if isinstance(key, str) and key.isidentifier() and words(key) & (TRAIN | HELD) else ""
    )


class _Names(Rewriter):
    def __init__(self, sided: set[str]) -> None:
        self.sided, self.stand_for = sided, dict[str, str]()

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """`loaders["val"]` as `val_loaders`, `self.loaders["val"]` as `self.val_loaders`."""
        key = _side_key(node)
        if not key or dotted(node.value) not in self.sided:
            return self.generic_visit(node)
        name = f"{key}_{last_name(node.value)}"
        self.stand_for[name] = ast.unparse(node).removeprefix("self.")
        plain: ast.expr = (
            ast.Attribute(node.value.value, name, node.ctx)
            if isinstance(node.value, ast.Attribute)
            else ast.Name(name, node.ctx)
        )
        return ast.copy_location(plain, node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.stmt]:
        """A table of sides that is written there gives each name its value."""
        table, target = node.value, node.targets[0]
        keys = table.keys if isinstance(table, ast.Dict) else []
        self.generic_visit(node)
        if (
            not isinstance(table, ast.Dict)
            or dotted(target) not in self.sided
            or len(node.targets) != 1
            or not isinstance(target, ast.Name)
        ):
            return node
        made: list[ast.stmt] = []
        for at, (key, value) in enumerate(zip(keys, table.values, strict=True)):
            if (
                isinstance(key, ast.Constant)
                and isinstance(key.value, str)
                and key.value.isidentifier()
                and words(key.value) & (TRAIN | HELD)
            ):
                name = f"{key.value}_{target.id}"
                self.stand_for[name] = f"{target.id}[{key.value!r}]"
                made.append(
                    ast.copy_location(
                        ast.Assign([ast.copy_location(ast.Name(name, ast.Store()), value)], value),
                        value,
                    )
                )
                table.values[at] = ast.copy_location(ast.Name(name, ast.Load()), value)
        return [*made, node]


def with_phases(tree: ast.Module) -> tuple[ast.Module, dict[int, int]]:
    r"""The tree with each loop over phases put as one block a phase, conditions that ask for the
    phase decided, and the line in the file of each of its lines.

    Lines are those of the text as it would be written out: what comes later stands further down.

    >>> text = "for p in ['train', 'val']:\n    for x in loaders[p]:\n        if p == 'train':\n            step(x)\n        else:\n            score(x)"
    >>> tree, lines = with_phases(ast.parse(text))
    >>> print(ast.unparse(tree))
    for x in loaders['train']:
        step(x)
    for x in loaders['val']:
        score(x)
    >>> [lines[n.lineno] for n in tree.body], tree.body[0].lineno < tree.body[1].lineno
    ([2, 2], True)
    """  # noqa: E501
    if not any(isinstance(n.value, str) and n.value in TRAIN for n in of_kind(tree, ast.Constant)):
        return tree, {}
    known = _lists(tree)
    loops = [n.iter for n in of_kind(tree, ast.For)] + [
        n.generators[0].iter for n in of_kind(tree, ast.DictComp)
    ]
    if not any(_elements(over, known) for over in loops):
        return tree, {}
    phases = _Phases(known)
    written = located(cast(ast.Module, phases.visit(tree)))
    return written, _renumbered(written, phases.loops) if phases.loops else {}


def _renumbered(tree: ast.Module, loops: list[tuple[int, int, int]]) -> dict[int, int]:
    """Give every node the line that it would have in the text written out; which line of the file
    each of these is.

    Args:
        tree: with `turn` at nodes that were written out, which phase they are of.
        loops: first and last line, and number of phases, of those that were.
    """
    lines: dict[int, int] = {}
    for node in whole(tree):
        first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
        if first is None or last is None:
            continue
        turn = getattr(node, "turn", None)
        above = sum((times - 1) * (end - start + 1) for start, end, times in loops if end < first)
        inside = sum(
            (times - 1) * (end - start + 1)
            for start, end, times in loops
            if first <= start and end <= last and turn is None
        )
        own = next(
            (
                turn * (end - start + 1)
                for start, end, _ in loops
                if turn is not None and start <= first <= end
            ),
            0,
        )
        node.lineno, node.end_lineno = first + above + own, last + above + own + inside  # type: ignore[attr-defined]
        lines[node.lineno] = first  # type: ignore[attr-defined]
        lines.setdefault(node.end_lineno, last)  # type: ignore[attr-defined]
    return lines


def _lists(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """The texts in the lists, or keys of the tables, that a name of the file is bound to, where
    there is one such name.
    """
    found: dict[str, list[list[ast.expr]]] = {}
    for node in of_kind(tree, ast.Assign):
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(_elements(node.value, {}))
    return {name: lists[0] for name, lists in found.items() if len(lists) == 1 and lists[0]}


def _elements(over: ast.expr, known: dict[str, list[ast.expr]]) -> list[ast.expr]:
    """What a loop over phases goes through; empty where it is no such loop."""
    match over:
        case ast.List() | ast.Tuple():
            elements = over.elts
        case ast.Dict() if all(k is not None for k in over.keys):
            elements = [k for k in over.keys if k is not None]
        case ast.DictComp(generators=[ast.comprehension(ifs=[]) as loop], key=ast.Name(id=key)) if (
            isinstance(loop.target, ast.Name) and loop.target.id == key
        ):
            elements = _elements(loop.iter, known)
        case ast.Name(id=name):
            elements = known.get(name, [])
        case ast.Call(func=ast.Attribute(value=ast.Dict() as table, attr="items")) if all(
            k is not None for k in table.keys
        ):
            elements = [
                ast.Tuple([k, v], ast.Load())
                for k, v in zip(table.keys, table.values, strict=True)
                if k is not None
            ]
        case _:
            return []
    said = [_said(e) for e in elements]
    train = [s for s in said if words(s) & TRAIN]
    held = [s for s in said if words(s) & HELD]
    return elements if 1 < len(elements) <= MOST and len(train) == 1 and held and all(said) else []


def _said(element: ast.expr) -> str:
    """The text of a phase, or the first one of a pair."""
    first = element.elts[0] if isinstance(element, ast.Tuple) and element.elts else element
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


class _Phases(Rewriter):
    def __init__(self, known: dict[str, list[ast.expr]]) -> None:
        self.known = known
        self.loops: list[tuple[int, int, int]] = []

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.stmt]:
        """One block a phase, where none of them leaves the loop."""
        elements = _elements(node.iter, self.known)
        filled = [_filling(node.target, e) for e in elements]
        if (
            not elements
            or not all(filled)
            or node.orelse
            or _leaves(node.body)
            or not _asks(node.body, filled[0] or {})
        ):
            return self.generic_visit(node)
        done: list[ast.stmt] = []
        for turn, values in enumerate(filled):
            block = _filled(copy.deepcopy(node.body), values or {})
            for part in (n for s in block for n in walk_afresh(s)):
                part.turn = turn  # type: ignore[attr-defined]
            done += block
        if not done:
            return self.generic_visit(node)
        self.loops.append((node.lineno, node.end_lineno or node.lineno, len(filled)))
        return done

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:
        """`{p: load(p) for p in ["train", "val"]}` as a table that is written there."""
        self.generic_visit(node)
        loop = node.generators[0]
        elements = (
            _elements(loop.iter, self.known) if len(node.generators) == 1 and not loop.ifs else []
        )
        filled = [_filling(loop.target, e) for e in elements]
        if not elements or not all(filled):
            return node
        fills = [_Fill(values or {}) for values in filled]
        keys = [f.visit(copy.deepcopy(node.key)) for f in fills]
        return ast.copy_location(
            ast.Dict(keys, [f.visit(copy.deepcopy(node.value)) for f in fills]), node
        )


def _filling(target: ast.expr, element: ast.expr) -> dict[str, ast.expr] | None:
    """What each name of a loop stands for in one round."""
    if isinstance(target, ast.Name) and isinstance(element, ast.Constant):
        return {target.id: element}
    if (
        isinstance(target, ast.Tuple)
        and isinstance(element, ast.Tuple)
        and len(target.elts) == len(element.elts)
    ):
        pairs = list(zip(target.elts, element.elts, strict=True))
        if all(
            isinstance(t, ast.Name)
            and isinstance(e, (ast.Constant, ast.Name, ast.Attribute, ast.Subscript))
            for t, e in pairs
        ):
            return {t.id: e for t, e in pairs if isinstance(t, ast.Name)}
    return None


def _leaves(body: list[ast.stmt]) -> bool:
    """Whether a statement of a loop leaves it or goes on to its next round."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.Break, ast.Continue)):
            return True
        if not isinstance(node, (ast.For, ast.While, ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            pending += below(node)
    return False


def _asks(body: list[ast.stmt], values: dict[str, ast.expr]) -> bool:
    """Whether a condition of the block, or a flag in it, depends on the phase."""
    return any(
        isinstance(n, ast.Compare) and any(x.id in values for x in nodes_of(n, ast.Name))
        for s in body
        for n in walk_afresh(s)
    )


def _filled(block: list[ast.stmt], values: dict[str, ast.expr]) -> list[ast.stmt]:
    """A block of one phase; flags such as `training = phase == "train"` are followed."""
    done: list[ast.stmt] = []
    for statement in block:
        made = _Fill(values).visit(statement)
        for part in made if isinstance(made, list) else [made]:
            if part is None:
                continue
            done.append(part)
            if (
                isinstance(part, ast.Assign)
                and isinstance(part.targets[0], ast.Name)
                and isinstance(part.value, ast.Constant)
                and isinstance(part.value.value, bool)
            ):
                values = values | {part.targets[0].id: part.value}
    return done


class _Fill(Rewriter):
    """Puts values for names, and decides what is known then."""

    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A name that stands for a value."""
        value = self.values.get(node.id) if isinstance(node.ctx, ast.Load) else None
        return ast.copy_location(copy.deepcopy(value), node) if value is not None else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Equal texts, or one among several."""
        self.generic_visit(node)
        left, right = node.left, node.comparators[0]
        if len(node.ops) != 1 or not isinstance(left, ast.Constant):
            return node
        among = right.elts if isinstance(right, (ast.Tuple, ast.List, ast.Set)) else []
        if isinstance(node.ops[0], (ast.Eq, ast.NotEq)) and isinstance(right, ast.Constant):
            return ast.copy_location(
                ast.Constant((left.value == right.value) == isinstance(node.ops[0], ast.Eq)), node
            )
        if (
            isinstance(node.ops[0], (ast.In, ast.NotIn))
            and among
            and all(isinstance(e, ast.Constant) for e in among)
        ):
            inside = any(isinstance(e, ast.Constant) and e.value == left.value for e in among)
            return ast.copy_location(ast.Constant(inside == isinstance(node.ops[0], ast.In)), node)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Known parts are left out, or decide the whole."""
        self.generic_visit(node)
        decides = isinstance(node.op, ast.Or)
        if any(isinstance(v, ast.Constant) and v.value is decides for v in node.values):
            return ast.copy_location(ast.Constant(decides), node)
        node.values = [
            v for v in node.values if not (isinstance(v, ast.Constant) and v.value is (not decides))
        ]
        if not node.values:
            return ast.copy_location(ast.Constant(not decides), node)
        return node.values[0] if len(node.values) == 1 else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """`not` of what is known."""
        self.generic_visit(node)
        known = (
            isinstance(node.op, ast.Not)
            and isinstance(node.operand, ast.Constant)
            and isinstance(node.operand.value, bool)
        )
        return ast.copy_location(ast.Constant(not node.operand.value), node) if known else node  # type: ignore[attr-defined]

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """The one of two values that the phase has."""
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant) and isinstance(node.test.value, bool):
            return node.body if node.test.value else node.orelse
        return node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """The branch that the phase takes."""
        test = self.visit(node.test)
        if isinstance(test, ast.Constant) and isinstance(test.value, bool):
            return _filled(node.body if test.value else node.orelse, self.values)
        node.test = test
        node.body, node.orelse = (
            _filled(node.body, self.values) or [ast.copy_location(ast.Pass(), node)],
            _filled(node.orelse, self.values),
        )
        return node

    def _block(self, node: ast.For | ast.With | ast.While) -> ast.AST:
        self.generic_visit(node)
        node.body = node.body or [ast.copy_location(ast.Pass(), node)]
        return node

    visit_For = visit_With = visit_While = _block
