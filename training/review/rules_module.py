"""Rules BH401: to BH404: layers and dropout."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to, canonical_names, torch_calls
from training.review.program import Program, Scope
from training.review.syntax import (
    calls,
    constant,
    dotted,
    has_unpacking,
    identifiers,
    keyword,
    last_name,
    method,
    own_nodes_of,
    receiver,
    walk,
    words,
)

STATELESS = {
    "ReLU", "GELU", "SiLU", "ELU", "LeakyReLU", "Sigmoid", "Tanh", "Softmax", "LogSoftmax",
    "Identity", "Flatten", "Unflatten", "MaxPool1d", "MaxPool2d", "AvgPool1d", "AvgPool2d",
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "Upsample", "ZeroPad2d", "PixelShuffle", "Softplus",
    "Hardswish", "CosineSimilarity", "PairwiseDistance", "ReLU6", "Mish", "Unfold", "Fold",
    "ConstantPad1d", "ConstantPad2d", "ReflectionPad2d", "Hardtanh", "Softsign", "LogSigmoid",
    "CELU", "SELU", "GLU", "Threshold", "Tanhshrink", "Softmin", "Softmax2d", "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d", "UpsamplingBilinear2d", "UpsamplingNearest2d",
}  # fmt: skip
NOISE = {"noise", "eps", "sample", "sampling"}
CONTAINERS = {"ModuleList", "ModuleDict", "ParameterList", "ParameterDict", "Sequential"}


def is_layer(program: Program, node: ast.AST | None) -> bool:
    """Whether an expression makes a module with parameters or state."""
    if not isinstance(node, ast.Call):
        return False
    name = program.resolve(node.func)
    last = name.rpartition(".")[2]
    if name.startswith("torch.nn.") and last[:1].isupper():
        return (
            not name.startswith("torch.nn.attention.")
            and last not in STATELESS
            and not last.endswith("Loss")
            and ".utils." not in name
        )
    owner = program.classes.get(dotted(node.func))
    return owner is not None and program.is_module(owner) and _learns(program, owner)


def _learns(program: Program, owner: ast.ClassDef) -> bool:
    """Whether a network of this file holds anything of torch that may have parameters."""
    made = [
        b
        for known in program.bases(owner)
        for bound in program.attributes[known].values()
        for b in bound
    ]
    return any(
        is_layer(program, c) for b in made for c in calls(b.value) if dotted(c.func) != owner.name
    )


@rule("BH401")
def modules_in_list(subject: Subject) -> Iterator[Place]:
    """An attribute of a module holds a list or dict of layers that nothing registers."""
    program = subject.program
    for owner in program.module_classes:
        for name, bindings in program.attributes[owner].items():
            if any(
                isinstance(b.value, ast.Call) and last_name(b.value.func) in CONTAINERS
                for b in bindings
            ):
                continue  # `+=` puts its layers into the container
            for binding in bindings:
                made = _listed(program, binding.value, binding.scope) or _appended(
                    program, owner, name, binding.value
                )
                if made is not None and binding.index is None and not _registered(owner, name):
                    yield (
                        made,
                        (
                            f"self.{name} is a plain"
                            f" {type(binding.value).__name__.lower().replace('comp', '')}: its"
                            " layers are not registered"
                        ),
                    )


def _listed(program: Program, value: ast.expr, scope: Scope) -> ast.expr | None:
    """The collection itself, where it holds a layer."""
    match value:
        case ast.List() | ast.Tuple() | ast.Set():
            parts: list[ast.expr] = value.elts
        case ast.Dict():
            parts = value.values
        case ast.ListComp() | ast.SetComp():
            parts = [value.elt]
        case ast.DictComp():
            parts = [value.value]
        case _:
            return None
    return (
        value
        if any(
            _makes_layer(program, part, scope) or _listed(program, part, scope) is not None
            for part in parts
        )
        else None
    )


def _makes_layer(program: Program, part: ast.expr, scope: Scope) -> bool:
    """Whether it is a layer, or the call of a function of this file that returns one."""
    made = (
        program.origins(part, scope)
        if isinstance(part, ast.Call) and program.callees_by_name(part, scope) is not None
        else ()
    )
    return is_layer(program, part) or any(is_layer(program, o.call) for o in made)


def _appended(program: Program, owner: ast.ClassDef, name: str, value: ast.expr) -> ast.expr | None:
    """The append of a layer to an attribute that starts as an empty list."""
    if not (
        isinstance(value, (ast.List, ast.Dict))
        and not ast.dump(value).count("Constant")
        and not getattr(value, "elts", getattr(value, "values", []))
    ):
        return None
    for node in calls(owner):
        if method(node) == "append" and dotted(receiver(node)) == f"self.{name}" and node.args:
            scope = program.scope(node)
            layer = node.args[0]
            if is_layer(program, layer) or (
                isinstance(layer, ast.Name)
                and any(is_layer(program, b.value) for b in scope.bindings.get(layer.id, ()))
            ):
                return node
    return None


def _registered(owner: ast.ClassDef, name: str) -> bool:
    """Whether the class hands the list to a container, or registers its members one by one."""
    text = ast.unparse(owner)
    if (
        "add_module(" in text
        or "register_parameter(" in text
        or "register_module(" in text
        or "setattr(self" in text
    ):
        return True
    handed = [
        c
        for c in calls(owner)
        if (
            last_name(c.func) in CONTAINERS | {"extend"}
            or last_name(c.func).lstrip("_")[:1].isupper()
        )
    ]
    given = [
        a for c in handed for a in (*c.args, *(k.value for k in c.keywords))
    ]  # a part made of it may register them itself
    return any(isinstance(n, ast.Attribute) and n.attr == name for a in given for n in walk(a))


@rule("BH402")
def layer_made_in_forward(subject: Subject) -> Iterator[Place]:
    """`forward` of a module makes a layer with parameters, other than to keep it once."""
    program = subject.program
    for owner in program.module_classes:
        forward = program.methods[owner].get("forward")
        for node in own_nodes_of(forward.node, ast.Call) if forward else ():
            if not is_layer(program, node):
                continue
            name = program.resolve(node.func).rpartition(".")[2]
            statement = program.statement(node)
            kept = isinstance(statement, ast.Assign) and dotted(statement.targets[0]).startswith(
                "self."
            )
            guarded = any(isinstance(a, ast.If) for a in program.ancestors(node))
            if "Dropout" not in name and not (kept and guarded) and not _inner(program, node):
                yield (
                    node,
                    (
                        f"{name or dotted(node.func)} is made anew in every forward: it has other"
                        " weights each time and never learns"
                    ),
                )


def _inner(program: Program, node: ast.AST) -> bool:
    """Whether a layer is an argument of another that is told already."""
    return any(isinstance(a, ast.Call) and is_layer(program, a) for a in program.ancestors(node))


@rule("BH403")
def dropout_always_on(subject: Subject) -> Iterator[Place]:
    """A functional dropout without its flag, or a dropout module made and called at once in
    `forward`.
    """
    program = subject.program
    dropouts = [
        n for n in canonical_names(program) if "dropout" in n.lower() or n.endswith("partial")
    ]
    for call in calls_to(program, *dropouts):
        name = program.resolve(call.func)
        last = name.rpartition(".")[2]
        if name.startswith("torch.nn.functional.") and last in (
            "dropout",
            "dropout1d",
            "dropout2d",
            "dropout3d",
            "feature_dropout",
        ):
            in_training = any(
                isinstance(a, (ast.If, ast.IfExp)) and "training" in identifiers(a.test)
                for a in program.ancestors(call)
            )
            flagged = keyword(call, "training", 2) is not None or in_training
            if (
                not flagged
                and not has_unpacking(call)
                and constant(keyword(call, "p", 1)) != 0
                and not _draws(program, call)
            ):
                yield call, f"{last} is on in evaluation too: its flag `training` is not given"
        elif (
            last == "partial"
            and call.args
            and program.resolve(call.args[0]).startswith("torch.nn.functional.")
            and "dropout" in last_name(call.args[0])
        ):
            if not any(
                k.arg in ("training", None)
                for c in (call, *_calls_of(program, call))
                for k in c.keywords
            ):
                yield (
                    call,
                    (
                        f"{last_name(call.args[0])} is on in evaluation too: its flag `training` is"
                        " not given"
                    ),
                )
        elif (
            name.startswith("torch.nn.")
            and "Dropout" in last
            and program.scope(call).name == "forward"
            and program.is_module(program.scope(call).owner)
        ):
            parent, statement = program.parents[call], program.statement(call)
            if (isinstance(parent, ast.Call) and parent.func is call) or (
                isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
            ):
                yield call, f"{last} is made in forward, so eval() does not reach it"


def _draws(program: Program, call: ast.Call) -> bool:
    """Check that a dropout is no layer of a network: it thins noise, or a mask of ones that a
    function draws, or belongs to a method that samples.
    """
    scope, given = program.scope(call), call.args[0] if call.args else None
    made = {o.last for o in program.origins(given, scope)} if given is not None else set()
    if made & {"ones", "ones_like", "new_ones"} and not program.is_module(scope.owner):
        return True
    named = NOISE & words(f"{scope.name} {dotted(given)}")
    return scope.name != "forward" and bool(named or made & {"randn", "randn_like", "normal"})


def _calls_of(program: Program, bound: ast.Call) -> list[ast.Call]:
    """The calls of the name, or of the attribute, that a function is bound to."""
    statement = program.statement(bound)
    name = (
        dotted(statement.targets[0])
        if isinstance(statement, ast.Assign) and statement.value is bound
        else ""
    )
    return [c for c in program.all_calls if name and dotted(c.func) == name]


@rule("BH404")
def attention_dropout_always_on(subject: Subject) -> Iterator[Place]:
    """`dropout_p` is an attribute or a literal that does not depend on the mode."""
    program = subject.program
    for call in torch_calls(program, "scaled_dot_product_attention"):
        rate = keyword(call, "dropout_p", 4)
        if isinstance(rate, ast.Name):
            bound = program.scope(call).bindings.get(rate.id, [])
            rate = bound[-1].value if len(bound) == 1 else None
        literal = constant(rate)
        fixed = isinstance(literal, (int, float)) and literal > 0
        if (
            fixed or (isinstance(rate, ast.Attribute) and dotted(rate).startswith("self."))
        ) and not any(
            isinstance(a, ast.If) and "training" in identifiers(a.test)
            for a in program.ancestors(call)
        ):
            yield call, "attention drops out whenever it is called, in evaluation too"
