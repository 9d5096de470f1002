"""Rule BH532: categories that are numbered anew on each side; and what is learned anew for each of
them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.numbered import gets_out, numbered_per_part
from training.review.own_numbers import numbered_by_data_sets
from training.review.program import Program, Scope, argument
from training.review.sides import side_of, takes, targets_of
from training.review.splitting import line_of, values_read
from training.review.syntax import (
    constant,
    is_true,
    keyword,
    last_name,
    method,
    names_read,
    own_nodes_of,
    receiver,
    words,
)
from training.review.whole import LABEL_WORDS

CODERS = {
    "LabelEncoder",
    "OrdinalEncoder",
    "OneHotEncoder",
    "LabelBinarizer",
    "MultiLabelBinarizer",
    "TargetEncoder",
}
VOCABULARIES = {"vocab", "vocabulary", "tokenizer", "tokeniser", "lexicon"}
DEPTH = 3  # callers of callers
FIXED = {
    "reindex",
    "align",
    "CategoricalDtype",
    "Categorical",
    "set_categories",
    "categories",
    "union_categoricals",
}


@rule("BH532")
def codes_made_anew_per_side(subject: Subject) -> Iterator[Place]:
    """An encoder is fitted, or `get_dummies`, `factorize` or `.cat.codes` taken, of train rows and
    of others: by name, in a loop over them or by a helper; or a function that numbers what occurs
    in its argument (a vocabulary, a sorted set, a tally) is called for slices of one array or other
    parts, and its numbers get out; or a data set that numbers the words of its own rows is made for
    each.
    """
    program = subject.program
    yield from _vocabularies(program)
    told = list(numbered_per_part(program))
    yield from told
    yield from (
        place
        for place in numbered_by_data_sets(program)
        if not any(place[0] is node for node, _ in told)
    )
    if FIXED & program.identifiers:
        return
    found = [(call, how, rows) for call, how, rows in _codes(program) if not _is_label(rows)]
    for node, how, rows in found:
        where = per_side(program, node, rows)
        if not where and (side := _side(rows)) in ("val", "test"):
            other = next(
                (
                    r
                    for _, h, r in found
                    if h == how and _side(r) == "train" and program.scope(r) is program.scope(rows)
                ),
                None,
            )
            where = (
                f"{ast.unparse(other)} and {ast.unparse(rows)}"
                if other is not None and side
                else ""
            )
        if where and gets_out(program, node):
            yield node, f"{how} numbers the categories anew for {where}"


def _vocabularies(program: Program) -> Iterator[Place]:
    """`Vocabulary(words of train)` and `Vocabulary(words of val)`: objects of one class of the file
    that number words.
    """
    made: dict[str, list[tuple[ast.Call, set[str]]]] = {}
    for call in program.calls_of(*program.classes):
        name = last_name(call.func)
        if words(name) & VOCABULARIES:
            sides = {
                side_of(n)
                for a in (*call.args, *(k.value for k in call.keywords))
                for n in names_read(a)
            } - {""}
            made.setdefault(name, []).append((call, sides))
    for name, calls_of in made.items():
        trained = any("train" in sides for _, sides in calls_of)
        for call, sides in calls_of:
            if trained and sides and "train" not in sides:
                yield call, f"{name} numbers the words of {sorted(sides)[0]} rows anew"


def _codes(program: Program) -> Iterator[tuple[ast.expr, str, ast.expr]]:
    """Every numbering of categories: where, by what, and of which rows."""
    for call in program.calls_of("fit", "fit_transform", "get_dummies", "factorize", "unique"):
        scope, name = program.scope(call), last_name(call.func)
        if method(call) in ("fit", "fit_transform") and call.args:
            kinds = [
                o.last
                for o in program.origins(receiver(call), scope)
                if o.last in CODERS and o.name.startswith("sklearn.")
            ]
            if kinds and not any(
                keyword(o.call, "categories") is not None
                for o in program.origins(receiver(call), scope)
            ):
                yield call, kinds[0], call.args[0]
        elif (
            name in ("get_dummies", "factorize")
            and program.resolve(call.func).startswith("pandas.")
            and call.args
        ):
            yield call, name, call.args[0]
        elif name == "factorize" and not call.args and (of := receiver(call)) is not None:
            yield call, name, of
        elif name == "unique" and is_true(keyword(call, "return_inverse")) and call.args:
            yield call, "unique", call.args[0]
    for node in program.nodes[ast.DictComp]:
        rows = _enumerated(node)
        if rows is not None:
            yield node, "enumerate", rows
    for attribute in program.nodes[ast.Attribute] if "codes" in program.identifiers else ():
        match attribute:
            case ast.Attribute(
                attr="codes", value=ast.Attribute(attr="cat", value=ast.Call() as made)
            ) if method(made) == "astype":
                if (
                    made.args
                    and constant(made.args[0]) == "category"
                    and (of := receiver(made)) is not None
                ):
                    yield attribute, "cat.codes", of


def _enumerated(node: ast.DictComp) -> ast.expr | None:
    """The column whose values a dict numbers: of `{v: i for i, v in
    enumerate(sorted(set(part["kind"])))}` `part["kind"]`.
    """
    over, target = node.generators[0].iter, node.generators[0].target
    if not (
        isinstance(over, ast.Call)
        and last_name(over.func) == "enumerate"
        and over.args
        and isinstance(target, ast.Tuple)
    ):
        return None
    if last_name(node.value) != last_name(target.elts[0]) or last_name(node.key) != last_name(
        target.elts[-1]
    ):
        return None
    rows: ast.expr | None = over.args[0]
    while isinstance(rows, ast.Call) and last_name(rows.func) in (
        "sorted",
        "set",
        "unique",
        "list",
        "tolist",
    ):
        rows = rows.args[0] if rows.args else receiver(rows)
    return (
        rows if isinstance(rows, ast.Subscript) and isinstance(constant(rows.slice), str) else None
    )


def _is_label(rows: ast.expr) -> bool:
    column = constant(rows.slice) if isinstance(rows, ast.Subscript) else None
    return bool(
        words(last_name(rows)) & LABEL_WORDS
        or (isinstance(column, str) and words(column) & LABEL_WORDS)
    )


def _side(rows: ast.expr) -> str:
    found = {side_of(n) for n in values_read(rows)} - {""}
    return found.pop() if len(found) == 1 else ""


def per_side(program: Program, node: ast.expr, rows: ast.expr, depth: int = 0) -> str:
    """The sides for each of which an expression is computed anew: it stands in a loop over them, or
    in a function that is called for them; else empty.
    """
    names, scope = values_read(rows), program.scope(node)
    for around in program.ancestors(node):
        if isinstance(around, (ast.If, ast.IfExp)):
            return ""
        generators = [around] if isinstance(around, ast.For) else getattr(around, "generators", [])
        for loop in generators:
            sides = _sides(loop.iter) or _unpacked(program.parents[around])
            if names_read(rows) & names_read(loop.target) and sides:
                return " and ".join(sides)
    return _by_calls(program, scope, names, node, depth)


def _unpacked(statement: ast.AST) -> list[str]:
    """The names of sides that get a value each: `train, val, test = (numbered(p) for p in
    parts)`.
    """
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    names = [last_name(e) for e in target.elts] if isinstance(target, ast.Tuple) else []
    sides = {side_of(n) for n in names}
    return names if "train" in sides and sides & {"val", "test"} else []


def _sides(over: ast.expr) -> list[str]:
    """The sides that a loop goes through: a literal of train rows and others."""
    if isinstance(over, ast.Call) and last_name(over.func) in ("enumerate", "items", "zip"):
        over = over.args[0] if over.args else receiver(over) or over
    elements = (
        over.elts
        if isinstance(over, (ast.List, ast.Tuple))
        else over.values
        if isinstance(over, ast.Dict)
        else []
    )
    named = [(ast.unparse(e), {side_of(n) for n in names_read(e)}) for e in elements]
    others = any({"val", "test"} & s for _, s in named) or any(
        isinstance(e, ast.Starred) for e in elements[1:]
    )
    return [text for text, _ in named] if others and any("train" in s for _, s in named) else []


def _by_calls(program: Program, scope: Scope, names: set[str], node: ast.expr, depth: int) -> str:
    """The rows of several sides that a function is given, whose parameter is read."""
    bound = {b for n in names for b in scope.bindings.get(n, ()) if b.how == "assign"}
    read = names | {n for b in bound for n in values_read(b.value)}
    if len(scope.parameters) != len(set(scope.parameters)) or (
        not depth and _is_lent(program, node, scope)
    ):
        return ""
    for name in sorted(read & set(scope.parameters) - {"self"}):
        given = [(argument(c, scope, name), c) for c, _ in program.call_sites[scope]]
        sides = {
            side_of(n): ast.unparse(v)
            for v, c in given
            if v is not None
            for n in (*names_read(v), *values_read(v), *_given_to(program, v, c))
        }
        others = [sides[s] for s in ("val", "test") if s in sides]
        same = (
            len(
                {
                    tuple(ast.dump(a) for a in c.args[1:] if isinstance(a, ast.Constant))
                    for _, c in given
                }
            )
            == 1
        )
        if (
            "train" in sides
            and others
            and same
            and len({tuple(sorted(k.arg or "" for k in c.keywords)) for _, c in given}) == 1
        ):
            return f"{sides['train']} and {others[0]}"
        if same and (both := _complements(program, given)):
            return both
        passed_on = given[0][0] if len(given) == 1 and depth < DEPTH else None
        if passed_on is not None and (
            above := per_side(program, given[0][1], passed_on, depth + 1)
        ):
            return above
    return ""


def _given_to(program: Program, rows: ast.expr, call: ast.Call) -> tuple[str, ...]:
    """The names that get what a call makes of rows that are called after no side: of `train, val =
    prepare(table[:a]), prepare(table[a:])`.
    """
    statement = program.statement(call)
    if (
        any(side_of(n) for n in names_read(rows))
        or not isinstance(rows, ast.Subscript)
        or not isinstance(statement, ast.Assign)
    ):
        return ()
    made = (
        statement.value.elts
        if isinstance(statement.value, (ast.Tuple, ast.List))
        else [statement.value]
    )
    return targets_of(program, call) if call in made else ()


def _complements(program: Program, given: list[tuple[ast.expr | None, ast.Call]]) -> str:
    """Two arguments that are the rows of one table on either side of a condition, whatever they are
    called: `past` and `recent`.
    """
    named = [(v.id, program.scope(c)) for v, c in given if isinstance(v, ast.Name)]
    found = [
        t
        for t in takes(program)
        if t.family[0] == "mask" and len(t.names) == 1 and (t.names[0], t.scope) in named
    ]
    for a, b in ((a, b) for a in found for b in found if line_of(a.node) <= line_of(b.node)):
        alike = a.scope is b.scope and a.family == b.family and ast.dump(a.rows) == ast.dump(b.rows)
        if alike and a.member != b.member and a.names != b.names:
            return f"{a.names[0]} and {b.names[0]}"
    return ""


def _is_lent(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether what was learned is given back, to be used for another side."""
    kept = receiver(node)
    returned = [n for n in own_nodes_of(scope.node, ast.Return) if n.value is not None]
    if isinstance(node, ast.DictComp):
        made = set(targets_of(program, node))
        return any(r.value is node or made & _bare_names(r.value) for r in returned)
    return isinstance(kept, ast.Name) and any(kept.id in names_read(r.value) for r in returned)


def _bare_names(node: ast.expr | None) -> set[str]:
    """The names that are given back as they are, alone or in a tuple."""
    return {
        e.id
        for e in (node.elts if isinstance(node, ast.Tuple) else [node])
        if isinstance(e, ast.Name)
    }
