"""Rules BH609 to BH620: what ranks do apart that they must do together."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import takewhile

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to, torch_calls
from training.review.loops import innermost_loop, step_groups
from training.review.program import Program
from training.review.roles import PREPARES, WRAPPERS, is_optimizer
from training.review.rules.distributed import COLLECTIVES, one_rank
from training.review.syntax import (
    LOOPS,
    calls,
    dotted,
    identifiers,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes_of,
    receiver,
    walk,
    words,
)

FINITE = {"isfinite", "isnan", "isinf"}
SCALARS = FINITE | {"norm", "sum", "any", "all", "pow", "vector_norm"}
# words
EXCHANGES = ("reduce", "gather", "sync", "broadcast", "average")
AVERAGED = {"grad", "grads", "parameters", "params", "param", "p", "flat", "bucket", "state"}
SHARING = ("parallel", "replica", "ddp", "fsdp", "shard", "wrap", "prepare", "setup_model")
HOW_MANY = {
    "gpus", "devices", "processes", "world", "ranks", "replicas", "nprocs", "procs", "workers",
    "peers", "nodes", "ws",
}  # fmt: skip
PARTS = {"share", "weight", "fraction", "part", "world"}


def _exchanges(call: ast.Call) -> bool:
    """Whether a call is a collective, or named like something that runs one."""
    name = last_name(call.func).lower()
    return name in COLLECTIVES or (name != "no_sync" and any(part in name for part in EXCHANGES))


def _averages_by_hand(program: Program) -> bool:
    """Whether gradients or parameters, not counts and losses alone, are reduced over ranks."""
    for call in filter(_exchanges, program.all_calls):
        about: list[ast.AST] = [call.func, *call.args]
        about += [a.iter for a in program.ancestors(call) if isinstance(a, ast.For)]
        about += [b.value for a in call.args for b in program.bindings_of(a, program.scope(call))]
        if any(AVERAGED & words(n) for node in about for n in identifiers(node)):
            return True
    return False


@rule("BH609")
def gradients_never_averaged(subject: Subject) -> Iterator[Place]:
    """All backwards before a step are under `no_sync`, or just the last, and nothing averages."""
    program, message = subject.program, "under no_sync: ranks never average their gradients"
    if _averages_by_hand(program) or program.modules_imported & PREPARES:
        return
    for steps in step_groups(subject) if program.methods_of("no_sync") else ():
        events, loop = [b.event for b in steps.backwards], steps.around
        asked = [b for e in events for b, _ in e.branches if loop in program.ancestors(b)]
        held = [any(method(node) == "no_sync" for _, node in e.contexts) for e in events]
        if steps.loop is not None and events and all(held) and not asked:
            yield events[-1].node, f"every backward before this step is {message}", loop
    for choice in (n for n in program.nodes[ast.IfExp] if method(n.body) == "no_sync"):
        scope, test = program.scope(choice), ast.unparse(choice.test)
        for call in program.methods_of("step"):
            there, above = program.scope(call), program.ancestors(call)
            same = there is scope or (scope.owner is not None and there.owner is scope.owner)
            tests = {ast.unparse(a.test) for a in above if isinstance(a, ast.If)}
            if same and test in tests and is_optimizer(program, receiver(call), there):
                yield choice, f"the backward that ends the window is {message}"


@rule("BH610")
def batch_skipped_on_one_rank(subject: Subject) -> Iterator[Place]:
    """Next to a wrapped network a loss that is not finite leads to `continue` on one rank."""
    program = subject.program
    wrapping = {program.scope(w) for w in torch_calls(program, *WRAPPERS)}
    if not wrapping or any(map(_exchanges, program.all_calls)):
        return
    for event in (e for trace in subject.traces for e in trace if e.kind == "backward"):
        if event.scope not in wrapping and all("backward" in identifiers(s.node) for s in wrapping):
            continue  # trains what another function does not wrap
        for branch in (b for b, taken in event.branches if isinstance(b, ast.If) and not taken):
            asked = {last_name(c.func) for c in calls(branch.test)}
            known = asked & FINITE and asked <= FINITE | {"any", "all", "item"}
            if known and isinstance(branch.body[-1], ast.Continue):
                yield branch, "only a rank whose loss is not finite skips this backward"


@rule("BH611")
def sums_reduced_in_part(subject: Subject) -> Iterator[Place]:
    """A sum over ranks by which another sum of the same function is divided that is of one rank."""
    program = subject.program
    for call in calls_to(program, "torch.distributed.all_reduce"):
        scope, own = program.scope(call), ast.unparse(call.args[0]) if call.args else ""
        if "backward" in identifiers(scope.node):
            continue
        shared = {ast.unparse(a) for c in calls(scope.node) if _exchanges(c) for a in c.args}
        added = nodes_of(scope.node, ast.AugAssign)
        shared |= {ast.unparse(n.target) for n in added if ast.unparse(n.value) in shared}
        summed = {ast.unparse(n.target) for n in added if innermost_loop(program, n)}
        for ratio in own_nodes_of(scope.node, ast.BinOp):
            if not isinstance(ratio.op, ast.Div) or ratio.lineno <= call.lineno:
                continue
            above, below = ({ast.unparse(n) for n in walk(x)} for x in (ratio.left, ratio.right))
            said = {w for n in identifiers(program.statement(ratio)) for w in words(n)}
            if own in summed & below and above & summed and not (above & shared or said & PARTS):
                yield call, f"{own} is a sum over ranks, {min(above & summed)} is not", scope.node


@rule("BH612")
def gradients_summed_over_ranks(subject: Subject) -> Iterator[Place]:
    """A gradient is summed over ranks in a file that divides by no number of ranks."""
    program = subject.program
    reduced = calls_to(program, "torch.distributed.all_reduce")
    divisors = [n.right for n in program.nodes[ast.BinOp] if isinstance(n.op, ast.Div)]
    divisors += [n.value for n in program.nodes[ast.AugAssign] if not isinstance(n.op, ast.Add)]
    divided = [c for c in program.all_calls if {"div", "mul"} & words(last_name(c.func))]
    for node in (*divisors, *(a for c in divided for a in c.args)):
        behind = [node, *(b.value for b in program.bindings_of(node, program.scope(node)))]
        said = {w for value in behind for w in words(ast.unparse(value).replace("(", " "))}
        if HOW_MANY & said or dotted(node) in {dotted(c.args[0]) for c in reduced if c.args} - {""}:
            return
    losses = [receiver(c) or c for c in program.methods_of("backward")]
    losses += [b.value for n in losses for b in program.bindings_of(n, program.scope(n))]
    sums = any(n.value == "sum" for n in program.nodes[ast.Constant])
    sums = sums or any(method(c) == "sum" for n in losses for c in calls(n))
    for call in reduced if not sums else ():
        op, values = keyword(call, "op", 1), [call.args[0]] if call.args else []
        values += [b.value for v in values for b in program.bindings_of(v, program.scope(call))]
        called = {last_name(c.func) for v in values for c in calls(v)}  # a norm, or a flag
        whole = keyword(call, "group", 2) is None and (op is None or last_name(op) == "SUM")
        if whole and not called & SCALARS and any("grad" in identifiers(v) for v in values):
            yield call, "gradients are summed over all ranks, and nothing here divides them"


@rule("BH615")
def ranks_train_apart(subject: Subject) -> Iterator[Place]:
    """Ranks step by a DistributedSampler's rows, and nothing wraps networks or reads gradients."""
    program = subject.program
    shared = all(torch_calls(program, n) for n in ("DistributedSampler", "init_process_group"))
    if not shared or (PREPARES | {"horovod"}) & program.modules_imported:
        return
    if any(part in n.lower() for n in program.called_names for part in SHARING):
        return
    if "grad" in program.identifiers or _averages_by_hand(program):
        return
    for steps in step_groups(subject):
        forwards = [e for e in steps.inside if e.kind == "forward"]
        made = [o for e in forwards for o in program.origins(e.call.func, e.scope)]
        here = any(o.name.startswith("torch") or o.name in program.classes for o in made)
        if steps.loop is not None and steps.backwards and (here or not made):
            yield steps.step.node, "each rank steps by its own rows' gradients", steps.loop.node
            return


