"""Rules BH505 to BH508, BH537, BH543 and BH545: tables split wrongly, rows with wrong labels."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to, keywords_of
from training.review.program import Program, Scope
from training.review.roles import LABELS
from training.review.rules.leaks import JOINS, Split, label_columns, leaks
from training.review.sides import dividing, divisions, is_random_order, targets_of, trivial_groups
from training.review.splitting import asked_by, before, line_of, shuffled_cuts, sources_of, splits
from training.review.syntax import (
    calls,
    constant,
    dotted,
    entry,
    identifiers,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    receiver,
    walk,
    words,
)
from training.review.values import loss_kinds, number

# words
GROUPS = {
    "patient", "subject", "user", "customer", "client", "speaker", "writer", "session", "household",
    "person", "participant", "student", "player",
}  # fmt: skip
ONE_ROW_EACH = {"customer", "client"}  # in a table of these
NUMBERS = {"id", "no", "nbr", "key", "code"}
TIMES = {"date", "time", "timestamp", "datetime", "day", "month", "year", "week"}
MASKS = {"mask", "masks", "label", "labels", "seg", "segmentation", "annotation", "annotations"}
SOFT = {"scores", "logits", "score", "probs", "probabilities", "alpha", "matte", "soft"}

MOVES = {"flip", "fliplr", "flipud", "roll", "rot90", "hflip", "vflip"}
BY_GROUP = {"isin", "in1d", "set", "unique", "is_unique", "drop_duplicates", "ratings", "groups"}
FIRSTS = {"agg", "first", "last", "head", "tail", "mean", "max", "min", "nth"}
IN_ORDER = {"shift", "rolling", "ewm", "resample"}
REWRAPPED = {
    "from_numpy", "tensor", "as_tensor", "array", "asarray", "float", "astype", "to_numpy", "copy",
    "reset_index", "fillna", "FloatTensor", "LongTensor", "long", "fit_transform", "transform",
}  # fmt: skip
BY_ROW = {"sample", "dropna", "drop_duplicates", "sort_values", "query", "sort_index"}
PAIRS = {"train_test_split", "TensorDataset", "fit", "zip"}
BLENDS = {"bilinear", "bicubic", "linear", "trilinear"}
DECIDED = {"gt", "ge", "lt", "le", "argmax", "max", "softmax", "sigmoid"}
WHOLE = {"long", "int", "short", "byte"}
RESIZE = "torchvision.transforms.functional.resize"


@rule("BH505")
def resample_before_split(subject: Subject) -> Iterator[Place]:
    """Rows are drawn again, or copies of some are added to all of them, and split afterwards."""
    program = subject.program
    kept = [(d.node, d.scope, d.parts) for d in divisions(program) if d.groups is None]
    for call, rows in _resampled(program):
        made, told = {*targets_of(program, call)}, "rows are resampled here"
        yield from leaks(program, call, rows, made, told, [*splits(program), *kept])


def _resampled(program: Program) -> Iterator[tuple[ast.Call, ast.expr]]:
    """The calls that give rows several times, or new ones made of them, and the rows."""
    drawn = [c for c in program.methods_of("sample") if constant(keyword(c, "replace")) is True]
    yield from ((c, of) for c in drawn if (of := receiver(c)) is not None)
    made = [*program.methods_of("fit_resample"), *calls_to(program, "sklearn.utils.resample")]
    yield from ((c, c.args[0]) for c in made if c.args)
    for call in program.calls_of(*JOINS):
        names = [n for a in call.args[:1] for n in nodes_of(a, ast.Name)]
        parts = [b.value for n in names for b in program.bindings_of(n, program.scope(call))]
        parts += [n for a in call.args[:1] for n in walk(a) if isinstance(n, ast.expr)]
        copied = set()
        for part in parts:
            if isinstance(part, ast.Subscript) and isinstance(part.slice, (ast.Compare, ast.Tuple)):
                copied.add(last_name(part.value))
            elif isinstance(part, ast.Call) and last_name(part.func) in MOVES:
                copied |= {last_name(g) for g in (receiver(part), *part.args[:1])}
        listed = [n for n in names if isinstance(program.parents[n], (ast.List, ast.Tuple))]
        if constant(keyword(call, "axis", 1) or keyword(call, "dim")) in (None, 0):
            yield from ((call, n) for n in listed if n.id in copied)


@rule("BH506")
def random_split_of_groups(subject: Subject) -> Iterator[Place]:
    """A table with a column like `patient_id`, or of repeated patients, is split by row."""
    program = subject.program
    yield from _grouped_elsewhere(program)
    by_group = any("group" in n.lower() and n != "groupby" for n in program.called_names)
    if by_group or BY_GROUP & program.identifiers:
        return
    for split, scope, parts in (*splits(program), *shuffled_cuts(program)):
        table = last_name(getattr(split, "func", None)) not in ("", "random_split")
        for at, inside, given in [(split, scope, parts), *asked_by(program, split, scope, parts)]:
            read = {n for part in given for n in names_read(part)}
            frames = {b for n in read for b in sources_of(n, inside, line_of(at))}
            made = [c for n in frames for b in inside.bindings.get(n, ()) for c in calls(b.value)]
            makers = {program.callees_by_name(c, inside) for c in made}
            for name, node in _people(program, table):
                statement = program.statement(node)
                beside = before(program, node, at) or statement is program.statement(at)
                about = beside and names_read(statement) & frames
                if program.scope(node) in makers or about:
                    told = f"{name!r} (line {line_of(node)}) says that several rows belong together"
                    yield split, f"rows are split at random, though {told}"
                    break


def _people(program: Program, numbered: bool) -> Iterator[tuple[str, ast.expr]]:
    """Names of people who are repeated, and columns such as `patient_id`; not with one row each."""
    for call in program.calls_of("repeat", "repeat_interleave"):
        above, names = program.parents[call], [*targets_of(program, call)]
        if isinstance(above, ast.Dict) and call in above.values:
            names = [str(constant(above.keys[above.values.index(call)]))]
        yield from ((n, call) for n in names[:1] if words(n) & GROUPS)
    looked = {"duplicated", "value_counts", "groupby", "nunique"} & program.called_names
    firsts = [c for c in program.methods_of(*FIRSTS) if "groupby" in identifiers(c)]
    once = {constant(n) for c in firsts for n in nodes_of(c, ast.Constant)}
    for node in program.nodes[ast.Constant] if numbered else ():
        name = node.value if isinstance(node.value, str) and node.value.isidentifier() else ""
        person = words(name) & GROUPS - (set() if looked else ONE_ROW_EACH)
        if person and words(name) & NUMBERS and name not in once:
            yield name, node


def _grouped_elsewhere(program: Program) -> Iterator[Place]:
    """Rows are split at random, and one part of them by a group; or the reverse."""
    for other, scope, others in splits(program, by_group=True):
        groups = keyword(other, "groups", 2) if method(other) == "split" else None
        if groups is None or trivial_groups(program, groups, scope):
            continue
        for split in (s for s in splits(program) if s[1] is scope and s[0] is not other):
            first, last = sorted([split, (other, scope, others)], key=lambda s: line_of(s[0]))
            read = {n for part in last[2][:1] for n in names_read(part)}
            behind = {b for n in read for b in sources_of(n, scope, line_of(last[0]))}
            rows = {n for part in first[2][:1] for n in names_read(part)} & behind
            if rows and {*targets_of(program, first[0])} & behind:
                told = f"though line {line_of(other)} keeps them together by {ast.unparse(groups)}"
                yield split[0], f"rows are split at random, {told}"


@rule("BH507")
def random_split_of_time(subject: Subject) -> Iterator[Place]:
    """Rows that are shifted, rolled or sorted by time are shuffled, and split or cut."""
    program = subject.program
    if {"TimeSeriesSplit", "drop_duplicates", "groups"} & program.identifiers:
        return
    for call in program.calls_of("train_test_split", "sample"):
        below = [n for n in program.nodes[ast.Subscript] if before(program, call, n)]
        ranges = {ast.unparse(n.slice) for n in below}
        own = program.resolve(call.func).startswith("sklearn.")
        shuffled = own and constant(keyword(call, "shuffle")) is not False
        if method(call) == "sample":  # and `rows[:n]`, `rows[n:]`
            cut = any(f"{r[1:]}:" in ranges for r in ranges if r.startswith(":"))
            shuffled = cut and constant(keyword(call, "frac")) == 1
        read = names_read(call) if shuffled else set()
        frames = {b for n in read for b in sources_of(n, program.scope(call), line_of(call))}
        for node in (c for c in program.all_calls if frames and before(program, c, call)):
            by = constant(keyword(node, "by", 0)) if method(node) == "sort_values" else None
            sorted_ = isinstance(by, str) and words(by) & TIMES
            in_order = method(node) in IN_ORDER and not program.resolve(node.func)
            if (sorted_ or in_order) and names_read(program.statement(node)) & frames:
                told = f"though line {line_of(node)} treats them as a time series"
                yield call, f"rows are shuffled, {told}"
                break


@rule("BH508")
def random_split_of_windows(subject: Subject) -> Iterator[Place]:
    """Slices of a series that begin closer together than they are long are split at random."""
    program = subject.program
    found: list[Split] = list(splits(program))
    for members in dividing(program):
        (kind, key), first = members[0].family, members[0]
        if kind == "slice" and is_random_order(program, str(key), first.scope):
            found.append((first.node, first.scope, [first.rows]))
    for split, scope, parts in found:
        for at, inside, given in [(split, scope, parts), *asked_by(program, split, scope, parts)]:
            if given and (maker := _window_maker(program, given[0], inside, line_of(at))):
                told = "cuts overlapping windows: neighbours land in different splits"
                yield split, f"{maker} {told}"
                break


def _window_maker(program: Program, rows: ast.expr, scope: Scope, line: int) -> str:
    """What cut rows into overlapping windows: a function or class of this file, or a loop."""
    names = {b for n in names_read(rows) for b in sources_of(n, scope, line, numbers=False)}
    values = [rows, *(b.value for n in names for b in scope.bindings.get(n, ()))]
    for call in values:  # and `windows(x)` of `torch.tensor(np.stack(windows(x)))`
        values += call.args[:1] if isinstance(call, ast.Call) else []
        makers = [program.callees_by_name(call, scope)] if isinstance(call, ast.Call) else []
        made = [*program.origins(call, scope), *program.origins(getattr(call, "func", None), scope)]
        for owner in (program.classes[o.name] for o in made if o.name in program.classes):
            own = program.methods[owner]
            makers += [own.get(n) for n in ("__init__", "__call__", "__getitem__")]
        for maker in (m for m in makers if m is not None):
            if _slides(program, maker.node, maker):
                return maker.owner.name if maker.owner is not None else maker.name
    loops: list[ast.AST] = [value for value in values if isinstance(value, ast.ListComp)]
    for append in program.methods_of("append"):
        filled = last_name(receiver(append)) in names and program.scope(append) is scope
        loops += [a for a in program.ancestors(append) if filled and isinstance(a, ast.For)]
    return "a loop" if any(_slides(program, loop, scope) for loop in loops) else ""


def _slides(program: Program, within: ast.AST, scope: Scope) -> bool:
    """Whether there are slices `[i : i + width]`, `i` from a range, or the index of an element."""
    steps: dict[str, float | None] = {}
    for node in walk(within):
        if isinstance(node, (ast.For, ast.comprehension)) and isinstance(node.iter, ast.Call):
            given = node.iter.args[2:]
            if dotted(node.iter.func) == "range":
                steps[last_name(node.target)] = _setting(program, given[0], scope) if given else 1
        elif isinstance(node, ast.Call) and method(node) == "unfold" and len(node.args) == 3:
            width, step = (_setting(program, a, scope) for a in node.args[1:])
            if width is not None and step is not None and width > step:
                return True
    if scope.name == "__getitem__" and not {*scope.parameters[1:2]} & scope.bindings.keys():
        steps |= dict.fromkeys(scope.parameters[1:2], 1)
    for cut in nodes_of(within, ast.Slice):
        bound = scope.bindings.get(dotted(cut.upper), ())  # `stop = i + width`
        end, step = bound[0].value if len(bound) == 1 else cut.upper, steps.get(dotted(cut.lower))
        if step is not None and isinstance(end, ast.BinOp) and isinstance(end.op, ast.Add):
            widths = [s for s in (end.left, end.right) if dotted(s) != dotted(cut.lower)]
            width = _setting(program, widths[0], scope) if len(widths) == 1 else 0
            if width > step if width is not None else step == 1:
                return True
    return False


def _setting(program: Program, node: ast.expr, scope: Scope) -> float | None:
    """A number; of an attribute the only one that the file's classes give it."""
    bound = [b for own in program.attributes.values() for b in own.get(entry(node), ())]
    if len(bound) == 1 and not keywords_of(program, entry(node)):
        return number(program, bound[0].value, bound[0].scope)
    return number(program, node, scope)


