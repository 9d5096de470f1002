"""Rule BH310: scores [N, 1] against targets [N]."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.flat import is_flat
from training.review.program import Origin, Program, Scope, argument
from training.review.rules_module import STATELESS
from training.review.syntax import (
    constant,
    dotted,
    identifiers,
    keyword,
    last_name,
    method,
    own_nodes_of,
    receiver,
    walk,
)
from training.review.values import loss_calls, reaching

MEASURES = {"abs", "pow", "square", "mean", "norm"}
SCALES = {"fit", "transform", "fit_transform", "inverse_transform"}
RESHAPES = {
    "squeeze", "unsqueeze", "view", "view_as", "reshape", "reshape_as", "flatten", "ravel",
    "expand", "expand_as", "ndim", "dim", "shape", "size",
}  # fmt: skip
KEEPS_SHAPE = {"float", "to", "cuda", "double", "clone", "detach", "cpu"}


@rule("BH310")
def loss_broadcast(subject: Subject) -> Iterator[Place]:
    """The whole output of a network that ends in one column meets a target as it came, in a loss or
    a difference, and the file shows elsewhere that targets are flat.
    """
    program = subject.program
    for difference, column, flat in _column_elsewhere(program):
        yield (
            difference,
            (
                f"{column} has one column, for which {flat} is made one in the loss, and here it is"
                " flat: each row meets all others"
            ),
        )
    for node, scores, target, scope in _meetings(program):
        made = {
            o.call
            for o in program.origins(_network(program, scores, scope), scope)
            if _ends_in_one_column(program, o)
        }
        name = _as_it_came(program, target, scope)
        if not made or name is None:
            continue
        held = _held(program, name, scope)
        if held == "flat" or (
            not held and (_flattened(program, made) or _made_a_column(program, name))
        ):
            yield (
                node,
                (
                    f"{ast.unparse(scores)} has one column, {ast.unparse(target)} has none: every"
                    " score is compared with every target"
                ),
            )


def _column_elsewhere(program: Program) -> Iterator[tuple[ast.BinOp, str, str]]:
    """Differences of a flat name and a network's output, where a loss of the same function is given
    the same two, the flat one made a column for it.
    """
    for loss in loss_calls(program):
        target, scope = loss.target, loss.scope
        flat = (
            receiver(target)
            if method(target) == "unsqueeze"
            else (
                target.value
                if isinstance(target, ast.Subscript)
                and ast.unparse(target.slice) in (":, None", "(slice(None, None, None), None)")
                else None
            )
        )
        made = reaching(program, loss.scores, scope) if isinstance(loss.scores, ast.Name) else []
        if (
            not isinstance(flat, ast.Name)
            or not isinstance(loss.scores, ast.Name)
            or len(made) != 1
            or not isinstance(made[0], ast.Call)
        ):
            continue
        for node in own_nodes_of(scope.node, ast.BinOp):
            if isinstance(node.op, ast.Sub):
                sides = [
                    receiver(s) if method(s) == "detach" else s for s in (node.left, node.right)
                ]
                names = [s.id for s in sides if isinstance(s, ast.Name)]
                if names in ([flat.id, loss.scores.id], [loss.scores.id, flat.id]):
                    yield node, loss.scores.id, flat.id


def _meetings(program: Program) -> Iterator[tuple[ast.expr, ast.expr, ast.expr, Scope]]:
    """Where scores meet targets: losses that broadcast, and differences that are squared, or
    measured in another way.
    """
    for loss in loss_calls(program):
        if loss.kind in ("mse", "l1") and loss.target is not None:
            yield loss.call, loss.scores, loss.target, loss.scope
    yield from _through_own_losses(program)
    for node in program.nodes[ast.BinOp]:
        parent = program.parents[node]
        measured = (
            (isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Pow))
            or (isinstance(parent, ast.Attribute) and parent.attr in MEASURES)
            or (isinstance(parent, ast.Call) and program.is_torch(parent.func, *MEASURES))
            or isinstance(parent, ast.Assign)
        )
        if isinstance(node.op, ast.Sub) and measured:
            yield node, node.left, node.right, program.scope(node)
            yield node, node.right, node.left, program.scope(node)


def _through_own_losses(program: Program) -> Iterator[tuple[ast.expr, ast.expr, ast.expr, Scope]]:
    """Calls of functions and losses of the file that subtract two of their parameters as
    they came.
    """
    for node in program.nodes[ast.BinOp]:
        function = program.scope(node)
        if not (
            isinstance(node.op, ast.Sub)
            and isinstance(node.left, ast.Name)
            and isinstance(node.right, ast.Name)
        ):
            continue
        pair = [node.left.id, node.right.id]
        if (
            not set(pair) <= set(function.parameters)
            or any(function.bindings.get(n) for n in pair)
            or RESHAPES & identifiers(function.node)
        ):
            continue
        sites = [(c, where) for c, where in program.call_sites[function]]
        if function.name == "forward" and function.owner is not None:
            sites = [
                (c, s)
                for c in program.all_calls
                for s in [program.scope(c)]
                if any(o.name == function.owner.name for o in program.origins(c.func, s))
            ]
        for call, where in sites:
            given = [argument(call, function, n) for n in pair]
            if given[0] is not None and given[1] is not None:
                yield call, given[0], given[1], where
                yield call, given[1], given[0], where


def _network(program: Program, scores: ast.expr, scope: Scope) -> ast.expr | None:
    """What was called for the scores, which nothing has reshaped."""
    values = reaching(program, scores, scope) if isinstance(scores, ast.Name) else [scores]
    return values[0].func if len(values) == 1 and isinstance(values[0], ast.Call) else None


def _as_it_came(
    program: Program, target: ast.expr, scope: Scope, depth: int = 0
) -> ast.Name | None:
    """The name that a loop over batches gives to the targets, where nothing reshapes them
    before.
    """
    if isinstance(target, ast.Call) and method(target) in KEEPS_SHAPE:
        inner = receiver(target)
        return _as_it_came(program, inner, scope, depth + 1) if inner is not None else None
    if not isinstance(target, ast.Name) or depth > 4:
        return None
    bound = scope.bindings.get(target.id, [])
    if bound and all(b.how == "loop" for b in bound):
        return target
    values = reaching(program, target, scope)
    looped = [b for b in bound if b.how == "loop"]
    if (
        not values and len(bound) - len(looped) == 1 and looped
    ):  # y = y.to(device), within the loop that gives y
        values = [b.value for b in bound if b.how == "assign"]
        own = (
            isinstance(values[0], ast.Call)
            and method(values[0]) in KEEPS_SHAPE
            and dotted(receiver(values[0])) == target.id
            if values
            else False
        )
        return target if own else None
    return _as_it_came(program, values[0], scope, depth + 1) if len(values) == 1 else None


def _ends_in_one_column(program: Program, made: Origin) -> bool:
    """Whether the last layer of a network is `nn.Linear(…, 1)`, whose output goes out as it is."""
    if made.name == "torch.nn.Linear":
        return constant(keyword(made.call, "out_features", 1)) == 1
    if (
        made.name == "torch.nn.Sequential"
        and made.call.args
        and isinstance(made.call.args[-1], ast.Call)
    ):
        last = made.call.args[-1]
        before = made.call.args[-2] if len(made.call.args) > 1 else last
        if last_name(last.func) in STATELESS - {"Flatten", "Unflatten"} and isinstance(
            before, ast.Call
        ):
            last = before
        return _ends_in_one_column(program, Origin(program.resolve(last.func), last, made.scope))
    forward = (
        program.find_method(program.classes[made.name], "forward")
        if made.name in program.classes
        else None
    )
    returned = (
        [n.value for n in own_nodes_of(forward.node, ast.Return)] if forward is not None else []
    )
    if (
        forward is None
        or len(returned) != 1
        or not isinstance(returned[0], ast.Call)
        or not dotted(returned[0].func).startswith("self.")
    ):
        return False
    layers = program.origins(returned[0].func, forward)
    return bool(layers) and all(
        o.name.startswith("torch.nn.") and _ends_in_one_column(program, o) for o in layers
    )


def _flattened(program: Program, made: set[ast.Call]) -> bool:
    """Whether the output of one of these networks is made flat anywhere: `.squeeze(1)`,
    `.view(-1)`, `[:, 0]`.
    """
    for call in program.all_calls:
        flat = method(call) in ("squeeze", "flatten", "ravel") or (
            method(call) in ("view", "reshape") and [constant(a) for a in call.args] == [-1]
        )
        if flat and _is_output(
            program,
            call.args[0] if program.resolve(call.func) and call.args else receiver(call),
            program.scope(call),
            made,
        ):
            return True
    columns = [
        n
        for n in program.nodes[ast.Subscript]
        if isinstance(n.slice, ast.Tuple) and len(n.slice.elts) == 2
    ]
    return any(
        isinstance(n.slice, ast.Tuple)
        and constant(n.slice.elts[1]) == 0
        and _is_output(program, n.value, program.scope(n), made)
        for n in columns
    )


def _is_output(program: Program, node: ast.expr | None, scope: Scope, made: set[ast.Call]) -> bool:
    values = reaching(program, node, scope) if isinstance(node, ast.Name) else [node]
    return any(
        isinstance(v, ast.Call) and bool({o.call for o in program.origins(v.func, scope)} & made)
        for v in values
    )


def _made_a_column(program: Program, name: ast.Name) -> bool:
    """Whether something of the same name is given a second dimension elsewhere: `y.unsqueeze(1)`,
    `y.view(-1, 1)`, `y[:, None]`.
    """
    for use in program.nodes[ast.Name]:
        parent = program.parents[use]
        call = program.parents[parent]
        if not (use.id == name.id and use is not name):
            continue
        scope = program.scope(use)
        if not (
            use.id in scope.parameters
            or any(b.how == "loop" for b in scope.bindings.get(use.id, ()))
        ):
            continue  # where rows are made, they go out as columns
        if any(
            method(n) in SCALES or last_name(getattr(n, "func", None)) == "TensorDataset"
            for n in program.ancestors(use)
        ):
            continue  # a scaler takes columns and gives back what is no name of this file
        if isinstance(parent, ast.Attribute) and isinstance(call, ast.Call) and call.func is parent:
            given = [constant(a) for a in call.args]
            if (parent.attr == "unsqueeze" and given in ([1], [-1])) or (
                parent.attr in ("view", "reshape") and given == [-1, 1]
            ):
                return True
        if (
            isinstance(parent, ast.Subscript)
            and parent.value is use
            and isinstance(parent.slice, ast.Tuple)
            and len(parent.slice.elts) == 2
        ):
            last = parent.slice.elts[1]
            if isinstance(last, ast.Constant) and last.value is None:
                return True
    return False


def _held(program: Program, name: ast.Name, scope: Scope) -> str:
    """What the `TensorDataset`, or the dataset of this file, that the loop around goes over holds
    at that place: `flat`, `column`, or empty where it is not in sight.
    """
    around = program.ancestors(name)
    for binding in (
        b
        for b in scope.bindings.get(name.id, ())
        if b.how == "loop" and (b.statement in around or isinstance(b.statement, ast.comprehension))
    ):
        for loader in (
            o
            for o in program.origins(binding.value, scope)
            if o.last == "DataLoader" and o.call.args
        ):
            for made in program.origins(loader.call.args[0], loader.scope):
                element, where = _element(program, made, binding.index)
                if is_flat(program, element, where):
                    return "flat"
                if element is not None and _is_column(program, element, where):
                    return "column"
    return ""


def _element(program: Program, made: Origin, index: int | None) -> tuple[ast.expr | None, Scope]:
    """What a dataset gives at one place of its rows, and where that is written."""
    if index is not None and made.last == "TensorDataset":
        return (made.call.args[index] if index < len(made.call.args) else None), made.scope
    owner = program.classes.get(made.name)
    getter = program.find_method(owner, "__getitem__") if owner is not None else None
    returned = (
        [n.value for n in own_nodes_of(getter.node, ast.Return)] if getter is not None else []
    )
    pair = returned[0] if len(returned) == 1 else None
    element = (
        pair.elts[index]
        if isinstance(pair, ast.Tuple) and index is not None and index < len(pair.elts)
        else None
    )
    row = isinstance(element, ast.Subscript) and isinstance(element.slice, ast.Name)
    return (
        element.value if row and isinstance(element, ast.Subscript) else None
    ), getter or made.scope


def _is_column(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a value was given its second dimension openly."""
    values = (
        reaching(program, node, scope)
        if isinstance(node, ast.Name)
        else [b.value for b in program.bindings_of(node, scope)]
    )
    if isinstance(node, ast.Call):
        values = [node]
    nodes = [n for v in values for n in walk(v)]
    return any(
        method(n) in ("unsqueeze", "view", "reshape")
        or (isinstance(n, ast.Constant) and n.value is None)
        or isinstance(n, ast.List)
        for n in nodes
    )
