"""Rules BH510, BH524, BH527 and BH532: rows, columns and splits that do not fit together."""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

from training.review.findings import Place, Subject, rule
from training.review.lookups import attributes_of, spoken_words
from training.review.program import Program, Scope, argument
from training.review.roles import LABELS
from training.review.sides import (
    PERMUTED,
    Take,
    latest,
    origin_key,
    row_takes,
    side_of,
    takes,
    targets_of,
)
from training.review.splitting import before, cuts, is_part, shares_rows, splits, values_read
from training.review.syntax import (
    calls,
    constant,
    dotted,
    identifiers,
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
from training.review.values import number, value_of

# words
SHUFFLED_ON_PURPOSE = {
    "augment", "chance", "control", "corrupt", "corrupted", "cutmix", "getitem", "importance",
    "independent", "jitter", "marginal", "mix", "mixup", "negative", "negatives", "null",
    "permutation", "permute", "permuted", "random", "scramble", "scrambled", "test",
}  # fmt: skip
SHARED_ON_PURPOSE = {"overfit", "overfitting", "sanity", "bootstrap", "memorize", "transductive"}
SHOWN = {"plot", "trend_plot", "plt", "print", "scatter"}
NO_ROWS = {"self", "device", "dtype"}
FORECAST = {"horizon", "future", "forecast", "tomorrow", "ahead"}

SORTS = {"sort", "sorted", "msort"}
MOVES = {"sort_values", "sample", "sort_index"}  # of the rows of a table
ARRAYS = {"to_numpy", "values", "tolist", "array", "asarray", "tensor", "as_tensor", "from_numpy"}
PAIRS = {"TensorDataset", "train_test_split"}
FILLS = {"bfill", "backfill"}
BOTH_WAYS = {
    "filtfilt", "sosfiltfilt", "savgol_filter", "gaussian_filter1d", "medfilt", "median_filter",
}  # fmt: skip
CODERS = {"LabelEncoder", "OrdinalEncoder", "OneHotEncoder", "LabelBinarizer", "TargetEncoder"}
FIXED = {"reindex", "align", "CategoricalDtype", "Categorical", "set_categories", "categories"}
DISTINCT = {"set", "unique", "Counter", "most_common", "value_counts"}


@rule("BH510")
def rows_permuted_alone(subject: Subject) -> Iterator[Place]:
    """Rows get a new order, by a permutation that is used for nothing else or by a sort, and go
    with others, in a data set or a split, that were there before and keep theirs.
    """
    program = subject.program
    for scope in program.scopes:
        groups = [] if SHUFFLED_ON_PURPOSE & words(scope.name) else list(_groups(scope))
        bound = {n: [b.value for b in found] for n, found in scope.bindings.items()}
        for call in (c for c in own_nodes_of(scope.node, ast.Call) if method(c) == "sort_values"):
            array = isinstance(receiver(call), ast.Subscript) and not keyword(call, "by", 0)
            made = LABELS & {*targets_of(program, call)} if array else set()
            if made and last_name(program.parents[call]) in ARRAYS:
                yield call, f"{min(made)} is sorted alone: its rows no longer match the others"
        for name, node in _put_in_order(program, scope) if groups else ():
            reads = {n: [v for v in values if name in names_read(v)] for n, values in bound.items()}
            last = {n: max(v.lineno for v in values) for n, values in bound.items()}
            moved = {n for n in last if reads[n] and bound[n][0].lineno > node.lineno} | {name}
            older = {n for n in (*scope.parameters, *last) if last.get(n, 0) < node.lineno}
            older -= moved | NO_ROWS
            hows = {"pair", "cut"} if isinstance(node, ast.Subscript) else {"pair"}
            if last_name(getattr(node, "func", None)) in MOVES:  # a series goes by its index
                hows = {"pair", "returned"}
                older = {n for n in last if any(ARRAYS & identifiers(v) for v in reads[n])} & older
            for line, names, how in groups:
                together = line >= node.lineno and how in hows and names & moved
                if together and (left := names & older):
                    told = f"{name} gets a new order, and {min(left)}, which goes with it,"
                    yield node, f"{told} keeps the old one"
                    break


def _put_in_order(program: Program, scope: Scope) -> Iterator[tuple[str, ast.expr]]:
    """The names whose rows get a new order, and where: `x = x[order]`, `y = np.sort(y)`,
    `y.sort()`, `table = table.sample(frac=1)`, `TensorDataset(x, y[order])`.
    """
    pairs = [c for c in own_nodes_of(scope.node, ast.Call) if last_name(c.func) in PAIRS]
    made = [(last_name(a), a) for c in pairs for a in c.args if len(pairs) == 1]
    made += [(dotted(n.targets[0]), n.value) for n in scope.node.body if isinstance(n, ast.Assign)]
    done = [n.value for n in scope.node.body if isinstance(n, ast.Expr)]
    for name, value in made + [(dotted(receiver(v)), v) for v in done]:
        if isinstance(value, ast.Subscript) and values_read(value) == {name}:
            order, by = value_of(program, value.slice, scope), last_name(value.slice)
            uses = [n for n in nodes_of(scope.node, ast.Name) if n.id == by]
            if len(uses) <= 2 and last_name(getattr(order, "func", None)) in PERMUTED:
                yield name, value
        for call in (c for c in calls(value) if last_name(c.func) in SORTS | MOVES):
            if name in values_read(call):
                yield name, call


def _groups(scope: Scope) -> Iterator[tuple[int, set[str], str]]:
    """Names that go together, from which line on, and how: in a data set or split, in a tuple that
    is returned, or cut alike.
    """
    alike = defaultdict[str, list[ast.Subscript]](list)
    for node in own_nodes(scope.node):
        match node:
            case ast.Call(args=given) if last_name(node.func) in PAIRS:
                yield node.lineno, set[str]().union(*map(values_read, given)), "pair"
            case ast.Return(value=ast.Tuple() as given) if "index" not in identifiers(given):
                yield node.lineno, values_read(given), "returned"
            case ast.Subscript(slice=ast.Slice()):
                alike[ast.unparse(node.slice)].append(node)
    for same in alike.values():
        yield min(n.lineno for n in same), set[str]().union(*map(values_read, same)), "cut"


@rule("BH524")
def window_looks_ahead(subject: Subject) -> Iterator[Place]:
    """A series is smoothed with later values where a later value is the label; or gaps are filled
    from behind in a table that is split below.
    """
    program = subject.program
    yield from _label_as_feature(program)
    for call in program.calls_of("convolve", "rolling", "fillna", *FILLS, *BOTH_WAYS):
        how, scope = _looks_ahead(program, call), program.scope(call)
        where = scope.node if scope.name else call
        said = {n for t in getattr(program.statement(call), "targets", ()) for n in _said(t)}
        said |= {n for a in program.ancestors(call) for n in identifiers(getattr(a, "func", None))}
        if not how or SHOWN & said or any(LABELS & words(n) for n in said):
            continue
        if any(map(_foretells, (scope, *(s for _, s in program.call_sites[scope])))):
            told = "the feature holds later values, and a later value is the label"
            yield call, f"{how}: {told}", where
        rows = receiver(call)
        while isinstance(rows, ast.Subscript):
            rows = rows.value
        fills = last_name(call.func) in {*FILLS, "fillna"}
        filled = fills and "ffill" not in program.called_names
        if not filled or not isinstance(rows, ast.Name) or is_part(rows.id):
            continue
        for split, _, parts in (*splits(program, by_group=True), *cuts(program)):
            above = before(program, call, split)
            if above and shares_rows(program, call, rows, parts, scope, split):
                told = f"those rows may go to another split in line {split.lineno}"
                yield call, f"{how}: {told}", where


def _label_as_feature(program: Program) -> Iterator[Place]:
    """A column of later values of the label, `df["next"] = df["y"].shift(-1)`, is listed."""
    listed = {constant(e) for n in program.nodes[ast.List] for e in n.elts}
    made = [b.value for s in program.scopes for n in LABELS for b in s.bindings.get(n, ())]
    labels = {constant(n) for v in made for n in nodes_of(v, ast.Constant)}
    for call in program.methods_of("shift"):
        by, column = keyword(call, "periods", 0), getattr(receiver(call), "slice", None)
        targets = getattr(program.statement(call), "targets", ())
        stored = {constant(getattr(t, "slice", None)) for t in targets}
        back = isinstance(by, ast.UnaryOp) and isinstance(by.op, ast.USub)
        if back and constant(column) in labels - {None} and stored & listed - {None}:
            yield call, f"{constant(column)!r} is the label: that of a later row is a feature"


def _said(node: ast.AST) -> set[str]:
    """The names and the texts within."""
    return {*identifiers(node), *(str(n.value) for n in nodes_of(node, ast.Constant))}


def _looks_ahead(program: Program, call: ast.Call) -> str:
    """How a call takes later values of a series into each; empty where it does not."""
    name = last_name(call.func)
    if name == "convolve" and constant(keyword(call, "mode", 2)) == "same":
        return "a convolution of mode 'same' is centred"
    if name == "rolling" and is_true(keyword(call, "center")):
        return "the window is centred"
    if name in BOTH_WAYS and program.resolve(call.func).startswith("scipy."):
        return f"{name} runs in both directions"
    filled = name in FILLS or (name == "fillna" and constant(keyword(call, "method")) in FILLS)
    return "gaps are filled with later values" if filled else ""


def _foretells(scope: Scope) -> bool:
    """Whether a later value is read: `shift(-1)`, `x[t + horizon]`, `x[horizon:]`."""
    for node in walk(scope.node):
        if isinstance(node, ast.Call) and last_name(node.func) in ("shift", "roll"):
            by = keyword(node, "periods", 0 if method(node) == "shift" else 1)
            if isinstance(by, ast.UnaryOp) and isinstance(by.op, ast.USub):
                return True
        part = node.slice if isinstance(node, ast.Subscript) else None
        sums = [n for n in nodes_of(part, ast.BinOp) if isinstance(n.op, ast.Add)]
        start = part.lower if isinstance(part, ast.Slice) else None
        ahead = [*sums, *([start] if isinstance(start, ast.Name) else [])]
        if any(FORECAST & words(n) for a in ahead for n in identifiers(a)):
            return True
    return False


@rule("BH527")
def sides_share_rows(subject: Subject) -> Iterator[Place]:
    """Names of two splits get rows of one table by the same selection, by overlapping slices, or by
    bounds that both hold; or by two draws from the whole table.
    """
    program = subject.program
    if SHARED_ON_PURPOSE & spoken_words(program):
        return
    found = [t for t in takes(program) if t.side and not hasattr(program.parents[t.node], "elt")]
    for a, b in combinations(found, 2):  # not `[keys[i] for i in rows]`
        same = a.scope is b.scope and a.family == b.family and a.side != b.side
        if same and _key(program, a.rows) == _key(program, b.rows) and _meet(program, a, b):
            first, second = ast.unparse(a.node), ast.unparse(b.node)
            how = "the same rows" if first == second else "some rows are in both"
            yield b.node, f"{b.side} takes {second}, and {a.side} takes {first}: {how}"
    yield from _drawn_twice(program)


def _key(program: Program, node: ast.expr) -> tuple[object, ...]:
    """An expression, the block of statements around it, and where its names got their values."""
    statement, scope = program.statement(node), program.scope(node)
    above = program.parents[statement]
    names = [origin_key(program, n, scope) for n in nodes_of(node, ast.Name)]
    return ast.unparse(node), above, statement in getattr(above, "orelse", ()), *names


def _meet(program: Program, a: Take, b: Take) -> bool:
    """Whether two selections by one thing hold some rows in common."""
    slices = a.family[0] in ("slice", "cut")
    if a.member == b.member:
        return slices or _key(program, a.selector) == _key(program, b.selector)
    low, high = zip(_bounds(program, a), _bounds(program, b), strict=True)
    shares = {0 < n < 1 for n in (*low, *high) if n not in (0, math.inf)}
    meet = slices and len(shares) == 1 and max(low) < min(high)
    return meet or {a.member, b.member} == {"LtE", "GtE"}


def _bounds(program: Program, take: Take) -> tuple[float, float]:
    """The rows that a slice takes, from and to; none where its bounds are no plain numbers."""
    node = value_of(program, take.selector, take.scope)
    part = node.slice if isinstance(node, ast.Subscript) else node
    low, high = getattr(part, "lower", None), getattr(part, "upper", None)
    start, end = _bound(program, low, take, 0), _bound(program, high, take, math.inf)
    return (0, 0) if start is None or end is None or min(start, end) < 0 else (start, end)


def _bound(program: Program, node: ast.expr | None, take: Take, absent: float) -> float | None:
    """The number of a row, or a fraction of them: 0.8 of `int(0.8 * n)`."""
    match node:
        case None:
            return absent
        case ast.BinOp():
            return None  # what lies before the held-out rows may be their context
        case ast.Call(args=[ast.BinOp(left=ast.Constant(value=float(share)), op=ast.Mult())]):
            return share
    return number(program, node, take.scope)


def _drawn_twice(program: Program) -> Iterator[Place]:
    """Two draws from one table, the second not from what the first one left, of which one gives
    train rows and the other rows of a held-out split.
    """
    found: dict[tuple[object, ...], tuple[ast.Call, set[str]]] = {}
    draws: list[tuple[ast.Call, ast.expr, tuple[str, ...]]] = []
    for call in program.calls_of("sample", "train_test_split", "random_split"):
        sampled, share = method(call) == "sample", constant(keyword(call, "frac"))
        rows = receiver(call) if sampled else (*call.args, None)[0]
        if isinstance(rows, ast.Name) and not (sampled and share in (None, 1)):
            draws.append((call, rows, targets_of(program, call)))
    for taken, _, by in row_takes(program):
        bound = latest(program, by, program.scope(by)) if isinstance(by, ast.Name) else None
        drawn = bound.value if bound is not None else None
        if isinstance(drawn, ast.Call) and last_name(drawn.func) == "choice" and drawn.args[1:]:
            draws.append((drawn, drawn.args[0], targets_of(program, taken)))
    for call, rows, names in draws:
        sides = set(map(side_of, names)) - {""}
        first, known = found.setdefault((last_name(call.func), *_key(program, rows)), (call, sides))
        shared = ("train" in known and sides - known) or ("train" in sides and known - sides)
        if shared and ast.dump(first) != ast.dump(call):
            told = f"rows are drawn from all of {ast.unparse(rows)} again, independently of line"
            yield call, f"{told} {first.lineno}: some are in both draws"


@rule("BH532")
def codes_made_anew_per_side(subject: Subject) -> Iterator[Place]:
    """Categories are numbered by what occurs in train rows and by what occurs in others: next to
    each other, in a loop over both, or by a function that is called for both.
    """
    program = subject.program
    uses = defaultdict[object, list[tuple[ast.expr, ast.expr]]](list)
    for node, rows in _codes(program) if not FIXED & program.identifiers else ():
        scope, behind = program.scope(node), names_read(rows)
        for _ in range(5):  # names back
            bound = [b.value for n in behind for b in scope.bindings.get(n, ())]
            behind = behind.union(*map(names_read, bound))
        around = [a for a in program.ancestors(node) if isinstance(a, (ast.If, ast.IfExp))]
        asked = {n for a in around for n in names_read(a.test)} & set(scope.parameters) - behind
        given_back = [r.value for r in own_nodes_of(scope.node, ast.Return)]
        returned = {n for value in given_back for n in names_read(value)}
        plain = isinstance(node, ast.DictComp) and isinstance(program.parents[node], ast.stmt)
        numbers = {*targets_of(program, node)} if plain else {last_name(node)} - {""}
        numbering = isinstance(node, (ast.DictComp, ast.Subscript))
        alone = numbering and (node in given_back or numbers & {*map(last_name, given_back)})
        lent = last_name(receiver(node)) in returned  # an encoder serves other splits
        if asked or lent or any(LABELS & words(n) for n in _said(rows)):
            continue
        uses[scope] += [(node, e) for e in _in_turn(program, rows)]
        for key, given in _given(program, scope, behind):
            if not alone or isinstance(program.parents[program.parents[given]], ast.Call):
                uses[node, key] += [(node, e) for e in _in_turn(program, given)]
    for same in uses.values():
        for (_, a), (node, b) in combinations(same, 2):
            (whole, part), (other, rest) = _part(program, a), _part(program, b)
            if whole is not None and whole == other and part != rest:
                both = f"{ast.unparse(a)} and {ast.unparse(b)}"
                yield node, f"the categories of {both} are encoded separately"


def _codes(program: Program) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Every numbering of categories, and of which rows."""
    for call in program.calls_of("fit", "fit_transform", "get_dummies", "factorize", "unique"):
        of = receiver(call)
        coders = [o.call for o in program.origins(of, program.scope(call)) if o.last in CODERS]
        plain = last_name(call.func) in ("get_dummies", "factorize")
        if plain or is_true(keyword(call, "return_inverse")):
            yield call, (*call.args, of or call)[0]
        elif coders and call.args and not keyword(coders[0], "categories"):
            yield call, call.args[0]
    for node in attributes_of(program, "codes"):
        column = receiver(getattr(node.value, "value", None))
        if last_name(node.value) == "cat" and column is not None:
            yield node, column
    for count in program.calls_of("len"):  # `number[word] = len(number)`
        entry = getattr(program.parents[count], "targets", [None])[0]
        if isinstance(entry, ast.Subscript) and dotted(entry.value) in map(dotted, count.args):
            yield entry, entry.slice
    for pairs in program.calls_of("zip"):  # `dict(zip(names, range(len(names))))`
        numbered = [last_name(getattr(a, "func", None)) for a in pairs.args] == ["", "range"]
        if numbered and last_name(getattr(program.parents[pairs], "func", None)) == "dict":
            yield pairs, pairs.args[0]
    for numbers in program.nodes[ast.DictComp]:
        over, scope = numbers.generators[0].iter, program.scope(numbers)
        values = [over, *(b.value for n in names_read(over) for b in scope.bindings.get(n, ()))]
        distinct = any(DISTINCT & identifiers(v) or nodes_of(v, ast.SetComp) for v in values)
        if last_name(getattr(over, "func", None)) == "enumerate" and distinct:
            yield numbers, over


def _in_turn(program: Program, rows: ast.expr) -> list[ast.expr]:
    """What some rows are in turn, in a loop over train rows and others; else themselves."""
    for around in program.ancestors(rows):
        for loop in (around, *getattr(around, "generators", ())):
            over = getattr(loop, "iter", None)
            held = receiver(over) if method(over) in ("items", "values") else over
            made = value_of(program, held, program.scope(rows)) if held is not None else None
            elements = getattr(made, "elts", None) or getattr(made, "values", None)
            if elements and names_read(loop.target) & _said(rows):
                return list(elements)
    return [rows]


def _given(
    program: Program, scope: Scope, names: set[str], depth: int = 0
) -> Iterator[tuple[object, ast.expr]]:
    """What callers, and their callers, pass by these names, and next to which literals."""
    for name in sorted(names & set(scope.parameters)):
        for call, caller in program.call_sites[scope]:
            others = [*call.args, *(k.value for k in call.keywords)]
            key = scope, name, str([a.value for a in others if isinstance(a, ast.Constant)])
            if (given := argument(call, scope, name)) is not None and depth < 3:
                yield key, given
                yield from _given(program, caller, names_read(given), depth + 1)


def _part(program: Program, rows: ast.expr) -> tuple[object, object]:
    """Of what some rows are a part, and which: of one table that was split or cut, or by the names
    of splits.
    """
    bound = latest(program, rows, program.scope(rows)) if isinstance(rows, ast.Name) else None
    if bound is not None and any(call is bound.value for call, _, _ in splits(program)):
        return bound.value, (bound.index or 0) % 2
    sides = {side_of(n) for n in names_read(rows)} - {""}
    if len(sides) == 1:
        return "sides", "train" in sides
    made: ast.expr | None = rows if bound is None else bound.value
    made = receiver(made) if method(made) in ("reset_index", "copy") else made
    take = next((t for t in takes(program) if t.node is made), None)
    if take is None:
        return None, ""
    test, table = take.selector, ast.dump(take.rows)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq):
        return (table, ast.dump(test.left)), ast.dump(test.comparators[0])
    return (table, take.family), take.member