# the name that rows go back to, the line of its value, the columns as written, what changed rows
Past = tuple[str, int, str, tuple[str, ...]]


def _past(program: Program, node: ast.expr | None, scope: Scope, line: int) -> Past | None:
    """The past of a value of rows; None where it is not seen, or rows were taken by an index."""
    if isinstance(node, ast.Name):
        bound = [b for b in scope.bindings.get(node.id, ()) if line_of(b.statement) < line]
        last = max(bound, key=lambda b: line_of(b.statement), default=None)
        if last is None:
            return node.id, 0, "", ()
        if last.how != "assign" or last.index is not None or program.ancestors(last.statement):
            return None
        at = line_of(last.statement)
        return _past(program, last.value, scope, at) or (node.id, at, "", ())
    if {"index", "loc", "iloc"} & identifiers(node):
        return None
    if isinstance(node, ast.Attribute) and node.attr == "values":
        return _past(program, node.value, scope, line)
    if isinstance(node, ast.Subscript):
        columns = isinstance(node.slice, (ast.Constant, ast.List, ast.Name))
        found = _past(program, node.value, scope, line) if columns else None
        return (*found[:2], ast.unparse(node.slice), found[3]) if found else None
    name = last_name(node.func) if isinstance(node, ast.Call) else ""
    if not isinstance(node, ast.Call) or name not in REWRAPPED | BY_ROW | {"drop", "pop"}:
        return None
    given = keyword(node, "columns") or keyword(node, "labels", 0)
    known = None not in [constant(e) for e in getattr(given, "elts", [given])]
    axis = keyword(node, "axis", 1 if name == "drop" else None)
    by_columns = keyword(node, "columns") or constant(axis) in (1, "columns")
    from_argument = program.resolve(node.func) or name in ("transform", "fit_transform")
    of = next(iter(node.args), None) if from_argument else receiver(node)
    found = _past(program, of, scope, line)
    if found is None or (name == "drop" and not (known and by_columns)):
        return None
    return (*found[:3], (*found[3], name)) if name in BY_ROW and not by_columns else found


