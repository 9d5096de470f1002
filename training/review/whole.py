"""What is computed from all rows of a table and put back into it: statistics, rates of the label by
group, copies of rows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set

from training.review.program import Program, Scope, argument
from training.review.sides import latest, of_one_side, side_of, targets_of
from training.review.splitting import is_part, sources_of
from training.review.syntax import (
    FUNCTIONS,
    calls,
    constant,
    defaults,
    dotted,
    identifiers,
    is_true,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    once,
    own_nodes,
    own_nodes_of,
    receiver,
    walk,
    words,
)

CENTRES = {"mean", "min", "median", "nanmean", "nanmedian", "mode"}
JOINED = {"concat", "concatenate", "vstack", "cat", "row_stack"}
LABEL_WORDS = {"y", "ys", "label", "labels", "target", "targets", "outcome", "outcomes", "response"}
DRAWS = {
    "normal", "randn", "rand", "integers", "randint", "standard_normal", "poisson", "gamma",
    "uniform", "choice", "exponential", "beta", "binomial",
}  # fmt: skip
PASSED_BY = {"tensor", "as_tensor", "from_numpy", "array", "asarray", "FloatTensor", "LongTensor"}
BESIDE_ROWS = {
    "fit",
    "split",
    "train_test_split",
    "TensorDataset",
    "fit_resample",
}  # the labels stand second
MOVED = {"flip", "fliplr", "flipud", "roll", "rot90", "hflip", "vflip"}


def plain(node: ast.AST | None) -> str:
    """An expression as text, whether it is read or written."""
    return ast.unparse(node) if node is not None else ""


def table_of(node: ast.expr) -> ast.expr:
    """The table of a column or part: `frame` of `frame["a"]`, `frame.loc[:, c]` and
    `frame.values`.
    """
    while isinstance(node, ast.Subscript) or (
        isinstance(node, ast.Attribute) and node.attr in ("loc", "iloc", "values")
    ):
        node = node.value
    return node


def stores(program: Program) -> Iterator[tuple[ast.stmt, ast.expr, ast.expr]]:
    """Every assignment of one target, `+=` and the like among them as `x = x + …`: statement,
    target, value.
    """
    for kind in (ast.Assign, ast.AugAssign, ast.AnnAssign):
        for node in program.nodes[kind]:
            match node:
                case ast.Assign(targets=[target], value=value):
                    yield node, target, value
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    yield node, target, value
                case ast.AugAssign(target=target, op=op, value=value):
                    yield node, target, ast.copy_location(ast.BinOp(target, op, value), value)


def normalisations(program: Program) -> Iterator[tuple[ast.stmt, ast.expr, ast.expr, str]]:
    """`x = (x - x.mean(0)) / x.std(0)`, of a table or a column of it, in place or filled by it:
    statement, target, rows, statistic; of no side alone.
    """
    if not program.called_names & CENTRES:
        return
    for statement, target, value in stores(program):
        scope = program.scope(statement)
        found = centred(program, value, scope, statement)
        if (
            found is None
            and isinstance(value, ast.Call)
            and (helper := program.callees_by_name(value, scope)) is not None
        ):
            found = _by_a_helper(program, value, helper)
        if found is not None:
            rows, statistic = found
            if not any(is_part(n) for n in names_read(rows)) and not of_one_side(program, rows):
                yield statement, target, rows, statistic


def _by_a_helper(program: Program, call: ast.Call, helper: Scope) -> tuple[ast.expr, str] | None:
    """What a function of the file centres that gives back one table made of a parameter, as `call`
    passes it.
    """
    returned = [n.value for n in own_nodes_of(helper.node, ast.Return) if n.value is not None]
    if len(returned) != 1:
        return None
    statement = program.statement(returned[0])
    found = centred(program, returned[0], helper, statement)
    name = dotted(found[0]) if found is not None else ""
    given = (
        argument(call, helper, name)
        if name in helper.parameters and name not in helper.bindings
        else None
    )
    return (given, found[1]) if given is not None and found is not None else None


def centred(
    program: Program, value: ast.expr, scope: Scope, statement: ast.AST
) -> tuple[ast.expr, str] | None:
    """The rows that an expression centres or fills by a statistic of themselves, and which one."""
    for part in walk(value):
        rows, by = None, None
        if isinstance(part, ast.Call) and method(part) == "fillna" and part.args:
            rows, by = receiver(part), part.args[0]
        elif (
            isinstance(part, ast.Call)
            and last_name(part.func) == "where"
            and len(part.args) == 3
            and "isnan" in identifiers(part.args[0])
        ):
            rows, by = part.args[2], part.args[1]
        elif isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub):
            rows, by = part.left, part.right
        if rows is None or by is None or isinstance(table_of(rows), ast.Constant):
            continue
        for candidate in (by, *_bound(program, by, scope)):
            statistic = statistic_of(candidate, rows)
            if statistic:
                return rows, statistic
    return None


def _bound(program: Program, node: ast.expr, scope: Scope) -> list[ast.expr]:
    """What a name was bound to."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):  # `means["dose"]`
        node = node.value
    if not isinstance(node, ast.Name):
        return []
    bound = latest(program, node, scope)
    if bound is None or bound.how != "assign":
        return []
    return [bound.value] if bound.index is None else []


