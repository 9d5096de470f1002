"""Rules BH324 to BH326: losses that are written out and turned round: an overlap that is made small, a quantile from the other end, far neighbours pulled near."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import cast

from training.review.findings import Place, Subject, rule
from training.review.lookups import keywords_of, made_names, spoken_words
from training.review.program import Program, Scope
from training.review.signs import Signs
from training.review.syntax import calls, constant, identifiers, is_true, keyword, last_name, method, receiver, walk, words
from training.review.values import value_of

TWO, FOUR = 2, 4  # sides of a pair; names of two crossed pairs
INTERSECTIONS = {"inter", "intersection", "intersections", "overlap", "overlaps", "tp", "common"}
UNIONS = {"union", "unions", "cardinality", "areas"}
WHOLES = UNIONS | {"total", "totals", "denominator", "denom", "sizes", "sums"}  # what any sum is divided by
TRUTHS = {"y", "target", "targets", "label", "labels", "true", "truth", "actual", "observed", "gt", "yb", "t"}
FAR, NEAR = {"negative", "negatives", "neg", "negs", "dissimilar"}, {"positive", "positives", "pos", "similar"}
DISTANCES = {"dist", "dists", "distance", "distances", "cdist", "norm", "pow", "square", "euclidean"}
CLOSENESS = {"similarity", "sim", "sims", "cosine", "cos", "dot", "score", "scores", "logit", "logits", "matmul", "einsum"}


@rule(
    "BH324",
    "overlap-minimised",
    "error",
    title="The overlap with the mask is minimised",
    why="Dice and intersection over union are 1 where prediction and mask agree. Taken as a loss without `1 -` in front they are made as small as possible: the network learns to mark everything but the mask.",
    remedy="minimise what is missing: `loss = 1 - dice(scores, mask)`",
    bad="""
        import torch

        def dice(scores, mask):
            p = scores.sigmoid()
            return (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)

        def step(net, optimizer, x, mask):
            loss = dice(net(x), mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    good="""
        import torch

        def dice(scores, mask):
            p = scores.sigmoid()
            return (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)

        def step(net, optimizer, x, mask):
            loss = 1 - dice(net(x), mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
)
def overlap_minimised(subject: Subject) -> Iterator[Place]:
    """A sum of products divided by a sum of sums, or an intersection by a union, goes into backward with a plus; nothing ascends."""
    program = subject.program
    if any(is_true(k.value) for k in keywords_of(program, "maximize")):
        return
    for node in program.nodes[ast.BinOp]:
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Div)
            and _is_overlap(program, node, program.scope(node))
            and Signs(program).into_backward(node) == {1}
        ):
            yield node, "an overlap goes into the loss with a plus, which makes it small"


def _is_overlap(program: Program, node: ast.BinOp, scope: Scope) -> bool:
    above, below = value_of(program, node.left, scope), value_of(program, node.right, scope)
    parts = [value_of(program, p, scope) for p in _parts(above, ast.Add)]
    factors = [q for p in [*_parts(above, ast.Add), *parts] for q in _parts(p, ast.Mult)]
    shared = any(_is_intersection(q, program, scope) for q in factors)
    twice = any(constant(q) in (2, 2.0) or (isinstance(q, ast.Name) and words(q.id) & INTERSECTIONS) for q in factors)  # and no loss under a mask
    named = isinstance(node.right, ast.Name) and bool(words(node.right.id) & (WHOLES if twice else UNIONS))
    summed = [any(_is_sum(program, q, scope) for q in _parts(p, ast.Mult)) for p in _parts(below, ast.Add)]
    return shared and (named or sum(summed) > 1)


def _is_sum(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether it is a sum over a tensor, or called a number of pixels."""
    made = value_of(program, node, scope)
    counted = isinstance(node, ast.Name) and bool(words(node.id) & (INTERSECTIONS | WHOLES | {"fp", "fn"}))
    return counted or (isinstance(made, ast.Call) and last_name(made.func) == "sum")


def _parts(node: ast.expr, operator: type[ast.operator]) -> list[ast.expr]:
    """The terms of a sum, or the factors of a product."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, operator | ast.Sub if operator is ast.Add else operator):
        return [*_parts(node.left, operator), *_parts(node.right, operator)]
    return [node]


def _is_intersection(node: ast.expr, program: Program, scope: Scope) -> bool:
    """Whether it is the sum of a product of two tensors, or called an intersection."""
    if isinstance(node, ast.Name) and words(node.id) & INTERSECTIONS:
        return True
    made = value_of(program, node, scope)
    inner = (
        receiver(made)
        if method(made) == "sum" and not program.resolve(getattr(made, "func", made))
        else keyword(made, "input", 0)
        if isinstance(made, ast.Call)
        else None
    )
    return isinstance(made, ast.Call) and last_name(made.func) == "sum" and isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Mult)


@rule(
    "BH325",
    "quantile-turned-round",
    "error",
    title="The quantile loss is that of the opposite quantile",
    why="`max(q * e, (q - 1) * e)` is the pinball loss for e = y - prediction. With the difference the other way round it fits the quantile 1 - q: a band of 10 to 90 % comes out upside down, the 0.9 forecast is too low nine times out of ten.",
    remedy="take `error = y - prediction`",
    bad="""
        import torch

        def pinball(prediction, y, q):
            error = prediction - y
            return torch.maximum(q * error, (q - 1) * error).mean()
        """,
    good="""
        import torch

        def pinball(prediction, y, q):
            error = y - prediction
            return torch.maximum(q * error, (q - 1) * error).mean()
        """,
)
def quantile_turned_round(subject: Subject) -> Iterator[Place]:
    """The greater of q·e and (q - 1)·e, where e is something less what is called a target."""
    program = subject.program
    for call in program.calls_of("max", "maximum", "where"):
        last = last_name(call.func)
        given = call.args[:2] if last in ("max", "maximum") else call.args[1:3] if last == "where" else []
        if len(given) != 2 or isinstance(given[0], ast.Constant):
            continue
        scope = program.scope(call)
        for one, other in (given, given[::-1]) if last != "where" else (given,):
            error = _error_of(one, other)
            if error is not None and _less_target(value_of(program, error, scope)) and (last != "where" or _where_above(call, error)):
                yield call, f"{ast.unparse(error)} is the prediction less the truth: the loss is that of the quantile 1 - q"


def _error_of(one: ast.expr, other: ast.expr) -> ast.expr | None:
    """e of `q * e` and `(q - 1) * e`."""
    if not all(isinstance(p, ast.BinOp) and isinstance(p.op, ast.Mult) for p in (one, other)):
        return None
    for q, e in ((one.left, one.right), (one.right, one.left)):  # type: ignore[attr-defined]
        for less, same in ((other.left, other.right), (other.right, other.left)):  # type: ignore[attr-defined]
            minus_one = isinstance(less, ast.BinOp) and isinstance(less.op, ast.Sub) and constant(less.right) in (1, 1.0)
            if isinstance(less, ast.BinOp) and minus_one and ast.dump(less.left) == ast.dump(q) and ast.dump(same) == ast.dump(e):
                return cast(ast.expr, e)
    return None


def _where_above(call: ast.Call, error: ast.expr) -> bool:
    """Whether the condition of `where` asks whether the error is above 0."""
    test = call.args[0]
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], (ast.Gt, ast.GtE))
        and ast.dump(test.left) == ast.dump(error)
        and constant(test.comparators[0]) in (0, 0.0)
    )


def _less_target(node: ast.expr) -> bool:
    """Whether a target is subtracted from what is none."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)):
        return False
    left, right = ({w for n in identifiers(side) for w in words(n)} for side in (node.left, node.right))
    return bool(right & TRUTHS) and not left & TRUTHS and not right & {"pred", "prediction", "predicted", "hat", "output", "forecast"}


@rule(
    "BH326",
    "triplet-turned-round",
    "error",
    title="Negatives are pulled near, and positives pushed away",
    why="The loss of a triplet is the distance to the positive less that to the negative, plus a margin. With the two exchanged rows of one class are driven apart, and others together; the loss falls as nicely.",
    remedy="`F.triplet_margin_loss(anchor, positive, negative)`, or `relu(d_positive - d_negative + margin)`",
    bad="""
        import torch.nn.functional as F

        def loss_of(net, anchor, positive, negative):
            return F.triplet_margin_loss(net(anchor), net(negative), net(positive), margin=0.3)
        """,
    good="""
        import torch.nn.functional as F

        def loss_of(net, anchor, positive, negative):
            return F.triplet_margin_loss(net(anchor), net(positive), net(negative), margin=0.3)
        """,
)
def triplet_turned_round(subject: Subject) -> Iterator[Place]:
    """The second argument of a triplet loss is called a negative and the third a positive; or a hinge is taken of a distance to the negative less one to the positive, plus something."""
    program = subject.program
    modules = {"TripletMarginLoss", "TripletMarginWithDistanceLoss"}
    by_module = bool(modules & made_names(program))
    functions = ("triplet_margin_loss", "triplet_margin_with_distance_loss", "relu", "clamp", "clamp_min", "softplus")
    for call in program.all_calls if by_module else program.calls_of(*functions):
        scope, last = program.scope(call), last_name(call.func)
        made = {o.last for o in program.origins(call.func, scope)} if by_module else set()
        if last in ("triplet_margin_loss", "triplet_margin_with_distance_loss") or made & modules:
            second, third = (_named(program, keyword(call, name, at), scope) for name, at in (("positive", 1), ("negative", 2)))
            if second & FAR and not second & NEAR and third & NEAR and not third & FAR:
                yield call, "the second place is that of the positive, and gets the negative"
        hinged = receiver(call) if last in ("clamp", "clamp_min", "relu") and not program.resolve(call.func) else next(iter(call.args), None)
        if last in ("relu", "clamp", "clamp_min", "softplus") and isinstance(hinged, ast.BinOp):
            for plus, minus in _differences(value_of(program, hinged, scope)):
                far, near = (_deep(program, side, scope) for side in (plus, minus))
                apart = (far | near) & DISTANCES and not (far | near) & CLOSENESS
                if apart and far & FAR and not far & NEAR and near & NEAR and not near & FAR:
                    yield call, f"the distance to the negative, {ast.unparse(plus)}, is made smaller than that to the positive"
                    break


def _differences(node: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What stands with a plus and what with a minus, of sums with a margin."""
    for inner in walk(node):
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub):
            left = inner.left
            yield from ((p, inner.right) for p in (_parts(left, ast.Add) if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add) else [left]))


def _named(program: Program, node: ast.expr | None, scope: Scope) -> set[str]:
    """The words of a value's names."""
    return {w for n in identifiers(node) for w in words(n)} if node is not None else set()


def _deep(program: Program, node: ast.expr, scope: Scope, depth: int = 2) -> set[str]:
    """The words of a value's names, and of what these were computed from."""
    found = _named(program, node, scope)
    found |= {w for c in calls(node) for w in words(last_name(c.func))}
    if any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow) for n in walk(node)):
        found.add("pow")
    if any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult) for n in walk(node)):
        found.add("matmul")
    for name in (n for n in walk(node) if isinstance(n, ast.Name) and depth):
        for binding in scope.bindings.get(name.id, ()):
            value = binding.value
            if isinstance(value, ast.Tuple) and binding.index is not None:
                value = value.elts[binding.index]
            if binding.how == "assign" and not (binding.index is not None and value is binding.value):
                found |= _deep(program, value, scope, depth - 1)
    return found


