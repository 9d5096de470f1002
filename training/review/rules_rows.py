"""Rules BH505: to BH508: which rows are split, and how."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.copied import copies_before_split
from training.review.findings import Place, Subject, rule
from training.review.owners import KEPT_TOGETHER, rows_of_owners, tables_of_owners
from training.review.program import Program, Scope
from training.review.sides import divisions, given_back, of_one_side, takes, trivial_groups
from training.review.splitting import (
    asked_by,
    before,
    is_part,
    line_of,
    shares_rows,
    shuffled_cuts,
    sources_of,
    splits,
    stored,
)
from training.review.syntax import (
    calls,
    constant,
    dotted,
    identifiers,
    is_false,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    receiver,
    walk,
    words,
)
from training.review.whole import copies, plain
from training.review.windows import cut_into_windows, cuts_when_made, random_parts

ONE_ROW_EACH = {"customer", "client", "account", "member"}
REPEATS = {"repeat", "repeat_interleave"}
DRAWN_AGAIN = {"integers", "randint"}  # numbers of few people for many rows
COUNTS = {"groupby", "duplicated", "nunique", "value_counts"}
GROUPS = {
    "patient", "subject", "user", "customer", "client", "speaker", "writer", "session", "household",
    "person", "participant", "student", "player",
}  # fmt: skip

TIMES = {"date", "time", "timestamp", "datetime", "day", "month", "year", "week"}


@rule("BH505")
def resample_before_split(subject: Subject) -> Iterator[Place]:
    """`fit_resample`, `resample` of scikit-learn, rows drawn with replacement or put a second time
    beside all of them: and they are split further down; or, seen in a run, held-out pictures are
    nearly train pictures.
    """
    program = subject.program
    for call, rows, read in resampled(program):
        if any(is_part(n) for n in names_read(rows)) or of_one_side(program, rows):
            continue
        places = [(call, read), *((c, c) for c in given_back(program, call))]
        kept = [
            (d.node, d.scope, d.parts)
            for d in divisions(program)
            if d.groups is None or trivial_groups(program, d.groups, d.scope)
        ]
        for split, scope, parts in (*splits(program), *kept):
            at = [(split, scope, parts), *asked_by(program, split, scope, parts)]
            handed = {
                n for _, _, given in at for g in given[:1] for n in walk(g)
            }  # `split(copied(rows))`
            if any(
                c in handed
                or (before(program, c, there) and shares_rows(program, c, r, given, inside, there))
                for c, r in places
                for there, inside, given in at
            ):
                yield (
                    call,
                    f"rows are resampled here, and split only in line {line_of(split)}",
                    scope.node if scope.name else split,
                )
                return
    yield from copies_before_split(program)


def resampled(program: Program) -> Iterator[tuple[ast.Call, ast.expr, ast.expr]]:
    """Every call that gives rows several times, or new ones made of them: the call, the rows, and
    what has to be split further down if not its result.
    """
    names = {
        "fit_resample",
        "resample",
        *(n for n, of in program.aliases.items() if of == "sklearn.utils.resample"),
    }
    for call in program.calls_of(*names):
        if call.args and (
            method(call) == "fit_resample" or program.resolve(call.func) == "sklearn.utils.resample"
        ):
            yield call, call.args[0], call.args[0]
    for call, rows in copies(program):
        yield call, rows, rows if method(call) == "append" else ast.Constant(None)


@rule("BH506")
def random_split_of_groups(subject: Subject) -> Iterator[Place]:
    """A frame with a column like `patient_id`, or rows that belong to repeated `patients`, is split
    by row: the file splits by group nowhere, or them elsewhere; or, seen in a run, values of such a
    column, or of one whose rows have one label each, are among the train rows and among those that
    are evaluated, and not earlier in time.
    """
    program = subject.program
    yield from grouped_elsewhere(program)
    if splits(program) or program.calls_of("permutation", "randperm", "shuffle"):
        yield from rows_of_owners(program)
        yield from tables_of_owners(program)
    if (
        any("group" in n.lower() and n != "groupby" for n in program.called_names)
        or "groups" in program.identifiers
        or _numbers_groups(program)
    ):
        return
    for split, scope, parts in splits(program):
        if last_name(split.func) == "random_split":
            continue
        frames = {
            b
            for part in parts
            for n in names_read(part)
            for b in sources_of(n, scope, split.lineno)
        }
        for node in walk(scope.node):
            column = constant(node)
            if not (
                isinstance(column, str)
                and len(column) < 40
                and column.isidentifier()
                and GROUPS & words(column)
                and words(column) & {"id", "no", "nbr", "key", "code"}
            ):
                continue
            used = (
                names_read(program.statement(node))
                if program.scope(node) is scope and line_of(node) <= split.lineno
                else set()
            )
            once = (
                bool(words(column) & ONE_ROW_EACH) and not COUNTS & program.called_names
            )  # a number that a table of customers has once each
            once |= (
                _one_row_each(frames, column, scope)
                or {"rating", "ratings", "is_unique"} & program.identifiers != set()
            )
            once |= _values_are_split(program, column)
            if used & frames and "drop_duplicates" not in program.identifiers and not once:
                yield (
                    split,
                    (
                        f"rows are split at random, though {column!r} (line {line_of(node)}) says"
                        " that several may belong together"
                    ),
                )
                break
    yield from _repeated_groups(program)
    yield from _repeated_columns(program)


def _numbers_groups(program: Program) -> bool:
    """Whether the file asks for the distinct values of something, other than of a column that says
    nothing of groups, as the codes of a category are.
    """
    for call in program.calls_of("unique") if "unique" in program.called_names else ():
        of = receiver(call) if not call.args else call.args[0]
        column = constant(of.slice) if isinstance(of, ast.Subscript) else None
        if not isinstance(column, str) or words(column) & (
            GROUPS | KEPT_TOGETHER | {"id", "group", "key"}
        ):
            return True
    return False


def _values_are_split(program: Program, column: str) -> bool:
    """Whether rows are taken by the values of a column, or those are named once each:
    `frame[column].isin(side)`, `set(frame[column])`.
    """
    for call in program.calls_of("isin", "set", "fromkeys"):
        of = (
            receiver(call)
            if method(call) == "isin"
            else call.args[0]
            if last_name(call.func) != "isin" and call.args
            else None
        )
        if isinstance(of, ast.Subscript) and constant(of.slice) == column:
            return True
    return False


def _one_row_each(frames: set[str], column: str, scope: Scope) -> bool:
    """Whether the table was brought to one row for each value of a column:
    `groupby(column).agg(…)`, `.head(1)`, `.first()`.
    """
    for binding in (b for name in frames for b in scope.bindings.get(name, ())):
        for call in calls(binding.value):
            grouped = (
                receiver(call)
                if method(call)
                in (
                    "agg",
                    "aggregate",
                    "first",
                    "last",
                    "head",
                    "tail",
                    "mean",
                    "max",
                    "min",
                    "nth",
                )
                else None
            )
            grouped = grouped.value if isinstance(grouped, ast.Subscript) else grouped
            if (
                isinstance(grouped, ast.Call)
                and method(grouped) == "groupby"
                and column in {constant(n) for n in walk(grouped)}
            ):
                return True
    return False


def grouped_elsewhere(program: Program) -> Iterator[Place]:
    """Rows are split at random, and what is left of them, or what they were left of, is split by a
    group.
    """
    by_group = [
        (c, s, parts, keyword(c, "groups", 2))
        for c, s, parts in splits(program, by_group=True)
        if method(c) == "split"
    ]
    by_group = [g for g in by_group if g[3] is not None and not trivial_groups(program, g[3], g[1])]
    for split, scope, parts in splits(program) if by_group else ():
        if (
            last_name(split.func) == "random_split"
            or (method(split) == "split" and keyword(split, "groups", 2) is not None)
            or "unique" in program.called_names
        ):
            continue
        for other, other_scope, others, groups in by_group:
            if other_scope is not scope or not parts or not others:
                continue
            first, second = (split, parts), (other, others)
            if line_of(other) < line_of(split):
                first, second = second, first
            rows = names_read(first[1][0])
            behind = {
                b
                for n in names_read(second[1][0])
                for b in sources_of(n, scope, line_of(second[0]))
            }
            if rows & behind and names_read(second[1][0]) & taken_of(program, first[0], scope):
                yield (
                    split,
                    (
                        f"rows are split at random, though line {line_of(other)} keeps them"
                        f" together by {plain(groups)}"
                    ),
                )
                break


def _repeated_columns(program: Program) -> Iterator[Place]:
    """`{"patient": np.repeat(…)}` makes several rows for each, and the table that holds it is split
    at random.
    """
    if not program.calls_of(*REPEATS, *DRAWN_AGAIN):
        return
    made: list[tuple[Scope, str, ast.AST]] = []
    for node in program.nodes[ast.Dict]:
        pairs = zip(node.keys, node.values, strict=True)
        made += [(program.scope(node), str(constant(k)), v) for k, v in pairs if k is not None]
    for set_ in program.nodes[ast.Assign]:
        if isinstance(target := set_.targets[0], ast.Subscript):
            made.append((program.scope(set_), str(constant(target.slice)), set_.value))
    once = {
        id(v): scope.bindings[v.id][0].value
        for scope, _, v in made
        if isinstance(v, ast.Name) and len(scope.bindings.get(v.id, ())) == 1
    }
    repeated = [
        (scope, key, value)
        for scope, key, value in made
        if words(key) & KEPT_TOGETHER
        and any(
            last_name(c.func) in REPEATS | DRAWN_AGAIN for c in calls(once.get(id(value), value))
        )
    ]
    kept = (
        [(d.node, d.scope, d.parts) for d in divisions(program) if d.groups is None]
        if repeated
        else []
    )
    for split, scope, parts in (*splits(program), *kept) if repeated else ():
        for name in sorted(
            {b for n in names_read(parts[0]) for b in sources_of(n, scope, line_of(split))}
            if parts
            else ()
        ):
            values = [b.value for b in scope.bindings.get(name, ()) if b.index is None]
            makers = [program.callees_by_name(v, scope) for v in values if isinstance(v, ast.Call)]
            found = next(
                (
                    (k, v)
                    for s, k, v in repeated
                    if s in makers or (s is scope and any(n is v for x in values for n in walk(x)))
                ),
                None,
            )
            if found is not None:
                yield (
                    split,
                    (
                        f"rows are split at random, though {found[0]!r} (line {line_of(found[1])})"
                        " says that several belong together"
                    ),
                )
                break


def taken_of(program: Program, split: ast.expr, scope: Scope) -> set[str]:
    """The names of the sides that a split gave."""
    return {
        n
        for t in takes(program)
        if t.scope is scope and t.family == ("split", id(split))
        for n in t.names
    } | stored(program.statement(split))


def _repeated_groups(program: Program) -> Iterator[Place]:
    """Rows of which several were made for each of `patients`, by the name of an array that repeats
    them, are split at random.
    """
    if not program.calls_of(*REPEATS) or {"isin", "in1d", "set"} & program.called_names:
        return
    compared = {n for node in program.nodes[ast.Compare] for n in names_read(node)}
    repeated: dict[str, ast.AST] = {}
    beside: dict[str, str] = {}  # names that get their value with it
    for name, binding in (
        (n, b) for scope in program.scopes for n, bound in scope.bindings.items() for b in bound
    ):
        singular = words(name) | {w.removesuffix("s") for w in words(name)}
        if (
            GROUPS & singular
            and name not in compared
            and any(last_name(c.func) in REPEATS for c in calls(binding.value))
        ):
            repeated.setdefault(name, binding.statement)
    for scope in program.scopes if repeated else ():
        for name, binding in (
            (n, b) for n in repeated for b in scope.bindings.get(n, ()) if b.index is not None
        ):
            beside |= {
                other: name
                for other, bound in scope.bindings.items()
                if any(b.statement is binding.statement for b in bound)
            }
    for split, scope, parts in (*splits(program), *shuffled_cuts(program)):
        behind = {
            b
            for part in parts
            for n in names_read(part)
            for b in sources_of(n, scope, split.lineno)
        }
        group = next(
            (
                n if n in repeated else beside[n]
                for n in sorted(behind & (repeated.keys() | beside.keys()))
            ),
            None,
        )
        if group is not None:
            yield (
                split,
                (
                    f"rows are split at random, though {group} (line {line_of(repeated[group])})"
                    " says that several belong together"
                ),
            )


@rule("BH507")
def random_split_of_time(subject: Subject) -> Iterator[Place]:
    """A frame that is shifted, rolled or sorted by time is split with shuffling; or folds of it are
    shuffled; or, seen in a run, a column of a table is the label of an earlier row or rows stand in
    the order of time, and those that are evaluated lie among the train rows.
    """
    program = subject.program
    if {
        "TimeSeriesSplit",
        "drop_duplicates",
    } & program.called_names or "groups" in program.identifiers:
        return  # also where one row is left of each
    yield from _shuffled_in_time(program)
    for call in program.calls_of("train_test_split"):
        scope = program.scope(call)
        random = not is_false(keyword(call, "shuffle")) and bool(call.args)
        if not random or not program.resolve(call.func).startswith("sklearn."):
            continue
        frames = {
            b
            for part in call.args
            for n in names_read(part)
            for b in sources_of(n, scope, call.lineno)
        }
        ordered = next(
            (
                c
                for c in program.all_calls
                if before(program, c, call)
                and _orders(c)
                and names_read(program.statement(c)) & frames
            ),
            None,
        )
        if ordered is not None:
            yield (
                call,
                f"rows are shuffled, though line {ordered.lineno} treats them as a time series",
            )


def _shuffled_in_time(program: Program) -> Iterator[Place]:
    """`series().sample(frac=1)` of rows that were shifted or sorted by time, and then a cut by
    position.
    """
    for call in program.methods_of("sample"):
        if constant(keyword(call, "frac")) != 1 or "train" in {
            w for n in identifiers(program.statement(call)) for w in words(n)
        }:
            continue
        scope, source = program.scope(call), receiver(call)
        made = [
            c
            for c in (calls(source) if source is not None else ())
            for f in program.callees(c, scope)
            for c in calls(f.node)
        ]
        names = {
            s
            for n in (names_read(source) if source is not None else ())
            for s in sources_of(n, scope, call.lineno)
        }
        made += [
            c
            for n in names
            for b in scope.bindings.get(n, ())
            for v in calls(b.value)
            for f in program.callees(v, scope)
            for c in calls(f.node)
        ]
        made += [
            c
            for c in program.all_calls
            if before(program, c, call) and names_read(program.statement(c)) & names
        ]
        bounds = [
            s.slice
            for s in nodes_of(scope.node, ast.Subscript)
            if isinstance(s.slice, ast.Slice) and s.lineno > call.lineno
        ]
        heads = {ast.unparse(b.upper) for b in bounds if b.lower is None and b.upper is not None}
        tails = {ast.unparse(b.lower) for b in bounds if b.lower is not None}
        ordered = next((c for c in made if _orders(c)), None)
        if ordered is not None and heads & tails:
            yield (
                call,
                (
                    f"rows are shuffled and then cut in parts, though line {ordered.lineno} treats"
                    " them as a time series"
                ),
            )


def _orders(call: ast.Call) -> bool:
    """Whether a call only makes sense of rows in the order of time."""
    if method(call) == "sort_values":
        column = constant(keyword(call, "by", 0))
        return isinstance(column, str) and bool(TIMES & words(column))
    return method(call) in ("shift", "rolling", "ewm", "resample") and isinstance(
        receiver(call), (ast.Subscript, ast.Name, ast.Call)
    )


@rule("BH508")
def random_split_of_windows(subject: Subject) -> Iterator[Place]:
    """A random split of a data set of this file whose `__getitem__` gives `series[i : i + width]`,
    or of what a function cut so, starts closer than the width.
    """
    program = subject.program
    for call, scope, parts in splits(program):
        if last_name(call.func) != "random_split" or not parts:
            continue
        for origin in program.origins(parts[0], scope):
            owner = program.classes.get(origin.name)
            getter = program.methods[owner].get("__getitem__") if owner else None
            if owner is not None and (
                (getter is not None and _cuts_windows(getter)) or cuts_when_made(program, owner)
            ):
                yield (
                    call,
                    f"{origin.name} gives overlapping windows: neighbours land on different sides",
                )
    for node, scope, parts in random_parts(program):
        made_by = next(
            (name for part in parts[:1] if (name := cut_into_windows(program, part, scope))), ""
        )
        if made_by:
            yield node, f"{made_by} cuts overlapping windows: neighbours land on different sides"


def _cuts_windows(getter: Scope) -> bool:
    """Whether an element is a slice from the index itself to a little further."""
    index = getter.parameters[1] if len(getter.parameters) > 1 else ""
    if index in getter.bindings:
        return False  # times the width
    for node in (n for n in nodes_of(getter.node, ast.Slice) if dotted(n.lower) == index):
        bound = getter.bindings.get(node.upper.id, []) if isinstance(node.upper, ast.Name) else []
        end = bound[0].value if len(bound) == 1 else node.upper  # `middle = i + self.history`
        if isinstance(end, ast.BinOp) and isinstance(end.op, ast.Add) and index in names_read(end):
            return True
    return False
