"""Rules BH128 to BH137: loops left, networks and rates made in vain, and mixed precision."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.loops import innermost_loop, is_loader_loop, names_loader, step_groups
from training.review.program import Program, Scope
from training.review.roles import is_frozen_name, is_optimizer, is_optimizer_origin, is_scaler
from training.review.sides import reads_in
from training.review.syntax import (
    LOOPS,
    calls,
    constant,
    dotted,
    identifiers,
    is_false,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    receiver,
    words,
)
from training.review.trace import Event

FINITE = {"isfinite", "isinf", "isnan"}
# words
ROUNDS = {"range", "trange", "tqdm", "count", "enumerate"}
SHOWS = {"print", "info", "debug", "write", "set_postfix", "append", "log", "add_scalar"}
SCALES = ("scal", "accelerator", "fabric", "engine")  # what may scale a gradient itself


@rule("BH128")
def loop_left_after_one_batch(subject: Subject) -> Iterator[Place]:
    """A loop over batches ends with a `break` after a step, or a `return` of what it adds up."""
    stepping = [s.around for s in step_groups(subject)]
    for loop in (n for n in subject.program.nodes[ast.For] if names_loader(n.iter)):
        inside, last = nodes_of(loop, ast.Continue), loop.body[-1]
        if any(innermost_loop(subject.program, c) is loop for c in inside):
            continue
        if isinstance(last, ast.Break) and loop in stepping:
            yield last, "every pass over the batches ends after the first one", loop
        summed = {last_name(n.target) for n in nodes_of(loop, ast.AugAssign)}
        if isinstance(last, ast.Return) and summed & identifiers(last.value):
            yield last, "the function returns what it added up after the first batch", loop


@rule("BH129")
def network_made_in_each_epoch(subject: Subject) -> Iterator[Place]:
    """A loop over epochs makes a network whose parameters it optimizes, and which no list keeps."""
    program = subject.program
    for loop in program.nodes[ast.For]:
        counts = last_name(getattr(loop.iter, "func", None)) in ROUNDS
        if not counts or not any("epoch" in words(n) for n in identifiers(loop.target)):
            continue
        kept = {dotted(a) for c in calls(loop) if method(c) == "append" for a in c.args}
        optimized = {dotted(receiver(c)) for c in calls(loop) if method(c) == "parameters"}
        for statement in (s for s in loop.body if isinstance(s, ast.Assign)):
            made = getattr(statement.value, "func", None)
            owner, name = program.classes.get(dotted(made)), dotted(statement.targets[0])
            network = program.is_torch(made, "Sequential") or program.is_module(owner)
            if network and name in optimized - kept:
                yield statement, f"{name} starts from new random weights in each epoch", loop


@rule("BH130")
def step_after_the_loop(subject: Subject) -> Iterator[Place]:
    """A step behind the loop over batches with its backward and clear, or both behind that loop."""
    program, what = subject.program, "one update for each pass over the batches, with"
    for steps in step_groups(subject):
        for left in (_left_by(program, b.event.node) for b in steps.backwards):
            if left is not None:
                yield steps.step.node, f"{what} the loss of its last batch alone", left
        outer = len(steps.step.loops)
        loops = [b.event.loops[-1] for b in steps.backwards if b.event.loops[outer:]]
        over_batches = all(isinstance(x.node, ast.For) and is_loader_loop(x) for x in loops)
        stepped = any(e.kind == "step" and set(e.loops) & set(loops) for e in steps.trace)
        cleared = any(set(c.event.loops) & set(loops) for c in steps.clears)
        if cleared and over_batches and not stepped and len(loops) == len(steps.backwards):
            yield steps.step.node, f"{what} the gradient of its last batch alone", loops[0].node


def _left_by(program: Program, backward: ast.AST) -> ast.For | None:
    """The loop over batches, next to a backward, in which its loss is bound in each iteration."""
    name, around = dotted(receiver(backward)), program.ancestors(backward)
    bound = program.scope(backward).bindings.get(name, [])
    loops = {innermost_loop(program, b.statement) for b in bound}
    loop = loops.pop() if len(loops) == 1 else None
    anew = all(b.how == "assign" and name not in names_read(b.value) for b in bound)
    if not isinstance(loop, ast.For) or loop in around or not anew:
        return None
    return loop if names_loader(loop.iter) and any(isinstance(a, LOOPS) for a in around) else None


@rule("BH131")
def clip_before_unscale(subject: Subject) -> Iterator[Place]:
    """Between a scaled backward and a clip nothing unscales; a step through the scaler follows."""
    for trace in subject.traces:
        for at, clip in enumerate(trace):
            before = [e for e in trace[:at] if e.kind in ("backward", "unscale", "step")][-1:]
            scaled = before and before[0].kind == "backward" and before[0].via == "scaler"
            if clip.kind != "clip" or clip.via or not scaled:
                continue
            most = keyword(clip.call, "max_norm", 1)
            bound = "" if most is None else ast.unparse(most)  # an infinite one only measures
            if "inf" in bound or "get_scale" in bound or _given_away(subject, before[0], clip.call):
                continue
            if any(e.kind == "step" and e.via == "scaler" for e in trace[at:]):
                around = clip.loops[-1].node if clip.loops else clip.node
                yield clip.node, "the gradients are still multiplied by the loss scale here", around


def _given_away(subject: Subject, event: Event, until: ast.AST) -> bool:
    """Whether a function out of sight is given a scaler after an event, in its function."""
    first, last = getattr(event.node, "lineno", 0), getattr(until, "end_lineno", 0)
    return any(
        is_scaler(subject.program, a, event.scope)
        for c in calls(event.scope.node)
        if first < c.lineno <= last and not subject.program.callees(c, event.scope)
        for a in (*c.args, *(k.value for k in c.keywords))
    )


@rule("BH132")
def scaler_not_updated(subject: Subject) -> Iterator[Place]:
    """`scaler.step(optimizer)` in a loop or in a closure, in a file that updates no scaler."""
    program = subject.program
    updates = program.methods_of("update")
    if any(is_scaler(program, receiver(c), program.scope(c)) for c in updates):
        return
    for event in (e for trace in subject.traces for e in trace if e.kind == "step"):
        scaler, scope = receiver(event.node), event.scope
        around = event.loops[-1].node if event.loops else scope.node
        closure = scope.parent is not None and scope.parent in program.call_sites
        if event.via != "scaler" or not (event.loops or closure):
            continue
        known = all(dotted(b) in program.classes for b in getattr(scope.owner, "bases", []))
        if known and is_scaler(program, scaler, scope) and not _given_away(subject, event, around):
            yield event.node, "the scaler is stepped and never updated", around


@rule("BH133")
def scaler_bypassed(subject: Subject) -> Iterator[Place]:
    """The backward before a direct step went through a scaler, and nothing steps through that."""
    for trace in subject.traces if "scale" not in subject.program.method_names else ():
        for at, step in enumerate(trace):
            inside = [e for e in trace if e.loops[: len(step.loops)] == step.loops]
            backwards = [e for e in trace[:at] if e.kind == "backward" and e in inside]
            if step.kind != "step" or step.via or not backwards:
                continue
            tests = [b.test for b, _ in step.branches if isinstance(b, ast.If)]
            checked = any(FINITE & identifiers(t) for t in tests)
            if checked or any(e.kind == "step" and e.via for e in inside):
                continue
            if backwards[-1].via == "scaler" and step.under(backwards[-1]):
                yield step.node, "this step bypasses the scaler: gradients may be scaled"


@rule("BH134")
def float16_without_scaler(subject: Subject) -> Iterator[Place]:
    """A forward in float16 next to a backward, by autocast or cast, in a file that never scales."""
    program = subject.program
    scaled = any(w in n.lower() for n in program.identifiers for w in SCALES)
    if scaled or subject.framework or "grad" in program.identifiers:
        return
    for trace in subject.traces:
        looped = [e.loops[:1] for e in trace if e.kind == "backward"]
        for event in trace:
            if event.loops[:1] not in looped or event.within("no_grad", "inference_mode"):
                continue
            halves = [node for _, node in event.contexts if _is_half(program, node)]
            if event.kind == "forward" and not is_frozen_name(event.key):
                halves += _casts(program, event.call, event.scope)
            for node in halves:
                yield node, "this forward runs in float16, and the gradient is not scaled"


def _is_half(program: Program, node: ast.AST) -> bool:
    """Whether it makes an autocast of float16, by its dtype or cuda's default."""
    if not isinstance(node, ast.Call) or not program.is_torch(node.func, "autocast"):
        return False
    of_cuda = "cuda" in program.resolve(node.func)
    dtype = keyword(node, "dtype", 0 if of_cuda else 1)
    by_default = of_cuda or constant(keyword(node, "device_type", 0)) == "cuda"
    half = last_name(dtype) in ("float16", "half") if dtype is not None else by_default
    return half and keyword(node, "enabled") is None


