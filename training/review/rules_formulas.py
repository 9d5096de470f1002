"""Rules BH249 to BH251, BH472 and BH473: what begins anew in each epoch, shares of the wrong whole, one factor where a product belongs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import calls, constant, dotted, identifiers, keyword, last_name, method, own_nodes, receiver, walk, words
from training.review.values import reaching

BEST = {"best", "lowest", "highest", "top"}
WAITING = {"wait", "waited", "patience", "bad", "stale", "counter", "count", "stall", "since", "improvement", "improved", "epochs", "no"}
ALIKE = {"tp": "tp", "true_positives": "tp", "true_pos": "tp", "fp": "fp", "false_positives": "fp", "false_pos": "fp", "fn": "fn", "false_negatives": "fn"}


@rule(
    "BH249",
    "begun-anew-in-each-epoch",
    "error",
    title="What should last over the epochs begins anew in each of them",
    why="A best score that is set to its first value inside of the loop is beaten by every epoch, and the last one is kept; a count of epochs without progress never passes 1.",
    remedy="set it once, before the loop",
    bad="""
        import torch

        def fit(model, train_epoch, validate, epochs):
            for epoch in range(epochs):
                best = float("inf")
                train_epoch(model)
                score = validate(model)
                if score < best:
                    best = score
                    torch.save(model.state_dict(), "best.pt")
        """,
    good="""
        import torch

        def fit(model, train_epoch, validate, epochs):
            best = float("inf")
            for epoch in range(epochs):
                train_epoch(model)
                score = validate(model)
                if score < best:
                    best = score
                    torch.save(model.state_dict(), "best.pt")
        """,
)
def begun_anew_in_each_epoch(subject: Subject) -> Iterator[Place]:
    """A statement of a loop sets a best score or a count of waiting to a number, and the same passage compares and changes it once, with no inner loop."""
    program = subject.program
    for loop in (*program.nodes[ast.For], *program.nodes[ast.While]):
        for statement in loop.body:  # type: ignore[attr-defined]
            if not isinstance(statement, ast.Assign):
                continue
            pairs = zip(statement.targets[0].elts, statement.value.elts, strict=False) if _is_pair(statement) else [(statement.targets[0], statement.value)]  # type: ignore[attr-defined]
            for target, value in pairs:
                name = dotted(target)
                if not name or not _is_start(value):
                    continue
                inside = [n for n in own_nodes(loop) if n is not statement]
                if BEST & words(last_name(target)) and _beaten(program, loop, inside, name):
                    yield statement, f"{name} begins anew in every passage of the loop: each one counts as the best", loop
                elif WAITING & words(last_name(target)) and constant(value) == 0 and _waits(program, loop, inside, name):
                    yield statement, f"{name} begins anew in every passage of the loop: it never passes 1", loop


def _is_pair(statement: ast.Assign) -> bool:
    return isinstance(statement.targets[0], ast.Tuple) and isinstance(statement.value, ast.Tuple)


def _is_start(value: ast.expr) -> bool:
    """Whether a value is one that every score beats, or 0: a number, `float("inf")`, `-math.inf`."""
    inner = value.operand if isinstance(value, ast.UnaryOp) else value
    if isinstance(inner, ast.Call):
        return last_name(inner.func) == "float" and len(inner.args) == 1 and isinstance(inner.args[0], ast.Constant)
    return last_name(inner) in ("inf", "Inf", "Infinity") or (isinstance(inner, ast.Constant) and isinstance(inner.value, (int, float)))


def _innermost(program: Program, node: ast.AST) -> ast.AST | None:
    return next((a for a in program.ancestors(node) if isinstance(a, (ast.For, ast.While, ast.comprehension))), None)


def _beaten(program: Program, loop: ast.AST, inside: list[ast.AST], name: str) -> bool:
    """Whether an `if` of the loop itself compares a score with a name and sets it."""
    for branch in (n for n in inside if isinstance(n, ast.If) and _innermost(program, n) is loop):
        compared = any(isinstance(c, ast.Compare) and name in {dotted(c.left), *map(dotted, c.comparators)} for c in walk(branch.test))
        sets = any(isinstance(s, ast.Assign) and any(dotted(t) == name for t in s.targets) for s in walk(branch))
        if compared and sets:
            return not any(isinstance(a, (ast.Assign, ast.AugAssign)) and _innermost(program, a) is not loop and name in _targets(a) for a in inside)
    return False


def _targets(node: ast.Assign | ast.AugAssign) -> set[str]:
    return {dotted(t) for t in (node.targets if isinstance(node, ast.Assign) else [node.target])}


def _waits(program: Program, loop: ast.AST, inside: list[ast.AST], name: str) -> bool:
    """Whether a name is raised by 1 once in the loop itself, and ends it where it reaches a patience."""
    raised = [n for n in inside if isinstance(n, ast.AugAssign) and dotted(n.target) == name and constant(n.value) == 1]
    if len(raised) != 1 or _innermost(program, raised[0]) is not loop:
        return False
    for branch in (n for n in inside if isinstance(n, ast.If) and _innermost(program, n) is loop):
        asked = any(
            isinstance(c, ast.Compare) and dotted(c.left) == name and "patience" in words(" ".join(identifiers(c.comparators[0]))) for c in walk(branch.test)
        )
        if asked and any(isinstance(s, (ast.Break, ast.Return)) for s in walk(branch)):
            return True
    return False


@rule(
    "BH250",
    "precision-is-recall",
    "error",
    title="Precision and recall are exchanged",
    why="Precision is the share of the rows called positive that are; recall the share of the positive rows that are called so. Divided by the other sum, each goes by the other's name.",
    remedy="`precision = tp / (tp + fp)`, `recall = tp / (tp + fn)`",
    bad="""
        import torch

        def report(tp, fp, fn):
            precision = tp / max(tp + fn, 1)
            recall = tp / max(tp + fp, 1)
            return precision, recall
        """,
    good="""
        import torch

        def report(tp, fp, fn):
            precision = tp / max(tp + fp, 1)
            recall = tp / max(tp + fn, 1)
            return precision, recall
        """,
)
def precision_is_recall(subject: Subject) -> Iterator[Place]:
    """A name, key or function of precision gets `tp / (tp + fn)`, or one of recall `tp / (tp + fp)`."""
    program = subject.program
    for node in program.nodes[ast.BinOp]:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)) or "tp" not in _counts(node.left):
            continue
        of = _counts(node.right) - {"tp"}
        said = _called(program, node)
        if of == {"fn"} and "precision" in said and "recall" not in said:
            yield node, "the true positives are divided by all positive rows, which is recall"
        elif of == {"fp"} and {"recall", "sensitivity"} & said and "precision" not in said:
            yield node, "the true positives are divided by all rows called positive, which is precision"


def _counts(node: ast.AST) -> set[str]:
    """Which counts of a confusion matrix are read."""
    return {ALIKE[n.lower().strip("_")] for n in identifiers(node) if n.lower().strip("_") in ALIKE}


def _called(program: Program, node: ast.expr) -> frozenset[str]:
    """The words by which a value is called: the name it is bound to, its key, its keyword, or the function that returns it."""
    inner: ast.AST = node
    for above in program.ancestors(node):
        if isinstance(above, ast.Assign):
            target = above.targets[0]
            if isinstance(target, ast.Tuple) and isinstance(above.value, ast.Tuple) and inner in above.value.elts:
                return words(last_name(target.elts[above.value.elts.index(inner)]))
            key = constant(target.slice) if isinstance(target, ast.Subscript) else None
            return words(key) if isinstance(key, str) else words(last_name(target))
        if isinstance(above, ast.Dict) and inner in above.values:
            key = constant(above.keys[above.values.index(inner)])
            return words(key) if isinstance(key, str) else frozenset()
        if isinstance(above, ast.keyword):
            return words(above.arg or "")
        if isinstance(above, ast.Return):
            return words(program.scope(node).name)
        inner = above
    return frozenset()


@rule(
    "BH251",
    "hits-over-all-guesses",
    "error",
    title="Hits among the best k are divided by all k guesses",
    why="Each row has one label, so at most one of its k guesses can be right. Divided by rows times k, the best possible accuracy is 1 / k.",
    remedy="count rows with a hit: `(best == y[:, None]).any(dim=1).float().mean()`",
    bad="""
        import torch

        def top_k_accuracy(scores, y, k=5):
            best = scores.topk(k, dim=1).indices
            return (best == y[:, None]).float().mean()
        """,
    good="""
        import torch

        def top_k_accuracy(scores, y, k=5):
            best = scores.topk(k, dim=1).indices
            return (best == y[:, None]).any(dim=1).float().mean()
        """,
)
def hits_over_all_guesses(subject: Subject) -> Iterator[Place]:
    """The places of a topk are compared with one label a row, and the mean of all comparisons is taken, or their sum over `numel` of the places."""
    program = subject.program
    for compare in program.nodes[ast.Compare]:
        if not (isinstance(compare, ast.Compare) and isinstance(compare.ops[0], ast.Eq)):
            continue
        scope = program.scope(compare)
        sides = [compare.left, compare.comparators[0]]
        best = next((s for s in sides if _is_top(program, s, scope)), None)
        if best is None or not any(_is_column(s) for s in sides if s is not best):
            continue
        chain = [method(a) for a in program.ancestors(compare) if isinstance(a, ast.Call)]
        averaged = chain[:2] in (["float", "mean"], ["double", "mean"]) or chain[:1] == ["mean"]
        whole = [a for a in program.ancestors(compare) if isinstance(a, ast.Call) and method(a) == "mean"]
        counted = isinstance(best, ast.Name) and any(method(c) == "numel" and dotted(receiver(c)) == best.id for c in calls(scope.node))
        if (averaged and not whole[0].args and not whole[0].keywords) or (counted and "sum" in chain and "any" not in chain):
            yield compare, "one of k guesses can be right, and all k count", scope.node if scope.name else compare


def _is_top(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a value is the places of the k highest scores, k more than 1."""
    values = reaching(program, node, scope) if isinstance(node, ast.Name) else [node]
    for value in values:
        inner: ast.expr | None = value
        if (isinstance(inner, ast.Attribute) and inner.attr == "indices") or (isinstance(inner, ast.Subscript) and constant(inner.slice) == 1):
            inner = inner.value
        if isinstance(inner, ast.Call) and last_name(inner.func) == "topk":
            k = keyword(inner, "k", 0 if isinstance(inner.func, ast.Attribute) and dotted(inner.func.value) != "torch" else 1)
            return constant(k) != 1
    return False


