"""Rules BH708: to BH711: states that are saved and never read again, keys that do not fit, epochs
at which a run goes on.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_optimizer, is_scaler, is_scheduler
from training.review.leaves import key_read, leaves
from training.review.lookups import torch_calls
from training.review.program import Program, Scope
from training.review.saved import PASSED, checkpoints, epochs_saved, loads_optimizer, unread_starts
from training.review.syntax import (
    constant,
    dotted,
    identifiers,
    is_false,
    keyword,
    last_name,
    method,
    receiver,
    words,
)

PARALLEL = ("DistributedDataParallel", "DataParallel")
RENAMES = {"consume_prefix_in_state_dict_if_present", "removeprefix", "unwrap_model"}


@rule("BH708")
def saved_state_not_loaded(subject: Subject) -> Iterator[Place]:
    """Of the states in a saved dict that of an optimizer, a schedule or a scaler is loaded again by
    its key, or the run goes on after the saved epoch; another one's key is read nowhere.
    """
    program = subject.program
    loads = [(receiver(c), c.args[0]) for c in program.methods_of("load_state_dict") if c.args]
    if any(
        isinstance(given, ast.Subscript) and not isinstance(constant(given.slice), str)
        for _, given in loads
    ):
        return  # keys that come out of a loop
    resumed = {
        key_read(given)
        for into, given in loads
        if into is not None and _goes_on_with(program, into)
    } - {None}
    network = {
        key_read(given)
        for into, given in loads
        if into is not None and not _goes_on_with(program, into)
    } - {None}
    if not resumed and not network:
        return
    read = _keys_read(program)
    for saved in checkpoints(program):
        states = {
            constant(k): k
            for k, v in zip(saved.keys, saved.values, strict=True)
            if isinstance(v, ast.Call) and method(v) == "state_dict" and k is not None
        }
        if resumed & states.keys() or (
            network & states.keys() and _counts_on(program, {constant(k) for k in saved.keys})
        ):
            for name in sorted(str(n) for n in states.keys() - read if isinstance(n, str)):
                yield (
                    states[name],
                    f"the state under {name!r} is saved, and nothing here reads it again",
                )


def _goes_on_with(program: Program, into: ast.expr) -> bool:
    """Whether a state is that of something by which only a run that goes on is served."""
    scope = program.scope(into)
    return (
        is_optimizer(program, into, scope)
        or is_scheduler(program, into, scope)
        or is_scaler(program, into, scope)
    )


def _never_read(program: Program, key: str) -> bool:
    """Whether a key of the checkpoint is taken out of nothing, in a file that takes others out of
    it by name.
    """
    read = {key_read(n) for n in program.nodes[ast.Subscript] if isinstance(n.ctx, ast.Load)}
    return bool(read - {None}) and key not in _keys_read(program)


def _counts_on(program: Program, keys: set[object]) -> bool:
    """Whether the epoch after the one that was read under one of these keys is computed."""
    counted = {
        key_read(n) for n in program.nodes[ast.Subscript] if isinstance(n.ctx, ast.Load)
    } & keys
    heads = [n.iter for n in program.nodes[ast.For] if isinstance(n.iter, ast.Call)]
    goes_on = any(
        last_name(h.func) == "range" and len(h.args) > 1 and constant(h.args[0]) is None
        for h in heads
    )
    if goes_on and any(isinstance(k, str) and PASSED & words(k) for k in counted):
        return True
    sums = [
        n for n in program.nodes[ast.BinOp] if isinstance(n.op, ast.Add) and constant(n.right) == 1
    ]
    found = {key for n in sums if isinstance(key := key_read(n.left), str) and PASSED & words(key)}
    return bool(found & keys)


def _keys_read(program: Program) -> set[object]:
    """The constants by which anything is taken out of a dict, or asked for in one, or listed."""
    found = {constant(n.slice) for n in program.nodes[ast.Subscript] if isinstance(n.ctx, ast.Load)}
    found |= {constant(a) for c in program.all_calls for a in c.args}
    found |= {constant(n.left) for n in program.nodes[ast.Compare]}
    listed = [n for kind in (ast.Tuple, ast.List, ast.Set) for n in program.nodes[kind]]
    return found | {constant(e) for n in listed for e in getattr(n, "elts", ())}


@rule("BH709")
def wrapper_prefix_in_keys(subject: Subject) -> Iterator[Place]:
    """A state is saved of a network in its wrapper and loaded by the same key into one outside of
    it, or the other way round; nothing in the file changes keys.
    """
    program = subject.program
    if not torch_calls(program, *PARALLEL) or RENAMES & program.identifiers:
        return
    if any(isinstance(n.value, str) and "module." in n.value for n in program.nodes[ast.Constant]):
        return
    saved: dict[object, set[str]] = {}
    for made in checkpoints(program):
        for key, value in zip(made.keys, made.values, strict=True):
            if isinstance(value, ast.Call) and method(value) == "state_dict":
                saved.setdefault(constant(key), set()).add(
                    _side(program, receiver(value), program.scope(value))
                )
    for call in program.methods_of("load_state_dict"):
        loaded = key_read(call.args[0]) if call.args else None
        inside = (
            _side(program, receiver(call), program.scope(call))
            if isinstance(loaded, str) and loaded in saved
            else ""
        )
        other = {"wrapped": "bare", "bare": "wrapped"}.get(inside, "")
        if other and saved[loaded] == {other}:
            told = (
                "start with 'module.', and those of this network do not"
                if other == "wrapped"
                else "have no 'module.', and those of this network start with it"
            )
            yield call, f"the keys saved under {loaded!r} {told}: none of them fits"


def _side(program: Program, node: ast.expr | None, scope: Scope) -> str:
    """`wrapped` of a network in DDP, `bare` of the one inside or of one of a class of this file;
    empty where it is not certain.
    """
    if isinstance(node, ast.Attribute) and node.attr == "module":
        return "bare" if _side(program, node.value, scope) == "wrapped" else ""
    found = set()
    for leaf in leaves(program, node, scope) if node is not None else ():
        call = leaf.node
        known = program.classes.get(dotted(call.func)) if isinstance(call, ast.Call) else None
        wrapped = isinstance(call, ast.Call) and program.is_torch(call.func, *PARALLEL)
        found.add("wrapped" if wrapped else "bare" if program.is_module(known) else "")
    return found.pop() if len(found) == 1 else ""


@rule("BH710")
def missing_keys_unread(subject: Subject) -> Iterator[Place]:
    """`load_state_dict(..., strict=False)` as a statement."""
    for call in subject.program.methods_of("load_state_dict"):
        if is_false(keyword(call, "strict", 1)) and isinstance(
            subject.program.parents[call], ast.Expr
        ):
            yield call, "strict=False, and nobody looks at the keys that did not fit"


@rule("BH711")
def resumed_at_wrong_epoch(subject: Subject) -> Iterator[Place]:
    """The number of a loop's passage is saved at its end; the loop starts at that number as it was
    read, or what was computed of it is never used.
    """
    program = subject.program
    if not loads_optimizer(program):
        return
    for key, loop in epochs_saved(program):
        what = "epoch" if "epoch" in words(key) else "step"
        scope, head = program.scope(loop), loop.iter
        starts = (
            head.args[0]
            if isinstance(head, ast.Call) and last_name(head.func) == "range" and len(head.args) > 1
            else None
        )
        for leaf in leaves(program, starts, scope) if starts is not None else ():
            if key_read(leaf.node) == key:
                yield (
                    leaf.node,
                    (
                        f"{key!r} was saved when that {what} was over, and the loop in line"
                        f" {loop.lineno} makes it again"
                    ),
                    loop,
                )
        if any(loop in program.ancestors(c) for c in program.methods_of("load_state_dict")):
            continue  # goes back to it within the loop
        if any(
            words(n) & {"more", "extra", "additional", "further"} for n in identifiers(loop.iter)
        ):
            continue
        if (starts is None or constant(starts) is not None) and _never_read(program, key):
            yield (
                loop.iter,
                (
                    f"{key!r} is saved and read nowhere, and the loop of a run that goes on begins"
                    " at its first epoch again"
                ),
                loop,
            )
        elif starts is None or constant(starts) is not None:
            for binding, name in unread_starts(program, loop, key):
                yield (
                    binding,
                    (
                        f"{name} is the epoch to go on at, and the loop in line {loop.lineno}"
                        " starts without it"
                    ),
                    loop,
                )