def statistic_of(node: ast.expr, rows: ast.expr) -> str:
    """`mean` of `x.mean(axis=0)`, `np.mean(x, 0)` or `x.mode().iloc[0]` where `x` are the rows;
    empty for one of each row by itself.
    """
    if isinstance(node, ast.Subscript):
        node = table_of(node)
    if not isinstance(node, ast.Call) or last_name(node.func) not in CENTRES:
        return ""
    of = receiver(node)
    given = node.args
    if of is None or plain(of) != plain(rows):
        if not node.args or plain(node.args[0]) != plain(rows):
            table = plain(table_of(rows)) == plain(of) and isinstance(
                rows, (ast.Subscript, ast.Attribute)
            )
            if not table:
                return ""
        else:
            given = node.args[1:]
    axis = keyword(node, "axis") or keyword(node, "dim") or (given[0] if given else None)
    return last_name(node.func) if axis is None or over_rows(axis) else ""


def over_rows(axis: ast.expr) -> bool:
    """Whether an axis, or one of several, is that of the rows."""
    if isinstance(axis, (ast.Tuple, ast.List)):
        return any(constant(e) == 0 for e in axis.elts)
    return isinstance(axis, ast.Constant) and axis.value in (0, None, "index")


def put_together(program: Program) -> Iterator[tuple[ast.Call, str, ast.expr]]:
    """A statistic of several sides in one table, by which rows are filled or scaled: the call,
    which statistic, and what is put together.
    """
    if not JOINED & program.called_names:
        return
    for call in program.calls_of("std", "quantile", "max", *CENTRES):
        name, of = last_name(call.func), receiver(call)
        if of is None:
            continue
        scope = program.scope(call)
        table = table_of(of)
        joined = (
            table
            if isinstance(table, ast.Call)
            else next(iter(_bound(program, table, scope)), None)
        )
        if isinstance(joined, ast.Call) and joins_sides(joined) and _is_used(program, call):
            yield call, name, joined


def joins_sides(call: ast.Call) -> bool:
    """Whether train rows and others are put in one table: `pd.concat([train, test])`, `[train,
    *others]`.
    """
    if (
        last_name(call.func) not in JOINED
        or not call.args
        or not isinstance(call.args[0], (ast.List, ast.Tuple))
    ):
        return False
    if not (
        constant(keyword(call, "axis", 1)) in (None, 0)
        and constant(keyword(call, "dim")) in (None, 0)
    ):
        return False
    parts = call.args[0].elts
    sides = [{side_of(n) for n in names_read(p)} for p in parts]
    train = any("train" in s for s in sides)
    others = any(
        {"val", "test"} & s or (isinstance(p, ast.Starred) and "train" not in s)
        for p, s in zip(parts, sides, strict=True)
    )
    held = any("test" in s for s in sides)
    starred = any(isinstance(p, ast.Starred) for p in parts)
    return train and others and (held or starred or len(parts) > 1)


def _is_used(program: Program, call: ast.Call) -> bool:
    """Whether a statistic fills or scales rows: `fillna(s)`, `x - s`, `x / s`, at once or by its
    name.
    """
    scope, statement = program.scope(call), program.statement(call)
    names = set(targets_of(program, call)) if isinstance(statement, ast.Assign) else set()
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Call) and method(node) == "fillna" and node.args:
            read = node.args[0]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Sub, ast.Div)):
            read = node.right
        else:
            continue
        if names_read(read) & names or any(n is call for n in walk(read)):
            return True
    return False


@once
def label_columns(program: Program) -> Set[str]:
    """Names of columns that are the label: given as labels, left out of the features, or kept under
    a label's name.
    """
    found: set[str] = {"target", "label"}
    for node in program.nodes[ast.Subscript]:
        column = constant(node.slice)
        if (
            isinstance(column, str)
            and isinstance(node.ctx, ast.Load)
            and _stands_for_labels(program, node)
        ):
            found.add(column)
    for call in program.methods_of("pop", "drop"):
        if method(call) == "pop" and call.args and isinstance(constant(call.args[0]), str):
            found.add(str(constant(call.args[0])))
        elif method(call) == "drop":
            found |= {
                n.value
                for n in nodes_of(call, ast.Constant)
                if isinstance(n.value, str) and words(n.value) & LABEL_WORDS
            }
    return found | _named_as_label(program)


