"""Rules BH146 and BH461 to BH463: averages that begin at zero, opponents with one label or one network, and a clipped objective turned round."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_within
from training.review.program import Program, Scope
from training.review.rules_policy import of_logs
from training.review.syntax import calls, constant, dotted, exponent, identifiers, keyword, last_name, method, names_read, receiver, walk, words
from training.review.values import loss_calls, value_of

AVERAGES = {"ema", "shadow", "average", "averaged", "avg", "slow", "polyak"}
MADE_UP, REAL = {"fake", "fakes", "generated", "gen", "synthetic", "detach"}, {"real", "reals", "true", "data"}


@rule(
    "BH146",
    "average-begins-at-zero",
    "error",
    title="The moving average of the weights begins at zero",
    why="After k steps at a decay of 0.999 the average is 1 - 0.999^k of what it should be: after a thousand steps still a third too small. What is evaluated is a shrunken network.",
    remedy="begin with a copy of the weights: `{n: p.detach().clone() for n, p in net.named_parameters()}`",
    bad="""
        import torch

        class Ema:
            def __init__(self, net, decay):
                self.decay = decay
                self.shadow = {n: torch.zeros_like(p) for n, p in net.named_parameters()}

            @torch.no_grad()
            def update(self, net):
                for n, p in net.named_parameters():
                    self.shadow[n].mul_(self.decay).add_(p, alpha=1 - self.decay)
        """,
    good="""
        import torch

        class Ema:
            def __init__(self, net, decay):
                self.decay = decay
                self.shadow = {n: p.detach().clone() for n, p in net.named_parameters()}

            @torch.no_grad()
            def update(self, net):
                for n, p in net.named_parameters():
                    self.shadow[n].mul_(self.decay).add_(p, alpha=1 - self.decay)
        """,
)
def average_begins_at_zero(subject: Subject) -> Iterator[Place]:
    """Zeros like the parameters of a network are kept under the name of an average, which takes shares of the weights and is never corrected for its beginning."""
    program = subject.program
    powers = any(isinstance(n, ast.Pow) for b in program.nodes[ast.BinOp] for n in [getattr(b, "op", None)])
    if powers or {"copy_", "load_state_dict", "deepcopy"} & program.called_names or "pow" in program.called_names:
        return
    for call in program.calls_of("zeros_like"):
        statement = program.statement(call)
        name = last_name(getattr(statement, "targets", [None])[0] or ast.Constant(None)) if isinstance(statement, ast.Assign) else ""
        over = [g.iter for a in program.ancestors(call) if isinstance(a, (ast.DictComp, ast.ListComp)) for g in a.generators]
        of_weights = any(method(c) in ("parameters", "named_parameters", "state_dict") for o in over for c in calls(o))
        if of_weights and words(name) & AVERAGES and _takes_weights(program, name):
            yield call, f"{name} begins at zero, and nothing makes up for it"


def _takes_weights(program: Program, name: str) -> bool:
    """Whether shares that add up to one go into it: its own, and one of something that is no gradient."""
    for call in (c for c in program.methods_of("lerp_", "add_") if name in identifiers(receiver(c) or c)):
        shared = method(call) == "lerp_" or (method(call) == "add_" and isinstance(keyword(call, "alpha"), ast.BinOp))
        if shared and call.args and "grad" not in identifiers(call.args[0]):
            return True
    return False


@rule(
    "BH461",
    "one-label-for-both",
    "error",
    title="Real and made-up rows get the same label",
    why="The discriminator learns to say one thing whatever it is shown: its loss falls to 0 in a few steps, and the generator gets no gradient that means anything.",
    remedy="ones for real rows, zeros for made-up ones",
    bad="""
        import torch
        import torch.nn.functional as F

        def loss_of(d, real, fake):
            ones = torch.ones(len(real), 1)
            return F.binary_cross_entropy_with_logits(d(real), ones) + F.binary_cross_entropy_with_logits(d(fake.detach()), ones)
        """,
    good="""
        import torch
        import torch.nn.functional as F

        def loss_of(d, real, fake):
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            return F.binary_cross_entropy_with_logits(d(real), ones) + F.binary_cross_entropy_with_logits(d(fake.detach()), zeros)
        """,
)
def one_label_for_both(subject: Subject) -> Iterator[Place]:
    """Two losses of one network that are added up have the same labels, its inputs being called real in one and made up in the other."""
    program = subject.program
    found = [x for x in loss_calls(program) if x.kind in ("bce_logits", "bce", "mse") and x.target is not None]
    for loss in found:
        for other in found:
            if (
                other is loss
                or other.scope is not loss.scope
                or other.call.lineno < loss.call.lineno
                or ast.dump(other.target or loss.call) != ast.dump(loss.target or loss.call)
            ):
                continue
            if not _added(program, loss.call, other.call, loss.scope):
                continue
            one, two = (_judged(program, x.scores, x.scope) for x in (loss, other))
            if one is None or two is None or one[0] != two[0]:
                continue
            if (one[1] & REAL and two[1] & MADE_UP and not two[1] & REAL) or (two[1] & REAL and one[1] & MADE_UP and not one[1] & REAL):
                yield other.call, f"{ast.unparse(loss.scores)} and {ast.unparse(other.scores)} have the same labels, {ast.unparse(other.target or other.call)}"
                break


def _added(program: Program, a: ast.Call, b: ast.Call, scope: Scope) -> bool:
    """Whether two losses are terms of one sum, or have their backward one after the other with no step between."""
    if program.statement(a) is program.statement(b):
        return True
    names = [{last_name(t) for t in getattr(program.statement(x), "targets", ())} - {""} for x in (a, b)]
    sums = [n for n in walk(scope.node) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Add)]
    return all(names) and any(names_read(s) & names[0] and names_read(s) & names[1] for s in sums)


def _judged(program: Program, node: ast.expr, scope: Scope) -> tuple[str, set[str]] | None:
    """The network that gave scores, and the words of what it was given."""
    made = value_of(program, node, scope)
    while isinstance(made, ast.Call) and method(made) in ("squeeze", "view", "flatten", "reshape", "sigmoid") and (inner := receiver(made)) is not None:
        made = inner
    if not (isinstance(made, ast.Call) and made.args and dotted(made.func)):
        return None
    return dotted(made.func), {w for n in identifiers(made.args[0]) for w in words(n)} | {last_name(c.func) for c in calls(made.args[0])}


@rule(
    "BH462",
    "optimizer-of-another-network",
    "error",
    title="An optimizer holds another network than the one it is named after",
    why="One network is updated by both optimizers, the other by none: it stays as it was drawn, and every loss still has a gradient.",
    remedy="give each optimizer the parameters of its own network",
    bad="""
        import torch

        def make(g, d):
            opt_g = torch.optim.Adam(g.parameters(), lr=2e-4)
            opt_d = torch.optim.Adam(g.parameters(), lr=2e-4)
            return opt_g, opt_d
        """,
    good="""
        import torch

        def make(g, d):
            opt_g = torch.optim.Adam(g.parameters(), lr=2e-4)
            opt_d = torch.optim.Adam(d.parameters(), lr=2e-4)
            return opt_g, opt_d
        """,
)
def optimizer_of_another_network(subject: Subject) -> Iterator[Place]:
    """Two optimizers hold the parameters of one network, one of them named after it, the other after another network that is at hand and that none holds."""
    program = subject.program
    made: list[tuple[str, str, ast.Call, Scope]] = []
    for call in calls_within(program, "torch.optim."):
        given = call.args[0] if call.args else None
        statement = program.statement(call)
        if isinstance(given, ast.Call) and method(given) == "parameters" and isinstance(statement, ast.Assign) and statement.value is call:
            made.append((last_name(statement.targets[0]), last_name(receiver(given) or given), call, program.scope(call)))
    held = {network for _, network, _, _ in made}
    for name, network, call, scope in made:
        own = {n for n in (*scope.parameters, *scope.bindings, *(program.attributes[scope.owner] if scope.owner is not None else ())) if n in _tail(name)}
        twice = any(other is not call and n == network and network in _tail(o) for o, n, other, _ in made)
        if twice and own and not own & held and network not in _tail(name):
            yield call, f"{name} holds the parameters of {network}, and none holds those of {sorted(own)[0]}"


def _tail(name: str) -> set[str]:
    """The network that an optimizer may be named after: `d` of `opt_d`, `critic` of `critic_optimizer`."""
    parts = name.split("_")
    return {"_".join(parts[1:]), "_".join(parts[:-1]), name.removeprefix("opt"), name.removeprefix("optimizer"), name.removesuffix("_optimizer")} - {""}


@rule(
    "BH463",
    "clipped-objective-turned-round",
    "error",
    title="The clipped objective of PPO is turned round",
    why="The lesser of both products is maximised, so that a policy gains nothing by leaving the clip range. The greater one, or a ratio that is only a difference of logarithms, rewards exactly that, or nothing.",
    remedy="`ratio = (logp - old_logp).exp()`, and `-torch.min(ratio * adv, ratio.clamp(1 - c, 1 + c) * adv).mean()`",
    bad="""
        import torch

        def loss_of(logp, old_logp, adv, c=0.2):
            ratio = (logp - old_logp).exp()
            return -torch.max(ratio * adv, ratio.clamp(1 - c, 1 + c) * adv).mean()
        """,
    good="""
        import torch

        def loss_of(logp, old_logp, adv, c=0.2):
            ratio = (logp - old_logp).exp()
            return -torch.min(ratio * adv, ratio.clamp(1 - c, 1 + c) * adv).mean()
        """,
)
def clipped_objective_turned_round(subject: Subject) -> Iterator[Place]:
    """`max` of a product with a ratio and one with the ratio clamped about 1, neither negated, or `min` of both negated; or a ratio that is a difference of log probabilities."""
    program = subject.program
    if not program.calls_of("clamp", "clip"):
        return
    for call in program.calls_of("max", "maximum", "min", "minimum", "clamp", "clip"):
        last, scope = last_name(call.func), program.scope(call)
        if last in ("max", "maximum", "min", "minimum") and len(call.args) == 2:
            sides = [value_of(program, a, scope) for a in call.args]
            clamped = [_clamps(program, s, scope) for s in sides]
            if sum(c is not None for c in clamped) != 1 or not all(isinstance(s, (ast.BinOp, ast.UnaryOp)) for s in sides):
                continue
            negated = [any(isinstance(n, ast.USub) for n in walk(s)) for s in sides]
            costs = any({"loss", "cost", "neg"} & words(n) for s in sides for n in identifiers(s))
            if negated == [last.startswith("min")] * 2 and not costs:
                yield (
                    call,
                    f"the {'greater' if last.startswith('max') else 'lesser'} of both is taken where the {'lesser' if last.startswith('max') else 'greater'} one bounds the step",
                )
        clamp = _about_one(call)
        ratio = value_of(program, receiver(call) or call, scope) if clamp and receiver(call) is not None else None
        logs = {w for n in identifiers(ratio) for w in words(n)} if isinstance(ratio, ast.BinOp) and isinstance(ratio.op, ast.Sub) else set()
        if (
            isinstance(ratio, ast.BinOp)
            and logs & {"logp", "logprob", "logprobs", "log", "lp", "logpi"}
            and logs & {"old", "behaviour", "behavior", "prev", "ref"}
        ):
            yield call, f"{ast.unparse(receiver(call) or call)} is a difference of logarithms, and is clamped about 1 as a ratio is"
        yield from _wrong_ratio(program, call, scope)


def _wrong_ratio(program: Program, call: ast.Call, scope: Scope) -> Iterator[Place]:
    """A ratio of probabilities that is the old one by the new one, or that is clamped about 0."""
    of = receiver(call) if last_name(call.func) in ("clamp", "clip") else None
    inner = exponent(value_of(program, of, scope)) if isinstance(of, ast.Name) else None
    inner = value_of(program, inner, scope) if isinstance(inner, ast.Name) else inner
    if not (of is not None and isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub) and of_logs(inner.left) and of_logs(inner.right)):
        return
    name = ast.unparse(of)
    if _about_one(call) and _is_fresh(program, inner.right, scope) and not _is_fresh(program, inner.left, scope):
        yield call, f"{name} is the probability of before by that of now: {ast.unparse(inner)} is the wrong way round"
    bounds = call.args[:2]
    if len(bounds) == 2 and isinstance(bounds[0], ast.UnaryOp) and ast.unparse(bounds[0].operand) == ast.unparse(bounds[1]):
        yield call, f"{name} is a ratio, which is about 1, and is clamped about 0"


def _is_fresh(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether it is a log probability under the policy as it is now: what `log_prob` of a distribution gives in this function."""
    made = value_of(program, node, scope) if isinstance(node, ast.Name) else node
    return any(isinstance(c, ast.Call) and method(c) == "log_prob" for c in walk(made))


def _clamps(program: Program, node: ast.expr, scope: Scope) -> ast.Call | None:
    """The clamp about 1 in a product, one name back."""
    names = [value_of(program, n, scope) for n in walk(node) if isinstance(n, ast.Name)]
    return next((c for part in (node, *(n for n in names if isinstance(n, ast.Call))) for c in calls(part) if _about_one(c)), None)


def _about_one(call: ast.Call) -> bool:
    """Whether it is `clamp(1 - c, 1 + c)`."""
    if last_name(call.func) not in ("clamp", "clip"):
        return False
    bounds = [b for a in (*call.args, *(k.value for k in call.keywords)) for b in (a.elts if isinstance(a, ast.Tuple) else [a])]
    ends = [type(b.op) for b in bounds if isinstance(b, ast.BinOp) and constant(b.left) in (1, 1.0)]
    return ast.Sub in ends and ast.Add in ends
