"""Rules BH308, BH309, BH405, BH406 and BH467: what is kept with its graph, or cut off from it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope, argument
from training.review.roles import is_frozen_name, is_model, makes_layer
from training.review.syntax import (
    calls,
    dotted,
    identifiers,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes,
    own_nodes_of,
    receiver,
    words,
)
from training.review.trace import Event, Loop
from training.review.values import reaching, reaching_elements

# names of torch and of Python
NUMBERS = {"np", "numpy", "statistics", "math", "float", "round", "int", "len", "min", "max"}
DETACHED = {"item", "detach", "detach_", "data", "numpy", "tolist", "gather"}
APPENDS = {"append", "appendleft", "insert", "extend"}
SAME = {"sum", "mean", "requires_grad_", "to", "cuda", "cpu", "clone", "float", "double"}
PURE = {
    "relu", "softmax", "log_softmax", "sigmoid", "tanh", "gelu", "silu", "elu", "selu", "mish",
    "leaky_relu", "softplus", "layer_norm", "interpolate", "pad", "dropout", "normalize", "cat",
    "stack", "flatten", "transpose", "squeeze", "unsqueeze", "clamp", "where", "permute", "reshape",
    "view", "contiguous", "detach",
}  # fmt: skip
MOVES = {"to", "cuda", "half", "float", "double", "bfloat16", "cpu"}
WITHOUT = {"detach", "shape", "size", "device", "dtype", "dim", "data"}  # read without a gradient


@rule("BH308")
def loss_kept_with_graph(subject: Subject) -> Iterator[Place]:
    """What `backward` was called on, or a term of it, is added to something that lives on."""
    program = subject.program
    for trace in subject.traces:
        for backward in (e for e in trace if e.kind == "backward"):
            steps = [e.loops[-1:] for e in trace if e.kind == "step"]
            loops = [x for x in backward.loops if (x,) in steps or not steps]
            loop = loops[-1] if loops else None  # of the step, or where none is seen the innermost
            inside = [e for e in trace if (loop in e.loops if loop else e.scope is backward.scope)]
            losses = _losses(inside)
            for event in inside if losses else ():
                quiet = event.key in losses or event.within("no_grad", "inference_mode")
                for kept in _kept(program, event) if not quiet else ():
                    if event.frame.key(kept) in losses and _outlives(event, loop, inside):
                        message = f"{ast.unparse(kept)} is kept with its graph: memory grows"
                        yield event.node, message, loop.node if loop else event.scope.node


def _losses(inside: list[Event]) -> set[str]:
    """What is propagated, its terms, and sums of it; nothing where one of it becomes a number."""
    losses = {e.key for e in inside if e.kind == "backward"} - {""}
    made = [(e, e.node.value) for e in inside if isinstance(e.node, ast.Assign)]
    numbers = {e.key for e, v in made if _is_number(_bare(v))}
    computed = {e.key for e, v in made if isinstance(v, ast.Call) and method(v) not in MOVES}
    for event, value in (x for x in made if isinstance(x[1], ast.BinOp)):
        key, within = event.frame.key, [n for c in calls(value) for n in nodes_of(c, ast.Name)]
        names = {key(n) for n in nodes_of(value, ast.Name) if n not in within}
        losses |= names & computed - numbers if event.key in losses else set()
        losses |= {event.key} if names and names <= losses else set()
    return set() if losses & numbers else losses - {""}


def _bare(node: ast.expr | None) -> ast.expr | None:
    """What a value is made of, under arithmetic and methods that keep its graph."""
    while isinstance(node, ast.BinOp) or (method(node) in SAME and not _is_number(node)):
        left = node.left if isinstance(node, ast.BinOp) else receiver(node)
        other = isinstance(node, ast.BinOp) and isinstance(left, ast.Constant)
        node = node.right if isinstance(node, ast.BinOp) and other else left
    return node


def _is_number(node: ast.AST | None) -> bool:
    function = dotted(getattr(node, "func", None)).partition(".")[0]
    return method(node) in DETACHED or function in NUMBERS


def _kept(program: Program, event: Event) -> Iterator[ast.expr]:
    """The values that an event adds to something, with the graph that they may have."""
    node, given = event.node, list[ast.expr]()
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        given = node.value.elts if isinstance(node.value, ast.List) else [node.value]
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
        sides, name = (node.value.left, node.value.right), dotted(node.targets[0])
        given = [s for s in sides if name in map(dotted, sides) and dotted(s) != name]
    elif isinstance(node, ast.Call) and method(node) in APPENDS:
        given = node.args
    elif isinstance(node, ast.Call):  # of an object that adds up what it is given
        for function in program.callees(node, event.scope):
            added = [names_read(a.value) for a in own_nodes_of(function.node, ast.AugAssign)]
            if function.owner and not (DETACHED | NUMBERS) & identifiers(function.node):
                taken = [n for n in function.parameters if any(n in names for names in added)]
                given += [a for n in taken if (a := argument(node, function, n)) is not None]
    yield from (bare for value in given if (bare := _bare(value)) is not None)


def _outlives(event: Event, loop: Loop | None, inside: list[Event]) -> bool:
    """Whether what an event adds to is not made, emptied or limited within the region."""
    node = event.node
    into = [receiver(node), getattr(node, "target", None), *getattr(node, "targets", ())]
    target = next((t for t in into if t is not None), None)
    while isinstance(target, ast.Subscript):
        target = target.value
    key, bound = event.frame.key(target), event.scope.bindings.get(dotted(target), [])
    emptied = {key, f"{key}.pop", f"{key}.popleft", f"{key}.clear"}
    anew = any(e.key in emptied and e is not event and e.kind != "augment" for e in inside)
    limited = any(k.arg == "maxlen" for b in bound for c in calls(b.value) for k in c.keywords)
    held = dotted(target).startswith("self.") and event.scope.name != "__init__"
    return bool(key) and not anew and not limited and (loop is not None or held)


@rule("BH309")
def loss_cut_from_graph(subject: Subject) -> Iterator[Place]:
    """What `backward` is called on is a new tensor, detached, or set to require a gradient."""
    program = subject.program
    for event in (e for trace in subject.traces for e in trace if e.kind == "backward"):
        target = next(iter(event.call.args), None) if event.via else receiver(event.node)
        if target is not None and _cut(program, target, event.scope):
            yield event.node, f"backward on {ast.unparse(target)}: it has no graph"
        if not isinstance(target, ast.Name):
            continue
        name, scope = target.id, event.scope
        for value in reaching(program, target, scope):
            if _cut(program, value, scope):
                yield value, f"{name} is detached from the network here", event.node
            elif _of_detached_scores(program, value, scope):
                yield value, f"{name} is computed from scores that are detached", event.node
        bound = scope.bindings.get(name, ())  # a zero to which terms are added may ask for one
        begins = any(b.how == "augment" or name in names_read(b.value) for b in bound)
        for node in own_nodes(scope.node) if not begins else ():
            forced = method(node) == "requires_grad_" and dotted(receiver(node)) == name
            assigned = isinstance(node, ast.Assign) and dotted(node.targets[0])
            if forced or assigned == f"{name}.requires_grad":
                yield node, f"{name} would have a gradient if the network made it", event.node


def _cut(program: Program, node: ast.expr | None, scope: Scope, deep: bool = True) -> bool:
    """Whether a value has no path back: detached, or rebuilt from computed numbers."""
    if isinstance(node, ast.BinOp):
        sides = [s for s in (node.left, node.right) if not isinstance(s, ast.Constant)]
        return bool(sides) and all(_cut(program, s, scope, deep) for s in sides)
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Attribute) and node.attr == "data"
    if program.is_torch(node.func, "tensor", "FloatTensor", "from_numpy"):
        return bool(node.args and names_read(node.args[0]))
    function = program.callees_by_name(node, scope) if deep else None
    if function is not None:
        returned = [n.value for n in own_nodes_of(function.node, ast.Return)]
        return bool(returned) and all(_cut(program, v, function, False) for v in returned)
    if method(node) in SAME and not program.resolve(node.func):
        return _cut(program, receiver(node), scope, deep)
    return method(node) in ("detach", "item") and not node.args


def _of_detached_scores(program: Program, loss: ast.expr, scope: Scope) -> bool:
    """Whether the only argument of a loss that is no batch's is a network's detached output."""
    given = loss.args if isinstance(loss, ast.Call) else []
    ours = [a for a in given if any(b.how != "loop" for b in scope.bindings.get(last_name(a), ()))]
    ours += [a for a in given if not isinstance(a, ast.Name)]
    value = ours[0] if len(ours) == 1 else None
    values = reaching(program, value, scope) if isinstance(value, ast.Name) else [value]
    made = receiver(values[0]) if len(values) == 1 and method(values[0]) == "detach" else None
    return isinstance(made, ast.Call) and is_model(program, made.func, scope)


@rule("BH405")
def forward_detached(subject: Subject) -> Iterator[Place]:
    """In `forward` the output of an own layer goes on detached alone, to a layer or as result."""
    program, frees = subject.program, {"requires_grad", "requires_grad_"}
    for owner in program.module_classes:
        told = {k.arg for c in calls(owner) for k in c.keywords} | identifiers(owner)
        forward = program.methods[owner].get("forward")
        if forward is None or frees & told:
            continue
        for node in own_nodes(forward.node):
            gone = method(node) == "detach" or getattr(node, "attr", "") == "data"
            inner = receiver(node) or getattr(node, "value", None) if gone else None
            around = program.ancestors(node) if gone else []
            if inner is None or any(isinstance(a, (ast.If, ast.With)) for a in around):
                continue
            layers = _layers_behind(program, inner, forward)
            named = {*layers, *map(last_name, getattr(program.statement(node), "targets", ()))}
            meant = any(is_frozen_name(n) or "pos" in n or "quant" in n for n in named)
            lives = isinstance(inner, ast.Name) and _lives_on(program, inner, forward)
            if layers and not meant and not lives and _goes_on(program, node, forward):
                listed = ", ".join(f"self.{name}" for name in sorted(layers))
                yield node, f"{ast.unparse(inner)} is detached here, so {listed} cannot learn"


def _layers_behind(program: Program, inner: ast.expr, forward: Scope) -> set[str]:
    """The own layers that made a value: called in it, or in the last values of its name."""
    while isinstance(inner, ast.Subscript):
        inner = inner.value
    name = inner if isinstance(inner, ast.Name) else None
    values = [v for v, _ in reaching_elements(program, name, forward)] if name else [inner]
    called = [c for v in values for c in calls(v) if dotted(receiver(c)) == "self"]
    made = [(c, o.call) for c in called for o in program.origins(c.func, forward)]
    layers = {c for c, maker in made if makes_layer(program, maker)}
    told = {c for c in layers if any(isinstance(a, ast.With) for a in program.ancestors(c))}
    return {method(c) for c in layers - told}


def _lives_on(program: Program, inner: ast.Name, forward: Scope) -> bool:
    """Whether the value that is detached is also used with its gradient."""
    names = [n for n in own_nodes_of(forward.node, ast.Name) if n.id == inner.id and n is not inner]
    values = reaching_elements(program, inner, forward)
    uses = [n for n in names if getattr(program.parents[n], "attr", "") not in WITHOUT]
    read = [n for n in uses if isinstance(n.ctx, ast.Load)]
    return any(reaching_elements(program, n, forward) == values for n in read)


def _goes_on(program: Program, node: ast.AST, forward: Scope) -> bool:
    """Whether a value, alone, becomes the input of an own layer, or the whole result."""
    above = program.parents[node]
    if isinstance(above, ast.Attribute):
        node, above = above, program.parents[above]
    if isinstance(above, ast.Call):
        if dotted(above.func).startswith("self."):
            return True
        alone = not any(names_read(a) - {"self"} for a in above.args if a is not node)
        known = above.func is node or program.resolve(above.func).startswith(("torch.", "numpy."))
        return known and alone and _goes_on(program, above, forward)
    if isinstance(above, ast.BinOp) and isinstance(above.right, ast.Constant):
        return _goes_on(program, above, forward)
    if isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name):
        name, names = above.targets[0].id, own_nodes_of(forward.node, ast.Name)
        read = [n for n in names if n.id == name and n.lineno > above.lineno]
        return any(_goes_on(program, n, forward) for n in read if isinstance(n.ctx, ast.Load))
    return isinstance(above, ast.Return)


@rule("BH406")
def result_discarded(subject: Subject) -> Iterator[Place]:
    """A statement is nothing but a pure function of torch, or `.to` of a batch's tensor."""
    program = subject.program
    for node in program.nodes[ast.Expr] if "torch" in program.modules_imported else ():
        call, around = node.value, program.ancestors(node)
        risky = any(isinstance(a, (ast.With, ast.Try)) for a in around)
        if risky or not isinstance(call, ast.Call):
            continue
        scope, on, name = program.scope(call), receiver(call), method(call)
        told = any(k.arg in ("inplace", "out") for k in call.keywords)
        inside = program.is_module(scope.owner) and scope.name != "__init__"
        plain = isinstance(on, ast.Name) and not program.resolve(on)
        plain = plain and not {"model", "self"} & words(last_name(on))
        reshapes = name in PURE and plain and (inside or scope.name == "forward")
        moves = name in ("to", "cuda", "half", "float") and _of_batch(program, on, scope)
        if (program.is_torch(call.func, *PURE) and not told) or reshapes or moves:
            yield call, f"{ast.unparse(call.func)} returns its result, which is discarded"