def _named_as_label(program: Program) -> set[str]:
    """Texts that are given to a parameter which is named after labels, `Table("died")` of `def
    __init__(self, target)`.
    """
    found: set[str] = set()
    for function, sites in program.call_sites.items():
        for name in (p for p in function.parameters if words(p) & LABEL_WORDS):
            given = (constant(argument(call, function, name)) for call, _ in sites)
            found |= {text for text in given if isinstance(text, str) and text.isidentifier()}
    return found


def _stands_for_labels(program: Program, node: ast.expr) -> bool:
    """Whether a column is passed as labels or kept under such a name: `Rows(x, frame["died"])`
    where the parameter is called `labels`.
    """
    child: ast.expr = node
    parent = program.parents[child]
    while (
        isinstance(parent, ast.Attribute)
        or (
            isinstance(parent, ast.BinOp) and parent.left is child
        )  # `(frame["days"] - mean) / deviation`
        or (
            isinstance(parent, ast.Call)
            and (parent.func is child or last_name(parent.func) in PASSED_BY)
        )
    ):
        child, parent = parent, program.parents[parent]
    if isinstance(parent, ast.keyword):
        return bool(words(parent.arg or "") & LABEL_WORDS) or parent.arg == "stratify"
    if isinstance(parent, ast.Call) and child in parent.args:
        at, scope = parent.args.index(child), program.scope(parent)
        for callee in program.callees(parent, scope):
            named = (
                callee.parameters[1:]
                if callee.owner and callee.parameters[:1] == ["self"]
                else callee.parameters
            )
            if at < len(named) and words(named[at]) & LABEL_WORDS:
                return True
        return at == 1 and last_name(parent.func) in BESIDE_ROWS
    if isinstance(parent, ast.Tuple) and isinstance(program.parents[parent], ast.Assign):
        statement = program.parents[parent]
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        at = parent.elts.index(child)
        return (
            isinstance(target, ast.Tuple)
            and at < len(target.elts)
            and bool(words(last_name(target.elts[at])) & LABEL_WORDS)
        )
    names = (
        {last_name(t) for t in parent.targets if isinstance(t, (ast.Name, ast.Attribute))}
        if isinstance(parent, ast.Assign)
        else set()
    )
    given = {last_name(c.args[1]) for c in program.calls_of(*BESIDE_ROWS) if len(c.args) > 1}
    return any(words(n) & LABEL_WORDS for n in names) or bool(names & given)


def draws_rows(scope: Scope) -> bool:
    """Whether a function draws its rows at random: it makes up data."""
    return isinstance(scope.node, FUNCTIONS) and any(
        last_name(n.func) in DRAWS for n in own_nodes_of(scope.node, ast.Call)
    )


def rates_by_group(program: Program) -> Iterator[tuple[ast.Call, ast.expr, str]]:
    """The mean label by group of all rows, put beside them as a column: the call, the table, the
    label's name.
    """
    if "groupby" not in program.called_names:
        return
    labels = label_columns(program)
    for call in program.methods_of("transform", "mean", "agg"):
        source = receiver(call)
        if isinstance(source, ast.Name):  # `by = table.groupby(key)[label]`
            bound = program.bindings_of(source, program.scope(call))
            source = (
                bound[0].value
                if len(bound) == 1 and bound[0].how == "assign" and bound[0].index is None
                else None
            )
        if not isinstance(source, ast.Subscript):
            continue
        grouped, label = source.value, _text(program, source.slice)
        if label not in labels:
            continue
        if not (
            isinstance(grouped, ast.Call)
            and method(grouped) == "groupby"
            and (table := receiver(grouped)) is not None
        ):
            continue
        by = keyword(grouped, "by", 0)
        given = call.args[0] if call.args else None
        how = {
            constant(e)
            for e in (given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given])
        }
        counted = method(call) != "mean" and not how & {
            "mean",
            "sum",
            "median",
            "std",
            "var",
            "max",
            "min",
        }
        if (
            counted
            or (by is not None and label in {constant(n) for n in walk(by)})
            or any(is_part(n) for n in names_read(table))
        ):
            continue
        if not of_one_side(program, table) and _becomes_column(program, call):
            yield call, table, label


