"""Rules BH421: and BH422: which parameters an optimizer holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.adversaries import judges_held_twice
from training.review.findings import Place, Subject, rule
from training.review.freezing import switches
from training.review.kinds import is_frozen_name, is_optimizer_origin
from training.review.lookups import attributes_of, calls_within, names_of
from training.review.program import Program, Scope
from training.review.replaced import layers_replaced_too_late, makes_optimizer
from training.review.rules_module import is_layer
from training.review.saved import trains
from training.review.syntax import (
    calls,
    constant,
    dotted,
    identifiers,
    keyword,
    last_name,
    method,
    nodes_of,
    once,
    own_nodes,
    receiver,
    walk,
)

OWN_USES = {"state_dict", "train", "to", "cuda"}


@rule("BH421")
def parameters_in_two_groups(subject: Subject) -> Iterator[Place]:
    """Two entries of an optimizer's list are `a.parameters()` and `a.parameters()`, or
    `a.b.parameters()`; or a judge is in its own optimizer and in its adversary's.
    """
    program = subject.program
    for call, scope in _optimizers(program):
        held: list[str] = []
        for value in _groups(call, scope):
            name = dotted(receiver(value)) if method(value) == "parameters" else ""
            if name and any(name == other or name.startswith(other + ".") for other in held):
                yield value, f"the parameters of {name} are in an earlier group too"
            elif name and any(other.startswith(name + ".") for other in held):
                yield (
                    value,
                    (
                        f"the parameters of {next(o for o in held if o.startswith(name + '.'))} are"
                        " in an earlier group too"
                    ),
                )
            held += [name] if name else []
    for optimizer, judge, own in judges_held_twice(program):
        yield (
            optimizer,
            (
                f"the parameters of {judge} are in the optimizer of line {own.lineno} too, and a"
                " step of this one undoes what that one has learned"
            ),
        )


@once
def _optimizers(program: Program) -> tuple[tuple[ast.Call, Scope], ...]:
    """Every call that makes an optimizer of torch."""
    made = [(c, program.scope(c)) for c in calls_within(program, "torch.optim.")]
    return tuple(
        (call, scope)
        for call, scope in made
        if any(is_optimizer_origin(o) and o.call is call for o in program.origins(call, scope))
    )


def _groups(call: ast.Call, scope: Scope) -> Iterator[ast.expr]:
    """What each group of an optimizer holds."""
    given = keyword(call, "params", 0)
    if isinstance(given, ast.Name) and len(scope.bindings.get(given.id, ())) == 1:
        given = scope.bindings[given.id][0].value
    for element in given.elts if isinstance(given, (ast.List, ast.Tuple)) else ():
        if isinstance(element, ast.Dict):
            yield from (
                v
                for k, v in zip(element.keys, element.values, strict=True)
                if constant(k) == "params"
            )
        elif isinstance(element, ast.Call) and last_name(element.func) == "dict":
            value = keyword(element, "params")
            yield from () if value is None else (value,)


@rule("BH422")
def parameters_without_optimizer(subject: Subject) -> Iterator[Place]:
    """Beside an optimizer a network of the file with parameters is made, called where gradients are
    computed, and used for nothing else; or one is set free too late, or a layer replaced.
    """
    program = subject.program
    for scope in dict.fromkeys(scope for _, scope in _optimizers(program)):
        if not any(program.scope(c) is scope for c in program.methods_of("backward")):
            continue
        for name, bindings in scope.bindings.items():
            owners = {
                o.name
                for b in bindings
                if b.index is None
                for o in program.origins(b.value, b.scope)
            }
            learns = bool(owners) and all(
                o in program.classes and _has_parameters(program, program.classes[o])
                for o in owners
            )
            if learns and not is_frozen_name(name) and _only_called(program, name, scope):
                yield (
                    bindings[0].value,
                    f"{name} has parameters of its own, and no optimizer holds them",
                )
    for owner in dict.fromkeys(
        scope.owner for _, scope in _optimizers(program) if scope.owner is not None
    ):
        yield from _attributes_left_out(program, owner)
    yield from _freed_too_late(program)
    yield from layers_replaced_too_late(program)


def _freed_too_late(program: Program) -> Iterator[Place]:
    """A network is frozen, an optimizer made of what is free then, and the network set free
    afterwards, where training goes on with that optimizer.
    """
    if "add_param_group" in program.identifiers:
        return
    for call, scope in _optimizers(program):
        turned = list(switches(program, scope))
        frozen = {s.network for s in turned if not s.free and s.node.lineno < call.lineno}
        for s in (
            s
            for s in turned
            if s.free
            and s.node.lineno > call.lineno
            and s.network in frozen
            and _is_left_out(call, scope, s.network)
        ):
            around = [
                a
                for a in program.ancestors(s.node)
                if isinstance(a, (ast.For, ast.While)) and call not in walk(a)
            ]
            later = [
                n
                for n in own_nodes(scope.node)
                if isinstance(n, ast.stmt) and n.lineno > s.node.lineno
            ]
            if any(trains(program, n) for n in (*around, *later)) and not any(
                makes_optimizer(program, n) for n in (*around, *later)
            ):
                yield (
                    s.node,
                    (
                        f"{s.network} is set free here, and the optimizer of line {call.lineno} was"
                        " made without its parameters"
                    ),
                )


def _is_left_out(optimizer: ast.Call, scope: Scope, network: str) -> bool:
    """Whether an optimizer was given what is free alone, or other parts of the network than this
    one.
    """
    given = keyword(optimizer, "params", 0)
    if isinstance(given, ast.Name) and len(scope.bindings.get(given.id, ())) == 1:
        given = scope.bindings[given.id][0].value
    if given is None:
        return False
    tests = [t for n in nodes_of(given, ast.comprehension) for t in n.ifs]
    tests += [c.args[0] for c in calls(given) if last_name(c.func) == "filter" and c.args]
    if any("requires_grad" in identifiers(t) for t in tests):
        return True
    held = [
        dotted(receiver(c)) for c in calls(given) if method(c) in ("parameters", "named_parameters")
    ]
    root = network.partition(".")[0] + "."
    apart = [
        h
        for h in held
        if h.startswith(root)
        and "." in network
        and not (h + ".").startswith(network + ".")
        and not (network + ".").startswith(h + ".")
    ]
    return bool(held) and len(apart) == len(held)


def _attributes_left_out(program: Program, owner: ast.ClassDef) -> Iterator[Place]:
    """Networks that an object keeps beside its optimizer, and whose only use is that their output
    becomes the loss.
    """
    if program.is_module(owner) or {"add_param_group", "vars", "__dict__", "getattr"} & identifiers(
        owner
    ):
        return
    for name, bindings in program.attributes[owner].items():
        owners = {
            o.name for b in bindings if b.index is None for o in program.origins(b.value, b.scope)
        }
        if (
            not owners
            or is_frozen_name(name)
            or not all(
                o in program.classes and _has_parameters(program, program.classes[o])
                for o in owners
            )
        ):
            continue
        uses = [n for n in attributes_of(program, name) if isinstance(n.ctx, ast.Load)]
        parents = [(n, program.parents[n]) for n in uses]
        handed_on = any(
            not (isinstance(p, ast.Call) and p.func is n) and not isinstance(p, ast.Attribute)
            for n, p in parents
        )
        asked = any(
            isinstance(p, ast.Attribute)
            and p.attr not in OWN_USES | _own_attributes(program, owners)
            for _, p in parents
        )
        becomes_loss = [
            p
            for n, p in parents
            if isinstance(p, ast.Call) and p.func is n and _is_propagated(program, p)
        ]
        if becomes_loss and not handed_on and not asked:
            yield (
                bindings[0].value,
                f"self.{name} has parameters of its own, and no optimizer holds them",
            )


def _own_attributes(program: Program, owners: set[str]) -> set[str]:
    """What the classes keep as their own attributes, which may be looked at."""
    return (
        {a for o in owners for a in program.attributes[program.classes[o]]}
        if all(o in program.classes for o in owners)
        else set()
    )


def _is_propagated(program: Program, call: ast.Call) -> bool:
    """Whether `backward` is called on the output, at once or by the name that it gets."""
    statement, scope = program.statement(call), program.scope(call)
    names = (
        {dotted(t) for t in getattr(statement, "targets", ())}
        if getattr(statement, "value", None) is call
        else set()
    )
    return any(
        program.scope(c) is scope and (receiver(c) is call or dotted(receiver(c)) in names - {""})
        for c in program.methods_of("backward")
    )


def _has_parameters(program: Program, owner: ast.ClassDef) -> bool:
    """Whether a network of the file, which freezes nothing, makes parameters or layers."""
    if not program.is_module(owner) or {"requires_grad", "requires_grad_", "no_grad"} & identifiers(
        owner
    ):
        return False
    made = [b for bound in program.attributes[owner].values() for b in bound]
    return any(
        program.is_torch(c.func, "Parameter") or is_layer(program, c)
        for b in made
        for c in calls(b.value)
    )


def _only_called(program: Program, name: str, scope: Scope) -> bool:
    """Whether every use is a call with gradients, or one that gives its parameters to nobody; one
    call at least.
    """
    called = False
    for node in names_of(program, name):
        if not isinstance(node.ctx, ast.Load):
            continue
        parent = program.parents[node]
        if isinstance(parent, ast.Call) and parent.func is node and program.scope(node) is scope:
            above = program.parents[parent]
            if any(isinstance(a, ast.With) for a in program.ancestors(node)) or (
                isinstance(above, ast.Attribute) and above.attr == "detach"
            ):
                return False  # nobody expects a gradient there
            called = True
        elif not (isinstance(parent, ast.Attribute) and parent.attr in OWN_USES):
            return False
    return called
