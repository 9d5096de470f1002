"""Rules BH246, BH333, BH469, BH470 and BH554: what is meant to be left out of a score, a softmax, an end or a side, and is not."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import calls, constant, identifiers, keyword, last_name, method, names_read, receiver, walk, words

MASKS = {"mask", "masks", "adj", "adjacency", "visible", "allowed"}
FREQUENCY = {"q", "freq", "frequency", "pop", "popularity", "prob", "probs", "logq", "sampling", "proposal"}
ENDS = {"done", "dones", "terminal", "terminals", "over", "ended", "finished"}
LIMITS = {"max", "limit", "horizon", "timeout", "truncated", "truncation", "timeouts"}
STORES = {"append", "add", "push", "store", "extend", "put", "remember"}


@rule(
    "BH246",
    "ideal-of-what-was-found",
    "error",
    title="The ideal ranking is made of what the network found",
    why="NDCG divides by the gain of the best possible ranking of all that is relevant. Of the hits alone the best order leaves out what was missed, which then costs nothing.",
    remedy="take the ideal over all relevant items: `discount[: min(relevant, k)].sum()`",
    bad="""
        import torch

        def ndcg(scores, relevant, k):
            top = scores.topk(k, dim=1).indices
            hits = relevant.gather(1, top)
            discount = 1.0 / torch.log2(torch.arange(k) + 2.0)
            ideal = hits.sort(dim=1, descending=True).values
            return ((hits * discount).sum(1) / (ideal * discount).sum(1).clamp(min=1e-9)).mean()
        """,
    good="""
        import torch

        def ndcg(scores, relevant, k):
            top = scores.topk(k, dim=1).indices
            hits = relevant.gather(1, top)
            discount = 1.0 / torch.log2(torch.arange(k) + 2.0)
            ideal = relevant.topk(k, dim=1).values
            return ((hits * discount).sum(1) / (ideal * discount).sum(1).clamp(min=1e-9)).mean()
        """,
)
def ideal_of_what_was_found(subject: Subject) -> Iterator[Place]:
    """`hits = relevant.gather(1, scores.topk(k).indices)`, and an ideal that is `hits` sorted."""
    program = subject.program
    for scope in program.scopes:
        for name, bindings in scope.bindings.items():
            if not words(name) & {"ideal", "idcg", "perfect"}:
                continue
            for sort in (c for b in bindings for c in calls(b.value) if last_name(c.func) in ("sort", "sorted", "topk")):
                of = receiver(sort) if receiver(sort) is not None and last_name(receiver(sort)) not in ("torch", "np", "numpy") else next(iter(sort.args), None)
                if isinstance(of, ast.Name) and _of_the_top(scope, of.id):
                    yield sort, f"the ideal is {of.id} in a better order: what is relevant and was not found is not in it"


def _of_the_top(scope: Scope, name: str) -> bool:
    """Whether values are those at the places of the highest scores: `x.gather(1, top)`, `x[top]` where `top` comes from a topk or a cut argsort."""
    made = [b.value for b in scope.bindings.get(name, ())]
    picked: list[ast.expr] = [
        n for v in made for n in walk(v) if (isinstance(n, ast.Call) and last_name(n.func) in ("gather", "take_along_dim", "take_along_axis"))
    ]
    picked += [n for v in made for n in walk(v) if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Name)]
    for read in {n for p in picked for n in names_read(p)}:
        for bound in scope.bindings.get(read, ()):
            ranked = {last_name(c.func) for c in calls(bound.value)}
            if "topk" in ranked or ("argsort" in ranked and any(isinstance(n, ast.Slice) and n.upper is not None for n in walk(bound.value))):
                return True
    return False


@rule(
    "BH333",
    "sampling-correction-added",
    "error",
    title="The correction for how often items are drawn has the wrong sign",
    why="In a softmax over the items of a batch popular items are negatives often. Their log frequency is subtracted from the scores, so that this cancels; added, they are pushed down twice.",
    remedy="subtract it: `logits - log_q[items]`",
    bad="""
        import torch
        from torch.nn import functional as F

        def in_batch_loss(users, items, log_q):
            logits = users @ items.T
            logits = logits + log_q
            return F.cross_entropy(logits, torch.arange(len(users)))
        """,
    good="""
        import torch
        from torch.nn import functional as F

        def in_batch_loss(users, items, log_q):
            logits = users @ items.T
            logits = logits - log_q
            return F.cross_entropy(logits, torch.arange(len(users)))
        """,
)
def sampling_correction_added(subject: Subject) -> Iterator[Place]:
    """In a function with a cross-entropy against `arange`, the logarithm of a frequency is added to what is scored."""
    program = subject.program
    for call in program.calls_of("cross_entropy"):
        if len(call.args) < 2:
            continue
        scope = program.scope(call)
        target = call.args[1]
        if isinstance(target, ast.Name) and len(scope.bindings.get(target.id, ())) == 1:
            target = scope.bindings[target.id][0].value
        scored = names_read(call.args[0]) | {last_name(call.args[0])}
        if not any(isinstance(c, ast.Call) and last_name(c.func) == "arange" for c in walk(target)):
            continue
        sums = [n for b in (b for s in scored for b in scope.bindings.get(s, ())) for n in walk(b.value)] + [*walk(call.args[0])]
        for node in sums:
            added = node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) else None
            if added is not None and _is_log_frequency(added):
                yield node, f"{ast.unparse(added)} is added to the scores of a softmax over the batch, where it is to be subtracted"
                break


def _is_log_frequency(node: ast.expr) -> bool:
    """Whether a value is the logarithm of how often something is drawn, by its name: `log_q[items]`, `pop.log()`."""
    base = node
    while isinstance(base, ast.Subscript):
        base = base.value
    if isinstance(base, (ast.Name, ast.Attribute)):
        spoken = words(last_name(base))
        return bool(spoken & FREQUENCY) and ("log" in spoken or "logq" in spoken)
    if isinstance(base, ast.Call) and last_name(base.func) in ("log", "log1p"):
        return bool({w for n in identifiers(base) for w in words(n)} & (FREQUENCY - {"q", "prob", "probs"}))
    return False


@rule(
    "BH469",
    "mask-before-softmax-multiplied",
    "error",
    title="Scores are multiplied by a mask before their softmax",
    why="A score of 0 is no score of minus infinity: exp(0) is 1, and what is meant to be left out takes its full share of the weights.",
    remedy="`scores.masked_fill(mask == 0, float('-inf'))` before the softmax",
    bad="""
        import torch
        from torch.nn import functional as F

        def attend(scores, values, mask):
            scores = scores * mask
            return F.softmax(scores, dim=-1) @ values
        """,
    good="""
        import torch
        from torch.nn import functional as F

        def attend(scores, values, mask):
            scores = scores.masked_fill(mask == 0, float("-inf"))
            return F.softmax(scores, dim=-1) @ values
        """,
)
def mask_before_softmax_multiplied(subject: Subject) -> Iterator[Place]:
    """What a softmax is taken of is a product of which one factor is called a mask or an adjacency, or was last given such a product."""
    program = subject.program
    for call in program.calls_of("softmax", "log_softmax"):
        on = receiver(call)
        given = on if on is not None and last_name(on) not in ("F", "torch", "functional", "special") else next(iter(call.args), None)
        scope = program.scope(call)
        product: ast.AST | None = given
        if isinstance(given, ast.Name):
            before = [b for b in scope.bindings.get(given.id, ()) if getattr(b.statement, "lineno", 0) < call.lineno]
            last = max(before, key=lambda b: getattr(b.statement, "lineno", 0), default=None)
            if last is None or last.index is not None or last.how not in ("assign", "augment"):
                continue
            statement = last.statement
            product = last.value
            if isinstance(statement, ast.AugAssign):
                product = ast.BinOp(ast.Name(given.id, ast.Load()), statement.op, statement.value)
            place: ast.AST = statement
        else:
            place = call
        if (mask := _masked_by(product)) and not _again(program, call, mask) and not _of_whole_rows(call, mask):
            yield place, f"{mask} multiplies the scores before the softmax: what it leaves out has the score 0, and a share of the weights"


def _masked_by(node: ast.AST | None) -> str:
    """The mask of a product, empty where there is none."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return ""
    for side in (node.left, node.right):
        base: ast.AST = side
        while isinstance(base, ast.Subscript) or (
            isinstance(base, ast.Call) and method(base) in ("unsqueeze", "float", "to", "type_as", "expand", "view") and receiver(base) is not None
        ):
            base = base.value if isinstance(base, ast.Subscript) else receiver(base) or base
        spoken = words(last_name(base))
        if isinstance(base, (ast.Name, ast.Attribute)) and spoken & MASKS and not spoken & {"bias", "log", "weight", "soft", "penalty", "norm"}:
            return ast.unparse(side)
    return ""


