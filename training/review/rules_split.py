"""Rules BH501: to BH504: what is learned from rows before they are split."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set

from training.review.findings import Place, Subject, rule
from training.review.learned import fitted_on_the_whole, of_each_side, of_the_whole, own_learner
from training.review.program import Program, Scope
from training.review.rules_codes import per_side
from training.review.sides import divided, given_back, of_one_side
from training.review.splitting import (
    FOLDS,
    GROUP_FOLDS,
    asked_by,
    before,
    cuts,
    indexed,
    is_part,
    line_of,
    shares_rows,
    splits,
    stored,
    values_read,
)
from training.review.syntax import (
    calls,
    constant,
    identifiers,
    last_name,
    method,
    names_read,
    nodes_of,
    receiver,
    walk,
    words,
)
from training.review.whole import (
    LABEL_WORDS,
    draws_rows,
    normalisations,
    put_together,
    rates_by_group,
    rates_of_a_helper,
    shares_of_labels,
    table_of,
)

FITTED = (
    "sklearn.preprocessing.",
    "sklearn.impute.",
    "sklearn.decomposition.",
    "sklearn.feature_selection.",
    "sklearn.feature_extraction.text.",
    "category_encoders.",
    "feature_engine.",
)
NOTHING_LEARNED = {
    "LabelEncoder", "LabelBinarizer", "MultiLabelBinarizer", "OneHotEncoder", "OrdinalEncoder",
    "Normalizer", "Binarizer", "PolynomialFeatures", "FunctionTransformer", "HashingVectorizer",
}  # fmt: skip


PIPELINES = {"make_pipeline", "Pipeline", "ColumnTransformer", "make_column_transformer"}


def fits(program: Program) -> Iterator[tuple[ast.Call, str, ast.expr]]:
    """Every fit of something that learns from rows: the call, the class, and what it learns
    from.
    """
    for call in program.methods_of("fit", "fit_transform"):
        if call.args:
            scope = program.scope(call)
            made = program.origins(receiver(call), scope)
            inner = [
                c
                for o in made
                if o.last in PIPELINES and method(call) == "fit_transform"
                for c in calls(o.call)
                if c is not o.call
            ]
            names = [*(o.name for o in made), *map(program.resolve, (c.func for c in inner))]
            learned = [
                n.rpartition(".")[2]
                for n in names
                if n.startswith(FITTED) and n.rpartition(".")[2] not in NOTHING_LEARNED
            ]
            if learned:
                yield call, learned[0], call.args[0]
            elif receiver(call) is not None and (own := own_learner(program, call)):
                yield call, own, call.args[0]


@rule("BH501")
def fit_before_split(subject: Subject) -> Iterator[Place]:
    """Something is fitted on a name, and that name, or what the fit gave, is split further down; or
    the name was split before, and a side of it is transformed.
    """
    program = subject.program
    for call, learner, rows in fits(program):
        if (
            any(is_part(n) for n in names_read(rows))
            or _is_label(rows)
            or of_one_side(program, rows)
        ):
            continue
        places = [(call, rows), *((c, c) for c in given_back(program, call))]
        for split, scope, parts in (
            *splits(program, by_group=True),
            *cuts(program),
            *divided(program),
        ):
            shared = any(
                before(program, c, split) and shares_rows(program, c, r, parts, scope, split)
                for c, r in places
            )
            fitted = method(call) == "fit" and program.scope(call) is scope
            if (
                shared
                and fitted
                and not names_read(rows)
                & behind_rows(scope, parts[:1], line_of(split), _learner(program, call))
            ):
                continue  # what learned from other rows transforms these
            if shared or (
                before(program, call, split) and indexed(program, rows, split, scope, parts)
            ):
                yield (
                    call,
                    f"{learner} learns from all rows, which are split only in line {split.lineno}",
                    scope.node if scope.name else split,
                )
                break
        else:
            sides = fitted_on_the_whole(program, call, rows)
            if sides is not None:
                yield (
                    call,
                    (
                        f"{learner} learns from all rows of {sides.table}, and transforms those of"
                        f" the sides that line {line_of(sides.node)} makes of it"
                    ),
                )


def _learner(program: Program, call: ast.Call) -> set[str]:
    """The names of what is fitted."""
    return (
        stored(program.statement(call))
        if isinstance(program.statement(call), ast.Assign)
        else set()
    ) | {last_name(receiver(call))}


def _is_label(node: ast.expr) -> bool:
    return last_name(node) in ("y", "Y", "labels", "target", "targets", "y_all")


@rule("BH502")
def fit_on_held_out(subject: Subject) -> Iterator[Place]:
    """The rows of a fit are named validation or test, or are put together of both sides; or it is
    made anew in a loop over the sides, or by a helper for each; a mean by which rows are scaled or
    filled is a fit too; or, seen in a run, held-out rows have the middle 0 and the width 1 by
    themselves.
    """
    for call in subject.program.methods_of("fit"):
        scope = subject.program.scope(call)
        if (
            last_name(receiver(call)) == "self"
            and scope.name == "transform"
            and own_learner(subject.program, call)
        ):
            yield (
                call,
                (
                    "every call of transform learns from the rows that it is given: those of each"
                    " side by themselves"
                ),
                scope.node,
            )
    for call, learner, rows in fits(subject.program):
        where = per_side(subject.program, call, rows)
        if where:
            yield call, f"{learner} is fitted anew for {where}"
            continue
        names = names_read(rows) | {last_name(rows)}
        held_out = any(
            {"test", "val", "valid", "validation", "holdout"} & words(n)
            for n in names
            if not _means_present(subject.program, n, call)
        )
        if held_out and any(
            "train" in words(n) for n in identifiers(subject.program.scope(call).node)
        ):
            yield call, f"{learner} is fitted on {ast.unparse(rows)}"
    for node, statistic, where in of_each_side(subject.program):
        yield (
            node,
            f"rows are scaled or filled by the {statistic} of their own side: anew for {where}",
        )


def _means_present(program: Program, name: str, call: ast.Call) -> bool:
    """Whether `valid` says that values are there, `train_valid` that of train rows, or `val` is the
    value beside a key.
    """
    scope = program.scope(call)
    bound = scope.bindings.get(name, ())
    present = any(
        {"isfinite", "isnan", "notna", "isna", "notnull", "dropna", "isnull"} & identifiers(b.value)
        for b in bound
    )
    paired = any(b.how == "loop" and {"items", "enumerate"} & identifiers(b.value) for b in bound)
    return present or paired or "train" in words(name)


def _tables_with(program: Program, rate: ast.Call) -> list[ast.Call]:
    """The calls of a function that stores what was made of a rate as a column of the table that it
    gives back.
    """
    scope = program.scope(rate)
    returned = {name for n in nodes_of(scope.node, ast.Return) for name in names_read(n.value)}
    stored = [
        n
        for n in nodes_of(scope.node, ast.Assign)
        if isinstance(n.targets[0], ast.Subscript) and n.lineno > rate.lineno
    ]
    mapped = any(
        last_name(n.targets[0].value) in returned
        and any(method(c) == "map" for c in calls(n.value))
        for n in stored
        if isinstance(n.targets[0], ast.Subscript)
    )
    return (
        [c for c, _ in program.call_sites[scope]]
        if mapped and not isinstance(scope.node, ast.Module)
        else []
    )


@rule("BH503")
def statistics_before_split(subject: Subject) -> Iterator[Place]:
    """Rows are bound to themselves minus their mean, or filled with it, and are split further down;
    or the statistic is one of several sides put together; or, seen in a run, columns are scaled or
    filled by numbers of all rows, are components of all rows, or ranks among them.
    """
    program = subject.program
    for call, statistic, joined in put_together(program):
        yield (
            call,
            (
                f"the {statistic} is that of {ast.unparse(joined)}: rows that are not of train are"
                " in it"
            ),
        )
    for call, statistic, sides in of_the_whole(program):
        yield (
            call,
            (
                f"the {statistic} is that of all rows of {sides.table}, and scales or fills the"
                f" sides that line {line_of(sides.node)} makes of it"
            ),
        )
    changed = [
        (s, table_of(t), how, places_of(program, s)) for s, t, _, how in normalisations(program)
    ]
    for split, scope, parts in (
        (*splits(program, by_group=True), *cuts(program), *divided(program)) if changed else ()
    ):
        behind = behind_rows(scope, parts[:1], line_of(split))
        for statement, table, how, sites in changed:
            made = {last_name(table)} if before(program, statement, split) else set()
            made |= {
                n for c in sites if before(program, c, split) for n in stored(program.statement(c))
            }
            if made & behind and not any(is_part(n) for n in values_of(parts[:1]) - made):
                told = (
                    f"{ast.unparse(table)} is changed by the {how} of all rows, which are split"
                    f" only in line {line_of(split)}"
                )
                yield statement, told, scope.node if scope.name else split


def places_of(program: Program, statement: ast.stmt) -> list[ast.Call]:
    """The calls that give back what a statement changed, where its function does not make the rows
    up itself.
    """
    return [] if draws_rows(program.scope(statement)) else given_back(program, statement)


def values_of(parts: list[ast.expr]) -> set[str]:
    """The names whose values are split."""
    return {n for part in parts for n in values_read(part)}


def behind_rows(
    scope: Scope, parts: list[ast.expr], line: int, without: Set[str] = frozenset()
) -> set[str]:
    """The names whose values are in what is split; those from which labels alone were made left
    out.
    """
    found, pending = set[str](), [(n, line) for n in values_of(parts)]
    while pending:
        name, until = pending.pop()
        if name in found:
            continue
        found.add(name)
        for binding in scope.bindings.get(name, ()):
            at, value = line_of(binding.statement), binding.value
            answers = words(name) & LABEL_WORDS or any(
                isinstance(n, ast.Compare) or method(n) in ("sigmoid", "bernoulli", "argmax")
                for n in walk(value)
            )
            if at <= until and binding.how in ("assign", "augment"):
                pending += [
                    (n, at) for n in values_read(value) - without if not answers or n == name
                ]
    return found


@rule("BH504")
def target_encoding_before_split(subject: Subject) -> Iterator[Place]:
    """A statistic of the label column by group is taken of a frame that is split further down, or
    of no part of one in a file that splits at random; or, seen in a run, a column of a table
    follows from the sum of the labels of all rows, test rows among them.
    """
    program = subject.program
    for call, table, label in (
        *rates_by_group(program),
        *rates_of_a_helper(program),
        *shares_of_labels(program),
    ):
        sites = [
            (call, table),
            *((c, c) for c in (*given_back(program, call), *_tables_with(program, call))),
        ]
        for split, scope, parts in (*splits(program, by_group=True), *divided(program)):
            at = [(split, scope, parts), *asked_by(program, split, scope, parts)]
            if any(
                before(program, c, there) and shares_rows(program, c, r, given, inside, there)
                for c, r in sites
                for there, inside, given in at
            ):
                yield (
                    call,
                    (
                        f"the {'shares' if last_name(call.func) == 'crosstab' else 'mean'} of"
                        f" {label!r} by group is taken over all rows, which are split only in line"
                        f" {line_of(split)}"
                    ),
                    scope.node if scope.name else split,
                )
                break
        else:
            if where := per_side(program, call, table):
                yield (
                    call,
                    (
                        f"the mean of {label!r} by group is taken of the labels of each side"
                        f" itself: {where}"
                    ),
                )
    yield from _encoded_in_a_helper(program)
    for split, scope, parts in splits(program):
        labels = {
            constant(n.slice) for part in parts[1:] for n in nodes_of(part, ast.Subscript)
        } | _dropped(parts[:1])
        labels |= {
            constant(b.value.slice)
            for part in parts[1:2]
            for b in scope.bindings.get(last_name(part), ())
            if isinstance(b.value, ast.Subscript)
        }
        labels = {name for name in labels if isinstance(name, str)} | {"target", "label"}
        for call in program.methods_of("transform", "mean", "agg"):
            source = receiver(call)
            if (
                constant(next(iter(call.args), None)) not in ("size", "count", "nunique")
                and not any(
                    isinstance(a, ast.Call) and last_name(a.func) == "print"
                    for a in program.ancestors(call)
                )
                and isinstance(source, ast.Subscript)
                and constant(source.slice) in labels
                and before(program, call, split)
            ):
                grouped = source.value
                if (
                    isinstance(grouped, ast.Call)
                    and method(grouped) == "groupby"
                    and not any(is_part(n) for n in names_read(grouped))
                ):
                    yield (
                        call,
                        (
                            f"the mean of {constant(source.slice)!r} by group is taken over all"
                            f" rows, which are split only in line {split.lineno}"
                        ),
                        split,
                    )


def _dropped(parts: list[ast.expr]) -> set[object]:
    return {
        constant(n)
        for part in parts
        for c in calls(part)
        if method(c) == "drop"
        for n in nodes_of(c, ast.Constant)
    }


def _encoded_in_a_helper(program: Program) -> Iterator[Place]:
    """`frame["rate"] = frame.groupby(key)[label].transform(…)` in a function that nobody gives a
    part of the rows, where rows are put in random order.
    """
    if "transform" not in program.called_names or not program.called_names & {
        "permutation",
        "randperm",
        "train_test_split",
        "random_split",
        "shuffle",
        *FOLDS,
        *GROUP_FOLDS,
    }:
        return
    labels = _dropped([*program.methods_of("drop")]) | {
        constant(c.args[0]) for c in program.methods_of("pop") if c.args
    }
    for call in program.methods_of("transform"):
        source, scope, stored = (
            receiver(call),
            program.scope(call),
            getattr(program.statement(call), "targets", []),
        )
        if not (
            isinstance(source, ast.Subscript)
            and constant(source.slice) in labels
            and isinstance(constant(source.slice), str)
        ):
            continue
        grouped, given = (
            source.value,
            [
                n
                for site, _ in program.call_sites[scope]
                for n in identifiers(program.statement(site))
            ],
        )
        whole = not any(is_part(n) for n in (*names_read(grouped), *given, scope.name)) and (
            program.call_sites[scope] or not scope.name
        )
        if (
            isinstance(grouped, ast.Call)
            and method(grouped) == "groupby"
            and whole
            and any(isinstance(t, ast.Subscript) for t in stored)
        ):
            yield (
                call,
                (
                    f"the mean of {constant(source.slice)!r} by group is taken over all rows, test"
                    " rows among them"
                ),
                scope.node if scope.name else call,
            )
