"""Evaluation: modes, gradients, and which rows and batches are scored."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import optimizers_made
from training.review.loops import last_name_of_key, names_loader
from training.review.program import Program, Scope
from training.review.roles import EVALUATES, is_frozen_name, is_model, looks_held_out
from training.review.sides import all_names, side_of, side_of_names, targets_of
from training.review.splitting import values_read
from training.review.syntax import (
    calls,
    constant,
    defaults,
    has_unpacking,
    identifiers,
    is_true,
    keyword,
    last_name,
    names_read,
    nodes_of,
    once,
    own_nodes_of,
    receiver,
    words,
)
from training.review.trace import Event, Loop

QUIET = ("no_grad", "inference_mode", "eval_mode")
MODED = ("Dropout", "BatchNorm", "InstanceNorm")  # layers that have two modes
LIKELIHOODS = {"cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss"}
SAMPLED = {"random_split", "Subset", "SubsetRandomSampler"}
MAKES_SETS = ("torch.utils.data.", "torchvision.datasets.")
REPORTS = {ast.Return, ast.Compare}
# words
BATCHES = {"loader", "dataloader", "batches", "dl", "data", "dataset", "iterator"}
SETS_MODE = {"train", "set_mode", "set_train", "train_mode"}
NOT_LEARNING = {"teacher", "target", "ema", "frozen"}
TRAINS = {"backward", "step", "train", "training", "fit"}
COUNTS = {"n", "num", "len", "size", "count", "start", "end", "cut"}
FORCED_SHARE = {"tf_ratio", "tfr", "sampling_prob"}

Pass = tuple[Loop, Event, list[Event], bool]
Rows = tuple[Scope, str, str]  # the function, the rows as they are written, and their split


@once
def passes(subject: Subject) -> tuple[Pass, ...]:
    """Loops that run a network and learn nothing, its first forward pass there, the trace, and
    whether the rows are held out.
    """
    found: list[Pass] = []
    for trace in subject.traces if not subject.framework else ():
        for loop in dict.fromkeys(e.loops[-1] for e in trace if e.loops):
            inside = [e for e in trace if loop in e.loops]
            ran = [e for e in inside if e.kind == "forward" and not is_frozen_name(e.key)]
            learns = any(e.kind in ("backward", "step") or "autograd.grad" in e.key for e in inside)
            if ran and not learns and loop.scope.name != "forward":
                found.append((loop, ran[0], trace, _over_held_out(loop, inside)))
    return tuple(found)


def _over_held_out(loop: Loop, inside: list[Event]) -> bool:
    """Whether a loop's head, what its caller passes there, or its function say so."""
    if isinstance(loop.node, ast.While):
        return False
    heads = set(identifiers(loop.node.iter))
    for frame in [e.frame for e in inside if e.scope is loop.scope][:1]:
        heads |= {last_name_of_key(frame.key(n)) for n in nodes_of(loop.node.iter, ast.Name)}
    spoken = words(loop.scope.name) | words(getattr(loop.scope.owner, "name", ""))
    named = bool(EVALUATES & spoken) and not {"train", "fit"} & spoken
    return any(looks_held_out(n) or (named and BATCHES & words(n)) for n in heads)


