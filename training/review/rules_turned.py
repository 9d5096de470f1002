"""Rules BH156, BH157, BH335 and BH474 to BH477: sums and decays of the wrong cadence, and what is turned round in losses of pairs, opponents, samplers and players."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_within, spoken_words
from training.review.program import Program, Scope
from training.review.syntax import calls, constant, defaults, dotted, identifiers, last_name, method, names_read, receiver, walk, words

ALIKE = {"same", "similar", "positive", "match", "matching", "matched", "alike", "equal"}
UNLIKE = {"different", "dissimilar", "differs", "negative", "mismatch"}
MAKERS, JUDGES = {"g", "gen", "generator"}, {"d", "disc", "discriminator"}
DRAWS = {"randrange", "randint", "choice", "integers", "sample", "random_action", "rand_action"}
PER_STEP = 0.999  # a factor that is nearer to 1 may be meant for every batch


@rule(
    "BH156",
    "sum-overwritten",
    "error",
    title="A sum over parameters keeps the last one alone",
    why="The name is set anew in each passage, where `+=` is meant: all terms but the last are computed and lost.",
    remedy="`penalty = penalty + p.abs().sum()`, or `sum(p.abs().sum() for p in model.parameters())`",
    bad="""
        import torch

        def step(model, optimizer, loss_fn, x, y):
            optimizer.zero_grad()
            penalty = 0.0
            for p in model.parameters():
                penalty = p.abs().sum()
            (loss_fn(model(x), y) + 1e-4 * penalty).backward()
            optimizer.step()
        """,
    good="""
        import torch

        def step(model, optimizer, loss_fn, x, y):
            optimizer.zero_grad()
            penalty = 0.0
            for p in model.parameters():
                penalty = penalty + p.abs().sum()
            (loss_fn(model(x), y) + 1e-4 * penalty).backward()
            optimizer.step()
        """,
)
def sum_overwritten(subject: Subject) -> Iterator[Place]:
    """Before a loop over parameters, layers or losses a name is 0; in it, it is set to a value of the loop's own name; behind it, it is read."""
    program = subject.program
    for loop in program.nodes[ast.For]:
        block = _block(program, loop)
        if not isinstance(loop, ast.For) or not block:
            continue
        at = block.index(loop)
        zeros = {
            t.id
            for s in block[:at]
            if isinstance(s, ast.Assign) and constant(s.value) in (0, 0.0) and constant(s.value) is not False
            for t in s.targets
            if isinstance(t, ast.Name)
        }
        targets = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)}
        for statement in loop.body:
            name = statement.targets[0].id if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name) else ""
            if name not in zeros or not isinstance(statement, ast.Assign) or name in names_read(statement.value) or not targets & names_read(statement.value):
                continue
            others = [n for s in loop.body if s is not statement for n in walk(s) if isinstance(n, ast.Name) and n.id == name]
            summed = isinstance(statement.value, ast.Call) and last_name(statement.value.func) in ("sum", "norm", "mean", "pow", "square")
            leaves = any(isinstance(n, (ast.Break, ast.Return, ast.If)) for s in loop.body for n in walk(s))
            if summed and not others and not leaves and any(name in names_read(s) for s in block[at + 1 :]):
                yield statement, f"{name} is set anew in each passage: what is read behind the loop is the last one", loop


def _block(program: Program, node: ast.AST) -> list[ast.stmt]:
    """The statements among which one stands."""
    above = program.parents[node]
    return next((b for f in ("body", "orelse", "finalbody") if isinstance(b := getattr(above, f, None), list) and node in b), [])