def _of_batch(program: Program, node: ast.expr | None, scope: Scope) -> bool:
    """Whether a name is an element of what a loader gives, or a parameter that a network gets."""
    if not isinstance(node, ast.Name) or is_model(program, node, scope):
        return False
    own = [c for c in program.all_calls if program.scope(c) is scope]
    if any(k.arg is None and last_name(k.value) == node.id for c in own for k in c.keywords):
        return False  # `model(**batch)`: a mapping that moves its tensors itself
    if node.id in scope.parameters:
        given = [c for c in own if any(last_name(a) == node.id for a in c.args)]
        return any(is_model(program, receiver(c.func) or c.func, scope) for c in given)
    bound = scope.bindings.get(node.id, [])
    looped = all(b.how == "loop" and b.index is not None for b in bound)
    heads = [" ".join(identifiers(b.value)).lower() for b in bound]
    return bool(bound) and looped and all("loader" in head for head in heads)


@rule("BH467")
def parameter_moved_away(subject: Subject) -> Iterator[Place]:
    """An attribute of a module is what a move of a `nn.Parameter` gives that is made there."""
    program = subject.program
    for call in program.methods_of(*MOVES):
        made, target = receiver(call), getattr(program.parents[call], "targets", [None])[0]
        parameter = isinstance(made, ast.Call) and program.is_torch(made.func, "Parameter")
        own = isinstance(target, ast.Attribute) and program.is_module(program.scope(call).owner)
        if parameter and own:
            yield call, f"{ast.unparse(target)} is no parameter where {method(call)} changes it"
