"""Rules BH321 to BH323: rates where their logarithms are expected, terms of a loss that are mere numbers, and scores compared with probabilities."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import made_names
from training.review.program import Program, Scope
from training.review.settings import argument_of
from training.review.syntax import LOOPS, calls, constant, dotted, has_unpacking, keyword, last_name, method, receiver, walk, words
from training.review.values import activation, loss_calls, loss_kind, reaching, value_of

RATES = {"exp", "softplus", "relu", "square"}
POISSON = ("torch.nn.functional.poisson_nll_loss", "torch.poisson_nll_loss")
BOUNDED = {"softmax", "sigmoid"}
LOSSES = {"loss", "losses", "criterion", "penalty", "nll", "bce", "mse", "xent", "consistency", "kl", "kld", "aux", "regularizer", "reg"}


@rule(
    "BH321",
    "rate-or-its-logarithm",
    "error",
    title="A Poisson loss gets a rate for its logarithm, or the other way about",
    why="With `log_input=True`, the default, the loss takes the exponential itself: given a rate it learns the logarithm of the logarithm. With False it takes the logarithm of raw scores, which is NaN below 0.",
    remedy="give raw scores to `log_input=True`, and predict their exponential; or make rates by `softplus` and give them to `log_input=False`",
    bad="""
        from torch import nn

        criterion = nn.PoissonNLLLoss()

        def loss_of(net, x, counts):
            return criterion(net(x).exp(), counts)
        """,
    good="""
        from torch import nn

        criterion = nn.PoissonNLLLoss()

        def loss_of(net, x, counts):
            return criterion(net(x), counts)
        """,
)
def rate_or_its_logarithm(subject: Subject) -> Iterator[Place]:
    """A Poisson loss with `log_input` left on that is given an exponential or a softplus, or with it off that is given what a last linear layer made."""
    program = subject.program
    if not {"poisson_nll_loss", "PoissonNLLLoss"} & made_names(program):
        return
    for call in program.all_calls:
        scope = program.scope(call)
        function = program.resolve(call.func) in POISSON
        made = [call] if function else [o.call for o in program.origins(call.func, scope) if o.name == "torch.nn.PoissonNLLLoss"]
        if len(made) != 1 or has_unpacking(made[0]) or has_unpacking(call):
            continue
        asked = argument_of(program, made[0], "log_input", 2 if function else 0)
        given = keyword(call, "input" if function else "log_input", 0)
        logarithm = True if asked is None else constant(asked)
        value = value_of(program, given, scope) if given is not None else None
        if logarithm is True and isinstance(value, ast.Call) and (method(value) or last_name(value.func)) in RATES:
            yield call, f"{ast.unparse(value)} is a rate, and log_input says that it is the logarithm of one"
        elif logarithm is True and value is given and given is not None and activation(program, given, scope) == "softplus":
            yield call, f"{ast.unparse(given)} ends in softplus and is a rate, and log_input says that it is the logarithm of one"
        elif logarithm is False and given is not None and any(activation(program, side, scope) == "linear" for side in _added(given)):
            yield call, f"{ast.unparse(given)} are raw scores, some of them below 0, and log_input=False takes their logarithm"


def _added(node: ast.expr) -> list[ast.expr]:
    """What is added up, as scores and an offset."""
    return [*_added(node.left), *_added(node.right)] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) else [node]


@rule(
    "BH322",
    "number-in-the-loss",
    "error",
    title="A term of the loss is a mere number",
    why="`.item()`, `float(...)` and `.detach()` cut a term off from the network. It is added to the loss that is printed, and changes no weight.",
    remedy="add the tensor itself, and take numbers for the print alone",
    bad="""
        from torch.nn import functional as F

        def step(net, optimizer, x, y, past):
            loss = F.cross_entropy(net(x), y)
            penalty = F.mse_loss(net(x).softmax(1), past)
            total = loss + 10 * penalty.item()
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
        """,
    good="""
        from torch.nn import functional as F

        def step(net, optimizer, x, y, past):
            loss = F.cross_entropy(net(x), y)
            penalty = F.mse_loss(net(x).softmax(1), past)
            total = loss + 10 * penalty
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
        """,
)
def number_in_the_loss(subject: Subject) -> Iterator[Place]:
    """What `backward` is called on is a sum, one term of which is a loss that became a number, times settings at most; the same loss stands in no other term."""
    program = subject.program
    for trace in subject.traces:
        for event in (e for e in trace if e.kind == "backward"):
            target = receiver(event.node) if not event.via else (event.call.args[0] if event.call.args else None)
            values = reaching(program, target, event.scope) if isinstance(target, ast.Name) else [target]
            for value in values:
                terms = list(_terms(value)) if isinstance(value, ast.BinOp) else []
                for term in terms if len(terms) > 1 else ():
                    cut = _cut_loss(program, term, event.scope)
                    if cut is None:
                        continue
                    others = {ast.dump(n) for t in terms if t is not term for n in walk(t)}
                    if ast.dump(cut) not in others:
                        yield term, f"{ast.unparse(term)} is a number: {ast.unparse(cut)} is added to the loss, and no weight learns from it", event.node


def _terms(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield from _terms(node.left)
        yield from _terms(node.right)
    else:
        yield node


def _cut_loss(program: Program, term: ast.expr, scope: Scope) -> ast.expr | None:
    """The loss in a term that is cut off from its graph, where everything else in the term is a setting."""
    found: list[ast.expr] = []
    for node in walk(term):
        if isinstance(node, ast.Call) and method(node) in ("item", "detach") and (of := receiver(node)) is not None:
            found.append(of)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float" and len(node.args) == 1:
            found.append(node.args[0])
    if not found and isinstance(term, (ast.Name, ast.BinOp)) and (weights := _of_data(program, term, scope)) is not None:
        return weights
    if len(found) != 1 or not _is_loss(program, found[0], scope):
        return None
    inside = set(walk(found[0]))
    loose = [n for n in walk(term) if isinstance(n, (ast.Name, ast.Attribute)) and n not in inside and not _is_part(program, n)]
    return None if any(_computed(program, n, scope) for n in loose) else found[0]


def _of_data(program: Program, term: ast.expr, scope: Scope) -> ast.expr | None:
    """A penalty of the weights that is computed of `p.data`, in a term or behind its only name that is no setting."""
    values = [v for n in walk(term) if isinstance(n, ast.Name) for v in reaching(program, n, scope)]
    for value in values:
        over = [g.iter for n in walk(value) if isinstance(n, (ast.GeneratorExp, ast.ListComp)) for g in n.generators]
        weights = any(method(c) in ("parameters", "named_parameters") for o in over for c in calls(o))
        if weights and any(isinstance(n, ast.Attribute) and n.attr == "data" for n in walk(value)):
            return value
    return None


def _is_part(program: Program, node: ast.expr) -> bool:
    """Whether it is what is called, or the beginning of a longer name."""
    above = program.parents[node]
    return isinstance(above, ast.Attribute) or (isinstance(above, ast.Call) and above.func is node)


def _is_loss(program: Program, node: ast.expr, scope: Scope) -> bool:
    value = value_of(program, node, scope)
    known = isinstance(value, ast.Call) and bool(loss_kind(program, value, scope) or words(last_name(value.func)) & LOSSES)
    return known or bool(words(last_name(node)) & LOSSES)


def _computed(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a factor may be a tensor that learns: an attribute of the class that is more than a setting, or a name that is given a value in a loop."""
    bound = program.bindings_of(node, scope)
    if isinstance(node, ast.Attribute):
        return any(not isinstance(b.value, (ast.Constant, ast.Name)) for b in bound) if dotted(node).startswith("self.") else False
    return any(b.how != "loop" and any(isinstance(a, LOOPS) for a in program.ancestors(b.statement)) for b in bound)


