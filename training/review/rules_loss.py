"""Rules BH301 to BH307, BH311 and BH312: what goes into the loss."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_frozen_name, is_model
from training.review.lookups import made_names, torch_calls
from training.review.program import Program, Scope
from training.review.sides import targets_of
from training.review.syntax import constant, dotted, identifiers, is_true, keyword, last_name, method, receiver, walk, words
from training.review.values import PASSED_ON, LossCall, activation, loss_calls, reaching

SCORES = {"logits", "output", "outputs", "pred", "preds", "prediction", "predictions", "y_hat", "y_pred", "out", "scores"}
DEVIATIONS, SQUARED = {"std", "stds", "stdev", "stddev", "sd", "sigma", "sigmas", "deviation"}, {"sq", "squared", "square", "2", "log", "var"}
OF_LOGITS = {"Categorical", "Bernoulli", "OneHotCategorical", "OneHotCategoricalStraightThrough", "RelaxedOneHotCategorical", "RelaxedBernoulli", "Multinomial"}
TARGETS = {"label", "labels", "target", "targets", "y", "y_true", "yb", "gt"}


@rule(
    "BH301",
    "softmax-before-cross-entropy",
    "error",
    title="Softmax before cross-entropy or `logits=`",
    why="The loss takes the softmax itself: a second one squeezes the scores into [0, 1], so that the loss cannot fall below about ln(1 + (C-1)/e), and gradients fade.",
    remedy="give raw scores (logits) to the loss; take the softmax for predictions alone",
    bad="""
        import torch.nn.functional as F

        def compute_loss(model, x, y):
            probabilities = F.softmax(model(x), dim=1)
            return F.cross_entropy(probabilities, y)
        """,
    good="""
        import torch.nn.functional as F

        def compute_loss(model, x, y):
            logits = model(x)
            return F.cross_entropy(logits, y)
        """,
)
def softmax_before_cross_entropy(subject: Subject) -> Iterator[Place]:
    """The scores that a cross-entropy, or a distribution as its `logits`, gets went through a softmax (or a sigmoid) last."""
    for loss in loss_calls(subject.program):
        if loss.kind == "cross_entropy" and (made := activation(subject.program, loss.scores, loss.scope)) in ("softmax", "sigmoid"):
            yield loss.call, f"{made} is applied before cross-entropy, which expects raw scores", _function(loss)
    for call in torch_calls(subject.program, *OF_LOGITS):
        name = subject.program.resolve(call.func)
        if name.startswith("torch.distributions."):
            made = activation(subject.program, keyword(call, "logits"), subject.program.scope(call))
            if made in ("softmax", "sigmoid"):
                yield call, f"{made} is applied before the logits of {name.rpartition('.')[2]}, which expects raw scores"


def _function(loss: LossCall) -> ast.AST:
    return loss.scope.node if loss.scope.name else loss.call


@rule(
    "BH302",
    "sigmoid-before-bce-with-logits",
    "error",
    title="Sigmoid before BCE with logits",
    why="The loss takes the sigmoid itself: with a second one every probability lies between .5 and .73, and the loss cannot fall below .31.",
    remedy="give raw scores to the loss; take the sigmoid for predictions alone",
    bad="""
        import torch
        import torch.nn.functional as F

        def compute_loss(model, x, y):
            return F.binary_cross_entropy_with_logits(torch.sigmoid(model(x)), y)
        """,
    good="""
        import torch
        import torch.nn.functional as F

        def compute_loss(model, x, y):
            return F.binary_cross_entropy_with_logits(model(x), y)
        """,
)
def sigmoid_before_bce_with_logits(subject: Subject) -> Iterator[Place]:
    """The scores that BCE with logits gets went through a sigmoid or softmax last."""
    for loss in loss_calls(subject.program):
        if loss.kind == "bce_logits" and (made := activation(subject.program, loss.scores, loss.scope)) in ("sigmoid", "softmax", "log_sigmoid"):
            yield loss.call, f"{made} is applied before BCE with logits, which expects raw scores", _function(loss)
    for call in subject.program.calls_of("logsigmoid"):
        if call.args and activation(subject.program, call.args[0], subject.program.scope(call)) == "sigmoid":
            yield call, "sigmoid is applied before logsigmoid, which expects raw scores"


@rule(
    "BH303",
    "nll-without-log-softmax",
    "error",
    title="NLLLoss without log_softmax",
    why="The loss only picks `-score[label]`: on raw scores it falls without bound as they grow, on probabilities it has no steep penalty, and neither is a likelihood.",
    remedy="use `cross_entropy` on raw scores, or apply `log_softmax`",
    bad="""
        import torch.nn.functional as F

        def compute_loss(model, x, y):
            return F.nll_loss(F.softmax(model(x), dim=1), y)
        """,
    good="""
        import torch.nn.functional as F

        def compute_loss(model, x, y):
            return F.nll_loss(F.log_softmax(model(x), dim=1), y)
        """,
)
def nll_without_log_softmax(subject: Subject) -> Iterator[Place]:
    """The scores that the negative log-likelihood gets came out of something else last."""
    for loss in loss_calls(subject.program):
        if loss.kind in ("nll", "ctc") and (made := activation(subject.program, loss.scores, loss.scope)) in ("softmax", "linear", "sigmoid", "relu"):
            yield loss.call, f"{loss.kind.upper()}Loss expects log-probabilities and gets the output of {made}", _function(loss)


@rule(
    "BH304",
    "bce-without-sigmoid",
    "error",
    title="BCELoss on raw scores",
    why="BCELoss needs probabilities: raw scores outside of [0, 1] raise an error on the CPU and a device-side assert on a GPU.",
    remedy="use `BCEWithLogitsLoss` on raw scores",
    bad="""
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        criterion = nn.BCELoss()

        def compute_loss(x, y):
            return criterion(model(x).squeeze(1), y)
        """,
    good="""
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        criterion = nn.BCEWithLogitsLoss()

        def compute_loss(x, y):
            return criterion(model(x).squeeze(1), y)
        """,
)
def bce_without_sigmoid(subject: Subject) -> Iterator[Place]:
    """The probabilities that BCE gets came straight out of a linear layer, a ReLU or a log."""
    for loss in loss_calls(subject.program):
        if loss.kind == "bce" and (made := activation(subject.program, loss.scores, loss.scope)) in ("linear", "relu", "log_softmax", "log_sigmoid", "tanh"):
            yield loss.call, f"BCELoss expects probabilities and gets the output of {made}", _function(loss)


@rule(
    "BH305",
    "kl-without-log",
    "error",
    title="kl_div on probabilities",
    why="The first argument of `kl_div` must be log-probabilities: with probabilities the value is no divergence and can be negative.",
    remedy="give `F.log_softmax(student, dim=-1)` first",
    bad="""
        import torch.nn.functional as F

        def distill(student, teacher, t):
            return F.kl_div(F.softmax(student / t, dim=-1), F.softmax(teacher / t, dim=-1), reduction="batchmean")
        """,
    good="""
        import torch.nn.functional as F

        def distill(student, teacher, t):
            return F.kl_div(F.log_softmax(student / t, dim=-1), F.softmax(teacher / t, dim=-1), reduction="batchmean")
        """,
)
def kl_without_log(subject: Subject) -> Iterator[Place]:
    """The first argument of a KL divergence went through a softmax, or its second through a log-softmax without `log_target`."""
    for loss in loss_calls(subject.program):
        if loss.kind != "kl":
            continue
        first, second = (activation(subject.program, part, loss.scope) for part in (loss.scores, loss.target))
        if first in ("softmax", "sigmoid", "linear"):
            yield loss.call, f"kl_div expects log-probabilities first and gets the output of {first}"
        elif second == "log_softmax" and dotted(loss.call.func).rpartition(".")[2] == "kl_div" and not is_true(keyword(loss.call, "log_target")):
            yield loss.call, "the target holds log-probabilities, and log_target=True is not set"


@rule(
    "BH306",
    "loss-arguments-swapped",
    "error",
    title="Scores and labels are swapped",
    why="The first argument of the loss is what gets the gradient: with labels first, types fail at best, and at worst the wrong side is taken for the probability.",
    remedy="call `loss_fn(scores, labels)`",
    bad="""
        from torch import nn

        criterion = nn.BCEWithLogitsLoss()

        def compute_loss(model, x, labels):
            logits = model(x)
            return criterion(labels, logits)
        """,
    good="""
        from torch import nn

        criterion = nn.BCEWithLogitsLoss()

        def compute_loss(model, x, labels):
            logits = model(x)
            return criterion(logits, labels)
        """,
)
def loss_arguments_swapped(subject: Subject) -> Iterator[Place]:
    """The first argument is a label, the second a score, by name or by where they come from, for a loss whose arguments differ."""
    for loss in loss_calls(subject.program):
        if loss.kind in ("cross_entropy", "nll", "bce", "bce_logits") and len(loss.call.args) >= 2 and loss.target is not None:
            second = last_name(loss.target) in SCORES or activation(subject.program, loss.target, loss.scope) in ("linear", "log_softmax")
            traced = _from_batch(loss.scores, loss.scope) and _from_network(subject.program, loss.target, loss.scope)
            if (last_name(loss.scores) in TARGETS and second) or traced:
                yield loss.call, f"{ast.unparse(loss.scores)} comes first and {ast.unparse(loss.target)} second: the loss expects scores, then labels"
        elif loss.kind == "kl" and loss.target is not None and _learns_from_input(subject.program, loss):
            yield (
                loss.call,
                f"{ast.unparse(loss.scores)} has no gradient and comes first, {ast.unparse(loss.target)} is what learns: the divergence expects it first",
            )


def _learns_from_input(program: Program, loss: LossCall) -> bool:
    """Whether the first side of a divergence has no gradient, and the second is what learns."""
    if loss.target is None or not _is_quiet(program, loss.scores, loss.scope) or _is_quiet(program, loss.target, loss.scope):
        return False
    return _of_learner(program, loss.target, loss.scope)


def _is_quiet(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Whether a value was computed without gradients, by all that is seen of it."""
    if isinstance(node, ast.Name):
        bound = scope.bindings.get(node.id, ())
        if len(bound) != 1 or bound[0].how != "assign" or depth > 3:
            return False
        blocks = [i.context_expr for a in program.ancestors(bound[0].value) if isinstance(a, ast.With) for i in a.items]
        return any({"no_grad", "inference_mode"} & identifiers(b) for b in blocks) or _is_quiet(program, bound[0].value, scope, depth + 1)
    if method(node) == "detach":
        return True
    if isinstance(node, ast.Call):
        on = keyword(node, "input", 0) if program.resolve(node.func).startswith("torch.") else receiver(node)
        squashes = last_name(node.func) in ("softmax", "log_softmax", "log", "clamp", "float")
        return squashes and on is not None and _is_quiet(program, on, scope, depth)
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _is_quiet(program, node.left, scope, depth)


