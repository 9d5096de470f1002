"""Rules BH405 to BH409: what happens in forward, and what a module holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_frozen_name, is_model
from training.review.program import Program, Scope
from training.review.rules_module import is_layer
from training.review.syntax import FunctionNode, dotted, identifiers, keyword, last_name, method, names_read, own_nodes, receiver
from training.review.values import reaching

MISSPELT = {"require_grad", "required_grad", "requires_gradient", "require_gradient", "requires_grads", "requiresgrad", "requiregrad", "require_grads"}
MAKES_TENSORS = (
    "tensor",
    "zeros",
    "ones",
    "arange",
    "linspace",
    "eye",
    "randn",
    "rand",
    "full",
    "as_tensor",
    "from_numpy",
    "FloatTensor",
    "tril",
    "triu",
    "hann_window",
)


@rule(
    "BH405",
    "forward-detached",
    "error",
    title="The forward path is detached",
    why="`detach`, `.data` or a trip through numpy cuts the gradient: every layer before it keeps its initial weights.",
    remedy="remove it, or freeze the layers before it openly with `requires_grad_(False)`",
    bad="""
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(8, 16)
                self.head = nn.Linear(16, 2)

            def forward(self, x):
                x = self.body(x).relu().detach()
                return self.head(x)
        """,
    good="""
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(8, 16)
                self.head = nn.Linear(16, 2)

            def forward(self, x):
                x = self.body(x).relu()
                return self.head(x)
        """,
)
def forward_detached(subject: Subject) -> Iterator[Place]:
    """In `forward` the output of an own layer goes on detached alone: into the next layer, or out as the result."""
    program = subject.program
    for owner in program.module_classes:
        forward = program.methods[owner].get("forward")
        if forward is None or {"requires_grad", "requires_grad_"} & identifiers(owner):
            continue
        for node in own_nodes(forward.node):
            inner = _detached(program, node)
            if inner is None or any(isinstance(a, ast.If | ast.With) for a in program.ancestors(node)):
                continue
            layers = _layers_behind(program, inner, forward)
            statement = program.statement(node)
            told = {*layers, *(last_name(t) for t in getattr(statement, "targets", ()))}
            if (
                layers
                and not any(is_frozen_name(name) or "pos" in name or "quant" in name for name in told)
                and not _lives_on(program, inner, node, forward)
                and _goes_on(program, node, forward)
            ):
                yield node, f"{ast.unparse(inner)} is cut off here, so {', '.join(f'self.{name}' for name in sorted(layers))} cannot learn"


def _detached(program: Program, node: ast.AST) -> ast.expr | None:
    """What a node detaches."""
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr="detach"), args=[]):
            return inner
        case ast.Call(args=[made]) if program.is_torch(node.func, "from_numpy", "as_tensor") and calls_of(made, "numpy"):
            return next(
                (n.func.value for n in ast.walk(made) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "detach"), None
            )
        case ast.Call(args=[inner, *_]) if program.is_torch(node.func, "tensor") and not calls_of(inner, "detach"):
            return inner
        case ast.Attribute(value=inner, attr="data"):
            return inner
    return None


def calls_of(node: ast.AST, name: str) -> bool:
    """Whether a method of that name is called within."""
    return any(isinstance(n, ast.Call) and method(n) == name for n in ast.walk(node))


def _layers_behind(program: Program, inner: ast.expr, forward: Scope) -> set[str]:
    """The own layers that made a value: called in it, or in the last value of the name that it is, and not under `no_grad`, where nothing is left to cut."""
    values = reaching(program, inner, forward) if isinstance(inner, ast.Name) else [inner]
    called = [n.func for value in values for n in ast.walk(value) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    called = [f for f in called if not any(isinstance(a, ast.With) for a in program.ancestors(f))]
    return {f.attr for f in called if dotted(f.value) == "self" and any(is_layer(program, o.call, o.scope) for o in program.origins(f, forward))}


def _lives_on(program: Program, inner: ast.expr, node: ast.AST, forward: Scope) -> bool:
    """Whether the name that is detached is also used with its gradient."""
    if not isinstance(inner, ast.Name):
        return False
    statement = program.statement(node)
    rebound = isinstance(statement, ast.Assign) and dotted(statement.targets[0]) == inner.id
    made = max(
        (b.statement.lineno for b in forward.bindings.get(inner.id, ()) if isinstance(b.statement, ast.stmt) and b.statement.lineno < statement.lineno),
        default=0,
    )
    for use in own_nodes(forward.node):
        if not (isinstance(use, ast.Name) and use.id == inner.id and isinstance(use.ctx, ast.Load)) or use is inner or use.lineno <= made:
            continue
        parent = program.parents[use]
        if not (isinstance(parent, ast.Attribute) and parent.attr in ("detach", "shape", "size", "device", "dtype", "dim", "data")) and not (
            rebound and use.lineno > statement.lineno
        ):
            return True
    return False


def _goes_on(program: Program, node: ast.AST, forward: Scope) -> bool:
    """Whether a value becomes the input of an own layer or the whole result, through functions of torch and further methods."""
    parent = program.parents[node]
    if isinstance(parent, ast.Attribute):
        grandparent = program.parents[parent]
        return isinstance(grandparent, ast.Call) and grandparent.func is parent and _goes_on(program, grandparent, forward)
    if isinstance(parent, ast.Call):
        alone = not any(names_read(a) - {"self"} for a in parent.args if a is not node)  # beside another value, as the target of a loss, it cuts nothing
        return dotted(parent.func).startswith("self.") or (program.resolve(parent.func).startswith("torch.") and alone and _goes_on(program, parent, forward))
    if isinstance(parent, ast.Return):
        return True
    if not (isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name)):
        return False
    name, line = parent.targets[0].id, parent.lineno
    uses = [n for n in own_nodes(forward.node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) and n.lineno > line]
    return any(_goes_on(program, use, forward) for use in uses if program.statement(use) is not parent)


@rule(
    "BH406",
    "result-discarded",
    "error",
    title="The result of an operation is thrown away",
    why="These operations return a new tensor and leave the old one as it was: the line does nothing.",
    remedy="assign the result: `x = x.to(device)`",
    bad="""
        import torch
        import torch.nn.functional as F

        def forward(x, weight):
            x = x @ weight
            F.relu(x)
            return x
        """,
    good="""
        import torch
        import torch.nn.functional as F

        def forward(x, weight):
            x = x @ weight
            x = F.relu(x)
            return x
        """,
)
def result_discarded(subject: Subject) -> Iterator[Place]:
    """A statement is nothing but a pure function of torch, a reshaping method, or `.to` of a batch's tensor."""
    program = subject.program
    if "torch" not in program.modules_imported:
        return
    pure = {
        "relu", "softmax", "log_softmax", "sigmoid", "tanh", "gelu", "silu", "elu", "selu", "mish", "leaky_relu", "softplus", "layer_norm", "interpolate",
        "pad", "dropout", "normalize", "cat", "stack", "flatten", "transpose", "squeeze", "unsqueeze", "clamp", "where", "permute", "reshape",
    }  # fmt: skip
    methods = {"view", "reshape", "permute", "transpose", "unsqueeze", "squeeze", "flatten", "contiguous", "detach", "softmax", "sigmoid"}
    for node in program.nodes[ast.Expr]:
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)) or any(isinstance(a, ast.With | ast.Try) for a in program.ancestors(node)):
            continue
        call, name = node.value, program.resolve(node.value.func)
        if name.startswith("torch.") and name.rpartition(".")[2] in pure and not any(k.arg in ("inplace", "out") for k in call.keywords):
            yield call, f"{dotted(call.func)} returns its result, and nothing keeps it"
        elif method(call) in methods and isinstance(receiver(call), ast.Name) and _within_forward(program, call):
            yield call, f".{method(call)}() returns its result, and nothing keeps it"
        elif method(call) in ("to", "cuda", "half", "float") and _from_batch(program, receiver(call), program.scope(call)):
            yield call, f".{method(call)}() of a tensor returns a new one, and nothing keeps it"


