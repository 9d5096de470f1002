"""Rules BH317 to BH320: divergences that are averaged over classes, and temperatures that stand on one side, multiply or make a term small."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to
from training.review.program import Program, Scope, argument
from training.review.settings import argument_of
from training.review.syntax import constant, dotted, has_unpacking, identifiers, keyword, last_name, method, receiver, walk, words
from training.review.values import loss_calls, loss_kind, loss_kinds, number, reaching

SIZES = {"size", "shape", "len", "numel", "classes", "class", "labels", "vocab", "dim", "num", "n", "c", "k", "batch", "bs", "b", "width", "bins"}
HEATS = {"temperature", "temp", "tau", "heat"}
SOFT = {"soft", "softened", "scaled", "tempered", "sharpened", "hot", "cached"}
OF_NETWORK = {"logits", "logit", "teacher", "student", "old", "ema", "target", "model", "net", "out", "output", "outputs", "t", "s", "big", "large", "small"}
COSINE = {"normalize", "normalise", "cosine", "cosine_similarity", "norm", "normalized", "cos", "similarity"}
UNIT = {"torch.nn.functional.normalize", "torch.nn.functional.cosine_similarity"}
INVERSE = {"inverse", "inv", "scale", "beta", "coldness"}
DEPTH = 4
MANY = 50  # as a weight it makes up for a mean over classes


@rule(
    "BH317",
    "divergence-averaged-over-classes",
    "warning",
    title="kl_div is averaged over classes as well as rows",
    why='`reduction="mean"`, the default, divides by rows times classes: the term is as many times too small as there are classes, and hardly counts beside a cross-entropy.',
    remedy='`reduction="batchmean"`, which divides by the rows alone',
    bad="""
        from torch.nn import functional as F

        def distillation(student, teacher, t):
            return F.kl_div(F.log_softmax(student / t, dim=-1), F.softmax(teacher / t, dim=-1)) * t * t
        """,
    good="""
        from torch.nn import functional as F

        def distillation(student, teacher, t):
            return F.kl_div(F.log_softmax(student / t, dim=-1), F.softmax(teacher / t, dim=-1), reduction="batchmean") * t * t
        """,
)
def divergence_averaged_over_classes(subject: Subject) -> Iterator[Place]:
    """A `kl_div` or `KLDivLoss` with the reduction mean, given or by default, that is not multiplied back by a number of classes."""
    program = subject.program
    for loss in loss_calls(program):
        if loss.kind != "kl" or _only_watched(program, loss.call) or _multiplied_back(program, loss.call):
            continue
        made = [loss.call] if program.resolve(loss.call.func).startswith("torch.") else [o.call for o in program.origins(loss.call.func, loss.scope)]
        if made and all(_takes_the_mean(program, c, c is loss.call) for c in made):
            yield loss.call, 'reduction="mean" divides by rows times classes: the divergence is as many times too small as there are classes'


def _takes_the_mean(program: Program, call: ast.Call, function: bool) -> bool:
    """Whether a loss is left at the reduction mean; `function`: it is computed here, and not made."""
    if has_unpacking(call) or len(call.args) > (2 if function else 0) or any(keyword(call, old) is not None for old in ("size_average", "reduce")):
        return False
    given = argument_of(program, call, "reduction")
    return given is None or constant(given) == "mean"


def _multiplied_back(program: Program, call: ast.Call) -> bool:
    """Whether the value is multiplied by what may be a number of classes, at once or under the name that it gets."""
    factors = _factors(program, call)
    statement = program.statement(call)
    scope = program.scope(call)
    if isinstance(statement, ast.Return):
        factors += [f for site, _ in program.call_sites[scope] for f in _factors(program, site)]
    names = {t.id for t in getattr(statement, "targets", ()) if isinstance(t, ast.Name)}
    for node in (n for n in walk(scope.node) if isinstance(n, ast.Name) and n.id in names):
        above = program.parents[node]
        if isinstance(node.ctx, ast.Load):
            factors += _factors(program, node)
        elif isinstance(above, ast.AugAssign) and isinstance(above.op, ast.Mult):
            factors.append(above.value)
    for factor in factors:
        named = {w for n in identifiers(factor) for w in words(n)} | {w for n in walk(factor) if isinstance(n, ast.Call) for w in words(last_name(n.func))}
        value, of_size = constant(factor), isinstance(factor, ast.Name) and _of_shape(factor.id, scope)
        if named & SIZES or of_size or (isinstance(value, int) and value > 1) or (number(program, factor, scope) or 0) >= MANY:
            return True
    return False


def _of_shape(name: str, scope: Scope) -> bool:
    """Whether a name is unpacked from the shape of something."""
    return any({"shape", "size"} & identifiers(b.value) for b in scope.bindings.get(name, ()))


def _only_watched(program: Program, call: ast.Call) -> bool:
    """Whether a divergence is a figure: computed without gradients, or turned into a number at once."""
    above = program.parents[call]
    quiet = [d for a in program.ancestors(call) if isinstance(a, ast.FunctionDef) for d in a.decorator_list]
    quiet += [i.context_expr for a in program.ancestors(call) if isinstance(a, ast.With) for i in a.items]
    return (isinstance(above, ast.Attribute) and above.attr == "item") or any({"no_grad", "inference_mode"} & identifiers(q) for q in quiet)


def _factors(program: Program, node: ast.expr) -> list[ast.expr]:
    """By what a value is multiplied, one product after the other."""
    found, above = [], program.parents[node]
    while isinstance(above, ast.BinOp):
        if isinstance(above.op, ast.Mult):
            found.append(above.left if above.right is node else above.right)
        node, above = above, program.parents[above]
    if isinstance(above, ast.AugAssign) and isinstance(above.op, ast.Mult):
        found.append(above.value)
    if isinstance(above, ast.Attribute) and above.attr in ("mul", "mul_") and isinstance(call := program.parents[above], ast.Call):
        found += call.args[:1]
    return found


class Heated(NamedTuple):
    """What a softmax is taken of: divided by what, None where by nothing; `sure` where that is in sight."""

    divisor: ast.expr | None
    scope: Scope
    sure: bool


@rule(
    "BH318",
    "temperature-on-one-side",
    "error",
    title="One side of a divergence has a temperature, the other has none",
    why="The student is to match the teacher's softened probabilities with its own softened ones. With scores that are divided on one side alone it learns other scores than the teacher's, by the temperature flatter or steeper.",
    remedy="divide both by the same temperature: `kl_div(log_softmax(student / t), softmax(teacher / t)) * t * t`",
    bad="""
        from torch.nn import functional as F

        T = 4.0

        def distillation(student, teacher):
            return F.kl_div(F.log_softmax(student, dim=-1), F.softmax(teacher / T, dim=-1), reduction="batchmean") * T * T
        """,
    good="""
        from torch.nn import functional as F

        T = 4.0

        def distillation(student, teacher):
            return F.kl_div(F.log_softmax(student / T, dim=-1), F.softmax(teacher / T, dim=-1), reduction="batchmean") * T * T
        """,
)
def temperature_on_one_side(subject: Subject) -> Iterator[Place]:
    """Of a `kl_div` of two softmaxes one divides scores by a number above 1, or the result is multiplied by its square, and the other takes them as they are.

    Targets that are sharpened (divided by less than 1, or by what is not known) are sound.
    """
    program = subject.program
    for loss in loss_calls(program):
        sides = [_heated(program, side, loss.scope) for side in (loss.scores, loss.target)] if loss.kind == "kl" else [None]
        student, teacher = sides[0], sides[-1]
        if student is None or teacher is None or (student.divisor is None) == (teacher.divisor is None):
            continue
        warm, cold = (student, teacher) if student.divisor is not None else (teacher, student)
        known = _number(program, warm.divisor, warm.scope) if warm.divisor is not None else None
        squared = warm.divisor is not None and _by_square(program, loss.call, warm.divisor)
        if (not squared and (warm is teacher and not _of_networks(loss.target, loss.scope, program))) or _divided_inside(program):
            continue
        if cold.sure and warm.divisor is not None and (squared or (known is not None and known > 1)):
            which = "its input's" if warm is student else "its target's"
            by = ast.unparse(warm.divisor) + (f" = {known:g}" if known is not None and constant(warm.divisor) is None else "")
            yield loss.call, f"only {which} scores are divided by {by}: two sides with different temperatures are compared"


def _of_networks(node: ast.expr | None, scope: Scope, program: Program) -> bool:
    """Whether a target is called as what comes from a network, and by a temperature: not counts, grades, or what was calibrated."""
    behind = reaching(program, node, scope) if isinstance(node, ast.Name) else []
    named = {w for part in (node, *behind) if part is not None for n in identifiers(part) for w in words(n)}
    return bool(named & OF_NETWORK) and not named & {"calibration", "calibrated", "calibrate"}


def _divided_inside(program: Program) -> bool:
    """Whether a network of the file divides by a temperature itself."""
    forwards = [program.methods[owner]["forward"] for owner in program.module_classes if "forward" in program.methods[owner]]
    divisors = [n.right for f in forwards for n in walk(f.node) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div)]
    return any(_is_heat(d) or last_name(d) == "t" for d in divisors if isinstance(d, (ast.Name, ast.Attribute)))


def _heated(program: Program, node: ast.expr | None, scope: Scope, depth: int = 0) -> Heated | None:
    """Of a softmax or its logarithm by what its scores are divided; None where it is no softmax in sight."""
    if isinstance(node, ast.Name) and depth < DEPTH:
        found = reaching(program, node, scope)
        return _heated(program, found[0], scope, depth + 1) if len(found) == 1 else None
    if not isinstance(node, ast.Call):
        return None
    if method(node) in ("detach", "log", "to", "clone", "exp", "float"):
        return _heated(program, receiver(node), scope, depth)
    last = last_name(node.func)
    if last not in ("softmax", "log_softmax"):
        return None
    scores = keyword(node, "input", 0) if program.resolve(node.func) else receiver(node)
    return _divided(program, scores, scope)


def _divided(program: Program, scores: ast.expr | None, scope: Scope, depth: int = 0) -> Heated | None:
    """By what scores are divided, as far as names lead; of other arithmetic nothing is said."""
    match scores:
        case ast.BinOp(op=ast.Div()):
            return Heated(scores.right, scope, True)
        case ast.Call() if method(scores) in ("div", "div_") and scores.args:
            return Heated(scores.args[0], scope, True)
        case ast.Call() if method(scores) in ("detach", "float", "to", "view", "reshape", "flatten"):
            return _divided(program, receiver(scores), scope, depth)
        case ast.Call():
            return Heated(None, scope, loss_kind(program, scores, scope) == "" and program.callees_by_name(scores, scope) is None)
        case ast.Name() if depth < DEPTH and not (SOFT | HEATS) & words(scores.id):
            return _of_name(program, scores, scope, depth)
        case ast.Subscript():
            return _divided(program, scores.value, scope, depth)
    return None


def _of_name(program: Program, name: ast.Name, scope: Scope, depth: int) -> Heated | None:
    if name.id in scope.parameters and not scope.bindings.get(name.id):
        given = [(argument(call, scope, name.id), caller) for call, caller in program.call_sites[scope]]
        found = [_divided(program, g, caller, depth + 1) for g, caller in given if g is not None]
        return Heated(None, scope, True) if all(f is not None and f.divisor is None for f in found) else None
    if any(b.how == "augment" for b in scope.bindings.get(name.id, ())):
        return None
    values = reaching(program, name, scope)
    if len(values) != 1:
        plain = [b for b in scope.bindings.get(name.id, ()) if b.index is not None and isinstance(b.value, ast.Call)]
        return Heated(None, scope, True) if plain and len(plain) == len(scope.bindings.get(name.id, ())) else None
    return _divided(program, values[0], scope, depth + 1)


def _by_square(program: Program, call: ast.Call, heat: ast.expr) -> bool:
    """Whether the value is multiplied by the square of the temperature, which makes up for two softened sides."""
    factors, own = _factors(program, call), ast.unparse(heat)
    square = re.compile(rf"^\(?{re.escape(own)} ?\*\* ?2(\.0)?\)?$|^\(?{re.escape(own)} \* {re.escape(own)}\)?$|^{re.escape(own)}\.pow\(2\)$")
    return sum(ast.unparse(f) == own for f in factors) >= 2 or any(square.match(ast.unparse(f)) for f in factors)


@rule(
    "BH319",
    "temperature-multiplied",
    "error",
    title="Scores are multiplied by a temperature",
    why="A temperature divides: above 1 it makes probabilities flat, below 1 steep. Multiplied by, it does the opposite: a distillation at temperature 4 gives decisions, a contrastive loss at 0.07 gives next to no gradient.",
    remedy="divide: `softmax(scores / temperature)`; what is to multiply is a scale or an inverse temperature, and should be called so",
    bad="""
        from torch.nn import functional as F

        TEMPERATURE = 4.0

        def softened(scores):
            return F.softmax(scores * TEMPERATURE, dim=-1)
        """,
    good="""
        from torch.nn import functional as F

        TEMPERATURE = 4.0

        def softened(scores):
            return F.softmax(scores / TEMPERATURE, dim=-1)
        """,
)
def temperature_multiplied(subject: Subject) -> Iterator[Place]:
    """In a softmax or a cross-entropy scores are multiplied by a known number that is called a temperature; with cosines one above 1 may be a scale."""
    program = subject.program
    for call in program.all_calls:
        last = last_name(call.func)
        cross = loss_kinds(program).get(call) == "cross_entropy"
        if last not in ("softmax", "log_softmax", "logsumexp") and not cross:
            continue
        scope = program.scope(call)
        scores = keyword(call, "input", 0) if cross or program.resolve(call.func) else receiver(call)
        behind = reaching(program, scores, scope) if isinstance(scores, ast.Name) else [scores]
        product = behind[0] if len(behind) == 1 else None
        if not (isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult)):
            continue
        heat = next((s for s in (product.left, product.right) if _is_heat(s)), None)
        value = _number(program, heat, scope) if heat is not None else None
        if value is None or value in (0, 1) or (value > 1 and COSINE & {w for n in identifiers(scope.node) for w in (n, *words(n))}):
            continue
        if value > 1 and calls_to(program, *UNIT):
            continue
        if not any((isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div)) or (isinstance(n, ast.Call) and last_name(n.func) == "log") for n in walk(product)):
            yield product, f"scores are multiplied by {dotted(heat)} = {value:g}: a temperature divides"


def _number(program: Program, node: ast.expr, scope: Scope) -> float | None:
    """What is known of a name, or of an attribute that is set once."""
    if isinstance(node, ast.Attribute):
        bound = program.bindings_of(node, scope)
        return number(program, bound[0].value, bound[0].scope) if len(bound) == 1 and bound[0].how == "assign" and bound[0].index is None else None
    return number(program, node, scope)


def _is_heat(node: ast.expr) -> bool:
    """Whether it is called a temperature: `temperature`, `tau`, `T`."""
    name = last_name(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
    return name == "T" or (bool(HEATS & words(name)) and not INVERSE & words(name))


@rule(
    "BH320",
    "softened-and-not-scaled-back",
    "warning",
    title="A softened divergence stands beside a cross-entropy without the square of its temperature",
    why="Gradients of two sides that are divided by T are about T² times smaller. Beside a loss on the labels the teacher then hardly counts, and its share depends on T.",
    remedy="multiply the divergence by `T * T`, as Hinton, Vinyals and Dean (2015) do, or say in a comment that its weight makes up for it",
    bad="""
        from torch.nn import functional as F

        T = 4.0

        def loss_of(student, teacher, labels):
            soft = F.kl_div(F.log_softmax(student / T, dim=-1), F.softmax(teacher / T, dim=-1), reduction="batchmean")
            return 0.5 * soft + 0.5 * F.cross_entropy(student, labels)
        """,
    good="""
        from torch.nn import functional as F

        T = 4.0

        def loss_of(student, teacher, labels):
            soft = F.kl_div(F.log_softmax(student / T, dim=-1), F.softmax(teacher / T, dim=-1), reduction="batchmean") * T * T
            return 0.5 * soft + 0.5 * F.cross_entropy(student, labels)
        """,
)
def softened_and_not_scaled_back(subject: Subject) -> Iterator[Place]:
    """Both sides of a `kl_div` are divided by one known number above 1, the file has a cross-entropy too, and squares nothing that is called a temperature.

    Not where the divergence gets a weight above 1, which may stand for the square.
    """
    program = subject.program
    losses = loss_calls(program)
    for loss in losses if any(other.kind == "cross_entropy" for other in losses) else ():
        student, teacher = (_heated(program, side, loss.scope) for side in (loss.scores, loss.target)) if loss.kind == "kl" else (None, None)
        if student is None or teacher is None or student.divisor is None or teacher.divisor is None:
            continue
        heat, value = student.divisor, _number(program, student.divisor, student.scope)
        same = ast.unparse(heat) == ast.unparse(teacher.divisor)
        if (
            same
            and value is not None
            and value >= LEAST_HEAT
            and not _squares_heat(program, last_name(heat))
            and not _outweighed(program, loss.call, loss.scope)
        ):
            told = f"its gradients are about {value * value:g} times smaller than those of the cross-entropy beside it: nothing multiplies it by {ast.unparse(heat)} squared"
            yield loss.call, told


LEAST_HEAT = 1.5


def _squares_heat(program: Program, name: str) -> bool:
    """Whether anything is squared that is called as the temperature or so, or multiplied by it, wherever the file does."""
    own = {name} if name else set()
    for node in program.nodes[ast.BinOp]:
        if not isinstance(node, ast.BinOp):
            continue
        if isinstance(node.op, ast.Pow) and any(n in own or HEATS & words(n) or n == "T" for n in identifiers(node.left)):
            return True
        sides = [s for s in (node.left, node.right) if isinstance(s, (ast.Name, ast.Attribute)) and (last_name(s) in own or _is_heat(s))]
        if isinstance(node.op, ast.Mult) and sides:
            return True
    return any(n in own or HEATS & words(n) or n == "T" for c in program.calls_of("pow", "square") for n in identifiers(c))


def _outweighed(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether the divergence, or the name that it gets, is multiplied by a number above 1 or by what is not known."""
    statement = program.statement(call)
    names = {t.id for t in getattr(statement, "targets", ()) if isinstance(t, ast.Name)}
    held = [n for n in walk(scope.node) if isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load)]
    factors = [f for node in (call, *held) for f in _factors(program, node)]
    return any((known := _weight(program, f, scope)) is None or known > 1 for f in factors)


def _weight(program: Program, node: ast.expr, scope: Scope) -> float | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and constant(node.left) in (1, 1.0):  # `(1 - alpha) * soft`
        return 1.0
    return _number(program, node, scope)
