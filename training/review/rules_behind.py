"""Rules BH451 and BH456: a critic that nothing bounds, and a target network that is never brought up to date."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.bootstraps import network_calls, targets
from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_within
from training.review.mentions import Mentions
from training.review.program import Program, Scope
from training.review.syntax import children, dotted, identifiers, last_name, method, receiver, walk, words
from training.review.values import activation, reaching

BOUNDS = {
    "clamp", "clip", "spectral", "lipschitz", "penalty", "gp", "orthogonal", "orthonormal", "parametrize", "parametrizations", "weight_norm", "renorm", "bjorck",
    "groupsort", "autograd", "energy", "energies", "langevin", "mcmc", "gibbs", "ebm", "rbm", "decay", "regularizer", "hinge", "softplus", "logsigmoid", "sn",
}  # fmt: skip
OF_GRADIENTS = {"clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grad_norm_fn"}
SQUASHED = {"Sigmoid", "sigmoid", "Tanh", "tanh", "Softmax", "softmax", "normalize", "LogSigmoid", "logsigmoid", "Hardtanh", "hardtanh"}
PRETRAINED = {"load", "from_pretrained", "load_from_checkpoint", "load_file", "hub", "pretrained"}


@rule(
    "BH451",
    "critic-without-bounds",
    "warning",
    title="Nothing bounds a critic whose loss is a difference of mean scores",
    why="The difference between the scores of two sides grows with the weights, without end: the critic learns size instead of a distance, and the generator's gradients explode.",
    remedy="add a gradient penalty, use spectral norm, or clamp the critic's weights after each step",
    bad="""
        import torch
        from torch import nn

        def train(maker, loader):
            critic = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 1))
            optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
            for real in loader:
                fake = maker(torch.randn(len(real), 8)).detach()
                loss = critic(fake).mean() - critic(real).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
    good="""
        import torch
        from torch import nn

        def train(maker, loader):
            critic = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 1))
            optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
            for real in loader:
                fake = maker(torch.randn(len(real), 8)).detach()
                loss = critic(fake).mean() - critic(real).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                for p in critic.parameters():
                    p.data.clamp_(-0.01, 0.01)
        """,
)
def critic_without_bounds(subject: Subject) -> Iterator[Place]:
    """The difference of two means of one network's raw scores is a whole loss, an optimizer holds that network, and nothing in the file bounds it.

    Bounds are clamped weights, penalties, spectral norms, weight decay, a last layer that squashes, or whatever is named after one; not where that is never read.
    An energy, whose difference between data and samples is its likelihood's gradient, needs none.
    """
    program = subject.program
    found = list(_differences(program))
    yield from found if found and not _is_bounded(program) else ()


def _differences(program: Program) -> Iterator[Place]:
    """Whole losses that are the difference between two mean scores of one network."""
    for node in program.nodes[ast.BinOp]:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub))):
            continue
        scope, negated = program.scope(node), isinstance(node.left, ast.UnaryOp) or isinstance(node.right, ast.UnaryOp)
        sides = [_scores(program, side, scope) for side in (node.left, node.right)]
        one, other = sides
        if one is None or other is None or isinstance(node.op, ast.Add) != negated:
            continue
        same = dotted(one.func) == dotted(other.func) and ast.dump(one) != ast.dump(other)
        if same and _is_raw(program, one, scope) and _is_held(program, one, scope) and _is_whole(program, node):
            told = f"the loss is {ast.unparse(node)}, and nothing keeps the weights or slopes of {dotted(one.func)} in bounds"
            yield node, told, program.statement(node)


def _is_bounded(program: Program) -> bool:
    """Whether anything that is read, or done without being kept, is named after a bound."""
    unread = _never_read(program)
    pending: list[ast.AST] = [program.tree]
    while pending:
        node = pending.pop()
        named = {node.id} if isinstance(node, ast.Name) else {node.attr} if isinstance(node, ast.Attribute) else set[str]()
        named |= {node.arg} if isinstance(node, ast.keyword) and node.arg else set()
        named |= {node.name, *(node.asname or "").split()} if isinstance(node, ast.alias) else set()
        if any(BOUNDS & (words(n) | {n}) for n in named - OF_GRADIENTS):
            return True
        pending += [n for n in children(node) if n not in unread]
    return False