@rule(
    "BH157",
    "decayed-in-every-batch",
    "error",
    title="A decay meant for epochs is applied to every batch",
    why="A factor of 0.9 leaves a thousandth of the rate after 65 batches: training stands still long before the first epoch ends.",
    remedy="multiply the rate once, behind the loop over the batches, or use a scheduler at its cadence",
    bad="""
        import torch

        def fit(model, optimizer, loader, loss_fn, epochs):
            for epoch in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    loss_fn(model(x), y).backward()
                    optimizer.step()
                    for group in optimizer.param_groups:
                        group["lr"] *= 0.9
        """,
    good="""
        import torch

        def fit(model, optimizer, loader, loss_fn, epochs):
            for epoch in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    loss_fn(model(x), y).backward()
                    optimizer.step()
                for group in optimizer.param_groups:
                    group["lr"] *= 0.9
        """,
)
def decayed_in_every_batch(subject: Subject) -> Iterator[Place]:
    """In the inner one of two loops, beside the backward and under no condition, the rate is multiplied by a number well below 1."""
    program = subject.program
    for node in (*program.nodes[ast.AugAssign], *program.nodes[ast.Assign]):
        factor = _factor(program, node)
        if factor is None or not 0 < factor < PER_STEP:
            continue
        above = list(program.ancestors(node))
        if any(isinstance(a, ast.If) for a in above):
            continue
        loops = [a for a in above if isinstance(a, (ast.For, ast.While))]
        batches = next((a for a in loops if any(method(c) == "backward" for c in calls(a))), None)
        if batches is None or batches not in loops or loops.index(batches) + 1 >= len(loops):
            continue
        inner = [a for a in walk(batches) if isinstance(a, (ast.For, ast.While)) and a is not batches and any(method(c) == "backward" for c in calls(a))]
        if not inner:
            yield node, f"the rate is multiplied by {factor:g} after every batch", batches


