"""Rule BH564: an augmentation that makes another class of a row, as a rise read backwards is a fall, and leaves the label."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from training.review.directions import ACROSS, BODY, CLASSES, EITHER, IN_TIME, NO_CLASSES, UPSIDE
from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import calls, constant, identifiers, keyword, last_name, method, names_read, own_nodes, receiver, walk, words

LIBRARIES = {"torch", "torchvision", "lightning", "pytorch_lightning", "timm", "tensorflow", "keras", "jax", "albumentations", "kornia", "sklearn"}
LABELS = {
    "label", "labels", "y", "ys", "target", "targets", "cls", "class", "classes", "kind", "direction", "answer", "answers", "code", "trend", "gesture",
}  # fmt: skip
EXCHANGES = {
    *("swap", "swapped", "swaps", "opposite", "opposites", "exchange", "exchanged", "partner", "partners", "inverse", "counterpart", "other", "flip", "flipped"),
    *("mirror", "mirrored", "mirrors", "reverse", "reversed", "turned", "turn", "after", "back", "invert", "inverted", "permute", "permutation", "remap"),
}  # fmt: skip
DRAWS = {
    *("random", "rand", "random_sample", "uniform", "randint", "randrange", "integers", "bernoulli", "binomial", "getrandbits", "choice", "rand_like"),
    *("choices", "coin", "coin_flip"),
}  # fmt: skip
AUGMENTS = {"augment", "augmented", "augmentation", "augmentations", "aug", "mirror", "flip", "hflip", "vflip", "flips", "reverse"}
ACROSS_CALLS = {"hflip", "horizontal_flip", "fliplr", "flip_left_right", "mirror", "RandomHorizontalFlip", "HorizontalFlip", "random_flip_left_right"}
UPSIDE_CALLS = {"vflip", "vertical_flip", "flipud", "flip_up_down", "RandomVerticalFlip", "VerticalFlip", "random_flip_up_down"}
ALWAYS_DRAWN = {"RandomHorizontalFlip", "HorizontalFlip", "random_flip_left_right", "RandomVerticalFlip", "VerticalFlip", "random_flip_up_down"}
PICTURES = {"Conv2d", "conv2d", "Conv2D", "imread", "ImageFolder", "decode_image", "read_image", "resnet18", "resnet34", "resnet50", "PILToTensor", "ToTensor"}
NOT_ROWS = {"argsort", "sorted", "range", "list", "shape", "size", "unique", "sort", "reversed", "arange", "split", "items", "keys"}


@rule(
    "BH564",
    "flip-turns-the-class",
    "error",
    title="A row is turned round, and is then of the other class",
    why="A rise read backwards is a fall, and a mirrored arrow to the left points to the right. Turned at random with its label as it was, half of the rows say the opposite: the two classes cannot be told apart.",
    remedy="exchange the label in the same branch, `y = 1 - y`, or leave this augmentation out",
    bad="""
        import torch
        from torch.utils.data import Dataset

        CLASSES = ["rising", "falling"]

        class Traces(Dataset):
            def __init__(self, traces, kinds):
                self.traces, self.kinds = traces, kinds

            def __len__(self):
                return len(self.traces)

            def __getitem__(self, i):
                x, y = self.traces[i], CLASSES.index(self.kinds[i])
                if torch.rand(()) < 0.5:
                    x = x.flip(-1)
                return x, y
        """,
    good="""
        import torch
        from torch.utils.data import Dataset

        CLASSES = ["rising", "falling"]

        class Traces(Dataset):
            def __init__(self, traces, kinds):
                self.traces, self.kinds = traces, kinds

            def __len__(self):
                return len(self.traces)

            def __getitem__(self, i):
                x, y = self.traces[i], CLASSES.index(self.kinds[i])
                if torch.rand(()) < 0.5:
                    x, y = x.flip(-1), 1 - y
                return x, y
        """,
)
def flip_turns_the_class(subject: Subject) -> Iterator[Place]:
    """Rows are flipped by a draw, or under a flag of augmentation, in a file whose classes are named by directions that the flip exchanges, and no label is exchanged near it."""
    program = subject.program
    if not program.modules_imported & LIBRARIES:
        return
    turning = program.calls_of(*(ALWAYS_DRAWN | ACROSS_CALLS | UPSIDE_CALLS), "flip")
    flips = [(node, ways, rows) for node in (*turning, *program.nodes[ast.Subscript]) for ways, rows in _flip(program, node)]
    named = list(_class_names(program)) if flips else []
    if not named or _has_opposites(program, named):
        return
    for node, ways, rows in flips:
        pair = next((p for names in named for p in _exchanged(names, ways)), None)
        if pair is None or (rows is not None and not _is_input(rows)):
            continue
        for place, scope in _augments(program, node):
            if not any(_changes_label(program, s, place) for s in _around(program, scope)):
                yield place, f"what is {pair[0]} becomes {pair[1]} by this turn, and keeps its label", scope.node if scope.name else program.statement(place)
                break


def _flip(program: Program, node: ast.AST) -> Iterator[tuple[set[str], ast.expr | None]]:
    """What turns rows round: which words it exchanges, of `across`, `upside`, `either` and `time`, and the rows."""
    if isinstance(node, ast.Call):
        name = last_name(node.func)
        share = keyword(node, "p", 0)
        if name in ALWAYS_DRAWN and isinstance(constant(share), (int, float)) and constant(share) in (0, 1):
            return
        rows = next(iter(node.args), None) if name not in ALWAYS_DRAWN else None
        if name in ACROSS_CALLS:
            yield {"across", "either"}, rows
        elif name in UPSIDE_CALLS:
            yield {"upside", "either"}, rows
        elif name == "flip":
            own = not program.resolve(node.func) and receiver(node) is not None
            rows = receiver(node) if own else rows
            given = node.args if own else [*node.args[1:], *(k.value for k in node.keywords if k.arg in ("dims", "axis", "dim", "axes"))]
            given = given or [k.value for k in node.keywords if k.arg in ("dims", "axis", "dim", "axes")]
            axes = [constant(a) for g in given for a in (g.elts if isinstance(g, (ast.Tuple, ast.List)) else [g])]
            if rows is not None and not given and program.resolve(node.func) == "numpy.flip":
                yield {"across", "upside", "either"} if _of_pictures(program) else {"either", "time"}, rows
            elif rows is not None and axes and all(isinstance(a, int) for a in axes):
                yield _ways([int(str(a)) for a in axes], _of_pictures(program), of_numpy=program.resolve(node.func).startswith("numpy")), rows
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        at = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        turned = [k for k, s in enumerate(at) if isinstance(s, ast.Slice) and s.lower is s.upper is None and constant(s.step) == -1]
        plain = all(k in turned or constant(s) is Ellipsis or (isinstance(s, ast.Slice) and s.lower is s.upper is s.step is None) for k, s in enumerate(at))
        if len(turned) == 1 and plain:
            behind = len(at) - turned[0]
            from_end = any(constant(s) is Ellipsis for s in at[: turned[0]])
            yield _ways([-behind if from_end else turned[0]], _of_pictures(program), of_numpy=True), node.value


def _ways(axes: list[int], picture: bool, of_numpy: bool) -> set[str]:
    """What a flip of axes exchanges; of a picture as torch lays it out, channels before rows, or as files do, rows first."""
    if not picture:
        return {"either", "time"}
    across, upside = ({-1, 1, 2, 3}, {0}) if of_numpy else ({-1, 3}, {-2})
    found = ({"across"} if across & set(axes) else set()) | ({"upside"} if upside & set(axes) else set())
    return found | {"either"} if found else set()


def _of_pictures(program: Program) -> bool:
    """Whether the rows of a file are pictures, not series: what reads them, or the names of what it holds, tells."""
    if program.called_names & PICTURES or {"torchvision", "albumentations", "PIL", "cv2", "kornia"} & program.modules_imported:
        return True
    series = {"Conv1d", "LSTM", "GRU", "RNN", "conv1d", "rfft", "Conv3d"} & program.called_names
    return not series and any({"image", "images", "img", "imgs", "picture", "pictures", "photo", "photos"} & words(n) for n in program.identifiers)


def _is_input(rows: ast.expr) -> bool:
    """Whether it may be rows of inputs: no sorted order, list of layers, nor labels."""
    if isinstance(rows, ast.Call):
        return last_name(rows.func) not in NOT_ROWS
    of = words(last_name(rows))
    return not of & (LABELS | {"order", "idx", "index", "indices", "layers", "blocks", "shape", "size", "rewards", "returns", "probs", "logits", "dims"})


def _spoken(name: str) -> tuple[str, ...]:
    """The words of a name of a class, in order: `turnLeft` and `turn-left` alike."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    text = re.sub(r"[^a-z0-9]+", " ", spaced.lower()).strip()
    return tuple(re.sub(r"\b(counter|anti) (?=clockwise)", r"\1", text).split())


