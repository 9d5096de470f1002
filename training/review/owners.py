"""Rows made one after another for each of several persons, and the list, or the column of a table,
that says whose each is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.lookups import spoken_words
from training.review.program import Program, Scope, argument
from training.review.splitting import line_of, shuffled_cuts, sources_of, splits
from training.review.syntax import (
    calls,
    constant,
    dotted,
    identifiers,
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

PERSONS = {
    "patient", "subject", "speaker", "writer", "household", "person", "participant", "user",
    "driver", "student", "player", "animal",
}  # fmt: skip
KEPT_TOGETHER = {
    "patient",
    "subject",
    "speaker",
    "writer",
    "household",
    "person",
    "participant",
}  # of which new ones are to be foretold
LOOKS = {"print", "len", "unique", "set", "info", "bincount", "Counter"}


def rows_of_owners(program: Program) -> Iterator[tuple[ast.expr, str]]:
    """`for p in range(PATIENTS): for _ in …: owners.append(p)`, returned beside the rows, and by a
    caller looked at only: the rows are split at random.
    """
    said = spoken_words(program)
    if said.isdisjoint(PERSONS) and said.isdisjoint({p + "s" for p in PERSONS}):
        return
    for maker in program.scopes:
        for group, loop in _lists_of_owners(maker):
            for call, caller in program.call_sites[maker]:
                for name, rows in _unpacked(program, maker, call, group):
                    for order, helper in _counted_by_a_helper(program, caller, name):
                        told = (
                            f"{helper} puts rows in random order and only counts {group}, which"
                            f" says that several belong together (line {line_of(loop)})"
                        )
                        yield order, told
                    if not _only_looked_at(program, caller, name):
                        continue
                    for split, scope, parts in (*splits(program), *shuffled_cuts(program)):
                        behind = {
                            b
                            for part in parts
                            for n in {*identifiers(part)}
                            for b in sources_of(n, scope, line_of(split))
                        }
                        if scope is caller and rows & behind:
                            told = (
                                f"rows are split at random, though {group} (line {line_of(loop)})"
                                " says that several belong together"
                            )
                            yield split, told


def _counted_by_a_helper(
    program: Program, caller: Scope, name: str
) -> Iterator[tuple[ast.Call, str]]:
    """Permutations in a function that is given the list and asks for its length alone: the call
    that draws, and the function.
    """
    for call in (c for c in calls(caller.node) if program.scope(c) is caller):
        helper = program.callees_by_name(call, caller)
        given = (
            [p for p in helper.parameters if last_name(argument(call, helper, p)) == name]
            if helper is not None
            else []
        )
        if helper is None or not given:
            continue
        reads = [
            n
            for n in nodes_of(helper.node, ast.Name)
            if n.id == given[0] and isinstance(n.ctx, ast.Load)
        ]
        above = [program.parents[n] for n in reads]
        counted = all(
            (isinstance(a, ast.Call) and last_name(a.func) in ("len", "print"))
            or (isinstance(a, ast.Attribute) and a.attr in ("shape", "size"))
            for a in above
        )
        drawn = [
            c
            for c in calls(helper.node)
            if last_name(c.func) in ("permutation", "randperm", "shuffle")
        ]
        if reads and counted and drawn:
            yield drawn[0], helper.name


def _lists_of_owners(maker: Scope) -> Iterator[tuple[str, ast.For]]:
    """Lists to which the variable of a loop over persons is appended in a loop inside it, as other
    lists are.
    """
    for outer in (n for n in own_nodes_of(maker.node, ast.For) if isinstance(n.target, ast.Name)):
        for inner in own_nodes_of(outer, ast.For):
            put = [
                c
                for c in own_nodes_of(inner, ast.Call)
                if method(c) == "append" and len(c.args) == 1
            ]
            for call in put:
                if _is_person(outer, call.args[0], last_name(receiver(call))) and len(put) > 1:
                    yield last_name(receiver(call)), outer
        several = [
            n
            for n in own_nodes_of(outer, ast.AugAssign)
            if isinstance(n.value, ast.BinOp) and isinstance(n.value.op, ast.Mult)
        ]
        for node in several:  # `owners += [p] * VISITS`
            listed = next(
                (
                    e
                    for e in (node.value.left, node.value.right)  # type: ignore[attr-defined]
                    if isinstance(e, ast.List) and len(e.elts) == 1
                ),
                None,
            )
            if listed is not None and _is_person(outer, listed.elts[0], last_name(node.target)):
                yield last_name(node.target), outer


def _is_person(loop: ast.For, given: ast.expr, group: str) -> bool:
    """Whether what is put into a list is the variable of a loop over persons."""
    target = last_name(loop.target)
    named = {w for n in {group, target, *identifiers(loop.iter)} for w in words(n)}
    return (
        isinstance(given, ast.Name)
        and given.id == target
        and bool(PERSONS & (named | {w.removesuffix("s") for w in named}))
    )


def _unpacked(
    program: Program, maker: Scope, call: ast.Call, group: str
) -> Iterator[tuple[str, set[str]]]:
    """The name that a caller gives the list, and those of the other arrays that come with it."""
    returned = [n.value for n in own_nodes_of(maker.node, ast.Return)]
    if len(returned) != 1 or not isinstance(returned[0], ast.Tuple):
        return
    places = [i for i, e in enumerate(returned[0].elts) if group in identifiers(e)]
    statement = program.statement(call)
    target = (
        statement.targets[0]
        if isinstance(statement, ast.Assign) and statement.value is call
        else None
    )
    if (
        len(places) == 1
        and isinstance(target, ast.Tuple)
        and len(target.elts) == len(returned[0].elts)
    ):
        names = [last_name(e) for e in target.elts]
        yield names[places[0]], set(names) - {names[places[0]], ""}


def _only_looked_at(program: Program, caller: Scope, name: str) -> bool:
    """Whether a name is read nowhere but to be shown or counted."""
    for node in nodes_of(caller.node, ast.Name):
        if node.id == name and isinstance(node.ctx, ast.Load):
            above = program.parents[node]
            if not (isinstance(above, ast.Call) and last_name(above.func) in LOOKS) and not (
                isinstance(above, ast.Attribute) and above.attr == "max"
            ):
                return False
            statement = program.statement(node)
            if not (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Call)
                and last_name(statement.value.func) in ("print", "info")
            ):
                return False
    return True


def tables_of_owners(program: Program) -> Iterator[tuple[ast.expr, str]]:
    """A table is filled row by row, several for each person, with a column that says whose, which
    is looked at only: and the rows are split at random.
    """
    if {"groups", "unique", "drop_duplicates", "isin"} & program.identifiers or any(
        "group" in n.lower() and n != "groupby" for n in program.called_names
    ):
        return
    if "pandas" not in program.modules_imported:
        return
    for maker in program.scopes:
        for column, table, outer in _tables(program, maker):
            if not _counted_only(program, column):
                continue
            known = _handed_round(program, maker, table)
            held = (
                {table}
                if any(
                    n.attr == table and isinstance(n.ctx, ast.Store)
                    for n in own_nodes_of(maker.node, ast.Attribute)
                )
                else set()
            )
            for split, scope, parts in (*splits(program), *shuffled_cuts(program)):
                behind = {
                    b
                    for part in parts
                    for n in names_read(part)
                    for b in sources_of(n, scope, line_of(split))
                }
                if any(s is scope and n in behind for s, n in known) or any(
                    isinstance(p, ast.Attribute) and p.attr in held for p in parts
                ):
                    yield (
                        split,
                        (
                            f"rows are split at random, though {column!r} (line {line_of(outer)})"
                            " says that several belong together"
                        ),
                    )
                    break


def _tables(program: Program, maker: Scope) -> Iterator[tuple[str, str, ast.AST]]:
    """Tables in which several rows belong to each person: the column that holds the person, the
    table's name, what goes over persons.
    """
    yield from _tables_by_rows(program, maker)
    yield from _tables_by_parts(program, maker)


def _tables_by_parts(program: Program, maker: Scope) -> Iterator[tuple[str, str, ast.AST]]:
    """Tables put together, by `pd.concat`, of one table for each person, which has a column with
    his number: written in the loop, or in a helper that is given it.
    """
    for joined in (
        c for c in calls(maker.node) if program.resolve(c.func) == "pandas.concat" and c.args
    ):
        bound = program.parents[joined]
        table = last_name(bound.targets[0]) if isinstance(bound, ast.Assign) else ""
        for part, person, around in _parts_of(maker, joined.args[0]):
            for column in _own_columns(program, maker, part, person):
                if words(column) & KEPT_TOGETHER:
                    yield column, table, around


def _parts_of(maker: Scope, listed: ast.expr) -> Iterator[tuple[ast.expr, str, ast.AST]]:
    """What a list of tables is made of, in a comprehension or by `append` in a loop: a table, the
    variable that goes over persons, and the loop.
    """
    values = (
        [b.value for b in maker.bindings.get(listed.id, ())]
        if isinstance(listed, ast.Name)
        else [listed]
    )
    for value in values:
        if isinstance(value, (ast.ListComp, ast.GeneratorExp)) and isinstance(
            value.generators[0].target, ast.Name
        ):
            yield value.elt, value.generators[0].target.id, value
    for loop in (n for n in own_nodes_of(maker.node, ast.For) if isinstance(n.target, ast.Name)):
        for call in (
            c
            for c in calls(loop)
            if method(c) == "append" and len(c.args) == 1 and isinstance(listed, ast.Name)
        ):
            if dotted(receiver(call)) == dotted(listed):
                yield call.args[0], last_name(loop.target), loop


def _own_columns(
    program: Program, scope: Scope, part: ast.expr, person: str, depth: int = 0
) -> set[str]:
    """The columns of one person's table that hold his number."""
    values, found = [part], set[str]()
    if isinstance(part, ast.Name):
        values = [b.value for b in scope.bindings.get(part.id, ())]
        for node in own_nodes_of(scope.node, ast.Assign):
            target = node.targets[0]
            if (
                isinstance(target, ast.Subscript)
                and dotted(target.value) == part.id
                and _names(node.value, person)
            ):
                found.add(str(constant(target.slice)))
    for call in (v for v in values if isinstance(v, ast.Call)):
        if program.resolve(call.func) == "pandas.DataFrame" and call.args:
            found |= set(_columns_of(call.args[0], None, person))
        elif method(call) == "assign":
            found |= {str(k.arg) for k in call.keywords if _names(k.value, person)}
        helper = program.callees_by_name(call, scope) if depth < 2 else None
        if helper is not None:
            returned = [
                n.value for n in own_nodes_of(helper.node, ast.Return) if n.value is not None
            ]
            for name in _parameters_given(call, helper, person):
                found |= {
                    c
                    for value in returned
                    for c in _own_columns(program, helper, value, name, depth + 1)
                }
    return found


