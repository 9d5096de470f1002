"""Rules BH441 to BH444: layers that are given something else than they take."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import torch_calls
from training.review.program import Program, Scope
from training.review.syntax import constant, dotted, is_false, is_true, keyword, last_name, method, receiver, walk, words
from training.review.values import reaching

DROPOUTS = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "dropout")
KEPT = {"keep", "keeprate", "keepprob", "retain", "keeping", "kept"}
DRAWN = {"randn", "rand", "empty", "zeros", "ones", "normal", "uniform", "randn_like", "empty_like", "rand_like"}
CATEGORIES = "categorical"
SWITCHES = {"flag", "flags", "switch", "switches", "binary", "onehot", "indicator", "indicators", "ordinal", "ordered", "ranks"}
FLOATING = {"float", "double", "half", "bfloat16"}


@rule(
    "BH441",
    "keep-rate-as-drop-rate",
    "error",
    title="Dropout is given the share to keep",
    why="The argument is the share that is dropped: at keep=0.9 nine units in ten are 0, and the network hardly learns.",
    remedy="`nn.Dropout(1 - keep)`",
    bad="""
        from torch import nn

        def head(width, keep=0.9):
            return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Dropout(keep), nn.Linear(64, 1))
        """,
    good="""
        from torch import nn

        def head(width, keep=0.9):
            return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Dropout(1 - keep), nn.Linear(64, 1))
        """,
)
def keep_rate_as_drop_rate(subject: Subject) -> Iterator[Place]:
    """The probability of a torch dropout is a name that speaks of keeping, as it is."""
    program = subject.program
    for call in torch_calls(program, *DROPOUTS):
        given = keyword(call, "p", 1 if last_name(call.func) == "dropout" else 0)
        if isinstance(given, (ast.Name, ast.Attribute)) and KEPT & words(last_name(given)):
            yield call, f"{ast.unparse(given)} is dropped, by its name it is to be kept"


FILLS = {"copy_", "load_state_dict", "load_file", "from_numpy", "load", "load_model", "index_copy_", "fill_", "orthogonal_", "eye_"}
FIXED = {"random", "reservoir", "hash", "hashed", "position", "positions", "pos", "fixed", "frozen", "query", "queries", "anchors", "prototypes", "key", "keys"}


@rule(
    "BH442",
    "fresh-embedding-frozen",
    "error",
    title="A freshly drawn embedding is frozen",
    why="Embedding.from_pretrained freezes its weights: of numbers that were just drawn the network gets random vectors, and never better ones.",
    remedy="`nn.Embedding(levels, width)`, or `from_pretrained(start, freeze=False)`",
    bad="""
        import torch
        from torch import nn

        def table(levels, width):
            start = torch.randn(levels, width) * 0.1
            return nn.Embedding.from_pretrained(start)
        """,
    good="""
        import torch
        from torch import nn

        def table(levels, width):
            start = torch.randn(levels, width) * 0.1
            return nn.Embedding.from_pretrained(start, freeze=False)
        """,
)
def fresh_embedding_frozen(subject: Subject) -> Iterator[Place]:
    """`from_pretrained` without `freeze`, of numbers that the same function draws and fills with nothing but draws; no hash, sine or one-hot table.

    Or a module's own new table whose weight is frozen, in a file that fills no weight.
    """
    program = subject.program
    for call in program.methods_of("from_pretrained"):
        if last_name(receiver(call)) not in ("Embedding", "EmbeddingBag") or keyword(call, "freeze", 1) is not None:
            continue
        scope, given = program.scope(call), keyword(call, "embeddings", 0)
        values = reaching(program, given, scope) if isinstance(given, ast.Name) else [given]
        drawn = bool(values) and all(v is not None and _is_drawn(program, v) for v in values)
        empty = any(isinstance(v, ast.Call) and last_name(v.func) == "empty" for v in values) and "load_state_dict" in program.called_names
        if (
            drawn
            and not empty
            and not _set_free(program)
            and not (isinstance(given, ast.Name) and (_is_filled(program, given.id, scope) or words(given.id) & FIXED))
        ):
            yield call, f"{ast.unparse(given) if given is not None else 'the table'} was drawn here, and does not learn"
    for owner in program.module_classes if not FILLS & program.called_names and not _set_free(program) else ():
        for name, made in program.attributes[owner].items():
            fresh = len(made) == 1 and isinstance(made[0].value, ast.Call) and _is_table(made[0].value)
            frozen = next((n for n in walk(owner) if _freezes(n, f"self.{name}.weight")), None) if fresh and not FIXED & words(name) else None
            if frozen is not None:
                yield frozen, f"self.{name} was drawn in __init__, and does not learn"


def _is_table(node: ast.Call) -> bool:
    """Whether it makes an embedding, or a list of nothing else."""
    inner = node.args[0] if last_name(node.func) == "ModuleList" and node.args else None
    element = inner.elt if isinstance(inner, (ast.ListComp, ast.GeneratorExp)) else node
    return isinstance(element, ast.Call) and last_name(element.func) in ("Embedding", "EmbeddingBag")


def _set_free(program: Program) -> bool:
    """Whether anything is set free again, or vectors are assigned: `requires_grad_(True)`, `weight.requires_grad = True`, `weight.data = …`."""
    freed = any(not c.args or is_true(c.args[0]) for c in program.methods_of("requires_grad_"))
    for node in program.nodes[ast.Assign]:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Attribute):
            freed |= (target.attr == "requires_grad" and is_true(node.value)) or target.attr == "data"
    return freed


def _freezes(node: ast.AST, weight: str) -> bool:
    """`self.embed.weight.requires_grad_(False)`, or the same of the module or by an assignment."""
    if isinstance(node, ast.Call) and method(node) == "requires_grad_" and node.args:
        return is_false(node.args[0]) and dotted(receiver(node)) in (weight, weight.removesuffix(".weight"))
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    return isinstance(node, ast.Assign) and is_false(node.value) and dotted(target) == f"{weight}.requires_grad"


def _is_drawn(program: Program, value: ast.expr) -> bool:
    """Whether it is a draw or an empty tensor, scaled perhaps."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Mult, ast.Div)):
        return _is_drawn(program, value.left) or (isinstance(value.op, ast.Mult) and _is_drawn(program, value.right))
    if not isinstance(value, ast.Call):
        return False
    return (program.is_torch(value.func, *DRAWN) and last_name(value.func) not in ("zeros", "ones", "empty_like")) or last_name(value.func).endswith("normal_")


