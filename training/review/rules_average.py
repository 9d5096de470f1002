"""Rule BH223: a sum is divided by a count of something else."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.additions import Addition, additions
from training.review.findings import Place, Subject, rule
from training.review.lookups import attributes_of
from training.review.loops import innermost_loop
from training.review.program import Binding, Program, Scope
from training.review.provenance import is_loader
from training.review.syntax import (
    calls,
    constant,
    dotted,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes_of,
    receiver,
    walk,
    words,
)
from training.review.values import loss_kind, reaching


@rule("BH223")
def sum_divided_by_other_count(subject: Subject) -> Iterator[Place]:
    """A loop over batches adds up means and the sum is divided by the number of rows; or means
    times rows, divided by the number of batches.
    """
    program = subject.program
    for loop in program.nodes[ast.For]:
        scope = program.scope(loop)
        loader = is_loader(program, loop.iter, scope)
        added = [a for a in additions(loop) if innermost_loop(program, a.statement) is loop]
        if not added or (loader and single_rows(program, loop, scope)):
            continue
        divided = [
            n
            for n in own_nodes_of(scope.node, ast.BinOp)
            if isinstance(n.op, ast.Div) and n.lineno >= loop.lineno
        ]
        names = {dotted(_bare(n.left)) for n in divided}
        sums = {
            a.name: kind
            for a in added
            if a.name in names and (kind := _summed(program, a.value, loop, scope))
        }
        for ratio in divided if sums else ():
            name = dotted(_bare(ratio.left))
            counted = _counted(program, ratio.right, loop, scope, added)
            if not loader and (
                counted != "rows" or last_name(ratio.right) not in {a.name for a in added}
            ):
                continue  # only what is counted batch by batch says that it goes over batches
            if (
                name in sums
                and counted
                and counted != sums[name]
                and _only_sum(name, added, scope, loop)
            ):
                told = (
                    "adds up means of batches, and is divided by rows"
                    if sums[name] == "batches"
                    else "is weighed by rows, and divided by batches"
                )
                yield ratio, f"{name} {told}: {ast.unparse(ratio)} is wrong by the batch size", loop


def single_rows(program: Program, loop: ast.For, scope: Scope) -> bool:
    """Whether a loader that is made in this file gives batches of one."""
    head = (
        loop.iter.args[0]
        if isinstance(loop.iter, ast.Call)
        and last_name(loop.iter.func) in ("enumerate", "tqdm")
        and loop.iter.args
        else loop.iter
    )
    made = [o.call for o in program.origins(head, scope) if o.last == "DataLoader"]
    return any(
        constant(keyword(c, "batch_size", 1)) in (1, None)
        and not isinstance(keyword(c, "batch_size", 1), (ast.Name, ast.Attribute, ast.BinOp))
        for c in made
    )


def _only_sum(name: str, added: list[Addition], scope: Scope, loop: ast.For) -> bool:
    """Whether the loop changes a sum at one place alone and nothing divides it on the way."""
    inside, adding = set(walk(loop)), [a.statement for a in added if a.name == name]
    others = [
        b
        for b in scope.bindings.get(name, ())
        if b.statement in inside
        and b.statement not in adding
        and not isinstance(b.statement, ast.AugAssign)
    ]
    return len(adding) == 1 and not others


def _bare(value: ast.expr) -> ast.expr:
    """What is left of `total.item()`, `float(total)`, `100 * total`."""
    while isinstance(value, ast.Call):
        inner = (
            receiver(value)
            if method(value) in ("item", "cpu", "detach")
            else value.args[0]
            if last_name(value.func) == "float" and value.args
            else None
        )
        if inner is None:
            return value
        value = inner
    return value


def _summed(program: Program, value: ast.expr, loop: ast.For, scope: Scope) -> str:
    """By what a term of the sum is weighed: `rows`, or `batches` where it is a mean over one; empty
    where that is not certain.
    """
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        sides = (value.left, value.right)
        if any(_rows(program, s, loop, scope) for s in sides):
            other = [s for s in sides if not _rows(program, s, loop, scope)]
            return (
                "rows"
                if other
                and not isinstance(other[0], ast.Constant)
                and not _is_sum(program, other[0], scope)
                else ""
            )
        return ""
    bare = _bare(value)
    share = (
        method(bare) == "mean"
        and isinstance(bare, ast.Call)
        and not bare.args
        and bool(nodes_of(bare, ast.Compare))
    )
    if _added_over_rows(program, bare, scope):
        return "rows"
    return "batches" if share or is_mean(program, bare, scope) else ""


def _added_over_rows(program: Program, value: ast.expr, scope: Scope) -> bool:
    """Whether a value is one loss that is summed over the rows of the batch, and nothing else."""
    found = reaching(program, value, scope) if isinstance(value, ast.Name) else [value]
    lost = found[0] if len(found) == 1 else None
    return (
        isinstance(lost, ast.Call)
        and bool(loss_kind(program, lost, scope))
        and constant(keyword(lost, "reduction")) == "sum"
    )


def _rows(program: Program, node: ast.expr, loop: ast.For, scope: Scope, depth: int = 0) -> bool:
    """Whether it is the number of rows of a batch: `len(y)`, `x.size(0)`, `x.shape[0]`, or a name
    for one that is set in the loop.
    """
    inside = {n.id for n in nodes_of(loop, ast.Name) if isinstance(n.ctx, ast.Store)}
    match node:
        case ast.Call(args=[argument]) if last_name(node.func) == "len":
            return bool(names_read(argument) & inside)
        case ast.Call() if method(node) == "numel" and not node.args:
            return bool(names_read(node.func) & inside)
        case ast.Call() if method(node) == "size" and len(node.args) == 1:
            return constant(node.args[0]) == 0 and bool(names_read(node.func) & inside)
        case (
            ast.Subscript(value=ast.Attribute(attr="shape"))
            | ast.Subscript(value=ast.Call(func=ast.Attribute(attr="size")))
        ):
            return constant(node.slice) == 0 and bool(names_read(node.value) & inside)
        case ast.Name() if depth < 2:
            made = [
                b
                for b in scope.bindings.get(node.id, ())
                if b.statement in set(walk(loop)) and b.how == "assign" and b.index is None
            ]
            return bool(made) and all(_rows(program, b.value, loop, scope, depth + 1) for b in made)
    return False


def _losses(
    program: Program, value: ast.expr, scope: Scope, depth: int = 0
) -> list[tuple[ast.Call, Scope]]:
    """The losses of which a value is made."""
    found = [(c, scope) for c in calls(value) if loss_kind(program, c, scope)]
    for call in calls(value) if isinstance(value, ast.Call) and not found and depth < 3 else ():
        for own in program.callees(call, scope):
            found += [
                loss
                for n in own_nodes_of(own.node, ast.Return)
                if n.value
                for loss in _losses(program, n.value, own, depth + 1)
            ]
    within = {n for c, _ in found for part in (c.func, *c.args) for n in walk(part)}
    for name in (n for n in nodes_of(value, ast.Name) if n not in within and depth < 3):
        for behind in reaching(program, name, scope):
            found += _losses(program, behind, scope, depth + 1)
    return found


def is_mean(program: Program, value: ast.expr, scope: Scope) -> bool:
    """Whether a value is made of losses that are all means over the batch."""
    if not isinstance(value, (ast.Name, ast.Call, ast.Attribute)):
        return False
    found = _losses(program, value, scope)
    return (
        bool(found)
        and all(_mean_reduction(program, c, s) for c, s in found)
        and not _is_sum(program, value, scope)
    )


def _is_sum(program: Program, value: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Whether a sum or a multiplication by something is anywhere in what a value was made of, as
    far as it is in sight.
    """
    losses = [c for c in calls(value) if loss_kind(program, c, scope)]
    within = {
        n for c in losses for part in (c.func, *c.args) for n in walk(part)
    }  # scores and targets: any sum there is none of losses
    if any(
        (c not in within and method(c) == "sum")
        or constant(keyword(c, "reduction")) in ("sum", "none")
        for c in calls(value)
    ):
        return True
    if depth and any(
        isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult) and not _weighs(n)
        for n in walk(value)
        if n not in within
    ):
        return True
    names = [n for n in nodes_of(value, ast.Name) if n not in within] if depth < 3 else []
    found = any(
        _is_sum(program, behind, scope, depth + 1)
        for n in names
        for behind in reaching(program, n, scope)
    )
    return found or any(
        not _mean_reduction(program, c, s) for c, s in _losses(program, value, scope)
    )