def rates_of_a_helper(program: Program) -> Iterator[tuple[ast.Call, ast.expr, str]]:
    """The calls of a function that are given a column and the label of one table, no part of it,
    and group the label by the column: call, table, label.
    """
    if "groupby" not in program.called_names:
        return
    labels = label_columns(program)
    for call in program.all_calls:
        function = program.callees_by_name(call, program.scope(call))
        given = (
            {p: argument(call, function, p) for p in function.parameters}
            if function is not None
            else {}
        )
        columns = {
            p: a
            for p, a in given.items()
            if isinstance(a, ast.Subscript)
            and isinstance(a.value, ast.Name)
            and not is_part(a.value.id)
        }
        for name, column in columns.items():
            label = str(constant(column.slice))
            of = (
                [
                    c
                    for c in calls(function.node)
                    if method(c) == "groupby" and last_name(receiver(c)) == name
                ]
                if function is not None
                else []
            )
            by = {plain(c.args[0]) for c in of if c.args} & columns.keys()
            said = {constant(n) for c in of for n in walk(program.statement(c))} | {
                last_name(n) for c in of for n in walk(program.statement(c))
            }
            if not {"mean", "sum"} & said or not _becomes_column(program, call):
                continue
            if (
                label in labels
                and any(plain(columns[b].value) == plain(column.value) for b in by)
                and not of_one_side(program, column.value)
            ):
                yield call, column.value, label


def shares_of_labels(program: Program) -> Iterator[tuple[ast.Call, ast.expr, str]]:
    """`pd.crosstab(rows["word"], rows["tag"])` of all rows, in which something is looked up
    afterwards: the call, the table, the label's name.
    """
    for call in program.calls_of("crosstab"):
        by, of = keyword(call, "index", 0), keyword(call, "columns", 1)
        if not isinstance(by, ast.Subscript) or not isinstance(of, ast.Subscript):
            continue
        label, whole = str(constant(of.slice)), plain(by.value) == plain(of.value)
        known = label in label_columns(program) or bool(
            words(label) & (LABEL_WORDS | {"tag", "class"})
        )
        if (
            not known
            or not whole
            or any(is_part(n) for n in names_read(by.value))
            or of_one_side(program, by.value)
        ):
            continue
        names = {last_name(t) for t in getattr(program.statement(call), "targets", [])}
        taken = (
            n
            for n in program.nodes[ast.Attribute]
            if n.attr in ("loc", "at") and last_name(n.value) in names
        )
        if _becomes_column(program, call) or any(
            isinstance(program.parents[n], ast.Subscript) for n in taken
        ):
            yield call, by.value, label


def _text(program: Program, node: ast.expr) -> str:
    """A text that is written there, or the default of the parameter that stands there."""
    scope = program.scope(node)
    return str(
        constant(
            defaults(scope.node).get(node.id)
            if isinstance(node, ast.Name) and node.id in scope.parameters
            else node
        )
    )


def _becomes_column(program: Program, call: ast.Call) -> bool:
    """Whether what a call gives is stored as a column, at once or by `map`, `merge` or `join`."""
    statement = program.statement(call)
    targets = getattr(statement, "targets", [])
    if any(isinstance(t, ast.Subscript) for t in targets):
        return True
    inside = [a for a in program.ancestors(call) if isinstance(a, ast.Call)]
    if any(method(a) in ("map", "merge", "join", "assign") for a in inside):
        return True
    names, scope = (
        {n.id for t in targets for n in nodes_of(t, ast.Name)},
        program.scope(call),
    )
    used = {
        n
        for c in program.methods_of("map", "merge", "join", "reindex")
        if program.scope(c) is scope
        for n in names_read(c)
    }
    return bool(names & {b for n in used for b in sources_of(n, scope, 10**9)})


