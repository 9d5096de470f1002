"""What a rank computes of its own share of the rows, and where it meets what the other ranks have
computed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.leaves import leaves
from training.review.program import Program, Scope, argument
from training.review.syntax import (
    calls,
    constant,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes,
    own_nodes_of,
    receiver,
    walk,
    words,
)
from training.review.values import loss_kind

DEPTH = 4
TOGETHER = {"stack", "tensor", "cat", "as_tensor", "hstack", "FloatTensor"}
SAME = {
    "item", "detach", "clone", "float", "double", "to", "cpu", "cuda", "reshape", "view", "squeeze",
    "unsqueeze", "contiguous",
}  # fmt: skip
OF_RANKS = {"world", "ranks", "replicas", "nprocs", "processes", "gpus", "devices"}
MEETS = ("reduce", "gather", "sync", "all_to_all", "broadcast")


def adds_up(program: Program, call: ast.Call, depth: int = 0) -> bool:
    """Whether a call is a collective that brings results of ranks together, or of a function or
    object that may do so.
    """
    name = last_name(call.func).lower()
    if any(part in name for part in MEETS) or name in ("send", "recv", "compute"):
        return True
    return depth < DEPTH and any(
        adds_up(program, c, depth + 1)
        for f in program.callees(call, program.scope(call))
        for c in calls(f.node)
    )


def derived(scope: Scope, names: set[str]) -> set[str]:
    """The names of a function whose values are computed from these, these included; also what is
    filled by `append` and the like.
    """
    found, before = set(names), set[str]()
    while found != before:
        before = set(found)
        for name, bindings in scope.bindings.items():
            if any(names_read(b.value) & found for b in bindings):
                found.add(name)
        for node in own_nodes(scope.node):
            if (
                isinstance(node, ast.Call)
                and method(node) in ("append", "extend", "update", "add", "add_", "put")
                and _given(node) & found
            ):
                found |= names_read(receiver(node))
            elif isinstance(node, (ast.Assign, ast.AugAssign)) and names_read(node.value) & found:
                found |= {
                    n
                    for t in getattr(node, "targets", [getattr(node, "target", None)])
                    for n in names_read(t)
                }
    return found


def _given(call: ast.Call) -> set[str]:
    return {n for a in (*call.args, *(k.value for k in call.keywords)) for n in names_read(a)}


def on_one_share(program: Program, loader: ast.Call) -> Iterator[ast.For]:
    """Loops without gradients over a loader whose results meet those of no other rank, neither
    there nor with a caller.
    """
    for loop in program.nodes[ast.For]:
        scope, over = program.scope(loop), loop.iter
        while (
            isinstance(over, ast.Call)
            and last_name(over.func) in ("enumerate", "tqdm", "iter")
            and over.args
        ):
            over = over.args[0]
        if (
            isinstance(over, (ast.Name, ast.Attribute))
            and any(leaf.node is loader for leaf in leaves(program, over, scope))
            and keeps_to_itself(program, loop)
        ):
            yield loop


def keeps_to_itself(program: Program, loop: ast.For) -> bool:
    """Whether a loop neither trains nor brings what it computes to other ranks, there or with a
    caller.
    """
    trains = any(method(c) in ("backward", "step") for c in calls(loop))
    gathers = any(adds_up(program, c) for c in calls(loop))
    stored = {n.id for n in nodes_of(loop, ast.Name) if isinstance(n.ctx, ast.Store)}
    stored |= {n for s in nodes_of(loop, ast.AugAssign) for n in names_read(s.target)}
    stored |= {
        n
        for c in calls(loop)
        if method(c) and isinstance(program.parents[c], ast.Expr)
        for n in names_read(receiver(c))
    }
    return (
        not trains
        and not gathers
        and bool(stored)
        and not _met(program, program.scope(loop), stored)
    )


def _met(program: Program, scope: Scope, names: set[str], depth: int = 0) -> bool:
    """Whether values of a function, or what it returns of them to a caller, meet those of other
    ranks; an object of which that is unknown may do so.
    """
    found = derived(scope, names)
    outside = {n for n in names if n not in scope.bindings and n not in scope.parameters}
    if (
        outside
        and scope.parent is not None
        and scope.parent.name
        and _met(program, scope.parent, outside, depth + 1)
    ):
        return True  # a function within another one, which adds up what this one counts
    if depth > DEPTH or any(
        adds_up(program, c) and found & names_read(c) for c in calls(scope.node)
    ):
        return True
    if any(
        any(isinstance(t, ast.Attribute) for t in n.targets) and names_read(n.value) & found
        for n in own_nodes_of(scope.node, ast.Assign)
    ):
        return True  # kept for another method
    if (
        scope.parent is not None
        and scope.parent.name
        and _met(program, scope.parent, names - set(scope.bindings), depth + 1)
    ):
        return True  # of the function around it
    if (
        "self" in names
        and scope.owner is not None
        and any(adds_up(program, c) for c in calls(scope.owner))
    ):
        return True
    given = [
        (argument(call, scope, name), caller)
        for name in names & set(scope.parameters)
        for call, caller in program.call_sites[scope]
    ]
    if any(
        value is not None and _met(program, caller, names_read(value), depth + 1)
        for value, caller in given
    ):
        return True  # what the caller gave is filled
    returns = any(
        isinstance(n, (ast.Return, ast.Yield)) and names_read(n.value) & found
        for n in own_nodes(scope.node)
    )
    return returns and any(
        _handed_on(program, call, caller, depth) for call, caller in program.call_sites[scope]
    )


def _handed_on(program: Program, call: ast.Call, caller: Scope, depth: int) -> bool:
    around = [a for a in program.ancestors(call) if isinstance(a, ast.Call)]
    if any(adds_up(program, a) for a in around):
        return True
    bound = {
        name
        for name, bindings in caller.bindings.items()
        if any(b.value is call or call in walk(b.value) for b in bindings)
    }
    if any(isinstance(a, ast.Return) for a in program.ancestors(call)):
        return (
            any(_handed_on(program, c, s, depth + 1) for c, s in program.call_sites[caller])
            if depth < DEPTH
            else True
        )
    return _met(program, caller, bound, depth + 1) if bound else False


# ------------------------------------------------------------------------------------------- means


def means_over_rows(program: Program, node: ast.expr, scope: Scope) -> list[ast.expr]:
    """The means of a rank's own rows that a value is, where it can be nothing else."""
    found = [
        (leaf.node, is_local_mean(program, leaf.node, leaf.scope))
        for leaf in leaves(program, node, scope)
    ]
    return [n for n, mean in found if mean] if found and all(mean for _, mean in found) else []


