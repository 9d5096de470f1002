"""Names through imports, and simple questions about expressions."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from typing import Any, TypeVar

from training.uncollected import uncollected

MOST_KEPT = 4000  # largest number of nodes for which a list is cached
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
LoopNode = ast.For | ast.AsyncFor | ast.While
# the same as a tuple: `isinstance` takes half as long
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
Kind = TypeVar("Kind", bound=ast.AST)
About = TypeVar("About")
Answer = TypeVar("Answer")
OWN = {*FUNCTIONS, ast.ClassDef, ast.Lambda}  # nodes that have own nodes
# fields without nodes, and `ctx`, which adds nothing: two in five of all nodes are Load or Store
PLAIN = {
    "ctx", "id", "attr", "arg", "kind", "type_comment", "level", "module", "conversion", "is_async",
    "simple", "name", "asname", "rest", "kwd_attrs",
}  # fmt: skip


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    """Fields that hold nodes, by type of node."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        self[kind] = found = tuple(f for f in kind._fields if f not in PLAIN)
        return found


_FIELDS = _Fields(dict.fromkeys((ast.Constant, ast.MatchSingleton, ast.Global, ast.Nonlocal), ()))


LEAVES = {
    ast.Name,
    ast.Constant,
    ast.alias,
    *ast.operator.__subclasses__(),
    *ast.cmpop.__subclasses__(),
    *ast.boolop.__subclasses__(),
    *ast.unaryop.__subclasses__(),
}


def parsed(text: str) -> ast.Module:
    """Parse a program without the garbage collector.

    Python 3.11 raises SystemError if a finalizer parses at the same time.
    """
    with uncollected():
        return ast.parse(text)


def import_aliases(tree: ast.Module) -> dict[str, str]:
    """Return the full name of each imported name of the file.

    >>> import_aliases(ast.parse("import torch.nn.functional as F; from torch import nn"))
    {'F': 'torch.nn.functional', 'nn': 'torch.nn'}
    """
    found: dict[str, str] = {}
    for plain in of_kind(tree, ast.Import):
        for alias in plain.names:
            found[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )
    for node in of_kind(tree, ast.ImportFrom):
        for alias in node.names if not node.level else ():
            found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def dotted(node: ast.AST | None) -> str:
    """Return `a.b.c` as text; empty for anything else.

    >>> dotted(ast.parse("self.model.fc", mode="eval").body)
    'self.model.fc'
    """
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def last_name(node: ast.AST | None) -> str:
    """Return the last identifier: `optimizer` of `self.optimizer`, `opts` of `opts[0]`."""
    while isinstance(node, (ast.Subscript, ast.Starred)):
        node = node.value
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def method(node: ast.AST | None) -> str:
    """Return the called attribute: `step` of `optimizer.step()`; empty for a plain call."""
    return node.func.attr if type(node) is ast.Call and type(node.func) is ast.Attribute else ""


def receiver(node: ast.AST | None) -> ast.expr | None:
    """Return the object of a method call: `optimizer` of `optimizer.step()`."""
    return node.func.value if type(node) is ast.Call and type(node.func) is ast.Attribute else None


