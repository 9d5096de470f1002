"""Rules BH316, BH331, BH332, BH445 and BH446: likelihoods that fall, losses that rise or compare means, a momentum of another framework, a tensor beside itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import keywords_of, spoken_words
from training.review.program import Program, Scope
from training.review.signs import Signs
from training.review.syntax import calls, constant, dotted, identifiers, is_true, keyword, last_name, method, own_nodes, receiver, words
from training.review.values import loss_kind, loss_kinds

FOOLING = {
    "adversarial",
    "attack",
    "attacks",
    "fool",
    "fgsm",
    "pgd",
    "perturb",
    "perturbation",
    "saliency",
    "dream",
    "reversal",
    "confusion",
    "ascent",
    "elbo",
    "mine",
}
OPPONENTS = {"discriminator", "critic", "gan", "adversary", "judge", "forget", "unlearn", "unlearning"}
GAINS = {
    "weight", "weights", "w", "mask", "valid", "keep", "real", "reward", "rewards", "r", "advantage", "advantages", "adv", "return", "returns", "ret", "g", "gain", "gains",
    "importance", "ratio", "delta", "td", "score", "scores", "alpha", "lam", "lambda", "coef", "scale", "smoothing", "share",
}  # fmt: skip
NORMS = {"BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d"}
LARGEST = 0.9


@rule(
    "BH316",
    "likelihood-minimised",
    "error",
    title="A log-likelihood is minimised",
    why="`logsigmoid` and the log-probability of the label are largest, 0, where the network is right. Without a minus the optimizer makes them as small as it can: the loss falls without bound, and what is learned is the opposite.",
    remedy="minimise the negative: `-F.logsigmoid(margin).mean()`",
    bad="""
        import torch.nn.functional as F

        def train(model, optimizer, pairs):
            for chosen, rejected in pairs:
                loss = F.logsigmoid(model(chosen) - model(rejected)).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
    good="""
        import torch.nn.functional as F

        def train(model, optimizer, pairs):
            for chosen, rejected in pairs:
                loss = -F.logsigmoid(model(chosen) - model(rejected)).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
)
def likelihood_minimised(subject: Subject) -> Iterator[Place]:
    """`logsigmoid` of what is not negated, or what is gathered from `log_softmax`, goes into backward with a plus; not in a file of two networks against each other."""
    program = subject.program
    found = program.calls_of("logsigmoid", "gather")
    if not found or OPPONENTS & spoken_words(program) or any(is_true(k.value) for k in keywords_of(program, "maximize")):
        return
    for call in found:
        name = last_name(call.func)
        if name == "logsigmoid" and call.args and not isinstance(call.args[0], ast.UnaryOp):
            what = "logsigmoid"
        elif name == "gather" and _of_log_softmax(program, receiver(call), program.scope(call)):
            what = "the log-probability of the label"
        else:
            continue
        if Signs(program, None if what == "logsigmoid" else GAINS).into_backward(call) == {1}:
            yield call, f"{what} goes into the loss with a plus"


@rule(
    "BH331",
    "loss-maximised",
    "error",
    title="The loss is maximised",
    why="A loss of torch is smallest where the network is right. Negated it has no bound below: the optimizer makes the network as wrong as it can, and the curve falls all the while.",
    remedy="leave the minus out, or use `maximize=True` for what is to grow",
    bad="""
        import torch.nn.functional as F

        def train(model, optimizer, loader):
            for x, y in loader:
                loss = -F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
    good="""
        import torch.nn.functional as F

        def train(model, optimizer, loader):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
)
def loss_maximised(subject: Subject) -> Iterator[Place]:
    """Every loss of torch in the file that goes into backward does so with a minus; not where inputs are sought that fool a network, or networks are set against each other."""
    program = subject.program
    if (OPPONENTS | FOOLING) & spoken_words(program) or any(is_true(k.value) for k in keywords_of(program, "maximize")):
        return
    signs = Signs(program)
    losses = [(c, signs.into_backward(c)) for c, kind in loss_kinds(program).items() if kind != "kl"]
    asks = {"requires_grad", "requires_grad_"}  # for the gradient of inputs: what is sought are rows that fool the network
    learned = [
        (c, found)
        for c, found in losses
        if found and not asks & (identifiers(program.scope(c).node) | {k.arg for n in calls(program.scope(c).node) for k in n.keywords})
    ]
    if learned and all(found == {-1} for _, found in learned):
        yield learned[0][0], f"{last_name(learned[0][0].func)} goes into backward with a minus"


@rule(
    "BH332",
    "loss-of-two-means",
    "error",
    title="The mean of the scores is compared with the mean of the labels",
    why="Both are averaged before they meet: any network whose scores have the right mean is perfect, whichever row gets which. What belongs together is lost.",
    remedy="give the loss scores and labels row by row; it takes the mean itself",
    bad="""
        import torch.nn.functional as F

        def train(model, optimizer, loader):
            for x, y in loader:
                loss = F.mse_loss(model(x).mean(), y.mean())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
    good="""
        import torch.nn.functional as F

        def train(model, optimizer, loader):
            for x, y in loader:
                loss = F.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
)
def loss_of_two_means(subject: Subject) -> Iterator[Place]:
    """A squared or absolute distance, the only loss of its function, is given `scores.mean()` and `labels.mean()`, over all rows."""
    program = subject.program
    for call in program.all_calls:
        scope = program.scope(call)
        whole = [method(a) == "mean" and isinstance(a, ast.Call) and not a.args and not a.keywords for a in call.args[:2]]
        if whole != [True, True] or loss_kind(program, call, scope) in ("", "kl"):
            continue
        alone = sum(bool(loss_kind(program, c, scope)) for c in own_nodes(scope.node) if isinstance(c, ast.Call)) == 1
        if alone and Signs(program).into_backward(call) == {1}:
            yield call, f"{ast.unparse(call)} compares two numbers a batch, whichever row they are of"


def _of_log_softmax(program: Program, node: ast.expr | None, scope: Scope) -> bool:
    if isinstance(node, ast.Name):
        bound = scope.bindings.get(node.id, ())
        node = bound[0].value if len(bound) == 1 and bound[0].index is None and bound[0].how == "assign" else None
    return isinstance(node, ast.Call) and last_name(node.func) == "log_softmax"


@rule(
    "BH445",
    "norm-momentum-of-another-framework",
    "error",
    title="Batch norm with the momentum of another framework",
    why="In torch `momentum` is the weight of the new batch, elsewhere that of the old value. With 0.9 and more the running statistics are those of the last batch: eval mode depends on which rows came last.",
    remedy="leave it at 0.1; 0.99 elsewhere is 0.01 here",
    bad="""
        from torch import nn

        def block(width):
            return nn.Sequential(nn.Conv2d(width, width, 3), nn.BatchNorm2d(width, momentum=0.99), nn.ReLU())
        """,
    good="""
        from torch import nn

        def block(width):
            return nn.Sequential(nn.Conv2d(width, width, 3), nn.BatchNorm2d(width, momentum=0.01), nn.ReLU())
        """,
)
def norm_momentum_of_another_framework(subject: Subject) -> Iterator[Place]:
    """A batch norm that is made with a momentum of 0.9 and more."""
    program = subject.program
    for call in program.calls_of(*NORMS):
        if program.resolve(call.func).startswith("torch."):
            momentum = constant(keyword(call, "momentum", 2))
            if isinstance(momentum, (int, float)) and not isinstance(momentum, bool) and momentum >= LARGEST:
                yield call, f"momentum is {momentum:g}: the running statistics are those of the last batch"


@rule(
    "BH446",
    "beside-itself",
    "warning",
    title="A tensor is put beside itself",
    why="`cat` along the features is given the same value twice: what was to stand beside it, most often the skip connection, is missing, and nothing raises as the widths fit.",
    remedy="put the other tensor in: `torch.cat([self.up(d), skip], dim=1)`",
    bad="""
        import torch
        from torch import nn

        class Up(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.up = nn.ConvTranspose2d(width, width, 2, 2)

            def forward(self, x, skip):
                return torch.cat([self.up(x), self.up(x)], dim=1)
        """,
    good="""
        import torch
        from torch import nn

        class Up(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.up = nn.ConvTranspose2d(width, width, 2, 2)

            def forward(self, x, skip):
                return torch.cat([self.up(x), skip], dim=1)
        """,
)
def beside_itself(subject: Subject) -> Iterator[Place]:
    """`cat` along another axis than the first is given two equal calls that are given something, both written out."""
    for call in subject.program.calls_of("cat", "concat", "concatenate", "hstack"):
        if not call.args or not isinstance(call.args[0], (ast.List, ast.Tuple)):
            continue
        axis = constant(keyword(call, "dim", 1)) if keyword(call, "dim", 1) is not None else constant(keyword(call, "axis"))
        listed = call.args[0].elts
        parts = [ast.dump(e) for e in listed if isinstance(e, ast.Call) and e.args and not _draws(e) and not _at_both_ends(listed, e)]
        if any(
            method(c) == "train" and receiver(c) is not None and dotted(receiver(c)) in {dotted(e.func) for e in listed if isinstance(e, ast.Call)}
            for c in calls(subject.program.scope(call).node)
        ):
            continue  # the same rows under two dropout masks
        if axis not in (None, 0) and len(set(parts)) < len(parts) and not (len(listed) > PAIR and len({ast.dump(e) for e in listed}) == 1):
            yield call, "the same value is there twice"


PAIR = 2
SPARED = {
    "randn",
    "rand",
    "randint",
    "randn_like",
    "rand_like",
    "normal",
    "dropout",
    "cos",
    "sin",
    "zeros",
    "ones",
    "new_zeros",
    "new_ones",
    "full",
}  # of rotary tables


def _at_both_ends(listed: list[ast.expr], node: ast.expr) -> bool:
    """Whether the same stands before and behind something else, as padding and margins do."""
    return len(listed) > PAIR and ast.dump(listed[0]) == ast.dump(listed[-1]) == ast.dump(node) and ast.dump(listed[1]) != ast.dump(node)


def _draws(call: ast.Call) -> bool:
    """Whether it is another value each time, or one that is meant to stand there twice."""
    return any(last_name(c.func) in SPARED or words(last_name(c.func)) & {"augment", "noise", "view", "sample"} for c in calls(call))