def _never_read(program: Program) -> set[ast.AST]:
    """Statements that bind one name which nothing reads but such statements, and functions named after a bound that nothing calls."""
    found: set[ast.AST] = set()
    named = program.identifiers
    for scope in program.scopes:
        if scope.name and scope.name not in named and BOUNDS & words(scope.name):
            found.add(scope.node)
    for scope in program.scopes:
        own = [(name, bound[0].statement) for name, bound in scope.bindings.items() if len(bound) == 1 and bound[0].how == "assign" and bound[0].index is None]
        for _ in own:
            hidden = {n for _, statement in own if statement in found for n in walk(statement)}
            read = {n.id for n in walk(scope.node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n not in hidden}
            more = {statement for name, statement in own if name not in read and scope.name} - found
            if not more:
                break
            found |= more
    return found


def _scores(program: Program, node: ast.expr, scope: Scope) -> ast.Call | None:
    """The network's call of which the mean is taken, negated or not."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    for _ in range(4):
        if isinstance(node, ast.Name) and len(values := reaching(program, node, scope)) == 1:
            node = values[0]
    if not (isinstance(node, ast.Call) and last_name(node.func) == "mean"):
        return None
    inner = node.args[0] if program.resolve(node.func) == "torch.mean" and node.args else receiver(node)
    for _ in range(4):
        if isinstance(inner, ast.Call) and method(inner) in ("view", "squeeze", "flatten", "reshape") and not program.resolve(inner.func):
            inner = receiver(inner)
        if isinstance(inner, ast.Name) and len(values := reaching(program, inner, scope)) == 1:
            inner = values[0]
    return inner if isinstance(inner, ast.Call) and dotted(inner.func) and inner.args and program.origins(inner.func, scope) else None


def _is_raw(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether the network is made of layers that this file shows, and its last one squashes nothing."""
    made = program.origins(call.func, scope)
    if not all(o.name == "torch.nn.Sequential" or o.name in program.classes for o in made):
        return False
    if activation(program, call, scope) in ("", "linear"):
        shown = [program.classes.get(o.name, o.call) for o in made]
        return activation(program, call, scope) == "linear" or not any(SQUASHED & identifiers(n) for n in shown)
    return False


def _is_held(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether an optimizer is given the network's parameters."""
    made = {id(o.call) for o in program.origins(call.func, scope)}
    asked = program.methods_of("parameters")
    return any(made & {id(o.call) for o in program.origins(receiver(c), program.scope(c))} for c in asked if _in_optimizer(program, c))


def _in_optimizer(program: Program, call: ast.Call) -> bool:
    return any(isinstance(a, ast.Call) and program.resolve(a.func).startswith("torch.optim.") for a in program.ancestors(call))


def _is_whole(program: Program, node: ast.expr) -> bool:
    """Whether it is all of what `backward` is called on: under one name that nothing is added to, or at once."""
    above = program.parents[node]
    while isinstance(above, ast.UnaryOp):
        node, above = above, program.parents[above]
    if isinstance(above, ast.Attribute):
        return above.attr == "backward"
    if not (isinstance(above, ast.Assign) and len(above.targets) == 1 and isinstance(above.targets[0], ast.Name)):
        return False
    scope, name = program.scope(above), above.targets[0].id
    if len(scope.bindings.get(name, ())) != 1:
        return False
    read = [n for n in walk(scope.node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    if any(isinstance(program.parents[n], (ast.BinOp, ast.Tuple, ast.List, ast.Return)) for n in read):
        return False
    return any(isinstance(up := program.parents[n], ast.Attribute) and up.attr == "backward" for n in read)


@rule(
    "BH456",
    "target-network-left-behind",
    "error",
    title="A target network is never brought up to date",
    why="It goes on giving the values of a network that has learned nothing: what is learned is one step of reward and noise, however long the training runs.",
    remedy="every some hundred steps `target.load_state_dict(online.state_dict())`, or a moving average after each step",
    bad="""
        import copy

        import torch
        from torch import nn
        from torch.nn import functional as F

        def train(online, memory, gamma):
            frozen = copy.deepcopy(online)
            optimizer = torch.optim.Adam(online.parameters())
            for states, actions, rewards, successors, ends in memory:
                with torch.no_grad():
                    goal = rewards + gamma * (1 - ends) * frozen(successors).max(1).values
                loss = F.smooth_l1_loss(online(states).gather(1, actions).squeeze(1), goal)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
    good="""
        import copy

        import torch
        from torch import nn
        from torch.nn import functional as F

        def train(online, memory, gamma):
            frozen = copy.deepcopy(online)
            optimizer = torch.optim.Adam(online.parameters())
            for step, (states, actions, rewards, successors, ends) in enumerate(memory):
                with torch.no_grad():
                    goal = rewards + gamma * (1 - ends) * frozen(successors).max(1).values
                loss = F.smooth_l1_loss(online(states).gather(1, actions).squeeze(1), goal)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if step % 200 == 0:
                    frozen.load_state_dict(online.state_dict())
        """,
)
def target_network_left_behind(subject: Subject) -> Iterator[Place]:
    """A network that gives the next value of a bootstrapped target, wherever the file mentions it, is made, copied into once, frozen, passed on or called.

    Not where weights are loaded from somewhere, or where the file makes no optimizer.
    """
    program = subject.program
    if PRETRAINED & program.identifiers or not calls_within(program, "torch.optim."):
        return
    told: set[ast.AST] = set()
    for target in targets(program):
        for call in (c for part in target.later for c in network_calls(program, part, target.scope)):
            made = Mentions(program).left_behind(call.func, target.scope)
            if made is not None and made not in told:
                told.add(made)
                yield made, f"{dotted(call.func)} gives the value after the reward in line {call.lineno}, and nothing that is learned ever reaches it", made