def _of_whole_rows(call: ast.Call, mask: str) -> bool:
    """Whether a mask has one value for all that a softmax over the last axis is taken of: what is left out is a row of it, and no share."""
    axis = keyword(call, "dim") or next((a for a in call.args if isinstance(constant(a), int) or isinstance(a, ast.UnaryOp)), None)
    return mask.replace(" ", "").endswith((".unsqueeze(-1)", ",None]")) and axis is not None and ast.unparse(axis) == "-1"


def _again(program: Program, call: ast.Call, mask: str) -> bool:
    """Whether the weights are masked once more, as where they are brought to 1 afterwards, or the same statement does it."""
    scope = program.scope(call)
    after = [n for n in walk(scope.node) if isinstance(n, (ast.BinOp, ast.AugAssign)) and isinstance(n.op, ast.Mult) and n.lineno >= call.lineno]
    return any(mask.split("[", maxsplit=1)[0] in {ast.unparse(x) for x in walk(n) if isinstance(x, (ast.Name, ast.Attribute))} for n in after)


@rule(
    "BH470",
    "time-limit-taken-for-end",
    "warning",
    title="An episode that was cut off is stored as one that ended",
    why="At a true end nothing follows, and its value is the reward. Where only the time was up, what would have followed counts: taken for an end, states far from the goal look like cheap ways out.",
    remedy="store the true end, and cut episodes off without it: `buffer.append((s, a, r, s2, terminated))`",
    bad="""
        import torch

        def collect(env, policy, buffer, max_steps):
            s = env.reset()
            for t in range(max_steps):
                a = policy(s)
                s2, r, reached = env.step(a)
                done = reached or t == max_steps - 1
                buffer.append((s, a, r, s2, done))
                s = s2

        def target(frozen, r, s2, done, gamma):
            return r + gamma * (1 - done) * frozen(s2).max(1).values
        """,
    good="""
        import torch

        def collect(env, policy, buffer, max_steps):
            s = env.reset()
            for t in range(max_steps):
                a = policy(s)
                s2, r, done = env.step(a)
                buffer.append((s, a, r, s2, done))
                s = s2

        def target(frozen, r, s2, done, gamma):
            return r + gamma * (1 - done) * frozen(s2).max(1).values
        """,
)
def time_limit_taken_for_end(subject: Subject) -> Iterator[Place]:
    """An end joined with a time limit by `or` is stored with the steps of a file that bootstraps: `… * (1 - done) * …`."""
    program = subject.program
    if not any(_cuts_off(n) for n in program.nodes[ast.BinOp]):
        return
    for node in program.nodes[ast.Assign]:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if limit := _limit(value):
                scope = program.scope(node)
                if _is_stored(program, scope, name, node.lineno):
                    yield node, f"{name} is true where the time is up ({limit}), and is stored as the end of the episode"