def _exchanged(names: list[str], ways: set[str]) -> Iterator[tuple[str, str]]:
    """Two classes of which the turn makes one the other."""
    spoken = {_spoken(n): n for n in names}
    pairs = [*(ACROSS if "across" in ways else ()), *(UPSIDE if "upside" in ways else ()), *(EITHER if "either" in ways else ())]
    for one, other in [*pairs, *(IN_TIME if "time" in ways else ())]:
        for said, name in spoken.items():
            turned = tuple(other if w == one else w for w in said)
            if one in said and turned in spoken and not BODY & set(said):
                yield name, spoken[turned]


def _class_names(program: Program) -> Iterator[list[str]]:
    """The names of classes that stand together: members of an Enum, a list or dict that is called so or codes labels, constants numbered from 0."""
    for owner in program.classes.values():
        if any(last_name(b).endswith(("Enum", "Flag")) for b in owner.bases) and (_names_classes(owner.name) or _is_asked(program, owner.name)):
            names = [t for s in owner.body if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name)]
            yield [n.id for n in names]
    for node in (*program.nodes[ast.List], *program.nodes[ast.Tuple], *program.nodes[ast.Dict]):
        above = program.parents.get(node)
        while isinstance(above, ast.Call) and last_name(above.func) in ("tuple", "list", "sorted", "dict", "enumerate", "frozenset"):
            above = program.parents.get(above)
        targets = above.targets if isinstance(above, ast.Assign) else [above.target] if isinstance(above, ast.AnnAssign) else []
        name = last_name(targets[0]) if targets else ""
        if words(name) & NO_CLASSES:
            continue
        if isinstance(node, ast.Dict):
            keys, values = [constant(k) for k in node.keys], [constant(v) for v in node.values]
            numbered = sorted(v for v in values if type(v) is int) == list(range(len(values)))
            coded = numbered and all(isinstance(k, str) for k in keys) and len(keys) > 1
            back = sorted(k for k in keys if type(k) is int) == list(range(len(keys))) and all(isinstance(v, str) for v in values) and len(keys) > 1
            if (coded or back) and (_names_classes(name) or _is_asked(program, name, codes=coded) or isinstance(above, ast.Subscript)):
                yield [str(n) for n in (keys if coded else values)]
        elif isinstance(node, (ast.List, ast.Tuple)) and len(node.elts) > 1:
            texts = [constant(e) for e in node.elts]
            if all(isinstance(t, str) for t in texts) and name and (_names_classes(name) or _is_asked(program, name)):
                yield [str(t) for t in texts]
    yield _constants(program)