def copies(program: Program) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Rows that are put a second time beside all of them, or drawn with replacement: the call, and
    the table.
    """
    yield from _appended_twice(program)
    yield from _drawn_again(program)
    for call in program.calls_of("sample", *JOINED):
        if (
            method(call) == "sample"
            and (of := receiver(call)) is not None
            and getattr(keyword(call, "replace"), "value", False) is True
        ):
            yield call, of
            continue
        axis = constant(keyword(call, "axis", 1)) in (None, 0) and constant(
            keyword(call, "dim")
        ) in (None, 0)
        if (
            last_name(call.func) not in JOINED
            or not call.args
            or not axis
            or not isinstance(call.args[0], (ast.List, ast.Tuple, ast.BinOp))
        ):
            continue
        scope = program.scope(call)
        elements = _elements(call.args[0])
        whole = {plain(e): e for e in elements if isinstance(e, (ast.Name, ast.Attribute))}
        for element in elements:
            for value in (element, *_bound(program, element, scope)):
                table = _copied_from(value)
                if table is not None and plain(table) in whole and plain(element) != plain(table):
                    yield call, table
                    break


def _drawn_again(program: Program) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Rows whose numbers are drawn with replacement, put beside others: `picked =
    rng.choice(cases.index, n, replace=True)`, `pd.concat([rest, cases.loc[picked]])`.
    """
    for call in program.calls_of("choice"):
        if not is_true(keyword(call, "replace", 2)):
            continue
        scope, drawn = program.scope(call), set(targets_of(program, call))
        for joined in (c for c in program.calls_of(*JOINED) if program.scope(c) is scope):
            for taken in (
                n
                for n in nodes_of(joined, ast.Subscript)
                if (n.slice is call or last_name(n.slice) in drawn)
            ):
                table = (
                    taken.value.value
                    if isinstance(taken.value, ast.Attribute)
                    and taken.value.attr in ("loc", "iloc")
                    else taken.value
                )
                yield call, table


def _appended_twice(program: Program) -> Iterator[tuple[ast.Call, ast.expr]]:
    """A list that gets, in one loop over rows of no side, each row and what a function makes of it
    by a draw; or each label once for every variant of its row.
    """
    if (
        "append" not in program.called_names
        or {"isin", "unique", "groups", "GroupKFold", "GroupShuffleSplit"} & program.identifiers
    ):
        return
    for loop in program.nodes[ast.For]:
        if any(is_part(n) for n in names_read(loop.iter)):
            continue
        rows = names_read(loop.target)
        added = [
            c
            for c in calls(loop)
            if method(c) == "append" and len(c.args) == 1 and isinstance(receiver(c), ast.Name)
        ]
        for call in added:
            made = call.args[0]
            if (
                not isinstance(made, ast.Call)
                or not made.args
                or not isinstance(made.args[0], ast.Name)
                or made.args[0].id not in rows
            ):
                continue
            function = program.callees_by_name(made, program.scope(made))
            drawn = function is not None and any(
                last_name(c.func) in DRAWS for c in calls(function.node)
            )
            table = receiver(call)
            beside = any(
                isinstance(c.args[0], ast.Name)
                and c.args[0].id == made.args[0].id
                and last_name(receiver(c)) == last_name(table)
                for c in added
            )
            if (drawn or last_name(made.func) in MOVED) and beside and table is not None:
                yield call, table
        for inner in (
            n for n in nodes_of(loop, ast.For) if n is not loop and isinstance(n.iter, ast.Call)
        ):  # `for v in variants(row)`
            function = (
                program.callees_by_name(inner.iter, program.scope(inner))
                if isinstance(inner.iter, ast.Call) and rows & names_read(inner.iter)
                else None
            )
            if function is not None and any(
                last_name(c.func) in DRAWS for c in calls(function.node)
            ):
                repeated = [
                    c
                    for c in added
                    if inner in program.ancestors(c)
                    and isinstance(c.args[0], ast.Name)
                    and c.args[0].id in rows
                ]
                yield from ((c, table) for c in repeated[:1] if (table := receiver(c)) is not None)


def _elements(node: ast.expr) -> list[ast.expr]:
    """What a list holds, `[a] + [b] * 3` among them."""
    match node:
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [e.value if isinstance(e, ast.Starred) else e for e in elements]
        case ast.BinOp(left=left, right=right, op=ast.Add() | ast.Mult()):
            return _elements(left) + _elements(right)
    return []


def _copied_from(value: ast.expr) -> ast.expr | None:
    """The table of which some rows are taken by a mask or numbers, or that is flipped: all of them
    exist already.
    """
    if (
        isinstance(value, ast.Call)
        and method(value) in ("sample", "repeat", "copy", "reset_index")
        and (of := receiver(value)) is not None
    ):
        return _copied_from(of) or (table_of(of) if method(value) == "sample" else None)
    if (
        isinstance(value, ast.Call)
        and method(value) in MOVED
        and isinstance(of := receiver(value), ast.Name)
        and value.args
    ):
        return of
    if isinstance(value, ast.Call) and last_name(value.func) in MOVED | {"repeat"} and value.args:
        return value.args[0] if last_name(value.func) in MOVED else _copied_from(value.args[0])
    if isinstance(value, ast.Subscript) and isinstance(
        value.slice, (ast.Compare, ast.Name, ast.Call, ast.BinOp)
    ):
        inner = value.value
        return (
            inner.value
            if isinstance(inner, ast.Attribute) and inner.attr in ("loc", "iloc")
            else inner
        )
    return None
