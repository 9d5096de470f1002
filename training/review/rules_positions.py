"""Rule BH458: positions that are counted along the batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import torch_calls
from training.review.program import Program
from training.review.syntax import calls, constant, dotted, identifiers, is_true, keyword, last_name, method, own_nodes, walk

TURNS = {"transpose", "permute", "rearrange", "swapaxes", "movedim", "mT", "T"}
BATCH_FIRST = ("TransformerEncoderLayer", "TransformerDecoderLayer", "MultiheadAttention", "Transformer", "LSTM", "GRU")


@rule(
    "BH458",
    "positions-along-batch",
    "error",
    title="Positions are counted along the batch",
    why="The table is one of [places, 1, width], for tokens with time in front. With rows in front each row gets the place of its number in the batch, the same for all its tokens: order is not told, and a prediction depends on where in the batch a row stands.",
    remedy="keep the table as [1, places, width] and add `self.pe[:, : x.size(1)]`",
    bad="""
        import torch
        from torch import nn

        class Positions(nn.Module):
            def __init__(self, width, longest=512):
                super().__init__()
                self.register_buffer("pe", torch.randn(longest, 1, width))

            def forward(self, x):
                return x + self.pe[: x.size(0)]

        class Encoder(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.positions = Positions(width)
                self.layer = nn.TransformerEncoderLayer(width, 4, batch_first=True)

            def forward(self, x):
                return self.layer(self.positions(x))
        """,
    good="""
        import torch
        from torch import nn

        class Positions(nn.Module):
            def __init__(self, width, longest=512):
                super().__init__()
                self.register_buffer("pe", torch.randn(1, longest, width))

            def forward(self, x):
                return x + self.pe[:, : x.size(1)]

        class Encoder(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.positions = Positions(width)
                self.layer = nn.TransformerEncoderLayer(width, 4, batch_first=True)

            def forward(self, x):
                return self.layer(self.positions(x))
        """,
)
def positions_along_batch(subject: Subject) -> Iterator[Place]:
    """A table of [places, 1, width] is cut to the first size of what is given and added to it, in a file whose layers are all batch_first and that turns no axes."""
    program = subject.program
    layers = torch_calls(program, *BATCH_FIRST)
    first = [is_true(keyword(c, "batch_first")) for c in layers]
    for owner in program.module_classes if layers and all(first) else ():
        forward = program.methods[owner].get("forward")
        if forward is None or program.methods_of(*TURNS) or not forward.parameters[1:]:
            continue
        given = forward.parameters[1]
        for node in own_nodes(forward.node):
            if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and dotted(node.value.value) == "self"):
                continue
            cut = node.slice.upper if isinstance(node.slice, ast.Slice) and node.slice.lower is None else None
            if (
                cut is not None
                and _first_size(cut, given)
                and _with_one_in_the_middle(program, owner, node.value.attr)
                and isinstance(program.parents[node], ast.BinOp)
            ):
                yield node, f"{ast.unparse(node)} gives the row i of a batch the place i, and {last_name(layers[0].func)} has batch_first=True"


def _first_size(node: ast.expr, given: str) -> bool:
    """`x.size(0)`, `x.shape[0]` or `len(x)`."""
    return ast.unparse(node) in (f"{given}.size(0)", f"{given}.shape[0]", f"len({given})", f"{given}.size(dim=0)")


def _with_one_in_the_middle(program: Program, owner: ast.ClassDef, name: str) -> bool:
    """Whether a buffer or parameter of that name was made with three sizes, the second of them 1."""
    init = program.methods[owner].get("__init__")
    made = [b.value for b in program.attributes[owner].get(name, [])]
    if init is not None:
        made += [c.args[1] for c in calls(init.node) if method(c) == "register_buffer" and len(c.args) > 1 and constant(c.args[0]) == name]
        for value in list(made):
            made += [b.value for n in walk(value) if isinstance(n, ast.Name) for b in init.bindings.get(n.id, ())]
    sized = [c for value in made for c in calls(value) if last_name(c.func) in ("zeros", "randn", "empty", "rand") and len(c.args) > 2]
    inserted = any(
        method(c) == "unsqueeze" and [constant(a) for a in c.args] == [1] for value in made for c in calls(value) if "arange" not in identifiers(value)
    )
    return inserted or any(constant(c.args[1]) == 1 for c in sized)