def _is_filled(program: Program, name: str, scope: Scope) -> bool:
    """Whether rows of a tensor are set, or it is given to anything but `nn.init`: pretrained vectors are copied in."""
    for node in walk(scope.node):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and last_name(node.value) == name:
            return True
        given = isinstance(node, ast.Call) and any(last_name(a) == name for a in node.args)
        if given and isinstance(node, ast.Call) and last_name(node.func) != "from_pretrained" and not program.resolve(node.func).startswith("torch.nn.init."):
            return True
        if isinstance(node, ast.Call) and method(node) in ("copy_", "index_copy_", "scatter_") and last_name(receiver(node)) == name:
            return True
    return False


@rule(
    "BH443",
    "codes-as-magnitudes",
    "warning",
    title="Codes of categories are used as numbers",
    why="A code is a name: that one category is 3 and another 12 says nothing about them. As magnitudes codes give the categories an order, and inputs far from unit scale.",
    remedy="`nn.Embedding`, or `F.one_hot(codes, levels).float()`",
    bad="""
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self, shape):
                super().__init__()
                self.body = nn.Linear(shape.numeric + len(shape.categories), shape.outputs)

            def forward(self, batch):
                codes = batch["categorical"].float()
                return self.body(torch.cat([batch["numeric"], codes], dim=1))
        """,
    good="""
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self, shape):
                super().__init__()
                self.tables = nn.ModuleList(nn.Embedding(n, 8) for n in shape.categories)
                self.body = nn.Linear(shape.numeric + 8 * len(shape.categories), shape.outputs)

            def forward(self, batch):
                looked_up = [table(batch["categorical"][:, i]) for i, table in enumerate(self.tables)]
                return self.body(torch.cat([batch["numeric"], *looked_up], dim=1))
        """,
)
def codes_as_magnitudes(subject: Subject) -> Iterator[Place]:
    """`batch["categorical"]`, or columns of it, becomes floating point in a network, and is joined with other inputs or given to a layer."""
    program = subject.program
    for call in program.methods_of("to", *FLOATING):
        scope = program.scope(call)
        if not _makes_floating(call) or not program.is_module(scope.owner) or not _are_codes(program, receiver(call), scope):
            continue
        if _joins(program, program.parents[call]) or _is_joined(program, call, scope):
            yield call, "codes of categories go into the network as magnitudes"