def _is_column(node: ast.expr) -> bool:
    """Whether labels are made a column: `y[:, None]`, `y.unsqueeze(1)`, `y.view(-1, 1)`."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        return isinstance(node.slice.elts[-1], ast.Constant) and node.slice.elts[-1].value is None and isinstance(node.value, (ast.Name, ast.Attribute))
    if not isinstance(node, ast.Call):
        return False
    if method(node) in ("expand_as", "expand") and receiver(node) is not None:
        return _is_column(receiver(node) or node)
    return (method(node) == "unsqueeze" and constant(node.args[0] if node.args else None) in (1, -1)) or (
        method(node) in ("view", "reshape") and [constant(a) for a in node.args] == [-1, 1]
    )


@rule(
    "BH472",
    "noise-of-one-step-alone",
    "error",
    title="Noise is added by the amount of one step, not of all steps until then",
    why="At step t of a diffusion the share of the picture that is left is the product of all alphas so far. With the alpha of that step alone hardly any noise is ever added: "
    "the network never sees what sampling begins with.",
    remedy="`alpha_bar = torch.cumprod(1 - betas, dim=0)`, and index that",
    bad="""
        import torch

        class Diffusion:
            def __init__(self, steps):
                self.betas = torch.linspace(1e-4, 0.02, steps)
                self.alphas = 1.0 - self.betas

            def noisy(self, x, t, noise):
                a = self.alphas[t].view(-1, 1)
                return a.sqrt() * x + (1 - a).sqrt() * noise
        """,
    good="""
        import torch

        class Diffusion:
            def __init__(self, steps):
                self.betas = torch.linspace(1e-4, 0.02, steps)
                self.alphas = torch.cumprod(1.0 - self.betas, dim=0)

            def noisy(self, x, t, noise):
                a = self.alphas[t].view(-1, 1)
                return a.sqrt() * x + (1 - a).sqrt() * noise
        """,
)
def noise_of_one_step_alone(subject: Subject) -> Iterator[Place]:
    """`alphas = 1 - betas` is indexed by the step, and its root and that of its rest weigh picture and noise, in a file without a cumulative product."""
    program = subject.program
    if {"cumprod", "cumsum", "prod"} & program.called_names:
        return
    for node in program.nodes[ast.Assign]:
        value = node.value if isinstance(node, ast.Assign) else None
        if not (
            isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub) and constant(value.left) in (1, 1.0) and "betas" in words(last_name(value.right))
        ):
            continue
        name = last_name(node.targets[0])  # type: ignore[attr-defined]
        if any(_roots_of(program, scope, name) for scope in program.scopes if scope.name):
            yield value, f"{name} is what is left after one step: what is left after all steps until t is their product"


def _roots_of(program: Program, scope: Scope, name: str) -> bool:
    """Whether a function takes the root of an entry, and that of 1 minus it."""
    entries = {
        n for n, bound in scope.bindings.items() for b in bound if any(isinstance(s, ast.Subscript) and last_name(s.value) == name for s in walk(b.value))
    }
    roots = [
        receiver(c) if method(c) == "sqrt" and not program.is_torch(c.func, "sqrt") else c.args[0]
        for c in calls(scope.node)
        if last_name(c.func) == "sqrt" and (c.args or method(c))
    ]
    plain = any(r is not None and (last_name(r) in entries or _entry(r, name)) for r in roots)
    rest = any(
        isinstance(r, ast.BinOp) and isinstance(r.op, ast.Sub) and constant(r.left) in (1, 1.0) and (last_name(r.right) in entries or _entry(r.right, name))
        for r in roots
    )
    return plain and rest


def _entry(node: ast.AST, name: str) -> bool:
    return any(isinstance(s, ast.Subscript) and last_name(s.value) == name for s in walk(node))


@rule(
    "BH473",
    "mean-over-padding",
    "warning",
    title="The mean of a sequence counts its padding",
    why="Sums over the tokens of a row are divided by the length of the longest row of its batch: the same text gets other features beside a longer one.",
    remedy="divide by the number of tokens: `(h * mask).sum(1) / mask.sum(1)` with `mask = (ids != pad).unsqueeze(-1)`",
    bad="""
        import torch
        from torch import nn

        class Bag(nn.Module):
            def __init__(self, vocab, width):
                super().__init__()
                self.embed, self.out = nn.Embedding(vocab, width, padding_idx=0), nn.Linear(width, 2)

            def forward(self, ids):
                return self.out(self.embed(ids).mean(dim=1))
        """,
    good="""
        import torch
        from torch import nn

        class Bag(nn.Module):
            def __init__(self, vocab, width):
                super().__init__()
                self.embed, self.out = nn.Embedding(vocab, width, padding_idx=0), nn.Linear(width, 2)

            def forward(self, ids):
                mask = (ids != 0).unsqueeze(-1)
                return self.out((self.embed(ids) * mask).sum(1) / mask.sum(1).clamp(min=1))
        """,
)
def mean_over_padding(subject: Subject) -> Iterator[Place]:
    """In a network whose embedding has a padding_idx, `forward` takes the mean over axis 1 of what the embedding gave, with no mask or length in sight."""
    program = subject.program
    for owner in program.module_classes:
        forward, start = program.methods[owner].get("forward"), program.methods[owner].get("__init__")
        if forward is None or start is None:
            continue
        padded = {
            last_name(t)
            for s in walk(start.node)
            if isinstance(s, ast.Assign)
            for t, v in (zip(s.targets[0].elts, s.value.elts, strict=False) if _is_pair(s) else [(s.targets[0], s.value)])  # type: ignore[attr-defined]
            if isinstance(v, ast.Call) and program.is_torch(v.func, "Embedding") and keyword(v, "padding_idx", 2) is not None
        }
        told = {w for n in identifiers(forward.node) for w in words(n)} & {
            "mask",
            "masks",
            "length",
            "lengths",
            "lens",
            "len",
            "packed",
            "pad",
            "valid",
            "count",
            "counts",
        }
        if not padded or told or any(isinstance(n, ast.Compare) for n in walk(forward.node)):
            continue
        for call in calls(forward.node):
            axis = constant(keyword(call, "dim", 0 if method(call) == "mean" and not program.is_torch(call.func, "mean") else 1))
            of = call.args[0] if program.is_torch(call.func, "mean") and call.args else receiver(call)
            if last_name(call.func) == "mean" and axis == 1 and of is not None and _comes_from(program, of, padded, forward, 0):
                yield call, "the mean over the places of a sequence counts those of its padding", forward.node


def _comes_from(program: Program, node: ast.expr, layers: set[str], scope: Scope, depth: int) -> bool:
    """Whether a value is what a layer gave, or was made of that alone."""
    if isinstance(node, ast.Call) and last_name(node.func) in layers:
        return True
    if isinstance(node, ast.Name) and depth < 4:
        return any(_comes_from(program, v, layers, scope, depth + 1) for v in reaching(program, node, scope))
    if isinstance(node, ast.Call) and dotted(receiver(node)) == "self" and len(node.args) == 1:
        return _comes_from(program, node.args[0], layers, scope, depth + 1)
    if isinstance(node, ast.BinOp):
        return any(_comes_from(program, side, layers, scope, depth + 1) for side in (node.left, node.right))
    return False
