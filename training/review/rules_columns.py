"""Rule BH523: columns that were chosen by the labels of all rows."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.splitting import (
    before,
    cuts,
    handed_back,
    is_part,
    line_of,
    shares_rows,
    sources_of,
    splits,
    values_read,
)
from training.review.syntax import (
    constant,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes,
    receiver,
    words,
)

LABELS = {"y", "ys", "label", "labels", "target", "targets", "outcome", "outcomes", "response"}
PAIRED = {"TensorDataset", "train_test_split", "zip"}


@rule("BH523")
def columns_chosen_before_split(subject: Subject) -> Iterator[Place]:
    """Columns of rows are taken by numbers that were computed from these rows and their labels, and
    the rows are split further down; or, seen in a run, the columns are those that go with the
    labels of all rows most, and not with those of the train rows.
    """
    program = subject.program
    for node, rows, numbers in selections(program):
        scope, line = program.scope(node), line_of(node)
        behind = {b for n in names_read(numbers) for b in sources_of(n, scope, line)}
        own = {b for n in names_read(rows) for b in sources_of(n, scope, line - 1)}
        read = [
            numbers,
            *(
                b.value
                for n in behind - own
                for b in scope.bindings.get(n, ())
                if line_of(b.statement) <= line
            ),
        ]
        behind = {n for n in behind if any(whole(program, value, n) for value in read)}
        if not behind & own or any(is_part(n) for n in behind):
            continue
        labelled = {n for n in behind - own if words(n) & LABELS} | behind & beside(
            program, scope, own
        ) - own
        places = [(node, rows), *((c, c) for c in handed_back(program, node))]
        for split, split_scope, parts in (*splits(program, by_group=True), *cuts(program)):
            named = labelled | behind & {n for part in parts[1:] for n in names_read(part)} - own
            at_once = program.statement(node) is program.statement(split)
            if named and any(
                (at_once or before(program, n, split))
                and shares_rows(program, n, r, parts, split_scope, split)
                for n, r in places
            ):
                told = (
                    f"the columns are chosen by {min(named)!r} of all rows, which are split only in"
                    f" line {split.lineno}"
                )
                yield node, told, scope.node if scope.name else split
                break


def selections(program: Program) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """`rows[:, numbers]`, `rows.index_select(1, numbers)`, `np.take(rows, numbers, axis=1)`: the
    expression, the rows, the numbers.
    """
    for node in program.nodes[ast.Subscript]:
        match node:
            case ast.Subscript(
                value=rows, slice=ast.Tuple(elts=[ast.Slice(lower=None, upper=None), numbers])
            ) if names_read(numbers):
                yield (
                    node,
                    (
                        rows.value
                        if isinstance(rows, ast.Attribute) and rows.attr in ("iloc", "loc")
                        else rows
                    ),
                    numbers,
                )
    for call in program.calls_of("index_select", "take"):
        given = receiver(call)
        if (
            method(call) == "index_select"
            and given is not None
            and len(call.args) == 2
            and constant(call.args[0]) == 1
        ):
            yield call, given, call.args[1]
        elif (
            last_name(call.func) == "take"
            and len(call.args) >= 2
            and constant(keyword(call, "axis", 2)) == 1
        ):
            yield call, call.args[0], call.args[1]


def whole(program: Program, value: ast.expr, name: str) -> bool:
    """Whether a name is read there other than by some of its rows, or their number."""
    for node in nodes_of(value, ast.Name):
        if node.id == name:
            above = program.parents[node]
            counted = (isinstance(above, ast.Call) and last_name(above.func) == "len") or (
                isinstance(above, ast.Attribute) and above.attr in ("shape", "size")
            )
            taken = (
                isinstance(above, ast.Subscript)
                and above.value is node
                and isinstance(above.slice, (ast.Slice, ast.Name, ast.Attribute))
            )
            if not counted and not taken:
                return True
    return False


def beside(program: Program, scope: Scope, rows: set[str]) -> set[str]:
    """The names that are handed on, returned or indexed beside the rows: their labels."""
    found: set[str] = set()
    indices: dict[str, set[str]] = defaultdict(set)
    for node in own_nodes(scope.node):
        together: list[ast.expr] = []
        if isinstance(node, ast.Call) and last_name(node.func) in PAIRED:
            together = node.args
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            together = node.value.elts
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and isinstance(node.slice, ast.Name)
        ):
            indices[node.slice.id].add(node.value.id)
        if together and names_read(together[0]) & rows:
            found |= {n for other in together[1:] for n in values_read(other)}
    return found.union(*(names for names in indices.values() if names & rows))
