"""Data sets that number the words of the rows that they are made of, each for itself, and read
their rows by these numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.carried import ADDS, REDUCES, conditions_met
from training.review.numbered import BY_COUNT, LOCAL, distinct_by, enumerated, is_given_one, looped
from training.review.part_calls import parts_of
from training.review.program import Program, Scope, argument
from training.review.syntax import (
    FUNCTIONS,
    calls,
    constant,
    defaults,
    dotted,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes,
    own_nodes_of,
    receiver,
    walk,
    words,
)
from training.review.whole import LABEL_WORDS

LABELS = LABEL_WORDS | {"class", "classes", "category", "categories", "tag", "tags", "cls"}
READS = {"get", "setdefault", "__getitem__"}
DEPTH = 3  # methods that call each other


def numbered_by_data_sets(program: Program) -> Iterator[tuple[ast.expr, str]]:
    """Mappings that a data set makes of its own rows and reads them by, where it is made for
    different parts of the rows.
    """
    for scope in program.scopes:
        owner = scope.owner
        if (
            scope.name != "__init__"
            or owner is None
            or not program.call_sites[scope]
            or not _is_data_set(owner)
            or is_given_one(scope)
        ):
            continue
        for node, how, held, over in _mappings(scope):
            if (
                _is_set_elsewhere(program, scope, held)
                or not _is_read(program, scope, held)
                or not _is_asked(program, node, scope, held)
            ):
                continue
            for name in (p for p in scope.parameters if p != "self" and not LOCAL & words(p)):
                given = [
                    (v, c, s)
                    for c, s in program.call_sites[scope]
                    if (v := argument(c, scope, name)) is not None
                ]
                if _names(over) & _made_of(scope, name) and (where := parts_of(program, given)):
                    yield node, f"{how} numbers the categories anew for {where}"
                    break


def _is_data_set(owner: ast.ClassDef) -> bool:
    return any(isinstance(n, FUNCTIONS) and n.name == "__getitem__" for n in owner.body)


def _mappings(scope: Scope) -> Iterator[tuple[ast.expr, str, str, ast.expr]]:
    """The mappings that an object keeps: where they are made, by what, the attribute, and
    of what.
    """
    nodes = list(own_nodes(scope.node))
    kept: dict[str, str] = {}  # local names and attributes by the attribute that they become
    for n in nodes:
        if isinstance(n, ast.Assign) and _is_own(n.targets[0]):
            attribute = dotted(n.targets[0])
            kept[attribute] = attribute
            if isinstance(n.value, ast.Name):
                kept[n.value.id] = attribute
    for n in nodes:
        match n:
            case ast.Assign(targets=[target], value=value) if held := kept.get(dotted(target)):
                for made in _alternatives(value):
                    over = enumerated(made) if isinstance(made, ast.DictComp) else None
                    if (
                        isinstance(made, ast.DictComp)
                        and over is not None
                        and (how := _how(scope, over, held, made.key))
                    ):
                        yield made, how, held, over
            case ast.For(iter=over):
                for inner in walk(n):
                    match inner:
                        case ast.Assign(
                            targets=[ast.Subscript(value=of, slice=key)], value=value
                        ) if held := kept.get(dotted(of)):
                            how = (
                                "setdefault"
                                if _is_length(value, of)
                                else _how(scope, over, held, key)
                                if _counts(n, value)
                                else ""
                            )
                            if how and not _about_labels(over, held, key):
                                yield value, how, held, over


def _is_own(target: ast.expr) -> bool:
    return (
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    )


def _alternatives(value: ast.expr) -> list[ast.expr]:
    """A mapping, also where further entries are joined to it."""
    if isinstance(value, ast.Dict):
        return [v for k, v in zip(value.keys, value.values, strict=True) if k is None]
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        return [*_alternatives(value.left), *_alternatives(value.right)]
    return [value]


def _is_length(value: ast.expr, of: ast.expr) -> bool:
    counted = [n.args[0] for n in calls(value) if last_name(n.func) == "len" and n.args]
    return any(dotted(c) == dotted(of) for c in counted)


def _counts(loop: ast.For, value: ast.expr) -> bool:
    """Whether a loop goes through `enumerate(...)` and the value is its count."""
    target, over = loop.target, loop.iter
    numbered = isinstance(over, ast.Call) and last_name(over.func) == "enumerate"
    return (
        numbered
        and isinstance(target, ast.Tuple)
        and names_read(value) == {last_name(target.elts[0])}
    )


def _how(scope: Scope, over: ast.expr, held: str, key: ast.expr) -> str:
    """By what categories are listed; empty where they are labels that are sorted, or no
    categories.
    """
    how = distinct_by(over, scope)
    for name in sorted(_names(over)) if not how else ():
        for value in _assigned(scope, name):
            how = how or distinct_by(value, scope)
    if how in BY_COUNT:
        return how
    seen = [over, *(v for name in _names(over) for v in _assigned(scope, name))]
    return "enumerate" if how and not any(_about_labels(e, held, key) for e in seen) else ""


def _about_labels(over: ast.expr, held: str, key: ast.expr) -> bool:
    said = {
        last_name(n) if isinstance(n, (ast.Name, ast.Attribute)) else str(constant(n))
        for e in (over, key)
        for n in walk(e)
    }
    return any(words(s) & LABELS for s in (*said, held))


def _names(node: ast.AST) -> set[str]:
    """The names and own attributes that are read: of `self.rows + more` `self.rows` and `more`."""
    return (names_read(node) - {"self"}) | {
        dotted(n) for n in nodes_of(node, ast.Attribute) if _is_own(n)
    }


def _assigned(scope: Scope, name: str) -> list[ast.expr]:
    found = own_nodes_of(scope.node, ast.Assign)
    return [n.value for n in found if any(dotted(t) == name for t in n.targets)]


def _made_of(scope: Scope, name: str) -> set[str]:
    """The names and attributes that are computed from a parameter."""
    found, before = {name}, set[str]()
    while found != before:
        before = set(found)
        for node in own_nodes(scope.node):
            match node:
                case ast.Assign() | ast.AugAssign() if (
                    node.value is not None and _names(node.value) & found
                ):
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        found |= _names(target)
                case ast.For() if _names(node.iter) & found:
                    found |= _names(node.target)
                case ast.Call() if method(node) in {*ADDS, "update"} and any(
                    _names(a) & found for a in node.args
                ):
                    found |= _names(receiver(node) or node)
    return found


def _is_asked(program: Program, node: ast.expr, scope: Scope, held: str) -> bool:
    """Whether the mapping is made on no other condition than what the rows say."""
    known = looped(scope) | {"self"}
    known |= set(scope.bindings) - set(scope.parameters)
    known |= {
        name
        for name, value in defaults(scope.node).items()
        if isinstance(constant(value), (int, float)) and not isinstance(constant(value), bool)
    }
    around = [
        a.test for a in program.ancestors(node) if isinstance(a, (ast.If, ast.IfExp, ast.While))
    ]
    return conditions_met(program, node, known) and all(
        {n for n in _names(t) if n.startswith("self.")} <= {held} for t in around
    )


def _is_set_elsewhere(program: Program, scope: Scope, held: str) -> bool:
    """Whether something else puts a mapping there: `test_set.vocab = train_set.vocab`, or a method
    of the object.
    """
    attribute = held.partition(".")[2]
    for node in program.nodes[ast.Attribute]:
        if (
            node.attr == attribute
            and isinstance(node.ctx, ast.Store)
            and program.scope(node) is not scope
        ):
            return True
    return False


def _is_read(program: Program, scope: Scope, held: str) -> bool:
    """Whether an object reads its own rows by the mapping, where it is made or where a row is asked
    for.
    """
    methods = program.methods[scope.owner] if scope.owner is not None else {}
    pending, seen = [scope, *(methods[n] for n in ("__getitem__",) if n in methods)], set[Scope]()
    for _ in range(DEPTH):
        above: list[Scope] = []
        for here in pending:
            seen.add(here)
            names = {held} | {dotted(value) for value in _assigned(here, held)} - {""}
            for node in own_nodes(here.node):
                if _looks_up(program, node, names):
                    return True
                if isinstance(node, ast.Call) and dotted(node.func).startswith("self."):
                    above += [m for n, m in methods.items() if n == method(node) and m not in seen]
        pending = above
    return False


def _looks_up(program: Program, node: ast.AST, names: set[str]) -> bool:
    """Whether a word's number is read, other than to find a place: of
    `self.rows[self.place[key]]`.
    """
    match node:
        case ast.Subscript(value=of, ctx=ast.Load()) if dotted(of) in names:
            pass
        case ast.Call(func=ast.Attribute(value=of, attr=name)) if (
            name in READS and dotted(of) in names
        ):
            pass
        case _:
            return False
    inner: ast.AST = node
    for around in program.ancestors(node):
        if isinstance(around, ast.stmt):
            return not isinstance(around, ast.Assign) or inner is around.value
        if isinstance(around, ast.Subscript) and inner is around.slice:
            return False
        if isinstance(around, ast.Compare) or (
            isinstance(around, ast.Call)
            and last_name(around.func) in REDUCES - {"append", "sum", "values"}
        ):
            return False
        inner = around
    return False
