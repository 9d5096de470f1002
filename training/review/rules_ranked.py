"""Rules BH551 to BH553: negatives that are known pairs, events in the wrong order of time, and what is called after train rows and made of all."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Scope
from training.review.sides import elements_of, side_of, targets_of
from training.review.splitting import line_of
from training.review.syntax import calls, constant, keyword, last_name, method, names_read, receiver, walk, words

KNOWN = {"known", "seen", "positive", "positives", "interacted", "clicked", "watched", "bought", "observed"}
NEGATIVE = {"negative", "negatives", "neg", "negs"}
DRAWS = {"multinomial", "choice", "choices"}
TIMES = {"time", "timestamp", "timestamps", "date", "datetime", "day", "ts", "when", "at", "month", "week"}
NO_ROWS = {"loss", "losses", "acc", "accuracy", "score", "scores", "metrics", "metric", "history", "result", "results", "time", "size", "n", "num", "frac", "ratio", "count", "out", "pred", "preds", "logits", "auc"}  # fmt: skip


@rule(
    "BH551",
    "negatives-from-known-pairs",
    "error",
    title="Negatives are drawn from the pairs that are known",
    why="What is drawn as something the user did not want is what the user chose: the network learns to rank it down.",
    remedy="draw where the pair is not known: `(~known[users]).float()`",
    bad="""
        import torch

        def draw_negatives(users, known, count):
            weights = known[users].float()
            return torch.multinomial(weights, count, replacement=True)
        """,
    good="""
        import torch

        def draw_negatives(users, known, count):
            weights = (~known[users]).float()
            return torch.multinomial(weights, count, replacement=True)
        """,
)
def negatives_from_known_pairs(subject: Subject) -> Iterator[Place]:
    """A draw that gives negatives, by its name or its function's, by weights that are known pairs as they are."""
    program = subject.program
    for call in program.calls_of(*DRAWS):
        if not call.args:
            continue
        scope = program.scope(call)
        if not NEGATIVE & {w for n in (*targets_of(program, call), scope.name) for w in words(n)}:
            continue
        weights = keyword(call, "p") if method(call) != "multinomial" and keyword(call, "p") is not None else call.args[0]
        found = _as_they_are(weights, scope) if weights is not None else ""
        if found:
            yield call, f"negatives are drawn where {found} says that the pair is known"


def _as_they_are(node: ast.expr, scope: Scope, depth: int = 0) -> str:
    """The known pairs whose values weights are: nothing turns them round on the way."""
    if any(
        isinstance(n, (ast.UnaryOp, ast.Compare, ast.Sub)) or last_name(n) in ("logical_not", "where", "masked_fill", "nonzero", "bincount") for n in walk(node)
    ):
        return ""
    inner = node
    while not isinstance(inner, ast.Name):
        if isinstance(inner, ast.Subscript):
            inner = inner.value
        elif isinstance(inner, ast.Call) and last_name(inner.func) in ("float", "double", "to", "astype") and (given := receiver(inner)) is not None:
            inner = given
        else:
            return ""
    bound = scope.bindings.get(inner.id, ())
    if len(bound) == 1 and bound[0].index is None and depth < 3:
        return _as_they_are(bound[0].value, scope, depth + 1)
    return inner.id if KNOWN & words(inner.id) and not bound else ""