def keyword(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """Return the argument of that name, or at that position if one is given."""
    for item in call.keywords:
        if item.arg == name:
            return item.value
    if (
        position is not None
        and len(call.args) > position
        and not any(isinstance(a, ast.Starred) for a in call.args[: position + 1])
    ):
        return call.args[position]
    return None


def entry(node: ast.AST | None) -> str:
    """Return the key or attribute of a stored value: `lr` of `config["lr"]` and `args.lr`.

    Empty for anything else.
    """
    if isinstance(node, ast.Subscript):
        return key if isinstance(key := constant(node.slice), str) else ""
    return node.attr if isinstance(node, ast.Attribute) else ""


def has_unpacking(call: ast.Call) -> bool:
    """Return whether `*args` or `**kwargs` hide which arguments are absent."""
    return any(k.arg is None for k in call.keywords) or any(
        isinstance(a, ast.Starred) for a in call.args
    )


def constant(node: ast.AST | None) -> object:
    """Return the value of a literal, `-1` included; None for anything else."""
    if (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
        and isinstance(node.operand.value, (int, float))
    ):
        return -node.operand.value
    return node.value if isinstance(node, ast.Constant) else None


def is_true(node: ast.AST | None) -> bool:
    """Return whether a node is the literal True."""
    return isinstance(node, ast.Constant) and node.value is True


def is_false(node: ast.AST | None) -> bool:
    """Return whether a node is the literal False."""
    return isinstance(node, ast.Constant) and node.value is False


def below(node: ast.AST) -> list[ast.AST]:
    """Return the current child nodes, as `ast.iter_child_nodes`, except in `PLAIN` fields."""
    found: list[ast.AST] = []
    for name in _FIELDS[node.__class__]:
        value = getattr(node, name, None)
        if value.__class__ is list:
            if value:
                found += [v for v in value if v is not None]
        elif value is not None:
            found.append(value)
    return found


def walk_afresh(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and its current descendants, for a tree that is still being rewritten."""
    found = [node]
    for current in found:
        if current.__class__ not in LEAVES:
            found += below(current)
        yield current


def whole(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Return all nodes of a file level by level, cached until it is rewritten."""
    known: tuple[ast.AST, ...] | None = getattr(tree, "_whole", None)
    if known is None:
        found: list[ast.AST] = [tree]
        for node in found:
            if node.__class__ not in LEAVES:
                found += below(node)
        known = tree._whole = tuple(found)  # type: ignore[attr-defined]
    return known


def kinds(tree: ast.Module) -> dict[type[ast.AST], list[Any]]:
    """Return all nodes of a file by type, in the order of `whole`, cached until it is rewritten."""
    known: dict[type[ast.AST], list[Any]] | None = getattr(tree, "_kinds", None)
    if known is None:
        known = defaultdict(list)
        for node in whole(tree):
            known[node.__class__].append(node)
        tree._kinds = known  # type: ignore[attr-defined]
    return known


def of_kind(tree: ast.Module, kind: type[Kind]) -> list[Kind]:
    """Return the nodes of a file of one type."""
    return kinds(tree).get(kind, [])


def children(node: ast.AST) -> tuple[ast.AST, ...]:
    """Return the child nodes, cached, since hundreds of rules walk over the same tree."""
    known: tuple[ast.AST, ...] | None = getattr(node, "_children", None)
    if known is None:
        known = tuple(below(node))
        node._children = known  # type: ignore[attr-defined]
    return known


def forget(node: ast.AST) -> None:
    """Drop what was cached for a node before it was rewritten, or copied from another node."""
    kept = node.__dict__
    for name in ("_children", "_walked", "_identifiers", "_own", "_own_kinds", "_whole", "_kinds"):
        if name in kept:
            del kept[name]


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and its descendants level by level, as `ast.walk`.

    Cached like `children`, except for the largest trees, whose parts would be cached repeatedly.
    """
    known: tuple[ast.AST, ...] | None = getattr(node, "_walked", None)
    if known is not None:
        return iter(known)
    found = [node]
    for current in found:
        if current.__class__ not in LEAVES:
            found += children(current)
    if len(found) <= MOST_KEPT:
        node._walked = tuple(found)  # type: ignore[attr-defined]
    return iter(found)


def identifiers(node: ast.AST | None) -> frozenset[str]:
    """Return all names and attributes in a node."""
    if node is None:
        return frozenset()
    known: frozenset[str] | None = getattr(node, "_identifiers", None)
    if known is None:
        known = frozenset(
            [
                n.id if isinstance(n, ast.Name) else n.attr
                for n in walk(node)
                if isinstance(n, (ast.Name, ast.Attribute))
            ]
        )
        node._identifiers = known  # type: ignore[attr-defined]
    return known


def names_read(node: ast.AST | None) -> set[str]:
    """Return all plain names in a node."""
    return {n.id for n in nodes_of(node, ast.Name)}


def exponent(node: ast.AST | None) -> ast.expr | None:
    """Return the argument of `exp`, called as a function or a method."""
    if not isinstance(node, ast.Call) or last_name(node.func) != "exp":
        return None
    return node.args[0] if node.args else receiver(node)


def nodes_of(node: ast.AST | None, kind: type[Kind]) -> list[Kind]:
    """Return the nodes of one type in a node, in the order of `walk`; none for None."""
    return [] if node is None else [n for n in walk(node) if n.__class__ is kind]


def calls(node: ast.AST | None) -> list[ast.Call]:
    """Return all calls in a node; none for None."""
    return nodes_of(node, ast.Call)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in a node, except in inner functions and classes; cached as in `walk`."""
    known: tuple[ast.AST, ...] | None = getattr(node, "_own", None)
    if known is not None:
        return iter(known)
    found, pending = [], list(children(node))
    while pending:
        current = pending.pop()
        found.append(current)
        if current.__class__ not in OWN:
            pending += children(current)
    if len(found) <= MOST_KEPT:
        node._own = tuple(found)  # type: ignore[attr-defined]
    return iter(found)


def own_nodes_of(node: ast.AST, kind: type[Kind]) -> list[Kind]:
    """Return those of `own_nodes` of one type, cached by type.

    Many rules ask for the returns, loops and calls of the same functions.
    """
    known: dict[type[ast.AST], list[Any]] | None = getattr(node, "_own_kinds", None)
    if known is None:
        known = node._own_kinds = defaultdict(list)  # type: ignore[attr-defined]
        for own in own_nodes(node):
            known[own.__class__].append(own)
    return known.get(kind, [])


def once(question: Callable[[About], Answer]) -> Callable[[About], Answer]:
    """Cache the answer to a question about a file with that file, for the many rules that ask.

    The answer is freed with the file.
    """
    key = f"{question.__module__}.{question.__qualname__}"

    @wraps(question)
    def ask(about: About) -> Answer:
        answers = about.__dict__
        if key not in answers:
            answers[key] = question(about)
        known: Answer = answers[key]
        return known

    return ask


@lru_cache(maxsize=1 << 14)
def words(name: str) -> frozenset[str]:
    """Return the words of an identifier.

    >>> sorted(words("valLoader_2"))
    ['2', 'loader', 'val']
    """
    spaced = "".join(
        " " + c.lower() if c.isupper() and i and not name[i - 1].isupper() else c.lower()
        for i, c in enumerate(name)
    )
    return frozenset(spaced.replace("_", " ").replace(".", " ").split())


def defaults(node: ast.AST) -> dict[str, ast.expr]:
    """Return the defaults of a function's parameters by name; none for anything else.

    >>> sorted(defaults(ast.parse("def f(a, b=1, *, c, d=2): ...").body[0]))
    ['b', 'd']
    """
    if not isinstance(node, FUNCTIONS):
        return {}
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    found = dict(
        zip(
            [a.arg for a in positional[len(positional) - len(given.defaults) :]],
            given.defaults,
            strict=True,
        )
    )
    return found | {
        a.arg: d for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d is not None
    }
