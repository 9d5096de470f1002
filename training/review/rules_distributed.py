"""Rules BH601: to BH606: several processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to, keywords_of, torch_calls
from training.review.program import Program, Scope
from training.review.rules_loader import PREPARES, is_distributed, loaders
from training.review.syntax import (
    FUNCTIONS,
    calls,
    constant,
    dotted,
    identifiers,
    last_name,
    names_read,
    nodes_of,
    receiver,
    walk,
    words,
)
from training.review.trace import Event
from training.review.wrapper import past_wrapper, reaches_loss

COLLECTIVES = {
    "barrier", "all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor",
    "broadcast", "broadcast_object_list", "reduce", "gather", "gather_object", "reduce_scatter",
    "all_to_all", "reduce_scatter_tensor",
}  # fmt: skip
REDUCES = COLLECTIVES - {"barrier", "broadcast", "broadcast_object_list"} | {
    "synchronize_between_processes",
    "gather_for_metrics",
    "reduce_dict",
    "all_gather_into_tensor",
    "all_reduce_dict",
    "synchronize",
    "sync",
    "reduce_tensor",
}
COUNTED = {
    "step", "epoch", "it", "iteration", "i", "idx", "index", "n", "count", "batch", "self", "args",
    "config", "world_size", "op",
}  # fmt: skip
RANKS = {"rank", "master", "main", "primary", "coordinator", "chief", "leader"}


@rule("BH601")
def data_parallel(subject: Subject) -> Iterator[Place]:
    """A network is wrapped in `torch.nn.DataParallel`."""
    for call in torch_calls(subject.program, "DataParallel"):
        yield call, "DataParallel: one process for all devices"


@rule("BH602")
def ddp_bypassed(subject: Subject) -> Iterator[Place]:
    """Within a loop that trains, with gradients on, `x.module(…)` or a method of it whose result
    goes into the loss.
    """
    for trace in subject.traces if "module" in subject.program.identifiers else ():
        loops = [e.loops[-1] for e in trace if e.kind == "backward" and e.loops]
        single = any(
            e.kind == "backward" and not e.loops for e in trace
        )  # a function that makes one step
        losses = {e.key.rpartition(":")[2] for e in trace if e.kind == "backward"}
        for event in trace:
            if (
                not isinstance(event.node, ast.Call)
                or event.within("no_grad", "inference_mode")
                or not (any(x in loops for x in event.loops) or (single and not event.loops))
            ):
                continue
            called = past_wrapper(subject.program, event)
            if called and (
                called in ("module", "forward") or reaches_loss(subject.program, event, losses)
            ):
                yield (
                    event.node,
                    f"{dotted(event.node.func)} passes by DDP: gradients are not averaged",
                    event.loops[-1].node if event.loops else event.node,
                )


def by_rank(event: Event, ranks: set[str]) -> bool:
    """Whether something happens on one rank alone, by the names in a condition around it; `ranks`
    are the file's own names of a rank.
    """
    return any(
        isinstance(branch, ast.If) and _names_rank(branch.test, event.scope, ranks)
        for branch, _ in event.branches
    )


def _names_rank(test: ast.expr, scope: Scope, ranks: set[str]) -> bool:
    names = identifiers(test) | {
        n
        for name in names_read(test)
        for b in scope.bindings.get(name, ())
        for n in identifiers(b.value)
    }
    return bool(ranks & names) or any(RANKS & words(n) for n in names)


@rule("BH603")
def every_rank_saves(subject: Subject) -> Iterator[Place]:
    """In a file that starts a process group, `torch.save` under no condition that names a rank, to
    a path that names none.
    """
    program = subject.program
    if not is_distributed(program) or program.modules_imported & PREPARES:
        return
    called = {f for f, sites in program.call_sites.items() if sites}
    for trace in subject.traces:
        for event in trace:
            if (
                event.kind != "save"
                or by_rank(event, program.rank_names)
                or any("rank" in n or "zero" in n for n, _ in event.contexts)
            ):
                continue
            if (
                _guarded_by_decorator(program, event.scope)
                or _of_parent(program, event)
                or _asks_for_first(program, event)
                or "tempfile" in program.modules_imported
            ):
                continue
            path = event.call.args[1] if len(event.call.args) > 1 else None
            named = path is not None and any(
                "rank" in n.lower()
                for n in identifiers(path)
                | {
                    n
                    for name in names_read(path)
                    for b in event.scope.bindings.get(name, ())
                    for n in identifiers(b.value)
                }
            )
            in_memory = path is not None and any(
                o.last == "BytesIO" for o in program.origins(path, event.scope)
            )
            if not named and not in_memory and not _known_to_be_guarded(event, called):
                yield event.node, "every rank writes this file at the same time"


def _guarded_by_decorator(program: Program, scope: Scope) -> bool:
    """Whether a decorator of the function speaks of a rank, by its name or within, in this file."""
    for decorator in scope.node.decorator_list if isinstance(scope.node, FUNCTIONS) else ():
        name = last_name(getattr(decorator, "func", decorator))
        known = program.local_function(name, program.top)
        if RANKS & words(name) or (
            known is not None
            and any(
                _names_rank(n.test, known, program.rank_names) for n in nodes_of(known.node, ast.If)
            )
        ):
            return True
    return False


def _asks_for_first(program: Program, event: Event) -> bool:
    """Whether a condition around it asks for the first process in another way: the environment, a
    function or an attribute of this file, a local number.
    """
    for test in (b.test for b, _ in event.branches if isinstance(b, ast.If)):
        if any(
            "rank" in words(str(constant(n))) or constant(n) == "SLURM_PROCID" for n in walk(test)
        ):
            return True  # `config["local_rank"]`, `os.environ["RANK"]`
        called = [f for n in calls(test) for f in program.callees(n, event.scope)]
        held = [
            b.value
            for n in nodes_of(test, ast.Attribute)
            for b in program.bindings_of(n, event.scope)
        ]
        if any(
            {"get_rank", "RANK"} & identifiers(part) for part in (*(f.node for f in called), *held)
        ):
            return True
        if (
            isinstance(test, ast.Compare)
            and constant(test.comparators[0]) == 0
            and words(last_name(test.left)) & PROCESSES
        ):
            return True
    return False


def _of_parent(program: Program, event: Event) -> bool:
    """Whether the save stands in the process that starts the ranks, behind their start."""
    starts = [
        c
        for c in calls(event.scope.node)
        if last_name(c.func) in ("spawn", "start_processes") and program.scope(c) is event.scope
    ]
    return any(c.lineno < getattr(event.node, "lineno", 0) for c in starts)


def _known_to_be_guarded(event: Event, called: set[Scope]) -> bool:
    """Whether the guard may stand with a caller that is not in sight."""
    return (
        bool(event.scope.name)
        and event.frame.caller is None
        and event.scope not in called
        and not event.loops
        and event.scope.name not in ("main", "train", "fit", "run")
    )


@rule("BH604")
def collective_on_one_rank(subject: Subject) -> Iterator[Place]:
    """A collective under a condition on the rank, and none for the other ranks."""
    program = subject.program
    if not program.calls_of(*COLLECTIVES):
        return
    found = [
        e
        for trace in subject.traces
        for e in trace
        if isinstance(e.node, ast.Call)
        and last_name(e.node.func) in COLLECTIVES
        and program.resolve(e.node.func).startswith("torch.distributed.")
    ]
    for event in found:
        ranks = program.rank_names | (
            set(event.scope.parameters) - COUNTED
        )  # a number from elsewhere that decides over a collective
        guards = [
            b for b in event.branches if isinstance(b[0], ast.If) and one_rank(b[0].test, ranks)
        ]
        if (
            guards
            and not _of_a_group(event.call)
            and not any(_paired(event, o, guards, ranks) for o in found)
        ):
            yield (
                event.node,
                (
                    f"{last_name(event.call.func)} runs on one rank alone: it waits for the others"
                    " for ever"
                ),
            )


def _of_a_group(call: ast.Call) -> bool:
    """Whether a collective is among some of the ranks, whatever the others do."""
    return "group" in {k.arg for k in call.keywords} or any(
        "group" in words(last_name(a)) for a in call.args
    )


def _paired(
    event: Event, other: Event, guards: list[tuple[ast.AST, bool]], ranks: set[str]
) -> bool:
    """Whether the other ranks take part elsewhere: under a condition on the rank too, or, of what
    all but the first do, under none.
    """
    if other is event or last_name(other.call.func) != last_name(event.call.func):
        return False
    of_others = all(
        isinstance(b, ast.If) and taken and isinstance(b.test, ast.UnaryOp) for b, taken in guards
    )
    free = not any(isinstance(b, ast.If) and one_rank(b.test, ranks) for b, _ in other.branches)
    return _other_side(event, other, ranks) or (
        of_others and free and other.frame is not event.frame
    )


PROCESSES = {
    "local",
    "gpu",
    "proc",
    "process",
    "worker",
    "node",
}  # as a number that is greater than 0 on all but the first


def one_rank(test: ast.expr, ranks: set[str]) -> bool:
    """Whether a condition compares a rank with a number, or asks for the main process."""
    if isinstance(test, ast.BoolOp):
        return isinstance(test.op, ast.And) and any(one_rank(v, ranks) for v in test.values)
    if isinstance(test, ast.UnaryOp):
        return one_rank(test.operand, ranks)
    if isinstance(test, ast.Compare):
        against = constant(test.comparators[0])
        if isinstance(
            test.ops[0], (ast.In, ast.NotIn)
        ):  # `local_rank in (-1, 0)`: the first one, or the only one
            known = {constant(e) for e in getattr(test.comparators[0], "elts", ())}
            return (
                0 in known
                and known <= {0, -1}
                and any("rank" in words(n) for n in identifiers(test.left))
            )
        if isinstance(test.ops[0], (ast.Is, ast.IsNot)):
            return False  # whether there are ranks at all
        first, same = against == 0, isinstance(test.ops[0], (ast.Eq, ast.NotEq))
        if against == -1 or isinstance(test.ops[0], ast.GtE):
            return False  # whether there are ranks at all
        bare = isinstance(test.left, ast.Name) or (
            isinstance(test.left, ast.Attribute)
            and (test.left.attr in ranks or dotted(test.left).startswith("self."))
        )
        given = first and bare and (same or bool(words(last_name(test.left)) & PROCESSES))
        named = any("rank" in words(n) or (given and n in ranks) for n in identifiers(test.left))
        return named and (first or not isinstance(test.ops[0], (ast.Gt, ast.Lt)))
    said = words(last_name(test.func if isinstance(test, ast.Call) else test))
    return (
        bool((RANKS - {"rank"} | {"rank0"}) & said) and "on" not in said
    )  # `run_on_main` asks where something else is to run


def _other_side(event: Event, other: Event, ranks: set[str]) -> bool:
    """Whether another event stands under a condition on the rank too, but not under the same
    branch.
    """
    own = {(id(b), taken) for b, taken in event.branches}
    guards = [
        (id(b), taken)
        for b, taken in other.branches
        if isinstance(b, ast.If) and one_rank(b.test, ranks)
    ]
    return bool(guards) and any(g not in own for g in guards)


@rule("BH606")
def group_not_destroyed(subject: Subject) -> Iterator[Place]:
    """`init_process_group` without `destroy_process_group` in the file."""
    program = subject.program
    if any("destroy" in n for n in program.identifiers):
        return
    for call in calls_to(program, "torch.distributed.init_process_group"):
        yield call, "this process group is never destroyed"


@rule("BH607")
def pinned_copy_without_pinning(subject: Subject) -> Iterator[Place]:
    """`non_blocking=True` in a file whose loaders are in sight, and pin nothing."""
    program = subject.program
    if (
        "pin_memory" in program.identifiers
        or keywords_of(program, "pin_memory")
        or not loaders(program)
    ):
        return
    for call in program.methods_of("to", "cuda"):
        if any(k.arg == "non_blocking" for k in call.keywords) and receiver(call) is not None:
            yield call, "the loader pins no memory: this copy waits all the same"
