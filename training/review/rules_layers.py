"""Rules BH423: to BH426: layers that are left out, and computations in forward that look at the
batch or draw at random.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to, torch_calls
from training.review.program import Origin, Program, Scope
from training.review.rules_module import is_layer
from training.review.syntax import (
    calls,
    constant,
    dotted,
    has_unpacking,
    identifiers,
    is_false,
    is_true,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes,
    receiver,
    walk,
    words,
)
from training.review.values import PASSED_ON, loss_calls, reaching

RECURRENT = {"LSTM", "GRU", "RNN"}
TURNS = {
    "transpose", "permute", "rearrange", "swapaxes", "swapdims", "movedim", "moveaxis", "einsum",
    "batch_sampler", "pack_padded_sequence", "t", "T", "mT",
}  # fmt: skip
RESHAPES = {"unsqueeze", "stack", "view", "reshape", "unflatten", "flatten", "expand", "repeat"}
BATCH_FIRST_AT: dict[str, int | None] = {"LSTM": 4, "GRU": 4, "RNN": 5, "MultiheadAttention": None}
FINDS_LAYERS = {
    "children", "modules", "named_children", "named_modules", "getattr", "_modules", "__getattr__",
    "__dict__", "get_submodule", "attrgetter",
}  # fmt: skip
NOISY = {
    "channel", "awgn", "dequantise", "dequantize", "dequantised", "dequantized", "dequantisation",
    "dequantization", "smoothed", "smoothing",
}  # fmt: skip
SHARED = {"share", "shared", "tied", "unrolled", "recurrent", "universal"}
NOISE = {"randn_like", "rand_like", "randn", "rand", "normal"}


WITHOUT_WEIGHTS = (
    "AvgPool", "MaxPool", "AdaptiveAvgPool", "Dropout", "ReLU", "GELU", "SiLU", "Tanh", "Sigmoid",
    "Flatten", "Identity", "Upsample",
)  # fmt: skip


@rule("BH423")
def unused_layer(subject: Subject) -> Iterator[Place]:
    """In a file that trains, `__init__` keeps a layer as an attribute, or a buffer, that is read
    nowhere, by no name and no string.
    """
    program = subject.program
    if not subject.trains:
        return
    read = {n.attr for n in program.nodes[ast.Attribute] if isinstance(n.ctx, ast.Load)}
    texts = [n.value for n in program.nodes[ast.Constant] if isinstance(n.value, str)]
    for owner in program.module_classes:
        if "forward" not in program.methods[owner] or FINDS_LAYERS & identifiers(owner):
            continue
        for call in calls(owner):
            name = (
                constant(call.args[0])
                if method(call) == "register_buffer"
                and dotted(receiver(call)) == "self"
                and len(call.args) > 1
                else None
            )
            if (
                isinstance(name, str)
                and name not in read
                and texts.count(name) == 1
                and not any(name in t for t in texts if t != name)
            ):
                yield call, f"the buffer {name} is filled and never used"
        for name, bindings in program.attributes[owner].items():
            made = bindings[0]
            if (
                name not in read
                and name not in texts
                and len(bindings) == 1
                and made.index is None
                and is_layer(program, made.value)
            ):
                yield made.value, f"self.{name} is made and never used"


@rule("BH424")
def batch_first_missing(subject: Subject) -> Iterator[Place]:
    """Of a layer whose first dimension is time, the last step or the mean over steps is taken along
    dimension 1; or rows are padded with time in front for layers with rows in front.
    """
    program = subject.program
    yield from _padded_with_time_in_front(program)
    yield from (told := list(_time_along_second(program)))
    if not told:
        yield from _never_turned(program)


def _time_along_second(program: Program) -> Iterator[Place]:
    """The last step, or the mean over steps, of what such a layer gives is taken along
    dimension 1.
    """
    for owner in (
        program.module_classes
        if torch_calls(program, *BATCH_FIRST_AT, "TransformerEncoder")
        else ()
    ):
        for scope in program.methods[owner].values():
            for node in own_nodes(scope.node):
                source = _taken_along_second(node)
                made = _time_first_output(program, source, scope) if source is not None else None
                alone = (
                    _takes_first(node) and (made.last in RECURRENT or _has_batch_of_one(scope))
                    if made is not None
                    else False
                )
                if made is not None and not alone:  # of a batch of one, `[:, 0]` is all its steps
                    yield (
                        node,
                        (
                            f"{made.last} was made without batch_first: its dimension 1 is the"
                            " batch, not time"
                        ),
                    )


def _never_turned(program: Program) -> Iterator[Place]:
    """A layer that takes time in front in a file whose batches come from loaders, rows in front,
    and whose networks turn, add and stack no axis.
    """
    loaders = calls_to(program, "torch.utils.data.DataLoader")
    made = torch_calls(program, *BATCH_FIRST_AT) if loaders else []
    if not made or any(has_unpacking(c) or keyword(c, "collate_fn") is not None for c in loaders):
        return
    if any(
        isinstance(b := keyword(c, "batch_size", 1), ast.Constant) and b.value is None
        for c in loaders
    ):
        return  # single sequences, which have no dimension of rows
    named = program.called_names | {n.attr for n in program.nodes[ast.Attribute]}
    inside = [
        n
        for owner in program.module_classes
        for scope in program.methods[owner].values()
        if scope.name != "__init__"
        for n in walk(scope.node)
    ]
    if TURNS & named or any(
        last_name(n) in RESHAPES or (isinstance(n, ast.Subscript) and _adds_axis(n)) for n in inside
    ):
        return
    for call in made:
        owner, statement = program.scope(call).owner, program.statement(call)
        if (
            owner is None
            or not isinstance(statement, ast.Assign)
            or not _is_time_first(call, BATCH_FIRST_AT[last_name(call.func)])
        ):
            continue
        name = dotted(statement.targets[0])
        if any(dotted(c.func) == name for c in inside if isinstance(c, ast.Call)):
            yield (
                call,
                (
                    f"{last_name(call.func)} takes time in front, and nothing here turns the rows"
                    " of the loaders to the second dimension"
                ),
            )


def _adds_axis(node: ast.Subscript) -> bool:
    """Whether it is `x[:, None]` or `x[None]`."""
    return any(
        isinstance(n, ast.Constant) and n.value is None
        for n in (node.slice, *getattr(node.slice, "elts", ()))
    )


def _padded_with_time_in_front(program: Program) -> Iterator[Place]:
    """`pad_sequence` without `batch_first` in a file whose recurrent and attention layers all have
    it, and that turns no axes.
    """
    padded = calls_to(program, "torch.nn.utils.rnn.pad_sequence")
    if not padded:
        return
    layers = torch_calls(
        program, *BATCH_FIRST_AT, "TransformerEncoderLayer", "TransformerDecoderLayer"
    )
    turned = {
        "transpose",
        "permute",
        "rearrange",
        "swapaxes",
        "movedim",
        "t",
        "T",
        "mT",
    } & program.identifiers
    if (
        not layers
        or turned
        or not all(
            is_true(keyword(c, "batch_first", BATCH_FIRST_AT.get(last_name(c.func))))
            for c in layers
        )
    ):
        return
    for call in padded:
        if keyword(call, "batch_first", 1) is None and not has_unpacking(call):
            yield (
                call,
                (
                    f"pad_sequence puts time in front, and {last_name(layers[0].func)} has"
                    " batch_first=True"
                ),
            )


def _taken_along_second(node: ast.AST) -> ast.expr | None:
    """The tensor of which `[:, -1]` or `[:, 0]` is taken, or the mean over dimension 1."""
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Tuple)
        and len(node.slice.elts) >= 2
    ):
        first, second = node.slice.elts[:2]
        whole = isinstance(first, ast.Slice) and first.lower is None and first.upper is None
        return (
            node.value
            if whole and constant(second) in (0, -1) and not isinstance(constant(second), bool)
            else None
        )
    if (
        isinstance(node, ast.Call)
        and method(node) == "mean"
        and constant(keyword(node, "dim", 0)) == 1
    ):
        return receiver(node)
    return None


def _time_first_output(program: Program, node: ast.expr, scope: Scope) -> Origin | None:
    """The layer without `batch_first` whose output a name is at that place, or `self.rnn(x)[0]`."""
    call, index = node, None
    if isinstance(node, ast.Subscript) and constant(node.slice) == 0:
        call, index = node.value, 0
    elif isinstance(node, ast.Name):
        before = [
            b
            for b in scope.bindings.get(node.id, ())
            if getattr(b.statement, "lineno", 0) < node.lineno and b.how == "assign"
        ]
        last = max(before, key=lambda b: getattr(b.statement, "lineno", 0), default=None)
        call, index = (last.value, last.index) if last is not None else (node, None)
    if not isinstance(call, ast.Call) or not dotted(call.func).startswith("self."):
        return None
    made = program.origins(call.func, scope)
    return (
        made[0]
        if made
        and all(
            _time_first(program, o) and index == (None if o.last == "TransformerEncoder" else 0)
            for o in made
        )
        else None
    )


def _time_first(program: Program, made: Origin) -> bool:
    """Whether a layer of torch takes time in front, as it does unless told otherwise."""
    if made.name == "torch.nn.TransformerEncoder":
        blocks = program.origins(keyword(made.call, "encoder_layer", 0), made.scope)
        return bool(blocks) and all(
            o.name == "torch.nn.TransformerEncoderLayer" and _is_time_first(o.call, None)
            for o in blocks
        )
    return (
        made.name.startswith("torch.nn.")
        and made.last in BATCH_FIRST_AT
        and _is_time_first(made.call, BATCH_FIRST_AT[made.last])
    )


def _is_time_first(call: ast.Call, place: int | None) -> bool:
    given = keyword(call, "batch_first", place)
    return not has_unpacking(call) and (given is None or is_false(given))


def _has_batch_of_one(forward: Scope) -> bool:
    """Whether a dimension of one is put in at 1: the layer is given one sequence, `[:, 0]` of what
    it gives is all of it.
    """
    by_call = any(
        method(c) == "unsqueeze" and constant(keyword(c, "dim", 0)) == 1
        for c in calls(forward.node)
    )
    return by_call or any(
        isinstance(n.slice, ast.Tuple)
        and len(n.slice.elts) > 1
        and isinstance(n.slice.elts[1], ast.Constant)
        and n.slice.elts[1].value is None
        for n in nodes_of(forward.node, ast.Subscript)
    )


def _takes_first(node: ast.AST) -> bool:
    """Whether it is `[:, 0]`."""
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Tuple)
        and constant(node.slice.elts[1]) == 0
    )


@rule("BH426")
def noise_always_on(subject: Subject) -> Iterator[Place]:
    """The only input of `forward`, unscaled, plus random numbers of its shape, under no
    condition.
    """
    program = subject.program
    for owner in program.module_classes if torch_calls(program, *NOISE) else ():
        forward = program.methods[owner].get("forward")
        if (
            forward is None
            or len(forward.parameters) != 2
            or "training" in identifiers(forward.node)
            or NOISY & words(owner.name)
        ):
            continue
        if any(owner.name in identifiers(c) for c in program.calls_of("Compose")):
            continue
        for node in own_nodes(forward.node):
            if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)) or any(
                isinstance(a, (ast.If, ast.IfExp)) for a in program.ancestors(node)
            ):
                continue
            sides = [
                side
                for side in (node.left, node.right)
                if isinstance(side, ast.Name) and side.id == forward.parameters[1]
            ]
            other = node.right if sides and sides[0] is node.left else node.left
            drawn = [c for c in calls(other) if program.is_torch(c.func, *NOISE)]
            if (
                sides
                and drawn
                and sides[0].id in names_read(drawn[0])
                and not _restores_its_input(program, owner)
            ):
                yield node, f"noise is added to {sides[0].id} in evaluation too"


@rule("BH430")
def one_layer_n_times(subject: Subject) -> Iterator[Place]:
    """A module list or sequence is made of a list of one element that is multiplied, or of a
    comprehension that names one thing again and again.
    """
    program = subject.program
    for call in torch_calls(program, "ModuleList", "Sequential"):
        if not call.args:
            continue
        given = call.args[0].value if isinstance(call.args[0], ast.Starred) else call.args[0]
        match given:
            case (
                ast.BinOp(left=ast.List(elts=[layer]), op=ast.Mult())
                | ast.BinOp(op=ast.Mult(), right=ast.List(elts=[layer]))
            ):
                if not (
                    isinstance(layer, ast.Call) and _without_weights(last_name(layer.func))
                ) and not _shared_on_purpose(program, call, layer):
                    yield given, f"{ast.unparse(layer)} is one layer, however often it stands there"
            case ast.ListComp(
                elt=ast.Name(id=name), generators=[ast.comprehension(target=target)]
            ) if name not in names_read(target) and not SHARED & words(name):
                yield given, f"{name} is one layer, however often it stands there"


def _without_weights(layer: str) -> bool:
    """Whether a class is one of layers that learn nothing, by its name."""
    return layer.startswith(WITHOUT_WEIGHTS) or bool({"skip", "identity"} & words(layer))


def _shared_on_purpose(program: Program, call: ast.Call, layer: ast.expr) -> bool:
    """Whether names say that one layer is gone through again and again."""
    target = getattr(program.statement(call), "targets", [None])[0]
    if any(
        isinstance(a, (ast.If, ast.IfExp))
        and SHARED & {w for n in identifiers(a.test) for w in words(n)}
        for a in program.ancestors(call)
    ):
        return True
    return bool(
        SHARED
        & (
            words(last_name(layer))
            | words(last_name(target) if isinstance(target, ast.expr) else "")
        )
    )


def _restores_its_input(program: Program, owner: ast.ClassDef) -> bool:
    """Whether a network is trained to give back what it is given: noise inside of it is what such
    an autoencoder has to take away, in evaluation as well.
    """
    pairs = [(loss.scores, loss.target, loss.scope) for loss in loss_calls(program)]
    for node in program.nodes[ast.BinOp]:
        if isinstance(node.op, ast.Sub):
            pairs += [
                (node.left, node.right, program.scope(node)),
                (node.right, node.left, program.scope(node)),
            ]
    return any(
        target is not None and _gives_back(program, owner, scores, target, scope)
        for scores, target, scope in pairs
    )


def _gives_back(
    program: Program, owner: ast.ClassDef, scores: ast.expr, target: ast.expr, scope: Scope
) -> bool:
    wanted = ast.unparse(_bare(target))
    values = reaching(program, scores, scope) if isinstance(scores, ast.Name) else [scores]
    for call in map(_bare, values):
        if (
            isinstance(call, ast.Call)
            and len(call.args) == 1
            and ast.unparse(_bare(call.args[0])) == wanted
        ):
            known = program.origins(call.func, scope)
            if any(o.name == owner.name for o in known) or (
                not known and not program.resolve(call.func).startswith("torch.")
            ):
                return True
    return False


def _bare(node: ast.expr) -> ast.expr:
    """A value without the reshapes and casts that it goes through."""
    while (
        isinstance(node, ast.Call)
        and method(node) in PASSED_ON
        and (inner := receiver(node)) is not None
    ):
        node = inner
    return node