def _constants(program: Program) -> list[str]:
    """Names in capitals that the file gives 0, 1, 2: `RISING, FALLING = 0, 1`, or `= range(2)`."""
    found = []
    for name, bound in program.top.bindings.items():
        if name.isupper() and len(bound) == 1 and bound[0].how == "assign" and not words(name) & NO_CLASSES:
            value, at = bound[0].value, bound[0].index
            counted = at is not None and isinstance(value, ast.Call) and last_name(value.func) == "range"
            if counted or (type(constant(value)) is int and constant(value) in range(4)):
                found.append(name)
    return found


def _names_classes(name: str) -> bool:
    return bool(words(name) & CLASSES) or (name.isupper() and "names" in words(name.lower()))


def _is_asked(program: Program, name: str, codes: bool = False) -> bool:
    """Whether labels are looked up in it: `NAMES.index(kind)`, `Kind[row.kind]`, `enumerate(NAMES)`, or a network has as many outputs."""
    if not name:
        return False
    for call in program.all_calls:
        if method(call) == "index" and last_name(receiver(call)) == name:
            return True
        if last_name(call.func) == name and not isinstance(call.func, ast.Attribute) and call.args:
            return True
        heads = [a for a in call.args if isinstance(a, ast.Call) and last_name(a.func) == "len" and a.args and last_name(a.args[0]) == name]
        if heads and last_name(call.func) in ("Linear", "Dense", "LazyLinear"):
            return True
    keys = [n.slice for n in program.nodes[ast.Subscript] if isinstance(n, ast.Subscript) and last_name(n.value) == name and isinstance(n.ctx, ast.Load)]
    return any(constant(k) is None for k in keys) and (name in program.classes or codes)