def _factor(program: Program, node: ast.AST) -> float | None:
    """By what a statement multiplies `group["lr"]`."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult) and constant(getattr(node.target, "slice", None)) == "lr":
        by: ast.expr = node.value
    elif (
        isinstance(node, ast.Assign)
        and constant(getattr(node.targets[0], "slice", None)) == "lr"
        and isinstance(node.value, ast.BinOp)
        and isinstance(node.value.op, ast.Mult)
    ):
        sides = (node.value.left, node.value.right)
        own = [s for s in sides if ast.unparse(s) == ast.unparse(node.targets[0])]
        if len(own) != 1:
            return None
        by = next(s for s in sides if s is not own[0])
    else:
        return None
    value: object = constant(by)
    if isinstance(by, ast.Name):
        scope: Scope | None = program.scope(node)
        bound = program.bindings_of(by, program.scope(node))
        value = constant(bound[0].value) if len(bound) == 1 and bound[0].how == "assign" else None
        while value is None and scope is not None:
            value = constant(defaults(scope.node).get(by.id)) if by.id in scope.parameters else None
            scope = scope.parent
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@rule(
    "BH335",
    "pairs-turned-round",
    "error",
    title="A contrastive loss pulls apart what belongs together",
    why="Pairs that are alike should be near, and the others at least a margin apart. With the two terms exchanged the network learns distances that say the opposite.",
    remedy="`same * d ** 2 + (1 - same) * relu(margin - d) ** 2`",
    bad="""
        import torch
        from torch.nn import functional as F

        def contrastive(a, b, same, margin=1.0):
            d = F.pairwise_distance(a, b)
            return ((1 - same) * d.pow(2) + same * F.relu(margin - d).pow(2)).mean()
        """,
    good="""
        import torch
        from torch.nn import functional as F

        def contrastive(a, b, same, margin=1.0):
            d = F.pairwise_distance(a, b)
            return (same * d.pow(2) + (1 - same) * F.relu(margin - d).pow(2)).mean()
        """,
)
def pairs_turned_round(subject: Subject) -> Iterator[Place]:
    """What is named after pairs that are alike multiplies `relu(margin - distance)`, or 1 minus what is named after pairs that are not."""
    program = subject.program
    for node in program.nodes[ast.BinOp]:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
            continue
        for weight, term in ((node.left, node.right), (node.right, node.left)):
            inverted = isinstance(weight, ast.BinOp) and isinstance(weight.op, ast.Sub) and constant(weight.left) in (1, 1.0)
            base = weight.right if inverted and isinstance(weight, ast.BinOp) else weight
            said = words(last_name(base.func.value if isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute) else base))
            alike = bool(ALIKE & said) and not UNLIKE & said
            unlike = bool(UNLIKE & said) and not ALIKE & said
            if ((alike and not inverted) or (unlike and inverted)) and _is_push(program, term):
                yield node, f"{ast.unparse(weight)} weighs the term that pushes apart", program.statement(node)
                break


def _is_push(program: Program, node: ast.expr) -> bool:
    """Whether a term is made of `margin - distance` where that is above 0, here or by a name."""
    scope = program.scope(node)
    values = [node, *(b.value for n in walk(node) if isinstance(n, ast.Name) for b in scope.bindings.get(n.id, ()))]
    for value in values:
        for call in calls(value):
            if last_name(call.func) not in ("relu", "clamp", "clamp_min", "clip", "maximum", "max"):
                continue
            gaps = [n for n in walk(call) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Sub)]
            if any(
                {"margin", "m"} & {w for i in identifiers(g.left) for w in words(i)}
                and {"d", "dist", "distance", "distances"} & {w for i in identifiers(g.right) for w in words(i)}
                for g in gaps
            ):
                return True
    return False


@rule(
    "BH474",
    "opponents-in-one-optimizer",
    "error",
    title="Generator and discriminator share one optimizer",
    why="The loss of the generator reaches the discriminator too, and one step follows both: the discriminator learns to call made rows real as much as it learns the opposite.",
    remedy="give each its own optimizer, clear and step them in turn, and detach what is made in the step of the discriminator",
    bad="""
        import torch

        def train(generator, discriminator, batches, bce, one, zero):
            optimizer = torch.optim.Adam(list(generator.parameters()) + list(discriminator.parameters()), lr=2e-4)
            for x, z in batches:
                fake = generator(z)
                d_loss = bce(discriminator(x), one) + bce(discriminator(fake.detach()), zero)
                g_loss = bce(discriminator(fake), one)
                optimizer.zero_grad()
                (d_loss + g_loss).backward()
                optimizer.step()
        """,
    good="""
        import torch

        def train(generator, discriminator, batches, bce, one, zero):
            optim_g = torch.optim.Adam(generator.parameters(), lr=2e-4)
            optim_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
            for x, z in batches:
                fake = generator(z)
                d_loss = bce(discriminator(x), one) + bce(discriminator(fake.detach()), zero)
                optim_d.zero_grad()
                d_loss.backward()
                optim_d.step()
                g_loss = bce(discriminator(fake), one)
                optim_g.zero_grad()
                g_loss.backward()
                optim_g.step()
        """,
)
def opponents_in_one_optimizer(subject: Subject) -> Iterator[Place]:
    """An optimizer is made of the parameters of a generator and of a discriminator, in a file that reverses no gradient."""
    program = subject.program
    reversals = {"reverse", "reversal", "grl"}
    if reversals & spoken_words(program) or any(reversals & words(c.name) for c in program.classes.values()):
        return
    for call in calls_within(program, "torch.optim."):
        if not call.args:
            continue
        owners = [words(last_name(receiver(c))) for c in calls(call.args[0]) if method(c) == "parameters"]
        if any(MAKERS & o for o in owners) and any(JUDGES & o for o in owners):
            yield call, "one optimizer holds both opponents: each step follows the losses of both"


@rule(
    "BH475",
    "name-that-no-parameter-has",
    "error",
    title="Parameters are chosen by a name that none has",
    why="The condition is never true: nothing is frozen, or a group of parameters with its own rate is empty, without an error.",
    remedy="use the name of the attribute, or the module itself: `model.backbone.requires_grad_(False)`; check that something was found",
    bad="""
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.backbone, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

        def freeze(model: Net):
            for name, p in model.named_parameters():
                if name.startswith("encoder."):
                    p.requires_grad = False

        freeze(Net())
        """,
    good="""
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.backbone, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

        def freeze(model: Net):
            for name, p in model.named_parameters():
                if name.startswith("backbone."):
                    p.requires_grad = False

        freeze(Net())
        """,
)
def name_that_no_parameter_has(subject: Subject) -> Iterator[Place]:
    """A loop over `named_parameters()` asks for `name.startswith("x")` or `"x" in name`, and no attribute, key or string of the file's networks has it."""
    program = subject.program
    if not program.methods_of("named_parameters") or not program.module_classes or _made_elsewhere(program):
        return
    known = {n for owner in program.module_classes for n in identifiers(owner)}
    known |= {str(constant(n)) for owner in program.module_classes for n in walk(owner) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    known |= {
        "weight",
        "bias",
        "in_proj_weight",
        "in_proj_bias",
        "weight_ih_l",
        "weight_hh_l",
        "bias_ih_l",
        "bias_hh_l",
        "module",
        "out_proj",
        "self_attn",
        "linear1",
        "linear2",
        "norm1",
        "norm2",
        "layers",
        "running",
    }
    for loop in (*program.nodes[ast.For], *program.nodes[ast.comprehension]):
        if not isinstance(loop, (ast.For, ast.comprehension)) or method(loop.iter) != "named_parameters" or not isinstance(loop.target, ast.Tuple):
            continue
        if not _is_of_the_file(program, receiver(loop.iter)):
            continue
        name = last_name(loop.target.elts[0])
        tests = loop.ifs if isinstance(loop, ast.comprehension) else [i.test for i in walk(loop) if isinstance(i, ast.If)]
        for asked, place in ((a, p) for t in tests for a, p in _asked(t, name)):
            parts = [p for p in asked.split(".") if p and not p.isdigit()]
            if parts and not any(parts[0].rstrip("0123456789") in k or k in parts[0] for k in known if len(k) > 1 or k == parts[0]):
                yield place, f"no parameter of a network of this file has {asked!r} in its name", loop if isinstance(loop, ast.For) else place


def _is_of_the_file(program: Program, network: ast.expr | None) -> bool:
    """Whether a network is certainly of a class of this file that inherits from nn.Module alone."""
    if network is None:
        return False
    scope = program.scope(network)
    names = {o.name for o in program.origins(network, scope)}
    if not names and isinstance(network, ast.Name) and not isinstance(scope.node, ast.Module):
        given = [a for a in (*scope.node.args.args, *scope.node.args.kwonlyargs) if a.arg == network.id and a.annotation is not None]
        names = {last_name(a.annotation) for a in given}
    if last_name(network) == "self" and scope.owner is not None:
        names = {scope.owner.name}
    owners = [program.classes.get(n) for n in names]
    return bool(owners) and all(o is not None and {last_name(b) for b in o.bases} == {"Module"} for o in owners)


def _made_elsewhere(program: Program) -> bool:
    """Whether a network may come from another library, whose names are not in sight."""
    return bool(
        {"torchvision", "timm", "transformers", "peft", "open_clip", "segmentation_models_pytorch"} & program.modules_imported
    ) or "load" in program.called_names & {"hub"}


def _asked(test: ast.expr, name: str) -> Iterator[tuple[str, ast.expr]]:
    """The strings that a condition looks for in a name; none where it asks what the name does not have."""
    if isinstance(test, ast.Call) and method(test) == "startswith" and last_name(receiver(test)) == name and test.args:
        given = constant(test.args[0])
        if isinstance(given, str):
            yield given, test
    elif isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In) and last_name(test.comparators[0]) == name:
        given = constant(test.left)
        if isinstance(given, str):
            yield given, test
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for part in test.values:
            yield from _asked(part, name)


