"""Rules BH301 to BH307, BH310, BH317, BH327 and BH336: what a loss is given."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_given, calls_to, torch_calls
from training.review.program import Origin, Program, Scope
from training.review.roles import is_frozen_name, is_model
from training.review.syntax import (
    calls,
    constant,
    dotted,
    identifiers,
    is_true,
    keyword,
    last_name,
    method,
    nodes_of,
    own_nodes_of,
    receiver,
    words,
)
from training.review.values import LossCall, activation, loss_calls, number, reaching, value_of

# words
SCORES = {"logits", "output", "outputs", "out", "pred", "preds", "predictions", "scores"}
LABELS = {"label", "labels", "target", "targets", "y", "y_true", "yb", "gt"}
TAGS = {"tag", "tags", "label", "labels", "target", "targets", "y", "ys", "tgt", "tgts", "slots"}
MASKS = {"mask", "masks", "masked", "keep"}
POSITIVE = {"pos", "positive", "positives", "npos"}
NEGATIVE = {"neg", "negative", "negatives", "nneg"}
SIZES = {
    "size", "shape", "len", "numel", "classes", "class", "labels", "vocab", "dim", "num", "n", "c",
    "k", "batch", "bs", "b", "width", "bins",
}  # fmt: skip
# names of torch
OF_LOGITS = ("Categorical", "Bernoulli", "OneHotCategorical", "Multinomial")
MOVES = {"to", "cuda", "float", "double"}  # that keep a shape
FLATTENS = {"squeeze", "flatten", "view", "reshape"}
MANY = 50  # a weight that makes up for a mean over classes
IGNORED = -100  # what torch leaves out by default


def _fed(program: Program, kinds: str, wrong: str, said: str) -> Iterator[Place]:
    """The losses of these kinds whose scores come straight out of one of these operations."""
    for loss in loss_calls(program):
        made = activation(program, loss.scores, loss.scope) if loss.kind in kinds.split() else ""
        if made in wrong.split():
            yield loss.call, said.format(made), loss.scope.node if loss.scope.name else loss.call


@rule("BH301")
def softmax_before_cross_entropy(subject: Subject) -> Iterator[Place]:
    """The scores of a cross-entropy, or the `logits` of a distribution, went through a softmax."""
    program, said = subject.program, "{} is applied before cross-entropy, which expects raw scores"
    yield from _fed(program, "cross_entropy", "softmax sigmoid", said)
    for call in torch_calls(program, *OF_LOGITS):
        made = activation(program, keyword(call, "logits"), program.scope(call))
        if made in ("softmax", "sigmoid"):
            yield call, f"{made} is applied before `logits`, which must be raw scores"


@rule("BH302")
def sigmoid_before_bce_with_logits(subject: Subject) -> Iterator[Place]:
    """The scores that BCE with logits, or logsigmoid, gets went through a sigmoid already."""
    program, said = subject.program, "{} is applied before BCE with logits, which takes raw scores"
    yield from _fed(program, "bce_logits", "sigmoid softmax log_sigmoid", said)
    for call in torch_calls(program, "logsigmoid"):
        if call.args and activation(program, call.args[0], program.scope(call)) == "sigmoid":
            yield call, "sigmoid is applied before logsigmoid, which expects raw scores"


@rule("BH303")
def nll_without_log_softmax(subject: Subject) -> Iterator[Place]:
    """The scores of a negative log-likelihood come out of something else than a log-softmax."""
    said = "the loss expects log-probabilities and gets the output of {}"
    yield from _fed(subject.program, "nll ctc", "softmax linear sigmoid relu", said)


@rule("BH304")
def bce_without_sigmoid(subject: Subject) -> Iterator[Place]:
    """The probabilities of BCE come straight out of a linear layer, a ReLU or a log."""
    said = "BCELoss expects probabilities and gets the output of {}"
    yield from _fed(subject.program, "bce", "linear relu log_softmax log_sigmoid tanh", said)


@rule("BH305")
def kl_without_log(subject: Subject) -> Iterator[Place]:
    """`kl_div` gets probabilities first, or log-probabilities second without `log_target`."""
    program, said = subject.program, "kl_div expects log-probabilities first and gets the output of"
    yield from _fed(program, "kl", "softmax sigmoid linear", said + " {}")
    for call, kind, _, target, scope in loss_calls(program):
        function = kind == "kl" and last_name(call.func) == "kl_div"
        logs = function and activation(program, target, scope) == "log_softmax"
        if logs and not is_true(keyword(call, "log_target")):
            yield call, "the target holds log-probabilities, and log_target=True is not set"


@rule("BH306")
def loss_arguments_swapped(subject: Subject) -> Iterator[Place]:
    """The first argument of a loss is labels, the second scores, by name or by what made them."""
    program = subject.program
    for call, kind, first, second, scope in loss_calls(program):
        if kind not in ("cross_entropy", "nll", "bce", "bce_logits") or second is None:
            continue
        values = reaching(program, second, scope) if isinstance(second, ast.Name) else [second]
        made = [v.func for v in values if isinstance(v, ast.Call)]
        learns = [is_model(program, f, scope) and not is_frozen_name(dotted(f)) for f in made]
        traced = _from_batch(first, scope) and made and len(learns) == len(values) and all(learns)
        raw = activation(program, second, scope) in ("linear", "log_softmax")
        swapped = last_name(first) in LABELS and (raw or SCORES & words(last_name(second)))
        if len(call.args) > 1 and (traced or swapped):
            message = f"{ast.unparse(first)} comes first and {ast.unparse(second)} second"
            yield call, f"{message}: the loss expects scores, then labels"


def _from_batch(node: ast.expr | None, scope: Scope) -> bool:
    """Whether a name is an element of what a loop gives, at most moved."""
    bound = scope.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
    moved = [method(b.value) in MOVES or b.how == "loop" for b in bound]
    return all(moved) and any(b.how == "loop" and b.index is not None for b in bound)


@rule("BH307")
def loss_on_decision(subject: Subject) -> Iterator[Place]:
    """The scores that a loss gets came out of `argmax`."""
    for loss in loss_calls(subject.program):
        if activation(subject.program, loss.scores, loss.scope) == "argmax":
            yield loss.call, "argmax has no gradient: nothing before it can learn from this loss"


@rule("BH310")
def loss_broadcast(subject: Subject) -> Iterator[Place]:
    """Scores of one column meet targets of a loop that the file treats as flat elsewhere."""
    program = subject.program
    for node, scores, target, scope in _meetings(program) if not _has_columns(program) else ():
        values = reaching(program, scores, scope) if isinstance(scores, ast.Name) else [scores]
        made = values[0] if len(values) == 1 and _from_batch(target, scope) else None
        network = made.func if isinstance(made, ast.Call) else None
        ends = {o for o in program.origins(network, scope) if _ends_in_one_column(program, o)}
        if ends and _flat_elsewhere(program, {o.call for o in ends}):
            message = f"{ast.unparse(scores)} has one column, {ast.unparse(target)} has none"
            yield node, f"{message}: every score is compared with every target"


def _has_columns(program: Program) -> bool:
    """Whether the file turns anything into a column, which targets may be then."""
    shaped = [c for c in program.methods_of("unsqueeze", "view", "reshape") if c.args]
    tables = [n.slice for n in program.nodes[ast.Subscript] if isinstance(n.slice, ast.List)]
    return any(len(t.elts) == 1 for t in tables) or any(
        method(c) == "unsqueeze" or constant(c.args[-1]) == 1 for c in shaped
    )


def _meetings(program: Program) -> Iterator[tuple[ast.expr, ast.expr, ast.expr, Scope]]:
    """Where scores meet targets: losses that broadcast, and differences."""
    for call, kind, scores, target, scope in loss_calls(program):
        if kind in ("mse", "l1") and target is not None:
            yield call, scores, target, scope
    for node in program.nodes[ast.BinOp]:
        if isinstance(node.op, ast.Sub):
            yield node, node.left, node.right, program.scope(node)
            yield node, node.right, node.left, program.scope(node)


def _ends_in_one_column(program: Program, made: Origin) -> bool:
    """Whether a network is `Linear(…, 1)`, ends in it, or returns what such a layer gives."""
    if made.name == "torch.nn.Linear":
        return constant(keyword(made.call, "out_features", 1)) == 1
    last = made.call.args[-1] if made.name == "torch.nn.Sequential" and made.call.args else None
    if isinstance(last, ast.Call):
        return _ends_in_one_column(program, Origin(program.resolve(last.func), last, made.scope))
    owner = program.classes.get(made.name)
    forward = program.find_method(owner, "forward") if owner is not None else None
    returned = own_nodes_of(forward.node, ast.Return) if forward is not None else []
    value = returned[0].value if len(returned) == 1 else None
    if forward is None or not isinstance(value, ast.Call):
        return False
    layers = program.origins(value.func, forward) if dotted(receiver(value)) == "self" else ()
    nested = any(o.name in program.classes for o in layers)
    return bool(layers) and not nested and all(_ends_in_one_column(program, o) for o in layers)


def _flat_elsewhere(program: Program, made: set[ast.Call]) -> bool:
    """Whether what these networks give is made flat elsewhere to meet targets."""
    for _, scores, other, scope in _meetings(program):
        dims = {constant(a) for a in getattr(scores, "args", ())}
        flat = method(scores) in FLATTENS and len(dims) < 2 and dims <= {1, -1}
        on = receiver(scores) if flat and isinstance(other, ast.Name) else None
        values = reaching(program, on, scope) if isinstance(on, ast.Name) else [on]
        called = [v.func for v in values if isinstance(v, ast.Call)]
        if any(o.call in made for f in called for o in program.origins(f, scope)):
            return True
    return False


@rule("BH317")
def divergence_averaged_over_classes(subject: Subject) -> Iterator[Place]:
    """A KL divergence takes the mean, and nothing multiplies it by a number of classes."""
    program = subject.program
    for loss in (x for x in loss_calls(program) if x.kind == "kl"):
        call, function = loss.call, program.resolve(loss.call.func).startswith("torch.")
        made = [call] if function else [o.call for o in program.origins(call.func, loss.scope)]
        events = (e for trace in subject.traces for e in trace if e.node is call)
        quiet = any(e.within("no_grad", "inference_mode") for e in events)
        watched = quiet or getattr(program.parents[call], "attr", "") == "item"
        mean = all(_takes_the_mean(c, 2 if function else 0) for c in made)
        sites = [program.statement(c) for c, _ in program.call_sites[loss.scope]]
        regions = [loss.scope.node if loss.scope.name else program.statement(call), *sites]
        scaled = any(_scales(program, r, loss.scope) for r in regions)
        if made and mean and not watched and not scaled:
            yield call, 'reduction="mean" divides by the classes too: the divergence is too small'


def _takes_the_mean(call: ast.Call, positions: int) -> bool:
    """Whether a loss is left at the reduction mean."""
    given = {k.arg: constant(k.value) for k in call.keywords}
    other = given.keys() & {"size_average", "reduce", None} or len(call.args) > positions
    return not other and given.get("reduction", "mean") == "mean"


def _scales(program: Program, region: ast.AST, scope: Scope) -> bool:
    """Whether something is multiplied there by what may be a number of classes."""
    products = [n for n in nodes_of(region, ast.BinOp) if isinstance(n.op, ast.Mult)]
    factors = [f for p in products for f in (p.left, p.right)]
    factors += [n.value for n in nodes_of(region, ast.AugAssign) if isinstance(n.op, ast.Mult)]
    factors += [a for c in calls(region) if method(c) in ("mul", "mul_") for a in c.args]
    numbers = [number(program, f, scope) or 0 for f in factors]
    whole = any(isinstance(n, int) and n > 1 for n in map(constant, factors))
    return bool(SIZES & _words_of(*factors)) or whole or any(n >= MANY for n in numbers)


@rule("BH327")
def weight_of_frequent_class(subject: Subject) -> Iterator[Place]:
    """`pos_weight` is the count of positives by the count of negatives."""
    program = subject.program
    for call in calls_given(program, "pos_weight"):
        given, scope = keyword(call, "pos_weight"), program.scope(call)
        value = value_of(program, given, scope) if given is not None else None
        for made in nodes_of(value, ast.BinOp)[:1]:  # also inside of `torch.tensor([…])`
            sides = [_class_counted(program, side, scope) for side in (made.left, made.right)]
            if isinstance(made.op, ast.Div) and sides == ["positive", "negative"]:
                quotient = ast.unparse(made)
                yield given or call, f"{quotient} is small where positives are rare: invert it"


def _class_counted(program: Program, node: ast.expr, scope: Scope) -> str:
    """Which class something is the count of, by its name or by what labels are compared with."""
    named = [_words_of(node) & side for side in (POSITIVE, NEGATIVE)]
    if any(named):
        return "" if all(named) else "positive" if named[0] else "negative"
    made = value_of(program, node, scope)
    counted = receiver(made) if method(made) == "sum" else None
    part, minus = getattr(counted, "right", counted), getattr(counted, "op", None)
    if LABELS & words(last_name(part)) and isinstance(minus, (ast.Sub, type(None))):
        return "positive" if part is counted else "negative"
    compared = [n for n in nodes_of(made, ast.Compare) if isinstance(n.ops[0], ast.Eq)]
    against = {constant(n.comparators[0]) for n in compared}
    return "positive" if against == {1} else "negative" if against == {0} else ""


@rule("BH336")
def padded_labels_count(subject: Subject) -> Iterator[Place]:
    """Labels are padded next to inputs with a number that no cross-entropy of the file ignores."""
    program = subject.program
    padded = calls_to(program, "torch.nn.utils.rnn.pad_sequence")
    losses = [x for x in loss_calls(program) if x.kind in ("cross_entropy", "nll")]
    if {"masked_select", "pack_sequence", "masked_scatter"} & program.called_names:
        return
    for call in padded if losses else ():
        scope, value = program.scope(call), keyword(call, "padding_value", 2)
        pad = 0 if value is None else number(program, value, scope)
        spoken = _words_of(*call.args[:1], *getattr(program.statement(call), "targets", []))
        beside = sum(program.scope(c) is scope for c in padded) > 1
        told = pad is None or pad == IGNORED or not TAGS & spoken
        if beside and not told and all(_counts(program, loss, pad or 0) for loss in losses):
            message = f"labels are padded with {int(pad or 0)} in line {call.lineno}"
            yield losses[0].call, f"{message}, which the loss takes for a class", call
            return


def _words_of(*nodes: ast.AST) -> set[str]:
    return {w for node in nodes for n in identifiers(node) for w in words(n)}


def _counts(program: Program, loss: LossCall, pad: float) -> bool:
    """Whether a loss is a mean over all labels, those of that number too, with no mask in sight."""
    made = [loss.call, *(o.call for o in program.origins(loss.call.func, loss.scope))]
    given = {k.arg: k.value for c in made for k in c.keywords}
    if loss.target is None or {"weight", None} & given.keys() or not TAGS & _words_of(loss.target):
        return False
    ignored = number(program, given.get("ignore_index", ast.Constant(IGNORED)), loss.scope)
    mean = "reduction" not in given or constant(given["reduction"]) == "mean"
    taken = [n.slice for n in nodes_of(loss.target, ast.Subscript)]
    around = loss.scope.node if loss.scope.name else program.statement(loss.call)
    picked = any(not isinstance(t, (ast.Slice, ast.Tuple)) for t in taken)
    masked = MASKS & _words_of(around) or picked
    return mean and ignored not in (None, pad) and not masked
