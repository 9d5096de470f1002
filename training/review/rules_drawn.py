"""Rules BH467, BH547 and BH548: a parameter that was moved away, weights by which rows are drawn, and held-out rows that are drawn by weights."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import torch_calls
from training.review.program import Program, Scope
from training.review.sides import side_of, side_of_names, targets_of
from training.review.syntax import calls, constant, identifiers, is_true, keyword, last_name, method, receiver, walk
from training.review.values import value_of

MOVES = {"to", "cuda", "half", "float", "double", "bfloat16", "cpu"}


@rule(
    "BH467",
    "parameter-moved-away",
    "error",
    title="A parameter is moved as it is made",
    why="`nn.Parameter(x).to(device)` gives a plain tensor wherever the device or type is another one: the module does not know it, no optimizer moves it, and no checkpoint holds it. On the CPU all is well.",
    remedy="move the data, `nn.Parameter(x.to(device))`, or the whole module afterwards",
    bad="""
        import torch
        from torch import nn

        class Scale(nn.Module):
            def __init__(self, width, device):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(width)).to(device)

            def forward(self, x):
                return x * self.scale
        """,
    good="""
        import torch
        from torch import nn

        class Scale(nn.Module):
            def __init__(self, width, device):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(width, device=device))

            def forward(self, x):
                return x * self.scale
        """,
)
def parameter_moved_away(subject: Subject) -> Iterator[Place]:
    """An attribute is assigned what a move gives of a `nn.Parameter` that is made there."""
    program = subject.program
    for call in program.methods_of(*MOVES):
        made, statement = receiver(call), program.parents[call]
        if isinstance(made, ast.Call) and program.resolve(made.func) in ("torch.nn.Parameter", "torch.nn.parameter.Parameter"):
            target = statement.targets[0] if isinstance(statement, ast.Assign) and statement.value is call else None
            if isinstance(target, ast.Attribute) and program.is_module(program.scope(call).owner):
                yield call, f"{ast.unparse(target)} is no parameter where {method(call)} changes anything"


@rule(
    "BH547",
    "rows-drawn-by-wrong-weights",
    "error",
    title="The weights by which rows are drawn are those of classes, or the wrong way round",
    why="WeightedRandomSampler wants one weight for each row. Given one for each class it draws from the first few rows alone; given counts it draws the frequent class still more often.",
    remedy="`weights = 1.0 / counts[labels]`",
    bad="""
        import torch
        from torch.utils.data import WeightedRandomSampler

        def sampler(labels):
            counts = torch.bincount(labels)
            return WeightedRandomSampler(1.0 / counts, num_samples=len(labels))
        """,
    good="""
        import torch
        from torch.utils.data import WeightedRandomSampler

        def sampler(labels):
            counts = torch.bincount(labels)
            return WeightedRandomSampler(1.0 / counts[labels], num_samples=len(labels))
        """,
)
def rows_drawn_by_wrong_weights(subject: Subject) -> Iterator[Place]:
    """A sampler is given what was made of `bincount` alone, with no position taken of it; or counts at the labels, which nothing divides by."""
    program = subject.program
    for call in torch_calls(program, "WeightedRandomSampler"):
        given = keyword(call, "weights", 0)
        scope = program.scope(call)
        parts = list(_made_of(program, given, scope)) if given is not None else []
        if not any(isinstance(n, ast.Call) and last_name(n.func) == "bincount" for n in parts) or given is None:
            continue
        taken = any(
            isinstance(n, ast.Subscript) or (isinstance(n, ast.Call) and last_name(n.func) in ("gather", "index_select", "take", "tensor")) for n in parts
        )
        turned = any(
            (isinstance(n, ast.BinOp) and isinstance(n.op, (ast.Div, ast.Sub, ast.Pow)))
            or (isinstance(n, ast.Call) and last_name(n.func) in ("reciprocal", "pow", "rsqrt", "div"))
            for n in parts
        )
        if not taken:
            yield call, f"{ast.unparse(given)} has one weight for each class, and one for each row is asked for"
        elif not turned:
            yield call, f"{ast.unparse(given)} are counts: the frequent class is drawn still more often"


def _made_of(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> Iterator[ast.AST]:
    """All nodes of an expression, and of what its names stand for."""
    for inner in walk(node):
        yield inner
        if isinstance(inner, ast.Name) and depth < 4 and (behind := value_of(program, inner, scope)) is not inner:
            yield from _made_of(program, behind, scope, depth + 1)


@rule(
    "BH548",
    "held-out-rows-drawn",
    "error",
    title="Held-out rows are drawn by weights",
    why="A weighted draw takes some rows several times and leaves others out: the score is one of other class shares than those of the table, and changes with the seed.",
    remedy="go through held-out rows once, in order: no sampler; weigh scores by class where that is wanted",
    bad="""
        from torch.utils.data import DataLoader, WeightedRandomSampler

        def loaders(train_set, val_set, w_train, w_val):
            train_loader = DataLoader(train_set, 64, sampler=WeightedRandomSampler(w_train, len(train_set)))
            val_loader = DataLoader(val_set, 64, sampler=WeightedRandomSampler(w_val, len(val_set)))
            return train_loader, val_loader
        """,
    good="""
        from torch.utils.data import DataLoader, WeightedRandomSampler

        def loaders(train_set, val_set, w_train):
            train_loader = DataLoader(train_set, 64, sampler=WeightedRandomSampler(w_train, len(train_set)))
            val_loader = DataLoader(val_set, 64)
            return train_loader, val_loader
        """,
)
def held_out_rows_drawn(subject: Subject) -> Iterator[Place]:
    """A loader of rows that are called validation or test is given a WeightedRandomSampler."""
    program = subject.program
    for call in torch_calls(program, "DataLoader"):
        sampler = keyword(call, "sampler") if call.args else None
        drawn = value_of(program, sampler, program.scope(call)) if sampler is not None else None
        if isinstance(drawn, ast.Call) and program.is_torch(drawn.func, "WeightedRandomSampler") and not _without_repeats(drawn):
            side = side_of(last_name(call.args[0])) or side_of_names(targets_of(program, call))
            if side in ("val", "test") and not {"train"} & {side_of(n) for n in identifiers(call.args[0])}:
                yield call, f"{ast.unparse(call.args[0])} is drawn by weights, with repeats"


def _without_repeats(sampler: ast.Call) -> bool:
    given = keyword(sampler, "replacement", 2)
    return given is not None and not is_true(given) and constant(given) is False and not list(calls(given))
