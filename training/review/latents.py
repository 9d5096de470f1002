"""The latents of a variational network: which names are log variances and means, what noise is scaled by, what is drawn without a gradient."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.program import Program, Scope
from training.review.rules_divergence import divergences, is_log_variance
from training.review.syntax import calls, identifiers, keyword, last_name, method, receiver, walk, words

NOISE = {"randn_like", "randn", "normal", "standard_normal"}
NOISE_NAMES = {"eps", "epsilon", "noise"}
QUIET = {"no_grad", "inference_mode"}
REPARAMETERIZED = {"rsample", "randn_like", "randn"}


def plain(node: ast.expr) -> str:
    """The last part of a name without underscores; empty for anything else."""
    return last_name(node).lower().replace("_", "") if isinstance(node, (ast.Name, ast.Attribute)) else ""


def names_in_divergences(program: Program) -> tuple[set[str], set[str]]:
    """Names of log variances and of means, as they stand in the divergences of a file; underscores left out."""
    found = divergences(program)
    logs, means = {plain(a) for _, a, _ in found} - {""}, {plain(b) for _, _, b in found} - {""}
    if logs:
        logs |= {n for name in program.identifiers if is_log_variance(name) for n in (name.lower().replace("_", ""),)}
    return logs, means


def value_of(program: Program, node: ast.expr, scope: Scope) -> ast.expr:
    """The only value of a name; of anything else itself."""
    bound = program.bindings_of(node, scope) if isinstance(node, ast.Name) else []
    return bound[0].value if len(bound) == 1 and bound[0].how == "assign" and bound[0].index is None else node


def _is_noise(program: Program, node: ast.expr, scope: Scope) -> bool:
    made = value_of(program, node, scope)
    drawn = isinstance(made, ast.Call) and last_name(made.func) in NOISE
    return drawn or (isinstance(node, ast.Name) and bool(words(node.id) & NOISE_NAMES))


def scales_of_noise(program: Program) -> Iterator[tuple[ast.AST, ast.expr, Scope]]:
    """What noise is multiplied by and added to something, and the deviations of Normal and `torch.normal`."""
    for node in program.nodes[ast.BinOp]:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            scope, above = program.scope(node), program.parents[node]
            if not (isinstance(above, ast.BinOp) and isinstance(above.op, ast.Add)):
                continue
            for scale, noise in ((node.left, node.right), (node.right, node.left)):
                if _is_noise(program, noise, scope) and not _is_noise(program, scale, scope):
                    yield node, scale, scope
    for call in program.all_calls:
        name = program.resolve(call.func)
        if not name.endswith(("distributions.Normal", "torch.normal")):
            continue
        deviation = keyword(call, "scale", 1) if name.endswith("distributions.Normal") else keyword(call, "std", 1) if name == "torch.normal" else None
        if deviation is not None:
            yield call, deviation, program.scope(call)


def _quiet(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a call stands where no gradient is computed, or in a branch, which may be of evaluation."""
    decorators = scope.node.decorator_list if not isinstance(scope.node, ast.Module) else []
    around = program.ancestors(call)
    blocks = [i.context_expr for a in around if isinstance(a, ast.With) for i in a.items]
    branched = any(isinstance(a, ast.If) for a in around) or any(isinstance(a, ast.IfExp) and call not in set(walk(a.body)) for a in around)
    return branched or any(QUIET & identifiers(d) for d in (*decorators, *blocks))


def _distribution(program: Program, call: ast.Call, scope: Scope) -> ast.Call | None:
    """The call that holds mean and deviation of what is drawn there without a gradient."""
    if program.resolve(call.func) == "torch.normal" and len(call.args) + len(call.keywords) >= 2:
        return call
    on = receiver(call)
    if method(call) != "sample" or on is None:
        return None
    made = value_of(program, on, scope)
    return made if isinstance(made, ast.Call) and program.resolve(made.func).endswith("distributions.Normal") else None


def drawn_without_gradient(program: Program) -> Iterator[tuple[ast.Call, str]]:
    """Latents whose mean stands in a divergence of the file, drawn by `torch.normal` or `Normal(…).sample()` in a function that has no other way and computes gradients."""
    _, means = names_in_divergences(program)
    for call in program.all_calls if means else ():
        scope = program.scope(call)
        if _quiet(program, call, scope) or REPARAMETERIZED & {last_name(c.func) for c in calls(scope.node)} or "log_prob" in identifiers(scope.node):
            continue
        made = _distribution(program, call, scope)
        mean = next(iter([*made.args, *(k.value for k in made.keywords)]), None) if made is not None else None
        if mean is not None and plain(mean) in means:
            yield call, "torch.normal" if made is call else "sample()"
