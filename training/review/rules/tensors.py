"""Rules about the dimensions of tensors, and the layers of networks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import torch_calls
from training.review.loops import names_loader
from training.review.program import Program, Scope
from training.review.roles import WITHOUT_WEIGHTS, is_model, makes_layer
from training.review.splitting import line_of
from training.review.syntax import (
    calls,
    constant,
    dotted,
    has_unpacking,
    identifiers,
    keyword,
    last_name,
    method,
    names_read,
    own_nodes_of,
    receiver,
    words,
)
from training.review.values import activation, loss_calls, reaching, reaching_elements

KEEPING = {"linear", "layernorm", "dropout", "relu", "gelu", "tanh", "sigmoid"}  # dimensions
FINDS_LAYERS = re.compile("children|modules|getattr|__dict__|get_submodule")
RANDOM = ("randn_like", "rand_like", "randn", "rand", "normal")
# In scores of attention; in code that sums over the rows: of one bag, one graph, competing slots.
SCORES = re.compile(r"(@|mm|matmul).*transpose\(-[12], -[12]\)|einsum\('(\w)\w+,\2\w+->\2\w\w+'")
SUMS = re.compile(r"\.sum\((dim=|axis=)?0|sum\(.*keepdim")
DEPTH = 5  # layers and names that a tensor is followed through

# words
SHIFTS = {"shift", "skew", "relative", "rel"}  # relative positions are shifted by a view on purpose
SHARED = {"share", "shared", "tied", "unrolled", "recurrent", "universal", "skip", "identity"}
NOISY = {"channel", "awgn", "dequantise", "dequantize", "dequantization", "smoothed", "smoothing"}


def _reshaped(program: Program, call: ast.Call) -> tuple[ast.expr | None, list[ast.expr]]:
    """What `view` or `reshape` is called on, and the sizes that it is given; without ones, which
    move nothing, and a last one that is left open.
    """
    given = list(call.args)
    viewed = given.pop(0) if given and program.resolve(call.func) else receiver(call)
    one = given[0] if len(given) == 1 else None
    given = list(one.elts) if isinstance(one, (ast.Tuple, ast.List)) else given
    given = given[:-1] if given and constant(given[-1]) == -1 else given
    return viewed, [size for size in given if constant(size) != 1]


def _alike(program: Program, node: ast.expr | None, scope: Scope) -> list[str]:
    """The names of tensors that have the dimensions of an expression in their order; the last
    dimension may have another size.
    """
    names: list[str] = []
    for _ in range(DEPTH):
        if isinstance(node, ast.Name):
            names.append(node.id)
            values = reaching(program, node, scope)
            node = values[0] if len(values) == 1 else None
        elif isinstance(node, ast.Call) and node.args:
            made = [o.last for o in program.origins(node.func, scope)] or [last_name(node.func)]
            kept = all(name.replace("_", "").lower() in KEEPING for name in made)
            node = node.args[0] if kept else None
    return names


def _dimension(size: ast.expr, tensor: str, scope: Scope) -> int | None:
    """Which dimension of a tensor a size is: `x.size(1)`, `x.shape[1]`, or a name for it."""
    if isinstance(size, ast.Name):
        named = scope.bindings.get(size.id, ())
        bound = [b for b in named if line_of(b.statement) < size.lineno]
        if len(bound) != 1:
            return None
        size = bound[0].value
        if bound[0].index is not None:
            shape = rf"{tensor}\.(shape|size\(\))(\[:\d\])?"
            return bound[0].index if re.fullmatch(shape, ast.unparse(size)) else None
    found = re.fullmatch(rf"{tensor}\.(?:size\((\d)\)|shape\[(\d)\])", ast.unparse(size))
    return int(found[1] or found[2]) if found else None


def _order(size: ast.expr, tensor: str, scope: Scope) -> list[int | None]:
    """The dimensions of a tensor that a size is made of; neighbours in memory in their order,
    since `w * h` is as many as `h * w`.
    """
    if not (isinstance(size, ast.BinOp) and isinstance(size.op, ast.Mult)):
        return [_dimension(size, tensor, scope)]
    sides = [side for side in (size.left, size.right) if constant(side) is None]
    dims = [d for side in sides for d in _order(side, tensor, scope)]
    known = sorted(d for d in dims if d is not None)
    in_row = len(known) == len(dims) > 0 and known == list(range(min(known), max(known) + 1))
    return list(known) if in_row else dims


@rule("BH411")
def view_as_transpose(subject: Subject) -> Iterator[Place]:
    """The sizes of a tensor's own shape are given to `view` or `reshape` in another order."""
    program = subject.program
    for call in program.methods_of("view", "reshape"):
        scope, line = program.scope(call), line_of(program.statement(call))
        viewed, sizes = _reshaped(program, call)
        for name in _alike(program, viewed, scope) if not SHIFTS & words(scope.name) else ():
            order = [d for s in sizes for d in _order(s, name, scope)]
            known = [d for d in order if d is not None]
            permuted = known != sorted(known) == list(range(len(order)))
            heads = dotted(viewed) == name and len(order) > 3 and order[:3] == [0, None, 1]
            asked = {n for s in sizes for n in names_read(s)} - {name}
            read = [line_of(b.statement) for n in asked for b in scope.bindings.get(n, ())]
            bound = [(line_of(b.statement), b.value) for b in scope.bindings.get(name, ())]
            rebound = any(
                min(read, default=line) <= at < line and name not in _alike(program, value, scope)
                for at, value in bound
            )
            if (permuted or order[:2] == [1, 0] or heads) and not rebound:
                told = "this mixes elements and does not transpose"
                yield call, f"{name} is viewed with its own sizes in another order: {told}"