@rule("BH201")
def eval_mode_missing(subject: Subject) -> Iterator[Place]:
    """Before a loop over held-out batches the last change of mode is not `eval`; or nothing in the
    file sets it.
    """
    program = subject.program
    given = any(c.args or c.keywords for c in program.methods_of("train"))
    moded = any(n.startswith(MODED) for n in program.identifiers) and subject.trains
    never = moded and not given and not {"eval", "training"} & program.identifiers
    for loop, first, trace, held in passes(subject):
        scope, node, key = loop.scope, loop.node, first.key
        pairs = isinstance(node, ast.For) and isinstance(node.target, ast.Tuple)
        used = not isinstance(program.parents[first.node], ast.Expr)
        bare = never and pairs and used and "train" not in identifiers(scope.node)
        before, around = trace[: trace.index(first)], [n for n, _ in first.contexts]
        called = {w for e in before if e.kind == "call" for w in words(last_name_of_key(e.key))}
        last = next((e for e in reversed(before) if e.kind in ("eval", "train")), None)
        unseen = "eval" in called or any(n.endswith(("eval_mode", "eval")) for n in around)
        if last is None:  # a caller in another file may set it
            trains = any(e.kind == "backward" for e in trace)
            own = scope.owner is not None and "eval" in identifiers(scope.owner)
            outside = not scope.name or own or {"eval_mode", "set_mode"} & program.identifiers
            unseen |= bool(outside) and not trains and not program.call_sites[scope]
        elif not (last.key.startswith(key) or key.startswith(last.key)):
            unseen |= last_name_of_key(last.key) not in ("self", "model")
        wrong = held and not unseen and (last is None or (last.kind == "train" and not last.via))
        if wrong or (bare and first.within(*QUIET)):
            said = f"{key.rpartition(':')[2]} is not in eval mode in this evaluation"
            yield first.node, said, scope.node if scope.name else node


@rule("BH202")
def no_grad_missing(subject: Subject) -> Iterator[Place]:
    """A forward pass in a loop over held-out batches with gradients on."""
    if {"set_grad_enabled", "autograd", "enable_grad"} & subject.program.identifiers:
        return
    for loop, first, _, _ in (p for p in passes(subject) if p[3]):
        own = any("grad" in n and not n.startswith("torch.") for n, _ in first.contexts)
        frozen = {"requires_grad", "requires_grad_"} & identifiers(loop.scope.node)
        if not (first.within(*QUIET) or own or frozen) and (loop.scope.name or subject.trains):
            around = loop.scope.node if loop.scope.name else loop.node
            yield first.node, "gradients are on in this evaluation", around


@rule("BH203")
def train_mode_not_restored(subject: Subject) -> Iterator[Place]:
    """In a loop that trains, the network that learns is put into eval mode, and nothing puts it
    back within the loop.
    """
    for trace in subject.traces:
        for event in (e for e in trace if e.kind == "eval" and not is_frozen_name(e.key)):
            left = [x for x in event.loops if _stays(subject.program, event, x, trace)]
            if left:
                name = event.key.rpartition(":")[2]
                said = "is put into eval mode in the training loop, and never back into train mode"
                yield event.node, f"{name} {said}", left[0].node


def _stays(program: Program, mode: Event, loop: Loop, trace: list[Event]) -> bool:
    """Whether the network learns in the loop, is not recreated in it, and nothing sets its mode."""
    inside, network = [e for e in trace if loop in e.loops], receiver(mode.node)
    kinds = {e.kind for e in inside}
    unseen = [e for e in inside if e.kind == "call" and not program.callees(e.call, e.scope)]
    sets = any(last_name(e.call.func) in SETS_MODE for e in unseen)
    bound = program.bindings_of(network, mode.scope) if network is not None else []
    anew = any(
        loop.node in program.ancestors(b.statement) or loop.scope is not b.scope is mode.scope
        for b in bound
    )
    if sets or anew or "backward" not in kinds or "train" in kinds:
        return False
    origins = program.origins(network, mode.scope)
    made = {o.call for o in origins if all(p.last != "deepcopy" for p in origins)}
    ran = [e for e in inside if e.kind == "forward" and not e.within(*QUIET)]
    same = any(made & {o.call for o in program.origins(e.call.func, e.scope)} for e in ran)
    trained = (e for e in trace if e.kind == "train")
    return same or any(e.key == mode.key for e in (*ran, *trained))


