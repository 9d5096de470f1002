"""Rule BH510: rows are shuffled without their labels."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.frames import moved_after
from training.review.program import Program, Scope, argument
from training.review.reordered import kept_the_old_order, sorted_beside, sorted_out_of_a_zip
from training.review.splitting import line_of
from training.review.syntax import (
    calls,
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
from training.review.whole import LABEL_WORDS

PERMUTES = {"permutation", "randperm"}
SORTS = {"sort", "sorted", "sort_values", "msort"}
ORDERS = {
    "argsort",
    "lexsort",
    "permutation",
    "randperm",
    "sort",
    "sorted",
    "shuffle",
}  # an order, or what comes in one
PAIRS = {"TensorDataset", "train_test_split", "zip"}
WRAPS = {
    "from_numpy", "tensor", "as_tensor", "asarray", "array", "float", "long", "Tensor",
    "FloatTensor", "LongTensor",
}  # fmt: skip
ON_PURPOSE = {
    "permute", "permuted", "permutation", "null", "control", "negative", "negatives", "corrupt",
    "corrupted", "marginal", "importance", "random", "mix", "mixup", "cutmix", "chance",
    "independent", "scramble", "scrambled", "augment", "jitter", "__getitem__",
}  # fmt: skip


@rule("BH510")
def rows_permuted_alone(subject: Subject) -> Iterator[Place]:
    """A permutation is the index of one array and of nothing else, and that array goes into a data
    set, split or loop beside another that kept its order; or a table is sorted, sampled or thinned
    out after labels were taken of it as an array; or one of both arrays is sorted; or some arrays
    are put in an order, and one that is cut beside them afterwards is not.
    """
    program = subject.program
    permuted, ordered = bool(program.calls_of(*PERMUTES)), bool(program.calls_of(*ORDERS))
    for scope in program.scopes:
        if ON_PURPOSE & (words(scope.name) | {scope.name}):
            continue
        yield from _at_once(program, scope)
        yield from _sampled(program, scope)
        yield from moved_after(program, scope)
        yield from _sorted(program, scope)
        yield from _sorted_column(program, scope)
        if ordered:
            yield from kept_the_old_order(program, scope)
            yield from sorted_out_of_a_zip(scope)
            yield from sorted_beside(scope)
        for name, bindings in scope.bindings.items() if permuted else ():
            if (
                len(bindings) == 1
                and isinstance(bindings[0].value, ast.Call)
                and last_name(bindings[0].value.func) in PERMUTES
            ):
                used = _only_index(program, name, scope)
                if used is not None:
                    yield from _left_behind(program, used, scope)


def _at_once(program: Program, scope: Scope) -> Iterator[Place]:
    """`TensorDataset(x, y[torch.randperm(n)])`: an order that nobody else can know, beside rows
    that keep theirs.
    """
    for call in (
        (c for c in program.calls_of(*PAIRS) if program.scope(c) is scope)
        if PERMUTES & program.called_names
        else ()
    ):
        for given in call.args:
            drawn = (
                isinstance(given, ast.Subscript)
                and isinstance(given.slice, ast.Call)
                and last_name(given.slice.func) in PERMUTES
            )
            whole = [
                (
                    ast.unparse(given.value)
                    if a is given and isinstance(given, ast.Subscript)
                    else ast.unparse(a)
                )
                for a in call.args
            ]
            beside = [
                [ast.unparse(a) for a in c.args]
                for c in program.all_calls
                if c is not call and program.scope(c) is scope
            ]
            if drawn and whole in beside:
                continue  # the same pairs stand beside it as they belong together
            if drawn and any(isinstance(other, ast.Name) for other in call.args):
                yield (
                    given,
                    f"{ast.unparse(given.value)} gets an order of its own, and what it goes"  # type: ignore[attr-defined]
                    " with keeps the old one",
                )


def _sampled(program: Program, scope: Scope) -> Iterator[Place]:
    """`x = features(frame).sample(frac=1)` beside `y = labels(frame)`, where no index brings them
    together again.
    """
    if (
        "sample" not in program.called_names
        or {"index", "align", "reindex", "join", "merge", "loc"} & program.identifiers
    ):
        return
    made = [n for n in own_nodes_of(scope.node, ast.Assign) if len(n.targets) == 1]
    for statement in made:
        call = statement.value
        if not (
            isinstance(call, ast.Call)
            and method(call) == "sample"
            and constant(keyword(call, "frac")) in (1, 1.0)
        ):
            continue
        rows, of = dotted(statement.targets[0]), {n for n in names_read(call) if n != "self"}
        others = {
            dotted(m.targets[0])
            for m in made
            if m is not statement
            and names_read(m.value) & of
            and rows.partition(".")[0] not in of - {"self"}
        }
        for given in ({dotted(a) for a in c.args} for c in program.all_calls):
            if rows in given and (beside := sorted(others & given - {rows, ""})):
                yield (
                    call,
                    (
                        f"{rows} gets a new order, and {beside[0]}, which goes with it, keeps the"
                        " old one"
                    ),
                )
                break


def _sorted(program: Program, scope: Scope) -> Iterator[Place]:
    """`y = np.sort(y)` beside rows that were there before and are not sorted; indices and edges,
    which are often sorted, go into no data set with rows.
    """
    if not SORTS & program.called_names:
        return
    found = dict(_sorts(scope))
    for name, call in found.items():
        line = line_of(program.statement(call))
        older = {
            n
            for n in (*scope.bindings, *scope.parameters)
            if all(
                line_of(program.statement(b.statement)) < line for b in scope.bindings.get(n, ())
            )
        }
        older -= {
            n
            for n in older
            if any(
                isinstance(b.value, ast.List) and not b.value.elts
                for b in scope.bindings.get(n, ())
            )
        }  # filled afterwards
        indices = any(last_name(n.slice) == name for n in nodes_of(scope.node, ast.Subscript))
        other = next(
            (
                n
                for n in sorted(older - found.keys())
                if not indices and _beside(program, scope, name, n, line)
            ),
            None,
        )
        if other is not None:
            yield call, f"{name} is sorted, and {other}, which goes with it, keeps the old order"


def _sorted_column(program: Program, scope: Scope) -> Iterator[Place]:
    """`table["y"].sort_values().to_numpy()` beside other columns of the table, or the table itself,
    that become arrays or are handed on as they are.
    """
    if "sort_values" not in program.called_names:
        return
    for call in (
        c
        for c in own_nodes_of(scope.node, ast.Call)
        if method(c) == "sort_values" and keyword(c, "by", 0) is None
    ):
        column, above = receiver(call), program.parents[call]
        table = (
            column.value
            if isinstance(column, ast.Subscript) and isinstance(constant(column.slice), str)
            else None
        )
        if (
            not isinstance(table, ast.Name)
            or not isinstance(above, ast.Attribute)
            or above.attr not in ("to_numpy", "values", "tolist")
        ):
            continue
        others = [
            n
            for n in own_nodes_of(scope.node, ast.Name)
            if n.id == table.id and isinstance(n.ctx, ast.Load) and n is not table
        ]
        read = any(
            isinstance(p := program.parents[n], ast.Subscript)
            or (isinstance(p, ast.Call) and n in p.args)
            for n in others
        )
        if read and (
            _is_label(program, call)
            or (
                isinstance(column, ast.Subscript)
                and words(str(constant(column.slice))) & LABEL_WORDS
            )
        ):
            yield (
                call,
                (
                    f"{ast.unparse(column or call)} is sorted by itself, and the rows of {table.id}"
                    " that go with it keep their order"
                ),
            )


def _is_label(program: Program, call: ast.Call) -> bool:
    """Whether a value gets a name that speaks of labels."""
    statement = program.statement(call)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(words(last_name(t)) & LABEL_WORDS for t in targets)


def _sorts(scope: Scope) -> Iterator[tuple[str, ast.Call]]:
    """`y = np.sort(y)`, `y, _ = torch.sort(y)`, `y = y.sort().values`, `y = sorted(y)`, `y.sort()`:
    the name, and the call.
    """
    for node in own_nodes(scope.node):
        if (
            isinstance(node, ast.Expr)
            and method(node.value) == "sort"
            and isinstance(receiver(node.value), ast.Name)
        ):
            yield last_name(receiver(node.value)), node.value  # type: ignore[misc]
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = (
                node.targets[0].elts[0]
                if isinstance(node.targets[0], ast.Tuple)
                else node.targets[0]
            )
            inner = [c for c in calls(node.value) if last_name(c.func) in SORTS]
            rows = (
                receiver(inner[0])
                if len(inner) == 1
                and method(inner[0])
                and names_read(receiver(inner[0])) == {last_name(target)}
                else None
            )
            rows = rows or (inner[0].args[0] if len(inner) == 1 and inner[0].args else None)
            if not (
                isinstance(target, ast.Name) and isinstance(rows, ast.Name) and rows.id == target.id
            ):
                continue
            order_kept = any(k.arg and "return" in k.arg for c in inner for k in c.keywords) or any(
                last_name(e).strip("_")
                and any(
                    last_name(e) in names_read(n)
                    for n in own_nodes(scope.node)
                    if isinstance(n, (ast.Call, ast.Subscript))
                )
                for e in (
                    node.targets[0].elts[1:] if isinstance(node.targets[0], ast.Tuple) else ()
                )
            )  # an index comes with it
            if not order_kept:
                yield target.id, inner[0]


def _beside(program: Program, scope: Scope, a: str, b: str, line: int) -> bool:
    """Whether both are rows of one data set: given to it together here, or returned as a pair of
    which a caller makes one.
    """
    if _together(program, scope, a, b, line):
        return True
    for node in own_nodes(scope.node):
        elements = (
            [last_name(e) for e in node.value.elts]
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
            else []
        )
        if (
            a in elements
            and b in elements
            and _come_together(program, scope, elements.index(a), elements.index(b))
        ):
            return True
    return False


def _only_index(program: Program, order: str, scope: Scope) -> ast.Subscript | None:
    """`rows[order]`, where that is the only thing that is done with the permutation, and is not on
    a condition.
    """
    uses = [
        n for n in nodes_of(scope.node, ast.Name) if n.id == order and isinstance(n.ctx, ast.Load)
    ]
    parent = program.parents[uses[0]] if len(uses) == 1 else None
    plain = (
        isinstance(parent, ast.Subscript)
        and parent.slice is uses[0]
        and isinstance(parent.value, ast.Name)
    )
    if (
        not isinstance(parent, ast.Subscript)
        or not plain
        or any(
            isinstance(a, (ast.If, ast.IfExp, ast.For, ast.While))
            for a in program.ancestors(parent)
        )
    ):
        return None
    return parent


def _left_behind(program: Program, used: ast.Subscript, scope: Scope) -> Iterator[Place]:
    """What goes with the rows and keeps its order: after `rows = rows[order]`, or where
    `rows[order], other` is returned.
    """
    statement, rows = program.statement(used), last_name(used.value)
    if (
        isinstance(statement, ast.Assign)
        and statement.value is used
        and [last_name(t) for t in statement.targets] == [rows]
    ):
        line = statement.lineno
        older = {
            n
            for n in (*scope.bindings, *scope.parameters)
            if all(
                line_of(program.statement(b.statement)) < line for b in scope.bindings.get(n, ())
            )
        }
        other = next(
            (n for n in sorted(older - {rows}) if _together(program, scope, rows, n, line)), None
        )
        if other is not None:
            yield (
                used,
                f"{rows} gets a new order, and {other}, which goes with it, keeps the old one",
            )
    elif (
        isinstance(statement, ast.Return)
        and isinstance(statement.value, ast.Tuple)
        and used in statement.value.elts
        and rows in scope.parameters
    ):
        at = statement.value.elts.index(used)
        for other_at, element in enumerate(statement.value.elts):
            plain = (
                isinstance(element, ast.Name)
                and element.id in scope.parameters
                and element.id not in scope.bindings
            )
            if plain and _come_together(program, scope, at, other_at):
                yield (
                    used,
                    (
                        f"{rows} gets a new order, and {ast.unparse(element)}, which is returned"
                        " with it, keeps the old one"
                    ),
                )
                return


def _come_together(program: Program, scope: Scope, a: int, b: int) -> bool:
    """Whether two elements of what a function returns are used as rows of the same data by one of
    its callers.
    """
    for call, caller in program.call_sites[scope]:
        given = program.statement(call)
        targets = (
            given.targets[0] if isinstance(given, ast.Assign) and given.value is call else None
        )
        names = [last_name(t) for t in targets.elts] if isinstance(targets, ast.Tuple) else []
        if len(names) > max(a, b) and _together(
            program, caller, names[a], names[b], line_of(given)
        ):
            return True
    return False


def _together(program: Program, scope: Scope, a: str, b: str, line: int, depth: int = 0) -> bool:
    """Whether two names are rows of the same data: cut, indexed or put into a data set alike after
    a line.
    """
    nodes = [n for n in walk(scope.node) if line_of(n) > line]
    if _cuts_of(nodes, a) & _cuts_of(nodes, b):
        return True
    for call in (n for n in nodes if isinstance(n, ast.Call)):
        given = _bare(call.args)
        if a not in given or b not in given:
            continue
        function = program.callees_by_name(call, scope) if depth < 1 else None
        if last_name(call.func) in PAIRS:
            return True
        if function is not None:
            named = {last_name(argument(call, function, p)): p for p in function.parameters}
            if (
                a in named
                and b in named
                and _together(program, function, named[a], named[b], 0, depth + 1)
            ):
                return True
    return False


def _cuts_of(nodes: list[ast.AST], name: str) -> set[str]:
    """How rows of that name are taken: `[order]` and `[:cut]`, `.split(edges)` and `split(rows,
    edges)`, without the name.
    """
    found = {
        ast.unparse(n.slice)
        for n in nodes
        if isinstance(n, ast.Subscript)
        and last_name(n.value) == name
        and (names_read(n.slice) or isinstance(n.slice, ast.Slice))
    }
    for n in nodes:
        if isinstance(n, ast.Call) and last_name(n.func) in ("split", "array_split", "chunk"):
            by = (
                n.args
                if last_name(receiver(n)) == name
                else n.args[1:]
                if _bare(n.args[:1]) == [name]
                else None
            )
            found |= {f"split {[ast.unparse(part) for part in by]}"} if by is not None else set()
    return found


def _bare(values: list[ast.expr]) -> list[str]:
    """Names that are given as they are, or made into tensors."""
    inner = [
        (
            v.args[0]
            if isinstance(v, ast.Call) and v.args and last_name(v.func) in WRAPS
            else receiver(v)
            if method(v) in WRAPS
            else v
        )
        for v in values
    ]
    return [v.id if isinstance(v, ast.Name) else "" for v in inner]