@rule(
    "BH476",
    "denoised-forwards",
    "error",
    title="Noise is taken away in the order in which it was added",
    why="Sampling begins with noise alone, which is what the last step leaves: it has to go from there back to the first. Begun at step 0, the network is asked about pictures that it never saw.",
    remedy="`for t in reversed(range(steps))`",
    bad="""
        import torch

        @torch.no_grad()
        def sample(model, betas, alphas, bars, n, steps):
            model.eval()
            x = torch.randn(n, 2)
            for t in range(steps):
                eps = model(x, torch.full((n,), t))
                x = (x - betas[t] / (1 - bars[t]).sqrt() * eps) / alphas[t].sqrt()
            return x
        """,
    good="""
        import torch

        @torch.no_grad()
        def sample(model, betas, alphas, bars, n, steps):
            model.eval()
            x = torch.randn(n, 2)
            for t in reversed(range(steps)):
                eps = model(x, torch.full((n,), t))
                x = (x - betas[t] / (1 - bars[t]).sqrt() * eps) / alphas[t].sqrt()
            return x
        """,
)
def denoised_forwards(subject: Subject) -> Iterator[Place]:
    """A picture that begins as `randn` goes through `for t in range(n)`, is divided by a root of an alpha of step t, and t is used as it is."""
    program = subject.program
    for loop in program.nodes[ast.For]:
        head = loop.iter if isinstance(loop, ast.For) else None
        while isinstance(head, ast.Call) and last_name(head.func) in ("tqdm", "trange", "progress") and head.args and last_name(head.func) != "trange":
            head = head.args[0]
        if not (
            isinstance(loop, ast.For)
            and isinstance(head, ast.Call)
            and last_name(head.func) == "range"
            and len(head.args) == 1
            and isinstance(loop.target, ast.Name)
        ):
            continue
        step = loop.target.id
        for statement in (s for s in loop.body if isinstance(s, ast.Assign)):
            name = dotted(statement.targets[0])
            entries = {last_name(s.value) for s in walk(statement.value) if isinstance(s, ast.Subscript) and last_name(s.slice) == step}
            by_alpha = any({"alpha", "alphas"} & words(e) for e in entries) and {"beta", "betas", "bar", "bars", "cumprod", "hat"} & {
                w for e in entries for w in words(e)
            }
            begins = [
                b.value
                for b in program.scope(loop).bindings.get(name, ())
                if isinstance(b.value, ast.Call) and last_name(b.value.func) in ("randn", "randn_like")
            ]
            if name in names_read(statement.value) and by_alpha and begins and not any(method(c) == "backward" for c in calls(loop)):
                yield loop, f"{name} begins as noise, and {step} goes up from 0", loop
                break


