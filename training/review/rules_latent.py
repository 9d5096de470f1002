"""Rules BH436 and BH439: what a variational network makes of its log variances, and its noise."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.latents import names_in_divergences, plain, scales_of_noise, value_of
from training.review.program import Program, Scope
from training.review.rules_divergence import is_log_variance
from training.review.syntax import calls, constant, dotted, exponent, identifiers, last_name, method, own_nodes, walk, words
from training.review.values import activation

BOUNDED = {"relu", "softplus", "sigmoid", "softmax", "abs", "square", "relu_"}
WIDTHS = {"dim", "latent", "latents", "features", "width", "hidden", "channels"}


@rule(
    "BH436",
    "log-variance-misread",
    "error",
    title="A log variance is used as a deviation, or cannot be negative",
    why="The divergence takes the value as log σ². Where noise is scaled by its exp, latents are drawn with σ² in place of σ; after a ReLU no variance can be below 1.",
    remedy="`std = torch.exp(0.5 * logvar)`, and no activation behind the layer that gives logvar",
    bad="""
        import torch

        def sample(mu, logvar):
            return mu + torch.exp(logvar) * torch.randn_like(mu)

        def divergence(mu, logvar):
            return -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1).mean()
        """,
    good="""
        import torch

        def sample(mu, logvar):
            return mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)

        def divergence(mu, logvar):
            return -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1).mean()
        """,
)
def log_variance_misread(subject: Subject) -> Iterator[Place]:
    """A name that is a log variance in the divergence of the file: its exp scales noise or is a Normal's deviation; or it comes out of a ReLU or the like."""
    program = subject.program
    logs, _ = names_in_divergences(program)
    if not logs:
        return
    for node, scale, scope in scales_of_noise(program):
        inner = exponent(value_of(program, scale, scope))
        if inner is not None and plain(inner) in logs:
            yield node, f"exp({ast.unparse(inner)}) is a variance, and is used as the deviation: that is exp(0.5 * {ast.unparse(inner)})"
    for value, scope, name in _given(program, logs):
        made = last_name(value.func) if isinstance(value, ast.Call) else ""
        known = activation(program, value, scope) if isinstance(value, ast.Call) else ""
        bound = known if known in BOUNDED else made if made in BOUNDED else ""
        if bound:
            yield value, f"{name} comes out of {bound}: the log of a variance below 1 is negative"


def _given(program: Program, logs: set[str]) -> Iterator[tuple[ast.expr, Scope, str]]:
    """What names of log variances are set to: through tuples that methods and functions of the file return."""
    for scope in program.scopes:
        for name, bound in scope.bindings.items():
            if name.lower().replace("_", "") not in logs:
                continue
            for b in bound:
                if b.how != "assign":
                    continue
                if b.index is None:
                    yield b.value, scope, name
                elif isinstance(b.value, ast.Call):
                    yield from ((value, function, name) for value, function in _returned(program, b.value, scope, b.index))


def _returned(program: Program, call: ast.Call, scope: Scope, index: int) -> Iterator[tuple[ast.expr, Scope]]:
    """An element of the tuples that the functions of a call return."""
    for function in program.callees(call, scope):
        for node in own_nodes(function.node):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and index < len(node.value.elts):
                yield node.value.elts[index], function


@rule(
    "BH439",
    "one-noise-for-all-rows",
    "error",
    title="All rows of a batch share one noise vector",
    why="Noise of the size of one row is broadcast: all latents of a batch are shifted alike, the decoder can take the shift out again, and the posterior learns no width.",
    remedy="`z = mu + std * torch.randn_like(std)`",
    bad="""
        import torch

        def sample(mu, logvar):
            std = torch.exp(0.5 * logvar)
            return mu + std * torch.randn(std.shape[1])

        def divergence(mu, logvar):
            return -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1).mean()
        """,
    good="""
        import torch

        def sample(mu, logvar):
            std = torch.exp(0.5 * logvar)
            return mu + std * torch.randn_like(std)

        def divergence(mu, logvar):
            return -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1).mean()
        """,
)
def one_noise_for_all_rows(subject: Subject) -> Iterator[Place]:
    """In a file with a divergence, the exp of what it has for log variance scales `randn` of one row, and is added to something."""
    program = subject.program
    logs, _ = names_in_divergences(program)
    for node, scale, scope in scales_of_noise(program) if logs else ():
        inner = [e for c in calls(value_of(program, scale, scope)) if (e := exponent(c)) is not None]
        of_logs = any({n.lower().replace("_", "") for n in identifiers(e)} & logs for e in inner)
        noise = next((o for o in (node.left, node.right) if o is not scale), None) if isinstance(node, ast.BinOp) else None
        drawn_by = value_of(program, noise, scope) if noise is not None else None
        if _of_single_row(program, scope):
            continue
        if of_logs and isinstance(drawn_by, ast.Call) and last_name(drawn_by.func) == "randn" and _of_one_row(program, drawn_by, scope):
            yield node, f"{ast.unparse(drawn_by)} is one noise vector, which all rows of a batch share"


def _of_single_row(program: Program, scope: Scope) -> bool:
    """Whether the function sees one row at a time, or the batch is one row: `vmap` runs it, or a network is given `x[None]`; parameters of a layer have no rows."""
    mapped = any(last_name(c.func) == "vmap" and c.args and last_name(c.args[0]) == scope.name for c in program.all_calls)
    alone = any(isinstance(a, ast.Subscript) and isinstance(a.slice, ast.Constant) and a.slice.value is None for c in calls(scope.node) for a in c.args)
    learned = {
        last_name(t)
        for n in program.nodes[ast.Assign]
        if isinstance(n, ast.Assign) and last_name(getattr(n.value, "func", None)) == "Parameter"
        for t in n.targets
    }
    own = {n.attr for n in walk(scope.node) if isinstance(n, ast.Attribute) and dotted(n.value) == "self"}
    return mapped or alone or any(is_log_variance(n) for n in learned & own)


def _of_one_row(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether `randn` is asked for one row: its only size is a number of features, or the first of two is 1."""
    sizes = call.args[0].elts if len(call.args) == 1 and isinstance(call.args[0], (ast.Tuple, ast.List)) else call.args
    if any(isinstance(s, ast.Starred) for s in sizes) or any(k.arg == "size" for k in call.keywords):
        return False
    if len(sizes) == 2 and constant(sizes[0]) == 1:
        return True
    return len(sizes) == 1 and _is_width(program, sizes[0], scope)


def _is_width(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether it is a number of features: a literal, `x.size(1)`, `x.shape[-1]`, or a name bound to a number or called so."""
    if isinstance(constant(node), int):
        return True
    if isinstance(node, ast.Subscript):
        return last_name(node.value) == "shape" and constant(node.slice) in (1, -1)
    if isinstance(node, ast.Call):
        return method(node) == "size" and len(node.args) == 1 and constant(node.args[0]) in (1, -1)
    bound = program.bindings_of(node, scope)
    if bound:
        return all(isinstance(constant(b.value), int) or (isinstance(b.value, ast.Name) and bool(words(b.value.id) & WIDTHS)) for b in bound)
    return bool(words(last_name(node)) & WIDTHS) and "shape" not in words(last_name(node))