def _has_opposites(program: Program, named: list[list[str]]) -> bool:
    """Whether the file says somewhere which class becomes which: `{"left": "right", …}`, `{Kind.RISING: Kind.FALLING}`, or a table or function that is called so."""
    known = {_spoken(n) for names in named for n in names}
    for table in program.nodes[ast.Dict]:
        if isinstance(table, ast.Dict) and table.keys:
            sides = [
                (_spoken(str(constant(k) or last_name(k))), _spoken(str(constant(v) or last_name(v)))) for k, v in zip(table.keys, table.values, strict=True)
            ]
            if any(a in known and b in known and a != b for a, b in sides):
                return True
    defined = {*program.top.bindings, *(s.name for s in program.scopes)}
    return any({"swap", "swapped", "opposite", "opposites", "exchange", "exchanged", "counterpart"} & words(n) for n in defined)


def _augments(program: Program, node: ast.AST) -> Iterator[tuple[ast.expr, Scope]]:
    """Where a flip happens to some rows and not to others: itself, or where the function that flips is called."""
    scope = program.scope(node)
    if not isinstance(node, ast.expr):
        return
    if (isinstance(node, ast.Call) and last_name(node.func) in ALWAYS_DRAWN) or _is_drawn(program, node, scope) or _doubles(program, node, scope):
        yield node, scope
    elif scope.name and isinstance(program.statement(node), (ast.Return, ast.Assign)) and not any(isinstance(n, ast.If) for n in own_nodes(scope.node)):
        for call, caller in program.call_sites[scope]:
            if _is_drawn(program, call, caller):
                yield call, caller


def _is_drawn(program: Program, node: ast.AST, scope: Scope) -> bool:
    """Whether a draw, or a flag of augmentation, decides over an expression: a condition around it, one before that leaves, `where`, or a mask."""
    inner: ast.AST = node
    for around in program.ancestors(node):
        if isinstance(around, (ast.If, ast.IfExp)) and inner is not around.test and (_draws(around.test, scope) or _says_augment(around.test)):
            return True
        if isinstance(around, ast.Call) and last_name(around.func) == "where" and around.args and _draws(around.args[0], scope):
            return True
        if isinstance(around, ast.Call) and last_name(around.func) == "RandomApply":
            return True
        inner = around
    statement = program.statement(node)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript) and _draws(statement.targets[0].slice, scope):
        return True
    left = [n for n in own_nodes(scope.node) if isinstance(n, ast.If) and any(isinstance(s, ast.Return) for s in n.body)]
    return scope.name != "" and any(i.lineno < statement.lineno and program.parents[i] is scope.node and _draws(i.test, scope) for i in left)


def _draws(test: ast.expr, scope: Scope) -> bool:
    """Whether a condition is drawn, there or where its names were."""
    parts = [test, *(b.value for n in names_read(test) for b in scope.bindings.get(n, ()) if b.how == "assign")]
    return any(last_name(c.func) in DRAWS for p in parts for c in calls(p))


def _says_augment(test: ast.expr) -> bool:
    return not isinstance(test, (ast.Compare, ast.UnaryOp)) and any(AUGMENTS & words(n) for n in identifiers(test))


def _doubles(program: Program, node: ast.AST, scope: Scope) -> bool:
    """Whether flipped rows are joined with the rows themselves, and their labels with themselves: `cat([x, x.flip(-1)])` and `cat([y, y])`."""
    joined = [c for c in program.ancestors(node) if isinstance(c, ast.Call) and last_name(c.func) in ("cat", "concatenate", "concat", "vstack")]
    if not joined:
        return False
    for call in calls(scope.node):
        parts = call.args[0].elts if call.args and isinstance(call.args[0], (ast.List, ast.Tuple)) else []
        twice = len(parts) == 2 and ast.unparse(parts[0]) == ast.unparse(parts[1]) and isinstance(parts[0], (ast.Name, ast.Attribute))
        if last_name(call.func) in ("cat", "concatenate", "concat", "hstack") and twice and LABELS & words(last_name(parts[0])):
            return True
    return False


def _around(program: Program, scope: Scope) -> list[Scope]:
    """The function in which rows are turned, those that call it, and those of the file that any of them calls."""
    if not scope.name:
        return [scope]
    found = [scope, *(caller for _, caller in program.call_sites[scope])]
    return list(dict.fromkeys([*found, *(s for f in found if f.name for c in calls(f.node) for s in program.callees(c, f))]))