def _within_forward(program: Program, node: ast.AST) -> bool:
    scope = program.scope(node)
    return scope.name == "forward" or bool(scope.owner and program.is_module(scope.owner) and scope.name != "__init__")


def _moved_network(call: ast.Call) -> bool:
    """`net.to(device)(x)`: a network that is called where it is moved."""
    return method(call.func) in ("to", "cuda", "eval", "train")


def _from_batch(program: Program, node: ast.expr | None, scope: Scope) -> bool:
    """Whether a name is an element of what a loop over batches gives."""
    if not isinstance(node, ast.Name) or is_model(program, node, scope):
        return False
    given = [c for c in program.all_calls if program.scope(c) is scope and any(isinstance(a, ast.Name) and a.id == node.id for a in c.args)]
    if node.id in scope.parameters and any(is_model(program, c.func, scope) or _moved_network(c) for c in given):
        return True
    bound = scope.bindings.get(node.id, [])
    return bool(bound) and all(b.how == "loop" and b.index is not None and any("loader" in n.lower() for n in identifiers(b.value)) for b in bound)


@rule(
    "BH407",
    "frozen-by-attribute",
    "error",
    title="requires_grad is set on a module",
    why="A module has no `requires_grad`: the assignment makes a new attribute, and every parameter is trained as before.",
    remedy="call `module.requires_grad_(False)`",
    bad="""
        from torch import nn

        def freeze(model: nn.Module):
            for layer in model.backbone.children():
                layer.requires_grad = False
        """,
    good="""
        from torch import nn

        def freeze(model: nn.Module):
            for layer in model.backbone.children():
                layer.requires_grad_(False)
        """,
)
def frozen_by_attribute(subject: Subject) -> Iterator[Place]:
    """`x.requires_grad = …` where x is a loop variable over modules, or was made as one; or a name that only resembles it."""
    program = subject.program
    for node in program.nodes[ast.Assign]:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute) and node.targets[0].attr in MISSPELT:
            yield node, f"{node.targets[0].attr} is no attribute of a tensor or module: setting it freezes nothing"
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute) and node.targets[0].attr == "requires_grad"):
            continue
        owner, scope = node.targets[0].value, program.scope(node)
        bound = scope.bindings.get(owner.id, []) if isinstance(owner, ast.Name) else []
        over = [last_name(b.value.func) for b in bound if b.how == "loop" and isinstance(b.value, ast.Call) and b.statement in program.ancestors(node)]
        indices = [b.index for b in bound if b.how == "loop" and b.statement in program.ancestors(node)]
        looped = bool(over) and over[0] in ("children", "modules", "named_children", "named_modules") and indices[0] in (None, 1)
        made = any(
            o.name.startswith("torch.nn.") and not o.last.endswith("Parameter") and is_layer(program, o.call, o.scope) for o in program.origins(owner, scope)
        )
        made = made or any(o.name.startswith("torchvision.models.") or program.is_module(program.classes.get(o.name)) for o in program.origins(owner, scope))
        made = made or any(method(c) == "parameters" and dotted(receiver(c)) == dotted(owner) != "" for c in program.all_calls)
        if looped or (made and not isinstance(owner, ast.Subscript)):
            yield node, f"{ast.unparse(owner)} is a module: setting requires_grad on it freezes nothing"