@rule("BH537")
def rows_and_labels_apart(subject: Subject) -> Iterator[Place]:
    """Of two values of one table that are used together, one alone lost or reordered rows."""
    program = subject.program
    used: list[ast.Call] = [*program.calls_of(*PAIRS), *loss_kinds(program)]
    pairs: list[tuple[ast.expr, list[ast.expr]]] = [(c, c.args) for c in used]
    pairs += [(n, n.elts) for n in program.nodes[ast.Tuple]]
    for node, given in ((n, p) for n, p in pairs if len(p) > 1):
        pair, above = given[:2], program.parents[node]
        taken = [n.slice for n in nodes_of(pair[0], ast.Subscript)]
        text, label = ast.unparse(pair[1]), words(last_name(pair[1])) & LABELS
        if label and any(f"[:len({n.id})]" in text for n in taken if isinstance(n, ast.Name)):
            yield pair[1], f"sampled rows are paired with the first rows: {text}"
        if not isinstance(node, ast.Call) and (len(given) > 2 or not isinstance(above, ast.Return)):
            continue
        one, two = (_past(program, a, program.scope(node), line_of(node)) for a in pair)
        if one and two and one[:2] == two[:2] and one[2] + two[2] and bool(one[3]) != bool(two[3]):
            changed, left = (ast.unparse(a) for a in (pair if one[3] else pair[::-1]))
            told = f"went through {', '.join(one[3] + two[3])}, those of {left} did not"
            yield node, f"rows of {changed} {told}"