def _parameters_given(call: ast.Call, helper: Scope, person: str) -> list[str]:
    """The parameters of a function that are given the number of the person."""
    given = [(name, argument(call, helper, name)) for name in helper.parameters]
    return [name for name, value in given if value is not None and _names(value, person)]


def _tables_by_rows(program: Program, maker: Scope) -> Iterator[tuple[str, str, ast.AST]]:
    """Tables made of a list to which a loop inside one over persons appends."""
    made = [
        c
        for c in calls(maker.node)
        if program.resolve(c.func) == "pandas.DataFrame"
        and c.args
        and isinstance(c.args[0], ast.Name)
    ]
    for outer in (
        n
        for n in own_nodes(maker.node)
        if made and isinstance(n, ast.For) and isinstance(n.target, ast.Name)
    ):
        person = outer.target.id if isinstance(outer.target, ast.Name) else ""
        for call in (
            c
            for inner in own_nodes_of(outer, ast.For)
            for c in calls(inner)
            if method(c) == "append" and len(c.args) == 1
        ):
            for frame in (c for c in made if last_name(c.args[0]) == last_name(receiver(call))):
                bound = program.parents[frame]
                table = last_name(bound.targets[0]) if isinstance(bound, ast.Assign) else ""
                for column in _columns_of(call.args[0], keyword(frame, "columns", 2), person):
                    if words(column) & KEPT_TOGETHER or (
                        (_varied(program, outer, call) or _is_window(program, outer, call))
                        and _said_once(program, column)
                    ):
                        yield column, table, outer


