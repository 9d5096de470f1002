"""Calls that pass by the wrapper of a network, and whether a loss comes of them."""

from __future__ import annotations

import ast

from training.review.program import Program
from training.review.syntax import calls, dotted, last_name, names_read, nodes_of
from training.review.trace import Event
from training.review.values import loss_kind

WRAPPERS = {
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "ShardedDataParallel",
}
HARMLESS = {
    "state_dict", "load_state_dict", "parameters", "named_parameters", "buffers", "named_buffers",
    "modules", "named_modules", "children", "named_children", "train", "eval", "to", "cuda", "cpu",
    "zero_grad", "requires_grad_", "apply", "save_pretrained", "generate", "sample",
    "register_forward_hook",
}  # fmt: skip


def past_wrapper(program: Program, event: Event) -> str:
    """The method of the inner network that is called; empty where it is none, or one that has no
    part in gradients.
    """
    function = event.call.func
    bound = program.bindings_of(function, event.scope)
    if bound and all(
        b.index is None and isinstance(b.value, ast.Attribute) and b.value.attr == "module"
        for b in bound
    ):
        return "module"
    parts = dotted(function).split(".")
    inner = program.bindings_of(ast.Name(parts[0], ast.Load()), event.scope)
    if (
        len(parts) == 2
        and len(inner) == 1
        and isinstance(inner[0].value, ast.Attribute)
        and inner[0].value.attr == "module"
        and inner[0].how == "assign"
    ):
        parts = [parts[0], "module", parts[1]]  # core = ddp.module
    if "module" not in parts[1:]:
        return ""
    after = parts[parts.index("module", 1) + 1 :]
    if _is_no_wrapper(program, parts, event):
        return ""
    if _frozen_here(event, parts):
        return ""
    if after and not event.call.args and not event.call.keywords:
        return ""  # a function of the weights alone, alike on every rank
    if not after:
        return "module"
    harmless = after[-1] in HARMLESS or after[-1].startswith(
        ("get_", "set_", "log", "update_", "reset_", "freeze", "unfreeze")
    )
    return "" if harmless or len(after) > 2 else after[-1]


def _frozen_here(event: Event, parts: list[str]) -> bool:
    """Whether the function freezes the network before: no gradient of its own is computed."""
    root = ".".join(parts[: parts.index("module", 1)])
    turned = [
        n
        for n in calls(event.scope.node)
        if dotted(n.func) == f"{root}.requires_grad_" and n.lineno < event.call.lineno
    ]
    return any(isinstance(a, ast.Constant) and a.value is False for n in turned for a in n.args)


def _is_no_wrapper(program: Program, parts: list[str], event: Event) -> bool:
    """Whether what has the module is a class of this file that keeps one under that name, or was
    made by something that wraps for another purpose.
    """
    scope = event.scope
    holder = parts[: parts.index("module", 1)]
    if holder == ["self"] and scope.owner is not None:
        made = program.attributes[scope.owner].get("module", [])
        wrapped = any(o.last in WRAPPERS for b in made for o in program.origins(b.value, b.scope))
        return bool(made) and not wrapped
    origins = program.origins(ast.parse(".".join(holder), mode="eval").body, scope)
    return bool(origins) and all(
        o.last not in WRAPPERS and o.name.startswith("torch.") for o in origins
    )


def reaches_loss(program: Program, event: Event, losses: set[str]) -> bool:
    """Whether a result is bound to the loss, or given to a loss function in the same function."""
    statement = program.statement(event.node)
    made = {n.id for t in getattr(statement, "targets", ()) for n in nodes_of(t, ast.Name)}
    if made & losses or any(
        isinstance(a, ast.Call) and loss_kind(program, a, event.scope)
        for a in program.ancestors(event.node)
    ):
        return True
    for node in nodes_of(event.scope.node, ast.Assign):
        if {n for t in node.targets for n in names_read(t)} & losses and names_read(
            node.value
        ) & made:
            return True
    for _ in range(3):  # what is computed of it, and of that again
        for node in nodes_of(event.scope.node, ast.Assign):
            if names_read(node.value) & made:
                made |= {n.id for t in node.targets for n in nodes_of(t, ast.Name)}
    for call in calls(event.scope.node):
        if (
            loss_kind(program, call, event.scope)
            or "loss" in last_name(call.func)
            or "criterion" in last_name(call.func)
        ) and made & {n for a in call.args for n in names_read(a)}:
            return True
    return False