@rule("BH208")
def frozen_network_with_gradients(subject: Subject) -> Iterator[Place]:
    """In a loop that trains, a copy or a teacher is called on the batch with gradients on, and
    nothing switches them off or cuts its output.
    """
    program = subject.program
    cuts = {"requires_grad_", "requires_grad", "detach", "detach_", "stop_gradient"}
    if cuts & program.identifiers:
        return
    trained = frozenset[str]().union(*(identifiers(c) for c, _ in optimizers_made(program)))
    for trace in subject.traces:
        learning = {e.loops[-1] for e in trace if e.kind == "backward" and e.loops}
        for e in (e for e in trace if e.kind == "forward" and not e.within(*QUIET)):
            name, call = last_name(e.call.func), e.call
            copy = any(o.last == "deepcopy" for o in program.origins(call.func, e.scope))
            still = (copy or NOT_LEARNING & words(name)) and name not in trained
            given = [*call.args, *(k.value for k in call.keywords)]
            bound = {b.how for a in given for b in program.bindings_of(a, e.scope)}
            of_batch = {type(a) for a in given} == {ast.Name} and bound <= {"loop"}
            if still and of_batch and learning & set(e.loops[-1:]):
                yield call, f"{name} is not trained, and runs with gradients on", e.loops[-1].node


@rule("BH211")
def validation_of_train_rows(subject: Subject) -> Iterator[Place]:
    """A loader or data set that is named after one split is made of rows that are named after, or
    were given to, another one.
    """
    made = _made_of(subject.program)
    trains = {scope for (scope, _, _), sides in made.items() if "train" in sides}
    for (scope, rows, of), sides in made.items():
        for side, (name, call) in sides.items():
            known = all_names(subject.program) - identifiers(call) - {name}
            others = {side_of(n) for n in known} if not rows.endswith(")") else set()
            held = "train" in sides or others & {"val", "test"}
            learned = side != "train" and of == "train" and held
            chosen = side == "test" and of == "val" and "test" in others
            both = side == "test" and not of and sides.keys() == {"val", "test"} and scope in trains
            if learned or chosen or both or (side == "train" and of in sides.keys() - {"train"}):
                yield call, f"{name} is made of {rows}, which is another split"


def _made_of(program: Program) -> dict[Rows, dict[str, tuple[str, ast.Call]]]:
    """Of the rows of each function the loaders and sets that are made of them, by their split."""
    found = defaultdict[Rows, dict[str, tuple[str, ast.Call]]](dict)
    for call in program.all_calls:
        name = program.resolve(call.func)
        targets = targets_of(program, call) if name.startswith(MAKES_SETS) and call.args else ()
        side = side_of_names(targets)
        sampled = has_unpacking(call) or keyword(call, "sampler") or keyword(call, "batch_sampler")
        if not side or sampled or "eval" in words(targets[0]):  # may go over train rows in order
            continue
        rows = call.args[:1] if name.endswith("DataLoader") else call.args
        rows = [call] if name.startswith("torchvision.") else rows
        spoken = {n for r in rows for n in _spoken(program, r) if not COUNTS & words(n)}
        text = ", ".join(ast.unparse(r) for r in rows)
        found[program.scope(call), text, side_of_names(tuple(spoken))][side] = targets[0], call
    return found


def _spoken(program: Program, rows: ast.expr) -> set[str]:
    """The names of rows that are taken as they are, made a tensor, or read from a published set."""
    name = program.resolve(rows.func) if isinstance(rows, ast.Call) else ""
    if name.startswith("torchvision.") and not SAMPLED & program.called_names:
        said = {str(c.value).replace("/", "_") for c in nodes_of(rows, ast.Constant)}
        return said | {k.arg for k in nodes_of(rows, ast.keyword) if k.arg and is_true(k.value)}
    plain = not isinstance(rows, ast.Call) or name.startswith("torch.")
    return values_read(rows) | {last_name(rows)} if plain else set()