@rule("BH619")
def loop_left_by_one_rank(subject: Subject) -> Iterator[Place]:
    """A loop that trains a wrapped network is left by a condition on a rank or its own loss."""
    program = subject.program
    for node in program.nodes[ast.Break] if torch_calls(program, *WRAPPERS) else ():
        loop, scope = innermost_loop(program, node), program.scope(node)
        tests, inside = _tests(program, node), calls(loop)
        inside += [i for c in inside for f in program.callees(c, scope) for i in calls(f.node)]
        ranked = [t for t in tests if one_rank(t.test, program.rank_names)]
        others = [n for t in ranked for s in t.orelse for n in nodes_of(s, ast.Break)]
        if loop is None or others or "backward" not in map(method, inside):
            continue
        if ranked:
            yield node, "one rank leaves the loop here, and the others wait in their backward"
            continue
        own = _of_losses(program, loop)
        if not any(map(_exchanges, inside)) and any(names_read(t.test) & own for t in tests):
            yield node, "each rank decides by its own loss whether it leaves the loop"


def _tests(program: Program, node: ast.AST) -> list[ast.If]:
    """The conditions around a node within its loop."""
    above = takewhile(lambda a: not isinstance(a, LOOPS), program.ancestors(node))
    return [a for a in above if isinstance(a, ast.If)]


