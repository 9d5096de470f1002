"""Rule BH137: the learning rate is changed in a variable, not in the optimizer."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_optimizer, is_optimizer_origin
from training.review.lookups import calls_within, names_of
from training.review.program import Program
from training.review.sides import reads_in
from training.review.syntax import (
    calls,
    identifiers,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    receiver,
    words,
)

RATES = {"lr", "learning_rate", "rate"}
SHOWS = {
    "print", "info", "debug", "write", "set_postfix", "append", "log", "add_scalar",
    "set_description", "log_metric",
}  # fmt: skip


@rule("BH137")
def rate_changed_in_a_name(subject: Subject) -> Iterator[Place]:
    """A name that an optimizer of the same function was given as its rate is made of itself in a
    loop, and nothing but messages reads it there.
    """
    program = subject.program
    yield from _computed_for_nothing(program)
    yield from _not_in_groups(program)
    if "param_groups" in program.identifiers or not calls_within(program, "torch.optim."):
        return
    for call in program.all_calls:
        given = keyword(call, "lr", 1)
        scope = program.scope(call)
        if not isinstance(given, ast.Name) or not any(
            is_optimizer_origin(o) for o in program.origins(call, scope)
        ):
            continue
        around = program.ancestors(call)
        loops = {a for a in around if isinstance(a, (ast.For, ast.While))}
        if any(
            isinstance(b.value, ast.Call)
            and program.is_torch(b.value.func, "tensor", "full", "ones", "zeros")
            for b in scope.bindings.get(given.id, ())
        ):
            continue  # a tensor that is changed in place is the one that the optimizer holds
        for binding in scope.bindings.get(given.id, ()):
            inside = [
                a
                for a in program.ancestors(binding.statement)
                if isinstance(a, (ast.For, ast.While)) and a not in loops
            ]
            own = binding.how == "augment" or (
                binding.how == "assign" and given.id in names_read(binding.value)
            )
            if (
                own
                and inside
                and not loops
                and not _read_otherwise(program, given, {call, binding.statement})
            ):
                yield (
                    binding.statement,
                    f"{given.id} changes, and the optimizer keeps the rate that it was made with",
                    inside[-1],
                )
                break


def _not_in_groups(program: Program) -> Iterator[Place]:
    """`optimizer.lr = rate`, which sets an attribute that no optimizer of torch reads; and a
    function that is to adjust the rate and does not touch the optimizer that it is given.
    """
    for node in program.nodes[ast.Assign]:
        for target in node.targets:
            if (
                isinstance(target, ast.Attribute)
                and target.attr in RATES
                and _is_torchs(program, target.value)
            ):
                yield (
                    node,
                    (
                        f"{ast.unparse(target)} is read by nothing: an optimizer's rates are those"
                        " of its param_groups"
                    ),
                )
    for scope in program.scopes:
        given = [p for p in scope.parameters if p in ("optimizer", "opt", "optim")]
        if (
            not given
            or not words(scope.name) & {"adjust", "set", "update", "change", "decay"}
            or not words(scope.name) & {"lr", "rate"}
        ):
            continue
        body = getattr(scope.node, "body", [])
        if all(
            isinstance(s, (ast.Pass, ast.Raise))
            or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
            for s in body
        ):
            continue  # for other classes to fill in
        if not any(n.id == given[0] for n in nodes_of(scope.node, ast.Name)) and any(
            len(c.args) for c, _ in program.call_sites[scope]
        ):
            yield (
                scope.node,
                (
                    f"{scope.name} is given {given[0]} and leaves it as it is: the rate that it"
                    " computes reaches no parameter"
                ),
            )


def _is_torchs(program: Program, node: ast.expr) -> bool:
    """Whether it is an optimizer of torch, as far as the file tells; by its name alone where the
    file says nothing of it.
    """
    scope = program.scope(node)
    made = program.origins(node, scope)
    return (
        any(is_optimizer_origin(o) for o in made)
        if made
        else isinstance(node, ast.Name)
        and node.id in ("optimizer", "opt")
        and is_optimizer(program, node, scope)
    )


def _computed_for_nothing(program: Program) -> Iterator[Place]:
    """`lr = rate_at(step)` in a loop with an optimizer's step, where nothing reads that name."""
    for scope in program.scopes:
        for name, bindings in scope.bindings.items():
            if (
                not words(name) & {"lr", "rate"}
                or name.startswith("_")
                or any(isinstance(n, ast.Name) for n in reads_in(scope, name))
            ):
                continue
            for b in bindings:
                loops = [
                    a for a in program.ancestors(b.statement) if isinstance(a, (ast.For, ast.While))
                ]
                helper = (
                    isinstance(b.value, ast.Call)
                    and b.index is None
                    and program.callees_by_name(b.value, scope) is not None
                )
                steps = [
                    c
                    for loop in loops
                    for c in calls(loop)
                    if method(c) == "step" and is_optimizer(program, receiver(c), scope)
                ]
                if (
                    helper
                    and isinstance(b.statement, ast.Assign)
                    and steps
                    and not {
                        n for s in program.scopes if s.parent is scope for n in identifiers(s.node)
                    }
                    & {name}
                ):
                    yield (
                        b.statement,
                        f"{name} is computed for each step, and nothing gives it to the optimizer",
                        loops[-1],
                    )
                    break


def _read_otherwise(program: Program, name: ast.Name, but: set[ast.AST]) -> bool:
    """Whether the name is read in its function by anything but these, a message or a test."""
    scope = program.scope(name)
    for use in names_of(program, name.id):
        if not (isinstance(use.ctx, ast.Load) and program.scope(use) is scope):
            continue
        around = [use, *program.ancestors(use)]
        shown = any(
            isinstance(a, ast.Call) and (method(a) in SHOWS or last_name(a.func) in SHOWS)
            for a in around
        ) or any(isinstance(a, (ast.Compare, ast.FormattedValue)) for a in around)
        if not shown and not but & set(around):
            return True
    return False
