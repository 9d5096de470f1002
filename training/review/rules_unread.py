"""Rules BH253: and BH254: an argument that is given, or something that is made, and that nothing
reads.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.loops import step_groups
from training.review.program import Program, Scope, argument
from training.review.reached import is_started
from training.review.rules_batches import MASKS, mask_never_read
from training.review.syntax import FUNCTIONS, calls, constant, last_name, method, nodes_of, words

# What changes the outcome where it is used; a device, a flag for prints and the like may be left
# over.
MATTERS = {
    "mask", "masks", "padding", "length", "lengths", "lens", "weight", "weights", "groups",
    "strata", "stratify", "generator", "rng", "seed", "checkpoint", "ckpt", "pretrained",
    "teacher", "temperature", "tau", "alpha", "beta", "gamma", "lam", "lambda", "decay",
    "momentum", "smoothing", "dropout", "rate", "lr", "noise", "timestep", "timesteps",
    "context", "condition", "memory", "hidden", "threshold", "clip", "margin", "positions",
    "discount", "dones", "done", "advantages", "target", "targets", "labels", "penalty",
}  # fmt: skip
QUIET = {
    "no_grad",
    "inference_mode",
    "enable_grad",
    "staticmethod",
    "classmethod",
    "autocast",
    "compile",
    "torch",
}
PLAIN_BASES = {"Module", "object", "ABC", "Dataset", "Generic", "Protocol"}


@rule("BH253")
def argument_never_read(subject: Subject) -> Iterator[Place]:
    """In a file that trains: a function of a name of its own, that is only called, each time with a
    value for a parameter which stands nowhere in its body.
    """
    program = subject.program
    if not subject.trains:
        return
    for scope in program.scopes:
        if (
            not isinstance(scope.node, FUNCTIONS)
            or not (unread := _unread(scope))
            or not _is_free(program, scope)
        ):
            continue
        given = _calls(program, scope)
        for name in unread:
            values = [argument(call, scope, name) for call in given]
            if MASKS & words(name) and any(
                place[0] is scope.node for place in mask_never_read(subject)
            ):
                continue  # BH245 tells of it
            if values and all(
                v is not None and not (isinstance(v, ast.Constant) and v.value in (None, False))
                for v in values
            ):
                yield (
                    scope.node,
                    f"{scope.name} is given {name}, {_told(values)}, and never reads it",
                )


def _unread(scope: Scope) -> list[str]:
    """The parameters that matter by their names and stand nowhere in the body, where that does
    something.
    """
    node = scope.node
    if isinstance(node, ast.Module) or any(
        last_name(d.func if isinstance(d, ast.Call) else d) not in QUIET
        for d in node.decorator_list
    ):
        return []
    parameters = [p for p in scope.parameters if not p.startswith("_") and MATTERS & words(p)]
    if not parameters:
        return []
    named = {n.id for s in node.body for n in nodes_of(s, ast.Name)}
    body = [
        s
        for s in node.body
        if not isinstance(s, (ast.Pass, ast.Raise))
        and not (isinstance(s, ast.Expr) and constant(s.value) is not None)
    ]
    if (
        not body
        or node.args.vararg
        or node.args.kwarg
        or "locals" in named
        or _gives_constant(body)
    ):
        return []
    return [p for p in parameters if p not in named]


def _gives_constant(body: list[ast.stmt]) -> bool:
    """Whether a body is a mere `return 0.0` or `return x`, as that of a stand-in."""
    return len(body) == 1 and isinstance(body[0], ast.Return) and not calls(body[0])


def _calls(program: Program, scope: Scope) -> list[ast.Call]:
    """Where a function is called, the `forward` of a network by a name that holds this network
    alone.
    """
    owner = scope.owner
    if owner is None or scope.name != "forward":
        return [call for call, _ in program.call_sites[scope]]
    made = (
        (c, {o.name for o in program.origins(c.func, program.scope(c))})
        for c in program.all_calls
        if isinstance(c.func, (ast.Name, ast.Attribute))
    )
    return [c for c, names in made if names == {owner.name}]


def _is_free(program: Program, scope: Scope) -> bool:
    """Whether nothing but its own callers tells which parameters a function has: no base class, no
    other function of its name, and it is handed to nobody.
    """
    if (
        scope.owner is not None
        and {last_name(b.value if isinstance(b, ast.Subscript) else b) for b in scope.owner.bases}
        - PLAIN_BASES
    ):
        return False
    if scope.owner is not None and scope.name in ("__init__", "forward"):
        return not any(
            last_name(b) == scope.owner.name for c in program.classes.values() for b in c.bases
        )
    same = [s for s in program.scopes if s.name == scope.name]
    called = {id(c.func) for c in program.all_calls}
    named = [
        n
        for n in (*program.nodes[ast.Name], *program.nodes[ast.Attribute])
        if last_name(n) == scope.name
    ]
    return len(same) == 1 and all(id(n) in called for n in named)


def _told(values: list[ast.expr | None]) -> str:
    first = values[0]
    text = ast.unparse(first) if first is not None else ""
    return f"{text if len(text) < 40 else 'a value'} in line {getattr(first, 'lineno', 0)}"


MADE_FOR_USE = {
    "sampler", "scaler", "generator", "mask", "masks", "lengths", "transform", "transforms",
    "augment", "augmentation", "stopper", "stopping", "ema", "teacher", "groups",
}  # fmt: skip
SCALES = {"mean", "std", "mu", "sigma", "median"}
WEIGHING = {"class", "pos", "sample", "loss", "balanced", "label"}


@rule("BH254")
def made_and_never_read(subject: Subject) -> Iterator[Place]:
    """In a file that trains: a local name, or one of a file that is started, is bound to what a
    call gives, its like being made for use, and stands nowhere else; or a loop that learns leaves
    out what its batches bring.
    """
    program = subject.program
    if not subject.trains or "locals" in program.identifiers or "globals" in program.identifiers:
        return
    read = {n.id for n in program.nodes[ast.Name] if not isinstance(n.ctx, ast.Store)}
    texts = {n.value for n in program.nodes[ast.Constant] if isinstance(n.value, str)}
    for scope in program.scopes:
        if scope is program.top and not is_started(program):
            continue
        for name, bindings in scope.bindings.items():
            if name in read or name in texts or name.startswith("_"):
                continue
            of = words(name)
            plain = (
                len(bindings) == 1
                and bindings[0].how == "assign"
                and bindings[0].index is None
                and isinstance(bindings[0].value, ast.Call)
            )
            scale = bool(SCALES & of) and method(bindings[0].value) in ("mean", "std", "median")
            matters = (
                scale
                or name == "weights"
                or bool(MADE_FOR_USE & of)
                or bool({"weight", "weights"} & of and WEIGHING & of)
            )
            if plain and matters:
                yield bindings[0].statement, f"{name} is made here, and nothing uses it"
    for loop in dict.fromkeys(
        steps.loop.node for steps in step_groups(subject) if steps.loop is not None
    ):
        for target in (
            nodes_of(loop.target, ast.Name)
            if isinstance(loop, ast.For) and isinstance(loop.target, ast.Tuple)
            else ()
        ):
            if (
                {"mask", "masks", "lengths", "lens"} & words(target.id)
                and target.id not in read
                and not target.id.startswith("_")
            ):
                yield loop, f"each batch brings {target.id}, and nothing uses it"