@rule(
    "BH323",
    "scores-against-probabilities",
    "warning",
    title="Raw scores are compared with probabilities",
    why="One side went through a softmax or a sigmoid and lies between 0 and 1, the other is what a last linear layer gives: the distance pulls scores towards 0 and 1, where they tell nothing apart.",
    remedy="put both sides through the same, `F.mse_loss(student(x).softmax(1), teacher(x).softmax(1))`, or compare raw scores with raw scores",
    bad="""
        import torch
        from torch import nn
        from torch.nn import functional as F

        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

        def consistency(slow, x):
            with torch.no_grad():
                goal = slow(x).softmax(1)
            return F.mse_loss(net(x), goal)
        """,
    good="""
        import torch
        from torch import nn
        from torch.nn import functional as F

        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

        def consistency(slow, x):
            with torch.no_grad():
                goal = slow(x).softmax(1)
            return F.mse_loss(net(x).softmax(1), goal)
        """,
)
def scores_against_probabilities(subject: Subject) -> Iterator[Place]:
    """A squared or absolute distance between what a last linear layer made and a softmax or sigmoid of another value."""
    program = subject.program
    for loss in loss_calls(program):
        if loss.kind not in ("mse", "l1") or loss.target is None:
            continue
        sides = [(side, activation(program, side, loss.scope)) for side in (loss.scores, loss.target)]
        raw = [side for side, made in sides if made == "linear"]
        bent = [side for side, made in sides if made in BOUNDED]
        if raw and bent:
            yield loss.call, f"{ast.unparse(raw[0])} are raw scores, {ast.unparse(bent[0])} lies between 0 and 1"