def _of_learner(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a value is the softmax of what a network gave that is not frozen by its name."""
    names = [n for n in walk(node) if isinstance(n, ast.Name)]
    values = [node, *(v for n in names for v in reaching(program, n, scope))]
    made = [c for v in values for c in walk(v) if isinstance(c, ast.Call) and is_model(program, c.func, scope)]
    return bool(made) and not any(is_frozen_name(last_name(c.func)) for c in made)


def _from_batch(node: ast.expr, scope: Scope) -> bool:
    """Whether a name is a part of what a loop gives, at most moved."""
    bindings = scope.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
    moved = all(b.how == "loop" or (method(b.value) in ("to", "cuda") and last_name(receiver(b.value)) == last_name(node)) for b in bindings)
    return moved and any(b.how == "loop" and b.index is not None for b in bindings)


def _from_network(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a name holds what a network that learns gave."""
    values = reaching(program, node, scope) if isinstance(node, ast.Name) else [node]
    return bool(values) and all(isinstance(v, ast.Call) and is_model(program, v.func, scope) and not is_frozen_name(last_name(v.func)) for v in values)


@rule(
    "BH307",
    "loss-on-decision",
    "error",
    title="A loss on hard decisions has no gradient",
    why="`argmax` and rounding have no gradient: `backward` raises, or nothing behind them learns.",
    remedy="give the scores themselves to the loss; decide for the metric alone",
    bad="""
        import torch.nn.functional as F

        def compute_loss(model, x, y):
            predicted = model(x).argmax(dim=1).float()
            return F.mse_loss(predicted, y)
        """,
    good="""
        import torch.nn.functional as F

        def compute_loss(model, x, y):
            return F.cross_entropy(model(x), y)
        """,
)
def loss_on_decision(subject: Subject) -> Iterator[Place]:
    """The scores that a loss gets came out of `argmax` last."""
    for loss in loss_calls(subject.program):
        if activation(subject.program, loss.scores, loss.scope) == "argmax":
            yield loss.call, "argmax has no gradient: nothing before it can learn from this loss"


@rule(
    "BH311",
    "logits-cut-at-half",
    "error",
    title="Raw scores are cut at one half",
    why="The loss takes raw scores, whose middle is 0: a score of 0.3 is a probability of 57 %, and counts as a no. Accuracy, precision and recall are those of another threshold.",
    remedy="take the sigmoid first, or compare with 0",
    bad="""
        import torch
        import torch.nn.functional as F

        def evaluate(model, loader):
            model.eval()
            hits, total = 0, 0.0
            with torch.inference_mode():
                for x, y in loader:
                    logits = model(x)
                    total += F.binary_cross_entropy_with_logits(logits, y).item()
                    hits += ((logits > 0.5) == y).sum().item()
            return hits, total
        """,
    good="""
        import torch
        import torch.nn.functional as F

        def evaluate(model, loader):
            model.eval()
            hits, total = 0, 0.0
            with torch.inference_mode():
                for x, y in loader:
                    logits = model(x)
                    total += F.binary_cross_entropy_with_logits(logits, y).item()
                    hits += ((logits > 0) == y).sum().item()
            return hits, total
        """,
)
def logits_cut_at_half(subject: Subject) -> Iterator[Place]:
    """The output of a network, with no sigmoid on it, is compared with 0.5, in a file whose loss takes the raw output of the same network."""
    program = subject.program
    halves = [n for n in program.nodes[ast.Compare] if isinstance(n, ast.Compare) and constant(n.comparators[0]) == 0.5]
    trained = {
        name
        for loss in (loss_calls(program) if halves else ())
        if loss.kind == "bce_logits" and activation(program, loss.scores, loss.scope) in ("", "linear")
        for name in _networks(program, loss.scores, loss.scope)
    }
    for node in halves if trained else ():
        if not isinstance(node.ops[0], (ast.Gt, ast.GtE)):
            continue
        scope = program.scope(node)
        if _has_other_bound(node, scope) or _differs_by_mode(program):
            continue
        if activation(program, node.left, scope) in ("", "linear") and _networks(program, node.left, scope) & trained:
            yield node, f"{ast.unparse(node.left)} is a raw score, whose middle is 0"


def _has_other_bound(node: ast.Compare, scope: Scope) -> bool:
    """Whether the same is compared with -0.5 too: between both nothing is decided."""
    left = ast.unparse(node.left)
    return any(isinstance(n, ast.Compare) and ast.unparse(n.left) == left and constant(n.comparators[0]) == -0.5 for n in walk(scope.node))


def _differs_by_mode(program: Program) -> bool:
    """Whether a network of the file gives probabilities in eval mode, and raw scores in training."""
    for owner in program.module_classes:
        forward = program.methods[owner].get("forward")
        if forward is not None and "training" in identifiers(forward.node) and {"sigmoid", "Sigmoid"} & identifiers(owner):
            return True
    return False


def _networks(program: Program, node: ast.expr, scope: Scope) -> set[str]:
    """Names of the networks whose output an expression is, as it came or reshaped."""
    while isinstance(node, ast.Call) and method(node) in PASSED_ON and receiver(node) is not None and not program.resolve(node.func):
        node = receiver(node) or node
    if isinstance(node, ast.Name):
        values = [v for v in reaching(program, node, scope) if not isinstance(v, ast.Name)]
        found = [_networks(program, value, scope) for value in values]
        return found[0].intersection(*found[1:]) if found else set()
    return {last_name(node.func)} if isinstance(node, ast.Call) and is_model(program, node.func, scope) else set()


@rule(
    "BH312",
    "deviation-as-variance",
    "warning",
    title="Gaussian likelihood is given a deviation",
    why="`GaussianNLLLoss` takes the variance. Given a standard deviation it fits that to the variance: intervals computed from it are far too narrow, or too wide.",
    remedy="give `std**2`, or let the network predict the logarithm of the variance",
    bad="""
        import torch.nn.functional as F

        def loss_of(model, x, y):
            mean, raw = model(x).chunk(2, dim=1)
            std = F.softplus(raw)
            return F.gaussian_nll_loss(mean, y, std)
        """,
    good="""
        import torch.nn.functional as F

        def loss_of(model, x, y):
            mean, raw = model(x).chunk(2, dim=1)
            std = F.softplus(raw)
            return F.gaussian_nll_loss(mean, y, std**2)
        """,
)
def deviation_as_variance(subject: Subject) -> Iterator[Place]:
    """The variance that a Gaussian likelihood gets is called a deviation, and its root is taken nowhere."""
    program = subject.program
    yield from _scaled_by_variance(program)
    for call in program.all_calls if {"gaussian_nll_loss", "GaussianNLLLoss"} & made_names(program) else ():
        scope = program.scope(call)
        likelihood = program.is_torch(call.func, "gaussian_nll_loss") or any(
            o.name.startswith("torch.nn.") and o.last == "GaussianNLLLoss" for o in program.origins(call.func, scope)
        )
        given = keyword(call, "var", 2) if likelihood else None
        name = last_name(given)
        if not isinstance(given, (ast.Name, ast.Attribute)) or not DEVIATIONS & words(name) or SQUARED & words(name):
            continue
        made = reaching(program, given, scope) if isinstance(given, ast.Name) else []
        if not any(map(_is_square, made)) and not _is_rooted(program, name):
            yield call, f"{name} is given where the variance belongs", scope.node if scope.name else call


def _scaled_by_variance(program: Program) -> Iterator[Place]:
    """`mean, std = x.mean(0), x.var(0)`, and rows are divided by `std`."""
    variances = program.methods_of("var")
    divisors = {last_name(n.right) for n in program.nodes[ast.BinOp] if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div)} if variances else set()
    for call in variances:
        statement = program.statement(call)
        if not isinstance(statement, ast.Assign):
            continue
        named = [n for n in targets_of(program, call) if words(n) & DEVIATIONS]
        value = statement.value
        whole = value is call or (isinstance(value, ast.Tuple) and call in value.elts)
        if named and whole and named[0] in divisors and not _is_rooted(program, named[0]):
            yield call, f"{named[0]} is a variance, and rows are divided by it"


def _is_square(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):
        return isinstance(value.op, ast.Pow) or (isinstance(value.op, ast.Mult) and ast.dump(value.left) == ast.dump(value.right))
    return isinstance(value, ast.Call) and last_name(value.func) in ("square", "pow")


def _is_rooted(program: Program, name: str) -> bool:
    """Whether the root of what has that name is taken, so that it is a variance, whatever it is called."""
    rooted = (receiver(c) if method(c) == "sqrt" and not program.resolve(c.func) else keyword(c, "input", 0) for c in program.calls_of("sqrt"))
    return any(last_name(r) == name for r in rooted)