def is_local_mean(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Whether a value is a quotient by what a loop of the same function counts, a mean over a
    tensor or a loss, or a tensor of such alone.
    """
    if depth > DEPTH:
        return False
    if isinstance(node, ast.Name):
        ends = leaves(program, node, scope)
        return all(
            leaf.node is not node and is_local_mean(program, leaf.node, leaf.scope, depth + 1)
            for leaf in ends
        )
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Div) and _is_counted(program, node.right, scope)
    if isinstance(node, (ast.List, ast.Tuple)):
        return bool(node.elts) and all(
            is_local_mean(program, e, scope, depth + 1) for e in node.elts
        )
    if not isinstance(node, ast.Call):
        return False
    if method(node) in SAME and (inner := receiver(node)) is not None:
        return is_local_mean(program, inner, scope, depth + 1)
    if program.is_torch(node.func, *TOGETHER) and node.args:
        return is_local_mean(program, node.args[0], scope, depth + 1)
    if (
        last_name(node.func) == "mean"
        and not node.keywords
        and len(node.args) <= (0 if not program.resolve(node.func) else 1)
    ):
        return True
    return (
        bool(loss_kind(program, node, scope))
        and not node.keywords
        and "reduction" not in _made_with(program, node, scope)
    )


def _made_with(program: Program, call: ast.Call, scope: Scope) -> set[str]:
    """The names of arguments with which the object was made that is called."""
    return {str(k.arg) for o in program.origins(call.func, scope) for k in o.call.keywords}


def _is_counted(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a number is counted up in a loop of this function and not reduced, or is the number
    of a loader's batches.
    """
    if isinstance(node, ast.Call) and last_name(node.func) in ("len", "max", "float") and node.args:
        return (
            _is_of_share(program, node.args[0], scope)
            if last_name(node.func) == "len"
            else _is_counted(program, node.args[0], scope)
        )
    if method(node) in SAME | {"clamp", "clamp_min"} and (inner := receiver(node)) is not None:
        return _is_counted(program, inner, scope)
    text = ast.unparse(node)
    root = text.partition("[")[0]
    if any(adds_up(program, c) and {root} & names_read(c) for c in calls(scope.node)):
        return False
    sums = [
        n
        for n in own_nodes_of(scope.node, ast.AugAssign)
        if isinstance(n.op, ast.Add) and ast.unparse(n.target) in (text, root)
    ]
    return any(isinstance(a, (ast.For, ast.While)) for n in sums for a in program.ancestors(n))


def _is_of_share(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a collection is the batches of a loader, or a list that a loop of this function fills
    and nobody gathers.
    """
    if {"loader", "dataloader", "dl", "batches"} & words(last_name(node)):
        return True
    fills = [
        c
        for c in calls(scope.node)
        if method(c) == "append"
        and isinstance(node, ast.Name)
        and last_name(receiver(c)) == node.id
    ]
    gathered = any(
        adds_up(program, c) and names_read(node) & names_read(c) for c in calls(scope.node)
    )
    return not gathered and any(
        isinstance(a, (ast.For, ast.While)) for c in fills for a in program.ancestors(c)
    )


def divided_later(program: Program, call: ast.Call, given: ast.expr, scope: Scope) -> bool:
    """Whether what was reduced is divided or scaled afterwards, in this function or by one that
    gets it back, or the number of ranks is spoken of.
    """
    return _divided(program, scope, names_read(given), call.lineno, 0)


def _divided(program: Program, scope: Scope, names: set[str], line: int, depth: int) -> bool:
    found = derived(scope, names)
    for node in own_nodes(scope.node):
        if getattr(node, "lineno", 0) < line:
            continue
        divides = isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(
            node.op, (ast.Div, ast.Mult)
        )
        by_call = isinstance(node, ast.Call) and method(node) in (
            "div",
            "div_",
            "mul",
            "mul_",
            "divide",
            "true_divide",
        )
        if (divides or by_call) and names_read(node) & found:
            return True
        plain = isinstance(node, ast.stmt) and not isinstance(
            node, (ast.For, ast.While, ast.If, ast.With, ast.Try)
        )
        if (
            plain
            and names_read(node) & found
            and any(
                OF_RANKS & words(n)
                for n in names_read(node) | {last_name(c.func) for c in calls(node)}
            )
        ):
            return True
    if depth > DEPTH:
        return True
    back = [n for n in own_nodes_of(scope.node, ast.Return) if names_read(n.value) & found]
    passed = bool(names & set(scope.parameters))  # it is changed in place
    for site, caller in program.call_sites[scope] if back or passed else ():
        bound = {
            name
            for name, bindings in caller.bindings.items()
            if any(site in walk(b.value) for b in bindings)
        }
        bound |= _given(site) if passed else set()
        divided = any(
            isinstance(a, ast.BinOp) and isinstance(a.op, (ast.Div, ast.Mult))
            for a in program.ancestors(site)
        )
        if divided or (bound and _divided(program, caller, bound, site.lineno, depth + 1)):
            return True
    return False


def is_whole_share(call: ast.Call) -> bool:
    """Whether a sampler gives every rank all rows: it is made for one rank."""
    given = [k.value for k in call.keywords if k.arg == "num_replicas"] + call.args[1:2]
    return bool(given) and constant(given[0]) == 1