@rule(
    "BH477",
    "explores-the-less-the-more",
    "error",
    title="A random action is taken where the draw is above epsilon",
    why="Epsilon is the share of random actions. Compared the wrong way round, the player follows an untrained network at first, and acts at random once it has learned something.",
    remedy="`if random.random() < epsilon:` take a random action",
    bad="""
        import random

        import torch

        def act(net, state, epsilon):
            if random.random() > epsilon:
                return random.randrange(2)
            with torch.no_grad():
                return int(net(state).argmax())
        """,
    good="""
        import random

        import torch

        def act(net, state, epsilon):
            if random.random() < epsilon:
                return random.randrange(2)
            with torch.no_grad():
                return int(net(state).argmax())
        """,
)
def explores_the_less_the_more(subject: Subject) -> Iterator[Place]:
    """`random() > epsilon` leads to a draw and no network, or `random() < epsilon` to an argmax and no draw."""
    program = subject.program
    for node in (*program.nodes[ast.If], *program.nodes[ast.IfExp]):
        if not isinstance(node, (ast.If, ast.IfExp)) or not isinstance(node.test, ast.Compare) or len(node.test.ops) != 1:
            continue
        left, op, right = node.test.left, node.test.ops[0], node.test.comparators[0]
        above = isinstance(op, (ast.Gt, ast.GtE))
        if not above and not isinstance(op, (ast.Lt, ast.LtE)):
            continue
        if _is_epsilon(left) and _is_draw(right):
            above = not above
        elif not (_is_draw(left) and _is_epsilon(right)):
            continue
        taken = node.body if isinstance(node.body, list) else [node.body]
        drawn = any(last_name(c.func) in DRAWS for s in taken for c in calls(s))
        best = any(last_name(c.func) in ("argmax", "max") for s in taken for c in calls(s))
        if (above and drawn and not best) or (not above and best and not drawn):
            yield node.test, "epsilon is the share of actions that are not random here", node


def _is_epsilon(node: ast.expr) -> bool:
    return bool({"eps", "epsilon"} & words(last_name(node.func if isinstance(node, ast.Call) else node)))


def _is_draw(node: ast.expr) -> bool:
    """Whether a number is drawn between 0 and 1."""
    while isinstance(node, ast.Call) and method(node) == "item" and receiver(node) is not None:
        inner = receiver(node)
        node = inner if inner is not None else node
    return isinstance(node, ast.Call) and last_name(node.func) in ("random", "rand", "uniform")
