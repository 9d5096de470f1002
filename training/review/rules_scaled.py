"""Rules BH558 to BH560, and BH562: mean and deviation exchanged, an augmentation that is drawn once, windows and values that reach from one series into another."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program
from training.review.syntax import calls, constant, dotted, identifiers, keyword, last_name, method, names_read, receiver, walk, words

MEAN, DEVIATION = {"mean", "mu", "means", "average", "avg"}, {"std", "stds", "sigma", "sd", "deviation", "stdev"}
MOVES = {"flip", "fliplr", "flipud", "rot90", "roll", "crop", "hflip", "vflip", "jitter", "augment", "rotate", "cutout", "erase"}
RANDOM = {"rand", "randn", "randn_like", "randint", "random", "normal", "uniform", "choice", "bernoulli", "rand_like"}
TIMES = {"t", "time", "date", "day", "timestamp", "step", "hour", "datetime", "week", "month"}


@rule(
    "BH558",
    "mean-and-deviation-exchanged",
    "error",
    title="The deviation is subtracted and the mean divided by",
    why="Values are neither centred nor of unit size: all inputs lie on one side of 0, on a scale that has nothing to do with how they vary.",
    remedy="`(x - mean) / std`",
    bad="""
        import torch

        MEAN, STD = 120.0, 60.0

        def scaled(pixels):
            return (torch.as_tensor(pixels).float() - STD) / MEAN
        """,
    good="""
        import torch

        MEAN, STD = 120.0, 60.0

        def scaled(pixels):
            return (torch.as_tensor(pixels).float() - MEAN) / STD
        """,
)
def mean_and_deviation_exchanged(subject: Subject) -> Iterator[Place]:
    """`(x - std) / mean` by their names, or `Normalize(std, mean)`."""
    program = subject.program
    for node in program.nodes[ast.BinOp]:
        match node:
            case ast.BinOp(op=ast.Div(), left=ast.BinOp(op=ast.Sub(), right=taken), right=by) if _says(taken) == "deviation" and _says(by) == "mean":
                yield node, f"{ast.unparse(taken)} is subtracted, and {ast.unparse(by)} divided by"
    for call in program.calls_of("Normalize", "normalize"):
        first, second = keyword(call, "mean", 0), keyword(call, "std", 1)
        if first is not None and second is not None and _says(first) == "deviation" and _says(second) == "mean":
            yield call, f"{ast.unparse(first)} is given as the mean, and {ast.unparse(second)} as the deviation"


def _says(node: ast.expr) -> str:
    """Whether a value is a mean or a deviation, by its name."""
    while isinstance(node, ast.Subscript) or (isinstance(node, ast.Call) and method(node) in ("view", "reshape", "to", "unsqueeze")):
        node = node.value if isinstance(node, ast.Subscript) else node.func.value  # type: ignore[attr-defined]
    said = words(last_name(node.func if isinstance(node, ast.Call) else node))
    if MEAN & said and DEVIATION & said:
        return ""
    return "mean" if MEAN & said else "deviation" if DEVIATION & said else ""


@rule(
    "BH559",
    "augmented-once",
    "warning",
    title="Random changes of the train rows are drawn once",
    why="What is drawn when the data set is made stays as it is: each epoch shows the same picture, flipped or not. There is no more variety than without it.",
    remedy="draw in `__getitem__`, which each epoch calls anew",
    bad="""
        import torch
        from torch.utils.data import Dataset

        class Pictures(Dataset):
            def __init__(self, x, y, augment):
                if augment:
                    chosen = torch.rand(len(x)) < 0.5
                    x[chosen] = x[chosen].flip(-1)
                self.x, self.y = x, y

            def __len__(self):
                return len(self.y)

            def __getitem__(self, i):
                return self.x[i], self.y[i]
        """,
    good="""
        import torch
        from torch.utils.data import Dataset

        class Pictures(Dataset):
            def __init__(self, x, y, augment):
                self.x, self.y, self.augment = x, y, augment

            def __len__(self):
                return len(self.y)

            def __getitem__(self, i):
                x = self.x[i]
                return (x.flip(-1) if self.augment and torch.rand(()) < 0.5 else x), self.y[i]
        """,
)
def augmented_once(subject: Subject) -> Iterator[Place]:
    """In `__init__` of a data set, under a condition that speaks of train or augmentation, rows are flipped, turned or cut by a draw, and joined with nothing."""
    program = subject.program
    for owner in program.classes.values():
        start = program.methods[owner].get("__init__")
        if start is None or "__getitem__" not in program.methods[owner]:
            continue
        for branch in (n for n in walk(start.node) if isinstance(n, ast.If)):
            if not {"train", "training", "augment", "augmented", "aug", "is"} & {w for n in identifiers(branch.test) for w in words(n)} or isinstance(
                branch.test, ast.UnaryOp
            ):
                continue
            within = [c for s in branch.body for c in calls(s)]
            moved = [c for c in within if MOVES & words(last_name(c.func))]
            drawn = [c for c in within if last_name(c.func) in RANDOM]
            joined = any(last_name(c.func) in ("cat", "concatenate", "concat", "vstack", "stack", "extend", "append") for c in within)
            if moved and drawn and not joined:
                yield branch, f"{last_name(moved[0].func)} is drawn when the data set is made, and never again", start.node
                break


@rule(
    "BH560",
    "windows-across-series",
    "error",
    title="Windows reach from the end of one series into the next",
    why="The rows of several sensors or shops stand one below the other. Windows cut over all of them mix the end of one with the beginning of another, and ask for a next value that is no next one.",
    remedy="cut windows within each series: loop over `frame.groupby(key)`, and join the windows",
    bad="""
        import torch
        from torch.utils.data import Dataset

        class Windows(Dataset):
            def __init__(self, values, width):
                self.values, self.width = torch.as_tensor(values), width

            def __len__(self):
                return len(self.values) - self.width

            def __getitem__(self, i):
                return self.values[i : i + self.width], self.values[i + self.width]

        def load(frame):
            frame = frame.sort_values(["sensor", "time"])
            return Windows(frame["value"].to_numpy(), 24)
        """,
    good="""
        import torch
        from torch.utils.data import ConcatDataset, Dataset

        class Windows(Dataset):
            def __init__(self, values, width):
                self.values, self.width = torch.as_tensor(values), width

            def __len__(self):
                return len(self.values) - self.width

            def __getitem__(self, i):
                return self.values[i : i + self.width], self.values[i + self.width]

        def load(frame):
            frame = frame.sort_values(["sensor", "time"])
            return ConcatDataset([Windows(part["value"].to_numpy(), 24) for _, part in frame.groupby("sensor")])
        """,
)
def windows_across_series(subject: Subject) -> Iterator[Place]:
    """A table is sorted by a key and then by time, nothing is grouped or chosen by that key, and a data set of the file cuts windows at every row;
    or, seen in a run, windows begin with values of one owner and end with those of the next.
    """
    program = subject.program
    if {"groupby", "unique", "pivot", "pivot_table", "unstack"} & program.called_names:
        return
    windowed = [o for o in program.classes.values() if (m := program.methods[o].get("__getitem__")) is not None and _cuts_at_row(m.node)]
    if not windowed:
        return
    for call in program.all_calls:
        found = _sorted_by(call)
        if found is not None and not _key_is_compared(program, found[0]):
            yield call, f"the rows of each {found[0]} stand one below the other, and {windowed[0].name} cuts windows at every one of them"


@rule(
    "BH562",
    "carried-into-next-series",
    "error",
    title="Values are carried from one series into the next",
    why="The rows of several patients, sensors or shops stand one below the other. A forward fill, a lag or a moving mean over all of them gives the first rows of each what belongs to the one before, across every split by them.",
    remedy="do it within each series: `frame.groupby(key)[columns].ffill()`",
    bad="""
        import torch

        def features(frame):
            frame = frame.sort_values(["stay_id", "hour"])
            frame["lactate"] = frame["lactate"].ffill()
            return torch.tensor(frame[["lactate", "pulse"]].to_numpy())
        """,
    good="""
        import torch

        def features(frame):
            frame = frame.sort_values(["stay_id", "hour"])
            frame["lactate"] = frame.groupby("stay_id")["lactate"].ffill()
            return torch.tensor(frame[["lactate", "pulse"]].to_numpy())
        """,
)
def carried_into_next_series(subject: Subject) -> Iterator[Place]:
    """A table is sorted by a key and then by time, and behind that, in the same function, filled, shifted or averaged over rows without being grouped; nothing asks where the key changes."""
    program = subject.program
    for call in program.all_calls if CARRIES & program.called_names else ():
        found = _sorted_by(call)
        statement, scope = program.statement(call), program.scope(call)
        table = dotted(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
        if constant(keyword(call, "inplace")) is True:
            table = dotted(receiver(call))
        if found is None or not table or _key_is_compared(program, found[0]):
            continue
        for carried in (c for c in calls(scope.node) if method(c) in CARRIES and c.lineno > call.lineno):
            of = receiver(carried)
            if isinstance(of, ast.Subscript) and not {*found} & {constant(n) for n in walk(of.slice)}:  # steps of time show where a series begins
                of = of.value
            if dotted(of) == table and program.statement(carried) is not statement:
                yield carried, f"the rows of each {found[0]} stand one below the other (line {call.lineno}): {method(carried)} goes from one into the next"


CARRIES = {"ffill", "pad", "bfill", "shift", "diff", "pct_change", "rolling", "ewm", "expanding", "cumsum", "interpolate"}


def _sorted_by(call: ast.Call) -> tuple[str, str] | None:
    """The key and the time by which rows are sorted."""
    by = keyword(call, "by", 0)
    keys = [constant(e) for e in by.elts] if method(call) == "sort_values" and isinstance(by, (ast.List, ast.Tuple)) else []
    if len(keys) < 2 or not all(isinstance(k, str) for k in keys):
        return None
    first, last = str(keys[0]), str(keys[-1])
    return (first, last) if TIMES & words(last) and not TIMES & words(first) else None


def _key_is_compared(program: Program, key: str) -> bool:
    """Whether rows are taken, or masked, by where the key changes: `frame[frame.stay == s]`, `frame.stay != frame.stay.shift()`, the first rows of each by number."""
    asked = program.methods_of("ne", "eq", "shift", "diff", "duplicated")
    own = any((of := receiver(c)) is not None and not isinstance(of, ast.Call) and _reads_column(of, key) for c in asked)
    return own or "cumcount" in program.called_names or any(isinstance(n, ast.Compare) and _reads_column(n, key) for n in program.nodes[ast.Compare])


def _cuts_at_row(node: ast.AST) -> bool:
    """Whether a slice begins at the number that is asked for, and ends behind it."""
    given = node.args.args[1].arg if isinstance(node, ast.FunctionDef) and len(node.args.args) > 1 else ""
    spans = [n.slice for n in walk(node) if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Slice)]
    return bool(given) and any(s.lower is not None and s.upper is not None and last_name(s.lower) == given and given in names_read(s.upper) for s in spans)


def _reads_column(node: ast.AST, column: str) -> bool:
    return any(
        (isinstance(n, ast.Subscript) and constant(n.slice) == column) or (isinstance(n, ast.Attribute) and n.attr == column and dotted(n)) for n in walk(node)
    )
