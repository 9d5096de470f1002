"""Functions of a file that number the categories of what they are given, and are called for
different parts of the rows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from training.review.carried import Carried, conditions_met
from training.review.part_calls import parts_of
from training.review.program import Program, Scope, argument
from training.review.shares import derived
from training.review.splitting import line_of
from training.review.syntax import (
    FUNCTIONS,
    constant,
    dotted,
    is_true,
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
from training.review.whole import LABEL_WORDS

DISTINCT = {
    "set",
    "frozenset",
    "Counter",
    "unique",
    "most_common",
    "fromkeys",
    "value_counts",
    "drop_duplicates",
}
BY_COUNT = {
    "Counter",
    "most_common",
    "value_counts",
    "fromkeys",
    "factorize",
    "setdefault",
}  # the numbers hang on more than on which labels occur
CODERS = {"LabelEncoder", "OrdinalEncoder", "OneHotEncoder", "CountVectorizer", "TfidfVectorizer"}
FIXED = {
    "reindex",
    "align",
    "CategoricalDtype",
    "Categorical",
    "set_categories",
    "union_categoricals",
    "categories",
}
LOCAL = {
    "group", "groups", "edge", "edges", "graph", "graphs", "adjacency", "segment", "segments",
    "cluster", "clusters", "collate", "fold", "folds", "rank", "ranks", "rankdata",
}  # fmt: skip
NUMBER = {
    "factorize",
    "unique",
    "get_dummies",
    "fit_transform",
    "searchsorted",
    "build_vocab_from_iterator",
    "setdefault",
    "dict",
    "index",
}  # or may do so
ROUNDS = 3  # functions that call each other


class Numbering(NamedTuple):
    """Categories that are numbered in a function: where, by what, and the names that are read for
    it.
    """

    node: ast.expr
    how: str
    reads: frozenset[str]
    codes: frozenset[str] = frozenset()  # names that hold numbers, or what gives them
    kept: frozenset[str] = frozenset()  # names of what could number other rows alike


def numbered_per_part(program: Program) -> Iterator[tuple[ast.expr, str]]:
    """Numberings in functions that are called for different parts of the rows, where the numbers
    get out of them.
    """
    pending = [
        (scope, n, n)
        for scope in program.scopes
        if scope.name and program.call_sites[scope]
        for n in _numberings(program, scope)
    ]
    told: set[int] = set()
    for _ in range(ROUNDS):
        above: list[tuple[Scope, Numbering, Numbering]] = []
        for scope, here, first in pending:
            where, calls = _calls_for_parts(program, scope, here)
            if where and id(first.node) not in told:
                told.add(id(first.node))
                yield first.node, f"{first.how} numbers the categories anew for {where}"
            above += [(caller, n, first) for caller, n in calls if id(first.node) not in told]
        pending = above


def gets_out(program: Program, node: ast.expr) -> bool:
    """Whether numbers made in a function that is called get out of it, as far as this is seen:
    those of groups that are summed up there do not.
    """
    scope = program.scope(node)
    if not program.call_sites[scope]:
        return True
    made = [
        n
        for n in _numberings(program, scope)
        if n.node is node and n.how in ("unique", "enumerate", "factorize")
    ]
    return not made or any(
        Carried(program, scope, set(n.codes | n.kept), {id(node)}, set(n.kept)).ways_out()
        for n in made
    )


def _calls_for_parts(
    program: Program, scope: Scope, here: Numbering
) -> tuple[str, list[tuple[Scope, Numbering]]]:
    """The parts that a function is called for; else its calls, each a numbering of the function
    that it stands in.
    """
    sites = program.call_sites[scope]
    if not scope.name or not sites or LOCAL & words(scope.name) or is_given_one(scope):
        return "", []
    flow = Carried(program, scope, set(here.codes | here.kept), {id(here.node)}, set(here.kept))
    out, lent = bool(flow.ways_out()), flow.lent_at()
    above: list[tuple[Scope, Numbering]] = []
    for name in (p for p in scope.parameters if p not in ("self", "cls") and not LOCAL & words(p)):
        read = derived(scope, {name})
        about_labels = LABEL_WORDS & words(name) and here.how not in BY_COUNT
        if (
            about_labels
            or not here.reads & read
            or not conditions_met(program, here.node, read | here.codes | here.kept | looped(scope))
        ):
            continue
        given = [
            (v, c, s)
            for c, s in sites
            if (v := argument(c, scope, name)) is not None and not _keeps_together(program, c)
        ]
        if (
            out
            and (where := parts_of(program, given))
            and (not lent or any(_drops(program, c, lent) for _, c, _ in given))
        ):
            return where, []
        lends = not out and _lends(scope, flow)
        if (
            lends
            and (where := parts_of(program, given))
            and _read_alike(program, [c for _, c, _ in given])
        ):
            return where, []
        above += [
            (s, Numbering(c, here.how, frozenset(names_read(v)), *_results(program, c, lends)))
            for v, c, s in given
            if out or lends
        ]
    return "", above


def is_given_one(scope: Scope) -> bool:
    """Whether a function asks if it, or its object, has got a numbering already."""
    for node in own_nodes_of(scope.node, ast.Compare):
        if isinstance(node.ops[0], (ast.Is, ast.IsNot)) and constant(node.comparators[0]) is None:
            asked = last_name(node.left)
            if asked in scope.parameters or not isinstance(node.left, ast.Name):
                return True
    return False


def looped(scope: Scope) -> set[str]:
    """The names of a function that get their values in a loop."""
    return {n for n, bindings in scope.bindings.items() if any(b.how == "loop" for b in bindings)}


def _keeps_together(program: Program, call: ast.Call) -> bool:
    """Whether the numbers say which rows belong together: they are the `groups` of a split, or get
    such a name.
    """
    above, statement = program.parents[call], program.statement(call)
    targets = (
        statement.targets if isinstance(statement, ast.Assign) and statement.value is call else []
    )
    names = [above.arg or ""] if isinstance(above, ast.keyword) else [last_name(t) for t in targets]
    return bool(names) and all(LOCAL & words(n) for n in names)


def _drops(program: Program, call: ast.Call, lent: set[int]) -> bool:
    """Whether a call leaves the mapping that comes with the codes unread, or asks for its length at
    most.
    """
    statement = program.statement(call)
    if isinstance(program.parents[call], ast.Subscript):
        return True
    targets = (
        statement.targets[0]
        if isinstance(statement, ast.Assign) and statement.value is call
        else None
    )
    if not isinstance(targets, ast.Tuple):
        return False
    for name in (last_name(targets.elts[i]) for i in lent if i < len(targets.elts)):
        reads = [
            n
            for n in own_nodes_of(program.scope(call).node, ast.Name)
            if n.id == name and isinstance(n.ctx, ast.Load)
        ]
        if name.startswith("_") or all(
            last_name(getattr(program.parents[n], "func", None)) == "len" for n in reads
        ):
            return True
    return False


def _lends(scope: Scope, flow: Carried) -> bool:
    """Whether a function gives back the mapping alone, or its object keeps it: what it is called
    for is numbered where it is called.
    """
    returned = [n.value for n in own_nodes_of(scope.node, ast.Return) if n.value is not None]
    if scope.node.name == "__init__" if isinstance(scope.node, FUNCTIONS) else False:
        return True
    return any(flow.has(v) for v in returned)


def _read_alike(program: Program, calls: list[ast.Call]) -> bool:
    """Whether mappings of two parts are read in the same way: given to one function of the file, or
    asked for the numbers of words.
    """
    readers = [set(_readers(program, c)) for c in calls]
    return any(a & b for i, a in enumerate(readers) for b in readers[:i])


def _readers(program: Program, call: ast.Call) -> Iterator[str]:
    statement, scope = program.statement(call), program.scope(call)
    names = (
        {last_name(t) for t in statement.targets}
        if isinstance(statement, ast.Assign) and statement.value is call
        else set()
    )
    for node in [
        call,
        *(
            n
            for n in own_nodes_of(scope.node, ast.Name)
            if n.id in names and isinstance(n.ctx, ast.Load)
        ),
    ]:
        above = program.parents[node]
        if isinstance(above, ast.Call) and node in above.args and program.callees(above, scope):
            yield ast.unparse(above.func)
        elif (
            isinstance(above, ast.Subscript)
            and above.value is node
            and isinstance(above.ctx, ast.Load)
        ):
            yield "[]"
        elif (
            isinstance(above, ast.Attribute)
            and isinstance(program.parents[above], ast.Call)
            and above.attr not in ("items", "keys", "values")
        ):
            yield above.attr


def _results(
    program: Program, call: ast.Call, lends: bool
) -> tuple[frozenset[str], frozenset[str]]:
    statement = program.statement(call)
    names = (
        {last_name(t) for t in statement.targets} - {""}
        if isinstance(statement, ast.Assign) and statement.value is call
        else set()
    )
    return frozenset(names), frozenset(names if lends else ())


def _numberings(program: Program, scope: Scope) -> Iterator[Numbering]:
    """Every place of a function where categories are numbered by what occurs."""
    for node in own_nodes(scope.node):
        match node:
            case ast.DictComp() if over := enumerated(node):
                yield from _mapping(program, scope, node, over)
            case ast.Call() if last_name(node.func) in NUMBER:
                yield from _by_library(program, scope, node)
                yield from _by_hand(program, scope, node)
            case ast.Attribute(attr="codes", value=ast.Attribute(attr="cat", value=rows)) if (
                not FIXED & program.identifiers
            ):
                if _made_categories(program, scope, rows):
                    yield Numbering(node, "cat.codes", frozenset(names_read(rows)))
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name(id=held), slice=key)],
                value=ast.Call(args=[counted]) as value,
            ):
                if (
                    last_name(value.func) == "len"
                    and last_name(counted) == held
                    and held in scope.bindings
                    and _local_dict(scope, held)
                ):
                    yield Numbering(
                        value,
                        "setdefault",
                        frozenset(names_read(key)),
                        frozenset({held}),
                        frozenset({held}),
                    )
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Attribute() as held, slice=key)],
                value=ast.Call(args=[counted]) as value,
            ):
                if (
                    scope.name == "__init__"
                    and last_name(value.func) == "len"
                    and dotted(counted) == dotted(held)
                ):
                    yield Numbering(value, "setdefault", frozenset(names_read(key)))


def enumerated(node: ast.DictComp) -> ast.expr | None:
    """What a dict numbers: of `{word: i + 2 for i, (word, _) in enumerate(tally.most_common(n))}`
    `tally.most_common(n)`.
    """
    over, target = node.generators[0].iter, node.generators[0].target
    if not (
        isinstance(over, ast.Call)
        and last_name(over.func) == "enumerate"
        and over.args
        and isinstance(target, ast.Tuple)
        and len(target.elts) == 2
    ):
        return None
    counts = names_read(node.value) == {last_name(target.elts[0])} and names_read(
        node.key
    ) & names_read(target.elts[1])
    return over.args[0] if counts else None


def _mapping(program: Program, scope: Scope, node: ast.expr, over: ast.expr) -> Iterator[Numbering]:
    if (how := distinct_by(over, scope)) and not isinstance(
        program.parents[node], (ast.IfExp, ast.BoolOp)
    ):
        yield Numbering(
            node,
            how if how in BY_COUNT else "enumerate",
            frozenset(names_read(over)),
            *_named(program, node),
        )


def _named(program: Program, node: ast.AST) -> tuple[frozenset[str], frozenset[str]]:
    """The name that a mapping gets, also where it is one part of a larger dict."""
    above, inner = program.parents[node], node
    while isinstance(above, ast.Dict) or (
        isinstance(above, ast.BinOp) and isinstance(above.op, ast.BitOr)
    ):
        above, inner = program.parents[above], above
    targets = above.targets if isinstance(above, ast.Assign) and above.value is inner else []
    names = frozenset(last_name(t) for t in targets if isinstance(t, ast.Name))
    return names, names


def distinct_by(over: ast.expr, scope: Scope, depth: int = 0) -> str:
    """By what an expression lists each of its values once, empty where it does not."""
    for node in walk(over):
        if isinstance(node, ast.Call) and last_name(node.func) in DISTINCT:
            return last_name(node.func)
        if isinstance(node, (ast.SetComp, ast.Set)):
            return "set"
    for name in sorted(names_read(over)) if depth < 3 else ():
        for b in scope.bindings.get(name, ()):
            if (
                b.how == "assign"
                and line_of(b.statement) < line_of(over)
                and not _opaque(b.value)
                and (how := distinct_by(b.value, scope, depth + 1))
            ):
                return how
    return ""


def _opaque(value: ast.expr) -> bool:
    """Whether what is made of distinct values lists something else: rows, or files."""
    return isinstance(value, (ast.ListComp, ast.DictComp)) and not all(
        isinstance(e, (ast.Name, ast.Subscript, ast.Tuple)) for e in (getattr(value, "elt", value),)
    )


def _local_dict(scope: Scope, name: str) -> bool:
    values = [b.value for b in scope.bindings.get(name, ()) if b.how == "assign"]
    return len(values) == 1 and (
        isinstance(values[0], ast.Dict)
        or last_name(getattr(values[0], "func", None)) in ("dict", "OrderedDict", "defaultdict")
    )


def _by_library(program: Program, scope: Scope, call: ast.Call) -> Iterator[Numbering]:
    name, of = last_name(call.func), receiver(call)
    statement = program.statement(call)
    target = (
        statement.targets[0]
        if isinstance(statement, ast.Assign) and statement.value is call
        else None
    )
    elements = [last_name(e) for e in target.elts] if isinstance(target, ast.Tuple) else []
    if name == "factorize" and (rows := call.args[0] if call.args else of) is not None:
        if not any(n.attr == "cat" for n in nodes_of(call, ast.Attribute)):
            yield Numbering(
                call,
                name,
                frozenset(names_read(rows)),
                frozenset(elements[:1]),
                frozenset(elements[1:]),
            )
    elif name == "unique" and is_true(keyword(call, "return_inverse")) and call.args:
        at = 2 if is_true(keyword(call, "return_index")) else 1
        yield Numbering(
            call,
            name,
            frozenset(names_read(call.args[0])),
            frozenset(elements[at : at + 1]),
            frozenset(elements[:1]),
        )
    elif (
        name == "get_dummies"
        and call.args
        and not FIXED & program.identifiers
        and not _whole_categories(program, scope)
    ):
        yield Numbering(call, name, frozenset(names_read(call.args[0])))
    elif name == "fit_transform" and call.args:
        made = [
            o
            for o in program.origins(of, scope)
            if o.last in CODERS and o.name.startswith("sklearn.")
        ]
        known = any(
            keyword(o.call, k) is not None and keyword(o.call, k) is not call
            for o in made
            for k in ("categories", "vocabulary")
        )
        if made and not known and all(o.scope is scope for o in made):
            kept = frozenset({of.id}) if isinstance(of, ast.Name) else frozenset()
            yield Numbering(
                call, made[0].last, frozenset(names_read(call.args[0])), frozenset(), kept
            )
    elif name == "build_vocab_from_iterator" and call.args:
        yield Numbering(call, name, frozenset(names_read(call.args[0])), *_named(program, call))


def _by_hand(program: Program, scope: Scope, call: ast.Call) -> Iterator[Numbering]:
    name, of = last_name(call.func), receiver(call)
    if (
        name == "setdefault"
        and len(call.args) == 2
        and isinstance(of, ast.Name)
        and _local_dict(scope, of.id)
    ):
        if (
            isinstance(call.args[1], ast.Call)
            and last_name(call.args[1].func) == "len"
            and of.id in names_read(call.args[1])
        ):
            yield Numbering(
                call,
                name,
                frozenset(names_read(call.args[0])),
                frozenset({of.id}),
                frozenset({of.id}),
            )
    elif (
        name == "dict"
        and call.args
        and isinstance(pairs := call.args[0], ast.Call)
        and last_name(pairs.func) == "zip"
        and len(pairs.args) == 2
    ):
        if isinstance(pairs.args[1], ast.Call) and last_name(pairs.args[1].func) in (
            "range",
            "count",
            "arange",
        ):
            yield from _mapping(program, scope, call, pairs.args[0])
    elif (
        name == "index"
        and isinstance(of, ast.Name)
        and len(call.args) == 1
        and (how := distinct_by(of, scope))
    ):
        yield Numbering(call, how if how in BY_COUNT else "index", frozenset({of.id}))


def _made_categories(program: Program, scope: Scope, rows: ast.expr) -> bool:
    """Whether a column becomes categories in the same function, and did nowhere before."""
    if _whole_categories(program, scope):
        return False
    return any(_to_category(n) for n in own_nodes_of(scope.node, ast.Call)) and bool(
        names_read(rows)
    )


def _whole_categories(program: Program, scope: Scope) -> bool:
    """Whether columns are made categories elsewhere, before rows are divided."""
    return any(
        _to_category(c) and program.scope(c) is not scope for c in program.methods_of("astype")
    )


def _to_category(call: ast.Call) -> bool:
    return method(call) == "astype" and any(
        isinstance(n, ast.Constant) and n.value == "category"
        for a in (*call.args, *(k.value for k in call.keywords))
        for n in walk(a)
    )
