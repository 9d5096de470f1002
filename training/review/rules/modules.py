"""Rules BH401 to BH404, BH407 to BH409, BH440 to BH445 and BH459: what a network is made of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import torch_calls
from training.review.program import Program
from training.review.roles import is_model_origin, makes_layer
from training.review.syntax import (
    calls,
    constant,
    defaults,
    dotted,
    exponent,
    has_unpacking,
    identifiers,
    is_true,
    keyword,
    last_name,
    method,
    own_nodes,
    own_nodes_of,
    receiver,
    walk,
    words,
)
from training.review.values import reaching_elements, value_of

# words
NOISE = {"noise", "eps", "sample", "sampling"}
KEPT = {"keep", "keeprate", "keepprob", "retain", "keeping", "kept"}
BOUNDED = {
    "max", "amax", "maximum", "normalize", "cosine", "similarity", "cos", "sim", "tanh", "hardtanh",
    "sigmoid", "clamp", "clip", "log", "logsumexp", "temperature", "tau", "softplus",
}  # fmt: skip
# names of torch
NEARLY = re.compile(r"required?s?_?grad(ient)?s?_?")
LITERALS = (ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp)
NOISES = {"ones", "ones_like", "new_ones", "randn", "randn_like", "normal"}
DRAWS = {"randn", "rand", "randint", "randperm", "normal"}
TENSORS = DRAWS | {
    "tensor", "zeros", "ones", "arange", "linspace", "eye", "full", "as_tensor", "from_numpy",
    "FloatTensor", "tril", "triu", "hann_window",
}  # fmt: skip
CHANGES = {"append", "extend", "update", "add", "insert", "setdefault", "pop"}


@rule("BH401")
def modules_in_list(subject: Subject) -> Iterator[Place]:
    """An attribute of a module holds a list or dict of layers that nothing registers."""
    program = subject.program
    for owner in program.module_classes:
        appends = [c for c in calls(owner) if method(c) == "append"]
        for name, bound in program.attributes[owner].items():
            if not all(isinstance(b.value, LITERALS) and b.index is None for b in bound):
                continue  # `+=` puts its layers into a container
            added = [c for c in appends if dotted(receiver(c)) == f"self.{name}"]
            kind = type(bound[0].value).__name__.lower().replace("comp", "")
            holds = [v for v in (*(b.value for b in bound), *added) if _holds_layer(program, v)]
            if holds and not _registered(owner, name):
                yield holds[0], f"self.{name} is a plain {kind}: its layers are not registered"


def _holds_layer(program: Program, value: ast.expr) -> bool:
    """Whether a layer is made in a collection, or is what a local name holds that is appended."""
    scope, part = program.scope(value), getattr(value, "elt", getattr(value, "value", value))
    made = [c for c in (part, *own_nodes_of(part, ast.Call)) if isinstance(c, ast.Call)]
    names = [a.id for a in getattr(value, "args", []) if isinstance(a, ast.Name)]
    held = [b.value for n in names for b in scope.bindings.get(n, ()) if b.how == "assign"]
    origins = [o for m in (*made, *held) for o in program.origins(m, scope)]
    return any(makes_layer(program, o.call) for o in origins)


def _registered(owner: ast.ClassDef, name: str) -> bool:
    """Whether the class hands the list to a container, or registers its members one by one."""
    made = calls(owner)
    told = {"add_module", "register_module", "register_parameter", "setattr"}
    if told & {last_name(c.func) for c in made}:
        return True  # an object that is made of it may register them itself
    takes = [c for c in made if last_name(c.func)[:1].isupper() or method(c) == "extend"]
    given = [a for c in takes for a in (*c.args, *(k.value for k in c.keywords))]
    return any(isinstance(n, ast.Attribute) and n.attr == name for a in given for n in walk(a))


@rule("BH402")
def layer_made_in_forward(subject: Subject) -> Iterator[Place]:
    """`forward` of a module makes a layer with parameters, other than to keep it once."""
    program = subject.program
    for owner in program.module_classes:
        forward = program.methods[owner].get("forward")
        for node in own_nodes_of(forward.node, ast.Call) if forward else ():
            target = getattr(program.statement(node), "targets", [None])[0]
            around = program.ancestors(node)
            kept = dotted(target).startswith("self.") and any(isinstance(a, ast.If) for a in around)
            inner = any(makes_layer(program, a) for a in around)
            name = last_name(node.func)
            if makes_layer(program, node) and not kept and not inner and "Dropout" not in name:
                yield node, f"{name} is created again in every forward: it never learns"


@rule("BH403")
def dropout_always_on(subject: Subject) -> Iterator[Place]:
    """A functional dropout without its flag, or a dropout module made and used in `forward`."""
    program = subject.program
    for call in torch_calls(program, "dropout", "dropout1d", "dropout2d", "dropout3d"):
        flagged = keyword(call, "training", 2) is not None or constant(keyword(call, "p", 1)) == 0
        functional = program.resolve(call.func).startswith("torch.nn.functional.")
        if functional and not flagged and not has_unpacking(call) and not _meant(program, call):
            yield call, f"{last_name(call.func)} is on in evaluation too: `training` is not given"
    for call in torch_calls(program, "Dropout", "Dropout1d", "Dropout2d", "Dropout3d"):
        scope, above = program.scope(call), program.parents[call]
        at_once = isinstance(above, ast.Call) and above.func is call
        local = isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name)
        if scope.name == "forward" and program.is_module(scope.owner) and (at_once or local):
            yield call, f"{last_name(call.func)} is created in forward, so eval() does not reach it"


def _meant(program: Program, call: ast.Call) -> bool:
    """Whether a dropout depends on the mode, or thins noise and no features."""
    scope = program.scope(call)
    spoken = words(f"{scope.name} {dotted(next(iter(call.args), None))}")
    drawn = {o.last for a in call.args[:1] for o in program.origins(a, scope)} & NOISES
    noise = scope.name != "forward" and bool(drawn or NOISE & spoken)
    return noise or _asks_for_mode(program, call)


def _asks_for_mode(program: Program, call: ast.Call) -> bool:
    tests = [getattr(a, "test", None) for a in program.ancestors(call)]
    return any("training" in identifiers(test) for test in tests)


@rule("BH404")
def attention_dropout_always_on(subject: Subject) -> Iterator[Place]:
    """`dropout_p` is an attribute or a literal that does not depend on the mode."""
    program = subject.program
    for call in torch_calls(program, "scaled_dot_product_attention"):
        given = keyword(call, "dropout_p", 4)
        rate = value_of(program, given, program.scope(call)) if given is not None else None
        fixed, held = constant(rate) not in (None, 0), dotted(rate).startswith("self.")
        if (fixed or held) and not _asks_for_mode(program, call):
            yield call, "attention dropout is always on, in evaluation too"


@rule("BH407")
def frozen_by_attribute(subject: Subject) -> Iterator[Place]:
    """`requires_grad` is set on a module, or a name that only resembles it."""
    program = subject.program
    for node in program.nodes[ast.Assign]:
        name, owner = (getattr(node.targets[0], field, None) for field in ("attr", "value"))
        if NEARLY.fullmatch(name or "") and name not in ("requires_grad", "requires_grad_"):
            yield node, f"{name} is no attribute of a tensor or module: it freezes nothing"
        if name == "requires_grad" and owner is not None and _is_network(program, owner, node):
            yield node, f"{ast.unparse(owner)} is a module: setting requires_grad freezes nothing"


def _is_network(program: Program, node: ast.expr, place: ast.AST) -> bool:
    """Whether a value goes through modules, was made as one, or is asked for its parameters."""
    scope, around = program.scope(place), program.ancestors(place)
    if isinstance(node, ast.Subscript) or dotted(node) == "self":
        return False
    over = [b for b in program.bindings_of(node, scope) if b.statement in around and b.index != 0]
    through = any("children" in method(b.value) or "modules" in method(b.value) for b in over)
    made = any(is_model_origin(program, o) for o in program.origins(node, scope))
    asked = [c for c in program.methods_of("parameters") if dotted(receiver(c)) == dotted(node)]
    return through or made or bool(asked and dotted(node))


@rule("BH408")
def tensor_not_a_buffer(subject: Subject) -> Iterator[Place]:
    """`__init__` keeps a new tensor as an attribute, and `forward` reads it where it lies."""
    program = subject.program
    for owner in program.module_classes if "set_default_device" not in program.called_names else ():
        own = program.methods[owner]
        if not {"__init__", "forward"} <= own.keys() or {"_apply", "to"} & own.keys():
            continue
        forward = own["forward"]
        helpers = {method(c) for c in calls(forward.node) if dotted(receiver(c)) == "self"}
        run = [forward, *(s for name, s in own.items() if name in helpers)]
        named = {n.value for n in walk(owner) if isinstance(n, ast.Constant)}
        for name, bound in program.attributes[owner].items():
            if len(bound) > 1 or bound[0].scope is not own["__init__"] or name in named:
                continue
            value = bound[0].value
            read = [n for s in run for n in own_nodes_of(s.node, ast.Attribute) if n.attr == name]
            uses = [n for n in read if dotted(n.value) == "self"]
            drawn = any(last_name(c.func) in DRAWS for c in calls(value))
            stays = drawn or not any(_moved(program, n) for n in uses)
            if uses and stays and _makes_tensor(program, value):
                yield value, f"self.{name} is neither parameter nor buffer: no checkpoint has it"


def _makes_tensor(program: Program, value: ast.expr) -> bool:
    """Whether a value is a new tensor of some dimension, or a random one under arithmetic."""
    while isinstance(value, ast.BinOp) or method(value) == "requires_grad_":
        value = value.left if isinstance(value, ast.BinOp) else receiver(value) or value
    if not isinstance(value, ast.Call) or keyword(value, "device") is not None:
        return False
    number = bool(value.args) and isinstance(constant(value.args[0]), (int, float))
    single = number and last_name(value.func) == "tensor"
    return not single and program.resolve(value.func) in {f"torch.{name}" for name in TENSORS}


def _moved(program: Program, node: ast.AST) -> bool:
    """Whether a tensor, or a part of it, is moved where it is read, or only indexes another."""
    above = program.parents[node]
    if isinstance(above, ast.Subscript):
        return above.value is not node or _moved(program, above)
    if isinstance(above, ast.Call):
        inside = [c for s in program.callees(above, program.scope(above)) for c in calls(s.node)]
        return keyword(above, "device") is not None or any(method(c) == "to" for c in inside)
    if isinstance(above, ast.Assign):
        name, moves = dotted(above.targets[0]), program.methods_of("to", "type_as", "cuda")
        return any(name and dotted(receiver(c)) == name for c in moves)
    return isinstance(above, ast.Attribute)


@rule("BH409")
def mutable_default(subject: Subject) -> Iterator[Place]:
    """A parameter with a list, dict or set as its default is changed in the function."""
    for scope in subject.program.scopes:
        for name, default in defaults(scope.node).items():
            if not isinstance(default, (ast.List, ast.Dict, ast.Set)) or name in scope.bindings:
                continue
            for node in own_nodes(scope.node):
                targets = getattr(node, "targets", [getattr(node, "target", None)])
                into = [dotted(t.value) for t in targets if isinstance(t, ast.Subscript)]
                if name in into or (method(node) in CHANGES and dotted(receiver(node)) == name):
                    where = f"and changed in line {getattr(node, 'lineno', '?')}"
                    yield default, f"the default of {name} is shared by all calls, {where}"
                    break


@rule("BH440")
def softmax_by_hand(subject: Subject) -> Iterator[Place]:
    """exp of what a layer gives is divided by its own sum, with no bound in sight."""
    program = subject.program
    for node in (n for n in program.nodes[ast.BinOp] if isinstance(n.op, ast.Div)):
        scope, name = program.scope(node), dotted(node.left)
        sums = (f"{name}.sum(", f"torch.sum({name},", f"torch.sum({name})")
        given = exponent(value_of(program, node.left, scope))
        if not name or given is None or not ast.unparse(node.right).startswith(sums):
            continue
        layer = value_of(program, given, scope)
        origins = program.origins(getattr(layer, "func", None), scope)
        made = [program.classes.get(o.name) for o in origins]
        spoken = {w for part in (scope.owner, *made) for n in identifiers(part) for w in words(n)}
        own = program.is_module(scope.owner) and dotted(receiver(layer)) == "self"
        if own and not BOUNDED & spoken:
            yield node, f"exp({ast.unparse(given)}) is divided by its sum: from 89 on both are inf"


@rule("BH441")
def keep_rate_as_drop_rate(subject: Subject) -> Iterator[Place]:
    """The probability of a torch dropout is a name that speaks of keeping, as it is."""
    names = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "dropout")
    for call in torch_calls(subject.program, *names):
        given = keyword(call, "p", 1 if last_name(call.func) == "dropout" else 0)
        if isinstance(given, (ast.Name, ast.Attribute)) and KEPT & words(last_name(given)):
            yield call, f"{ast.unparse(given)} is the drop rate here, but its name says keep rate"


@rule("BH444")
def skip_changed_in_place(subject: Subject) -> Iterator[Place]:
    """`x + self.body(x)`, where the body is a Sequential whose first layer works in place."""
    program = subject.program
    for node in (n for n in program.nodes[ast.BinOp] if isinstance(n.op, ast.Add)):
        for skip, branch in ((node.left, node.right), (node.right, node.left)):
            alone = isinstance(branch, ast.Call) and [*map(dotted, branch.args)] == [dotted(skip)]
            body = branch.func if isinstance(branch, ast.Call) and alone else None
            made = [o for o in program.origins(body, program.scope(node)) if o.last == "Sequential"]
            for first in (a for o in made for a in o.call.args[:1] if isinstance(a, ast.Call)):
                place = 0 if last_name(first.func) in ("ReLU", "SiLU", "Mish") else None
                if is_true(keyword(first, "inplace", place)):
                    line = f"which is added in line {node.lineno}"
                    yield first, f"{dotted(skip)} is changed in place, {line}", node


@rule("BH445")
def norm_momentum_of_another_framework(subject: Subject) -> Iterator[Place]:
    """A batch norm that is made with a momentum of 0.9 or more."""
    names = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
    for call in torch_calls(subject.program, *names):
        momentum = constant(keyword(call, "momentum", 2))
        if isinstance(momentum, (int, float)) and momentum >= 0.9:
            yield call, f"momentum is {momentum:g}: running statistics are those of the last batch"


@rule("BH459")
def last_step_of_both_ways(subject: Subject) -> Iterator[Place]:
    """The last step of a bidirectional layer is taken, and the first one nowhere near it."""
    program = subject.program
    made = torch_calls(program, "LSTM", "GRU", "RNN")
    layers = [c for c in made if is_true(keyword(c, "bidirectional"))]
    for scope in program.scopes if layers else ():
        taken = {n: ast.unparse(n) for n in own_nodes_of(scope.node, ast.Subscript)}
        for node, text in taken.items():
            name = node.value if isinstance(node.value, ast.Name) else None
            found = reaching_elements(program, name, scope) if name else []
            call, index = found[0] if len(found) == 1 else (None, None)
            func = call.func if isinstance(call, ast.Call) and index == 0 else None  # no state
            for layer in (o.call for o in program.origins(func, scope) if o.call in layers):
                rows = is_true(keyword(layer, "batch_first"))
                first = text.replace("-1", "0").rstrip("], :")
                both = any(t.startswith(first) for t in taken.values())
                if text.endswith(("[:, -1]", "[:, -1, :]") if rows else "[-1]") and not both:
                    yield node, f"{text} contains one step of the backward direction"