def _changes_label(program: Program, scope: Scope, place: ast.expr) -> bool:
    """Whether a label may be exchanged there: `1 - y`, `y ^ 1`, `OTHER[y]`, a second value for its name, or one that is made of the turned row."""
    nodes = list(own_nodes(scope.node))
    if any(_is_label(n) for test in _conditions(scope, nodes) for n in walk(test) if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript))):
        return True  # only rows of some classes are turned
    for node in nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Sub, ast.BitXor, ast.Add, ast.Mod)) and any(_is_label(n) for n in (node.left, node.right)):
            return True
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Invert, ast.Not, ast.USub)) and _is_label(node.operand):
            return True
        if isinstance(node, ast.Subscript) and (_is_label(node.slice) or EXCHANGES & words(last_name(node.value))) and _may_exchange(node):
            return True
        if isinstance(node, ast.Call):
            asked = [*node.args, *(k.value for k in node.keywords)]
            if any(_is_label(a) for a in asked) and (EXCHANGES & words(last_name(node.func)) or last_name(node.func) in ("where", "get")):
                return True
    return _is_set_anew(program, scope, place, nodes)


def _conditions(scope: Scope, nodes: list[ast.AST]) -> list[ast.expr]:
    """What decides in a function: conditions, and masks of `where` or of rows that are set, with what their names were given."""
    tests: list[ast.expr] = []
    for node in nodes:
        if isinstance(node, (ast.If, ast.IfExp)):
            tests.append(node.test)
        elif isinstance(node, ast.Call) and last_name(node.func) == "where":
            tests += node.args[:1]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            tests.append(node.slice)
    return [*tests, *(b.value for t in tests for n in names_read(t) for b in scope.bindings.get(n, ()) if b.how in ("assign", "augment"))]


def _may_exchange(node: ast.Subscript) -> bool:
    """Whether a table that is asked for a label may give another one: what is called a table of codes or names does not."""
    table = words(last_name(node.value))
    return isinstance(node.value, (ast.List, ast.Tuple, ast.Dict, ast.Call)) or bool(table & EXCHANGES) or not table & (CLASSES | {"names", "weights", "index"})


def _is_set_anew(program: Program, scope: Scope, place: ast.expr, nodes: list[ast.AST]) -> bool:
    """Whether a label gets another value in the branch that turns the row, two values in the function, or one that reads what was turned."""
    statement, here = program.statement(place), program.scope(place) is scope
    branch = next((a for a in program.ancestors(place) if isinstance(a, ast.If)), None) if here else None
    inside = set(walk(branch)) if branch is not None else {statement}
    turned = {n for n, bound in scope.bindings.items() if here and any(node is place for b in bound for node in walk(b.value))}
    for name, bound in scope.bindings.items():
        own = [b for b in bound if b.how in ("assign", "augment")]
        if name not in turned and any(b.statement in inside and not _is_turn_or_draw(program, b.value) for b in own):
            return True  # `name = name.replace("left", "right")`: whatever it is, it goes with the turn
        if not LABELS & words(name) or name in turned:
            continue
        if len({id(b.statement) for b in own}) > 1:
            return True
        if any(turned & names_read(b.value) and getattr(b.statement, "lineno", 0) > statement.lineno for b in own):
            return True
    stored = [t for n in nodes if isinstance(n, (ast.Assign, ast.AugAssign)) for t in (n.targets if isinstance(n, ast.Assign) else [n.target])]
    return any(isinstance(t, (ast.Subscript, ast.Attribute)) and _is_label(t) and scope.name != "__init__" for t in stored)


def _is_turn_or_draw(program: Program, value: ast.expr) -> bool:
    """Whether something is drawn, or another thing, such as a mask, turned alike."""
    return any(last_name(c.func) in DRAWS for c in calls(value)) or any(True for n in walk(value) for _ in _flip(program, n))


def _is_label(node: ast.expr) -> bool:
    """Whether an expression is a label by its name: `y`, `self.labels[i]`, `int(label)`, `row["label"]`."""
    while isinstance(node, ast.Call) and node.args and last_name(node.func) in ("int", "long", "tensor", "as_tensor"):
        node = node.args[0]
    said = constant(node.slice) if isinstance(node, ast.Subscript) else None
    return bool(LABELS & words(last_name(node))) or (isinstance(said, str) and bool(LABELS & words(said)))