def _weighs(product: ast.BinOp) -> bool:
    """Whether one side is a number that is written there, as the weight of a term."""
    return isinstance(constant(product.left), (int, float)) or isinstance(
        constant(product.right), (int, float)
    )


def _mean_reduction(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a loss is left at its own reduction, the mean."""
    if any(isinstance(n.ctx, ast.Store) for n in attributes_of(program, "reduction")):
        return False  # set after it was made
    made = (
        [call]
        if program.resolve(call.func).startswith("torch.")
        else [o.call for o in program.origins(call.func, scope)]
    )
    unusual = {"reduction", "size_average", "reduce"}
    return bool(made) and all(
        not unusual & {str(k.arg) for k in c.keywords}
        or constant(keyword(c, "reduction")) == "mean"
        for c in made
    )


def _counted(
    program: Program,
    node: ast.expr,
    loop: ast.For,
    scope: Scope,
    added: list[Addition],
    depth: int = 0,
) -> str:
    """What a divisor counts: `rows` or `batches`."""
    if isinstance(node, ast.Call) and last_name(node.func) == "max" and len(node.args) == 2:
        node = node.args[0] if isinstance(node.args[1], ast.Constant) else node.args[1]
    if isinstance(node, ast.Call) and last_name(node.func) == "len" and node.args:
        head = (
            loop.iter.args[0]
            if isinstance(loop.iter, ast.Call)
            and loop.iter.args
            and last_name(loop.iter.func) in ("enumerate", "tqdm")
            else loop.iter
        )
        if isinstance(node.args[0], ast.Attribute) and node.args[0].attr == "dataset":
            return "rows" if dotted(node.args[0].value) == dotted(head) != "" else ""
        return "batches" if dotted(node.args[0]) == dotted(head) != "" else ""
    if not isinstance(node, ast.Name):
        return ""
    steps = [a for a in added if a.name == node.id]
    if steps:
        rows = all(_rows(program, a.value, loop, scope) for a in steps)
        once = all(constant(a.value) == 1 and program.parents[a.statement] is loop for a in steps)
        return "rows" if rows else "batches" if once else ""
    if not scope.bindings.get(node.id) and {"dataset", "size"} <= {
        w.removesuffix("s") for w in words(node.id)
    }:
        return "rows"  # of an argument that is called so
    made = [b for b in scope.bindings.get(node.id, ()) if _plain(b)]
    return (
        _counted(program, made[0].value, loop, scope, added, depth + 1)
        if len(made) == len(scope.bindings.get(node.id, ())) == 1 and depth < 2
        else ""
    )


def _plain(binding: Binding) -> bool:
    return binding.how == "assign" and binding.index is None