def _of_losses(program: Program, loop: ast.AST) -> set[str]:
    """The names of a loop's losses, and those made of them or changed by a condition on them."""
    own = {dotted(receiver(c)) for c in calls(loop) if method(c) == "backward"} - {""}
    changes: list[tuple[ast.expr, ast.AST]] = [(n.value, n) for n in nodes_of(loop, ast.Assign)]
    changes += [(n.value, n) for n in nodes_of(loop, ast.AugAssign)]
    for value, node in changes * 3:
        helpers = [f.node for c in calls(value) for f in program.callees(c, program.scope(c))]
        trained = any("backward" in identifiers(f) for f in helpers)
        stored = {n.id for n in nodes_of(node, ast.Name) if isinstance(n.ctx, ast.Store)}
        if any(names_read(v) & own for v in (value, *(t.test for t in _tests(program, node)))):
            own |= stored
        own |= {n for n in stored if trained and "loss" in words(n)}
    return own


@rule("BH620")
def forward_outside_no_sync(subject: Subject) -> Iterator[Place]:
    """A block under `x.no_sync()` has the backward of a loss, while `x(…)` is called above it."""
    program = subject.program
    for block in program.nodes[ast.With] if program.methods_of("no_sync") else ():
        managers = [item.context_expr for item in block.items]
        managers += [b.value for m in managers for b in program.bindings_of(m, program.scope(m))]
        held = [c for m in managers for c in calls(m) if method(c) == "no_sync"]
        wrapped = {dotted(receiver(c)) for c in held} - {""}
        called = [c for c in calls(innermost_loop(program, block)) if dotted(c.func) in wrapped]
        losses = [receiver(c) for c in calls(block) if method(c) == "backward"]
        bound = {last_name(t) for n in nodes_of(block, ast.Assign) for t in n.targets}
        free = {n for loss in losses for n in names_read(loss)} - bound
        if called and free and all(c.lineno < block.lineno for c in called):
            name, line = dotted(called[0].func), called[0].lineno
            yield block, f"{name} is called in line {line}, before no_sync: gradients are averaged"
