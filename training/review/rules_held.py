"""Rules BH407: to BH409: what a module holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.rules_module import is_layer
from training.review.syntax import (
    FUNCTIONS,
    calls,
    constant,
    defaults,
    dotted,
    is_true,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes,
    own_nodes_of,
    receiver,
    walk,
)

MISSPELT = {
    "require_grad",
    "required_grad",
    "requires_gradient",
    "require_gradient",
    "requires_grads",
    "requiresgrad",
    "requiregrad",
    "require_grads",
}
DRAWS = {"randn", "rand", "randint", "randperm", "normal"}
MAKES_TENSORS = (
    "tensor", "zeros", "ones", "arange", "linspace", "eye", "randn", "rand", "randint", "randperm",
    "normal", "full", "as_tensor", "from_numpy", "FloatTensor", "tril", "triu", "hann_window",
)  # fmt: skip


@rule("BH407")
def frozen_by_attribute(subject: Subject) -> Iterator[Place]:
    """`x.requires_grad = …` where x is a loop variable over modules, or was made as one; or a name
    that only resembles it.
    """
    program = subject.program
    for node in program.nodes[ast.Assign]:
        if isinstance(node.targets[0], ast.Attribute) and node.targets[0].attr in MISSPELT:
            yield (
                node,
                (
                    f"{node.targets[0].attr} is no attribute of a tensor or module: setting it"
                    " freezes nothing"
                ),
            )
        if not (
            isinstance(node.targets[0], ast.Attribute) and node.targets[0].attr == "requires_grad"
        ):
            continue
        owner, scope = node.targets[0].value, program.scope(node)
        if isinstance(owner, ast.Name) and owner.id == "self":
            continue  # an attribute of one's own, which may be read
        bound = scope.bindings.get(owner.id, []) if isinstance(owner, ast.Name) else []
        over = [
            last_name(b.value.func)
            for b in bound
            if b.how == "loop"
            and isinstance(b.value, ast.Call)
            and b.statement in program.ancestors(node)
        ]
        indices = [
            b.index for b in bound if b.how == "loop" and b.statement in program.ancestors(node)
        ]
        looped = (
            bool(over)
            and over[0] in ("children", "modules", "named_children", "named_modules")
            and indices[0] in (None, 1)
        )
        made = any(
            o.name.startswith("torch.nn.")
            and not o.last.endswith("Parameter")
            and is_layer(program, o.call)
            for o in program.origins(owner, scope)
        )
        made = made or any(
            o.name.startswith("torchvision.models.")
            or program.is_module(program.classes.get(o.name))
            for o in program.origins(owner, scope)
        )
        made = made or any(
            method(c) == "parameters" and dotted(receiver(c)) == dotted(owner) != ""
            for c in program.all_calls
        )
        if looped or (made and not isinstance(owner, ast.Subscript)):
            yield (
                node,
                f"{ast.unparse(owner)} is a module: setting requires_grad on it freezes nothing",
            )


STATISTICS = {
    "mean", "std", "var", "median", "quantile", "amin", "amax", "min", "max", "sum", "nanmean",
}  # fmt: skip


@rule("BH408")
def tensor_not_a_buffer(subject: Subject) -> Iterator[Place]:
    """`__init__` keeps a new tensor as an attribute, and `forward` computes with it without moving
    it.
    """
    program = subject.program
    for owner in program.module_classes:
        init, forward = (
            program.methods[owner].get("__init__"),
            program.methods[owner].get("forward"),
        )
        if init is None or forward is None:
            continue
        for name, bindings in program.attributes[owner].items():
            made = [b for b in bindings if b.scope is init and _makes_tensor(program, b.value)]
            if made and (by := _fitted(program, owner, name, init, forward)):
                yield (
                    made[0].value,
                    (
                        f"self.{name} is set by {by}, read by forward, and is in no checkpoint:"
                        " what is loaded computes with the one of __init__"
                    ),
                )
                continue
            if (
                not made
                or len(bindings) > 1
                or (
                    isinstance(made[0].value, ast.Call)
                    and keyword(made[0].value, "device") is not None
                )
            ):
                continue
            called = [
                forward,
                *(
                    m
                    for c in calls(forward.node)
                    if dotted(receiver(c)) == "self"
                    for m in program.callees(c, forward)
                ),
            ]
            uses = [
                n
                for m in called
                for n in own_nodes_of(m.node, ast.Attribute)
                if n.attr == name and dotted(n.value) == "self"
            ]
            if uses and _wants_gradient(made[0].value) and not _learns(program, owner, name):
                yield (
                    made[0].value,
                    (
                        f"self.{name} asks for a gradient and is no nn.Parameter: no optimizer of"
                        " parameters() moves it, no checkpoint has it"
                    ),
                )
                continue
            moved = any(
                isinstance(program.parents[n], ast.Attribute) or _moved_slice(program, n)
                for n in uses
            )
            moved |= "set_default_device" in program.called_names
            drawn = _is_drawn(made[0].value)
            if uses and (drawn or not moved) and not _learns(program, owner, name):
                lost = (
                    "what was drawn at random is in no checkpoint"
                    if drawn
                    else "it does not follow the module to a device or into a checkpoint"
                )
                yield made[0].value, f"self.{name} is neither parameter nor buffer: {lost}"


def _moved_slice(program: Program, node: ast.AST) -> bool:
    """Whether a part of it is moved, as `self.places[:n].to(x.device)`, or it is made anew where it
    belongs by `torch.as_tensor(self.mean, device=x.device)`.
    """
    above = program.parents[node]
    if isinstance(above, ast.Subscript) and above.value is node:
        return isinstance(program.parents[above], ast.Attribute)
    if isinstance(above, ast.Subscript):
        return True  # an index on the CPU is taken by tensors of any device
    if isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name):
        name = above.targets[0].id
        return any(
            method(c) in ("to", "type_as", "cuda") and dotted(receiver(c)) == name
            for c in own_nodes_of(program.scope(above).node, ast.Call)
        )
    if not isinstance(above, ast.Call):
        return False
    called = program.callees(above, program.scope(above))
    helps = any(
        isinstance(c, ast.Call) and method(c) in ("to", "type_as")
        for f in called
        for c in walk(f.node)
    )
    return helps or keyword(above, "device") is not None


def _fitted(program: Program, owner: ast.ClassDef, name: str, init: Scope, forward: Scope) -> str:
    """The method by which a tensor is computed from rows that it is given, in a file that loads
    weights: not the class's forward, nor the one that loads.
    """
    if "load_state_dict" not in program.called_names or {
        "get_extra_state",
        "state_dict",
        "_load_from_state_dict",
    } & set(program.methods[owner]):
        return ""
    reads = any(
        n.attr == name and dotted(n.value) == "self"
        for n in own_nodes_of(forward.node, ast.Attribute)
    )
    for binding in (
        program.attributes[owner][name] if reads and not _learns(program, owner, name) else ()
    ):
        given = names_read(binding.value) & set(binding.scope.parameters[1:])
        computed = any(last_name(n.func) in STATISTICS for n in calls(binding.value))
        if binding.scope not in (init, forward) and given and computed:
            return binding.scope.name
    return ""


def _makes_tensor(program: Program, value: ast.expr) -> bool:
    """Whether a value is a new tensor, or a random one under arithmetic."""
    if isinstance(value, ast.BinOp):
        return any(
            _makes_tensor(program, side) and _is_drawn(side) for side in (value.left, value.right)
        )
    if method(value) == "requires_grad_" and (made := receiver(value)) is not None:
        return _makes_tensor(program, made)
    of_no_dimension = (
        isinstance(value, ast.Call)
        and last_name(value.func) == "tensor"
        and bool(value.args)
        and isinstance(constant(value.args[0]), (int, float))
    )
    return (
        isinstance(value, ast.Call)
        and not of_no_dimension
        and program.resolve(value.func) in {f"torch.{m}" for m in MAKES_TENSORS}
    )


def _wants_gradient(value: ast.expr) -> bool:
    """Whether a tensor is made with `requires_grad`."""
    return isinstance(value, ast.Call) and (
        method(value) == "requires_grad_" or is_true(keyword(value, "requires_grad"))
    )


def _is_drawn(value: ast.expr) -> bool:
    """Whether a tensor is drawn at random: a network that is made anew has another one, moved to
    the right device or not.
    """
    return any(last_name(n.func) in DRAWS for n in calls(value))


def _learns(program: Program, owner: ast.ClassDef, name: str) -> bool:
    """Whether the class registers or moves the tensor elsewhere."""
    return (
        any(n.value == name for n in nodes_of(owner, ast.Constant))
        or "_apply" in program.methods[owner]
        or "to" in program.methods[owner]
    )


@rule("BH409")
def mutable_default(subject: Subject) -> Iterator[Place]:
    """A parameter with a list, dict or set as its default is changed in the function."""
    for scope in subject.program.scopes:
        if not isinstance(scope.node, FUNCTIONS):
            continue
        for name, default in defaults(scope.node).items():
            if not isinstance(default, (ast.List, ast.Dict, ast.Set)) or name in scope.bindings:
                continue
            for node in own_nodes(scope.node):
                changed = (
                    method(node)
                    in ("append", "extend", "update", "add", "insert", "setdefault", "pop")
                    and dotted(receiver(node)) == name
                )
                stored = isinstance(node, (ast.Assign, ast.AugAssign)) and any(
                    isinstance(t, ast.Subscript) and dotted(t.value) == name
                    for t in getattr(node, "targets", [getattr(node, "target", None)])
                )
                if changed or stored:
                    yield (
                        default,
                        (
                            f"the default of {name} is shared by all calls, and changed in line"
                            f" {getattr(node, 'lineno', '?')}"
                        ),
                    )
                    break
