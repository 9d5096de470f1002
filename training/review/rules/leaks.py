"""Rules BH501 to BH504 and BH523: what is learned from rows before they are split."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope, argument
from training.review.roles import LABELS
from training.review.sides import divided, given_back, latest, of_one_side, side_of, targets_of
from training.review.splitting import (
    before,
    cuts,
    is_part,
    line_of,
    sources_of,
    splits,
    values_read,
)
from training.review.syntax import (
    LOOPS,
    calls,
    constant,
    entry,
    keyword,
    last_name,
    method,
    names_read,
    once,
    receiver,
    walk,
    words,
)

Split = tuple[ast.expr, Scope, list[ast.expr]]

# words

LEARNERS = re.compile(
    r"(sklearn\.(preprocessing|impute|decomposition|feature_\w+)|category_encoders|feature_engine)\."
)
LEARN_NOTHING = {
    "LabelEncoder", "LabelBinarizer", "MultiLabelBinarizer", "OneHotEncoder", "OrdinalEncoder",
    "Normalizer", "Binarizer", "PolynomialFeatures", "FunctionTransformer", "HashingVectorizer",
}  # fmt: skip
PIPELINES = {"make_pipeline", "Pipeline", "ColumnTransformer", "make_column_transformer"}
CENTRES = {"mean", "min", "median", "nanmean", "nanmedian", "mode"}
JOINS = {"concat", "concatenate", "vstack", "cat"}
MAY_MEAN_PRESENT = {"valid", "val"}  # values that are there, or the value next to a key
COUNTS = {"size", "count", "nunique"}


@once
def every_split(program: Program) -> list[Split]:
    """Every place where rows of a table go to different splits."""
    return [*splits(program, by_group=True), *cuts(program), *divided(program)]


def leaks(
    program: Program, node: ast.expr, rows: ast.expr, names: set[str], told: str, among: list[Split]
) -> Iterator[Place]:
    """The place of what is computed from all rows, if what has these names is split afterwards."""
    if any(is_part(n) for n in names_read(rows)) or of_one_side(program, rows):
        return
    sites = [(node, names)]
    for call in given_back(program, node):
        above = program.ancestors(call)  # in a loop a single row is given back
        if not any(isinstance(a, LOOPS) or hasattr(a, "generators") for a in above):
            sites.append((call, {*targets_of(program, call)}))
    for split, scope, parts in among:
        line, read = line_of(split), values_read(parts[0]) if parts else set()
        behind = {b for n in read for b in sources_of(n, scope, line, numbers=False)}
        sides = any(is_part(n) for n in read - names)
        if not sides and any(before(program, at, split) and of & behind for at, of in sites):
            region = scope.node if scope.name else split
            yield node, f"{told}, before the split in line {line}", region
            return


def for_each_side(program: Program, node: ast.expr, rows: ast.expr) -> str:
    """The splits for which an expression runs again, in a loop or by the calls of its function."""
    scope, above = program.scope(node), program.ancestors(node)
    given: list[ast.expr | None] = []
    for loop in (g for a in above for g in getattr(a, "generators", [a])):
        over = getattr(loop, "iter", None)
        if isinstance(over, ast.Call):  # `{…}.items()`, `enumerate([…])`
            over = over.args[0] if over.args else receiver(over)
        if over is not None and names_read(loop.target) & names_read(rows):
            given += getattr(over, "elts", getattr(over, "values", []))
    for name in values_read(rows) & set(scope.parameters) - {"self"} - scope.bindings.keys():
        given += [argument(call, scope, name) for call, _ in program.call_sites[scope]]
    sides = {side_of(n): ast.unparse(e) for e in given if e is not None for n in names_read(e)}
    held = [sides[s] for s in ("val", "test") if s in sides]
    if "train" not in sides or any(isinstance(a, (ast.If, ast.IfExp)) for a in above):
        return ""  # `if train: scaler.fit(rows)`
    return " and ".join([sides["train"], *held]) if held else ""


def fits(program: Program) -> Iterator[tuple[ast.expr, str, ast.expr]]:
    """Every fit of what learns from rows: the call, the class, and the rows."""
    for call in program.methods_of("fit", "fit_transform"):
        made = program.origins(receiver(call), program.scope(call)) if call.args else ()
        names = [o.name for o in made]
        for pipeline in (o for o in made if o.last in PIPELINES and method(call) != "fit"):
            names += [program.resolve(c.func) for c in calls(pipeline.call)]
        learners = [n.rpartition(".")[2] for n in names if LEARNERS.match(n)]
        yield from ((call, name, call.args[0]) for name in learners if name not in LEARN_NOTHING)


@once
def centrings(program: Program) -> list[tuple[ast.expr, ast.expr, ast.expr, str]]:
    """`rows - of.mean(0)` and `rows.fillna(of.mean())`: the whole, `rows`, `of`, and `mean`."""
    pairs = [(n, n.left, n.right) for n in program.nodes[ast.BinOp] if isinstance(n.op, ast.Sub)]
    filled = [c for c in program.methods_of("fillna") if c.args]
    found = []
    for node, rows, by in [*pairs, *((c, receiver(c), c.args[0]) for c in filled)]:
        name = by.value if isinstance(by, ast.Subscript) else by  # `means["dose"]`
        bound = latest(program, name, program.scope(node)) if isinstance(name, ast.Name) else None
        call = bound.value if bound and bound.index is None else by
        if rows is None or not isinstance(call, ast.Call) or last_name(call.func) not in CENTRES:
            continue
        given = call.args if program.resolve(call.func) else [receiver(call), *call.args]
        of, third = (*given, None, None)[:2]
        axis = keyword(call, "axis") or keyword(call, "dim") or third
        axes = [constant(a) for a in getattr(axis, "elts", [axis])]
        if of is not None and (axis is None or 0 in axes):
            found.append((node, rows, of, last_name(call.func)))
    return found


@rule("BH501")
def fit_before_split(subject: Subject) -> Iterator[Place]:
    """Something is fitted on rows that are split afterwards, or on a table next to its splits."""
    program = subject.program
    for call, learner, rows in fits(program):
        made, scope = {*targets_of(program, call)}, program.scope(call)
        fed = {
            b
            for c in program.methods_of("transform")
            if last_name(receiver(c)) in made | {last_name(receiver(call))}
            and line_of(c) >= line_of(call)
            for n in (n for a in c.args for n in names_read(a))
            for b in sources_of(n, scope, line_of(c) - 1)
        }
        names = names_read(rows) & fed if method(call) == "fit" else names_read(rows) | made
        told = f"{learner} learns from all rows"
        if not words(last_name(rows)) & LABELS:
            yield from leaks(program, call, rows, names, told, every_split(program))
        for split, _, parts in splits(program):
            of = {n for part in parts[:1] for n in values_read(part)} & values_read(rows)
            if before(program, split, call) and of and fed & {*targets_of(program, split)}:
                yield call, f"{told}, and transforms splits of line {line_of(split)}"


@rule("BH502")
def fit_on_held_out(subject: Subject) -> Iterator[Place]:
    """Something is fitted on held-out rows, or again for each split; a mean is a fit as well."""
    program = subject.program
    trains = any(side_of(n) == "train" for n in program.identifiers)
    learned = [(n, f"{name} is fitted", rows) for n, name, rows in fits(program)]
    for node, rows, of, name in centrings(program):
        scaled = method(node) or isinstance(program.parents[node], ast.BinOp)  # divided, too
        if ast.dump(rows) == ast.dump(of) and scaled and not words(last_name(rows)) & LABELS:
            learned.append((node, f"the {name} by which rows are centred is taken", rows))
    for node, told, rows in learned:
        sides = {side_of(n) for n in names_read(rows) - MAY_MEAN_PRESENT} - {""}
        if where := for_each_side(program, node, rows):
            yield node, f"{told} again for {where}"
        elif trains and sides in ({"val"}, {"test"}):
            yield node, f"{told} on {ast.unparse(rows)}"
    for call in program.methods_of("fit"):
        scope, alone = program.scope(call), not program.ancestors(program.statement(call))
        if last_name(receiver(call)) == "self" and scope.name == "transform" and alone:
            yield call, "every call of transform learns from the rows that it is given", scope.node


@rule("BH503")
def statistics_before_split(subject: Subject) -> Iterator[Place]:
    """Rows are centred or filled by a statistic of all, and split afterwards or put together."""
    program = subject.program
    for node, rows, of, name in centrings(program):
        bound = latest(program, of, program.scope(node)) if isinstance(of, ast.Name) else None
        joined = bound.value if bound is not None else of
        parts = joined.args if isinstance(joined, ast.Call) else []
        sides = {side_of(n) for p in parts for n in names_read(p)}
        if {"train", "test"} <= sides and last_name(getattr(joined, "func", None)) in JOINS:
            yield node, f"the {name} is that of {ast.unparse(joined)}: held-out rows are in it"
        elif ast.dump(of) == ast.dump(rows):
            made = {*targets_of(program, node)}
            told = f"{ast.unparse(rows)} is changed by the {name} of all rows"
            yield from leaks(program, node, rows, made, told, every_split(program))


@once
def label_columns(program: Program) -> set[object]:
    """Names of columns that are the label: split as labels, taken out, or kept under its name."""
    found: set[object] = {"target", "label"}
    for node in program.nodes[ast.Subscript]:
        compared = any(isinstance(a, ast.Compare) for a in program.ancestors(node))
        if not compared and LABELS & {w for n in targets_of(program, node) for w in words(n)}:
            found.add(constant(node.slice))
    for _, _, parts in splits(program, by_group=True):
        found |= {constant(p.slice) for p in parts[1:] if isinstance(p, ast.Subscript)}
    return found | {constant(a) for c in program.methods_of("pop") for a in c.args[:1]}


@rule("BH504")
def target_encoding_before_split(subject: Subject) -> Iterator[Place]:
    """The mean label by group becomes a column of a table that is split afterwards, or a split."""
    program = subject.program
    for call in program.methods_of("transform", "mean", "agg"):
        of = receiver(call)
        grouped, label = getattr(of, "value", None), entry(of)
        table = receiver(grouped) if method(grouped) == "groupby" else None
        counted = any(constant(a) in COUNTS for a in call.args)
        if table is None or counted or label not in label_columns(program):
            continue
        made = {*targets_of(program, call)}
        targets = getattr(program.statement(call), "targets", [])
        placed: list[ast.expr] = [t for t in targets if isinstance(t, ast.Subscript)]
        for by in program.methods_of("map", "merge", "join", "assign"):
            placed += [by] if call in walk(by) or made & names_read(by) else []
        told, names = f"the mean of {label!r} by group is taken over", made | names_read(table)
        if placed and (where := for_each_side(program, call, table)):
            yield call, f"{told} the labels of each split itself: {where}"
        elif placed:
            yield from leaks(program, call, table, names, f"{told} all rows", every_split(program))


@rule("BH523")
def columns_chosen_before_split(subject: Subject) -> Iterator[Place]:
    """Columns are taken by numbers that were computed from rows and labels which are split then."""
    program = subject.program
    taken: list[tuple[ast.expr, ast.expr, ast.expr]] = [
        (n, n.value, n.slice.elts[1])
        for n in program.nodes[ast.Subscript]
        if isinstance(n.slice, ast.Tuple) and [ast.unparse(e) for e in n.slice.elts[:-1]] == [":"]
    ]
    chosen = [c for c in program.methods_of("index_select") if constant(keyword(c, "dim", 0)) == 1]
    taken += [(c, of, c.args[1]) for c in chosen if len(c.args) > 1 and (of := receiver(c))]
    for node, rows, numbers in taken:
        scope, line, statement = program.scope(node), line_of(node), program.statement(node)
        computed = {b for n in names_read(numbers) for b in sources_of(n, scope, line)}
        own = {b for n in names_read(rows) for b in sources_of(n, scope, line - 1)}
        for split in every_split(program) if computed & own else ():
            beside = {n for part in split[2] for n in names_read(part)} - names_read(numbers)
            labels = {n for n in computed - own if words(n) & LABELS or n in beside}
            told = f"the columns are selected by {min(labels, default='')!r} of all rows"
            if not labels or any(is_part(n) for n in computed):
                continue
            if statement is program.statement(split[0]):
                yield node, f"{told}, which are split here"
            yield from leaks(program, node, rows, own, told, [split])
