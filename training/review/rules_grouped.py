"""Rules BH530 and BH531: splits by group that keep nothing together, or whose groups the network is told."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.owners import KEPT_TOGETHER
from training.review.program import Program, Scope
from training.review.sides import column_of, latest, reads_in, takes, targets_of, trivial_groups
from training.review.splitting import GROUP_FOLDS, line_of, splits
from training.review.syntax import constant, identifiers, keyword, last_name, method, receiver, walk, words

NO_FEATURES = {"meta", "id", "ids", "key", "keys", "group", "groups", "index", "raw", "use", "usecols", "info", "keep", "read", "all"}
ARRAYS = {
    "column_stack",
    "hstack",
    "concatenate",
    "to_numpy",
    "values",
    "fit",
    "fit_transform",
    "transform",
    "tensor",
    "as_tensor",
    "from_numpy",
    "array",
    "asarray",
    "FloatTensor",
}
PASSES = {"astype", "fillna", "copy", "iloc", "loc", "to_numpy", "values"}


def group_splits(program: Program) -> Iterator[tuple[ast.Call, Scope, ast.expr]]:
    """Every split by groups: the call, its scope, and the groups."""
    for call, scope, _ in splits(program, by_group=True):
        groups = keyword(call, "groups", 2) if method(call) == "split" else None
        if groups is not None and any(o.last in GROUP_FOLDS for o in program.origins(receiver(call), scope)):
            yield call, scope, groups


@rule(
    "BH530",
    "every-row-its-own-group",
    "error",
    title="Each row is a group of its own",
    why="Numbers of rows differ from row to row: the split by group keeps nothing together, and rows of one patient land on both sides after all.",
    remedy="give the column that says which rows belong together: `groups=frame['patient']`",
    bad="""
        from sklearn.model_selection import GroupShuffleSplit

        def sides(visits):
            splitter = GroupShuffleSplit(n_splits=1, test_size=0.2, random_state=0)
            a, b = next(splitter.split(visits, groups=visits.index))
            return visits.iloc[a], visits.iloc[b]
        """,
    good="""
        from sklearn.model_selection import GroupShuffleSplit

        def sides(visits):
            splitter = GroupShuffleSplit(n_splits=1, test_size=0.2, random_state=0)
            a, b = next(splitter.split(visits, groups=visits["patient"]))
            return visits.iloc[a], visits.iloc[b]
        """,
)
def every_row_its_own_group(subject: Subject) -> Iterator[Place]:
    """The groups of a split are the numbers of the rows, or the index of a table that no column was made the index of."""
    program = subject.program
    if not splits(program, by_group=True):
        return
    if {"set_index", "index_col", "MultiIndex", "explode", "melt", "read_parquet", "read_pickle", "read_feather"} & (
        program.identifiers | {k.arg for c in program.all_calls for k in c.keywords}
    ):
        return
    if any(keyword(c, "index") is not None for c in program.calls_of("DataFrame", "Series")):
        return
    for _, scope, groups in group_splits(program):
        if trivial_groups(program, groups, scope):
            yield groups, f"{ast.unparse(groups)} gives each row a group of its own"


@rule(
    "BH531",
    "group-is-a-feature",
    "warning",
    title="The column that names the groups is a feature",
    why="The split keeps new patients apart, and the network learns the numbers of known ones: in train they give the answer away, for new ones they mean nothing.",
    remedy="leave the column out of the features",
    bad="""
        import torch
        from sklearn.model_selection import GroupShuffleSplit

        FEATURES = ["patient", "age", "dose"]

        def sides(visits):
            a, b = next(GroupShuffleSplit(1, random_state=0).split(visits, groups=visits["patient"]))
            x = torch.tensor(visits[FEATURES].to_numpy())
            return x[a], x[b]
        """,
    good="""
        import torch
        from sklearn.model_selection import GroupShuffleSplit

        FEATURES = ["age", "dose"]

        def sides(visits):
            a, b = next(GroupShuffleSplit(1, random_state=0).split(visits, groups=visits["patient"]))
            x = torch.tensor(visits[FEATURES].to_numpy())
            return x[a], x[b]
        """,
)
def group_is_a_feature(subject: Subject) -> Iterator[Place]:
    """The columns that become an array hold the one that a split takes its groups from, or all columns but some do, of which it is none."""
    program = subject.program
    by_value = ((t.node, t.scope, column) for t in takes(program) if (column := column_of(t)) is not None)
    for call, scope, groups in (*group_splits(program), *by_value):
        key = _column(groups, program, scope)
        if not key or not (words(key) & KEPT_TOGETHER or isinstance(call, ast.Call)):
            continue
        left_out = {str(constant(n)) for c in program.methods_of("drop", "pop", "difference") for n in walk(c) if isinstance(n, ast.Constant)}
        for node in program.nodes[ast.Subscript]:
            if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load) or not _becomes_array(program, node):
                continue
            listed = _listed(program, node.slice)
            kept = {w for n in (last_name(node.slice), *targets_of(program, node)) for w in words(n)} & NO_FEATURES
            if listed is not None and _holds(listed, key) and not kept and key not in left_out:
                yield node, f"{key!r} names the groups of the split in line {line_of(call)}, and is among {ast.unparse(node.slice)}"
                break


def _column(groups: ast.expr, program: Program, scope: Scope) -> str:
    """The name of the column that says the groups."""
    for _ in range(3):
        if isinstance(groups, ast.Call) and method(groups) in ("to_numpy", "astype") and (of := receiver(groups)) is not None:
            groups = of
        if isinstance(groups, ast.Attribute) and groups.attr == "values":
            groups = groups.value
        if isinstance(groups, ast.Name) and (bound := latest(program, groups, scope)) is not None and bound.index is None:
            groups = bound.value
    if isinstance(groups, ast.Attribute) and isinstance(groups.value, ast.Name) and groups.value.id != "self":  # a column of a table, as `rows.person`
        return groups.attr
    return str(constant(groups.slice)) if isinstance(groups, ast.Subscript) and isinstance(constant(groups.slice), str) else ""


def _listed(program: Program, columns: ast.expr) -> ast.expr | None:
    """A list of columns, written there or bound once to the name that stands there."""
    if isinstance(columns, (ast.Name, ast.Attribute)):
        bound = program.bindings_of(columns, program.scope(columns))
        columns = bound[0].value if len(bound) == 1 and bound[0].index is None else columns
    return columns if isinstance(columns, (ast.List, ast.Tuple, ast.ListComp)) else None


def _holds(listed: ast.expr, key: str) -> bool:
    """Whether a column is in a list, or is not left out of all columns."""
    if isinstance(listed, (ast.List, ast.Tuple)):
        return len(listed.elts) > 1 and any(constant(e) == key for e in listed.elts)
    if not isinstance(listed, ast.ListComp) or len(listed.generators) != 1:
        return False
    loop = listed.generators[0]
    over_all = isinstance(loop.iter, ast.Attribute) and loop.iter.attr == "columns"
    plain = len(loop.ifs) == 1 and isinstance(loop.ifs[0], ast.Compare) and isinstance(loop.ifs[0].ops[0], (ast.NotIn, ast.NotEq))
    literal = plain and identifiers(loop.ifs[0]) == identifiers(loop.target)
    return over_all and literal and isinstance(listed.elt, ast.Name) and key not in {constant(n) for n in walk(loop.ifs[0])}


def _becomes_array(program: Program, node: ast.expr, followed: bool = False) -> bool:
    """Whether columns are made an array, or learned from; scaled, put beside others or under a name before, perhaps."""
    child: ast.AST = node
    parent = program.parents[child]
    while (
        isinstance(parent, ast.Attribute)
        or (isinstance(parent, ast.Call) and parent.func is child)
        or (isinstance(parent, ast.Subscript) and parent.value is child)
    ):
        if isinstance(parent, ast.Attribute):
            if parent.attr in ("to_numpy", "values"):
                return True
            if parent.attr not in PASSES:
                return False
        child, parent = parent, program.parents[parent]
    while isinstance(parent, (ast.BinOp, ast.List, ast.Tuple)):
        child, parent = parent, program.parents[parent]
    if isinstance(parent, ast.Assign) and not followed and isinstance(parent.targets[0], ast.Name):
        name, scope = parent.targets[0].id, program.scope(node)
        return any(_becomes_array(program, n, followed=True) for n in reads_in(scope, name))
    return isinstance(parent, ast.Call) and child in parent.args and last_name(parent.func) in ARRAYS
