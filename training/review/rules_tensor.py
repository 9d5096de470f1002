"""Rules BH411: to BH414: shapes and softmax."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.in_batches import is_output_of_batches
from training.review.kinds import is_model
from training.review.lookups import torch_calls
from training.review.program import Program, Scope
from training.review.shapes import same_dimensions
from training.review.syntax import (
    calls,
    constant,
    dotted,
    has_unpacking,
    identifiers,
    keyword,
    last_name,
    method,
    receiver,
    walk,
    words,
)
from training.review.values import reaching, reaching_elements

SHIFTS = {"shift", "skew", "relative", "rel"}  # relative positions are shifted by a view on purpose


@rule("BH411")
def view_as_transpose(subject: Subject) -> Iterator[Place]:
    """The sizes of a tensor's own shape, in another order, are given to `view` or `reshape` of it,
    or of what has its dimensions: layers and functions that keep all but the last.
    """
    program = subject.program
    yield from _columns_reshaped(program)
    for call in program.methods_of("view", "reshape"):
        functional = program.resolve(call.func) == "torch.reshape"
        if not call.args or SHIFTS & words(program.scope(call).name):
            continue
        scope, viewed, sizes = (
            program.scope(call),
            (call.args[0] if functional else receiver(call)),
            (call.args[1:] if functional else call.args),
        )
        given = (
            list(sizes[0].elts)
            if len(sizes) == 1 and isinstance(sizes[0], (ast.Tuple, ast.List))
            else sizes
        )
        for source in same_dimensions(program, viewed, scope):
            factors = [
                f for size in given for f in _in_order(_factors(size), source.id, call, scope)
            ]
            order = _with_rest(
                [_size_of(f, source.id, call, scope) for f in factors],
                factors,
                _dimensions(source.id, factors, scope),
            )
            known = [o for o in order if o is not None]
            permuted = (
                len(known) >= 2
                and len(known) == len(order)
                and sorted(known) == list(range(len(known)))
                and known != sorted(known)
            )
            rows_alone = _dimensions(source.id, factors, scope) == len(
                ("rows", "features")
            )  # what a layer makes of [n, d] may be split
            moved_back = order[:2] == [1, 0] or (
                not rows_alone
                and len(order) > 2
                and order[:3] == [0, None, 1]
                and constant(factors[1]) not in (1, -1)
            )  # [B, heads, T, …] of [B, T, …]
            if (permuted or moved_back) and not _changed_between(
                program, source, scope, call, given
            ):
                yield (
                    call,
                    (
                        f"{source.id} is viewed with its own sizes in another order: this mixes"
                        " elements, it does not transpose"
                    ),
                )


def _columns_reshaped(program: Program) -> Iterator[Place]:
    """`np.stack([table["a"], table["b"]]).reshape(-1, 2)`: columns one below the other, read as
    rows.
    """
    for call in program.methods_of("view", "reshape"):
        match call:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Call(func=made, args=[ast.List() | ast.Tuple() as columns]) as stack,
                    attr="reshape" | "view",
                )
            ):
                sizes = (
                    call.args[0].elts
                    if len(call.args) == 1 and isinstance(call.args[0], (ast.Tuple, ast.List))
                    else call.args
                )
                wide = len(columns.elts)
                whole = last_name(made) in ("stack", "vstack", "array") and constant(
                    keyword(stack, "axis")
                ) in (None, 0)
                if (
                    whole
                    and keyword(stack, "dim") is None
                    and len(sizes) == 2
                    and wide > 1
                    and constant(sizes[1]) == wide
                    and all(map(_is_column, columns.elts))
                ):
                    yield (
                        call,
                        (
                            f"{wide} columns lie one after the other here, and each row of this"
                            f" reshape takes {wide} values of one column"
                        ),
                    )


def _is_column(node: ast.expr) -> bool:
    """`table["a"]`, also with `.values`, `.to_numpy()`, `.astype(...)` behind it."""
    while isinstance(node, (ast.Attribute, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
    )


def _dimensions(source: str, factors: list[ast.expr], scope: Scope) -> int:
    """How many dimensions a tensor has, by the names that are unpacked from its shape; 0 where that
    is not known.
    """
    for name in (f.id for f in factors if isinstance(f, ast.Name)):
        for binding in scope.bindings.get(name, ()):
            target = (
                binding.statement.targets[0] if isinstance(binding.statement, ast.Assign) else None
            )
            whole = (
                isinstance(target, ast.Tuple)
                and not any(isinstance(e, ast.Starred) for e in target.elts)
                and not isinstance(binding.value, ast.Subscript)
            )
            if isinstance(target, ast.Tuple) and whole and _is_shape(binding.value, source):
                return len(target.elts)
    return 0


def _with_rest(
    order: list[int | None], factors: list[ast.expr], dimensions: int
) -> list[int | None]:
    """The order with a `-1` as the dimensions that are not named; a last one that nothing is known
    of is left out.
    """
    at = [i for i, f in enumerate(factors) if constant(f) == -1]
    rest: list[int | None] = [d for d in range(dimensions) if d not in order]
    if len(at) == 1 and rest and all(o is not None for i, o in enumerate(order) if i != at[0]):
        return [*order[: at[0]], *rest, *order[at[0] + 1 :]]
    return order[:-1] if at == [len(order) - 1] else order


def _in_order(factors: list[ast.expr], source: str, call: ast.Call, scope: Scope) -> list[ast.expr]:
    """The factors of one size as neighbours in memory where they are such: `time * variables` is as
    many as `variables * time`, and `2 * n` splits no other axis.
    """
    sizes = [_size_of(f, source, call, scope) for f in factors]
    known = [s for s in sizes if s is not None]
    if len(factors) == 1 or not known:
        return factors
    if sorted(known) == list(range(min(known), max(known) + 1)):
        named = sorted((s, i) for i, s in enumerate(sizes) if s is not None)
        return [factors[i] for _, i in named] + [
            f for f, s in zip(factors, sizes, strict=True) if s is None and constant(f) is None
        ]
    return factors


def _factors(size: ast.expr) -> list[ast.expr]:
    """`h * w` as its factors; anything else alone."""
    return (
        [*_factors(size.left), *_factors(size.right)]
        if isinstance(size, ast.BinOp) and isinstance(size.op, ast.Mult)
        else [size]
    )


def _size_of(size: ast.expr, source: str, call: ast.Call, scope: Scope) -> int | None:
    """Which dimension of the tensor a size is: `x.size(1)`, `x.shape[1]`, or a name unpacked from
    its shape.
    """
    if isinstance(size, ast.Name):
        bound = [
            b
            for b in scope.bindings.get(size.id, ())
            if getattr(b.statement, "lineno", 0) < call.lineno
        ]
        if len(bound) != 1:
            return None
        if bound[0].index is not None:
            return bound[0].index if _is_shape(bound[0].value, source) else None
        size = bound[0].value
    if (
        isinstance(size, ast.Call)
        and method(size) == "size"
        and dotted(receiver(size)) == source
        and size.args
    ):
        value = constant(size.args[0])
        return value if isinstance(value, int) else None
    if isinstance(size, ast.Subscript) and dotted(size.value) == f"{source}.shape":
        value = constant(size.slice)
        return value if isinstance(value, int) else None
    return None


def _is_shape(value: ast.expr, source: str) -> bool:
    if (
        isinstance(value, ast.Subscript)
        and isinstance(value.slice, ast.Slice)
        and value.slice.lower is None
    ):
        value = value.value
    return dotted(value) == f"{source}.shape" or (
        isinstance(value, ast.Call)
        and method(value) == "size"
        and not value.args
        and dotted(receiver(value)) == source
    )


def _changed_between(
    program: Program, source: ast.Name, scope: Scope, call: ast.Call, given: list[ast.expr]
) -> bool:
    """Whether the tensor got another value between its shape being read and the view."""
    read = [
        getattr(b.statement, "lineno", 0)
        for size in given
        for b in scope.bindings.get(last_name(size), ())
    ]
    start = min(read, default=call.lineno)
    return any(
        start <= getattr(b.statement, "lineno", 0) < call.lineno
        and source.id not in {n.id for n in same_dimensions(program, b.value, scope)}
        for b in scope.bindings.get(source.id, ())
        if b.statement is not program.statement(call)
    )


@rule("BH412")
def reshape_mixes_batch(subject: Subject) -> Iterator[Place]:
    """A permutation that moves dimension 0 away is reshaped to the first size of the tensor before
    it.
    """
    program = subject.program
    for call in program.methods_of("view", "reshape"):
        if not call.args:
            continue
        scope = program.scope(call)
        moved = _moved(program, receiver(call), scope)
        if moved is None:
            continue
        first = (
            call.args[0].elts[0]
            if isinstance(call.args[0], ast.Tuple) and call.args[0].elts
            else call.args[0]
        )
        of_itself = (
            _size_of(first, moved.id, call, scope) == 0
            and not _shape_read_after(program, first, moved, scope)
            and not _rebound_before(first, moved, scope)
        )
        ran = _ran_time_first(program, receiver(call), scope) and _is_batch_size(first, call, scope)
        if of_itself or (ran and _moved(program, moved, scope) is None):
            yield (
                call,
                (
                    f"the batch dimension of {moved.id} is no longer in front here: rows of"
                    " different samples are mixed"
                ),
            )


def _rebound_before(size: ast.expr, moved: ast.Name, scope: Scope) -> bool:
    """Whether the tensor got another value after its size was read, and before it was permuted."""
    read = (
        [getattr(b.statement, "lineno", 0) for b in scope.bindings.get(size.id, ())]
        if isinstance(size, ast.Name)
        else [moved.lineno]
    )
    return any(
        min(read, default=0) < getattr(b.statement, "lineno", 0) < moved.lineno
        for b in scope.bindings.get(moved.id, ())
    )


def _moved(program: Program, node: ast.expr | None, scope: Scope) -> ast.Name | None:
    """The tensor whose first dimension was moved away, directly or by the last value of the
    name.
    """
    if isinstance(node, ast.Call) and method(node) == "contiguous":
        return _moved(program, receiver(node), scope)
    if isinstance(node, ast.Name):
        elements = reaching_elements(program, node, scope)
        value, index = elements[0] if len(elements) == 1 else (node, None)
        if not isinstance(value, ast.Call):
            return None
        if _ran_time_first(
            program, node, scope
        ):  # its output has the dimensions of its input in their order
            return _moved(program, value.args[0], scope) if value.args else None
        return _moved(program, value, scope) if index is None else None
    if not isinstance(node, ast.Call) or not isinstance(receiver(node), ast.Name):
        return None
    order = [constant(a) for a in node.args]
    transposed = method(node) == "transpose" and 0 in order
    permuted = (
        method(node) == "permute"
        and bool(order)
        and order[0] != 0
        and all(isinstance(o, int) for o in order)
    )
    source = receiver(node)
    return source if (transposed or permuted) and isinstance(source, ast.Name) else None


def _ran_time_first(program: Program, node: ast.expr | None, scope: Scope) -> bool:
    """Whether a name holds the output of a recurrent layer."""
    elements = reaching_elements(program, node, scope) if isinstance(node, ast.Name) else []
    value, index = elements[0] if len(elements) == 1 else (None, None)
    made = program.origins(value.func, scope) if isinstance(value, ast.Call) and index == 0 else ()
    return bool(made) and all(
        o.name.startswith("torch.nn.") and o.last in ("LSTM", "GRU", "RNN") for o in made
    )


def _is_batch_size(size: ast.expr, call: ast.Call, scope: Scope) -> bool:
    """Whether a size is the first one of what `forward` is given."""
    given = scope.parameters[1] if scope.name == "forward" and len(scope.parameters) > 1 else ""
    return bool(given) and _size_of(size, given, call, scope) == 0


def _shape_read_after(program: Program, size: ast.expr, moved: ast.Name, scope: Scope) -> bool:
    """Whether the size is that of the tensor after the permutation, which took over its name."""
    permutation = program.statement(moved)
    rebinds = isinstance(permutation, ast.Assign) and dotted(permutation.targets[0]) == moved.id
    if not rebinds:
        return False
    if isinstance(size, ast.Name):
        return any(
            getattr(b.statement, "lineno", 0) > permutation.lineno
            for b in scope.bindings.get(size.id, ())
        )
    return program.statement(size) is not permutation


@rule("BH413")
def softmax_over_batch(subject: Subject) -> Iterator[Place]:
    """Softmax with dimension 0 of a network's or linear layer's output that is returned, of
    attention scores, or as the last layer of a Sequential.
    """
    program = subject.program
    if not torch_calls(
        program, "Softmax", "LogSoftmax", "softmax", "log_softmax"
    ) and not program.methods_of("softmax", "log_softmax"):
        return
    for call in program.all_calls:
        name, scope = program.resolve(call.func).rpartition(".")[2], program.scope(call)
        if (
            name in ("Softmax", "LogSoftmax")
            and program.is_torch(call.func, name)
            and constant(keyword(call, "dim", 0)) == 0
        ):
            parent = program.parents[call]
            if (
                isinstance(parent, ast.Call)
                and program.is_torch(parent.func, "Sequential")
                and not _of_one_bag(program, call)
            ):
                yield call, "this softmax normalises over the batch"
            continue
        source, dim = _softmax_of(program, call)
        if source is None:
            continue
        if (
            constant(dim) == 0
            and not isinstance(constant(dim), bool)
            and not _summed_over_it(scope)
            and not _both_ways(program, call, source, scope)
            and (
                _is_batched(program, source, scope, call)
                or is_output_of_batches(program, source, scope)
                or _summed_elsewhere(program, call, scope)
                or _summed_by_caller(program, call, scope)
            )
        ):
            yield call, "this softmax normalises over the batch"


def _summed_over_it(scope: Scope) -> bool:
    """Whether the function sums something over dimension 0 too: rows of one bag, nodes of one
    graph, slots that compete.
    """
    return any(
        method(c) == "sum"
        and constant(keyword(c, "dim", 0)) == 0
        and keyword(c, "dim", 0) is not None
        for c in calls(scope.node)
    )


def _of_one_bag(program: Program, call: ast.Call) -> bool:
    """Whether a method of the same class sums over dimension 0: what the softmax weighs are the
    instances of one bag.
    """
    owner = program.scope(call).owner
    return owner is not None and any(
        _summed_over_it(method_of) for method_of in program.methods[owner].values()
    )


def _softmax_of(program: Program, call: ast.Call) -> tuple[ast.expr | None, ast.expr | None]:
    """Of what a softmax is taken, and over which dimension; nothing for any other call."""
    if program.is_torch(call.func, "softmax", "log_softmax"):
        return keyword(call, "input", 0), keyword(call, "dim", 1)
    return (
        (receiver(call), keyword(call, "dim", 0))
        if method(call) in ("softmax", "log_softmax")
        else (None, None)
    )


def _both_ways(program: Program, call: ast.Call, source: ast.expr, scope: Scope) -> bool:
    """Whether the same scores have another softmax beside it, or its shares are divided by their
    sum over another dimension: pairs, or slots, of one sample.
    """
    for node in walk(scope.node):
        if isinstance(node, ast.Call) and node is not call:
            beside, _ = _softmax_of(program, node)
            if beside is not None and ast.unparse(beside) == ast.unparse(source):
                return True
        match node:
            case ast.BinOp(
                left=left,
                op=ast.Div(),
                right=ast.Call(func=ast.Attribute(value=summed, attr="sum")) as total,
            ):
                if ast.dump(summed) == ast.dump(left) and constant(
                    keyword(total, "dim", 0)
                ) not in (0, None):
                    return True
    return False


def _is_batched(program: Program, node: ast.expr | None, scope: Scope, call: ast.Call) -> bool:
    """Whether the first dimension is certainly the batch: a classifier's output in `forward` or in
    training, or scores of attention.
    """
    if isinstance(node, ast.Name):
        values = reaching(program, node, scope)
        return (
            len(values) == 1
            and not isinstance(values[0], ast.Name)
            and _is_batched(program, values[0], scope, call)
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.MatMult, ast.Div, ast.Mult)):
        return any(_compares_tokens(program, n) for n in calls(node))
    if not isinstance(node, ast.Call):
        return False
    if _batched_product(program, node):
        return True
    if (
        scope.name == "forward"
        and dotted(node.func).startswith("self.")
        and _takes_input(node, scope)
    ):
        return any(o.last == "Linear" for o in program.origins(node.func, scope))
    return "loader" in " ".join(
        n.lower()
        for a in program.ancestors(call)
        if isinstance(a, ast.For)
        for n in identifiers(a.iter)
    ) and is_model(program, node.func, scope)


def _summed_elsewhere(program: Program, softmax: ast.Call, scope: Scope) -> bool:
    """Whether something weighted by it is summed over another dimension than that over which the
    weights add up to one.
    """
    if _is_vector(program, softmax, scope):
        return False
    statement = program.statement(softmax)
    names = (
        {dotted(t) for t in statement.targets} - {""}
        if isinstance(statement, ast.Assign) and statement.value is softmax
        else set()
    )
    for call in walk(scope.node):
        inner = receiver(call) if isinstance(call, ast.Call) and method(call) == "sum" else None
        if not (
            isinstance(call, ast.Call)
            and isinstance(inner, ast.BinOp)
            and isinstance(inner.op, ast.Mult)
        ):
            continue
        weighted = any(
            side is softmax or dotted(side) in names for side in (inner.left, inner.right)
        )
        over = constant(keyword(call, "dim", 0))
        if weighted and isinstance(over, int) and over > 0 and program.scope(call) is scope:
            return True
    return False


def _is_vector(program: Program, softmax: ast.Call, scope: Scope) -> bool:
    """Whether the softmax is that of a parameter of one dimension: there is no batch in it."""
    source = (
        receiver(softmax)
        if method(softmax) in ("softmax", "log_softmax") and not program.resolve(softmax.func)
        else keyword(softmax, "input", 0)
    )
    made = program.bindings_of(source, scope) if isinstance(source, ast.Attribute) else []
    inner = [
        c
        for b in made
        for c in calls(b.value)
        if last_name(c.func) in ("zeros", "ones", "randn", "rand", "full")
    ]
    return (
        len(made) == 1
        and len(inner) == 1
        and (len(inner[0].args) == 1 or last_name(inner[0].func) == "full")
        and not isinstance(inner[0].args[0], ast.Tuple)
    )


def _summed_by_caller(program: Program, softmax: ast.Call, scope: Scope) -> bool:
    """Whether it is what a network gives back, and another one sums something weighted by it over
    another dimension.
    """
    if (
        scope.name != "forward"
        or scope.owner is None
        or not isinstance(program.parents[softmax], ast.Return)
    ):
        return False
    made = [
        c
        for c in program.all_calls
        if dotted(c.func).startswith("self.")
        and any(o.name == scope.owner.name for o in program.origins(c.func, program.scope(c)))
    ]
    return any(_summed_elsewhere(program, c, program.scope(c)) for c in made)


def _takes_input(layer: ast.Call, forward: Scope) -> bool:
    """Whether a layer gets what `forward` gets, whose first dimension is the batch."""
    return (
        len(layer.args) == 1
        and isinstance(layer.args[0], ast.Name)
        and layer.args[0].id in forward.parameters[1:2]
        and layer.args[0].id not in forward.bindings
    )


def _compares_tokens(program: Program, call: ast.Call) -> bool:
    """Whether a part of a product transposes keys, or is a product of batches by itself."""
    return (
        method(call) == "transpose" and [constant(a) for a in call.args] in ([-2, -1], [-1, -2])
    ) or _batched_product(program, call)


def _batched_product(program: Program, call: ast.Call) -> bool:
    """Whether it is an einsum whose first dimension runs along in all its factors, and is not
    summed over: a batch.
    """
    spec = constant(call.args[0]) if call.args and program.is_torch(call.func, "einsum") else None
    if not isinstance(spec, str):
        return False
    factors, _, result = spec.replace(" ", "").partition("->")
    return (
        len(result) > 2
        and result[0].isalpha()
        and "," in factors
        and all(f[:1] == result[0] for f in factors.split(","))
    )


@rule("BH414")
def softmax_without_dim(subject: Subject) -> Iterator[Place]:
    """A softmax of `torch.nn` or `torch.nn.functional` whose dimension is not given."""
    program = subject.program
    for call in torch_calls(
        program, "softmax", "log_softmax", "softmin", "Softmax", "LogSoftmax", "Softmin"
    ):
        name = program.resolve(call.func)
        last = name.rpartition(".")[2]
        position = 1 if last in ("softmax", "log_softmax", "softmin") else 0
        if (
            name.startswith("torch.nn.")
            and not has_unpacking(call)
            and keyword(call, "dim", position) is None
        ):
            yield call, f"{last} without a dimension: torch guesses one"
