"""What is replaced behind the object that was made of it: a layer behind its optimizer, an
optimizer behind its schedule.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from training.review.findings import Place
from training.review.kinds import is_model, is_optimizer_origin, is_scheduler_origin
from training.review.program import Binding, Program, Scope
from training.review.rules_module import is_layer
from training.review.saved import trains
from training.review.syntax import (
    calls,
    dotted,
    identifiers,
    keyword,
    last_name,
    method,
    own_nodes,
    receiver,
)

DEPTH = 3
LOOPS = (ast.For, ast.While)
SCHEDULES = re.compile(r"LR$|Plateau$|Restarts$|[Ss]chedul")


def makes_optimizer(program: Program, node: ast.AST, depth: int = 0) -> bool:
    """Whether an optimizer is made within, or by a helper of the file that is called there, or
    perhaps by one out of sight.
    """
    for call in calls(node):
        scope = program.scope(call)
        if (
            any(is_optimizer_origin(o) for o in program.origins(call, scope))
            or "optim" in last_name(call.func).lower()
        ):
            return True
        if depth < DEPTH and any(
            makes_optimizer(program, f.node, depth + 1) for f in program.callees(call, scope)
        ):
            return True
    return False


def layers_replaced_too_late(program: Program) -> Iterator[Place]:
    """`model.head = nn.Linear(…)` behind the optimizer of `model`, where training goes on with that
    optimizer.
    """
    if "add_param_group" in program.identifiers:
        return
    for statement, network, layer in _replacements(program):
        scope = program.scope(statement)
        if (
            is_model(program, network, scope)
            and (made := _optimizer_of(program, statement, network, scope)) is not None
        ):
            yield (
                statement,
                (
                    f"{dotted(network)}.{layer} is a new layer here, and the optimizer of line"
                    f" {made.lineno} holds the weights of the one before"
                ),
            )


def _replacements(program: Program) -> Iterator[tuple[ast.stmt, ast.expr, str]]:
    """Where a layer of a network is replaced: the statement, the network and the layer's name. Its
    own methods do it where they are called.
    """
    by_method: dict[str, str] = {}
    for statement in program.nodes[ast.Assign]:
        target, value = statement.targets[0], statement.value
        if not isinstance(target, ast.Attribute) or not isinstance(value, (ast.Call, ast.Name)):
            continue
        scope, holder = program.scope(statement), dotted(target.value)
        by_itself = (
            holder == "self"
            and scope.owner is not None
            and program.is_module(scope.owner)
            and not scope.name.startswith("_")
        )
        own = scope.bindings.get(value.id, []) if isinstance(value, ast.Name) else []
        if (holder in ("", "self") and not by_itself) or not is_layer(
            program, own[0].value if len(own) == 1 else value
        ):
            continue
        if by_itself:
            by_method[scope.name] = target.attr
        else:
            yield statement, target.value, target.attr
    for call in program.methods_of(*by_method) if by_method else ():
        of, by = receiver(call), program.statement(call)
        if of is not None and dotted(of) not in ("", "self", "super") and isinstance(by, ast.Expr):
            yield by, of, by_method[method(call)]


def _optimizer_of(
    program: Program, statement: ast.stmt, network: ast.expr, scope: Scope
) -> ast.expr | None:
    """What made the optimizer that goes on behind a statement without the new weights of a
    network.
    """
    around = program.ancestors(statement)
    later = [
        n for n in own_nodes(scope.node) if isinstance(n, ast.stmt) and n.lineno > statement.lineno
    ]
    later += [a for a in around if isinstance(a, LOOPS)]
    if any(makes_optimizer(program, n) for n in later):
        return None
    owner = scope.owner
    for own, bound in scope.bindings.items():
        for binding in (b for b in bound if b.how == "assign" and _line(b) < statement.lineno):
            known = _reads(binding, scope, network) and makes_optimizer(program, binding.value)
            same = all(
                a in around
                for a in program.ancestors(binding.statement)
                if isinstance(a, (ast.If, ast.Try, *LOOPS))
            )
            if (
                known
                and same
                and not _apart(program, binding.statement, statement)
                and any(own in identifiers(n) for n in later)
                and any(trains(program, n) for n in later)
            ):
                return binding.value
    if (
        owner is None
        or program.is_module(owner)
        or not dotted(network).startswith("self.")
        or not any(trains(program, k) for k in program.bases(owner))
    ):
        return None
    held = [
        b
        for known in program.bases(owner)
        for bound in program.attributes[known].values()
        for b in bound
        if b.how == "assign" and makes_optimizer(program, b.value)
    ]
    if (
        len(held) != 1
        or held[0].scope.name != "__init__"
        or not _reads(held[0], held[0].scope, network)
    ):
        return None
    if scope.name == "__init__":
        begun = (
            [c.lineno for c in calls(scope.node) if method(c) == "__init__"]
            if held[0].scope is not scope
            else [_line(held[0])]
        )
        return held[0].value if begun and max(begun) < statement.lineno else None
    if makes_optimizer(program, scope.node):
        return None
    for site, caller in program.call_sites[scope]:
        behind = [
            n for n in own_nodes(caller.node) if isinstance(n, ast.stmt) and n.lineno > site.lineno
        ]
        if caller.name == "__init__" or any(makes_optimizer(program, n) for n in behind):
            return None
    return held[0].value


def _reads(binding: Binding, scope: Scope, network: ast.expr) -> bool:
    """Whether a value is made of a network, at once or by a name that was."""
    read = identifiers(binding.value)
    behind = {
        i
        for n in read
        for b in scope.bindings.get(n, ())
        if b.how == "assign" and _line(b) < _line(binding)
        for i in identifiers(b.value)
    }
    asked = {
        last_name(receiver(c))
        for c in calls(scope.node)
        if method(c) in ("parameters", "named_parameters") and c.lineno <= _line(binding)
    }
    return last_name(network) in read | behind | (
        asked if any(n in scope.bindings for n in read) else set()
    )


def schedules_left_behind(program: Program) -> Iterator[Place]:
    """A schedule goes on stepping where the optimizer that it was made of has been replaced under
    the same name by a new one.
    """
    for scope in program.scopes:
        for name, made in _schedules(program, scope.bindings):
            optimizer = (
                keyword(made.value, "optimizer", 0) if isinstance(made.value, ast.Call) else None
            )
            bound = scope.bindings.get(optimizer.id, []) if isinstance(optimizer, ast.Name) else []
            for new in (
                b for b in bound if _line(b) > _line(made) and makes_optimizer(program, b.value)
            ):
                again = any(_line(b) > _line(new) for b in scope.bindings[name])
                steps = [
                    c
                    for c in calls(scope.node)
                    if method(c) == "step" and dotted(c.func) == f"{name}.step"
                ]
                if (
                    not again
                    and not _apart(program, made.statement, new.statement)
                    and any(c.lineno > _line(new) for c in steps)
                ):
                    yield (
                        new.value,
                        (
                            f"{name} of line {_line(made)} goes on with the optimizer before this"
                            " one: the new one keeps its first rate"
                        ),
                    )
                    break
    for owner, attributes in program.attributes.items():
        for name, made in _schedules(program, attributes):
            optimizer = (
                keyword(made.value, "optimizer", 0) if isinstance(made.value, ast.Call) else None
            )
            if (
                made.scope.name != "__init__"
                or len(attributes[name]) > 1
                or f"self.{name}.step" not in {dotted(c.func) for c in calls(owner)}
            ):
                continue
            for new in (
                b
                for b in attributes.get(last_name(optimizer), ())
                if b.scope is not made.scope and makes_optimizer(program, b.value)
            ):
                early = any(caller is made.scope for _, caller in program.call_sites[new.scope])
                if not early and not any(
                    is_scheduler_origin(o)
                    for c in calls(new.scope.node)
                    for o in program.origins(c, new.scope)
                ):
                    yield (
                        new.value,
                        (
                            f"self.{name} goes on with the optimizer that it was made of: the new"
                            " one keeps its first rate"
                        ),
                    )


def _schedules(
    program: Program, bindings: dict[str, list[Binding]]
) -> Iterator[tuple[str, Binding]]:
    """The names that are bound to a schedule."""
    for name, bound in bindings.items():
        for b in bound:
            made = (
                b.value
                if b.how == "assign"
                and b.index is None
                and isinstance(b.value, ast.Call)
                and SCHEDULES.search(last_name(b.value.func))
                else None
            )
            if made is not None and any(
                is_scheduler_origin(o) and o.call is made for o in program.origins(made, b.scope)
            ):
                yield name, b


def _apart(program: Program, one: ast.AST, other: ast.AST) -> bool:
    """Whether two statements stand in the two branches of one condition: never both are run."""
    around = [one, *program.ancestors(one)], [other, *program.ancestors(other)]
    return any(
        any(s in around[0] for s in a.body) and any(s in around[1] for s in a.orelse)
        for a in around[0]
        if isinstance(a, ast.If) and a in around[1]
    )


def _line(binding: Binding) -> int:
    return getattr(binding.statement, "lineno", 0)
