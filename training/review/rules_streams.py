"""Rules BH521: and BH522: rows that come several times: from every worker of a stream, and into the
network of every fold.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope, argument
from training.review.rules_loader import loaders
from training.review.rules_module import is_layer
from training.review.settings import argument_of
from training.review.syntax import (
    calls,
    constant,
    dotted,
    identifiers,
    last_name,
    method,
    nodes_of,
    receiver,
    walk,
    words,
)

SHARES = {
    "get_worker_info",
    "worker_init_fn",
    "split_dataset_by_node",
    "split_by_worker",
    "sharding_filter",
    "get_rank",
    "StatefulDataLoader",
}
FOLDS = {
    "KFold",
    "StratifiedKFold",
    "GroupKFold",
    "StratifiedGroupKFold",
    "RepeatedKFold",
    "LeaveOneOut",
    "LeaveOneGroupOut",
    "RepeatedStratifiedKFold",
}
RESETS = {
    "load_state_dict",
    "reset_parameters",
    "deepcopy",
    "apply",
    "clone",
    "reset",
    "init_weights",
    "reinit",
}


@rule("BH521")
def stream_in_every_worker(subject: Subject) -> Iterator[Place]:
    """A loader with a literal number of workers over an IterableDataset of this file, in which
    nothing asks for the worker.
    """
    program = subject.program
    if not any(
        last_name(b) == "IterableDataset" for c in program.classes.values() for b in c.bases
    ):
        return
    if SHARES & (
        program.identifiers | {k.arg or "" for c in program.all_calls for k in c.keywords}
    ) or any("shard" in n for n in program.identifiers):
        return
    for call in loaders(program):
        workers = constant(argument_of(program, call, "num_workers", 5))
        made = (
            [
                o
                for o in program.origins(call.args[0], program.scope(call))
                if o.name in program.classes
            ]
            if call.args
            else []
        )
        streams = [
            o
            for o in made
            if any(last_name(b) == "IterableDataset" for b in program.classes[o.name].bases)
        ]
        if (
            isinstance(workers, int)
            and workers > 1
            and streams
            and _goes_through(program, program.classes[streams[0].name])
        ):
            yield call, f"each of {workers} workers gives all rows of {streams[0].name}"


def _goes_through(program: Program, owner: ast.ClassDef) -> bool:
    """Whether `__iter__` goes once through something: it loops over it, and neither draws single
    rows nor goes on for ever.
    """
    going = program.methods[owner].get("__iter__")
    nodes = list(walk(going.node)) if going is not None else []
    drawn = {
        "randint",
        "choice",
        "choices",
        "random",
        "rand",
        "randrange",
        "integers",
        "randn",
        "sample",
        "normal",
        "uniform",
    } & {last_name(n.func) for n in nodes if isinstance(n, ast.Call)}
    return (
        any(isinstance(n, (ast.For, ast.comprehension)) for n in nodes)
        and not any(isinstance(n, ast.While) for n in nodes)
        and not drawn
    )


@rule("BH522")
def one_network_for_all_folds(subject: Subject) -> Iterator[Place]:
    """A network is made before a loop over folds, its optimizer too, or in the loop or in a
    function called there: and nothing sets the network back.
    """
    program = subject.program
    for loop in program.nodes[ast.For] if program.methods_of("split") else ():
        scope = program.scope(loop)
        named = [
            b.value
            for n in nodes_of(loop.iter, ast.Name)
            for b in scope.bindings.get(n.id, ())
            if b.how == "assign"
        ]
        over = [c for part in (loop.iter, *named) for c in calls(part) if method(c) == "split"]
        folds = [
            c
            for c in over
            if isinstance(c.func, ast.Attribute)
            and any(o.last in FOLDS for o in program.origins(c.func.value, scope))
        ]
        if not folds:
            continue
        inside = list(walk(loop))
        once = any(isinstance(s, ast.Break) for s in loop.body)
        set_back = any(
            method(n) == "copy_"
            or words(last_name(n.func)) & {"reset", "reinit", "initialize", "initialise"}
            for n in inside
            if isinstance(n, ast.Call)
        )
        if once or set_back or any(isinstance(n, ast.Call) and _resets(n, loop) for n in inside):
            continue
        used = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        for name, network, bound in _networks_before(program, loop, scope):
            if name in used and network in used:
                yield (
                    bound,
                    (
                        f"{network} was made before the loop over folds of line {loop.lineno}, and"
                        " learns in all of them"
                    ),
                    loop,
                )
        for network, bound in _trained_inside(program, loop, scope):
            yield (
                bound,
                (
                    f"{network} was made before the loop over folds of line {loop.lineno}, and"
                    " learns in all of them"
                ),
                loop,
            )


def _resets(call: ast.Call, loop: ast.For) -> bool:
    """Whether a call may give a network other weights than it learned in a loop: its best ones of
    the same passage, kept there, do not.
    """
    name = last_name(call.func)
    kept = {
        n.id
        for s in nodes_of(loop, ast.Assign)
        if "state_dict" in identifiers(s.value)
        for t in s.targets
        for n in nodes_of(t, ast.Name)
    }
    if name == "load_state_dict":
        return not (
            len(call.args) == 1 and isinstance(call.args[0], ast.Name) and call.args[0].id in kept
        )
    return name in RESETS and not (
        name in ("deepcopy", "clone") and "state_dict" in identifiers(call)
    )


def _networks_before(
    program: Program, loop: ast.For, scope: Scope
) -> Iterator[tuple[str, str, ast.expr]]:
    """Optimizers that are made before a loop and not in it: their name, that of their network, and
    what makes the network.
    """
    for name, bindings in scope.bindings.items():
        made = [
            b.value
            for b in bindings
            if isinstance(b.value, ast.Call)
            and program.resolve(b.value.func).startswith("torch.optim.")
        ]
        if len(bindings) != 1 or not made or bindings[0].value.lineno > loop.lineno:
            continue
        asked = [c for a in made[0].args[:1] for c in calls(a) if method(c) == "parameters"]
        for network in {dotted(c.func.value) for c in asked if isinstance(c.func, ast.Attribute)}:
            own = scope.bindings.get(network, [])
            if (
                len(own) == 1
                and own[0].value.lineno < loop.lineno
                and any(
                    is_layer(program, o.call) or o.name in program.classes
                    for o in program.origins(own[0].value, scope)
                )
            ):
                yield name, network, own[0].value


def _trained_inside(
    program: Program, loop: ast.For, scope: Scope
) -> Iterator[tuple[str, ast.expr]]:
    """Networks made once before a loop that get a new optimizer in it, or in a function that it
    calls, which trains them and sets nothing back.
    """
    for call in calls(loop):
        function = program.callees_by_name(call, scope)
        if function is not None and _set_back_in(program, function):
            continue
        trained = _given_to_optimizers(program, function.node) if function is not None else set()
        plain = (
            trained & set(function.parameters) - function.bindings.keys()
            if function is not None
            else set()
        )
        given = (
            {dotted(argument(call, function, p)) for p in plain} if function is not None else set()
        )
        for name in sorted(
            (
                given
                | (
                    _given_to_optimizers(program, call)
                    if program.resolve(call.func).startswith("torch.optim.")
                    else set()
                )
            )
            - {""}
        ):
            made = _made_before(program, name, loop, scope)
            if made is not None:
                yield name, made
        for name in (
            sorted(n for n in trained if n.startswith("self."))
            if function is not None and function.owner is scope.owner is not None
            else ()
        ):
            made = _made_with_the_object(program, name, scope)
            if made is not None:
                yield name, made


def _made_with_the_object(program: Program, name: str, scope: Scope) -> ast.expr | None:
    """What makes a network of `self` once, in `__init__`."""
    attribute = ast.Attribute(ast.Name("self", ast.Load()), name.removeprefix("self."), ast.Load())
    own = program.bindings_of(attribute, scope)
    if len(own) != 1 or own[0].how != "assign" or own[0].scope.name != "__init__":
        return None
    new = any(
        is_layer(program, o.call) or o.name in program.classes
        for o in program.origins(own[0].value, own[0].scope)
    )
    return own[0].value if new else None


def _set_back_in(program: Program, function: Scope) -> bool:
    """Whether a function sets a network back before it makes an optimizer for it; what is copied or
    loaded behind that are its best weights.
    """
    inside = calls(function.node)
    made = [c.lineno for c in inside if program.resolve(c.func).startswith("torch.optim.")]
    return any(last_name(c.func) in RESETS and (not made or c.lineno <= min(made)) for c in inside)


def _given_to_optimizers(program: Program, node: ast.AST) -> set[str]:
    """The names of networks all of whose parameters an optimizer gets."""
    made = [c for c in calls(node) if program.resolve(c.func).startswith("torch.optim.") and c.args]
    of = [c.args[0] for c in made if method(c.args[0]) == "parameters"]
    return {dotted(receiver(c)) for c in of}


def _made_before(program: Program, name: str, loop: ast.For, scope: Scope) -> ast.expr | None:
    """What makes a network of the file or of torch once, before a loop; None for anything else."""
    own = scope.bindings.get(name, [])
    if len(own) != 1 or own[0].value.lineno > loop.lineno or own[0].how != "assign":
        return None
    new = any(
        is_layer(program, o.call) or o.name in program.classes
        for o in program.origins(own[0].value, scope)
    )
    return own[0].value if new else None