@rule("BH543")
def label_among_columns(subject: Subject) -> Iterator[Place]:
    """Labels are a column of the table that goes with them as rows; or gaps are filled by it."""
    program = subject.program
    for call in program.calls_of(*PAIRS):
        thrown = any(n.startswith("_") for n in targets_of(program, call))
        pair = call.args[:2] if not thrown else []  # where labels only keep the fractions alike
        found = [_past(program, a, program.scope(call), line_of(call)) for a in pair]
        if len(found) < 2 or not (rows := found[0]) or not (labels := found[1]):
            continue
        # named a second time, the column is left out somewhere
        named = [n for n in program.nodes[ast.Constant] if ast.unparse(n) == labels[2]]
        label = words(last_name(pair[1])) | words(labels[2].strip("'"))
        if not rows[2] and rows[:2] == labels[:2] and len(named) == 1 and label & LABELS:
            yield pair[0], f"{ast.unparse(pair[0])} also contains the label {labels[2]}"
    for call in program.calls_of("groupby"):
        within = [a for a in program.ancestors(call) if method(a) == "transform"]
        key = next((constant(a) for a in call.args[:1]), None)
        filled = within and "fillna" in identifiers(within[0])
        if filled and key is not None and key in label_columns(program):
            yield within[0], f"gaps are filled by a statistic of each {key!r}, which is the label"


@rule("BH545")
def labels_blended(subject: Subject) -> Iterator[Place]:
    """Masks are resized by a mode that blends and made whole again, or as images by default."""
    program = subject.program
    resized = calls_to(program, RESIZE)
    given = [c for c in (*resized, *program.calls_of("interpolate")) if c.args]
    said = {c: {w for n in identifiers(c.args[0]) for w in words(n)} for c in given}
    for call in (c for c in said if said[c] & MASKS and not said[c] & SOFT):
        scope, inside = program.scope(call), program.ancestors(call)
        names = {*targets_of(program, call)}
        later = [n for n in walk(scope.node) if n in inside or names & names_read(n)]
        text, whole = ast.unparse(call.args[0]), any(method(n) in WHOLE for n in later)
        if any(isinstance(n, ast.Compare) or method(n).rstrip("_") in DECIDED for n in later):
            continue  # scores that are cut at a threshold
        images = [c for c in given if program.scope(c) is scope and not said[c] & MASKS]
        if call in resized and images and keyword(call, "interpolation", 2) is None:
            yield call, f"{text} is resized bilinearly, as the image is: by default"
        elif whole and constant(keyword(call, "mode", 3)) in BLENDS:
            yield call, f"{text} is interpolated, then cast to integers"