@rule(
    "BH329",
    "no-stop-gradient",
    "error",
    title="Two views pull each other with nothing to hold them apart",
    why="With a predictor on one side and the gradient running through both, the easiest way to agree is to say one thing for all rows: without negatives, a stopped gradient is what keeps such a network from it.",
    remedy="stop the gradient of the side that is predicted: `cosine_similarity(predictor(za), zb.detach())`",
    bad="""
        import torch.nn.functional as F

        def loss_of(net, predictor, a, b):
            za, zb = net(a), net(b)
            pa, pb = predictor(za), predictor(zb)
            return -(F.cosine_similarity(pa, zb, dim=-1).mean() + F.cosine_similarity(pb, za, dim=-1).mean()) / 2
        """,
    good="""
        import torch.nn.functional as F

        def loss_of(net, predictor, a, b):
            za, zb = net(a), net(b)
            pa, pb = predictor(za), predictor(zb)
            return -(F.cosine_similarity(pa, zb.detach(), dim=-1).mean() + F.cosine_similarity(pb, za.detach(), dim=-1).mean()) / 2
        """,
)
def no_stop_gradient(subject: Subject) -> Iterator[Place]:
    """A function takes the cosine of two crossed pairs of views, in a file with a predictor, with no `detach`, average of weights, label, negative or spread of features."""
    program = subject.program
    held = {
        "detach",
        "cross_entropy",
        "logsumexp",
        "relu_",
        "std",
        "var",
        "deepcopy",
        "lerp_",
        "AveragedModel",
        "triplet_margin_loss",
        "margin_ranking_loss",
        "cov",
    }
    if held & program.identifiers or "predictor" not in spoken_words(program):
        return
    for scope in program.scopes:
        pairs = [c for c in calls(scope.node) if program.scope(c) is scope and last_name(c.func) == "cosine_similarity" and len(c.args) >= TWO]
        names = [tuple(a.id for a in c.args[:TWO] if isinstance(a, ast.Name)) for c in pairs]
        for i, first in enumerate(names):
            for second in names[i + 1 :]:
                if len(first) == len(second) == TWO and len({*first, *second}) == FOUR and {n[-1] for n in first} == {n[-1] for n in second}:
                    yield pairs[i], f"{first[1]} and {second[1]} learn to be predicted, and nothing keeps them apart"
                    return
