"""Rules BH609: to BH611 and BH615: gradients that are never averaged, ranks that skip a backward
alone, and sums that are added up in part.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_optimizer
from training.review.lookups import calls_to, torch_calls
from training.review.loops import Steps, step_groups
from training.review.program import Program, Scope
from training.review.rules_distributed import REDUCES, one_rank
from training.review.rules_window import condition, window_of
from training.review.sides import targets_of
from training.review.syntax import (
    calls,
    constant,
    dotted,
    identifiers,
    last_name,
    method,
    nodes_of,
    receiver,
    words,
)
from training.review.trace import Event
from training.review.values import value_of

SHARING = (
    "replicate",
    "parallel",
    "ddp",
    "fsdp",
    "shard",
    "wrap",
    "prepare",
    "average",
    "sync",
    "setup_model",
    "register_comm_hook",
)  # parts of names that are called


@rule("BH609")
def gradients_never_averaged(subject: Subject) -> Iterator[Place]:
    """Every backward of a loop that steps is under `no_sync`, or just the one at the end of the
    window is, in a file that reduces nothing by hand.
    """
    program = subject.program
    if (
        not program.methods_of("no_sync")
        or _averages_by_hand(program)
        or "accelerate" in program.modules_imported
    ):
        return
    for steps in step_groups(subject):
        held = [_held_back(program, b.event, steps) for b in steps.backwards]
        if steps.loop is None or not held:
            continue
        if all(h == "always" for h in held):
            yield (
                steps.backwards[-1].event.node,
                (
                    "every backward before this step is under no_sync: ranks never average their"
                    " gradients"
                ),
                steps.loop.node,
            )
        for backward, how in zip(steps.backwards, held, strict=True):
            if how == "at the end":
                yield (
                    backward.event.node,
                    (
                        "the backward that ends the window is the one under no_sync: ranks never"
                        " average their gradients"
                    ),
                    steps.loop.node,
                )

    yield from _by_the_same_condition(program)


def _averages_by_hand(program: Program) -> bool:
    """Whether gradients or parameters are reduced over ranks: not counts and losses alone."""
    if any({"average", "averager"} & words(last_name(c.func)) for c in program.all_calls):
        return True
    for call in program.calls_of(*REDUCES):
        loops = [a.iter for a in program.ancestors(call) if isinstance(a, ast.For)]
        made = [
            b.value
            for a in call.args
            if isinstance(a, ast.Name)
            for b in program.bindings_of(a, program.scope(call))
        ]
        given = {
            w for node in (*call.args, *loops, *made) for n in identifiers(node) for w in words(n)
        }
        if given & {
            "grad",
            "grads",
            "gradient",
            "gradients",
            "parameters",
            "params",
            "param",
            "p",
            "flat",
            "bucket",
            "state",
        }:
            return True
    return False


def _by_the_same_condition(program: Program) -> Iterator[Place]:
    """`no_sync() if self.last else nullcontext()`, where `if self.last:` guards the step, in one
    class or function.
    """
    for choice in (
        n
        for n in program.nodes[ast.IfExp]
        if method(n.body) == "no_sync" and isinstance(n.test, (ast.Name, ast.Attribute))
    ):
        scope = program.scope(choice)
        for node in (
            n for n in program.nodes[ast.If] if ast.unparse(n.test) == ast.unparse(choice.test)
        ):
            same = program.scope(node) is scope or (
                scope.owner is not None and program.scope(node).owner is scope.owner
            )
            if same and any(
                method(c) == "step" and is_optimizer(program, receiver(c), program.scope(c))
                for s in node.body
                for c in calls(s)
            ):
                yield (
                    choice,
                    (
                        "no_sync covers the backward that ends the window: ranks never average"
                        " their gradients"
                    ),
                )


def _held_back(program: Program, backward: Event, steps: Steps) -> str:
    """Whether a backward is under `no_sync` always, at the end of its window, or in any other case
    (empty).
    """
    window = window_of(steps)
    ends = "" if window is None else ast.unparse(condition(window, steps.step.scope))
    contexts = [node for name, node in backward.contexts if name.rpartition(".")[2] == "no_sync"]
    chosen = [
        i for _, node in backward.contexts for i in _choices(program, node, program.scope(node))
    ]
    if chosen:
        tests = [
            ast.unparse(value_of(program, i.test, backward.scope))
            for i in chosen
            if method(i.body) == "no_sync"
        ]
        return "at the end" if ends and ends in tests else ""
    if not contexts:
        return ""
    inside = [
        b
        for b in backward.branches
        if steps.loop is not None and steps.loop.node in program.ancestors(b[0])
    ]
    if any(
        taken
        and isinstance(b, ast.If)
        and ast.unparse(value_of(program, b.test, backward.scope)) == ends
        for b, taken in inside
    ):
        return "at the end"
    return "" if inside else "always"


def _choices(program: Program, node: ast.AST, scope: Scope) -> list[ast.IfExp]:
    """The conditional expressions that a context manager may be, written there or bound to its
    name.
    """
    if isinstance(node, ast.IfExp):
        return [node]
    bound = program.bindings_of(node, scope) if isinstance(node, ast.Name) else []
    return [b.value for b in bound if isinstance(b.value, ast.IfExp)]


@rule("BH615")
def ranks_train_apart(subject: Subject) -> Iterator[Place]:
    """A file starts a process group, gives a loader a DistributedSampler and steps an optimizer of
    a network that it makes itself; nothing in it wraps networks, reads gradients, or is called as
    if it did.
    """
    program = subject.program
    yield from _loaded_on_one_rank(program)
    if (
        not torch_calls(program, "DistributedSampler")
        or "init_process_group" not in program.called_names
        or {"grad", "grads"} & program.identifiers
        or _averages_by_hand(program)
    ):
        return
    if (
        any(part in n.lower() for n in program.called_names for part in SHARING)
        or {"deepspeed", "horovod", "accelerate", "lightning"} & program.modules_imported
    ):
        return
    for steps in step_groups(subject):
        if steps.loop is not None and steps.backwards and _from_elsewhere(program, steps):
            continue
        if steps.loop is not None and steps.backwards:
            yield (
                steps.step.node,
                "each rank steps by the gradients of its own rows",
                steps.loop.node,
            )
            return


def _from_elsewhere(program: Program, steps: Steps) -> bool:
    """Whether the network is made by a function of another file of the user, which may wrap it."""
    forwards = [e for e in steps.inside if e.kind == "forward"]
    made = [o for e in forwards for o in program.origins(e.call.func, e.scope)]
    return bool(made) and all(
        not o.name.startswith("torch")
        and o.name not in program.classes
        and "." in o.name
        and o.last[:1].islower()
        for o in made
    )


def _loaded_on_one_rank(program: Program) -> Iterator[Place]:
    """Weights that one rank alone loads into a network which was wrapped before: the others go on
    with theirs.
    """
    if {"broadcast", "broadcast_object_list", "broadcast_coalesced"} & program.called_names:
        return
    wraps = torch_calls(program, "DistributedDataParallel")
    for call in program.methods_of("load_state_dict") if wraps else ():
        guards = [
            a
            for a in program.ancestors(call)
            if isinstance(a, ast.If) and one_rank(a.test, program.rank_names) and not a.orelse
        ]
        into = receiver(call)
        if not guards or into is None or is_optimizer(program, into, program.scope(call)):
            continue
        before = [
            w for w in wraps if program.scope(w) is program.scope(call) and w.lineno < call.lineno
        ]
        names = {
            n for w in before for n in (*(dotted(a) for a in w.args[:1]), *targets_of(program, w))
        } - {""}
        after = [c for c in calls(program.scope(call).node) if c.lineno > call.lineno]
        goes_on = any(
            method(c) in ("backward", "step") or words(last_name(c.func)) & {"train", "fit"}
            for c in after
        )
        if (
            goes_on
            and dotted(into).removesuffix(".module") in names
            and not any(w.lineno > call.lineno for w in wraps)
        ):
            yield (
                call,
                (
                    "one rank loads weights after the network was wrapped: the others keep their"
                    " own, and train another network"
                ),
            )


@rule("BH610")
def batch_skipped_on_one_rank(subject: Subject) -> Iterator[Place]:
    """Before a backward a condition on a loss that is not finite leads to `continue`, in a file
    that wraps a network and reduces nothing by hand.
    """
    program = subject.program
    if (
        not torch_calls(
            program, "DistributedDataParallel", "fully_shard", "FullyShardedDataParallel"
        )
        or REDUCES & program.called_names
    ):
        return
    for trace in subject.traces:
        for backward in (e for e in trace if e.kind == "backward"):
            for branch, taken in backward.branches:
                leaves = (
                    isinstance(branch, ast.If)
                    and not taken
                    and isinstance(branch.body[-1], ast.Continue)
                )
                if isinstance(branch, ast.If) and (
                    _agreed(program, branch.test) or not _is_wrapped(program, backward.scope)
                ):
                    continue
                if (
                    isinstance(branch, ast.If)
                    and leaves
                    and {"isfinite", "isnan", "isinf"} & identifiers(branch.test)
                ):
                    yield branch, "a rank whose loss is not finite skips this backward alone"


def _agreed(program: Program, test: ast.expr) -> bool:
    """Whether the condition is asked by a function out of sight, which may reduce it over ranks."""
    outer = test.operand if isinstance(test, ast.UnaryOp) else test
    return (
        isinstance(outer, ast.Call)
        and "." in program.resolve(outer.func)
        and not program.resolve(outer.func).startswith(("torch", "math", "numpy"))
    )


def _is_wrapped(program: Program, scope: Scope) -> bool:
    """Whether the function wraps a network or may be given a wrapped one: not where another one of
    the file wraps its own.
    """
    wraps = torch_calls(
        program, "DistributedDataParallel", "fully_shard", "FullyShardedDataParallel"
    )
    inside = any(program.scope(w) is scope for w in wraps)
    elsewhere = [program.scope(w) for w in wraps]
    trains_there = all(any(method(c) == "backward" for c in calls(s.node)) for s in elsewhere)
    return inside or not trains_there or not elsewhere


@rule("BH611")
def sums_reduced_in_part(subject: Subject) -> Iterator[Place]:
    """Two sums of one loop are divided by each other; that below was reduced over ranks, that above
    was not, and no gradient is computed there.
    """
    program = subject.program
    for call in calls_to(program, "torch.distributed.all_reduce"):
        scope = program.scope(call)
        if not call.args or "backward" in identifiers(scope.node):
            continue
        if missed := _left_out(call, scope):
            yield (
                call,
                (
                    f"{ast.unparse(call.args[0])} is added up over ranks, and {missed}, which it is"
                    " divided by, is that of one rank"
                ),
                scope.node,
            )
        own = [c for c in calls(scope.node) if program.scope(c) is scope]
        reduced = {
            ast.unparse(c.args[0])
            for c in own
            if c.args and program.resolve(c.func).startswith("torch.distributed.")
        }
        handed_on = {
            ast.unparse(a)
            for c in own
            if any(word in last_name(c.func) for word in ("reduce", "gather", "sync"))
            for a in c.args
        }
        added = [n for n in nodes_of(scope.node, ast.AugAssign) if _in_loop(program, n)]
        summed = {ast.unparse(n.target) for n in added}
        reduced |= {
            ast.unparse(n.target) for n in added if ast.unparse(n.value) in reduced
        }  # of values that are sums over ranks each
        for ratio in (
            n
            for n in nodes_of(scope.node, ast.BinOp)
            if isinstance(n.op, ast.Div) and n.lineno > call.lineno
        ):
            above, below = (ast.unparse(_plain(side)) for side in (ratio.left, ratio.right))
            whole = {above, above.partition("[")[0]} & (reduced | handed_on) or any(
                "world" in words(n) for n in identifiers(program.statement(ratio))
            )
            statement = program.statement(ratio)
            if isinstance(statement, ast.Assign) and words(last_name(statement.targets[0])) & {
                "share",
                "weight",
                "fraction",
                "part",
            }:
                continue
            if (
                below == ast.unparse(call.args[0])
                and {above, below} <= summed
                and not whole
                and above != below
                and not _bound_again(scope, above, call)
            ):
                yield (
                    call,
                    (
                        f"{below} is added up over ranks, and {above}, which is divided by it, is"
                        " that of one rank"
                    ),
                    scope.node,
                )


def _left_out(call: ast.Call, scope: Scope) -> str:
    """The element of a tensor that was left out of `all_reduce(sums[:2])`, and by which one of it
    is divided behind; empty where there is none.
    """
    part = call.args[0]
    if (
        not isinstance(part, ast.Subscript)
        or not isinstance(part.slice, ast.Slice)
        or part.slice.step is not None
    ):
        return ""
    lower, upper = constant(part.slice.lower) or 0, constant(part.slice.upper)
    if not isinstance(lower, int) or not (upper is None or isinstance(upper, int)):
        return ""
    for ratio in (
        n
        for n in nodes_of(scope.node, ast.BinOp)
        if isinstance(n.op, ast.Div) and n.lineno > call.lineno
    ):
        sides = [_plain(side) for side in (ratio.left, ratio.right)]
        if all(
            isinstance(s, ast.Subscript)
            and dotted(s.value) == dotted(part.value)
            and isinstance(constant(s.slice), int)
            for s in sides
        ):
            at = [constant(s.slice) for s in sides if isinstance(s, ast.Subscript)]
            inside = [
                isinstance(i, int) and i >= lower and (upper is None or i < upper) for i in at
            ]
            if inside[0] != inside[1]:
                return ast.unparse(sides[inside.index(False)])
    return ""


def _in_loop(program: Program, node: ast.AST) -> bool:
    return any(isinstance(a, (ast.For, ast.While)) for a in program.ancestors(node))


def _plain(node: ast.expr) -> ast.expr:
    """A number without `.item()`, `float(…)` or a smallest value."""
    while isinstance(node, ast.Call):
        inner = (
            receiver(node)
            if method(node) in ("item", "float", "cpu", "clamp", "double")
            else node.args[0]
            if last_name(node.func) in ("float", "max") and node.args
            else None
        )
        if inner is None:
            break
        node = inner
    return node


def _bound_again(scope: Scope, name: str, call: ast.Call) -> bool:
    """Whether a name gets another value after the sum, as by a function that reduces it."""
    return any(
        b.how == "assign" and getattr(b.statement, "lineno", 0) >= call.lineno
        for b in scope.bindings.get(name, ())
    )