@rule(
    "BH552",
    "earliest-event-tested",
    "error",
    title="The first event of each user is tested, and the later ones are trained on",
    why="`cumcount()` counts from the earliest row on. Where 0 is the test, the network knows what came after: in service only the past is there.",
    remedy="count from the end: `cumcount(ascending=False)`",
    bad="""
        import torch

        def leave_one_out(events):
            events = events.sort_values(["user", "time"])
            rank = events.groupby("user").cumcount()
            train, test = events[rank > 0], events[rank == 0]
            return torch.as_tensor(train.to_numpy()), torch.as_tensor(test.to_numpy())
        """,
    good="""
        import torch

        def leave_one_out(events):
            events = events.sort_values(["user", "time"])
            rank = events.groupby("user").cumcount(ascending=False)
            train, test = events[rank > 0], events[rank == 0]
            return torch.as_tensor(train.to_numpy()), torch.as_tensor(test.to_numpy())
        """,
)
def earliest_event_tested(subject: Subject) -> Iterator[Place]:
    """A table that is sorted by time upwards: `groupby(…).cumcount()` that is 0 takes the held-out side, and what is above the train side."""
    program = subject.program
    sorted_up = any(_by_time(c) and keyword(c, "ascending") is None for c in program.methods_of("sort_values"))
    for call in program.methods_of("cumcount") if sorted_up else ():
        if not isinstance(program.statement(call), ast.Assign):
            continue
        counted = {last_name(t) for t in getattr(program.statement(call), "targets", [])}
        down = keyword(call, "ascending", 0)
        lowest = 0 if down is None or constant(down) is True else None
        for take in program.nodes[ast.Subscript] if lowest is not None else ():
            match take:
                case ast.Subscript(slice=ast.Compare(left=left, ops=[op], comparators=[bound])) if last_name(left) in counted:
                    first = isinstance(op, ast.Eq) and constant(bound) == 0
                    if first and {side_of(n) for n in targets_of(program, take)} & {"test", "val"}:
                        yield call, f"{ast.unparse(take)} are the earliest rows, and those after them are trained on"
                        break


def _by_time(call: ast.Call) -> bool:
    """Whether a table is sorted by a column of times, as far as its name tells."""
    by = keyword(call, "by", 0)
    return by is not None and any(isinstance(n, ast.Constant) and isinstance(n.value, str) and TIMES & words(n.value) for n in walk(by))


@rule(
    "BH553",
    "train-name-for-all-rows",
    "warning",
    title="What is called after the train rows is made of all rows",
    why="The name says train, the argument is the table that was divided: what is counted, looked up or left out by it knows the held-out rows.",
    remedy="give it the train rows",
    bad="""
        import torch

        def prepare(events, divide, count_items):
            train, test = divide(events)
            train_counts = count_items(events)
            return train, test, torch.as_tensor(train_counts)
        """,
    good="""
        import torch

        def prepare(events, divide, count_items):
            train, test = divide(events)
            train_counts = count_items(train)
            return train, test, torch.as_tensor(train_counts)
        """,
)
def train_name_for_all_rows(subject: Subject) -> Iterator[Place]:
    """`train, test = f(table)`, and further down `train_x = g(table)` with no other argument that speaks of a side."""
    program = subject.program
    for scope in program.scopes:
        for table, line in _divided(scope):
            for name, bindings in scope.bindings.items():
                made = bindings[0].value if len(bindings) == 1 and bindings[0].index is None and bindings[0].how == "assign" else None
                if side_of(name) != "train" or not isinstance(made, ast.Call) or words(name) & NO_ROWS or line_of(made) <= line:
                    continue
                given = [*made.args, *(k.value for k in made.keywords)]
                read = {n for c in given for n in names_read(c)}
                whole = any(isinstance(a, ast.Name) and a.id == table for a in given)
                if whole and not any(side_of(n) or {"idx", "mask", "split", "rows"} & words(n) for n in read - {table}) and not _says_side(made):
                    yield made, f"{name} is made of {table}, which line {line} divided, and not of its train rows"


def _says_side(call: ast.Call) -> bool:
    """Whether anything in a call speaks of a side: `split="train"`, `.train_rows(…)`."""
    strings = [n.value for n in walk(call) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return any(side_of(s) for s in (*strings, last_name(call.func))) or any(isinstance(n, (ast.Subscript, ast.Lambda)) for n in walk(call))


def _divided(scope: Scope) -> Iterator[tuple[str, int]]:
    """Tables that a call divides into sides that are unpacked: the name, and the line."""
    for name, bindings in scope.bindings.items():
        if words(name) != frozenset({"train"}) or len(bindings) != 1 or bindings[0].index is None or not isinstance(bindings[0].value, ast.Call):
            continue
        statement, call = bindings[0].statement, bindings[0].value
        if isinstance(statement, ast.Assign) and statement.value is call:
            sides = {side_of(last_name(e)) for t in statement.targets for e in elements_of(t)}
            if sides & {"test", "val"} and call.args and isinstance(call.args[0], ast.Name) and not any(c is not call for c in calls(call)):
                yield call.args[0].id, line_of(statement)