def _varied(program: Program, outer: ast.For, put: ast.Call) -> bool:
    """Whether the rows of an inner loop are variants of one thing that was made in the outer one,
    `rows.append(jitter(signal))`, and differ by nothing else.
    """
    inner = next((a for a in program.ancestors(put) if isinstance(a, ast.For)), outer)
    if (
        inner is outer
        or not isinstance(inner.target, ast.Name)
        or inner.target.id in {n for s in inner.body for n in names_read(s)}
    ):
        return False
    inside = {id(n) for n in walk(inner)}
    made = {
        last_name(t)
        for n in own_nodes_of(outer, ast.Assign)
        if id(n) not in inside
        for t in n.targets
        if isinstance(t, ast.Name)
    }
    return any(
        made & {last_name(a) for a in c.args} and program.callees(c, program.scope(c))
        for c in calls(put.args[0])
    )


def _is_window(program: Program, outer: ast.For, put: ast.Call) -> bool:
    """Whether the rows of an inner loop are windows along what the outer one goes through: `for
    start in range(0, size - window + 1, hop)`.
    """
    inner = next((a for a in program.ancestors(put) if isinstance(a, ast.For)), outer)
    over = inner.iter
    if (
        inner is outer
        or not isinstance(over, ast.Call)
        or last_name(over.func) != "range"
        or len(over.args) != 3
        or not isinstance(inner.target, ast.Name)
    ):
        return False
    said = {w for a in over.args for n in identifiers(a) for w in words(n)}
    return bool(
        said & {"window", "windows", "win", "hop", "stride"}
    ) and inner.target.id in names_read(put.args[0])


