"""Rules BH301 to BH307, BH310 and BH311: what goes into the loss."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_frozen_name, is_model
from training.review.program import Origin, Program, Scope
from training.review.syntax import constant, dotted, is_true, keyword, last_name, method, own_nodes, receiver
from training.review.values import PASSED_ON, LossCall, activation, loss_calls, reaching

SCORES = {"logits", "output", "outputs", "pred", "preds", "prediction", "predictions", "y_hat", "y_pred", "out", "scores"}
TARGETS = {"label", "labels", "target", "targets", "y", "y_true", "yb", "gt"}


@rule(
    "BH301",
    "softmax-before-cross-entropy",
    "error",
    title="Softmax before cross-entropy",
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
    """The scores that a cross-entropy gets went through a softmax (or a sigmoid) last."""
    for loss in loss_calls(subject.program):
        made = activation(subject.program, loss.scores, loss.scope)
        if loss.kind == "cross_entropy" and made in ("softmax", "sigmoid"):
            yield loss.call, f"{made} is applied before cross-entropy, which expects raw scores", _function(loss)


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
        made = activation(subject.program, loss.scores, loss.scope)
        if loss.kind == "bce_logits" and made in ("sigmoid", "softmax", "log_sigmoid"):
            yield loss.call, f"{made} is applied before BCE with logits, which expects raw scores", _function(loss)


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
        made = activation(subject.program, loss.scores, loss.scope)
        if loss.kind == "nll" and made in ("softmax", "linear", "sigmoid", "relu"):
            yield loss.call, f"NLLLoss expects log-probabilities and gets the output of {made}", _function(loss)


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
        made = activation(subject.program, loss.scores, loss.scope)
        if loss.kind == "bce" and made in ("linear", "relu", "log_softmax", "log_sigmoid", "tanh"):
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
    "BH310",
    "loss-broadcast",
    "error",
    title="Scores [N, 1] meet targets [N]",
    why="Broadcasting makes an N by N matrix of differences of every score with every target: the best the network can do is the mean of the batch. torch warns once and goes on.",
    remedy="give both the same shape: `model(x).squeeze(1)`, or `y.unsqueeze(1)`",
    bad="""
        import torch
        from torch import nn
        from torch.nn import functional as F

        def train(loader, x_val, y_val):
            model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
            optimizer = torch.optim.Adam(model.parameters())
            for x, y in loader:
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                return (model(x_val).squeeze(1) - y_val).abs().mean()
        """,
    good="""
        import torch
        from torch import nn
        from torch.nn import functional as F

        def train(loader, x_val, y_val):
            model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
            optimizer = torch.optim.Adam(model.parameters())
            for x, y in loader:
                optimizer.zero_grad()
                F.mse_loss(model(x).squeeze(1), y).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                return (model(x_val).squeeze(1) - y_val).abs().mean()
        """,
)
def loss_broadcast(subject: Subject) -> Iterator[Place]:
    """The whole output of a network that ends in one column is compared with a target as it came, where the file elsewhere makes that output flat."""
    program = subject.program
    for loss in loss_calls(program):
        values = reaching(program, loss.scores, loss.scope) if isinstance(loss.scores, ast.Name) else [loss.scores]
        if loss.kind not in ("mse", "l1") or len(values) != 1 or not isinstance(values[0], ast.Call) or not isinstance(loss.target, ast.Name):
            continue
        made = {o.call for o in program.origins(values[0].func, loss.scope) if _ends_in_one_column(program, o)}
        untouched = all(b.how == "loop" for b in loss.scope.bindings.get(loss.target.id, ())) and loss.target.id in loss.scope.bindings
        if made and untouched and any(made & _flattened(program, c) for c in program.all_calls):
            yield loss.call, f"{ast.unparse(values[0])} has one column, {loss.target.id} has none: every score is compared with every target"


def _ends_in_one_column(program: Program, made: Origin) -> bool:
    """Whether the last layer of a network is `nn.Linear(…, 1)`, whose output goes out as it is."""
    if made.name == "torch.nn.Linear":
        return constant(keyword(made.call, "out_features", 1)) == 1
    if made.name == "torch.nn.Sequential" and made.call.args and isinstance(made.call.args[-1], ast.Call):
        last = made.call.args[-1]
        return _ends_in_one_column(program, Origin(program.resolve(last.func), last, made.scope))
    forward = program.find_method(program.classes[made.name], "forward") if made.name in program.classes else None
    returned = [n.value for n in own_nodes(forward.node) if isinstance(n, ast.Return)] if forward is not None else []
    if forward is None or len(returned) != 1 or not isinstance(returned[0], ast.Call) or not dotted(returned[0].func).startswith("self."):
        return False
    layers = program.origins(returned[0].func, forward)
    return bool(layers) and all(o.name.startswith("torch.nn.") and _ends_in_one_column(program, o) for o in layers)


def _flattened(program: Program, call: ast.Call) -> set[ast.Call]:
    """What made the network whose output is made flat by a call."""
    inner = receiver(call)
    flat = method(call) in ("squeeze", "flatten") or (method(call) in ("view", "reshape") and [constant(a) for a in call.args] == [-1])
    return {o.call for o in program.origins(inner.func, program.scope(call))} if flat and isinstance(inner, ast.Call) else set()


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
    trained = {
        name
        for loss in loss_calls(program)
        if loss.kind == "bce_logits" and activation(program, loss.scores, loss.scope) in ("", "linear")
        for name in _networks(program, loss.scores, loss.scope)
    }
    for node in program.nodes[ast.Compare]:
        if not isinstance(node, ast.Compare) or constant(node.comparators[0]) != 0.5 or not isinstance(node.ops[0], ast.Gt | ast.GtE):
            continue
        scope = program.scope(node)
        if activation(program, node.left, scope) in ("", "linear") and _networks(program, node.left, scope) & trained:
            yield node, f"{ast.unparse(node.left)} is a raw score, whose middle is 0"


def _networks(program: Program, node: ast.expr, scope: Scope) -> set[str]:
    """Names of the networks whose output an expression is, as it came or reshaped."""
    while isinstance(node, ast.Call) and method(node) in PASSED_ON and receiver(node) is not None and not program.resolve(node.func):
        node = receiver(node) or node
    if isinstance(node, ast.Name):
        values = [v for v in reaching(program, node, scope) if not isinstance(v, ast.Name)]
        found = [_networks(program, value, scope) for value in values]
        return found[0].intersection(*found[1:]) if found else set()
    return {last_name(node.func)} if isinstance(node, ast.Call) and is_model(program, node.func, scope) else set()
