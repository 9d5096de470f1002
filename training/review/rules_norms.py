"""Rules BH457 and BH464: a batch norm that stands at several places of one pass, and vectors whose length is taken over the batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to, torch_calls
from training.review.program import Program, Scope
from training.review.syntax import calls, constant, dotted, is_false, keyword, last_name, method, names_read, own_nodes, walk
from training.review.values import reaching

NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
DEPTH = 8  # how many names a value is followed through


@rule(
    "BH457",
    "norm-at-two-places",
    "warning",
    title="One batch norm stands at several places",
    why="In training each place is normalised by its own batch. The running statistics are a mixture of all of them and fit none: in eval mode the network computes something else than what was trained.",
    remedy="give each place a norm of its own",
    bad="""
        from torch import nn

        class Net(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.first, self.second = nn.Conv2d(3, width, 3), nn.Conv2d(width, width, 3)
                self.norm = nn.BatchNorm2d(width)

            def forward(self, x):
                x = self.norm(self.first(x)).relu()
                return self.norm(self.second(x)).relu()
        """,
    good="""
        from torch import nn

        class Net(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.first, self.second = nn.Conv2d(3, width, 3), nn.Conv2d(width, width, 3)
                self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

            def forward(self, x):
                x = self.norm1(self.first(x)).relu()
                return self.norm2(self.second(x)).relu()
        """,
)
def norm_at_two_places(subject: Subject) -> Iterator[Place]:
    """What a batch norm is given was computed from what the same one gave, or by a layer of a list that it follows one after the other; a Sequential that names one twice."""
    program = subject.program
    if not torch_calls(program, *NORMS):
        return
    for owner in program.module_classes:
        for name, bindings in program.attributes[owner].items():
            if len(bindings) == 1 and bindings[0].index is None and _is_norm(program, bindings[0].value):
                for scope in program.methods[owner].values():
                    asked = [c for c in calls(scope.node) if dotted(c.func) == f"self.{name}" and c.args]
                    again = next((c for c in asked if _comes_from(program, c.args[0], c, scope, 0) or _follows_each(program, c)), None)
                    if again is not None:
                        yield again, f"self.{name} is gone through again by what came out of it: its running statistics are those of no place"
    for call in torch_calls(program, "Sequential"):
        given = [a.id for a in call.args if isinstance(a, ast.Name)]
        for name in (n for n in dict.fromkeys(given) if given.count(n) > 1):
            bound = program.scope(call).bindings.get(name, ())
            if len(bound) == 1 and bound[0].index is None and _is_norm(program, bound[0].value):
                yield call, f"{name} stands there {given.count(name)} times: its running statistics are those of no place"


def _is_norm(program: Program, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and program.is_torch(node.func, *NORMS) and not is_false(keyword(node, "track_running_stats", 4))


def _comes_from(program: Program, node: ast.expr, norm: ast.Call, scope: Scope, depth: int) -> bool:
    """Whether a value was computed from another call of the same norm, which is in no other branch."""
    own = dotted(norm.func)
    if any(c is not norm and dotted(c.func) == own and not _in_other_branch(program, c, norm) for c in calls(node)):
        return True
    names = [n for n in walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)] if depth < DEPTH else []
    found = (value for n in names for value in reaching(program, n, scope))
    return any(value is not node and norm not in calls(value) and _comes_from(program, value, norm, scope, depth + 1) for value in found)


def _in_other_branch(program: Program, a: ast.AST, b: ast.AST) -> bool:
    """Whether of two calls at most one runs."""
    around = [list(program.ancestors(n)) for n in (a, b)]
    for branch in (n for n in around[0] if isinstance(n, (ast.If, ast.IfExp, ast.Match)) and n in around[1]):
        if isinstance(branch, ast.If):
            sides = [any(s in path for s in branch.orelse) for path in around]
            if sides[0] != sides[1]:
                return True
        else:
            return True
    return False


def _follows_each(program: Program, norm: ast.Call) -> bool:
    """Whether the norm stands in a loop over layers of the network, and is given what each of them makes."""
    loop = next((a for a in program.ancestors(norm) if isinstance(a, ast.For)), None)
    if loop is None or not dotted(loop.iter).startswith("self.") or not isinstance(loop.target, ast.Name):
        return False
    made = {
        last_name(t)
        for n in own_nodes(loop)
        if isinstance(n, ast.Assign) and any(last_name(c.func) == loop.target.id for c in calls(n.value))
        for t in n.targets
    }
    return any(last_name(c.func) == loop.target.id for c in calls(norm.args[0])) or bool(names_read(norm.args[0]) & made)


@rule(
    "BH464",
    "length-over-the-batch",
    "error",
    title="Vectors are brought to length one along the batch",
    why="`normalize(x, dim=0)` divides each feature by its length over all rows: what is compared afterwards are no cosines, and a row's vector depends on which rows are beside it.",
    remedy="`F.normalize(x, dim=-1)`, and `cosine_similarity(a, b, dim=-1)`",
    bad="""
        import torch.nn.functional as F

        def similarities(image, text):
            image, text = F.normalize(image, dim=0), F.normalize(text, dim=0)
            return image @ text.T
        """,
    good="""
        import torch.nn.functional as F

        def similarities(image, text):
            image, text = F.normalize(image, dim=-1), F.normalize(text, dim=-1)
            return image @ text.T
        """,
)
def length_over_the_batch(subject: Subject) -> Iterator[Place]:
    """What `normalize` gave along dimension 0 stands on the left of a product with something transposed; or a network's own outputs are compared by cosine along it."""
    program = subject.program
    for node in program.nodes[ast.BinOp]:
        turned = node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) else None
        if turned is None or not isinstance(node, ast.BinOp) or not (last_name(turned) in ("T", "mT") or method(turned) in ("t", "transpose")):
            continue
        left = node.left.right if isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.Mult) else node.left
        found = reaching(program, left, program.scope(node)) if isinstance(left, ast.Name) else [left]
        made = found[0] if len(found) == 1 else None
        if isinstance(made, ast.Call) and program.resolve(made.func) == "torch.nn.functional.normalize" and constant(keyword(made, "dim", 2)) == 0:
            yield made, f"{ast.unparse(made)} divides by lengths over the rows, whose products are taken in line {node.lineno}"
    for call in calls_to(program, "torch.nn.functional.cosine_similarity"):
        scope = program.scope(call)
        own = scope.name == "forward" and program.is_module(scope.owner)
        along = constant(keyword(call, "dim", 2)) == 0
        if own and along and all(isinstance(a, ast.Call) and dotted(a.func).startswith("self.") for a in call.args[:2]):
            yield call, "the cosine is taken over the rows of the batch, feature by feature"
