"""Rules about the best epoch: which rows choose it, how its weights are kept, when to stop."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeGuard

from training.review.findings import Place, Subject, rule
from training.review.lookups import places_of
from training.review.loops import innermost_loop
from training.review.program import Program, Scope, argument
from training.review.roles import (
    direction,
    is_model,
    is_network_with_state,
    looks_held_out,
    looks_trained_on,
)
from training.review.sides import side_of
from training.review.syntax import (
    FUNCTIONS,
    LOOPS,
    calls,
    constant,
    dotted,
    entry,
    identifiers,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    once,
    own_nodes_of,
    receiver,
    walk,
    words,
)

# words
WEIGHTS = {"model", "net", "network", "weights", "state", "checkpoint", "ckpt", "params", "module"}
HARM = {"worst", "hardest", "weakest", "attack", "attacks", "victim", "adversarial", "nearest"}
WAITING = {"patience", "wait", "waited", "bad", "stale", "counter", "strikes", "since", "worse"}
BEST = {"best", "lowest", "highest", "top"}
STOPS_EARLY = BEST | {"patience", "improve", "improved", "improvement", "early"}
DATA = {"loader", "dl", "dataloader", "iter", "batches", "data", "set", "ds", "dataset", "gen"}
NO_ROWS = {"transform", "ab", "time", "fn", "size", "every", "freq", "model", "net", "network"}
LOADS = {"load", "restore", "reload", "swap", "resume"}

ORDERS, GREATER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE), (ast.Gt, ast.GtE)


class Choice(NamedTuple):
    """A score that becomes the best so far where `test` holds; `keeps` is `max` or `min`."""

    node: ast.If | ast.Assign
    test: ast.Compare
    score: ast.expr
    best: ast.expr
    keeps: str
    becomes: ast.Assign | None


@once
def choices(program: Program) -> tuple[Choice, ...]:
    """All of them: in an `if`, or at a flag, `is_best = score > best` next to `best = max(…)`."""
    nodes: list[ast.If | ast.Assign] = [*program.nodes[ast.If], *program.nodes[ast.Assign]]
    found = []
    for node in nodes:
        held = node if isinstance(node, ast.If) else program.parents[node]
        block = held.body if isinstance(held, (ast.If, ast.Module, *LOOPS, *FUNCTIONS)) else []
        for test, score, best in compared(node):
            keeps = "max" if isinstance(test.ops[0], GREATER) == (score is test.left) else "min"
            said, kept, becomes = ast.unparse(score), ast.unparse(best), None
            for name, value, assign in given(block):
                better = value.args if _is_extreme(value) else [value]
                if name == kept and said in map(ast.unparse, better):
                    becomes = assign
            of_list = isinstance(node, ast.If) and _is_extreme(best) and len(best.args) == 1
            if becomes is not None or of_list:
                found.append(Choice(node, test, score, best, keeps, becomes))
    return tuple(found)


def _is_extreme(node: ast.expr) -> TypeGuard[ast.Call]:
    """Whether it is the least or the greatest of something."""
    return isinstance(node, ast.Call) and dotted(node.func) in ("min", "max")


def compared(node: ast.If | ast.Assign) -> list[tuple[ast.Compare, ast.expr, ast.expr]]:
    """The comparisons by size in a condition, or that a name is given, read in both directions."""
    test = node.test if isinstance(node, ast.If) else node.value
    parts = test.values if isinstance(test, ast.BoolOp) else [test]
    sizes = [p for p in parts if isinstance(p, ast.Compare) and isinstance(p.ops[0], ORDERS)]
    ends = [(p, p.left, p.comparators[0]) for p in sizes]
    return [*ends, *((p, right, left) for p, left, right in ends)]


def given(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr, ast.Assign]]:
    """What is assigned within, with the name that gets it; of tuples each part."""
    for assign in (a for n in nodes for a in nodes_of(n, ast.Assign)):
        target, value = assign.targets[0], assign.value
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        names = [dotted(t) or ast.unparse(t) for t in getattr(target, "elts", [target])]
        if len(names) == 1 < len(values):
            names = [f"{names[0]}[{i}]" for i, _ in enumerate(values)]
        yield from ((n, v, assign) for n, v in zip(names, values, strict=False))


def keeps_weights(node: ast.AST) -> bool:
    """Whether weights are asked for, saved or copied in the body of an `if`."""
    asked = [c for s in getattr(node, "body", ()) for c in calls(s)]
    copied = [c for c in asked if last_name(c.func) in ("deepcopy", "save")]
    named = any(WEIGHTS & words(n) for c in copied for n in identifiers(c))
    return named or any(method(c) == "state_dict" for c in asked)


def deciding(program: Program) -> Iterator[tuple[ast.AST, ast.expr, ast.AST]]:
    """Each score that a loop compares with the best so far, or that a helper does for it."""
    for choice in choices(program):
        scope, score = program.scope(choice.node), choice.score
        found: list[tuple[ast.AST, ast.expr | None]] = [(choice.node, score)]
        if isinstance(score, ast.Name) and score.id in scope.parameters:
            sites = [c for c, _ in program.call_sites[scope]]
            for call in program.all_calls if scope.name == "__call__" and scope.owner else ():
                made = program.origins(call.func, program.scope(call))
                sites += [call for o in made if program.classes.get(o.name) is scope.owner]
            found += [(c, argument(c, scope, score.id)) for c in sites]
        for place, value in found:
            if (loop := innermost_loop(program, place)) is not None and value is not None:
                yield place, value, loop


def row_side(program: Program, node: ast.expr | None, scope: Scope, depth: int = 0) -> str:
    """The split of rows: by their name, what their loader is made of, or what callers pass."""
    name = entry(node) or last_name(node)
    if NO_ROWS & words(name) or depth > 2:
        return ""
    if looks_held_out(name) or side_of(name) or not isinstance(node, ast.Name):
        return "test" if name.lower().startswith("test") else side_of(name)  # `testloader`
    made = [c for b in scope.bindings.get(name, ()) for c in calls(b.value)[:1]]
    rows = [(keyword(c, "dataset", 0), scope) for c in made if last_name(c.func) == "DataLoader"]
    if name in scope.parameters:
        rows = [(argument(c, scope, name), caller) for c, caller in program.call_sites[scope]]
    found = {row_side(program, v, s, depth + 1) for v, s in rows}
    return found.pop() if len(found) == 1 else ""


def sides_behind(program: Program, value: ast.expr, loop: ast.AST, depth: int = 0) -> set[str]:
    """The splits of the rows that calls and loops get from which a value is computed in a loop."""
    scope, rows = program.scope(value), [g.iter for g in nodes_of(value, ast.comprehension)]
    found = set[str]()
    for call in calls(value):
        rows += [*call.args, *(k.value for k in call.keywords)]
        own = program.callees_by_name(call, scope)
        found |= {"train"} if own is not None and "backward" in identifiers(own.node) else set()
    names = names_read(value) if depth < 4 else ()
    for bound in (b for name in names for b in scope.bindings.get(name, ())):
        around = program.ancestors(bound.statement)
        if bound.how != "loop" and loop in around and bound.value is not value:
            inner = around[: around.index(loop)] if bound.how == "augment" else []
            heads = [a.iter for a in inner if isinstance(a, ast.For)]
            rows += [n for head in heads for n in nodes_of(head, ast.Name)]
            found |= sides_behind(program, bound.value, loop, depth + 1)
    return found | {row_side(program, r, scope) for r in rows} - {""}


def names_rows(name: str) -> bool:
    """Whether a name may be that of rows: it says so, or is no more than the name of a split."""
    return bool(DATA & words(name)) or len(words(name)) == 1


@rule("BH206")
def chosen_on_test_set(subject: Subject) -> Iterator[Place]:
    """A score of test rows, and of no validation rows, becomes the best so far in a loop."""
    program = subject.program
    for place, score, loop in deciding(program):
        sides, test = sides_behind(program, score, loop), getattr(place, "test", score)
        spoken = identifiers(getattr(loop, "iter", None)) | identifiers(test)
        harm = any(HARM & words(n) for n in (*spoken, program.scope(place).name))
        if "test" in sides and "val" not in sides and not harm:
            told = f"{ast.unparse(score)} comes from the test rows"
            yield place, f"{told}, and selects the weights that are kept", loop


@rule("BH209")
def best_by_train_loss(subject: Subject) -> Iterator[Place]:
    """A score of train rows keeps weights or stops, and the loop has a held-out score too."""
    program = subject.program
    held_out = [c for c in choices(program) if looks_held_out(last_name(c.score))]
    by_validation = {program.scope(c.node) for c in held_out if keeps_weights(c.node)}
    for place, score, loop in deciding(program):
        name, sides = entry(score) or last_name(score), sides_behind(program, score, loop)
        keeps = not isinstance(place, ast.If) or keeps_weights(place) or nodes_of(place, ast.Break)
        if not keeps or program.scope(place) in by_validation or looks_held_out(name):
            continue
        named = sorted(identifiers(loop) - {"eval", "dev"})
        beside = [n for n in named if side_of(n) in ("val", "test")]
        if beside and (sides == {"train"} or (looks_trained_on(name) and sides <= {"train"})):
            told = f"{ast.unparse(score)} is a score of train rows"
            yield getattr(place, "test", place), f"{told}, and {beside[0]} is available", loop


@rule("BH242")
def rows_unread(subject: Subject) -> Iterator[Place]:
    """Test rows are never read, and the validation rows are scored in a loop and once after it."""
    program = subject.program
    for scope in program.scopes:
        rows = {n: side_of(n) for n in scope.bindings if names_rows(n)}
        read = {n.id for n in nodes_of(scope.node, ast.Name) if isinstance(n.ctx, ast.Load)}
        unread = sorted(n for n, side in rows.items() if side == "test" and n not in read)
        held = {n for n, side in rows.items() if side == "val"} if unread else set()
        looped: set[str] = set()
        for call in sorted(calls(scope.node) if held else (), key=lambda c: c.lineno):
            names = {last_name(a) for a in call.args} & held
            if any(isinstance(a, LOOPS) for a in program.ancestors(call)):
                looped |= names
            elif names & looped:
                told = f"{unread[0]} is created and never read"
                yield call, f"{told}: the last score is of the validation rows again"
                break


@rule("BH207")
def best_weights_not_copied(subject: Subject) -> Iterator[Place]:
    """What is called best, or loaded back later, is set to a live state or network in a loop."""
    program = subject.program
    loaded = {ast.unparse(c.args[0]) for c in program.methods_of("load_state_dict") if c.args}
    loaded |= {name.rpartition(".")[2] for name in loaded}
    for name, value, statement in given([program.tree]):
        last, named = name.rpartition(".")[2], words(name.partition("[")[0].rpartition(".")[2])
        asked = any(isinstance(a, ast.If) for a in program.ancestors(statement))
        if ("best" not in named or "[" in name) and (last not in loaded or not asked):
            continue
        scope, loop = program.scope(statement), innermost_loop(program, statement)
        network = _live(program, value, scope, "model" in named)
        drawn = [b.statement for n in names_read(network) for b in scope.bindings.get(n, ())]
        own = loop is not None and any(loop in (s, *program.ancestors(s)) for s in drawn)
        lasting = not own if loop is not None else asked and name.startswith("self.")
        if network is not None and lasting and not _copied_later(program, name, statement):
            yield value, f"{name} refers to the live weights: training continues to change them"


def _live(program: Program, value: ast.expr | None, scope: Scope, alias: bool) -> ast.expr | None:
    """The network whose very tensors a value holds; `alias`: it may be the network itself."""
    if isinstance(value, ast.Call) and last_name(value.func) in ("dict", "copy", "OrderedDict"):
        return _live(program, value.args[0] if value.args else receiver(value), scope, False)
    if method(value) == "state_dict":
        return receiver(value) if is_network_with_state(program, receiver(value), scope) else None
    alias &= isinstance(value, ast.Name) and not {"best", "state"} & words(value.id)
    return value if alias and is_model(program, value, scope) else None


def _copied_later(program: Program, name: str, statement: ast.Assign) -> bool:
    """Whether it is copied elsewhere, or used in the block alone that sets it, to be saved."""
    block, places = program.parents[statement], places_of(program, name)
    read = [program.ancestors(n) for n in places if isinstance(n.ctx, ast.Load)]
    copied = {"deepcopy", "clone"} & {last_name(getattr(a, "func", None)) for r in read for a in r}
    alone = bool(read) and isinstance(block, ast.If) and all(block in above for above in read)
    return alone or bool(copied)


@rule("BH212")
def best_in_wrong_direction(subject: Subject) -> Iterator[Place]:
    """A greater loss or smaller accuracy is kept; or a flag contradicts its `max`, or is late."""
    program = subject.program
    for choice in choices(program):
        node, score, test = choice.node, choice.score, ast.unparse(choice.test)
        if isinstance(node, ast.If):
            wanted = _direction(program, choice)
            if keeps_weights(node) and wanted not in ("", choice.keeps):
                told = f"a {'greater' if wanted == 'max' else 'smaller'} {ast.unparse(score)}"
                yield node, f"weights are kept where {test}, and {told} is the better one"
        elif choice.becomes is not None and _is_extreme(choice.becomes.value):
            kept, now = last_name(choice.becomes.value.func), ast.unparse(choice.becomes)
            late = node.lineno > choice.becomes.lineno
            if late and kept == choice.keeps and isinstance(choice.test.ops[0], (ast.Lt, ast.Gt)):
                yield node, f"{now} comes before {test}, which therefore never holds"
            elif not late and kept != choice.keeps:
                yield node, f"{test} holds for what {now} does not call the best"


def _direction(program: Program, choice: Choice) -> str:
    """`max` where a greater score is better by all names, `min` where a smaller one is."""
    name = entry(choice.score) or last_name(choice.score)
    found = words(name.replace("/", "_")) | words(last_name(choice.best))
    for bound in program.bindings_of(choice.score, program.scope(choice.node)):
        value = bound.value.func if isinstance(bound.value, ast.Call) else bound.value
        found |= {w for n in identifiers(value) for w in words(n)}
        found |= (
            {"negative"} if isinstance(getattr(value, "op", None), (ast.USub, ast.Sub)) else set()
        )
    return "" if found & HARM else direction(found)


@rule("BH213")
def best_weights_not_restored(subject: Subject) -> Iterator[Place]:
    """The best weights are put into a name that nothing reads, or into a file before a test."""
    program = subject.program
    for name, value, statement in given([program.tree]):
        if any(method(c) == "state_dict" for c in calls(value)):
            ifs = [a for a in program.ancestors(statement) if isinstance(a, ast.If)]
            asked = any(nodes_of(a.test, ast.Compare) for a in ifs)
            read = [n for n in places_of(program, name) if isinstance(n.ctx, ast.Load)]
            read = [n for n in read if not isinstance(program.parents[n], ast.Compare)]
            local = name.isidentifier() and name.strip("_")
            if local and asked and not read and innermost_loop(program, statement) is not None:
                yield statement, f"{name} holds the best weights, and nothing loads them"
    for choice in choices(program):
        loops = [a for a in program.ancestors(choice.node) if isinstance(a, LOOPS)]
        saves = any("save" in words(last_name(c.func)) for c in calls(choice.node))
        call = _scored_unloaded(program, loops[-1]) if loops and saves else None
        if call is not None and keeps_weights(choice.node):
            saved = f"the best ones, saved in line {choice.node.lineno}, are not loaded before"
            yield call, f"test rows are scored by the weights of the last step: {saved}"


def _scored_unloaded(program: Program, loop: ast.AST) -> ast.Call | None:
    """The call behind a loop that gets a network and test rows, if none before loads weights."""
    scope, end = program.scope(loop), getattr(loop, "end_lineno", 0)
    after = [c for c in own_nodes_of(scope.node, ast.Call) if c.lineno > end]
    for call in sorted(after, key=lambda c: (c.lineno, -c.col_offset)):
        inner = [c for own in program.callees(call, scope) for c in calls(own.node)]
        if any(LOADS & words(last_name(c.func)) for c in (call, *inner)):
            return None
        names = [last_name(a) for a in call.args]
        if any(side_of(n) == "test" for n in names) and any(WEIGHTS & words(n) for n in names):
            return call
    return None


@rule("BH215")
def patience_never_reset(subject: Subject) -> Iterator[Place]:
    """A counter of epochs that did not improve, which is looked at, gets no other value."""
    program = subject.program
    for step in program.nodes[ast.AugAssign]:
        counter, scope, around = dotted(step.target), program.scope(step), program.ancestors(step)
        own = counter.startswith("self.")
        branch = next((a for a in around if isinstance(a, ast.If)), None)
        within = scope.owner if own else innermost_loop(program, step)
        named = WAITING & words(last_name(step.target)) and constant(step.value) == 1
        if branch is None or within is None or not named or not compared(branch):
            continue
        bound = [b for b in program.bindings_of(step.target, scope) if b.how != "augment"]
        if own:
            reset = any(b.scope.name != "__init__" for b in bound)
        else:
            reset = any(within in program.ancestors(b.statement) for b in bound)
        asked = [c for c in nodes_of(within, ast.Compare) if counter in map(dotted, walk(c))]
        early = any(STOPS_EARLY & words(n) for n in identifiers(within))
        if asked and early and not reset and counter not in map(dotted, walk(branch.test)):
            yield step, f"{counter} is never reset to 0", within


@rule("BH218")
def best_never_updated(subject: Subject) -> Iterator[Place]:
    """Where weights are kept, a score is compared with a first bound that is never updated."""
    program = subject.program
    for node in program.nodes[ast.If]:
        loops = [a for a in program.ancestors(node) if isinstance(a, LOOPS)]
        for test, bound, score in compared(node) if loops and keeps_weights(node) else ():
            made = program.bindings_of(bound, program.scope(node))
            if len(made) != 1 or made[0].how != "assign" or not isinstance(bound, ast.Name):
                continue
            before = loops[-1] not in program.ancestors(made[0].statement)
            value = made[0].value
            texts = {str(constant(n)).lstrip("+-") for n in walk(value)} | identifiers(value)
            first = isinstance(constant(value), (int, float)) and BEST & words(bound.id)
            shared = made[0].scope is not program.scope(node) or isinstance(value, ast.IfExp)
            if before and not shared and constant(score) is None and (first or "inf" in texts):
                told = f"{ast.unparse(test)} holds in every epoch that beats it"
                yield node, f"{bound.id} keeps its first value: {told}"
