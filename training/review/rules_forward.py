"""Rules BH405: and BH406: what happens in forward."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_frozen_name, is_model
from training.review.program import Program, Scope
from training.review.rules_module import is_layer
from training.review.syntax import (
    FUNCTIONS,
    calls,
    dotted,
    identifiers,
    last_name,
    method,
    names_read,
    own_nodes,
    own_nodes_of,
    receiver,
    walk,
    words,
)
from training.review.values import reaching, reaching_elements

ADDS_TO = {"index_add", "scatter_add", "index_copy", "scatter_reduce", "index_reduce"}


@rule("BH405")
def forward_detached(subject: Subject) -> Iterator[Place]:
    """In `forward` the output of an own layer goes on detached alone: into the next layer, or out
    as the result; or a layer that an optimizer holds is run without gradients.
    """
    program = subject.program
    for owner in program.module_classes:
        forward = program.methods[owner].get("forward")
        frozen = any(k.arg == "requires_grad" for c in calls(owner) for k in c.keywords)
        if forward is None or frozen or {"requires_grad", "requires_grad_"} & identifiers(owner):
            continue
        yield from _trained_without_gradient(program, owner, forward)
        for scope, node in [
            (s, n)
            for s in (forward, *_parts_of(program, owner, forward))
            for n in own_nodes(s.node)
        ]:
            inner = _detached(program, node)
            if inner is None or any(
                isinstance(a, (ast.If, ast.With)) for a in program.ancestors(node)
            ):
                continue
            layers = _layers_behind(program, inner, scope)
            statement = program.statement(node)
            told = {*layers, *(last_name(t) for t in getattr(statement, "targets", ()))}
            if (
                layers
                and not any(
                    is_frozen_name(name) or "pos" in name or "quant" in name for name in told
                )
                and not _lives_on(program, inner, node, scope)
                and _goes_on(program, node, scope)
            ):
                yield (
                    node,
                    (
                        f"{ast.unparse(inner)} is cut off here, so"
                        f" {', '.join(f'self.{name}' for name in sorted(layers))} cannot learn"
                    ),
                )


def _parts_of(program: Program, owner: ast.ClassDef, forward: Scope) -> list[Scope]:
    """The methods of a class that run in its `forward` alone: called there, and nowhere else in the
    file.
    """
    called = {
        method(c) for c in calls(forward.node) if dotted(receiver(c)) == "self"
    } & program.methods[owner].keys()
    if not called:
        return []
    elsewhere = {method(c) for c in program.all_calls if program.scope(c) is not forward}
    return [s for name, s in program.methods[owner].items() if name in called - elsewhere]


def _trained_without_gradient(
    program: Program, owner: ast.ClassDef, forward: Scope
) -> Iterator[Place]:
    """Own layers that run under `no_grad` in `forward`, or in a method that it calls, where an
    optimizer of the file holds that very layer, or the network, which was made from nothing.
    """
    quiet = [
        n
        for n in own_nodes_of(forward.node, ast.With)
        if any(_is_quiet(i.context_expr) for i in n.items)
    ]
    called = {method(c) for c in calls(forward.node) if dotted(receiver(c)) == "self"}
    own = [forward, *(s for name, s in program.methods[owner].items() if name in called)]
    decorated = [
        s.node
        for s in own
        if isinstance(s.node, FUNCTIONS) and any(_is_quiet(d) for d in s.node.decorator_list)
    ]
    if not quiet and not decorated:
        return
    held = {
        last_name(receiver(c))
        for c in program.methods_of("parameters")
        if _in_optimizer(program, c)
    }
    whole = (
        _is_held(program, owner)
        and not STARTS_TRAINED & program.identifiers
        and not any("pretrain" in n or "freeze" in n for n in program.identifiers)
    )
    for region in (*quiet, *decorated):
        for call in (c for c in calls(region) if dotted(c.func).startswith("self.")):
            name, scope = last_name(call.func), program.scope(call)
            fresh = (
                whole
                and not is_frozen_name(name)
                and {o.call for o in program.origins(call.func, scope) if is_layer(program, o.call)}
            )
            if name in program.attributes[owner] and (
                name in held or (fresh and not _called_otherwise(program, name, region))
            ):
                yield (
                    call,
                    (
                        f"self.{name} is run without gradients here, and an optimizer holds its"
                        " parameters: it cannot learn"
                    ),
                    region,
                )


STARTS_TRAINED = {
    "load_state_dict",
    "from_pretrained",
    "requires_grad",
    "requires_grad_",
    "enable_grad",
    "load",
    "lerp_",
    "copy_",
    "mul_",
}


def _is_quiet(node: ast.expr) -> bool:
    """Whether it is `torch.no_grad()`, with or without parentheses."""
    return last_name(node.func if isinstance(node, ast.Call) else node) in (
        "no_grad",
        "inference_mode",
    )


def _is_held(program: Program, owner: ast.ClassDef) -> bool:
    """Whether an optimizer of the file holds the parameters of an object of this class."""
    asked = [c for c in program.methods_of("parameters") if _in_optimizer(program, c)]
    return any(
        o.name == owner.name for c in asked for o in program.origins(receiver(c), program.scope(c))
    )


def _called_otherwise(program: Program, name: str, region: ast.AST) -> bool:
    """Whether a layer is also called, or handed on, outside of a region."""
    inside = set(walk(region))
    uses = [
        n
        for n in program.nodes[ast.Attribute]
        if n.attr == name and isinstance(n.ctx, ast.Load) and n not in inside
    ]
    return any(not (isinstance(program.parents[n], ast.Attribute)) for n in uses)


def _in_optimizer(program: Program, call: ast.Call) -> bool:
    """Whether a call stands in the arguments of an optimizer."""
    return any(
        isinstance(a, ast.Call) and program.resolve(a.func).startswith("torch.optim.")
        for a in program.ancestors(call)
    )


def _detached(program: Program, node: ast.AST) -> ast.expr | None:
    """What a node detaches."""
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr="detach"), args=[]):
            return inner
        case ast.Call(args=[made]) if program.is_torch(
            node.func, "from_numpy", "as_tensor"
        ) and calls_of(made, "numpy"):
            return next(
                (
                    n.func.value
                    for n in calls(made)
                    if isinstance(n.func, ast.Attribute) and n.func.attr == "detach"
                ),
                None,
            )
        case ast.Call(args=[inner, *_]) if program.is_torch(node.func, "tensor") and not calls_of(
            inner, "detach"
        ):
            return inner
        case ast.Attribute(value=inner, attr="data"):
            return inner
    return None


def calls_of(node: ast.AST, name: str) -> bool:
    """Whether a method of that name is called within."""
    return any(method(n) == name for n in calls(node))


def _layers_behind(program: Program, inner: ast.expr, forward: Scope) -> set[str]:
    """The own layers that made a value: called in it, or in the last value of the name that it is,
    and not under `no_grad`, where nothing is left to cut.
    """
    while isinstance(inner, ast.Subscript):
        inner = inner.value
    values = (
        [value for value, _ in reaching_elements(program, inner, forward)]
        if isinstance(inner, ast.Name)
        else [inner]
    )
    values += [v for value in values for v in _through_functions(program, value, forward)]
    called = [n.func for value in values for n in calls(value) if isinstance(n.func, ast.Attribute)]
    called = [f for f in called if not any(isinstance(a, ast.With) for a in program.ancestors(f))]
    return {
        f.attr
        for f in called
        if dotted(f.value) == "self"
        and any(is_layer(program, o.call) for o in program.origins(f, forward))
    }


def _through_functions(
    program: Program, value: ast.expr, forward: Scope, depth: int = 0
) -> Iterator[ast.expr]:
    """What a function of torch or a method was called with, where that is a name which is used for
    nothing else.
    """
    inner = (
        value.args[0]
        if isinstance(value, ast.Call)
        and value.args
        and program.resolve(value.func).startswith("torch.")
        else None
    )
    inner = (
        receiver(value)
        if inner is None and not program.resolve(getattr(value, "func", None))
        else inner
    )
    if not isinstance(inner, ast.Name) or depth > 3:
        return
    uses = [
        n
        for n in own_nodes_of(forward.node, ast.Name)
        if n.id == inner.id and isinstance(n.ctx, ast.Load)
    ]
    values = reaching(program, inner, forward)
    if len(values) == 1 and len(uses) == 1:
        yield values[0]
        yield from _through_functions(program, values[0], forward, depth + 1)


def _lives_on(program: Program, inner: ast.expr, node: ast.AST, forward: Scope) -> bool:
    """Whether the name that is detached is also used with its gradient."""
    if not isinstance(inner, ast.Name):
        return False
    statement = program.statement(node)
    rebound = isinstance(statement, ast.Assign) and dotted(statement.targets[0]) == inner.id
    made = max(
        (
            b.statement.lineno
            for b in forward.bindings.get(inner.id, ())
            if isinstance(b.statement, ast.stmt) and b.statement.lineno < statement.lineno
        ),
        default=0,
    )
    for use in own_nodes(forward.node):
        if (
            not (isinstance(use, ast.Name) and use.id == inner.id and isinstance(use.ctx, ast.Load))
            or use is inner
            or use.lineno <= made
        ):
            continue
        parent = program.parents[use]
        if not (
            isinstance(parent, ast.Attribute)
            and parent.attr in ("detach", "shape", "size", "device", "dtype", "dim", "data")
        ) and not (rebound and use.lineno > statement.lineno):
            return True
    return False


def _goes_on(program: Program, node: ast.AST, forward: Scope) -> bool:
    """Whether a value becomes the input of an own layer or the whole result, through functions of
    torch and further methods.
    """
    parent = program.parents[node]
    if isinstance(parent, ast.Attribute):
        grandparent = program.parents[parent]
        return (
            isinstance(grandparent, ast.Call)
            and grandparent.func is parent
            and _goes_on(program, grandparent, forward)
        )
    if isinstance(parent, ast.Call):
        alone = not any(
            names_read(a) - {"self"} for a in parent.args if a is not node
        )  # beside another value, as the target of a loss, it cuts nothing
        added = method(parent) in ADDS_TO and _is_blank(
            program, receiver(parent), forward
        )  # rows added up in a tensor of zeros
        function = program.resolve(parent.func).startswith(("torch.", "numpy.")) and alone
        return dotted(parent.func).startswith("self.") or (
            (function or added) and _goes_on(program, parent, forward)
        )
    if isinstance(parent, ast.Return):
        return True
    if isinstance(parent, ast.BinOp) and not isinstance(parent.op, ast.Sub):
        return _is_only_use(program, node, forward) and _goes_on(program, parent, forward)
    if isinstance(parent, (ast.List, ast.Tuple)):
        joined = program.parents[parent]
        joins = isinstance(joined, ast.Call) and program.is_torch(
            joined.func, "cat", "concat", "stack", "hstack"
        )
        return joins and _is_only_use(program, node, forward) and _goes_on(program, joined, forward)
    if not (isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name)):
        return False
    name, line = parent.targets[0].id, parent.lineno
    uses = [
        n
        for n in own_nodes_of(forward.node, ast.Name)
        if n.id == name and isinstance(n.ctx, ast.Load) and n.lineno > line
    ]
    return any(
        _goes_on(program, use, forward) for use in uses if program.statement(use) is not parent
    )


def _is_only_use(program: Program, node: ast.AST, forward: Scope) -> bool:
    """Whether the layers behind a value that is detached, or that holds a detached one, are called
    nowhere else in the file.
    """
    value = node
    if isinstance(node, ast.Name):
        values = reaching(program, node, forward)
        value = values[0] if len(values) == 1 else node
    layers = {
        c.func.attr
        for c in calls(value)
        if isinstance(c.func, ast.Attribute) and dotted(c.func.value) == "self"
    }
    inner = _detached(program, value)
    if not layers and inner is not None:
        layers = _layers_behind(program, inner, forward)
    return bool(layers) and all(len(program.calls_of(name)) == 1 for name in layers)


def _is_blank(program: Program, node: ast.expr | None, forward: Scope) -> bool:
    """Whether a name holds a tensor of zeros."""
    values = reaching(program, node, forward) if isinstance(node, ast.Name) else [node]
    return bool(values) and all(
        isinstance(v, ast.Call) and last_name(v.func) in ("zeros", "zeros_like", "new_zeros")
        for v in values
    )


@rule("BH406")
def result_discarded(subject: Subject) -> Iterator[Place]:
    """A statement is nothing but a pure function of torch, a reshaping method, or `.to` of a
    batch's tensor.
    """
    program = subject.program
    if "torch" not in program.modules_imported:
        return
    pure = {
        "relu", "softmax", "log_softmax", "sigmoid", "tanh", "gelu", "silu", "elu", "selu", "mish",
        "leaky_relu", "softplus", "layer_norm", "interpolate", "pad", "dropout", "normalize", "cat",
        "stack", "flatten", "transpose", "squeeze", "unsqueeze", "clamp", "where", "permute",
        "reshape",
    }  # fmt: skip
    methods = {
        "view",
        "reshape",
        "permute",
        "transpose",
        "unsqueeze",
        "squeeze",
        "flatten",
        "contiguous",
        "detach",
        "softmax",
        "sigmoid",
    }
    for node in program.nodes[ast.Expr]:
        if not isinstance(node.value, ast.Call) or dotted(node.value.func) == "print":
            continue
        if any(isinstance(a, (ast.With, ast.Try)) for a in program.ancestors(node)):
            continue
        call, name = node.value, program.resolve(node.value.func)
        own = program.callees(call, program.scope(call))
        if own and all(_only_gives(f) for f in own):
            yield (
                call,
                (
                    f"{last_name(call.func)} changes nothing and returns its result, and nothing"
                    " keeps it"
                ),
            )
            continue
        if (
            name.startswith("torch.")
            and name.rpartition(".")[2] in pure
            and not any(k.arg in ("inplace", "out") for k in call.keywords)
        ):
            yield call, f"{dotted(call.func)} returns its result, and nothing keeps it"
        elif (
            method(call) in methods
            and isinstance(receiver(call), ast.Name)
            and "model" not in words(last_name(receiver(call)))
            and _within_forward(program, call)
        ):
            yield call, f".{method(call)}() returns its result, and nothing keeps it"
        elif method(call) in ("to", "cuda", "half", "float") and _from_batch(
            program, receiver(call), program.scope(call)
        ):
            yield call, f".{method(call)}() of a tensor returns a new one, and nothing keeps it"


GIVES = {
    "max", "min", "abs", "round", "float", "int", "len", "sum", "exp", "sqrt", "log", "cos", "sin",
    "pow",
}  # fmt: skip


def _only_gives(function: Scope) -> bool:
    """Whether a function computes a number of what it reads and returns it, and does nothing else:
    all that it sets are names of its own.
    """
    node = function.node
    if isinstance(node, ast.Module) or node.decorator_list or function.name == "__init__":
        return False
    returned = [n.value for n in own_nodes_of(node, ast.Return) if n.value is not None]
    for inner in own_nodes(node):
        if isinstance(inner, ast.Call) and (
            last_name(inner.func) not in GIVES or dotted(inner.func).startswith("self.")
        ):
            return False
        if isinstance(inner, (ast.Assign, ast.AugAssign)) and any(
            not isinstance(t, ast.Name)
            for t in getattr(inner, "targets", [getattr(inner, "target", None)])
        ):
            return False
        if isinstance(
            inner,
            (
                ast.Import,
                ast.ImportFrom,
                ast.Raise,
                ast.Global,
                ast.Nonlocal,
                ast.Yield,
                ast.YieldFrom,
                ast.Await,
                ast.With,
                ast.Try,
                ast.Delete,
                ast.Assert,
            ),
        ):
            return False
    held = [
        b.value
        for value in returned
        if isinstance(value, ast.Name)
        for b in function.bindings.get(value.id, ())
    ]
    return any(isinstance(n, ast.BinOp) for value in (*returned, *held) for n in walk(value))


def _within_forward(program: Program, node: ast.AST) -> bool:
    scope = program.scope(node)
    return scope.name == "forward" or bool(
        scope.owner and program.is_module(scope.owner) and scope.name != "__init__"
    )


def _moved_network(call: ast.Call) -> bool:
    """`net.to(device)(x)`: a network that is called where it is moved."""
    return method(call.func) in ("to", "cuda", "eval", "train")


def _from_batch(program: Program, node: ast.expr | None, scope: Scope) -> bool:
    """Whether a name is an element of what a loop over batches gives."""
    if not isinstance(node, ast.Name) or is_model(program, node, scope):
        return False
    if any(
        k.arg is None and last_name(k.value) == node.id
        for c in program.all_calls
        for k in c.keywords
    ):
        return False  # `model(**batch)`: a mapping that moves its tensors itself
    given = [
        c
        for c in program.all_calls
        if program.scope(c) is scope
        and any(isinstance(a, ast.Name) and a.id == node.id for a in c.args)
    ]
    if node.id in scope.parameters and any(
        is_model(program, c.func, scope) or _moved_network(c) for c in given
    ):
        return True
    bound = scope.bindings.get(node.id, [])
    return bool(bound) and all(
        b.how == "loop"
        and b.index is not None
        and any("loader" in n.lower() for n in identifiers(b.value))
        for b in bound
    )