def _casts(program: Program, forward: ast.Call, scope: Scope) -> Iterator[ast.Call]:
    """The calls that cast the network of a forward to float16, as its name or its origins say."""
    made = set(program.origins(forward.func, scope))
    for call in program.methods_of("half", "to", "type"):
        given = {last_name(a) for a in (*call.args, *(k.value for k in call.keywords))}
        if method(call) == "half" if not given else {"float16", "half"} & given:
            inside, targets = program.scope(call), getattr(program.statement(call), "targets", ())
            named = dotted(forward.func) in {dotted(t) for t in (*targets, receiver(call))}
            origins = set(program.origins(receiver(call), inside))
            same = (named and inside is scope) or (origins and origins <= made)
            asked = any(isinstance(a, (ast.If, ast.IfExp)) for a in program.ancestors(call))
            if same and not asked and (inside is not scope or call.lineno < forward.lineno):
                yield call


@rule("BH135")
def autocast_around_backward(subject: Subject) -> Iterator[Place]:
    """A backward directly inside an autocast block that is on."""
    for event in (e for trace in subject.traces for e in trace if e.kind == "backward"):
        inner = [node for name, node in event.contexts if name.endswith("autocast")][-1:]
        off = any(isinstance(c, ast.Call) and is_false(keyword(c, "enabled")) for c in inner)
        if inner and not off and event.via != "accelerator":
            yield event.node, "backward is inside the autocast block"