@rule(
    "BH408",
    "tensor-not-a-buffer",
    "warning",
    title="A tensor of a module is neither parameter nor buffer",
    why="It stays on the CPU when the module moves to a device, and is in no checkpoint.",
    remedy='use `self.register_buffer("name", tensor)`, or `nn.Parameter` if it should learn',
    bad="""
        import torch
        from torch import nn

        class Scale(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.mean = torch.zeros(width)

            def forward(self, x):
                return x - self.mean
        """,
    good="""
        import torch
        from torch import nn

        class Scale(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.register_buffer("mean", torch.zeros(width))

            def forward(self, x):
                return x - self.mean
        """,
)
def tensor_not_a_buffer(subject: Subject) -> Iterator[Place]:
    """`__init__` keeps a new tensor as an attribute, and `forward` computes with it without moving it."""
    program = subject.program
    for owner in program.module_classes:
        init, forward = program.methods[owner].get("__init__"), program.methods[owner].get("forward")
        if init is None or forward is None:
            continue
        for name, bindings in program.attributes[owner].items():
            made = [
                b
                for b in bindings
                if b.scope is init and isinstance(b.value, ast.Call) and program.resolve(b.value.func) in {f"torch.{m}" for m in MAKES_TENSORS}
            ]
            if not made or len(bindings) > 1 or keyword(made[0].value, "device") is not None:  # type: ignore[arg-type]
                continue
            uses = [n for n in own_nodes(forward.node) if isinstance(n, ast.Attribute) and n.attr == name and dotted(n.value) == "self"]
            moved = any(isinstance(program.parents[n], ast.Attribute) for n in uses)
            if uses and not moved and not _learns(program, owner, name):
                yield made[0].value, f"self.{name} is neither parameter nor buffer: it does not follow the module to a device or into a checkpoint"


def _learns(program: Program, owner: ast.ClassDef, name: str) -> bool:
    """Whether the class registers or moves the tensor elsewhere."""
    return any(isinstance(n, ast.Constant) and n.value == name for n in ast.walk(owner)) or "_apply" in program.methods[owner] or "to" in program.methods[owner]


@rule(
    "BH409",
    "mutable-default",
    "warning",
    title="A default value is changed in place",
    why="The default is made once and shared by every call: what one call adds, the next one finds.",
    remedy="use None as the default, and make the value inside",
    bad="""
        import torch

        def grouped(rows, groups={}):
            for key, row in rows:
                groups.setdefault(key, []).append(row)
            return groups
        """,
    good="""
        import torch

        def grouped(rows):
            groups = {}
            for key, row in rows:
                groups.setdefault(key, []).append(row)
            return groups
        """,
)
def mutable_default(subject: Subject) -> Iterator[Place]:
    """A parameter with a list, dict or set as its default is changed in the function."""
    for scope in subject.program.scopes:
        if not isinstance(scope.node, FunctionNode):
            continue
        given = scope.node.args
        pairs = [
            *zip((*given.posonlyargs, *given.args)[::-1], given.defaults[::-1], strict=False),
            *((a, d) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d),
        ]
        for parameter, default in pairs:
            name = parameter.arg
            if not isinstance(default, ast.List | ast.Dict | ast.Set) or name in scope.bindings:
                continue
            for node in own_nodes(scope.node):
                changed = method(node) in ("append", "extend", "update", "add", "insert", "setdefault", "pop") and dotted(receiver(node)) == name
                stored = isinstance(node, ast.Assign | ast.AugAssign) and any(
                    isinstance(t, ast.Subscript) and dotted(t.value) == name for t in getattr(node, "targets", [getattr(node, "target", None)])
                )
                if changed or stored:
                    yield default, f"the default of {name} is shared by all calls, and changed in line {getattr(node, 'lineno', '?')}"
                    break
