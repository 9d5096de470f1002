"""What keeps the best so far: helpers of the file that compare a score with it, and dicts that hold
its weights.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.kinds import is_model, is_network_with_state
from training.review.program import Program, Scope, argument
from training.review.syntax import (
    constant,
    dotted,
    identifiers,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes_of,
    receiver,
    walk,
    words,
)

KEEPS = {
    "save", "state", "deepcopy", "patience", "stop", "stopper", "stopping", "counter", "wait",
    "waited", "strikes", "keeper", "checkpoint",
}  # fmt: skip


def keeper_calls(program: Program) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Each call of a function, method or object that keeps the best of what it is given, and the
    argument that it compares.
    """
    keepers = {
        function: name
        for function in dict.fromkeys(map(program.scope, program.nodes[ast.Compare]))
        if (name := _compared(function))
    }
    for call in program.all_calls if keepers else ():
        scope = program.scope(call)
        for function in keepers.keys() & {
            *program.callees(call, scope),
            *_called_objects(program, call, scope),
        }:
            given = argument(call, function, keepers[function])
            if given is not None:
                yield call, given


def becomes_best(
    program: Program, node: ast.If, test: ast.expr, scope: Scope
) -> tuple[ast.expr, ast.expr] | None:
    """The score and the best so far, where a comparison is one of a score with a name that it
    becomes within the `if`, or with the least or greatest of a list.
    """
    if not isinstance(test, ast.Compare) or len(test.comparators) != 1:
        return None
    inside = set(walk(node))
    for score, best in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
        if any(
            b.statement in inside and ast.unparse(b.value) == ast.unparse(score)
            for b in program.bindings_of(best, scope)
        ):
            return score, best
        if (
            isinstance(best, ast.Call)
            and last_name(best.func) in ("min", "max")
            and len(best.args) == 1
            and isinstance(best.args[0], ast.Name)
        ):
            return score, best
    return None


def tests_of(node: ast.If) -> list[ast.expr]:
    """The comparisons of which a condition is made."""
    return node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]


def _pairs(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """What gets which value, also in `a, b = c, d`."""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=False))
    return [(t, value) for t in node.targets]


def _called_objects(program: Program, call: ast.Call, scope: Scope) -> list[Scope]:
    """The `__call__` of an object of this file."""
    owners = [
        program.classes[o.name]
        for o in program.origins(call.func, scope)
        if o.name in program.classes
    ]
    return [
        m
        for m in (
            program.find_method(owner, "__call__")
            for owner in owners
            if not program.is_module(owner)
        )
        if m is not None
    ]


def _compared(function: Scope) -> str:
    """The parameter that a function compares with something which becomes that parameter, in code
    that keeps weights or counts patience.
    """
    if not function.parameters:
        return ""
    parameters = {*function.parameters}
    tests = [
        n
        for n in nodes_of(function.node, ast.Compare)
        if len(n.comparators) == 1 and parameters & identifiers(n)
    ]
    if not tests:
        return ""
    around = function.owner if function.owner is not None else function.node
    spoken = {
        w for name in (*identifiers(around), getattr(around, "name", "")) for w in words(name)
    }
    if not KEEPS & spoken:
        return ""
    becomes = {
        dotted(t): dotted(v) for n in nodes_of(function.node, ast.Assign) for t, v in _pairs(n)
    }
    for test in tests:
        for score, best in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
            names = names_read(score) & parameters
            kept = {
                dotted(n) for n in walk(best) if isinstance(n, (ast.Name, ast.Attribute))
            } & set(becomes)
            found = [
                name for name in sorted(names - {"self"}) if any(becomes[k] == name for k in kept)
            ]
            if found:
                return found[0]
    return ""


def live_state(
    program: Program, value: ast.expr | None, scope: Scope, deep: bool = True
) -> tuple[ast.Call, Scope] | None:
    """The `net.state_dict()` whose very tensors a value holds, and where it is called: in a shallow
    copy, without their gradients, or handed back by a function of the file.
    """
    if (
        isinstance(value, ast.DictComp)
        and len(value.generators) == 1
        and method(items := value.generators[0].iter) == "items"
    ):
        kept, name = value.value, getattr(value.generators[0].target, "elts", [None])[-1]
        while (isinstance(kept, ast.Attribute) and kept.attr == "data") or (
            isinstance(kept, ast.Call) and method(kept) == "detach"
        ):
            kept = kept.value if isinstance(kept, ast.Attribute) else receiver(kept) or kept.func
        return (
            live_state(program, receiver(items), scope, deep)
            if name is not None and dotted(kept) == dotted(name) != ""
            else None
        )
    if not isinstance(value, ast.Call):
        return None
    if last_name(value.func) in ("dict", "copy", "OrderedDict"):
        return live_state(program, value.args[0] if value.args else receiver(value), scope, deep)
    if method(value) == "state_dict":
        return (value, scope) if is_network_with_state(program, receiver(value), scope) else None
    function = program.callees_by_name(value, scope) if deep else None
    returned = own_nodes_of(function.node, ast.Return) if function is not None else []
    return (
        live_state(program, returned[0].value, function, False)
        if function is not None and len(returned) == 1
        else None
    )


def live_states_in_dicts(program: Program) -> Iterator[tuple[ast.Call, str]]:
    """`best["weights"] = net.state_dict()`, `best.update(weights=net.state_dict())` or `best =
    {"weights": net.state_dict()}`, a tuple too, under a condition in a loop, where
    `best["weights"]` is loaded back.
    """
    restored = [
        c.args[0]
        for c in program.methods_of("load_state_dict")
        if c.args and isinstance(c.args[0], ast.Subscript)
    ]
    loaded = {
        (dotted(s.value), str(constant(s.slice))) for s in restored if isinstance(s, ast.Subscript)
    }
    for call in (c for c in program.methods_of("state_dict") if not c.args):
        parent, around = program.parents[call], program.ancestors(call)
        holder = program.parents[parent]
        place = ("", "")
        if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Subscript):
            place = (dotted(parent.targets[0].value), str(constant(parent.targets[0].slice)))
        elif (
            isinstance(parent, ast.keyword)
            and isinstance(holder, ast.Call)
            and method(holder) == "update"
        ):
            place = (dotted(receiver(holder)), str(parent.arg))
        elif isinstance(holder, ast.Assign) and isinstance(parent, (ast.Dict, ast.Tuple, ast.List)):
            keys = (
                parent.keys
                if isinstance(parent, ast.Dict)
                else [ast.Constant(n) for n, _ in enumerate(parent.elts)]
            )
            values = parent.values if isinstance(parent, ast.Dict) else parent.elts
            place = (dotted(holder.targets[0]), str(constant(keys[values.index(call)])))
            own = [
                r for r in restored if isinstance(r, ast.Subscript) and dotted(r.value) == place[0]
            ]
            if all(r.lineno < call.lineno and program.scope(r) is program.scope(call) for r in own):
                # a checkpoint that was read before training, and is written under the same name
                continue
        chosen = any(isinstance(a, ast.If) for a in around) and any(
            isinstance(a, (ast.For, ast.While)) for a in around
        )
        if (
            place in loaded
            and place[0]
            and chosen
            and is_model(program, receiver(call), program.scope(call))
        ):
            yield call, f"{place[0]}[{place[1]!r}]"