@rule("BH412")
def reshape_mixes_batch(subject: Subject) -> Iterator[Place]:
    """A tensor whose dimension 0 was moved away is reshaped to the size it had there."""
    program = subject.program
    for call in program.methods_of("view", "reshape"):
        scope = program.scope(call)
        viewed, sizes = _reshaped(program, call)
        moved = _moved(program, viewed, scope)
        if moved is None or not sizes or _dimension(sizes[0], moved.id, scope) != 0:
            continue
        bound = scope.bindings.get(sizes[0].id, []) if isinstance(sizes[0], ast.Name) else []
        read = line_of(bound[0].statement if bound else program.statement(call))
        permuted = line_of(program.statement(moved))
        lines = [line_of(b.statement) for b in scope.bindings.get(moved.id, ())]
        if not any(read < line < permuted or permuted <= line < read for line in lines):
            told = "rows of different samples are mixed"
            yield call, f"the batch dimension of {moved.id} is no longer first here: {told}"


def _moved(program: Program, node: ast.expr | None, scope: Scope) -> ast.Name | None:
    """The tensor whose first dimension was moved away by the last `permute` or `transpose`."""
    for _ in range(DEPTH):
        if isinstance(node, ast.Name):
            found = reaching_elements(program, node, scope)
            node = found[0][0] if len(found) == 1 and found[0][1] is None else None
        elif method(node) == "contiguous":
            node = receiver(node)
    order = [constant(a) for a in node.args] if isinstance(node, ast.Call) else []
    swapped = method(node) == "transpose" and 0 in order
    permuted = method(node) == "permute" and order[:1] != [0] and None not in order
    source = receiver(node)
    return source if (swapped or permuted) and isinstance(source, ast.Name) else None


@rule("BH413")
def softmax_over_batch(subject: Subject) -> Iterator[Place]:
    """Softmax with dimension 0 of attention scores, of class scores, or at the end of a
    Sequential, in code that sums nothing over that dimension.
    """
    program = subject.program
    for call in program.calls_of("softmax", "log_softmax", "Softmax", "LogSoftmax"):
        scope, above, text = program.scope(call), program.parents[call], ast.unparse(call)
        over_rows = re.search(r"[(,] ?(dim=)?0\)$", text)
        if not over_rows or SUMS.search(ast.unparse(scope.owner or scope.node)):
            continue
        if last_name(call.func)[0].isupper():
            batched = isinstance(above, ast.Call) and program.is_torch(above.func, "Sequential")
        else:
            functional = program.is_torch(call.func, "softmax", "log_softmax")
            source = keyword(call, "input", 0) if functional else receiver(call)
            again = [ast.unparse(c) for c in calls(scope.node) if "softmax" in last_name(c.func)]
            both_ways = source is None or sum(ast.unparse(source) in t for t in again) > 1  # pairs
            batched = not both_ways and _is_batched(program, call, source, scope)
        if batched:
            yield call, "this softmax normalises over the batch"


def _is_batched(program: Program, call: ast.Call, source: ast.expr | None, scope: Scope) -> bool:
    """Whether the first dimension is the batch: of scores of attention, of a network's output in a
    loop over a loader, of what a linear layer makes of batches at the end of `forward`.
    """
    values = reaching(program, source, scope) if isinstance(source, ast.Name) else [source]
    value = values[0] if len(values) == 1 else source
    if value is None or SCORES.search(ast.unparse(value)):
        return value is not None
    loops = [a for a in program.ancestors(call) if isinstance(a, ast.For)]
    if isinstance(value, ast.Call) and any(names_loader(a.iter) for a in loops):
        return is_model(program, value.func, scope)
    if scope.name != "forward" or activation(program, source, scope) != "linear":
        return False
    given = [dotted(a) for a in getattr(value, "args", ())]
    return isinstance(program.parents[call], ast.Return) and (
        (given == scope.parameters[1:2] and given[0] not in scope.bindings)
        or any(names_loader(n.iter) for n in program.nodes[ast.For])
        or any(
            method(c) == "flatten" and "1" in map(ast.unparse, c.args) for c in calls(scope.node)
        )
    )


