"""Rules BH314, BH327, BH330, BH431 and BH217: shares that leave nothing, and sums that nobody reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_given
from training.review.program import Binding, Program, Scope
from training.review.syntax import FUNCTIONS, constant, identifiers, is_true, keyword, last_name, method, own_nodes, receiver, walk, words
from training.review.values import value_of
from training.review.whole import LABEL_WORDS

MOST_SMOOTHED, MOST_DROPPED = 0.5, 0.95
DROPOUTS = {"Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "dropout", "dropout1d", "dropout2d", "dropout3d"}
MASKS = {"ones", "ones_like", "new_ones"}
SUMS = {"total", "running", "loss", "losses", "sum", "correct", "right", "hits", "acc", "accuracy", "score", "error", "count", "seen", "rows"}


@rule(
    "BH314",
    "labels-smoothed-away",
    "error",
    title="Label smoothing leaves hardly anything of the labels",
    why="The share that is given is the one that goes to all classes alike: with 0.9 the right class is wanted a little more often than any other, and scores stay flat.",
    remedy="give the share that is taken away, about 0.1",
    bad="""
        from torch import nn

        def criterion():
            return nn.CrossEntropyLoss(label_smoothing=0.9)
        """,
    good="""
        from torch import nn

        def criterion():
            return nn.CrossEntropyLoss(label_smoothing=0.1)
        """,
)
def labels_smoothed_away(subject: Subject) -> Iterator[Place]:
    """A loss of torch is given a label smoothing above a half."""
    for call in calls_given(subject.program, "label_smoothing"):
        share = constant(keyword(call, "label_smoothing"))
        if subject.program.resolve(call.func).startswith("torch.nn.") and isinstance(share, (int, float)) and share > MOST_SMOOTHED:
            yield call, f"label_smoothing={share} gives {share:.0%} of each label to all classes alike"


@rule(
    "BH327",
    "weight-of-the-frequent-class",
    "error",
    title="pos_weight is the share of positives, not its inverse",
    why="`pos_weight` multiplies the loss of positive rows. To even out classes it is negatives / positives; the other way round the rare class, which counts little anyway, counts still less.",
    remedy="`pos_weight = negatives / positives`, of the train rows",
    bad="""
        import torch
        from torch import nn

        def criterion(y):
            positives, negatives = (y == 1).sum(), (y == 0).sum()
            return nn.BCEWithLogitsLoss(pos_weight=positives / negatives)
        """,
    good="""
        import torch
        from torch import nn

        def criterion(y):
            positives, negatives = (y == 1).sum(), (y == 0).sum()
            return nn.BCEWithLogitsLoss(pos_weight=negatives / positives)
        """,
)
def weight_of_frequent_class(subject: Subject) -> Iterator[Place]:
    """`pos_weight` is a quotient of what is called positive, or counted where labels are 1, by what is called negative, or counted where they are 0."""
    program = subject.program
    for call in calls_given(program, "pos_weight"):
        given = keyword(call, "pos_weight")
        scope = program.scope(call)
        value = value_of(program, given, scope) if given is not None else None
        inner = value.args[0] if isinstance(value, ast.Call) and last_name(value.func) in ("tensor", "as_tensor") and value.args else value
        inner = inner.elts[0] if isinstance(inner, ast.List) and len(inner.elts) == 1 else inner
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Div) and given is not None:
            above, below = (_class_counted(program, side, scope) for side in (inner.left, inner.right))
            if above == "positive" and below == "negative":
                yield given, f"{ast.unparse(inner)} is small where positives are rare: it is to be the other way round"


@rule(
    "BH330",
    "bias-of-the-other-class",
    "error",
    title="The first scores are those of the other class",
    why="The bias that gives the share p of positives is log(p / (1 - p)). With the quotient turned round rare positives begin as near certain: the first steps undo it, with the largest gradients of the run.",
    remedy="`math.log(p / (1 - p))`",
    bad="""
        import math
        from torch import nn

        def head(width, positives):
            layer = nn.Linear(width, 1)
            nn.init.constant_(layer.bias, math.log((1 - positives) / positives))
            return layer
        """,
    good="""
        import math
        from torch import nn

        def head(width, positives):
            layer = nn.Linear(width, 1)
            nn.init.constant_(layer.bias, math.log(positives / (1 - positives)))
            return layer
        """,
)
def bias_of_the_other_class(subject: Subject) -> Iterator[Place]:
    """A bias is filled with the logarithm of `(1 - p) / p`, without a minus before it."""
    program = subject.program
    for call in program.calls_of("constant_", "fill_"):
        constant_to = last_name(call.func) == "constant_" and len(call.args) == 2
        filled, given = (call.args[0], call.args[1]) if constant_to else (receiver(call), call.args[0] if call.args and method(call) == "fill_" else None)
        if filled is None or given is None or "bias" not in {w for n in identifiers(filled) for w in words(n)}:
            continue
        for value in [value_of(program, given, program.scope(call))]:
            inner = value.args[0] if isinstance(value, ast.Call) and last_name(value.func) == "log" and value.args else None
            if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Div) and _rest_of(inner.left, inner.right) and not _negative(inner.right):
                yield value, f"{ast.unparse(value)} is the score of the share 1 - {ast.unparse(inner.right)}"


def _rest_of(node: ast.expr, share: ast.expr) -> bool:
    """Whether it is one minus a share."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and constant(node.left) in (1, 1.0) and ast.dump(node.right) == ast.dump(share)