@rule("BH219")
def only_last_batch_counts(subject: Subject) -> Iterator[Place]:
    """In an evaluation each batch overwrites a network's output, and the loop keeps nothing, or the
    name began as a sum at zero; after the loop it is returned or measured.
    """
    program = subject.program
    for loop in program.nodes[ast.For]:
        scope, end = program.scope(loop), loop.end_lineno or 0
        body = loop.body if _measures(program, loop, scope) else []
        made: dict[str, ast.stmt] = {}
        kept = sums = False
        for s in body:
            own = [c.func for c in calls(s) if not program.resolve(c.func)]
            gives = names_read(s) & made.keys() or any(is_model(program, f, scope) for f in own)
            targets = s.targets if isinstance(s, ast.Assign) else []
            if targets and gives and {type(t) for t in targets} <= {ast.Name, ast.Tuple}:
                made = {n.id: s for t in targets for n in nodes_of(t, ast.Name)} | made
            elif gives and not ast.unparse(s).startswith("print("):
                kept = True
            sums |= isinstance(s, ast.AugAssign)
        for name, first in made.items():
            reads = [n for n in own_nodes_of(scope.node, ast.Name) if n.id == name]
            reads = [n for n in reads if isinstance(n.ctx, ast.Load) and n.lineno > loop.lineno]
            inside = [n.lineno for n in reads if n.lineno <= end]
            bound = scope.bindings[name]
            zero = sums and not inside and constant(bound[0].value) == 0
            again = any(program.statement(b.statement).lineno > end for b in bound)
            whole = [n for n in reads if not isinstance(program.parents[n], ast.Attribute)]
            after = [n for n in whole if n.lineno > end]
            after = [n for n in after if REPORTS & {type(a) for a in program.ancestors(n)}]
            carried = any(line <= (first.end_lineno or 0) for line in inside)
            if after and not carried and not again and (zero or not kept):
                said = f"each iteration of the loop in line {loop.lineno} overwrites it"
                yield after[0], f"{name} is of the last batch only: {said}", loop
                break


def _measures(program: Program, loop: ast.For, scope: Scope) -> bool:
    """Whether a loop goes over all batches in code that switches gradients or modes."""
    quiet = identifiers(scope.node) & {*QUIET, "eval"}
    trains = any(TRAINS & words(last_name(c.func)) for c in calls(loop))
    leaves = any(nodes_of(loop, kind) for kind in (ast.Break, ast.Return, ast.Yield))
    loader = any(o.last == "DataLoader" for o in program.origins(loop.iter, scope))
    return bool(quiet) and (loader or names_loader(loop.iter)) and not trains and not leaves


@rule("BH227")
def teacher_forced_evaluation(subject: Subject) -> Iterator[Place]:
    """In an evaluation a network is called with a teacher forcing ratio above 0, given or by
    default, and its class does not look at `self.training`.
    """
    program, measured = subject.program, [e for _, e, _, held in passes(subject) if held]
    forced: dict[str, tuple[str, int, object]] = {}
    for owner in program.module_classes:
        forward = program.methods[owner].get("forward")
        for at, p in enumerate(forward.parameters if forward is not None else ()):
            named = "forcing" in words(p) or p in FORCED_SHARE
            if named and forward is not None and "training" not in identifiers(owner):
                forced[owner.name] = p, at - 1, constant(defaults(forward.node).get(p))
    for e in (e for trace in subject.traces if forced for e in trace if e.kind == "forward"):
        call, given = e.call, [*e.call.args, *(k.value for k in e.call.keywords)]
        made = {o.name for o in program.origins(call.func, e.scope)} & program.classes.keys()
        known = (made or set(forced)) & forced.keys()
        if not (e.within(*QUIET) or e in measured) or len(known) != 1 or has_unpacking(call):
            continue
        name, position, default = forced[known.pop()]
        own = keyword(call, name, position)
        share = default if own is None else constant(own)
        without = len(given) < 2 or "None" in map(ast.unparse, given)
        if not isinstance(share, (int, float)) or share is True or without:
            continue
        if 0 < share < 1 or (share == 1 and own and not LIKELIHOODS & program.identifiers):
            how = "by default" if own is None else "here"
            yield (
                call,
                f"{name} is {share} {how}: the network gets true values in this evaluation",
            )
