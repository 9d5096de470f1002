"""Rules BH212, BH213, BH215, BH216, BH218."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from training.review.direction import direction
from training.review.findings import Place, Subject, rule
from training.review.keepers import becomes_best, tests_of
from training.review.kinds import looks_held_out
from training.review.lookups import attributes_of, names_of
from training.review.program import Binding, Program, Scope
from training.review.sides import side_of
from training.review.syntax import (
    calls,
    constant,
    dotted,
    identifiers,
    last_name,
    method,
    names_read,
    nodes_of,
    once,
    own_nodes,
    receiver,
    walk,
    words,
)

WAITING = {
    "patience", "wait", "waited", "waiting", "bad", "stale", "counter", "strikes", "since",
    "improvement", "stall", "stalled", "worse",
}  # fmt: skip
STOPS_EARLY = {
    "patience",
    "best",
    "improve",
    "improved",
    "improvement",
    "early",
    "lowest",
    "highest",
    "top",
}
PUTS_TOGETHER = {
    "DataLoader",
    "ConcatDataset",
    "TensorDataset",
    "cat",
    "concatenate",
    "concat",
    "vstack",
    "hstack",
    "append",
}

OF_WEIGHTS = {
    "model", "net", "network", "weights", "state", "checkpoint", "ckpt", "params", "parameters",
    "student", "teacher", "encoder", "module", "policy", "actor", "generator", "classifier",
}  # fmt: skip
FINAL = {"final", "deployed", "deployment", "production", "refit"}


@rule("BH212")
def best_in_wrong_direction(subject: Subject) -> Iterator[Place]:
    """A score becomes the best so far where it is greater, by its name or making one that should
    fall, or the other way round; weights are kept there.
    """
    program = subject.program
    yield from _flags(program)
    for node in _keeping(program):
        scope = program.scope(node)
        for test in tests_of(node):
            pair = becomes_best(program, node, test, scope)
            if (
                pair is None
                or not isinstance(test, ast.Compare)
                or not _becomes_there(program, node, pair[1], scope)
                or not isinstance(test.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
            ):
                continue
            score = pair[0]
            behind = [score, *(b.value for b in program.bindings_of(score, scope))]
            if {w for part in behind for n in identifiers(part) for w in words(n)} & {
                "victim",
                "attack",
                "adversarial",
                "fooling",
            }:
                continue
            kept = (
                "max"
                if isinstance(test.ops[0], (ast.Gt, ast.GtE)) == (score is test.left)
                else "min"
            )
            if (
                wanted := direction(program, score, scope) or direction(program, pair[1], scope)
            ) and wanted != kept:
                better = "smaller" if wanted == "min" else "greater"
                yield (
                    node,
                    (
                        f"weights are kept where {ast.unparse(test)}, and a {better}"
                        f" {ast.unparse(score)} is the better one"
                    ),
                )


def _becomes_there(program: Program, node: ast.If, best: ast.expr, scope: Scope) -> bool:
    """Whether the best so far gets its new value where the condition holds, and not where it does
    not.
    """
    otherwise = {n for s in node.orelse for n in walk(s)}
    inside = [b for b in program.bindings_of(best, scope) if node in program.ancestors(b.statement)]
    return not inside or any(b.statement not in otherwise for b in inside)


@once
def _keeping(program: Program) -> tuple[ast.If, ...]:
    return tuple(n for n in program.nodes[ast.If] if _keeps_weights(n))


def _keeps_weights(node: ast.If) -> bool:
    """Whether weights, a network or what is called so are copied or saved; not rows."""
    asked = [c for s in node.body for c in calls(s)]
    named = (
        n
        for c in asked
        if last_name(c.func) in ("deepcopy", "save")
        for n in (*(i for a in c.args[:1] for i in identifiers(a)), dotted(receiver(c)))
    )
    return any(method(c) == "state_dict" for c in asked) or any(
        words(n) & OF_WEIGHTS for n in named
    )


def _flags(program: Program) -> Iterator[Place]:
    """`is_best = loss > best` beside `best = min(best, loss)`, and a best that has its new value
    when it is compared.
    """
    blocks = (
        block
        for kind in (ast.For, ast.While, ast.FunctionDef, ast.With, ast.If)
        for n in program.nodes[kind]
        for block in (getattr(n, "body", None),)
    )
    for flag in (f for block in blocks if isinstance(block, list) for f in flags_of(block)):
        test, now = ast.unparse(flag.told.value), ast.unparse(flag.updated)
        if (
            flag.late
            and isinstance(flag.told.value, ast.Compare)
            and isinstance(flag.told.value.ops[0], (ast.Lt, ast.Gt))
            and flag.agrees
        ):
            yield (
                flag.told,
                f"{now} stands before {flag.name} = {test}, which therefore never holds",
            )
        elif not flag.agrees and not flag.late:
            yield (
                flag.told,
                (
                    f"{flag.name} holds where {test}, and {now} keeps the {flag.kept}imum: what is"
                    " saved are the other weights"
                ),
            )


@rule("BH213")
def best_weights_not_restored(subject: Subject) -> Iterator[Place]:
    """In a loop and under a condition a name gets a network's weights, or an attribute does, and
    nothing in the file reads it.
    """
    program = subject.program
    yield from _saved_and_left(program)
    yield from _last_for_best(program)
    states = {
        node
        for c in program.methods_of("state_dict")
        if not c.args
        for node in (c, *program.ancestors(c))
    }
    if not states:
        return
    for scope in program.scopes:
        for name, bindings in scope.bindings.items():
            kept = [b for b in bindings if _is_state(b, states) and _chosen(program, b)]
            if kept and name.strip("_") and not _is_read(program, names_of(program, name)):
                yield (
                    kept[0].statement,
                    f"{name} holds the best weights, and nothing loads them",
                    kept[0].statement,
                )
    for owner, attributes in program.attributes.items():
        for name, bindings in attributes.items():
            kept = [b for b in bindings if _is_state(b, states) and _compared(program, b)]
            if (
                not kept
                or name in ("getattr", "vars")
                or _is_read(program, attributes_of(program, name))
                or _escapes(program, owner)
            ):
                continue
            if any(
                program.call_sites[m]
                for m in program.methods[owner].values()
                if m.name == "__init__"
            ):
                yield (
                    kept[0].statement,
                    f"self.{name} holds the best weights, and nothing loads them",
                    kept[0].statement,
                )


def _is_read(program: Program, places: Sequence[ast.Name | ast.Attribute]) -> bool:
    """Whether what stands at one of these places is read, and not only asked for."""
    return any(isinstance(n.ctx, ast.Load) and not _is_there(program, n) for n in places)


def _is_there(program: Program, node: ast.expr) -> bool:
    """Whether it is only asked whether there is something, `best is None`."""
    above = program.parents[node]
    return (
        isinstance(above, ast.Compare)
        and isinstance(above.ops[0], (ast.Is, ast.IsNot))
        and isinstance(above.comparators[0], ast.Constant)
    )


def _saved_and_left(program: Program) -> Iterator[Place]:
    """In a loop the best weights go to a file; behind it test rows are scored, and the file is not
    read before.
    """
    for node in _keeping(program):
        scope = program.scope(node)
        loops = [a for a in program.ancestors(node) if isinstance(a, (ast.For, ast.While))]
        saves = any("save" in words(last_name(c.func)) for s in node.body for c in calls(s))
        if (
            not loops
            or not saves
            or not any(becomes_best(program, node, test, scope) for test in tests_of(node))
        ):
            continue
        after = [
            c
            for c in calls(scope.node)
            if c.lineno > (loops[-1].end_lineno or 0) and program.scope(c) is scope
        ]
        loads = [c.lineno for c in after if _loads(program, c, scope)]
        for call in after:
            given = [
                a.id
                for a in (*call.args, *(k.value for k in call.keywords))
                if isinstance(a, ast.Name)
            ]
            scored = any(side_of(n) == "test" for n in given) and any(
                words(n) & OF_WEIGHTS for n in given
            )
            if (
                scored
                and not any(line <= call.lineno for line in loads)
                and not _loads(program, call, scope)
            ):
                yield (
                    call,
                    (
                        "test rows are scored by the weights of the last step: the best ones,"
                        f" saved in line {node.lineno}, are not loaded before"
                    ),
                    node,
                )
                break


def _last_for_best(program: Program) -> Iterator[Place]:
    """`best.pt` is written on a condition and read by nobody, and test rows are scored by what
    `last.pt` holds.
    """
    if not any(
        isinstance(n.value, str) and "best" in n.value.lower() for n in program.nodes[ast.Constant]
    ):
        return
    saves = [
        c
        for c in program.all_calls
        if "save" in words(last_name(c.func))
        and "best" in _texts(c)
        and any(isinstance(a, ast.If) for a in program.ancestors(c))
    ]
    loads = [c for c in program.calls_of("load") if c.args]
    if not saves or any(
        "best" in _texts(c) or any("best" in words(n) for n in identifiers(c)) for c in loads
    ):
        return
    for load in (c for c in loads if _texts(c) & {"last", "latest", "final"}):
        scope = program.scope(load)
        resumes = any(
            isinstance(n, (ast.For, ast.While)) and n.lineno > load.lineno
            for n in own_nodes(scope.node)
        )
        after = [c for c in calls(scope.node) if c.lineno > load.lineno]
        if not resumes and any(
            side_of(a.id) == "test" for c in after for a in c.args if isinstance(a, ast.Name)
        ):
            yield (
                load,
                (
                    "test rows are scored by the last weights: the best ones, saved in line"
                    f" {saves[0].lineno}, are read by nobody"
                ),
            )


def _texts(call: ast.Call) -> set[str]:
    """The words of the texts in a call."""
    return {
        w
        for n in nodes_of(call, ast.Constant)
        if isinstance(n.value, str)
        for w in words(n.value.replace(".", "_").replace("/", "_"))
    }


def _loads(program: Program, call: ast.Call, scope: Scope, depth: int = 2) -> bool:
    """Whether a call reads weights back, itself or by a function of the file; of those out of sight
    their names tell.
    """
    if {"load", "restore", "reload", "swap", "pretrained"} & words(last_name(call.func)):
        return True
    return depth > 0 and any(
        _loads(program, c, own, depth - 1)
        for own in program.callees(call, scope)
        for c in calls(own.node)
    )


def _escapes(program: Program, owner: ast.ClassDef) -> bool:
    """Whether an object of a class is returned from where it is made."""
    for call in program.calls_of(owner.name):
        statement, scope = program.statement(call), program.scope(call)
        names = {n.id for n in nodes_of(statement, ast.Name) if isinstance(n.ctx, ast.Store)}
        given_back = [n.value for n in nodes_of(scope.node, ast.Return) if n.value is not None]
        if isinstance(statement, ast.Return) or any(
            isinstance(v, (ast.Name, ast.Tuple)) and names_read(v) & names for v in given_back
        ):
            return True
    return False


def _is_state(binding: Binding, states: set[ast.AST]) -> bool:
    """Whether a value is a copy of a network's weights; `states`: what asks for them, and all that
    this stands in.
    """
    return binding.how == "assign" and binding.value in states


def _chosen(program: Program, binding: Binding) -> bool:
    return _compared(program, binding) and any(
        isinstance(a, (ast.For, ast.While)) for a in program.ancestors(binding.statement)
    )


def _compared(program: Program, binding: Binding) -> bool:
    """Whether a comparison decides about it."""
    return any(
        isinstance(a, ast.If) and bool(nodes_of(a.test, ast.Compare))
        for a in program.ancestors(binding.statement)
    )


@rule("BH215")
def patience_never_reset(subject: Subject) -> Iterator[Place]:
    """A counter that goes up where a score did not improve ends the loop, and is given no other
    value there; of an object, in no method but `__init__`.
    """
    program = subject.program
    yield from _never_counts(program)
    for step in program.nodes[ast.AugAssign]:
        if not (isinstance(step.op, ast.Add) and constant(step.value) == 1):
            continue
        counter, scope = dotted(step.target), program.scope(step)
        branch = next((a for a in program.ancestors(step) if isinstance(a, ast.If)), None)
        if (
            not set(words(counter.rpartition(".")[2])) & WAITING
            or branch is None
            or not any(_of_scores(n) for n in walk(branch.test))
        ):
            continue
        if counter.startswith("self."):
            within: ast.AST | None = scope.owner
            others = [
                b
                for b in program.bindings_of(step.target, scope)
                if b.statement is not step and b.scope.name != "__init__" and not _restores(b.scope)
            ]
        else:
            within = next(
                (a for a in program.ancestors(step) if isinstance(a, (ast.For, ast.While))), None
            )
            inside = {id(n) for n in walk(within)} if within is not None else set()
            others = [
                b
                for b in scope.bindings.get(counter, ())
                if b.statement is not step
                and id(b.statement) in inside
                and dotted(b.value) != counter
            ]
        if (
            within is not None
            and not others
            and _ends(within, counter)
            and {w for n in identifiers(within) for w in words(n)} & STOPS_EARLY
        ):
            yield step, f"{counter} is never set back to 0", within


def _never_counts(program: Program) -> Iterator[Place]:
    """A counter that is compared with the patience is set to numbers alone, below what is asked
    for: `waited = 1` where `waited += 1` is meant.
    """
    for node in program.nodes[ast.If]:
        test = node.test if isinstance(node.test, ast.Compare) else None
        if (
            test is None
            or not isinstance(test.left, ast.Name)
            or not isinstance(test.ops[0], (ast.Gt, ast.GtE))
            or "patience" not in words(last_name(test.comparators[0]))
        ):
            continue
        bound = program.scope(node).bindings.get(test.left.id, ())
        looped = any(isinstance(a, (ast.For, ast.While)) for a in program.ancestors(node))
        if (
            len(bound) > 1
            and looped
            and all(
                b.how == "assign" and b.index is None and constant(b.value) in (0, 1) for b in bound
            )
            and any(constant(b.value) == 1 for b in bound)
        ):
            yield (
                next(b.statement for b in bound if constant(b.value) == 1),
                f"{test.left.id} is set to 1 and never counts up",
                node,
            )


def _of_scores(node: ast.AST) -> bool:
    """Whether it compares two values; `loss != loss` asks for NaN."""
    return isinstance(node, ast.Compare) and ast.dump(node.left) != ast.dump(node.comparators[0])


def _restores(scope: Scope) -> bool:
    """Whether a function goes on from a checkpoint."""
    return bool({"resume", "restore", "load"} & words(scope.name)) and "load" in {
        last_name(c.func) for c in calls(scope.node)
    }


def _ends(within: ast.AST, counter: str) -> bool:
    """Whether a comparison with the counter leads to a stop: a `break`, a return, a flag."""
    for node in walk(within):
        compared = isinstance(node, (ast.If, ast.Return)) and any(
            counter in {dotted(m) for m in walk(n)}
            for n in nodes_of(node.test if isinstance(node, ast.If) else node, ast.Compare)
        )
        if compared and (
            isinstance(node, ast.Return)
            or any(
                isinstance(s, (ast.Break, ast.Return, ast.Raise, ast.Assign))
                for s in getattr(node, "body", ())
            )
        ):
            return True
    return False


@rule("BH216")
def rows_trained_on(subject: Subject) -> Iterator[Place]:
    """Something that is named after train rows and after nothing else is made of data that is named
    after test rows; or scikit-learn is fitted with labels of test.
    """
    program = subject.program
    for fit in program.methods_of("fit", "fit_transform", "partial_fit"):
        if len(fit.args) > 1 and not FINAL & words(program.scope(fit).name):
            said = words(last_name(fit.args[1]))
            learner = any(
                o.name.startswith("sklearn.")
                for o in program.origins(receiver(fit), program.scope(fit))
            )
            if {"test", "tst"} & said and not {"train", "val", "ab"} & said and learner:
                yield (
                    fit,
                    f"it learns from {last_name(fit.args[1])}, the labels that were to test it",
                )
    for scope in program.scopes:
        for name, bindings in scope.bindings.items():
            if (
                "train" not in words(name)
                or looks_held_out(name)
                or words(name) & {"labels", "vocab", "columns", "cols", "index", "all"}
            ):
                continue
            if words(scope.name) & FINAL or words(name) & FINAL:
                continue
            for binding in bindings:
                call = binding.value
                if (
                    binding.how != "assign"
                    or not isinstance(call, ast.Call)
                    or last_name(call.func) not in PUTS_TOGETHER
                ):
                    continue
                of = {n for a in call.args for n in names_read(a)} - {
                    n for c in calls(call) for n in identifiers(c.func)
                }
                tested = sorted(
                    n
                    for n in of
                    if {"test", "testing", "tst"} & words(n) and not {"train", "ab"} & words(n)
                )
                if tested and any("train" in words(n) for n in of):
                    yield call, f"{name} is made of {tested[0]} as well"


@rule("BH218")
def best_never_updated(subject: Subject) -> Iterator[Place]:
    """Where weights are kept or patience is counted, a score is compared with an infinite bound, or
    one that is called the best, and nothing changes that bound afterwards.
    """
    program = subject.program
    keeping = set(_keeping(program))
    for node in program.nodes[ast.If]:
        if not (node in keeping or _counts_patience(node)):
            continue
        for test in tests_of(node):
            if (
                not isinstance(test, ast.Compare)
                or len(test.ops) != 1
                or not isinstance(test.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
            ):
                continue
            for bound, score in (
                (test.left, test.comparators[0]),
                (test.comparators[0], test.left),
            ):
                if _handed_to_base(program, node):
                    continue
                if (
                    _stays(program, node, bound)
                    and not isinstance(score, ast.Constant)
                    and constant(score) is None
                ):
                    yield (
                        node,
                        (
                            f"{ast.unparse(bound)} keeps its first value: {ast.unparse(test)} holds"
                            " in every round that beats it"
                        ),
                        node,
                    )


def _handed_to_base(program: Program, node: ast.If) -> bool:
    """Whether a method of a base class out of sight is called where the score is the best: it may
    keep it.
    """
    owner = program.scope(node).owner
    bases = [last_name(b) for b in owner.bases] if owner is not None else []
    asked = [
        c
        for s in node.body
        for c in calls(s)
        if dotted(c.func).startswith("self.") and dotted(c.func).count(".") == 1
    ]
    return any(b not in program.classes and b != "object" for b in bases) and any(
        not program.callees(c, program.scope(node)) for c in asked
    )


def _stays(program: Program, node: ast.If, bound: ast.expr) -> bool:
    """Whether a bound has a first value that any score beats, or is called the best, and no other
    one anywhere.
    """
    scope = program.scope(node)
    parts = [bound.left, bound.right] if isinstance(bound, ast.BinOp) else [bound]
    for part in parts:
        name = last_name(part) if isinstance(part, (ast.Name, ast.Attribute)) else ""
        if not name:
            continue
        given = [b for b in program.bindings_of(part, scope) if not _restores(b.scope)]
        if isinstance(part, ast.Name):
            loops = [a for a in program.ancestors(node) if isinstance(a, (ast.For, ast.While))]
            first = [b for b in given if not _read_back(b)]
            outside = bool(loops) and not any(
                loops[-1] in program.ancestors(b.statement) for b in given
            )
            given, alone = (
                first,
                len(first) == 1 and outside and all(b.scope is scope for b in given),
            )
        else:
            stored = [
                n
                for n in program.nodes[ast.Attribute]
                if n.attr == name
                and isinstance(n.ctx, (ast.Store, ast.Del))
                and not _restores(program.scope(n))
            ]
            set_elsewhere = (
                {"setattr", "__dict__"} & identifiers(scope.owner)
                if scope.owner is not None
                else {"unseen"}
            )
            alone = (
                len(given) == 1
                and len(stored) == 1
                and given[0].scope.name == "__init__"
                and not set_elsewhere
            )
        alone &= not any(
            (method(c) or "").endswith("_") and dotted(receiver(c)) == dotted(part)
            for c in program.all_calls
        )  # `best.copy_(loss)`
        if (
            alone
            and given[0].how == "assign"
            and given[0].index is None
            and _first_bound(given[0].value, name)
        ):
            return not any(
                name in s.names
                for s in (*program.nodes[ast.Global], *program.nodes[ast.Nonlocal])
                if isinstance(s, (ast.Global, ast.Nonlocal))
            )
    return False


def _read_back(binding: Binding) -> bool:
    """Whether a name is given what a file held under a key, to go on from."""
    return isinstance(binding.value, ast.Subscript) and isinstance(
        constant(binding.value.slice), str
    )


def _first_bound(value: ast.expr, name: str) -> bool:
    """Whether it is infinite, or a number or None under a name that speaks of the best."""
    if isinstance(value, ast.IfExp) or words(name) & {"lr", "rate"}:
        return False
    infinite = any(
        constant(n) in ("inf", "-inf", "+inf", "Infinity", "infinity") for n in walk(value)
    ) or last_name(value) in ("inf", "infty", "maxsize")
    infinite |= isinstance(value, ast.UnaryOp) and last_name(value.operand) in (
        "inf",
        "infty",
        "maxsize",
    )
    if isinstance(value, ast.UnaryOp) and isinstance(value.operand, ast.Call):
        value = value.operand
    number = isinstance(constant(value), (int, float)) or (
        isinstance(value, ast.Constant) and value.value is None
    )
    return infinite or (number and bool(words(name) & {"best", "lowest", "highest"}))


def _counts_patience(node: ast.If) -> bool:
    """Whether a counter of bad epochs is cleared where the score is better, and goes up where it is
    not.
    """
    raised = {
        dotted(n.target)
        for s in node.orelse
        for n in nodes_of(s, ast.AugAssign)
        if isinstance(n.op, ast.Add)
    }
    cleared = {
        dotted(t)
        for s in node.body
        for n in nodes_of(s, ast.Assign)
        if constant(n.value) == 0
        for t in n.targets
    }
    return bool(raised & cleared - {""})


BETTER = {"min": (ast.Lt, ast.LtE), "max": (ast.Gt, ast.GtE)}


@dataclass(frozen=True, eq=False)
class Flag:
    """`name = left op right` at `told`, and `best = min(best, score)` at `updated`, in one block;
    `kept` is `min` or `max`.
    """

    name: str
    told: ast.Assign
    updated: ast.Assign
    kept: str
    score: ast.expr

    @property
    def late(self) -> bool:
        """Whether the best has its new value before it is compared."""
        return self.told.lineno > self.updated.lineno

    @property
    def agrees(self) -> bool:
        """Whether the comparison holds where the best gets another value."""
        test = cast(ast.Compare, self.told.value)
        turned = ast.dump(test.left) != ast.dump(self.score)
        return isinstance(
            test.ops[0], BETTER[{"min": "max", "max": "min"}[self.kept] if turned else self.kept]
        )


def flags_of(block: list[ast.stmt]) -> list[Flag]:
    r"""The flags of a block of statements.

    >>> [(f.name, f.kept, f.late,
    ...     f.agrees) for f in flags_of(ast.parse("top = acc < best\nbest = max(acc, best)").body)]
    [('top', 'max', False, False)]
    """
    found = []
    updates = [(s, u) for s in block if isinstance(s, ast.Assign) and (u := _update(s)) is not None]
    for told in block if updates else ():
        if (
            not isinstance(told, ast.Assign)
            or len(told.targets) != 1
            or not isinstance(told.targets[0], ast.Name)
        ):
            continue
        test = told.value
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            continue
        sides = {ast.unparse(test.left), ast.unparse(test.comparators[0])}
        for updated, (kept, best, score) in updates:
            if sides == {best, ast.unparse(score)}:
                found.append(Flag(told.targets[0].id, told, updated, kept, score))
    return found


def _update(statement: ast.Assign) -> tuple[str, str, ast.expr] | None:
    """Of `best = min(best, score)` which of both it is, the best and the score."""
    value = statement.value
    if (
        not isinstance(value, ast.Call)
        or not isinstance(value.func, ast.Name)
        or value.func.id not in BETTER
        or len(value.args) != 2
        or value.keywords
    ):
        return None
    best = ast.unparse(statement.targets[0])
    others = [a for a in value.args if ast.unparse(a) != best]
    return (value.func.id, best, others[0]) if len(others) == 1 else None