def _negative(share: ast.expr) -> bool:
    """Whether a share is called after the negative rows."""
    return bool({w for n in identifiers(share) for w in words(n)} & {"neg", "negative", "negatives", "q"})


def _class_counted(program: Program, node: ast.expr, scope: Scope) -> str:
    """Of which of two classes something is the count, by its name or by what it compares labels with."""
    named = {w for n in identifiers(node) for w in words(n)}
    if named & {"pos", "positive", "positives", "npos"} or named & {"neg", "negative", "negatives", "nneg"}:
        both = named & {"pos", "positive", "positives", "npos"} and named & {"neg", "negative", "negatives", "nneg"}
        return "" if both else "positive" if named & {"pos", "positive", "positives", "npos"} else "negative"
    made = value_of(program, node, scope)
    if method(made) == "sum" and (counted := receiver(made)) is not None:  # of labels 0 and 1: `y.sum()`, `(1 - y).sum()`
        turned = isinstance(counted, ast.BinOp) and isinstance(counted.op, ast.Sub) and constant(counted.left) in (1, 1.0)
        labels = counted.right if turned and isinstance(counted, ast.BinOp) else counted
        if words(last_name(labels)) & LABEL_WORDS:
            return "negative" if turned else "positive"
    against = {constant(n.comparators[0]) for n in walk(made) if isinstance(n, ast.Compare) and isinstance(n.ops[0], ast.Eq)}
    return "positive" if against == {1} else "negative" if against == {0} else ""


@rule(
    "BH431",
    "dropout-of-nearly-all",
    "error",
    title="Dropout leaves next to nothing",
    why="The share that is given is the one that is dropped: with 0.98 one value of fifty is left, and what is learned is noise.",
    remedy="give the share that is dropped, about 0.1 to 0.5",
    bad="""
        from torch import nn

        def block(width):
            return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.98))
        """,
    good="""
        from torch import nn

        def block(width):
            return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.2))
        """,
)
def dropout_of_nearly_all(subject: Subject) -> Iterator[Place]:
    """A dropout of torch is given a share of 0.95 or more."""
    program = subject.program
    for call in program.calls_of(*DROPOUTS):
        if not program.resolve(call.func).startswith("torch.nn."):
            continue
        share = constant(keyword(call, "p", 1 if last_name(call.func).islower() else 0))
        is_mask = bool(call.args) and isinstance(call.args[0], ast.Call) and last_name(call.args[0].func) in MASKS
        if is_mask or (share == 1 and (is_true(keyword(call, "training", 2)) or _without_gradients(program, call))):
            continue
        if isinstance(share, (int, float)) and not isinstance(share, bool) and share >= MOST_DROPPED:
            yield call, f"{share:.0%} of all values are dropped"


def _without_gradients(program: Program, call: ast.Call) -> bool:
    """Whether the function has no gradients: what it leaves out altogether is left out for a comparison."""
    node = program.scope(call).node
    return isinstance(node, FUNCTIONS) and any({"no_grad", "inference_mode"} & identifiers(d) for d in node.decorator_list)


@rule(
    "BH217",
    "sum-never-read",
    "warning",
    title="A sum over batches is never read",
    why="What is reported is something else: often the value of the last batch, which was meant for a part of the sum.",
    remedy="return the sum, divided by what was counted; or delete it",
    bad="""
        import torch

        @torch.no_grad()
        def evaluate(model, val_loader, loss_fn):
            model.eval()
            total = 0.0
            for x, y in val_loader:
                loss = loss_fn(model(x), y)
                total += loss.item() * len(y)
            return loss.item()
        """,
    good="""
        import torch

        @torch.no_grad()
        def evaluate(model, val_loader, loss_fn):
            model.eval()
            total = 0.0
            for x, y in val_loader:
                loss = loss_fn(model(x), y)
                total += loss.item() * len(y)
            return total / len(val_loader.dataset)
        """,
)
def sum_never_read(subject: Subject) -> Iterator[Place]:
    """In a function that returns a value, a sum that a loop over batches adds up is read nowhere, and the loop's own value is returned."""
    program = subject.program
    for scope in (s for s in program.scopes if s.name):
        sums = {name: added for name, bindings in scope.bindings.items() if words(name) & SUMS and (added := _added_up(program, bindings))}
        if not sums:
            continue
        read = {n.id for n in walk(scope.node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        returned = {name for n in own_nodes(scope.node) if isinstance(n, ast.Return) and n.value is not None for name in identifiers(n.value)}
        shared = {n for s in walk(scope.node) if isinstance(s, (ast.Global, ast.Nonlocal)) for n in s.names}
        for name, added in sums.items():
            if name in read or name in scope.parameters or name in shared:
                continue
            loop = next(a for a in program.ancestors(added.statement) if isinstance(a, ast.For))
            made = {n.id for n in walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            if last := sorted(returned & made & identifiers(added.value)):
                yield added.statement, f"{name} is added up and never read; {last[0]}, of the last batch, is returned", loop


def _added_up(program: Program, bindings: list[Binding]) -> Binding | None:
    """Where a name is added to in a loop."""
    return next((b for b in bindings if b.how == "augment" and any(isinstance(a, ast.For) for a in program.ancestors(b.statement))), None)
