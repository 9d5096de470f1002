"""Rules BH465 and BH466: attention that is shared out among queries, heads that are not put back."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import calls, constant, keyword, last_name, method, receiver, walk
from training.review.values import reaching

FOUR = 4  # sizes of heads


@rule(
    "BH465",
    "shared-out-among-queries",
    "error",
    title="The weights of attention are shared out among the queries",
    why="`softmax` over dimension -2 of queries times keys lets the weights of each key add up to one, not those of each query: what a token gets is a sum of any size, and with a causal mask depends on later tokens.",
    remedy="`scores.softmax(dim=-1)`",
    bad="""
        from torch import nn

        class Attention(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.width = width
                self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

            def forward(self, x):
                scores = self.q(x) @ self.k(x).transpose(-2, -1) / self.width**0.5
                return scores.softmax(dim=-2) @ self.v(x)
        """,
    good="""
        from torch import nn

        class Attention(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.width = width
                self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

            def forward(self, x):
                scores = self.q(x) @ self.k(x).transpose(-2, -1) / self.width**0.5
                return scores.softmax(dim=-1) @ self.v(x)
        """,
)
def shared_out_among_queries(subject: Subject) -> Iterator[Place]:
    """A softmax over dimension -2 is the left side of a product, as it is or by its name, and nothing divides it by its sum: slots that compete do."""
    program = subject.program
    for node in program.nodes[ast.BinOp]:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)):
            continue
        scope = program.scope(node)
        found = reaching(program, node.left, scope) if isinstance(node.left, ast.Name) else [node.left]
        made = _without_dropout(found[0]) if len(found) == 1 else None
        if not isinstance(made, ast.Call) or last_name(made.func) != "softmax":
            continue
        over = keyword(made, "dim", 1 if program.resolve(made.func).startswith("torch.") else 0)
        if constant(over) == -2 and _of_product(program, made, scope):
            yield made, "the weights of each key add up to one, not those of each query"


def _without_dropout(node: ast.expr) -> ast.expr:
    """Weights as they are before some are dropped."""
    while isinstance(node, ast.Call) and "drop" in last_name(node.func) and node.args:
        node = node.args[0]
    return node


def _of_product(program: Program, softmax: ast.Call, scope: Scope) -> bool:
    """Whether a softmax is taken of a product with something transposed."""
    on = softmax.args[0] if program.resolve(softmax.func).startswith("torch.") and softmax.args else receiver(softmax)
    found = [on, *(reaching(program, on, scope) if isinstance(on, ast.Name) else ())]
    products = [n for part in found if part is not None for n in walk(part) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult)]
    return any(method(p.right) in ("transpose", "permute", "t") or last_name(p.right) in ("T", "mT") for p in products)


@rule(
    "BH466",
    "heads-not-put-back",
    "error",
    title="Heads are joined without being put back",
    why="Behind attention the tensor is [rows, heads, tokens, width]. Viewed as [rows, tokens, heads * width] as it lies in memory a token gets pieces of other tokens, all of one head. Shapes fit, nothing raises.",
    remedy="`mixed.transpose(1, 2).reshape(rows, tokens, heads * width)`",
    bad="""
        from torch import nn

        class Attention(nn.Module):
            def __init__(self, width, heads):
                super().__init__()
                self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

            def forward(self, x):
                b, t, w = x.shape
                q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
                mixed = (q @ k.transpose(-2, -1) / (w / self.heads) ** 0.5).softmax(-1) @ v
                return self.out(mixed.reshape(b, t, w))
        """,
    good="""
        from torch import nn

        class Attention(nn.Module):
            def __init__(self, width, heads):
                super().__init__()
                self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

            def forward(self, x):
                b, t, w = x.shape
                q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
                mixed = (q @ k.transpose(-2, -1) / (w / self.heads) ** 0.5).softmax(-1) @ v
                return self.out(mixed.transpose(1, 2).reshape(b, t, w))
        """,
)
def heads_not_put_back(subject: Subject) -> Iterator[Place]:
    """What attention gave is reshaped at once to three sizes, of which the first two are those of the input, where heads were put in front of tokens before."""
    program = subject.program
    for call in program.methods_of("reshape", "view"):
        on, scope = receiver(call), program.scope(call)
        sizes = call.args[0].elts if len(call.args) == 1 and isinstance(call.args[0], ast.Tuple) else call.args
        if len(sizes) != 3 or on is None or scope.owner is None:
            continue
        while isinstance(on, ast.Call) and method(on) == "contiguous":
            on = receiver(on) or ast.Constant(None)
        found = reaching(program, on, scope) if isinstance(on, ast.Name) else [on]
        if len(found) != 1 or not _is_attention(program, found[0], scope) or not _rows_and_tokens(scope, sizes):
            continue
        if _heads_in_front(program, scope):
            yield call, f"{ast.unparse(call)} joins [rows, heads, tokens, width] as it lies in memory"


def _is_attention(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether it is softmax of something times values, as it is or by the name of the weights, or torch's own function."""
    if isinstance(node, ast.Call):
        return last_name(node.func) == "scaled_dot_product_attention"
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)):
        return False
    found = reaching(program, node.left, scope) if isinstance(node.left, ast.Name) else [node.left]
    return len(found) == 1 and any(last_name(c.func) == "softmax" for c in calls(found[0]))


def _rows_and_tokens(scope: Scope, sizes: list[ast.expr]) -> bool:
    """Whether the first two sizes are names that are unpacked in this order from the shape of something."""
    names = [n.id for n in sizes[:2] if isinstance(n, ast.Name)]
    if len(names) != 2:
        return False
    rows, tokens = (scope.bindings.get(n, []) for n in names)
    if len(rows) != 1 or len(tokens) != 1:
        return False
    return (rows[0].index, tokens[0].index) == (0, 1) and rows[0].statement is tokens[0].statement


def _heads_in_front(program: Program, scope: Scope) -> bool:
    """Whether four sizes or five were made and tokens put behind heads, once for queries, keys and values."""
    for call in calls(scope.node):
        of = receiver(call)
        if (
            method(call) == "transpose"
            and [constant(a) for a in call.args] in ([1, 2], [2, 1])
            and isinstance(of, ast.Call)
            and method(of) in ("view", "reshape", "unflatten")
        ):
            return len(of.args) >= FOUR or method(of) == "unflatten"
        if method(call) == "permute" and [constant(a) for a in call.args] in ([2, 0, 3, 1, 4], [0, 2, 1, 3]):
            return True
    return False
