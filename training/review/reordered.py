"""Arrays that get a new order, and others beside them that are cut alike afterwards and keep the
old one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from training.review.program import Program, Scope
from training.review.splitting import line_of
from training.review.syntax import (
    constant,
    dotted,
    keyword,
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

SORTED_BY = {"argsort", "lexsort"}
DRAWN = {"permutation", "randperm"}
PAIRS = {"TensorDataset", "zip", "train_test_split"}
WRAPS = {
    "from_numpy", "tensor", "as_tensor", "asarray", "array", "float", "long", "Tensor",
    "FloatTensor", "LongTensor", "list", "stack", "to", "unsqueeze", "copy", "to_numpy",
}  # fmt: skip
FEWEST = 3  # parameters: what is put in order, by what, and what is left
OF_MANY = {
    "sum", "mean", "float", "bool", "long", "double", "any", "nonzero", "view", "reshape", "size",
    "cumsum",
}  # fmt: skip
EMPTY = {
    "arange", "range", "linspace", "zeros", "ones", "full", "empty", "zeros_like", "ones_like",
    "empty_like", "full_like", "eye",
}  # fmt: skip
NOT_ROWS = {
    "weight", "weights", "position", "positions", "order", "index", "indices", "idx", "perm",
    "permutation", "rank", "ranks", "edges", "bins", "grid", "offsets", "axes", "axs", "ax",
    "colors", "colours", "markers", "styles",
}  # fmt: skip
ON_PURPOSE = {
    "permuted", "permutation", "null", "control", "negative", "negatives", "neg", "corrupt",
    "corrupted", "marginal", "importance", "shuffled", "mix", "mixed", "mixup", "cutmix", "chance",
    "random", "scrambled", "augment", "partner", "other", "rolled",
}  # fmt: skip


class Move(NamedTuple):
    """An array that gets a new order: what it is called before and after, by which order, and the
    statement.
    """

    was: str
    now: str
    order: str
    place: ast.expr
    statement: ast.Assign


def kept_the_old_order(program: Program, scope: Scope) -> Iterator[tuple[ast.expr, str]]:
    """`hits = [hits[i] for i in order]`, and then `hits[a:b], energy[a:b]`, where nothing put
    `energy` in that order.
    """
    orders = _orders(scope)
    moves = (
        [m for m in _moves(scope, orders) if not _at_random_under_another_name(m, orders)]
        if orders
        else []
    )
    for order in dict.fromkeys(m.order for m in moves):
        alike = [m for m in moves if m.order == order]
        by_index = any(
            not isinstance(m.statement.value, ast.Call)
            or last_name(m.statement.value.func) != "sort"
            for m in alike
        )
        if (
            not by_index
            or _turned_back(scope, order)
            or any(words(n) & ON_PURPOSE for m in alike for n in (m.now, m.was, scope.name))
        ):
            continue
        if (found := _left(program, scope, order, alike)) is not None:
            yield (
                alike[0].place,
                (
                    f"{found[0].was} gets a new order, and {found[1]}, which goes with it, keeps"
                    " the old one"
                ),
            )


def sorted_out_of_a_zip(scope: Scope) -> Iterator[tuple[ast.expr, str]]:
    """`sequences, labels = zip(*samples)`, and then `sequences = sorted(sequences, key=len)`: the
    labels keep the old order.
    """
    for node in own_nodes_of(scope.node, ast.Assign):
        if not isinstance(node.targets[0], ast.Tuple):
            continue
        if not any(
            last_name(c.func) == "zip" and len(c.args) == 1 and isinstance(c.args[0], ast.Starred)
            for c in nodes_of(node.value, ast.Call)
        ):
            continue
        names = {e.id for e in node.targets[0].elts if isinstance(e, ast.Name)}
        moved = {name: call for call, name in _sorted_by_itself(scope) if name in names}
        left = sorted(
            n
            for n in names - moved.keys()
            if len(scope.bindings[n]) == 1 and not words(n) & (NOT_ROWS | ON_PURPOSE)
        )
        for name, call in moved.items():
            after = {
                n.id
                for n in own_nodes_of(scope.node, ast.Name)
                if isinstance(n.ctx, ast.Load) and line_of(n) > line_of(call)
            }
            if (
                name in after
                and (apart := [n for n in left if n in after])
                and not words(scope.name) & ON_PURPOSE
            ):
                yield (
                    call,
                    (
                        f"{name} gets a new order, and {apart[0]}, which goes with it, keeps the"
                        " old one"
                    ),
                )


def _sorted_by_itself(scope: Scope) -> Iterator[tuple[ast.Call, str]]:
    """`x = sorted(x, key=len)`, `x.sort()`, `random.shuffle(x)`: the call, and what it puts in
    another order.
    """
    for node in own_nodes(scope.node):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Name(id="sorted"), args=[ast.Name(id=of)]) as call,
            ) if name == of:
                yield call, name
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="sort")) as call
            ):
                yield call, name
            case ast.Expr(value=ast.Call(args=[ast.Name(id=name)]) as call) if (
                last_name(call.func) == "shuffle"
            ):
                yield call, name


def _orders(scope: Scope) -> dict[str, bool]:
    """The names of orders, and whether they are drawn: `np.argsort(lengths)`, `sorted(range(n),
    key=…)`, the indices of a sort, a shuffled range.
    """
    found: dict[str, bool] = {}
    shuffled = {
        last_name(n.args[0])
        for n in own_nodes_of(scope.node, ast.Call)
        if last_name(n.func) == "shuffle" and n.args
    }
    for name, bindings in scope.bindings.items():
        value = bindings[0].value if len(bindings) == 1 and bindings[0].how == "assign" else None
        if not isinstance(value, (ast.Call, ast.Subscript)):
            continue
        if bindings[0].index is not None:
            if (
                bindings[0].index == 1
                and isinstance(value, ast.Call)
                and last_name(value.func) == "sort"
                and _by_rows(value)
            ):
                found[name] = False
        elif (drawn := _makes_an_order(value)) is not None or (
            name in shuffled and isinstance(value, ast.Call) and _counts([value, *value.args])
        ):
            found[name] = drawn is not False
    return found


def _makes_an_order(value: ast.expr) -> bool | None:
    """Whether an order is drawn that an expression makes; None where it makes none:
    `x[np.argsort(t)]` is rows, an order of an order is a rank.
    """
    made = [c for c in nodes_of(value, ast.Call) if last_name(c.func) in SORTED_BY | DRAWN]
    if any(
        any(c is m for m in made for c in walk(n.slice)) for n in nodes_of(value, ast.Subscript)
    ):
        return None
    if len(made) == 1 and _by_rows(made[0]):
        return last_name(made[0].func) in DRAWN
    return (
        False
        if isinstance(value, ast.Call)
        and last_name(value.func) == "sorted"
        and _counts(value.args[:1])
        else None
    )


def _by_rows(call: ast.Call) -> bool:
    """Whether rows are sorted, as far as this is written: not each of them by itself."""
    along = keyword(
        call,
        "dim",
        1 if not method(call) or dotted(receiver(call)) in ("torch", "np", "numpy") else 0,
    ) or keyword(call, "axis")
    return along is None or constant(along) in (0, None)


def _counts(values: list[ast.expr]) -> bool:
    return any(
        isinstance(v, ast.Call) and last_name(v.func) in ("range", "arange") and len(v.args) == 1
        for v in values
    )


def _moves(scope: Scope, orders: dict[str, bool]) -> list[Move]:
    found = []
    for node in own_nodes(scope.node):
        for target, value in _pairs(node):
            if (
                isinstance(node, ast.Assign)
                and (by := _by_order(value, orders)) is not None
                and dotted(target)
            ):
                found.append(Move(by[0], dotted(target), by[1], value, node))
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and last_name(node.value.func) == "sort"
            and isinstance(node.targets[0], ast.Tuple)
        ):
            rows, order = (
                receiver(node.value) if method(node.value) else None,
                last_name(node.targets[0].elts[-1]),
            )
            rows = (
                node.value.args[0]
                if node.value.args and (rows is None or not dotted(rows) or dotted(rows) == "torch")
                else rows
            )
            if order in orders and rows is not None and dotted(rows):
                found.append(
                    Move(dotted(rows), dotted(node.targets[0].elts[0]), order, node.value, node)
                )
    return sorted(found, key=lambda m: line_of(m.statement))


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The targets of an assignment with what each is given."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return
    target, value = node.targets[0], node.value
    if (
        isinstance(target, ast.Tuple)
        and isinstance(value, ast.Tuple)
        and len(target.elts) == len(value.elts)
    ):
        yield from zip(target.elts, value.elts, strict=True)
    elif not isinstance(target, ast.Tuple):
        yield target, value


def _by_order(value: ast.expr, orders: dict[str, bool]) -> tuple[str, str] | None:
    """Which array an expression puts in which order."""
    value = _bare(value)
    match value:
        case ast.Subscript(value=rows, slice=ast.Name(id=order)) if order in orders:
            rows = (
                rows.value
                if isinstance(rows, ast.Attribute) and rows.attr in ("iloc", "values")
                else rows
            )
            return (dotted(rows), order) if dotted(rows) else None
        case ast.ListComp(
            elt=elt,
            generators=[ast.comprehension(target=ast.Name(id=i), iter=ast.Name(id=order), ifs=[])],
        ) if order in orders:
            elt = _bare(elt)
            if (
                isinstance(elt, ast.Subscript)
                and last_name(elt.slice) == i
                and isinstance(elt.slice, ast.Name)
                and dotted(elt.value)
            ):
                return dotted(elt.value), order
    return None


def _bare(value: ast.expr) -> ast.expr:
    """What is written, without the call that makes a tensor of it."""
    inner: ast.expr | None
    while isinstance(value, ast.Call) and last_name(value.func) in WRAPS:
        inner = (
            value.args[0]
            if value.args and method(value) not in ("to", "unsqueeze")
            else receiver(value)
        )
        if inner is None:
            break
        value = inner
    return value


def _at_random_under_another_name(move: Move, orders: dict[str, bool]) -> bool:
    """A draw that leaves the rows as they are, to set others against them: `wrong =
    x[torch.randperm(n)]`.
    """
    return orders[move.order] and move.was.rpartition(".")[2] != move.now.rpartition(".")[2]


def _turned_back(scope: Scope, order: str) -> bool:
    """Whether rows are put back as they were: the order is inverted, goes along, or is read where
    results are written.
    """
    for node in own_nodes(scope.node):
        if (
            isinstance(node, ast.Call)
            and last_name(node.func)
            in ("argsort", "empty_like", "zeros_like", "invert_permutation", "inverse")
            and order in names_read(node)
        ):
            return True
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Store)
            and order in names_read(node.slice)
        ):
            return True
        if (
            isinstance(node, (ast.Return, ast.Yield))
            and node.value is not None
            and any(isinstance(n, ast.Name) and n.id == order for n in _elements(node.value))
        ):
            return True
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Name)
            and node.value.id == order
        ):
            return True
    return False


def _elements(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, (ast.Tuple, ast.List)) else [node]


def _left(program: Program, scope: Scope, order: str, moves: list[Move]) -> tuple[Move, str] | None:
    """A move, and what is cut beside its rows afterwards without having been moved."""
    reads = {
        dotted(n)
        for s in own_nodes(scope.node)
        if isinstance(s, ast.stmt) and _speaks_of(s, order)
        for n in walk(s)
        if isinstance(n, (ast.Name, ast.Attribute))
    }
    touched = reads - {m.order for m in moves}
    same = _plain_copies(scope)
    moved = {m.now: m for m in moves}
    copies = [
        (dotted(t), dotted(_bare(v)), line_of(v))
        for n in own_nodes(scope.node)
        for t, v in _pairs(n)
    ]
    moved |= {
        made: moved[of]
        for made, of, line in copies
        if made and of in moved and line > line_of(moved[of].statement)
    }
    if any(m.was != m.now and _read_after(scope, m) for m in moves):
        return None
    for beside in _side_by_side(program, scope, moves):
        here = [moved[n] for n in beside if n in moved]
        for name in beside if here else ():
            plain = same.get(name, name)
            unknown = (
                name in moved
                or plain in touched
                or name in touched
                or words(name.rpartition(".")[2]) & NOT_ROWS
            )
            if not unknown and _is_older(
                program, scope, plain, min(line_of(m.statement) for m in moves)
            ):
                return here[0], name
    return None


def _speaks_of(statement: ast.stmt, order: str) -> bool:
    """Whether a statement that holds no others reads an order."""
    if isinstance(statement, ast.For):
        return order in names_read(statement.iter)
    simple = isinstance(statement, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.AnnAssign))
    return simple and any(
        n.id == order and isinstance(n.ctx, ast.Load) for n in nodes_of(statement, ast.Name)
    )


def _read_after(scope: Scope, move: Move) -> bool:
    """Whether rows that got a new name with their new order are read in the old one too."""
    if "." in move.now:
        return False
    line = line_of(move.statement)
    return any(
        dotted(n) == move.was and line_of(n) > line
        for n in own_nodes(scope.node)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


def _plain_copies(scope: Scope) -> dict[str, str]:
    """`self.y = y` and `self.y = torch.tensor(y)`: what an attribute, or another name, was given as
    it is.
    """
    return {
        dotted(t): dotted(_bare(v))
        for n in own_nodes(scope.node)
        for t, v in _pairs(n)
        if dotted(t) and dotted(_bare(v)) and dotted(t) != dotted(_bare(v))
    }


def _is_older(program: Program, scope: Scope, name: str, line: int) -> bool:
    """Whether something was there before rows were moved, is one entry a row, and is given no other
    value.
    """
    if "." in name:
        made = [v for n in own_nodes(scope.node) for t, v in _pairs(n) if dotted(t) == name]
        return (
            name.startswith("self.")
            and not any(line_of(v) >= line for v in made)
            and _given_before(program, scope, name.removeprefix("self."))
        )
    bound = scope.bindings.get(name, [])
    if not bound and name not in scope.parameters:
        return False
    for b in bound:
        calls = {last_name(c.func) for c in nodes_of(b.value, ast.Call)}
        if (
            line_of(b.statement) >= line
            or b.how == "loop"
            or calls & (EMPTY | {"sort", "sorted", "sort_values"})
            or _is_literal(b.value)
        ):
            return False
    return True


def _given_before(program: Program, scope: Scope, attribute: str) -> bool:
    """Whether an attribute holds what its object was given, as it is, before rows are moved: no
    cache, and nothing that is computed later.
    """
    bound = (
        [
            b
            for owner in program.bases(scope.owner)
            for b in program.attributes[owner].get(attribute, [])
        ]
        if scope.owner is not None
        else []
    )
    for b in bound:
        moved_at = [line_of(c) for c, caller in program.call_sites[scope] if caller is b.scope]
        given = _bare(b.value)
        if (
            not isinstance(given, ast.Name)
            or given.id not in b.scope.parameters
            or any(line_of(b.statement) > at for at in moved_at)
        ):
            return False
    return bool(bound)


def _is_literal(value: ast.expr) -> bool:
    """A list that is filled later, or written out: colours, names of panels."""
    return isinstance(value, (ast.List, ast.Tuple)) and all(
        isinstance(e, ast.Constant) for e in value.elts
    )


def _side_by_side(program: Program, scope: Scope, moves: list[Move]) -> Iterator[list[str]]:
    """Names that stand in one tuple, call, list or block of a loop, and are cut by the same slice
    or index there; or go into a data set or `zip` together.
    """
    line = min(line_of(m.statement) for m in moves)
    scopes = [
        scope,
        *(
            program.methods[scope.owner].values()
            if scope.owner is not None and any(m.now.startswith("self.") for m in moves)
            else ()
        ),
    ]
    for where in dict.fromkeys(scopes):
        for node in own_nodes(where.node):
            if where is scope and line_of(node) <= line:
                continue
            for parts in _beside(node):
                cut: dict[str, list[str]] = {}
                for part in map(_bare, parts):
                    if (
                        isinstance(part, ast.Subscript)
                        and isinstance(part.ctx, ast.Load)
                        and dotted(part.value)
                        and names_read(part.slice)
                    ):
                        cut.setdefault(ast.unparse(part.slice), []).append(dotted(part.value))
                yield from (names for names in cut.values() if len(names) > 1)
            if isinstance(node, ast.Call) and last_name(node.func) in PAIRS:
                yield [n for n in (dotted(_bare(a)) for a in node.args) if n]


def _beside(node: ast.AST) -> Iterator[list[ast.expr]]:
    match node:
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
            yield parts
        case ast.Call():
            yield [*node.args, *(k.value for k in node.keywords)]
        case ast.For(body=body):
            yield [
                s.value
                for s in body
                if isinstance(s, ast.Assign) and not isinstance(s.value, ast.Tuple)
            ]


def sorted_beside(scope: Scope) -> Iterator[tuple[ast.AST, str]]:
    """A parameter that is put in the order of another one, as the hazards of a risk set by their
    times, and then multiplied by a third that keeps its own.
    """
    if len(scope.parameters) < FEWEST:
        return
    nodes = list(own_nodes(scope.node))
    for name, bound in scope.bindings.items():
        by = bound[0].value if len(bound) == 1 and bound[0].index is None else None
        if not (isinstance(by, ast.Call) and last_name(by.func) == "argsort"):
            continue
        key = next((n for n in scope.parameters if n in names_read(by)), None)
        indexed = [
            n
            for n in nodes
            if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Name) and n.slice.id == name
        ]
        moved = {
            p
            for p in scope.parameters
            if (own := scope.bindings.get(p))
            and any(b.value in indexed and names_read(b.value) == {p, name} for b in own)
        }
        if (
            key is None
            or not moved
            or any(names_read(n.value) - moved for n in indexed)
            or _uses(nodes, name) > len(indexed)
        ):
            continue  # an order that goes elsewhere, too, or is turned back
        still = {
            p
            for p in scope.parameters
            if p not in moved and p not in scope.bindings and p != key and _holds_rows(nodes, p)
        }
        for node in nodes:
            if (
                isinstance(node, ast.BinOp)
                and isinstance(node.op, ast.Mult)
                and node.lineno > by.lineno
            ):
                for alone, other in ((node.left, node.right), (node.right, node.left)):
                    left = names_read(other)
                    if (
                        isinstance(alone, ast.Name)
                        and alone.id in still
                        and left & moved
                        and not left & still
                    ):
                        yield (
                            node,
                            (
                                f"{', '.join(sorted(moved))} is in the order of {key} here, and"
                                f" {alone.id} is not"
                            ),
                        )
                        return


def _uses(nodes: list[ast.AST], name: str) -> int:
    return sum(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in nodes
    )


def _holds_rows(nodes: list[ast.AST], name: str) -> bool:
    """Whether a parameter is asked for what only many values have."""
    return any(
        method(n) in OF_MANY and isinstance(of := receiver(n), ast.Name) and of.id == name
        for n in nodes
    )