def _cuts_off(node: ast.AST) -> bool:
    """`(1 - done) * …`, in either order."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    for side in (node.left, node.right):
        for part in walk(side):
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) and constant(part.left) == 1:
                spoken = {w for n in (*identifiers(part.right), *(str(constant(c)) for c in walk(part.right) if isinstance(c, ast.Constant))) for w in words(n)}
                if spoken & (ENDS | {"terminated", "term", "d"}):
                    return True
    return False


def _limit(value: ast.expr) -> str:
    """The time limit among what is joined by `or`, `|` or `logical_or`; empty where there is none, or nothing else."""
    parts: list[ast.expr] = []
    match value:
        case ast.BoolOp(op=ast.Or(), values=values):
            parts = values
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            parts = [left, right]
        case ast.Call() if last_name(value.func) == "logical_or":
            parts = value.args
    for part in parts if len(parts) > 1 else ():
        compared = isinstance(part, ast.Compare) and isinstance(part.ops[0], (ast.Eq, ast.GtE, ast.Gt))
        spoken = {w for n in identifiers(part) for w in words(n)}
        if (compared and spoken & LIMITS and spoken & {"t", "step", "steps", "time", "i", "max"}) or (
            isinstance(part, (ast.Name, ast.Attribute)) and words(last_name(part)) & {"truncated", "truncation", "timeout", "trunc"}
        ):
            return ast.unparse(part)
    return ""


def _is_stored(program: Program, scope: Scope, name: str, line: int) -> bool:
    """Whether it is put away with the steps: appended, added to a buffer, written into an array of ends, or put beside the names of columns."""
    for read in (n for n in walk(scope.node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) and n.lineno >= line):
        for above in program.ancestors(read):
            if isinstance(above, ast.Call) and method(above) in STORES:
                return True
            if isinstance(above, ast.Call) and last_name(above.func) == "zip" and any(isinstance(a, ast.Tuple) and len(a.elts) > 3 for a in above.args):
                return True
            if isinstance(above, ast.Assign) and any(isinstance(t, ast.Subscript) and words(last_name(t.value)) & ENDS for t in above.targets):
                return True
            if isinstance(above, ast.stmt):
                break
    return False


@rule(
    "BH554",
    "edges-split-in-both-directions",
    "error",
    title="Links of an undirected graph are split in both directions",
    why="A symmetric matrix lists each link twice. Split by entry, most held-out links stand among the train links the other way round: they are known when they are asked for.",
    remedy="split the pairs of one triangle, `adj.triu(1).nonzero()`, and add the other direction on each side",
    bad="""
        import torch

        def links(near):
            adj = near | near.T
            pairs = adj.nonzero()
            pairs = pairs[torch.randperm(len(pairs))]
            return pairs[100:], pairs[:100]
        """,
    good="""
        import torch

        def links(near):
            adj = near | near.T
            pairs = adj.triu(1).nonzero()
            pairs = pairs[torch.randperm(len(pairs))]
            return pairs[100:], pairs[:100]
        """,
)
def edges_split_in_both_directions(subject: Subject) -> Iterator[Place]:
    """In a file that makes a matrix symmetric, the places where one is not 0 are put in random order and shared out by slices, without its triangle."""
    program = subject.program
    if "T" not in program.identifiers or not any(_is_symmetric(n) for n in (*program.nodes[ast.BinOp], *program.all_calls)):
        return
    for scope in program.scopes:
        for name, bindings in scope.bindings.items():
            listed = next((b.value for b in bindings if (found := _entries(b.value)) and b.index is None and not {"triu", "tril"} & found), None)
            mixed = [b for b in bindings if isinstance(b.value, ast.Subscript) and {"randperm", "permutation"} & identifiers(b.value)]
            orders = {
                n for n, bound in scope.bindings.items() for b in bound if {"randperm", "permutation"} & identifiers(b.value) and name in names_read(b.value)
            }
            sliced = [n for n in walk(scope.node) if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Slice) and last_name(n.value) in {name, *orders}]
            if listed is None or not (mixed or orders) or len(sliced) < 2:
                continue
            compared = [n for n in walk(scope.node) if isinstance(n, ast.Compare) and name in names_read(n)]
            if not any(isinstance(n.ops[0], (ast.Lt, ast.Gt)) and len(names_read(n)) == 1 for n in compared):
                yield listed, f"{name} holds each link of a symmetric matrix in both directions, and is shared out entry by entry"


def _is_symmetric(node: ast.AST) -> bool:
    """`a | a.T`, `a + a.T`, `maximum(a, a.T)`."""
    match node:
        case ast.BinOp(op=ast.BitOr() | ast.Add(), left=a, right=ast.Attribute(value=b, attr="T")):
            return ast.dump(a) == ast.dump(b)
        case ast.Call(args=[a, ast.Attribute(value=b, attr="T")]) if last_name(node.func) in ("maximum", "logical_or", "max"):
            return ast.dump(a) == ast.dump(b)
    return False


def _entries(value: ast.expr) -> set[str]:
    """What is called to list the places of a matrix that are not 0; empty where nothing lists them."""
    found = {last_name(c.func) for c in calls(value)}
    whole = any(last_name(c.func) in ("nonzero", "argwhere") and keyword(c, "dim") is None for c in calls(value))
    turned = any(isinstance(n, ast.UnaryOp) for n in walk(value))  # `(~adj).nonzero()`: pairs without a link
    flat = {"flatten", "squeeze", "ravel"} & found  # `(y == c).nonzero().flatten()`: numbers of rows
    return found if whole and not turned and not flat else set()
