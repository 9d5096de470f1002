"""Rules BH601 to BH608: wrappers, checkpoints, collectives and devices of several processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to, keywords_of, torch_calls
from training.review.program import Program
from training.review.roles import PREPARES, WRAPPERS, is_frozen_name
from training.review.syntax import (
    calls,
    constant,
    dotted,
    identifiers,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes_of,
    walk,
    words,
)
from training.review.trace import Event
from training.review.values import loss_kinds

COLLECTIVES = {
    "barrier", "all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor",
    "broadcast", "broadcast_object_list", "reduce", "gather", "gather_object", "reduce_scatter",
    "all_to_all", "reduce_scatter_tensor",
}  # fmt: skip
# words
FIRST = {"master", "main", "primary", "coordinator", "chief", "leader", "rank0"}
RANKS = FIRST | {"rank", "local"}
ALONE = {"predict", "infer", "inference", "serve", "export", "demo", "benchmark"}
ENTRIES = {"main", "train", "fit", "run"}


def is_distributed(program: Program) -> bool:
    """Whether the file runs a process for each device itself."""
    own = torch_calls(program, *WRAPPERS, "init_process_group", "init_device_mesh")
    return bool(own) and not program.modules_imported & PREPARES


@rule("BH601")
def data_parallel(subject: Subject) -> Iterator[Place]:
    """A network is wrapped in `torch.nn.DataParallel`."""
    for call in torch_calls(subject.program, "DataParallel"):
        yield call, "DataParallel: one process for all devices"


@rule("BH602")
def ddp_bypassed(subject: Subject) -> Iterator[Place]:
    """Next to a backward, `x.module(…)` of a wrapper, or a method of it that makes the loss."""
    for trace in subject.traces if "module" in subject.program.identifiers else ():
        backwards = [e for e in trace if e.kind == "backward"]
        losses = {e.key.rpartition(":")[2] for e in backwards}
        for event in (e for e in trace if isinstance(e.node, ast.Call)):
            beside = any(e.loops[-1:] == event.loops[-1:] for e in backwards)
            if not beside or event.within("no_grad", "inference_mode"):
                continue
            called = _past_wrapper(subject.program, event)
            if called == "forward" or (called and _in_loss(subject.program, event, losses)):
                name = dotted(event.call.func)
                around = event.loops[-1].node if event.loops else event.node
                yield event.node, f"{name} bypasses DDP: gradients are not averaged", around


def _past_wrapper(program: Program, event: Event) -> str:
    """The method of the network inside a wrapper that is called; empty where it is none."""
    func = event.call.func
    for node, called in [(func, "forward"), (getattr(func, "value", func), last_name(func))]:
        bound = program.bindings_of(node, event.scope)
        inner, scope = (bound[0].value, bound[0].scope) if len(bound) == 1 else (node, event.scope)
        if isinstance(inner, ast.Attribute) and inner.attr == "module":
            wrapped = any(o.last in WRAPPERS for o in program.origins(inner.value, scope))
            if wrapped and event.call.args and not is_frozen_name(dotted(inner)):
                return called
    return ""


def _in_loss(program: Program, event: Event, losses: set[str]) -> bool:
    """Whether a result is bound to a loss, or goes into what a loss function there is given."""
    statement = program.statement(event.node)
    made = {n.id for t in getattr(statement, "targets", ()) for n in nodes_of(t, ast.Name)}
    for node in sorted(own_nodes_of(event.scope.node, ast.Assign), key=lambda n: n.lineno):
        if names_read(node.value) & made:
            made |= {n.id for t in node.targets for n in nodes_of(t, ast.Name)}
    called = [(c, words(last_name(c.func))) for c in calls(event.scope.node)]
    given = [c for c, w in called if {"loss", "criterion", "crit"} & w or c in loss_kinds(program)]
    taken = [n for c in given for a in c.args for n in walk(a)]
    return bool(made & losses) or any(n is event.node or dotted(n) in made for n in taken)


@rule("BH603")
def every_rank_saves(subject: Subject) -> Iterator[Place]:
    """In a file of several processes `torch.save` where no condition and no path names a rank."""
    program = subject.program
    if not is_distributed(program) or "tempfile" in program.modules_imported:
        return
    for event in (e for trace in subject.traces for e in trace if e.kind == "save"):
        scope, path = event.scope, keyword(event.call, "f", 1)
        entered = event.frame.caller is not None or event.loops or program.call_sites[scope]
        if scope.name and not entered and scope.name not in ENTRIES:
            continue  # its callers may ask for the rank
        about = [b.test for b, _ in event.branches if isinstance(b, ast.If)]
        about += [*getattr(scope.node, "decorator_list", ()), *([path] if path else ())]
        starts = {"spawn", "start_processes"} & {last_name(c.func) for c in calls(scope.node)}
        in_memory = any(o.last == "BytesIO" for o in program.origins(path, scope))
        if in_memory or starts or any("rank" in name for name, _ in event.contexts):
            continue
        if not any(_names_rank(program, node) for node in about):
            yield event.node, "every rank writes this file at the same time"


def _names_rank(program: Program, node: ast.expr) -> bool:
    """Whether an expression, a value of its names or a function that it names speaks of a rank."""
    parts: list[ast.AST] = [node]
    for n in (n for n in walk(node) if isinstance(n, (ast.Name, ast.Attribute))):
        scope = program.scope(n)
        parts += [b.value for b in program.bindings_of(n, scope)]
        known = program.local_function(last_name(n), scope)
        parts += [known.node] if known is not None else []
    said = {name for part in parts for name in identifiers(part)}
    said |= {str(constant(n.slice)) for part in parts for n in nodes_of(part, ast.Subscript)}
    said |= {str(constant(a)) for part in parts for c in calls(part) for a in c.args}
    return bool(said & program.rank_names) or any(RANKS & words(s) or "PROCID" in s for s in said)


@rule("BH604")
def collective_on_one_rank(subject: Subject) -> Iterator[Place]:
    """A collective of all ranks under a condition on the rank, and none for the other ranks."""
    program = subject.program
    called = set(torch_calls(program, *COLLECTIVES))
    found = [e for trace in subject.traces for e in trace if e.node in called]
    for event in found:
        name, guards = last_name(event.call.func), _guards(program, event)
        given = {w for a in event.call.args for w in words(last_name(a))}
        given |= {k.arg or "" for k in event.call.keywords}
        others = [e for e in found if e is not event and last_name(e.call.func) == name]
        elsewhere = [_guards(program, o) - guards for o in others]
        free = any(o.node is event.node and not _guards(program, o) for o in others)
        if guards and "group" not in given and not free and not any(elsewhere):
            yield event.node, f"{name} runs on one rank only: it hangs, waiting for the others"


def _guards(program: Program, event: Event) -> set[tuple[ast.If, bool]]:
    """The conditions on the rank around an event, each with which branch it is in."""
    branches = [(b, taken) for b, taken in event.branches if isinstance(b, ast.If)]
    return {(b, taken) for b, taken in branches if one_rank(b.test, program.rank_names)}


def one_rank(test: ast.expr, ranks: set[str]) -> bool:
    """Whether a condition compares a rank with a number, or asks for the main process."""
    if isinstance(test, ast.BoolOp):
        return isinstance(test.op, ast.And) and any(one_rank(v, ranks) for v in test.values)
    if isinstance(test, ast.UnaryOp):
        return one_rank(test.operand, ranks)
    if isinstance(test, ast.Compare):
        against, how = constant(test.comparators[0]), test.ops[0]
        same = isinstance(how, (ast.Eq, ast.NotEq)) and against != -1
        among = isinstance(how, (ast.In, ast.NotIn)) and hasattr(test.comparators[0], "elts")
        if not same and not among and not (isinstance(how, ast.Gt) and against == 0):
            return False
        return any("rank" in words(n) or n in ranks for n in identifiers(test.left))
    said = words(last_name(test.func if isinstance(test, ast.Call) else test))
    return bool(FIRST & said) and "on" not in said


@rule("BH606")
def group_not_destroyed(subject: Subject) -> Iterator[Place]:
    """`init_process_group` without `destroy_process_group` in the file."""
    if not any("destroy" in n for n in subject.program.identifiers):
        for call in calls_to(subject.program, "torch.distributed.init_process_group"):
            yield call, "this process group is never destroyed"


@rule("BH607")
def pinned_copy_without_pinning(subject: Subject) -> Iterator[Place]:
    """`non_blocking=True` in a file whose loaders are in sight, and pin nothing."""
    program = subject.program
    pins = "pin_memory" in program.identifiers or keywords_of(program, "pin_memory")
    if not pins and torch_calls(program, "DataLoader"):
        for call in program.methods_of("to", "cuda"):
            if keyword(call, "non_blocking") is not None:
                yield call, "the loader pins no memory: this copy waits anyway"


@rule("BH608")
def ranks_share_a_device(subject: Subject) -> Iterator[Place]:
    """In a file with a process group, a wrapper or a move names a device by a literal index."""
    program = subject.program
    if not is_distributed(program) or not torch_calls(program, "init_process_group"):
        return
    if any("CUDA_VISIBLE_DEVICES" in str(n.value) for n in program.nodes[ast.Constant]):
        return  # each process sees its own device
    for call in (c for c in program.all_calls if _one_device(program, c)):
        asked = any(isinstance(a, (ast.If, ast.IfExp)) for a in program.ancestors(call))
        if not asked and not words(program.scope(call).name) & ALONE:
            yield call, "the same device for every rank"
            return


def _one_device(program: Program, call: ast.Call) -> bool:
    """Whether it is `device_ids=[0]` of DDP, `set_device(0)`, `.to("cuda:0")` or `.cuda(0)`."""
    first, name = constant(call.args[0]) if call.args else None, program.resolve(call.func)
    if program.is_torch(call.func, "DistributedDataParallel"):
        given = keyword(call, "device_ids", 1)
        return isinstance(given, ast.List) and [type(constant(e)) for e in given.elts] == [int]
    if name == "torch.cuda.set_device" or (method(call) == "cuda" and not name):
        return type(first) is int
    return method(call) == "to" and isinstance(first, str) and first.startswith("cuda:")
