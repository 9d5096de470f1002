"""Rule BH315: a reconstruction that is a mean over all values beside a divergence that is a sum over latents, or over the whole batch."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope, argument
from training.review.rules_divergence import divergence_sign
from training.review.syntax import calls, constant, defaults, identifiers, last_name, method, own_nodes, receiver, walk, words

MEANS = {"mse_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "l1_loss", "smooth_l1_loss"}
DEPTH = 3  # how many names a factor is followed through
COUNTS = 0.01  # a factor from which a sum over rows is no mere change of scale


@rule(
    "BH315",
    "divergence-outweighs-reconstruction",
    "warning",
    title="A mean over all values is added to a sum over latents",
    why="The divergence counts as many times more as there are values in a row: the latents are pushed to the prior, and every reconstruction is the average row.",
    remedy="sum both over a row's values and average over rows: `reduction='none'` and `.flatten(1).sum(1).mean()`; or weigh the divergence",
    bad="""
        import torch
        from torch.nn import functional as F

        def loss(x, x_hat, mu, logvar):
            kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1).mean()
            return F.mse_loss(x_hat, x) + kl
        """,
    good="""
        import torch
        from torch.nn import functional as F

        def loss(x, x_hat, mu, logvar):
            kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1).mean()
            return F.mse_loss(x_hat, x, reduction="none").flatten(1).sum(1).mean() + kl
        """,
)
def divergence_outweighs_reconstruction(subject: Subject) -> Iterator[Place]:
    """`rec + kl` without a factor, in the function that makes both or where it is unpacked: the one of the default reduction, the other summed.

    With a factor, that is nowhere below 1 % as far as the file tells and divides by no number of rows: the other summed over the rows of the batch as well.
    """
    program = subject.program
    for node in program.nodes[ast.BinOp]:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            scope = program.scope(node)
            sides = {_kind(program, side, scope) for side in (node.left, node.right)}
            if sides == {"mean", "sum"}:
                yield node, "the reconstruction is a mean over all values, and the divergence, unweighted, a sum over latents"
            elif "mean" in sides:
                for side in (node.left, node.right):
                    if (factor := _weighted_whole(program, side, scope)) is not None:
                        yield (
                            node,
                            f"the reconstruction is a mean over all values, and the divergence, times {ast.unparse(factor)}, a sum over latents and all rows of the batch",
                        )


def _weighted_whole(program: Program, node: ast.expr, scope: Scope) -> ast.expr | None:
    """The factor of a divergence that is summed over everything; None for anything else."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return None
    for factor, of in ((node.left, node.right), (node.right, node.left)):
        if _kind(program, of, scope) == "sum" and _whole(program, of, scope) and _largest(program, factor, scope) >= COUNTS:
            return factor
    return None


def _whole(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Whether the sum of a divergence is taken over all axes."""
    if isinstance(node, ast.Name) and depth < 4:
        bound = scope.bindings.get(node.id, [])
        return len(bound) == 1 and bound[0].index is None and _whole(program, bound[0].value, scope, depth + 1)
    sums = [c for c in calls(node) if last_name(c.func) == "sum"]
    return len(sums) == 1 and not sums[0].keywords and len(sums[0].args) == (program.resolve(sums[0].func) == "torch.sum")


def _largest(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> float:
    """The largest number in a factor and in what its names hold, those of callers too; 0 where nothing is known, infinitely little where it counts rows."""
    if {"len", "shape", "size", "numel"} & identifiers(node) or any("batch" in words(n) for n in identifiers(node)):
        return -math.inf
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)) and depth < DEPTH:
        left, right = (_largest(program, side, scope, depth + 1) for side in (node.left, node.right))
        if isinstance(node.op, ast.Div) and right:
            return left / right
        return left * right if isinstance(node.op, ast.Mult) and left > 0 and right > 0 else max(left, right)
    if isinstance(node, ast.Call) and last_name(node.func) == "min" and depth < DEPTH:
        return min((v for a in node.args if (v := _largest(program, a, scope, depth + 1))), default=0.0)
    known = [float(n.value) for n in walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, (int, float))]
    for name in (n for n in walk(node) if isinstance(n, ast.Name)):
        values = [(b.value, b.scope) for b in program.bindings_of(name, scope) if b.how == "assign"] if depth < DEPTH else []
        if name.id in scope.parameters:
            values += [(given, caller) for call, caller in program.call_sites[scope] if (given := argument(call, scope, name.id)) is not None]
        values += [(default, program.top)] if (default := defaults(scope.node).get(name.id)) is not None and not values else []
        found = [_largest(program, value, where, depth + 1) for value, where in (values if depth < DEPTH else ())]
        if -math.inf in found:
            return -math.inf
        known += found
    return max(known, default=0.0)


def _kind(program: Program, node: ast.expr, scope: Scope, depth: int = 0, index: int | None = None) -> str:
    """`mean` for a loss over all values with the default reduction, `sum` for a divergence summed over latents; empty for anything else."""
    if depth > 4:
        return ""
    if isinstance(node, ast.Name):
        bound = scope.bindings.get(node.id, [])
        return _kind(program, bound[0].value, scope, depth + 1, bound[0].index) if len(bound) == 1 and bound[0].how == "assign" else ""
    if isinstance(node, ast.Tuple) and index is not None and index < len(node.elts):
        return _kind(program, node.elts[index], scope, depth + 1)
    if isinstance(node, ast.Call):
        plain = not any(k.arg in ("reduction", "weight", "reduce", "size_average") for k in node.keywords)
        if program.is_torch(node.func, *MEANS) and index is None:
            return "mean" if plain and len(node.args) == 2 else ""
        function = program.callees_by_name(node, scope)
        if function is not None:
            returned = [n.value for n in own_nodes(function.node) if isinstance(n, ast.Return) and n.value is not None]
            return _kind(program, returned[0], function, depth + 1, index) if len(returned) == 1 else ""
    return "sum" if index is None and _summed(program, node) else ""


def _summed(program: Program, node: ast.expr) -> bool:
    """`-0.5 * (1 + logvar - mu² - exp(logvar)).sum(…)`, averaged over rows perhaps, and multiplied or divided by nothing else."""
    while True:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            node = node.operand
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and abs(_half(node.left)) == 0.5:
            node = node.right
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and abs(_half(node.right)) == 0.5:
            node = node.left
        elif isinstance(node, ast.Call) and method(node) == "mean" and not program.resolve(node.func) and isinstance(of := receiver(node), ast.expr):
            node = of
        elif isinstance(node, ast.Call) and program.resolve(node.func) == "torch.mean" and len(node.args) == 1:
            node = node.args[0]
        else:
            break
    if not (isinstance(node, ast.Call) and last_name(node.func) == "sum"):
        return False
    inner = node.args[0] if program.resolve(node.func) == "torch.sum" and node.args else receiver(node)
    while isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Mult) and 0.5 in (abs(_half(inner.left)), abs(_half(inner.right))):
        inner = inner.right if abs(_half(inner.left)) == 0.5 else inner.left
    return isinstance(inner, ast.BinOp) and divergence_sign(inner) != 0


def _half(node: ast.expr) -> float:
    value = constant(node)
    return float(value) if isinstance(value, (int, float)) else 0.0
