"""Rules BH448 to BH450: penalties that teach nothing, that are rewarded, or that are of the wrong rows."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.bootstraps import made_of
from training.review.findings import Place, Subject, rule
from training.review.lookups import keywords_of
from training.review.program import Program, Scope
from training.review.signs import Signs
from training.review.slopes import slopes, terms
from training.review.syntax import constant, identifiers, is_false, keyword, last_name, names_read, receiver, walk, words

OF_LOSSES = {"loss", "losses", "cost", "objective", "total", "err", "error"}
PENALTIES = {"gp", "penalty", "penalties", "regularizer", "regulariser", "regularization", "regularisation", "reg"}
WANTED = {"entropy", "ent", "entropies", "diversity", "bonus", "confidence", "conf", "variance", "spread", "log", "logsumexp", "reward", "exploration"}
GROWING = {"pow", "square", "norm", "abs", "relu"}


@rule(
    "BH448",
    "penalty-without-graph",
    "error",
    title="A penalty on a gradient has no gradient of its own",
    why="Without `create_graph=True` the gradient is a plain number for autograd: the penalty is added to the loss, is printed, and changes no weight.",
    remedy="`torch.autograd.grad(scores.sum(), points, create_graph=True)`",
    bad="""
        import torch

        def update(critic, optimizer, points, loss, weight):
            slope = torch.autograd.grad(critic(points).sum(), points)[0]
            penalty = ((slope.flatten(1).norm(dim=1) - 1) ** 2).mean()
            loss = loss + weight * penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    good="""
        import torch

        def update(critic, optimizer, points, loss, weight):
            slope = torch.autograd.grad(critic(points).sum(), points, create_graph=True)[0]
            penalty = ((slope.flatten(1).norm(dim=1) - 1) ** 2).mean()
            loss = loss + weight * penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
)
def penalty_without_graph(subject: Subject) -> Iterator[Place]:
    """`torch.autograd.grad` without `create_graph`, of which a square or norm, averaged or summed, is a term of what `backward` is called on."""
    program, signs = subject.program, Signs(subject.program)
    for call in slopes(program):
        graph = keyword(call, "create_graph", 4)
        if (graph is not None and not is_false(graph)) or any(k.arg is None for k in call.keywords):
            continue
        for term in terms(program, call):
            if _into_loss(program, signs, term.node):
                told = f"{ast.unparse(term.node)}, a penalty on this gradient, is added to the loss in line {term.sum.lineno}, and no gradient goes through it"
                yield call, told, program.statement(call)
                break


def _into_loss(program: Program, signs: Signs, node: ast.expr) -> bool:
    """Whether it arrives at a backward pass, or in a name of a loss where that cannot be followed."""
    found = signs.into_backward(node)
    if found != {0}:
        return bool(found)
    if {"eval", "evaluate", "evaluation", "val", "validate", "validation", "test"} & words(program.scope(node).name):
        return False
    statement = program.statement(node)
    bound = statement.targets if isinstance(statement, ast.Assign) else [statement.target] if isinstance(statement, ast.AugAssign) else []
    return any(OF_LOSSES & words(i) for t in bound for i in identifiers(t))


@rule(
    "BH449",
    "penalty-rewarded",
    "error",
    title="A penalty is taken from the loss that is minimised",
    why="What is subtracted is made large: weights or slopes grow without bound, and the loss falls all the while.",
    remedy="add it: `loss = loss + weight * penalty`",
    bad="""
        import torch

        def update(network, optimizer, loss, weight):
            penalty = sum(torch.sum(p**2) for p in network.parameters())
            loss = loss - weight * penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    good="""
        import torch

        def update(network, optimizer, loss, weight):
            penalty = sum(torch.sum(p**2) for p in network.parameters())
            loss = loss + weight * penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
)
def penalty_rewarded(subject: Subject) -> Iterator[Place]:
    """A penalty by its name, or the square or norm of parameters or of a gradient, goes with a minus into every backward pass that it reaches.

    Not where it is made of logarithms or is named after what is wanted (entropy, variance), and not in programs that go up the gradient.
    """
    program, signs = subject.program, Signs(subject.program)
    if "maximize" in program.identifiers or keywords_of(program, "maximize"):
        return
    if any(c.args or any(k.arg == "gradient" for k in c.keywords) for c in program.methods_of("backward")):
        return
    of_slopes = {term.node for call in slopes(program) for term in terms(program, call) if term.subtracted}
    for node in (*program.nodes[ast.BinOp], *program.nodes[ast.AugAssign]):
        taken = node.right if isinstance(node, ast.BinOp) else node.value if isinstance(node, ast.AugAssign) else None
        if taken is None or not isinstance(getattr(node, "op", None), ast.Sub):
            continue
        scope = program.scope(node)
        if (taken in of_slopes or _is_penalty(program, taken, scope)) and signs.into_backward(taken) == {-1}:
            yield taken, f"{ast.unparse(taken)} is subtracted from what is minimised: it is made as large as can be", node


def _is_penalty(program: Program, node: ast.expr, scope: Scope) -> bool:
    roots = made_of(program, node, scope)
    named = {w for n in names_read(node) for w in words(n)} & PENALTIES
    of_weights = any({"parameters", "named_parameters"} & identifiers(root) for root in roots)
    if not named and not of_weights:
        return False
    said = {w for root in roots for n in identifiers(root) for w in words(n)}
    if WANTED & said or any(isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.USub) for root in roots for n in walk(root)):
        return False
    if any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Sub) for n in walk(roots[0])):
        return False
    squared = any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow) for root in roots for n in walk(root))
    grows = squared or any(isinstance(n, ast.Call) and last_name(n.func) in GROWING for root in roots for n in walk(root))
    return (grows and of_weights) or (bool(named) and (grows or bool(named - {"reg"})))


@rule(
    "BH450",
    "norm-over-the-batch",
    "error",
    title="The norm of a gradient penalty is taken over the rows",
    why="Each row's slope should be near 1. Over the rows, or over everything, the norm grows with the batch, and the penalty asks the slope of one row to be smaller "
    "the more rows there are.",
    remedy="one norm for each row: `slope.flatten(1).norm(2, dim=1)`",
    bad="""
        import torch

        def penalty(critic, points):
            slope = torch.autograd.grad(critic(points).sum(), points, create_graph=True)[0]
            return ((slope.norm(2, dim=0) - 1) ** 2).mean()
        """,
    good="""
        import torch

        def penalty(critic, points):
            slope = torch.autograd.grad(critic(points).sum(), points, create_graph=True)[0]
            return ((slope.flatten(1).norm(2, dim=1) - 1) ** 2).mean()
        """,
)
def norm_over_the_batch(subject: Subject) -> Iterator[Place]:
    """The norm of what `torch.autograd.grad` gives, less 1 and squared, over axis 0 or with no axis named; or over axis 1 alone of pictures.

    Pictures: the points are mixed with factors `[rows, 1, 1, 1]`, and nothing flattens their gradient. Not inside `vmap`, nor row by row in a loop.
    """
    program = subject.program
    given = set(slopes(program))
    if "vmap" in program.identifiers or not given:
        return
    for node in program.calls_of("sqrt", "norm", "vector_norm"):
        if not _less_1(program, node) or (found := _norm(program, node)) is None:
            continue
        of, axis = found
        scope = program.scope(node)
        roots = made_of(program, of, scope)
        if not any(call in given for root in roots for call in walk(root)):
            continue
        arranged = {i for root in roots for i in identifiers(root)} & {"view", "reshape", "flatten", "transpose", "permute", "T", "t", "mT", "rearrange"}
        by_row = _is_row_by_row(program, node, roots)
        if axis in ("0", "all") and not by_row and not {"transpose", "permute", "T", "t", "mT", "rearrange"} & arranged:
            over = "axis 0, the rows" if axis == "0" else "all values of the batch"
            yield node, f"{ast.unparse(node)} is a norm over {over}, and it is wanted to be 1", program.statement(node)
        elif axis == "1" and not arranged and _of_pictures(scope):
            yield node, f"{ast.unparse(node)} is a norm over channels alone, one for each pixel, and it is wanted to be 1", program.statement(node)


def _is_row_by_row(program: Program, node: ast.expr, roots: list[ast.expr]) -> bool:
    """Whether it stands in a loop, and is of what the loop counts or of what it gives."""
    inside = [a for a in program.ancestors(node) if isinstance(a, (ast.For, ast.ListComp, ast.GeneratorExp))]
    counted = any(isinstance(n, ast.Subscript) and names_read(n.slice) for root in roots for n in walk(root))
    heads = [a.target for a in inside if isinstance(a, ast.For)]
    heads += [g.target for a in inside if isinstance(a, (ast.ListComp, ast.GeneratorExp)) for g in a.generators]
    given = {n.id for head in heads for n in walk(head) if isinstance(n, ast.Name)}
    of_given = any(isinstance(c, ast.Call) and c in slopes(program) and len(c.args) > 1 and names_read(c.args[1]) & given for r in roots for c in walk(r))
    return bool(inside) and (counted or of_given)


def _norm(program: Program, node: ast.Call) -> tuple[ast.expr, str] | None:
    """Of a norm what it is of, and over which axis: a number, `all`, or `?`; None for any other call."""
    name = last_name(node.func)
    torchs = program.resolve(node.func).startswith("torch.")
    if name == "sqrt":  # of a sum of squares
        inner = node.args[0] if torchs and node.args else receiver(node)
        while isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add) and constant(inner.right) is not None:
            inner = inner.left
        if not (isinstance(inner, ast.Call) and last_name(inner.func) == "sum"):
            return None
        of, given = _given(program, inner)
        squares = isinstance(of, ast.BinOp) and isinstance(of.op, (ast.Pow, ast.Mult))
        squares = squares or (isinstance(of, ast.Call) and last_name(of.func) in ("pow", "square"))
        return (of, _axis(inner, given, 0)) if of is not None and squares else None
    if name not in ("norm", "vector_norm"):
        return None
    of, given = _given(program, node)
    return (of, _axis(node, given, 1)) if of is not None else None


def _given(program: Program, node: ast.Call) -> tuple[ast.expr | None, list[ast.expr]]:
    """What a function of torch or a method is called on, and its other arguments."""
    if program.resolve(node.func).startswith("torch."):
        return (node.args[0] if node.args else None), node.args[1:]
    return receiver(node), node.args


def _axis(node: ast.Call, given: list[ast.expr], position: int) -> str:
    stated = next((k.value for k in node.keywords if k.arg in ("dim", "axis")), given[position] if len(given) > position else None)
    if stated is None:
        return "?" if any(k.arg is None for k in node.keywords) else "all"
    if isinstance(stated, (ast.Tuple, ast.List)) and len(stated.elts) == 1:
        stated = stated.elts[0]
    return str(value) if isinstance(value := constant(stated), int) else "?"


def _less_1(program: Program, node: ast.expr) -> bool:
    """Whether 1 is taken from it, or from the name that holds it, or the other way about, to be squared."""
    above = program.parents[node]
    if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Sub) and constant(above.right if above.left is node else above.left) in (1, 1.0):
        return True
    if isinstance(above, ast.Assign) and len(above.targets) == 1 and isinstance(above.targets[0], ast.Name):
        scope, name = program.scope(above), above.targets[0].id
        read = (n for n in walk(scope.node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load))
        return any(_less_1(program, n) for n in read if n is not node and not isinstance(program.parents[n], ast.Assign))
    return False


def _of_pictures(scope: Scope) -> bool:
    """Whether rows are mixed in the function by factors of the shape `[rows, 1, 1, 1]`."""
    for node in walk(scope.node):
        if isinstance(node, ast.Call) and last_name(node.func) in ("rand", "view", "reshape", "expand"):
            shape = node.args[0].elts if len(node.args) == 1 and isinstance(node.args[0], (ast.Tuple, ast.List)) else node.args
            if len(shape) >= 4 and all(constant(s) == 1 for s in shape[1:]):
                return True
    return False


@rule(
    "BH478",
    "differences-cancel",
    "error",
    title="Differences of neighbours are added up with their signs",
    why="All but the first and the last value cancel: `(x[1:] - x[:-1]).mean()` is `(x[-1] - x[0]) / n`, whatever lies between. As a term of the loss it is no measure of roughness, and can be made as negative as one likes.",
    remedy="square them, or take their size: `(x[1:] - x[:-1]).square().mean()`",
    bad="""
        import torch

        def update(network, optimizer, loss_fn, x, y, weight):
            out = network(x)
            loss = loss_fn(out, y) + weight * (out[1:] - out[:-1]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    good="""
        import torch

        def update(network, optimizer, loss_fn, x, y, weight):
            out = network(x)
            loss = loss_fn(out, y) + weight * (out[1:] - out[:-1]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
)
def differences_cancel(subject: Subject) -> Iterator[Place]:
    """The mean or sum of a slice less the slice one before it, of one tensor, that goes into a backward pass."""
    program = subject.program
    signs = Signs(program)
    for call in program.calls_of("mean", "sum") if subject.trains and program.nodes[ast.Slice] else ():
        if call.keywords or len(call.args) > 1:
            continue
        on_torch = program.is_torch(call.func, "mean", "sum")
        of = call.args[0] if on_torch and call.args else receiver(call) if not on_torch and not call.args else None
        if isinstance(of, ast.BinOp) and isinstance(of.op, ast.Sub) and _neighbours(of.left, of.right) and signs.into_backward(call):
            yield call, f"{ast.unparse(call)} is the last value less the first, divided by their number or not: what lies between cancels"


def _neighbours(a: ast.expr, b: ast.expr) -> bool:
    """Whether two slices are of one tensor, one from its second value on and one up to its last but one."""
    if not (isinstance(a, ast.Subscript) and isinstance(b, ast.Subscript) and ast.dump(a.value) == ast.dump(b.value)):
        return False
    pairs = list(zip(*(list(s.slice.elts) if isinstance(s.slice, ast.Tuple) else [s.slice] for s in (a, b)), strict=False))
    moved = [(x, y) for x, y in pairs if ast.dump(x) != ast.dump(y)]
    if len(moved) != 1 or not all(isinstance(s, ast.Slice) and s.step is None for s in moved[0]):
        return False
    cut = [(constant(s.lower), constant(s.upper)) for s in moved[0] if isinstance(s, ast.Slice)]
    return sorted(cut, key=str) == sorted([(1, None), (None, -1)], key=str)