def _makes_floating(call: ast.Call) -> bool:
    if method(call) in FLOATING:
        return not call.args
    given = keyword(call, "dtype", 0)
    return method(call) == "to" and given is not None and (last_name(given) == "dtype" or last_name(given).startswith(("float", "bfloat")))


def _are_codes(program: Program, node: ast.expr | None, scope: Scope) -> bool:
    """Whether it is `batch["categorical"]`, a slice of it, or a name for one."""
    if isinstance(node, ast.Subscript):
        return constant(node.slice) == CATEGORIES or _are_codes(program, node.value, scope)
    if isinstance(node, ast.Call) and method(node) in ("unsqueeze", "view", "reshape"):
        return _are_codes(program, receiver(node), scope)
    values = reaching(program, node, scope) if isinstance(node, ast.Name) else []
    return bool(values) and all(_are_codes(program, v, scope) for v in values)


def _joins(program: Program, node: ast.AST) -> bool:
    """Whether something is an element of what `cat` or `hstack` joins, or a layer's argument."""
    while isinstance(node, ast.Attribute) and node.attr in ("unsqueeze", "view", "reshape", "squeeze"):
        node = program.parents[program.parents[node]]
    if isinstance(node, (ast.List, ast.Tuple)):
        node = program.parents[node]
    return isinstance(node, ast.Call) and (program.is_torch(node.func, "cat", "concat", "hstack", "column_stack") or dotted(node.func).startswith("self."))


def _is_joined(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether the name that a value gets is."""
    statement = program.parents[call]
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not isinstance(statement.targets[0], ast.Name):
        return False
    name = statement.targets[0].id
    if words(name) & SWITCHES:
        return False
    reads = [n for n in walk(scope.node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    return any(_joins(program, program.parents[n]) for n in reads)


@rule(
    "BH444",
    "skip-changed-in-place",
    "error",
    title="The first layer of a residual branch changes the skip",
    why="An activation in place works on the very tensor that is added afterwards: the skip loses all negative values, and their gradient.",
    remedy="`inplace=False` for the first activation of the branch",
    bad="""
        from torch import nn

        class Block(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.body = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, width))

            def forward(self, x):
                return x + self.body(x)
        """,
    good="""
        from torch import nn

        class Block(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.body = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, width))

            def forward(self, x):
                return x + self.body(x)
        """,
)
def skip_changed_in_place(subject: Subject) -> Iterator[Place]:
    """`x + self.body(x)`, where the body is a Sequential of this class whose first layer has `inplace=True`."""
    program = subject.program
    for node in program.nodes[ast.BinOp] if torch_calls(program, "Sequential") else ():
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
            continue
        scope = program.scope(node)
        for skip, branch in ((node.left, node.right), (node.right, node.left)):
            factors = [branch.left, branch.right] if isinstance(branch, ast.BinOp) and isinstance(branch.op, ast.Mult) else [branch]
            called = next((f for f in factors if isinstance(f, ast.Call)), None)
            if not (isinstance(skip, ast.Name) and isinstance(called, ast.Call) and len(called.args) == 1 and last_name(called.args[0]) == skip.id):
                continue
            made = [o.call for o in program.origins(called.func, scope) if o.name == "torch.nn.Sequential" and o.call.args]
            first = made[0].args[0] if len(made) == 1 else None
            if isinstance(first, ast.Call) and is_true(keyword(first, "inplace", 0 if last_name(first.func) in ("ReLU", "SiLU", "Mish") else 1)):
                yield first, f"{last_name(first.func)} changes {skip.id} in place, which is added in line {node.lineno}", node
