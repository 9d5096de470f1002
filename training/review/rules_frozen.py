"""Rules BH427: and BH428: an optimizer holds what cannot learn."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.freezing import Freeze, frees, freezes
from training.review.kinds import is_frozen_name
from training.review.lookups import optimizers_made, places_of
from training.review.program import Program, Scope
from training.review.rules_module import is_layer
from training.review.syntax import (
    FUNCTIONS,
    calls,
    dotted,
    last_name,
    method,
    own_nodes,
    own_nodes_of,
    receiver,
    words,
)

PLAIN_USES = {
    "parameters", "named_parameters", "train", "eval", "to", "cuda", "state_dict",
    "load_state_dict", "zero_grad", "cpu",
}  # fmt: skip
ADDS = {"add_module", "register_module", "append", "extend", "insert", "set_submodule"}
PLAIN_CALLS = {"print", "len", "sum", "count_parameters", "id", "summary", "parameters"}


@rule("BH427")
def new_layer_frozen(subject: Subject) -> Iterator[Place]:
    """A network is frozen as a whole after a layer of it was replaced, or all that an optimizer
    holds is frozen, and nothing sets it free again.
    """
    program = subject.program
    found = list(freezes(program)) if subject.trains else []
    held = list(_held(program)) if found else []
    for freeze in found:
        free = [
            n
            for n in frees(program)
            if program.scope(n) is not freeze.scope or getattr(n, "lineno", 0) > freeze.node.lineno
        ]
        if free or is_frozen_name(freeze.network) or not _is_trained(program, freeze, held):
            continue
        new = [
            n
            for n in _layers_set(program, freeze)
            if freeze.spared is None or freeze.spared not in _path(n.targets[0], freeze.network)
        ]
        before = [
            n
            for n in new
            if n.lineno < freeze.node.lineno and not _trained_between(program, freeze, n.lineno)
        ]
        after = [n for n in _put_in(freeze) if n.lineno > freeze.node.lineno]
        if before and not after:
            yield (
                freeze.node,
                f"{ast.unparse(before[-1].targets[0])} is new, and frozen here with all the rest",
            )
        elif freeze.spared is None and not after and not _layers_elsewhere(program, freeze):
            yield from (
                (call, f"all that this optimizer holds was frozen in line {freeze.node.lineno}")
                for call, scope, names in held
                if scope is freeze.scope
                and call.lineno > freeze.node.lineno
                and all(_within(n, freeze.network) for n in names)
                and _untouched(program, freeze, call)
            )


def _trained_between(program: Program, freeze: Freeze, line: int) -> bool:
    """Whether a backward pass, or a function that trains, stands between a line and the freeze in
    its function: what is new there has been trained.
    """
    for call in (
        c
        for c in program.all_calls
        if program.scope(c) is freeze.scope and line < c.lineno < freeze.node.lineno
    ):
        trains = (
            words(last_name(call.func)) & {"train", "fit", "pretrain", "finetune"}
            and method(call) != "train"
        )
        if method(call) == "backward" or trains:
            return True
    return False


def _held(program: Program) -> Iterator[tuple[ast.Call, Scope, list[str]]]:
    """Every optimizer of torch: where, and the networks whose parameters it is given; none where it
    is given anything else.
    """
    for call, scope in optimizers_made(program):
        names = [
            _root_of(receiver(c))
            for c in calls(call.args[0])
            if method(c) in ("parameters", "named_parameters")
        ]
        if names and all(names):
            yield call, scope, names


def _root_of(node: ast.expr | None) -> str:
    """`net.classifier` of `net.classifier[3]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return dotted(node)


def _within(name: str, network: str) -> bool:
    return name == network or name.startswith(network + ".")


def _is_trained(
    program: Program, freeze: Freeze, held: list[tuple[ast.Call, Scope, list[str]]]
) -> bool:
    """Whether an optimizer holds parameters of the frozen network, by its name in the same
    function, or by what made it.
    """
    owner = (
        freeze.scope.owner.name
        if freeze.network == "self" and freeze.scope.owner is not None
        else ""
    )
    made = (
        {o.call for o in program.origins(_name(freeze.network), freeze.scope)}
        if not owner
        else set()
    )
    for _, scope, names in held:
        for name in names:
            if scope is freeze.scope and _within(name, freeze.network):
                return True
            origins = program.origins(
                _name(name.partition(".")[0] if not name.startswith("self.") else name), scope
            )
            if any(o.call in made or (owner and o.name == owner) for o in origins):
                return True
    return False


def _name(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _layers_set(program: Program, freeze: Freeze) -> list[ast.Assign]:
    """Assignments of new layers to attributes of the network, in the function that freezes it, in
    the same branch.
    """
    around = program.ancestors(freeze.node)
    found = []
    for node in own_nodes_of(freeze.scope.node, ast.Assign):
        if _path(node.targets[0], freeze.network) and is_layer(program, _where_made(node.value)):
            branches = [
                a
                for a in program.ancestors(node)
                if isinstance(a, (ast.If, ast.For, ast.While, ast.Try))
            ]
            found += [node] if all(b in around for b in branches) else []
    return found


def _put_in(freeze: Freeze) -> list[ast.Assign | ast.Call]:
    """What may put a layer into the network, in the function that freezes it: an assignment of what
    a call gives, or a call that adds a part or changes one.
    """
    found: list[ast.Assign | ast.Call] = []
    for node in own_nodes(freeze.scope.node):
        if (
            isinstance(node, ast.Assign)
            and _path(node.targets[0], freeze.network)
            and isinstance(_where_made(node.value), ast.Call)
        ):
            found.append(node)
        elif isinstance(node, ast.Call) and (
            method(node) in ADDS or last_name(node.func).startswith("register_parametrization")
        ):
            roots = [_root_of(part) for part in (receiver(node), *node.args) if part is not None]
            found += [node] if any(_within(root, freeze.network) for root in roots) else []
    return found


def _where_made(value: ast.expr) -> ast.expr:
    inner = receiver(value) if method(value) in ("to", "cuda") else None
    return inner if inner is not None else value


def _path(target: ast.expr, network: str) -> str:
    """`fc` of `net.fc = …`; empty where the target is no part of the network."""
    name = _root_of(target)
    return name[len(network) + 1 :] if name.startswith(network + ".") else ""


def _layers_elsewhere(program: Program, freeze: Freeze) -> bool:
    """Whether another function puts a layer into something, which may be this network."""
    assigns = [
        n
        for n in program.nodes[ast.Assign]
        if isinstance(n.targets[0], (ast.Attribute, ast.Subscript))
    ]
    others = [
        n
        for n in assigns
        if program.scope(n) is not freeze.scope and not program.is_module(program.scope(n).owner)
    ]
    return any(is_layer(program, _where_made(n.value)) for n in others)


def _untouched(program: Program, freeze: Freeze, optimizer: ast.Call) -> bool:
    """Whether the network is neither bound anew nor handed on between being frozen and the
    optimizer.
    """
    lines = range(freeze.node.lineno + 1, optimizer.lineno + 1)
    bound = [
        b
        for b in program.bindings_of(_name(freeze.network), freeze.scope)
        if getattr(b.statement, "lineno", 0) in lines
    ]
    given = [
        c
        for c in program.all_calls
        if c.lineno in lines
        and any(dotted(a) == freeze.network for a in c.args)
        and last_name(c.func) not in PLAIN_CALLS
    ]
    return not bound and not given


@rule("BH428")
def trained_network_detached(subject: Subject) -> Iterator[Place]:
    """An optimizer holds a network that is used for nothing but calls, all of them without
    gradients, one at least where gradients are computed.
    """
    program = subject.program
    if (
        not subject.trains
        or {"requires_grad", "requires_grad_"} & program.identifiers
        or _sets_gradients(program)
    ):
        return
    if not {"no_grad", "inference_mode", "detach", "data", "item"} & program.identifiers:
        return  # nothing is without gradients
    for _, scope, names in _held(program):
        for name in dict.fromkeys(names):
            uses = list(_uses(program, name, scope))
            cut = (
                [u for u in uses if u is not None and _is_cut(program, u)]
                if None not in uses
                else []
            )
            if not cut or len(cut) != len(uses):
                continue
            trains = [
                u
                for u in cut
                if any(program.scope(c) is program.scope(u) for c in program.methods_of("backward"))
            ]
            if trains and not _is_given(name, scope):
                yield (
                    trains[0],
                    f"an optimizer holds {name}, and all that it computes is without gradients",
                )


def _sets_gradients(program: Program) -> bool:
    """Whether gradients are written by hand somewhere in the file."""
    return any(
        n.attr == "grad" and isinstance(n.ctx, ast.Store) for n in program.nodes[ast.Attribute]
    )


def _is_given(name: str, scope: Scope) -> bool:
    """Whether it is a global name, which other functions may use."""
    return isinstance(scope.node, ast.Module) and "." in name


def _uses(program: Program, name: str, scope: Scope) -> Iterator[ast.Call | None]:
    """Every call of a network by its name; None for any other use but those that change nothing
    about its gradients.
    """
    for node in places_of(program, name):
        if not isinstance(node.ctx, ast.Load):
            continue
        if program.scope(node) is not scope and not (
            name.startswith("self.") and program.scope(node).owner is scope.owner
        ):
            if (
                isinstance(node, ast.Name)
                and program.scope(node).parent is scope
                and name not in program.scope(node).parameters
            ):
                yield None  # a function inside
            continue
        parent = program.parents[node]
        if isinstance(parent, ast.Call) and parent.func is node:
            yield parent
        elif not (isinstance(parent, ast.Attribute) and parent.attr in PLAIN_USES):
            yield None


def _is_cut(program: Program, call: ast.Call) -> bool:
    """Whether a call runs under `no_grad`, or its output is detached at once, or by every use of
    the name that it gets.
    """
    scope = program.scope(call)
    decorators = scope.node.decorator_list if isinstance(scope.node, FUNCTIONS) else []
    around = [
        i.context_expr for a in program.ancestors(call) if isinstance(a, ast.With) for i in a.items
    ] + decorators
    if any(last_name(getattr(c, "func", c)) in ("no_grad", "inference_mode") for c in around):
        return True
    return _detached(program, call)


def _detached(program: Program, node: ast.AST) -> bool:
    parent = program.parents[node]
    if isinstance(parent, ast.Attribute):
        if parent.attr in ("detach", "data", "item"):
            return True
        above = program.parents[parent]
        return isinstance(above, ast.Call) and above.func is parent and _detached(program, above)
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        name, scope = parent.targets[0].id, program.scope(parent)
        uses = [
            n
            for n in own_nodes_of(scope.node, ast.Name)
            if n.id == name and isinstance(n.ctx, ast.Load)
        ]
        return (
            len(scope.bindings.get(name, ())) == 1
            and bool(uses)
            and all(
                isinstance(program.parents[u], ast.Attribute) and _detached(program, u)
                for u in uses
            )
        )
    return False
