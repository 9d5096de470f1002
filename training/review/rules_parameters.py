"""Rules BH415: to BH419: parameters, and the optimizer that updates them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_model, is_optimizer_origin
from training.review.lookups import optimizers_made
from training.review.program import SAME_OBJECT, Program, Scope, argument
from training.review.rules_module import is_layer
from training.review.syntax import (
    FUNCTIONS,
    calls,
    constant,
    dotted,
    identifiers,
    is_false,
    keyword,
    last_name,
    method,
    names_read,
    once,
    own_nodes,
    receiver,
    walk,
)

UPDATES = {"add_", "sub_", "mul_", "div_", "copy_", "zero_", "addcmul_", "addcdiv_", "lerp_"}


@rule("BH415")
def parameters_changed_after_optimizer(subject: Subject) -> Iterator[Place]:
    """In one function: an optimizer over `m.parameters()`, later `m.x = Layer(…)` or `m =
    Network(…)`, and no optimizer after that.
    """
    program = subject.program
    for scope, made, network in (
        _optimizers(program) if "add_param_group" not in program.called_names else ()
    ):
        for node in own_nodes(scope.node):
            if not (
                isinstance(node, ast.Assign)
                and node.lineno > made.lineno
                and is_layer(program, _where_made(node.value))
            ):
                continue
            target = dotted(node.targets[0])
            inside = (
                target.startswith(network + ".")
                or (target == network and "." in network)
                or (
                    isinstance(node.targets[0], ast.Subscript)
                    and dotted(node.targets[0].value).startswith(network + ".")
                )
            )
            if not inside:
                continue
            again = any(
                m.lineno > node.lineno
                for s, m, n in _optimizers(program)
                if s is scope and (n == network or n.startswith(network + "."))
            )
            if (
                not again
                and _stepped_after(program, scope, made, node.lineno, network)
                and not _apart(program, made, node)
            ):
                yield (
                    node,
                    (
                        f"{target or ast.unparse(node.targets[0])} is new, and the optimizer of"
                        f" line {made.lineno} does not know it"
                    ),
                )


def _stepped_after(program: Program, scope: Scope, made: ast.Call, line: int, network: str) -> bool:
    """Whether the optimizer, or what is given it, is named again in its function after a line; not
    where a helper that makes another one is given the network there.
    """
    kept = {dotted(t) for t in getattr(program.statement(made), "targets", ())} - {""}
    later = [
        n
        for n in own_nodes(scope.node)
        if isinstance(n, (ast.Name, ast.Attribute)) and getattr(n, "lineno", 0) > line
    ]
    for call in (
        c
        for c in calls(scope.node)
        if c.lineno > line and any(dotted(a) == network for a in c.args)
    ):
        if any(
            any(is_optimizer_origin(o) and o.call is c for o in program.origins(c, f))
            for f in program.callees(call, scope)
            for c in calls(f.node)
        ):
            return False
    around = [a for a in program.ancestors(made) if isinstance(a, (ast.For, ast.While))]
    return (
        bool(around)
        or not kept
        or any(dotted(n) in kept for n in later)
        or not scope.name
        or any(k.startswith("self.") for k in kept)
    )


def _where_made(value: ast.expr) -> ast.expr:
    """`nn.Linear(…)` of `nn.Linear(…).to(device)`."""
    inner = receiver(value) if method(value) in SAME_OBJECT else None
    return _where_made(inner) if isinstance(inner, ast.Call) else value


@once
def _optimizers(program: Program) -> tuple[tuple[Scope, ast.Call, str], ...]:
    """Every optimizer over all parameters of one network: where, the call, and the
    network's name.
    """
    return tuple(_found_optimizers(program))


def _found_optimizers(program: Program) -> Iterator[tuple[Scope, ast.Call, str]]:
    for call, scope in optimizers_made(program):
        for inner in calls(call.args[0]):
            if method(inner) in ("parameters", "named_parameters") and dotted(receiver(inner)):
                yield scope, call, dotted(receiver(inner))
            function = program.callees_by_name(inner, scope)
            for name in function.parameters if function is not None else ():
                asks = any(
                    method(c) in ("parameters", "named_parameters") and dotted(receiver(c)) == name
                    for c in calls(function.node if function else inner)
                )
                given = argument(inner, function, name) if asks and function is not None else None
                if given is not None and dotted(given):
                    yield scope, call, dotted(given)


def _apart(program: Program, a: ast.AST, b: ast.AST) -> bool:
    """Whether two statements stand in branches that exclude each other, or in a loop of
    their own.
    """
    around_a = [
        n for n in program.ancestors(a) if isinstance(n, (ast.If, ast.For, ast.While, ast.Try))
    ]
    around_b = [
        n for n in program.ancestors(b) if isinstance(n, (ast.If, ast.For, ast.While, ast.Try))
    ]
    return any(n not in around_b for n in around_a)


@rule("BH416")
def optimizer_before_device(subject: Subject) -> Iterator[Place]:
    """In one function: an optimizer over `m.parameters()`, and only later `m.to(…)`, `m.cuda()` or
    sharding of `m`.
    """
    program = subject.program
    for scope, made, network in _optimizers(program):
        moves = [
            (c, _moves(program, c, network)) for c in calls(scope.node) if program.scope(c) is scope
        ]
        later = [
            (c, how)
            for c, how in moves
            if how and c.lineno > made.lineno and not _apart(program, made, c)
        ]
        earlier = [c for c, how in moves if how and c.lineno <= made.lineno]
        again = [
            m
            for s, m, n in _optimizers(program)
            if s is scope and n == network and later and m.lineno > later[0][0].lineno
        ]
        if later and not _stepped_after(program, scope, made, later[0][0].lineno, network):
            continue  # training is over
        if (
            later
            and not earlier
            and not again
            and not any(isinstance(a, (ast.If, ast.For)) for a in program.ancestors(later[0][0]))
        ):
            yield (
                later[0][0],
                f"{network} is {later[0][1]} after its optimizer was made in line {made.lineno}",
            )


def _moves(program: Program, call: ast.Call, network: str) -> str:
    """How a call moves or replaces the parameters of a network."""
    if (
        method(call) in ("to", "cuda", "half", "bfloat16")
        and dotted(receiver(call)) == network
        and not _is_cpu(call)
    ):
        layout = not call.args and {k.arg for k in call.keywords} == {"memory_format"}
        if not layout:
            return "moved"
    if not call.args or dotted(call.args[0]) != network:
        return ""
    function = program.callees_by_name(call, program.scope(call))
    inner = (
        [c for c in calls(function.node) if c.args and dotted(c.args[0]) in function.parameters[:2]]
        if function is not None
        else []
    )
    sharded = any(
        program.is_torch(c.func, "fully_shard", "FullyShardedDataParallel") for c in (call, *inner)
    )
    return "sharded" if sharded else ""


def _is_cpu(call: ast.Call) -> bool:
    to = call.args[0] if call.args else keyword(call, "device")
    if isinstance(to, ast.Call) and last_name(to.func) == "device" and to.args:
        to = to.args[0]
    return to is not None and constant(to) == "cpu"


@rule("BH417")
def update_in_graph(subject: Subject) -> Iterator[Place]:
    """A loop variable over `parameters()` is changed with its own gradient, and no `no_grad` is
    around, in callers neither.
    """
    program = subject.program
    for trace in subject.traces:
        if not any(e.kind == "backward" for e in trace):
            continue
        for event in trace:
            loop = event.loops[-1].node if event.loops else None
            if not isinstance(loop, ast.For) or not any(
                method(c) in ("parameters", "named_parameters") for c in calls(loop.iter)
            ):
                continue
            name = _updated(event.node)
            if (
                not name
                or name not in names_read(loop.target)
                or event.within("no_grad", "inference_mode", "set_grad_enabled")
            ):
                continue
            if _is_kept(event.node, name, loop) or _switched_off(program, event.node):
                continue
            if not any(
                isinstance(a, ast.FunctionDef) and a.decorator_list
                for a in (program.scope(event.node).node,)
            ):
                yield event.node, f"{name} is changed with gradients on"


def _is_kept(node: ast.AST, name: str, loop: ast.For) -> bool:
    """Whether what is computed under the name of the parameter is a new tensor that is put away:
    fast weights, figures.
    """
    put_away = [
        n
        for n in walk(loop)
        if (isinstance(n, ast.Call) and method(n) == "append")
        or (isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Subscript))
    ]
    return isinstance(node, ast.Assign) and any(
        n.lineno > node.lineno and name in names_read(n) for n in put_away
    )


def _switched_off(program: Program, node: ast.AST) -> bool:
    """Whether gradients are switched off before by a call, or by a context that is entered
    by name.
    """
    before = [c for c in calls(program.scope(node).node) if c.lineno < getattr(node, "lineno", 0)]
    entered = any(
        method(c) == "enter_context" and {"no_grad", "inference_mode"} & identifiers(c)
        for c in before
    )
    switches = [c for c in before if last_name(c.func) == "set_grad_enabled" and c.args]
    return entered or (bool(switches) and is_false(max(switches, key=lambda c: c.lineno).args[0]))


def _updated(node: ast.AST) -> str:
    """The name of a parameter that a statement changes with its gradient."""
    if (
        isinstance(node, ast.AugAssign)
        and isinstance(node.target, ast.Name)
        and f"{node.target.id}.grad" in ast.unparse(node.value)
    ):
        return node.target.id
    if (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and f"{node.targets[0].id}.grad" in ast.unparse(node.value)
    ):
        return node.targets[0].id if node.targets[0].id in names_read(node.value) else ""
    if (
        isinstance(node, ast.Call)
        and method(node) in UPDATES
        and isinstance(receiver(node), ast.Name)
    ):
        name = dotted(receiver(node))
        return (
            name
            if any(
                f"{name}.grad" in ast.unparse(a)
                for a in (*node.args, *(k.value for k in node.keywords))
            )
            else ""
        )
    return ""


@rule("BH418")
def forward_called_directly(subject: Subject) -> Iterator[Place]:
    """`x.forward(…)` on a network, outside of a class that wraps another one's forward."""
    program = subject.program
    for call in program.methods_of("forward"):
        target, scope = receiver(call), program.scope(call)
        wraps = scope.name.startswith(("forward", "_forward", "__call__")) or program.is_module(
            scope.owner
        )
        if (
            isinstance(target, (ast.Name, ast.Attribute))
            and not wraps
            and last_name(target) != "super"
            and is_model(program, target, scope)
            and not isinstance(program.scope_of.get(call), FUNCTIONS)
            and last_name(target) not in ("nn", "Module")
        ):
            yield call, f"{dotted(call.func)} passes by the hooks of {dotted(target)}(…)"


@rule("BH419")
def data_attribute(subject: Subject) -> Iterator[Place]:
    """A method that changes in place is called on `.data`."""
    if "torch" not in subject.program.modules_imported:
        return
    for call in subject.program.all_calls:
        target = receiver(call)
        if (
            isinstance(target, ast.Attribute)
            and target.attr == "data"
            and method(call).endswith("_")
            and not method(call).startswith("_")
        ):
            yield call, "changed through .data: autograd does not see it"