def _said_once(program: Program, column: str) -> bool:
    """Whether a column is named where it is made and nowhere else: it is no label, and nobody asks
    for it.
    """
    return sum(constant(n) == column for n in program.nodes[ast.Constant]) == 1


def _columns_of(row: ast.expr, columns: ast.expr | None, person: str) -> list[str]:
    """The columns of a row that hold the number of the person."""
    if isinstance(row, ast.Dict):
        return [
            str(constant(k)) for k, v in zip(row.keys, row.values, strict=True) if _names(v, person)
        ]
    named = columns.elts if isinstance(columns, (ast.List, ast.Tuple)) else []
    if not isinstance(row, (ast.Tuple, ast.List)) or len(named) != len(row.elts):
        return []
    return [str(constant(n)) for n, v in zip(named, row.elts, strict=True) if _names(v, person)]


def _names(value: ast.expr, person: str) -> bool:
    """Whether a value is the number of the person, or a text that is made of it alone."""
    return isinstance(value, (ast.Name, ast.JoinedStr)) and names_read(value) == {person}


def _counted_only(program: Program, column: str) -> bool:
    """Whether a column is taken out of its table for nothing but to count its values."""
    taken = [
        n
        for n in program.nodes[ast.Subscript]
        if isinstance(n.ctx, ast.Load) and constant(n.slice) == column
    ]
    above = [program.parents[n] for n in taken]
    return all(
        isinstance(p, ast.Attribute) and p.attr in ("nunique", "value_counts", "max") for p in above
    )


def _handed_round(program: Program, maker: Scope, table: str) -> set[tuple[Scope, str]]:
    """The names by which a table is known in the function that makes it, its callers, and those
    whom they give it.
    """
    known, pending = set[tuple[Scope, str]](), [(maker, table)]
    for returned in (n.value for n in own_nodes_of(maker.node, ast.Return)):
        elements = returned.elts if isinstance(returned, ast.Tuple) else [returned]
        places = [
            i
            for i, e in enumerate(elements)
            if (isinstance(e, ast.Name) and e.id == table)
            or (not table and isinstance(e, ast.Call))
        ]
        for call, caller in program.call_sites[maker]:
            statement = program.statement(call)
            target = (
                statement.targets[0]
                if isinstance(statement, ast.Assign) and statement.value is call
                else None
            )
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            pending += [(caller, last_name(names[i])) for i in places if i < len(names)]
    while pending:
        scope, name = pending.pop()
        if not name or (scope, name) in known:
            continue
        known.add((scope, name))
        for call in (c for c in program.all_calls if program.scope(c) is scope):
            for function in program.callees(call, scope):
                given = [(p, argument(call, function, p)) for p in function.parameters]
                pending += [
                    (function, p)
                    for p, value in given
                    if isinstance(value, ast.Name) and value.id == name
                ]
    return known
