"""Rules BH155, BH334 and BH471: a ratio that is 1 by its making, an uncertainty that costs nothing, weights that are tied and then parted."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import torch_calls
from training.review.program import Program, Scope
from training.review.syntax import FUNCTIONS, constant, dotted, last_name, method, receiver, walk, words
from training.review.values import reaching

UNCERTAIN = {"log", "logvar", "logvars", "var", "vars", "sigma", "sigmas", "variance", "variances", "uncertainty", "uncertainties"}
LOSSES = {"loss", "losses", "mse", "bce", "ce", "nll", "task", "tasks"}


@rule(
    "BH155",
    "ratio-always-one",
    "error",
    title="The ratio of new to old probabilities is always 1",
    why="The old log-probabilities are those of the same pass: new minus old is 0 and the ratio 1 in every pass. Nothing is ever clipped, and repeated passes run away from the policy that acted.",
    remedy="compute the old log-probabilities once, under no_grad, before the first pass over the rows",
    bad="""
        import torch

        def update(policy, optimizer, states, actions, advantage):
            for _ in range(4):
                log_prob = policy(states).log_prob(actions)
                old = log_prob.detach()
                ratio = (log_prob - old).exp()
                loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
    good="""
        import torch

        def update(policy, optimizer, states, actions, advantage):
            with torch.no_grad():
                old = policy(states).log_prob(actions)
            for _ in range(4):
                log_prob = policy(states).log_prob(actions)
                ratio = (log_prob - old).exp()
                loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
)
def ratio_always_one(subject: Subject) -> Iterator[Place]:
    """`exp(new - old)` that is clipped, in a loop that steps, where `old` is `new.detach()`."""
    program = subject.program
    for call in program.all_calls if torch_calls(program, "exp") or program.methods_of("exp") else ():
        inner = call.args[0] if program.is_torch(call.func, "exp") and call.args else receiver(call) if method(call) == "exp" else None
        if not (isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub)):
            continue
        scope = program.scope(call)
        loops = [a for a in program.ancestors(call) if isinstance(a, (ast.For, ast.While)) and program.scope(a) is scope]
        steps = any(method(c) == "step" for a in loops for c in walk(a) if isinstance(c, ast.Call))
        old = inner.right
        made = reaching(program, old, scope) if isinstance(old, ast.Name) else [old]
        if steps and made and all(_detached(v) == dotted(inner.left) != "" for v in made) and _is_clipped(program, call, scope):
            yield call, f"{ast.unparse(old)} is {dotted(inner.left)} of the same pass: the ratio is 1"


def _detached(node: ast.expr) -> str:
    """What a value is the detached copy of; empty where it is none."""
    if isinstance(node, ast.Call) and method(node) in ("detach", "clone") and receiver(node) is not None:
        of = receiver(node)
        return _detached(of) or dotted(of) if isinstance(of, ast.expr) else ""
    return dotted(node.value) if isinstance(node, ast.Attribute) and node.attr == "data" else ""


def _is_clipped(program: Program, ratio: ast.Call, scope: Scope) -> bool:
    """Whether what a ratio is kept in is clipped around 1."""
    kept = {dotted(t) for t in getattr(program.statement(ratio), "targets", ())} - {""}
    for call in (c for c in walk(scope.node) if isinstance(c, ast.Call) and last_name(c.func) in ("clamp", "clip")):
        of = call.args[0] if dotted(receiver(call)) in ("torch", "np") and call.args else receiver(call)
        if dotted(of) in kept or of is ratio:
            return True
    return False


@rule(
    "BH334",
    "uncertainty-without-cost",
    "error",
    title="A learned uncertainty costs nothing",
    why="Each loss is multiplied by exp(-s) with a learned s. Without s itself in the sum the least loss is that of s without bound: all weights of the losses go to 0, and the network learns ever less.",
    remedy="add it: `exp(-s) * loss + s`, or half of it for s as a logarithm of a variance",
    bad="""
        import torch
        from torch import nn

        class TwoTasks(nn.Module):
            def __init__(self):
                super().__init__()
                self.log_vars = nn.Parameter(torch.zeros(2))

            def forward(self, first_loss, second_loss):
                return torch.exp(-self.log_vars[0]) * first_loss + torch.exp(-self.log_vars[1]) * second_loss
        """,
    good="""
        import torch
        from torch import nn

        class TwoTasks(nn.Module):
            def __init__(self):
                super().__init__()
                self.log_vars = nn.Parameter(torch.zeros(2))

            def forward(self, first_loss, second_loss):
                weighted = torch.exp(-self.log_vars[0]) * first_loss + torch.exp(-self.log_vars[1]) * second_loss
                return weighted + self.log_vars.sum()
        """,
)
def uncertainty_without_cost(subject: Subject) -> Iterator[Place]:
    """A parameter that is named after a variance, whose every use is `exp(-it)`, and multiplies losses with that."""
    program = subject.program
    for node in program.nodes[ast.Assign]:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if not (isinstance(target, ast.Attribute) and isinstance(node, ast.Assign) and program.is_torch(getattr(node.value, "func", None), "Parameter")):
            continue
        if not UNCERTAIN & words(target.attr) or program.scope(node).name != "__init__":
            continue
        reads = [n for n in program.nodes[ast.Attribute] if isinstance(n, ast.Attribute) and n.attr == target.attr and isinstance(n.ctx, ast.Load)]
        exponents = [e for r in reads if (e := _negative_exponential(program, r)) is not None]
        telling = [r for r in reads if _only_told(program, r)]
        if exponents and len(exponents) + len(telling) == len(reads) and all(_weighs_losses(program, e) for e in exponents):
            yield exponents[0], f"{target.attr} lowers the weights of the losses, and nothing in the sum rises with it"


def _negative_exponential(program: Program, read: ast.Attribute) -> ast.Call | None:
    """The call of exp of whose negative argument a parameter is all that is read: `torch.exp(-2 * self.log_sigma[0])`."""
    negative = False
    for above in program.ancestors(read):
        if isinstance(above, ast.UnaryOp) and isinstance(above.op, ast.USub):
            negative = True
        elif isinstance(above, ast.Call):
            outer = above
            if not (last_name(outer.func) == "exp" or method(outer) == "exp"):
                return None
            return outer if negative else None
        elif isinstance(above, ast.BinOp) and isinstance(above.op, ast.Mult):
            factor = constant(above.left)
            negative = negative or (isinstance(factor, (int, float)) and factor < 0)
        elif not isinstance(above, (ast.Subscript, ast.Attribute)):
            return None
    return None


def _only_told(program: Program, read: ast.Attribute) -> bool:
    """Whether a value is read to be printed or logged."""
    above = list(program.ancestors(read))
    return any(isinstance(a, ast.JoinedStr) for a in above) or any(
        isinstance(a, ast.Call) and (last_name(a.func) in ("print", "info", "append", "log") or method(a) in ("tolist", "item", "detach")) for a in above
    )


def _weighs_losses(program: Program, call: ast.Call) -> bool:
    """Whether something that is called a loss, or was computed by a loss function, is multiplied with a value or the name that holds it."""
    scope = program.scope(call)
    names = {dotted(t) for t in getattr(program.statement(call), "targets", ())} - {""}
    for node in (n for n in walk(scope.node) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult)):
        for mine, other in ((node.left, node.right), (node.right, node.left)):
            held = any(n is call for n in walk(mine)) or bool(names & {dotted(mine), dotted(mine.value) if isinstance(mine, ast.Subscript) else ""})
            if held and _is_loss(program, other, scope):
                return True
    return False


def _is_loss(program: Program, node: ast.expr, scope: Scope) -> bool:
    base = node.value if isinstance(node, ast.Subscript) else node
    if LOSSES & words(last_name(base.func if isinstance(base, ast.Call) else base)):
        return True
    values = [b.value for b in scope.bindings.get(base.id, ())] if isinstance(base, ast.Name) else [base]
    return any("loss" in last_name(v.func).lower() or "entropy" in last_name(v.func) for v in values if isinstance(v, ast.Call))


@rule(
    "BH471",
    "tied-weights-parted",
    "error",
    title="Weights are tied and then parted",
    why="Two layers share one tensor until one of them gets a new one. From then on each learns by itself: there are as many weights again, and the embedding no longer learns from the outputs.",
    remedy="tie last, after every layer has its final weights; initialise in place (`nn.init.normal_(layer.weight)`)",
    bad="""
        import torch
        from torch import nn

        class Model(nn.Module):
            def __init__(self, vocab, width):
                super().__init__()
                self.embed, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
                self.head.weight = self.embed.weight
                self.embed = nn.Embedding(vocab, width, padding_idx=0)
        """,
    good="""
        import torch
        from torch import nn

        class Model(nn.Module):
            def __init__(self, vocab, width):
                super().__init__()
                self.embed, self.head = nn.Embedding(vocab, width, padding_idx=0), nn.Linear(width, vocab, bias=False)
                self.head.weight = self.embed.weight
        """,
)
def tied_weights_parted(subject: Subject) -> Iterator[Place]:
    """After `self.a.weight = self.b.weight` in `__init__`, that method, or one that it calls later, gives either layer new weights."""
    program = subject.program
    for owner in program.module_classes:
        start = program.methods[owner].get("__init__")
        if start is None or not isinstance(start.node, FUNCTIONS):
            continue
        body = start.node.body
        for at, statement in enumerate(body):
            pair = _tied(statement)
            if pair is None:
                continue
            for later in _afterwards(program, owner, body[at + 1 :]):
                if _tied(later) is not None:
                    break
                if isinstance(later, ast.Assign) and any(_parts(dotted(t), pair) for t in later.targets) and isinstance(later.value, ast.Call):
                    yield later, f"{dotted(later.targets[0])} is new here: {' and '.join(pair)} no longer share their weights", start.node
                    break


def _tied(statement: ast.stmt) -> tuple[str, str] | None:
    """The two layers of `self.a.weight = self.b.weight`."""
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Attribute):
        left, right = dotted(statement.targets[0]), dotted(statement.value)
        if left.startswith("self.") and right.startswith("self.") and left.endswith(".weight") and right.endswith(".weight"):
            return left.removesuffix(".weight"), right.removesuffix(".weight")
    return None


def _parts(target: str, pair: tuple[str, str]) -> bool:
    return any(target in (layer, f"{layer}.weight") for layer in pair)


def _afterwards(program: Program, owner: ast.ClassDef, statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements in order, those of the class's own methods where these are called."""
    for statement in statements:
        called = method(statement.value) if isinstance(statement, ast.Expr) and dotted(receiver(statement.value)) == "self" else ""
        inner = program.methods[owner].get(called)
        if inner is not None and isinstance(inner.node, FUNCTIONS):
            yield from inner.node.body
        else:
            yield statement
