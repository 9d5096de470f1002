"""Rules BH441: to BH444: layers that are given something else than they take."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import torch_calls
from training.review.syntax import is_true, keyword, last_name, words

DROPOUTS = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "dropout")
KEPT = {"keep", "keeprate", "keepprob", "retain", "keeping", "kept"}


@rule(
    "BH441",
    "keep-rate-as-drop-rate",
    "error",
    title="Dropout is given the share to keep",
    why="The argument is the share that is dropped: at keep=0.9 nine units in ten are 0, and the network hardly learns.",
    remedy="`nn.Dropout(1 - keep)`",
    bad="""
        from torch import nn

        def head(width, keep=0.9):
            return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Dropout(keep), nn.Linear(64, 1))
        """,
    good="""
        from torch import nn

        def head(width, keep=0.9):
            return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Dropout(1 - keep), nn.Linear(64, 1))
        """,
)
def keep_rate_as_drop_rate(subject: Subject) -> Iterator[Place]:
    """The probability of a torch dropout is a name that speaks of keeping, as it is."""
    program = subject.program
    for call in torch_calls(program, *DROPOUTS):
        given = keyword(call, "p", 1 if last_name(call.func) == "dropout" else 0)
        if isinstance(given, (ast.Name, ast.Attribute)) and KEPT & words(last_name(given)):
            yield call, f"{ast.unparse(given)} is dropped, by its name it is to be kept"


@rule(
    "BH444",
    "skip-changed-in-place",
    "error",
    title="The first layer of a residual branch changes the skip",
    why="An activation in place works on the very tensor that is added afterwards: the skip loses all negative values, and their gradient.",
    remedy="`inplace=False` for the first activation of the branch",
    bad="""
        from torch import nn

        class Block(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.body = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, width))

            def forward(self, x):
                return x + self.body(x)
        """,
    good="""
        from torch import nn

        class Block(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.body = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, width))

            def forward(self, x):
                return x + self.body(x)
        """,
)
def skip_changed_in_place(subject: Subject) -> Iterator[Place]:
    """`x + self.body(x)`, where the body is a Sequential of this class whose first layer has `inplace=True`."""
    program = subject.program
    for node in program.nodes[ast.BinOp] if torch_calls(program, "Sequential") else ():
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
            continue
        scope = program.scope(node)
        for skip, branch in ((node.left, node.right), (node.right, node.left)):
            factors = [branch.left, branch.right] if isinstance(branch, ast.BinOp) and isinstance(branch.op, ast.Mult) else [branch]
            called = next((f for f in factors if isinstance(f, ast.Call)), None)
            if not (isinstance(skip, ast.Name) and isinstance(called, ast.Call) and len(called.args) == 1 and last_name(called.args[0]) == skip.id):
                continue
            made = [o.call for o in program.origins(called.func, scope) if o.name == "torch.nn.Sequential" and o.call.args]
            first = made[0].args[0] if len(made) == 1 else None
            if isinstance(first, ast.Call) and is_true(keyword(first, "inplace", 0 if last_name(first.func) in ("ReLU", "SiLU", "Mish") else 1)):
                yield first, f"{last_name(first.func)} changes {skip.id} in place, which is added in line {node.lineno}", node