@rule("BH137")
def rate_changed_in_a_name(subject: Subject) -> Iterator[Place]:
    """A rate is changed next to an optimizer and read only by messages, or set as its attribute."""
    program = subject.program
    if {"param_groups", "lr_scheduler", "get_last_lr"} & program.identifiers:
        return
    for scope, name in ((s, n) for s in program.scopes for n in s.bindings if _is_rate(n)):
        in_place = any("tensor" in identifiers(b.value) for b in scope.bindings[name])
        for b in scope.bindings[name] if not in_place else ():
            helper = isinstance(b.value, ast.Call) and program.callees_by_name(b.value, scope)
            own = b.how == "augment" or name in names_read(b.value)
            loop = innermost_loop(program, b.statement) if own or helper else None
            used = nodes_of(loop, ast.Name) + nodes_of(loop, ast.Attribute)
            steps = any(is_optimizer(program, n, scope) for n in used)
            if steps and all(_shows(program, use, b.statement) for use in reads_in(scope, name)):
                yield b.statement, f"{name} changes, not the rate of the optimizer", loop or b.value
                break
    for node in program.nodes[ast.Assign]:
        target = node.targets[0]
        of = getattr(target, "value", None) if _is_rate(last_name(target)) else None
        if any(map(is_optimizer_origin, program.origins(of, program.scope(node)))):
            yield node, f"{ast.unparse(target)} is read by no optimizer of torch"


def _is_rate(name: str) -> bool:
    return "lr" in words(name) or {"learning", "rate"} <= words(name)


def _shows(program: Program, use: ast.Name, change: ast.AST) -> bool:
    """Whether a rate is read in its change, a message, a comparison or the optimizer's making."""
    for a in (use, *program.ancestors(use)):
        if a is change or isinstance(a, (ast.Compare, ast.FormattedValue)):
            return True
        if isinstance(a, ast.Call):
            made = any(map(is_optimizer_origin, program.origins(a, program.scope(a))))
            if last_name(a.func) in SHOWS or (made and innermost_loop(program, a) is None):
                return True
    return False
