"""Rules BH144, BH145, BH147 and BH148: arguments and results that are given to each other's names, a warm-up that only rises, an average that is never brought up to date."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import torch_calls
from training.review.program import Program, Scope
from training.review.reached import is_asked_for, is_started
from training.review.syntax import FUNCTIONS, calls, children, constant, dotted, identifiers, last_name, method, own_nodes, walk, words

SETTINGS = {
    "lr", "momentum", "weight_decay", "dampening", "eps", "gamma", "step_size", "batch_size", "num_workers", "epochs", "patience", "dropout", "hidden", "width", "depth",
    "layers", "heads", "warmup", "max_lr", "steps_per_epoch", "num_layers", "num_heads", "hidden_size", "label_smoothing", "alpha", "temperature", "decay", "learning_rate",
}  # fmt: skip
QUANTITIES = {
    "loss": {"loss", "losses", "nll", "mse", "rmse", "mae"},
    "share of right answers": {"acc", "accuracy", "auc", "auroc", "f1", "right", "correct", "hits", "recall", "precision", "r2"},
    "mean": {"mean", "mu"},
    "deviation": {"std", "sigma", "stddev", "scale"},
    "labels": {"labels", "targets", "y", "ys", "truth"},
}
WARM = {"warm", "warmup", "rampup"}


@rule(
    "BH144",
    "arguments-exchanged",
    "error",
    title="Two arguments are given to each other's names",
    why="`momentum=weight_decay, weight_decay=momentum` runs: a decay of 0.9 at each step leaves next to nothing of the weights.",
    remedy="give each name its own value",
    bad="""
        import torch

        def make(net, settings):
            return torch.optim.SGD(net.parameters(), lr=settings.lr, momentum=settings.weight_decay, weight_decay=settings.momentum)
        """,
    good="""
        import torch

        def make(net, settings):
            return torch.optim.SGD(net.parameters(), lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay)
        """,
)
def arguments_exchanged(subject: Subject) -> Iterator[Place]:
    """A call is given `a=b` and `b=a`, both of them settings of training: other names are exchanged on purpose, as query and key or source and target."""
    for call in (c for c in subject.program.all_calls if len(c.keywords) > 1):
        given = {k.arg: last_name(k.value) for k in call.keywords if k.arg and isinstance(k.value, (ast.Name, ast.Attribute))}
        for name, value in given.items():
            if name < value and given.get(value) == name and {name, value} <= SETTINGS:
                yield call, f"{name} is given {value}, and {value} is given {name}"


@rule(
    "BH148",
    "results-exchanged",
    "error",
    title="Two results are taken under each other's names",
    why="A function gives back the loss and the accuracy, and the caller unpacks them the other way round: weights are kept by a score that means the opposite.",
    remedy="unpack in the order of the `return`",
    bad="""
        import torch

        def scores(out, y, loss_fn):
            loss = loss_fn(out, y).item()
            right = (out.argmax(1) == y).float().mean().item()
            return loss, right

        def report(out, y, loss_fn):
            accuracy, loss = scores(out, y, loss_fn)
            print(f"accuracy {accuracy:.3f}, loss {loss:.3f}")
        """,
    good="""
        import torch

        def scores(out, y, loss_fn):
            loss = loss_fn(out, y).item()
            right = (out.argmax(1) == y).float().mean().item()
            return loss, right

        def report(out, y, loss_fn):
            loss, accuracy = scores(out, y, loss_fn)
            print(f"accuracy {accuracy:.3f}, loss {loss:.3f}")
        """,
)
def results_exchanged(subject: Subject) -> Iterator[Place]:
    """Two names of an unpacked call speak of what the function of the file gives back at each other's place."""
    program = subject.program
    for statement in (n for n in program.nodes[ast.Assign] if isinstance(n, ast.Assign)):
        target, call = statement.targets[0], statement.value
        if not isinstance(target, ast.Tuple) or not isinstance(call, ast.Call):
            continue
        for function in program.callees(call, program.scope(call)):
            returned = [n.value for n in own_nodes(function.node) if isinstance(n, ast.Return) and n.value is not None]
            given = returned[0].elts if len(returned) == 1 and isinstance(returned[0], ast.Tuple) else []
            if len(given) != len(target.elts):
                continue
            told = [(_speaks_of(identifiers(t)), _speaks_of(identifiers(g)), i) for i, (t, g) in enumerate(zip(target.elts, given, strict=True))]
            for taken, made, i in told:
                if any(taken and made and taken == other_made and made == other_taken and taken != made and i < k for other_taken, other_made, k in told):
                    yield statement, f"what {function.name} gives back as {ast.unparse(given[i])} is taken as {ast.unparse(target.elts[i])}"


def _speaks_of(names: frozenset[str]) -> str:
    """The one quantity that names speak of; empty where none or several."""
    found = {kind for kind, spoken in QUANTITIES.items() for n in names if words(n) & spoken}
    return found.pop() if len(found) == 1 else ""