@rule("BH414")
def softmax_without_dim(subject: Subject) -> Iterator[Place]:
    """A softmax of `torch.nn` or `torch.nn.functional` whose dimension is not given."""
    program = subject.program
    plain = ("softmax", "log_softmax", "softmin")
    for call in torch_calls(program, *plain, "Softmax", "LogSoftmax", "Softmin"):
        name, _, last = program.resolve(call.func).rpartition(".")
        given = keyword(call, "dim", int(last in plain))
        if name.startswith("torch.nn") and not has_unpacking(call) and given is None:
            yield call, f"{last} without a dimension: PyTorch picks one"


@rule("BH418")
def forward_called_directly(subject: Subject) -> Iterator[Place]:
    """`x.forward(…)` on a network, outside of networks and of functions that wrap a forward."""
    program = subject.program
    for call in program.methods_of("forward"):
        target, scope = receiver(call), program.scope(call)
        wraps = scope.name.startswith(("forward", "_forward", "__call__"))
        apart = not wraps and not program.is_module(scope.owner)
        named = bool(dotted(target)) and last_name(target) not in ("nn", "Module")
        if apart and named and is_model(program, target, scope):
            yield call, f"{dotted(call.func)} skips the hooks of {dotted(target)}(…)"


@rule("BH423")
def unused_layer(subject: Subject) -> Iterator[Place]:
    """In a file that trains, a network keeps a layer or a buffer that is read nowhere, by no name
    and no string.
    """
    program = subject.program
    read = {n.attr for n in program.nodes[ast.Attribute] if isinstance(n.ctx, ast.Load)}
    texts = [n.value for n in program.nodes[ast.Constant] if isinstance(n.value, str)]
    for owner in program.module_classes if subject.trains else ():
        found = FINDS_LAYERS.search(" ".join(identifiers(owner)))
        if found or "forward" not in program.methods[owner]:
            continue
        for call in calls(owner):
            buffer = dotted(call.func) == "self.register_buffer" and len(call.args) > 1
            name = constant(call.args[0]) if buffer else None
            if isinstance(name, str) and name not in read and sum(name in t for t in texts) == 1:
                yield call, f"the buffer {name} is filled and never used"
        for name, bound in program.attributes[owner].items():
            unread = name not in read and name not in texts and len(bound) == 1
            if unread and bound[0].index is None and makes_layer(program, bound[0].value):
                yield bound[0].value, f"self.{name} is created and never used"


@rule("BH426")
def noise_always_on(subject: Subject) -> Iterator[Place]:
    """The only input of `forward` plus random numbers of its shape, under no condition."""
    program = subject.program
    for owner in program.module_classes if torch_calls(program, *RANDOM) else ():
        forward = program.methods[owner].get("forward")
        if forward is None or len(forward.parameters) != 2 or NOISY & words(owner.name):
            continue
        transforms = any(owner.name in identifiers(c) for c in program.calls_of("Compose"))
        if transforms or "training" in identifiers(forward.node) or _restores(program):
            continue
        given = forward.parameters[1]
        for node in own_nodes_of(forward.node, ast.BinOp):
            noise = [s for s in (node.left, node.right) if dotted(s) != given]
            drawn = [c for s in noise for c in calls(s) if program.is_torch(c.func, *RANDOM)]
            alike = any(given in names_read(c) for c in drawn) and len(noise) == 1
            around = any(isinstance(a, (ast.If, ast.IfExp)) for a in program.ancestors(node))
            if isinstance(node.op, ast.Add) and alike and not around:
                yield node, f"noise is added to {given} in evaluation too"


def _restores(program: Program) -> bool:
    """Whether something is trained to give back what it is given, as a denoising autoencoder: its
    noise belongs to its task.
    """
    less = [n for n in program.nodes[ast.BinOp] if isinstance(n.op, ast.Sub)]
    targets = [loss.target for loss in loss_calls(program)]
    targets += [side for n in less for side in (n.left, n.right)]
    own = [c for c in program.all_calls if not program.resolve(c.func)]
    return bool({dotted(a) for c in own for a in c.args} & {dotted(t) for t in targets} - {""})


@rule("BH430")
def one_layer_n_times(subject: Subject) -> Iterator[Place]:
    """A module list or sequence is made of a list of one element that is multiplied, or of a
    comprehension that names one layer again and again.
    """
    program = subject.program
    for call in torch_calls(program, "ModuleList", "Sequential"):
        given = call.args[0] if call.args else None
        match given.value if isinstance(given, ast.Starred) else given:
            case ast.BinOp(left=ast.List(elts=[layer]), op=ast.Mult()) as many:
                pass
            case ast.ListComp(elt=ast.Name() as layer, generators=[drawn]) as many if (
                layer.id not in names_read(drawn.target)
            ):
                pass
            case _:
                continue
        tests = [a.test for a in program.ancestors(call) if isinstance(a, (ast.If, ast.IfExp))]
        named = {n for part in (program.statement(call), *tests) for n in identifiers(part)}
        plain = WITHOUT_WEIGHTS.match(last_name(getattr(layer, "func", None)))
        if not plain and not any(SHARED & words(n) for n in named):
            yield many, f"{ast.unparse(layer)} is one layer, however often it occurs there"
