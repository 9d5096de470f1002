"""Rules of learning-rate schedules: stepped at all, at their cadence, and by what they watch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import attributes_of, names_of, torch_calls
from training.review.loops import counts_passages, goes_over_again, is_epoch_loop, is_loader_loop
from training.review.program import Binding, Origin, Program, Scope
from training.review.roles import direction, is_optimizer, is_scheduler_origin
from training.review.syntax import (
    calls,
    constant,
    dotted,
    has_unpacking,
    identifiers,
    keyword,
    last_name,
    nodes_of,
    own_nodes_of,
    receiver,
    walk,
    words,
)
from training.review.trace import Event, Loop
from training.review.values import value_of

# words
BATCHES = {"steps", "step", "iters", "iterations", "batches", "updates", "iter"}
EPOCHS = {"epochs", "epoch"}
STAGES = {
    "task", "round", "stage", "phase", "cycle", "fold", "session", "client", "trial", "seed", "run",
    "restart", "snapshot", "experience", "domain",
}  # fmt: skip
RESETS = {"reset", "restart", "rewind"}

LENGTHS = {
    "CosineAnnealingLR": ("T_max", 1),
    "LinearLR": ("total_iters", 3),
    "OneCycleLR": ("total_steps", 2),
    "StepLR": ("step_size", 1),
    "MultiStepLR": ("milestones", 1),
    "get_scheduler": ("num_training_steps", 3),
    "get_linear_schedule_with_warmup": ("num_training_steps", 2),
    "get_cosine_schedule_with_warmup": ("num_training_steps", 2),
}
CHAINED = {"CosineAnnealingLR", "LinearLR", "ExponentialLR", "StepLR", "MultiStepLR"}
PER_EPOCH_GAMMA = 0.99  # a factor below it, once a batch, leaves 4e-5 after 1,000 batches
PER_EPOCH_STEPS = 200  # a constant length of a stair up to it counts epochs
READ_OR_SAVED = {"state_dict", "load_state_dict", "get_last_lr", "last_epoch"}


@rule("BH111")
def scheduler_before_optimizer(subject: Subject) -> Iterator[Place]:
    """In the loop where a schedule steps, the first optimizer step comes after it, every time."""
    for trace in subject.traces:
        for at, event in ((i, e) for i, e in enumerate(trace) if e.kind == "schedule" and e.loops):
            loop, bare = event.loops[-1], not event.call.args and not event.call.keywords
            steps = [i for i, e in enumerate(trace) if e.kind == "step" and loop in e.loops]
            if bare and steps and steps[0] > at and trace[steps[0]].under(event):
                told = f"{ast.unparse(event.call)} comes before the optimizer's step"
                yield event.node, told, loop.node


@rule("BH112")
def scheduler_never_stepped(subject: Subject) -> Iterator[Place]:
    """A name or an attribute holds a schedule in a file that trains, and is read nowhere but to be
    saved or prepared.
    """
    program = subject.program
    if subject.framework or not subject.trains:
        return
    local = [(name, "", b) for s in program.scopes for name, b in s.bindings.items()]
    own = [(name, "self.", b) for held in program.attributes.values() for name, b in held.items()]
    for name, owner, bound in (*local, *own):
        made = [b.value for b in bound if b.index is None and _makes(program, b)]
        places = attributes_of(program, name) if owner else names_of(program, name)
        reads = [program.parents[n] for n in places if isinstance(n.ctx, ast.Load)]
        if made and all(_only_looks(program, parent) for parent in reads):
            yield made[0], f"{owner}{name} is created here and never stepped"


def _makes(program: Program, bound: Binding) -> bool:
    """Whether a name is given a new schedule."""
    return isinstance(bound.value, ast.Call) and is_scheduler_origin(
        Origin(program.resolve(bound.value.func), bound.value, bound.scope)
    )


def _only_looks(program: Program, parent: ast.AST) -> bool:
    """Whether a schedule is only read, compared, prepared, or put into a table to be saved."""
    if isinstance(parent, ast.Attribute):
        return parent.attr in READ_OR_SAVED
    if isinstance(parent, ast.Dict):
        statement = program.statement(parent)
        table = last_name(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
        reads = [program.parents[n] for n in names_of(program, table)]
        steps = [(receiver(c), program.scope(c)) for c in program.methods_of("step")]
        return all(is_optimizer(program, of, scope) for of, scope in steps) and any(
            isinstance(p, ast.Attribute) and p.attr == "items" for p in reads
        )
    prepared = isinstance(parent, ast.Call) and last_name(parent.func) == "prepare"
    return prepared or isinstance(parent, (ast.IfExp, ast.Compare))


def _stepped(subject: Subject) -> Iterator[tuple[Event, Origin]]:
    """Every step of a schedule, and the one call that made it."""
    for event in (e for trace in subject.traces for e in trace if e.kind == "schedule"):
        made = subject.program.origins(receiver(event.node), event.scope)
        schedules = [o for o in made if is_scheduler_origin(o)]
        if len(schedules) == 1:
            yield event, schedules[0]


@rule("BH113")
def scheduler_per_batch(subject: Subject) -> Iterator[Place]:
    """The step is in a loop over batches inside one over epochs, the length counts epochs."""
    for event, made in _stepped(subject):
        if _cadence(event) == "batch" and _unit(subject.program, made) == "epoch":
            told = f"{made.last} counts epochs by its arguments, and is stepped once per batch"
            yield event.node, told, made.call


@rule("BH114")
def scheduler_per_epoch(subject: Subject) -> Iterator[Place]:
    """All its steps are in a loop over epochs, outside that over batches, and the length counts
    batches.
    """
    by_batch = [made.call for event, made in _stepped(subject) if _cadence(event) == "batch"]
    for event, made in _stepped(subject):
        late = _cadence(event) == "epoch" and made.call not in by_batch
        if late and _unit(subject.program, made) == "batch":
            told = f"{made.last} counts batches by its arguments, and is stepped once per epoch"
            yield event.node, told, made.call


def _cadence(event: Event) -> str:
    """Whether a step comes once a batch or once an epoch; empty where the loops do not say."""
    if not event.loops:
        return ""
    inner, outer = event.loops[-1], event.loops[:-1]
    if is_epoch_loop(inner):
        return "epoch"
    named = any(map(is_epoch_loop, outer)) and is_loader_loop(inner)
    return "batch" if outer and (named or goes_over_again(outer[-1], inner)) else ""


def _unit(program: Program, made: Origin) -> str:
    """In what a schedule counts, by its arguments."""
    call, name = made.call, made.last
    if keyword(call, "steps_per_epoch") is not None:
        return "batch"
    if name == "ExponentialLR":
        gamma = constant(keyword(call, "gamma", 1))
        return "epoch" if isinstance(gamma, float) and gamma < PER_EPOCH_GAMMA else ""
    length = keyword(call, *LENGTHS[name]) if name in LENGTHS else None
    if name in ("StepLR", "MultiStepLR"):
        values = [constant(e) for e in getattr(length, "elts", [length])]
        if values and all(isinstance(v, int) and v <= PER_EPOCH_STEPS for v in values):
            return "epoch"
    return _unit_of(program, length, made.scope) if length is not None else ""


def _unit_of(program: Program, length: ast.expr, scope: Scope) -> str:
    """In what an expression counts, by the names in it, those in its own definition included."""
    read = [length]
    read += [b.value for name in identifiers(length) for b in scope.bindings.get(name, ())]
    named = {name for part in read for name in identifiers(part)}
    said = {w for name in named - {"step_size"} for w in words(name)}  # counted in either
    counted = any(last_name(c.func) == "len" for part in read for c in calls(part))
    if counted or said & BATCHES or any({"per", "epoch"} <= words(name) for name in named):
        return "batch"
    return "epoch" if said & EPOCHS or counts_passages(program, length) else ""


def _plateaus(subject: Subject) -> Iterator[tuple[Event, Origin]]:
    return (step for step in _stepped(subject) if step[1].last == "ReduceLROnPlateau")


@rule("BH115")
def plateau_without_metric(subject: Subject) -> Iterator[Place]:
    """A plateau schedule, and nothing else it could be, stepped without arguments."""
    for event, _ in _plateaus(subject):
        if not event.call.args and not event.call.keywords:
            yield event.node, "ReduceLROnPlateau.step() needs the metric that it monitors"


@rule("BH116")
def plateau_per_batch(subject: Subject) -> Iterator[Place]:
    """A plateau schedule is stepped unconditionally in the loop over batches."""
    for event, _ in _plateaus(subject):
        if _cadence(event) == "batch" and not _conditional(event, event.loops[-1]):
            told = "ReduceLROnPlateau is stepped once per batch: patience counts batches"
            yield event.node, told


def _conditional(event: Event, loop: Loop) -> bool:
    """Whether something happens in some iterations of a loop only."""
    helper = [] if event.scope is loop.scope else walk(event.scope.node)
    inside = {*walk(loop.node), *helper}
    return any(b in inside for b, _ in event.branches)


@rule("BH117")
def rate_written_by_hand(subject: Subject) -> Iterator[Place]:
    """In one loop a schedule steps and `group["lr"]` is assigned, both unconditionally."""
    for event, made in _stepped(subject):
        if made.last not in CHAINED or not event.loops or event.branches:
            continue
        for node in nodes_of(event.loops[-1].node, ast.Assign):
            to = node.targets[0]
            free = not any(isinstance(a, ast.If) for a in subject.program.ancestors(node))
            if free and isinstance(to, ast.Subscript) and constant(to.slice) == "lr":
                yield node, f"{made.last} overwrites this rate, or is changed by it"


@rule("BH118")
def lambda_returns_rate(subject: Subject) -> Iterator[Place]:
    """A value that the function of a LambdaLR returns has the rate of its optimizer as a factor."""
    program = subject.program
    for call in torch_calls(program, "LambdaLR"):
        given, scope = keyword(call, "lr_lambda", 1), program.scope(call)
        made = program.origins(keyword(call, "optimizer", 0), scope)
        rates = [keyword(o.call, "lr", 1) for o in made if o.name.startswith("torch.optim.")]
        factors = {
            ast.unparse(factor)
            for value in (_returned(program, given, scope) if given is not None else ())
            for written in _factors(value)
            for factor in (written, value_of(program, written, program.scope(written)))
        }
        for rate in (ast.unparse(r) for r in rates if r is not None):
            if rate in factors - {"1", "1.0"}:
                told = "the factor of LambdaLR contains the rate"
                yield call, f"{told} {rate} itself"


def _returned(program: Program, given: ast.expr, scope: Scope) -> list[ast.expr]:
    """What a lambda, a function of the file, or the one that such a function makes, gives back."""
    given = value_of(program, given, scope)
    if isinstance(given, ast.Lambda):
        return [given.body]
    call = given if isinstance(given, ast.Call) else ast.Call(given, [], [])
    function = program.callees_by_name(call, scope)
    if function is None:
        return []
    found = [n.value for n in own_nodes_of(function.node, ast.Return) if n.value is not None]
    if call is not given:
        return found
    return _returned(program, found[0], function) if len(found) == 1 else []


def _factors(value: ast.expr) -> list[ast.expr]:
    """The factors of a product or of a quotient, and of what `min` or `max` chooses from."""
    match value:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return [*_factors(left), *_factors(right)]
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            above = _factors(left)
            return [] if ast.unparse(right) in map(ast.unparse, above) else above
        case ast.Call(func=ast.Name(id="min" | "max"), args=given):
            return [f for a in given for f in _factors(a)]
    return [value]


@rule("BH119")
def plateau_in_wrong_direction(subject: Subject) -> Iterator[Place]:
    """The literal mode of a plateau schedule is not the one in which the value that it is stepped
    with gets better, by its name and by what computes it.
    """
    for event, made in _plateaus(subject):
        watched, given = keyword(event.call, "metrics", 0), keyword(made.call, "mode", 1)
        mode = "min" if given is None else constant(given)
        if watched is None or has_unpacking(made.call) or mode not in ("min", "max"):
            continue
        if _better(subject.program, watched, event.scope) == {"min": "max", "max": "min"}[mode]:
            told = f"mode is {mode!r}, and {ast.unparse(watched)} improves in the other direction"
            yield made.call, told, event.node


def _better(program: Program, watched: ast.expr, scope: Scope) -> str:
    """`max` where all names of a value speak of a score, `min` where of a loss; else empty."""
    parts = (watched, value_of(program, watched, scope))
    added = any(b.how == "augment" for b in program.bindings_of(watched, scope))
    if added or any(isinstance(n, (ast.UnaryOp, ast.BinOp)) for part in parts for n in walk(part)):
        return ""
    keys = {n.value for p in parts for n in nodes_of(p, ast.Constant) if isinstance(n.value, str)}
    named = {n.replace("/", "_") for p in parts for n in identifiers(p)} | keys
    return direction({w for n in named for w in words(n)})


@rule("BH143")
def schedule_made_in_each_epoch(subject: Subject) -> Iterator[Place]:
    """In a loop over epochs a schedule is made unconditionally, for an optimizer from outside of
    it, and stepped there; nothing in the loop sets the rate back.
    """
    for trace in subject.traces:
        for at, event in enumerate(trace):
            if event.kind != "call" or not event.loops:
                continue
            loop, call, name = event.loops[-1], event.call, last_name(event.call.func)
            made = is_scheduler_origin(Origin(event.key, call, event.scope))
            if not made or name == "OneCycleLR" or keyword(call, "last_epoch") is not None:
                continue
            optimizer = event.frame.key(keyword(call, "optimizer", 0))
            inside = [e for e in trace if loop in e.loops]
            depths = {len(e.loops) - len(event.loops) for e in inside if e.kind == "backward"}
            kept = [e.key for e in trace[at + 1 : at + 4] if e.kind == "assign"]
            steps = any(e.kind == "schedule" and e.key in kept for e in inside)
            if depths != {1} or not steps or not optimizer or _conditional(event, loop):
                continue
            if _counts_epochs(loop) and not _begins_anew(inside, optimizer, loop):
                told = f"{name} restarts from its first step in every iteration of the loop"
                yield event.node, told, loop.node


def _counts_epochs(loop: Loop) -> bool:
    """Whether a loop counts passes over the rows, and not stages with their own schedules."""
    head = loop.node.test if isinstance(loop.node, ast.While) else loop.node.target
    said = {w for n in identifiers(head) for w in words(n)}
    return is_epoch_loop(loop) and not is_loader_loop(loop) and not STAGES & said


def _begins_anew(inside: list[Event], optimizer: str, loop: Loop) -> bool:
    """Whether the optimizer is made, loaded or reset in the loop, or its rate is set."""
    name, named = optimizer.partition("[")[0], identifiers(loop.node)
    given = {dotted(n) for n in walk(loop.node) if isinstance(getattr(n, "ctx", None), ast.Store)}
    given |= {e.key for e in inside if e.kind == "assign"}
    literals = {n.value for n in nodes_of(loop.node, ast.Constant)}
    reset = "load_state_dict" in named or any(RESETS & words(n) for n in named)
    return name in given or reset or bool({"lr", "initial_lr"} & literals)