@rule(
    "BH145",
    "warmup-without-end",
    "error",
    title="A warm-up takes the greater of 1 and the share of its steps",
    why="`max(1, step / warmup)` is 1 during the warm-up, and grows without bound after it: there is no warm-up, and the rate rises until training diverges.",
    remedy="`min(1.0, (step + 1) / warmup)`",
    bad="""
        import torch

        def schedule(optimizer, warmup):
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(1.0, step / warmup))
        """,
    good="""
        import torch

        def schedule(optimizer, warmup):
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
        """,
)
def warmup_without_end(subject: Subject) -> Iterator[Place]:
    """`max` of 1 and a step that is divided by what is called a warm-up, no `min` around it."""
    program = subject.program
    for call in program.calls_of("max"):
        if len(call.args) != 2 or not {1} & {constant(a) for a in call.args}:
            continue
        share = next((a for a in call.args if isinstance(a, ast.BinOp) and isinstance(a.op, ast.Div)), None)
        warm = share is not None and bool({w for n in identifiers(share.right) for w in words(n)} & WARM)
        counted = share is not None and bool(
            {w for n in identifiers(share.left) for w in words(n)} & {"step", "steps", "i", "it", "iteration", "epoch", "update", "updates", "t"}
        )
        bounded = any(isinstance(a, ast.Call) and last_name(a.func) == "min" for a in program.ancestors(call))
        falls = any(
            isinstance(a, ast.BinOp) and isinstance(a.op, (ast.Div, ast.Pow)) and a is not share and call in walk(a.right) for a in program.ancestors(call)
        )
        if warm and counted and not bounded and not falls and share is not None:
            yield call, f"{ast.unparse(call)} is 1 until {ast.unparse(share.right)}, and grows from there on"


@rule(
    "BH147",
    "average-never-updated",
    "error",
    title="An average or a memory is never brought up to date",
    why="`AveragedModel` copies the weights when it is made, and changes with `update_parameters` alone: what is evaluated or saved is the network as it was drawn.",
    remedy="call what does it after each step, or epoch: `averaged.update_parameters(model)`",
    bad="""
        from torch.optim.swa_utils import AveragedModel

        def fit(net, loader, optimizer, loss_fn):
            averaged = AveragedModel(net)
            for x, y in loader:
                optimizer.zero_grad()
                loss_fn(net(x), y).backward()
                optimizer.step()
            return averaged
        """,
    good="""
        from torch.optim.swa_utils import AveragedModel

        def fit(net, loader, optimizer, loss_fn):
            averaged = AveragedModel(net)
            for x, y in loader:
                optimizer.zero_grad()
                loss_fn(net(x), y).backward()
                optimizer.step()
                averaged.update_parameters(net)
            return averaged
        """,
)
def average_never_updated(subject: Subject) -> Iterator[Place]:
    """A file that trains makes an `AveragedModel`, updates and loads none, and hands it to no function out of sight; or it writes a function that moves an average, or fills a memory, and calls it nowhere."""
    program = subject.program
    if not subject.trains:
        return
    for scope, what in (*_moving(program), *_filling(program)) if is_started(program) else ():
        if not is_asked_for(program, scope):
            yield scope.node, f"nothing calls {scope.name}, which would bring {what} up to date"
    if {"update_parameters", "load_state_dict"} & program.identifiers:
        return
    for call in torch_calls(program, "AveragedModel"):
        names = {last_name(t) for t in getattr(program.statement(call), "targets", ())} - {""}
        given = [
            c
            for c in program.all_calls
            if c is not call and any(isinstance(a, (ast.Name, ast.Attribute)) and last_name(a) in names for a in (*c.args, *(k.value for k in c.keywords)))
        ]
        if names and all(program.callees(c, program.scope(c)) or program.resolve(c.func).startswith("torch.") for c in given):
            yield call, f"nothing calls update_parameters: {sorted(names)[0]} stays as it is here"


def _moving(program: Program) -> list[tuple[Scope, str]]:
    """The functions whose work is to move the weights of one network towards another's: a loop over pairs of them that writes one side."""
    found = []
    for loop in (n for n in program.nodes[ast.For] if isinstance(n, ast.For) and isinstance(n.target, ast.Tuple)):
        of = {method(c) for c in calls(loop.iter)}
        if last_name(getattr(loop.iter, "func", None)) != "zip" or not of & {"parameters", "named_parameters", "state_dict"}:
            continue
        written = [c for s in loop.body for c in calls(s) if method(c) in ("lerp_", "copy_", "add_") and isinstance(c.func, ast.Attribute)]
        roots = {_root(c.func) for c in written} & {last_name(e) for e in children(loop.target)}
        if roots:
            found.append(program.scope(loop))
    return [(s, "the weights") for s in dict.fromkeys(found) if isinstance(s.node, FUNCTIONS) and not s.name.startswith(("on_", "__"))]


def _filling(program: Program) -> Iterator[tuple[Scope, str]]:
    """The methods that write into a buffer of their network, which its `forward` reads: a memory of keys, running statistics."""
    for owner in program.module_classes if program.methods_of("register_buffer") else ():
        methods = program.methods[owner]
        named = [constant(c.args[0]) for c in calls(owner) if method(c) == "register_buffer" and c.args]
        read = {dotted(n) for n in walk(methods["forward"].node) if isinstance(n, ast.Attribute)} if "forward" in methods else set()
        buffers = {f"self.{name}" for name in named if f"self.{name}" in read}
        for name, scope in methods.items():
            if name != "forward" and not name.startswith(("__", "on_", "reset", "init", "load", "set")) and buffers & _written(scope):
                told = sorted(b.removeprefix("self.") for b in buffers & _written(scope))
                yield scope, " and ".join(told)


def _written(scope: Scope) -> set[str]:
    """What a method writes into, in place: `self.bank[rows] = keys`, `self.mean.lerp_(…)`."""
    nodes = list(own_nodes(scope.node))
    stored = [
        t.value
        for n in nodes
        if isinstance(n, (ast.Assign, ast.AugAssign))
        for t in getattr(n, "targets", [getattr(n, "target", None)])
        if isinstance(t, ast.Subscript)
    ]
    in_place = [n.func.value for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr.endswith("_")]
    return {dotted(n).removesuffix(".data") for n in (*stored, *in_place)}


def _root(node: ast.AST) -> str:
    """The name at the beginning of `slow.data.mul_(decay).add_`."""
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
