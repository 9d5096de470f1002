"""Rules BH237, BH238, BH242."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.sides import all_names, elements_of, side_of, targets_of
from training.review.syntax import calls, dotted, last_name, nodes_of, receiver, walk, words
from training.review.trace import Event
from training.review.values import loss_calls

MEASURES = {
    "evaluate", "evaluation", "eval", "accuracy", "acc", "score", "scores", "metrics", "metric",
    "test", "validate", "loss", "error", "auc", "auroc", "f1", "r2",
}  # fmt: skip
MEASURES |= {
    "rmse",
    "mae",
    "mse",
    "report",
    "measure",
    "assess",
    "perplexity",
    "iou",
    "dice",
    "concordance",
    "deviance",
}
FEW_WORDS = 4
LOADERS = {
    "loader", "loaders", "dl", "dataloader", "iter", "iterator", "batches", "data", "set", "ds",
    "dataset", "it", "generator", "gen",
}  # fmt: skip


@rule("BH237")
def score_under_another_name(subject: Subject) -> Iterator[Place]:
    """A measure of arguments of one side is kept or printed under the name of another, whose rows
    the file has too; test rows may be called held-out.
    """
    program = subject.program
    for call in program.all_calls:
        spoken = words(last_name(call.func))
        if not MEASURES & spoken or "split" in spoken:
            continue
        given = {
            side_of(last_name(a))
            for a in call.args
            if isinstance(a, (ast.Name, ast.Attribute, ast.Starred))
        } - {""}
        given |= {
            side_of(str(a.slice.value))
            for a in call.args
            if isinstance(a, ast.Subscript) and isinstance(a.slice, ast.Constant)
        } - {""}
        if len(given) != 1 or any("evaluation" in words(last_name(a)) for a in call.args):
            continue  # which rows are for evaluation is not said
        of, (called, name) = next(iter(given)), _called(program, call)
        if (
            called
            and called != of
            and (called, of) != ("val", "test")
            and side_of(last_name(call.func)) != of
            and any(
                side_of(n) == called and _names_rows(n)
                for n in all_names(program) - set(targets_of(program, call))
            )
        ):
            yield (
                call,
                (
                    f"{name} is measured on {'validation' if of == 'val' else of} rows:"
                    f" {ast.unparse(call)}"
                ),
            )


def _names_rows(name: str) -> bool:
    """Whether a name may be that of rows: it says so, or is no more than the name of a side."""
    return bool(LOADERS & words(name)) or len(words(name)) == 1


def _called(program: Program, call: ast.Call) -> tuple[str, str]:
    """The side that a result's name, its key or the words printed beside it speak of, and these;
    empty where they speak of none or several.
    """
    above = program.parents[call]
    while isinstance(above, ast.Starred) or (
        isinstance(above, ast.Call)
        and last_name(above.func) in ("exp", "sqrt", "float", "round", "abs")
    ):
        above = program.parents[above]  # `math.exp(evaluate(model, test))`
    if isinstance(above, ast.Dict):
        key = next((k for k, v in zip(above.keys, above.values, strict=True) if v is call), None)
        return (
            (side_of(str(key.value)), repr(key.value))
            if isinstance(key, ast.Constant)
            else ("", "")
        )
    if isinstance(above, ast.Assign) and len(above.targets) == 1:
        names = [last_name(e) for e in elements_of(above.targets[0])]
        sides = {side_of(n) for n in names} - {""}
        return (sides.pop(), next(n for n in names if side_of(n))) if len(sides) == 1 else ("", "")
    if isinstance(above, ast.FormattedValue):
        above = program.parents[program.parents[above]]
    if (
        isinstance(above, ast.Call)
        and isinstance(above.func, ast.Name)
        and above.func.id == "print"
    ):
        said = [
            n.value
            for a in above.args
            for n in nodes_of(a, ast.Constant)
            if isinstance(n.value, str)
        ]
        said_words = "".join(c if c.isalnum() else " " for text in said for c in f"{text} ").split()
        said_words = [
            w
            for before, w in zip(["", *said_words], said_words, strict=False)
            if before.lower() not in ("before", "after")
        ]  # training
        spoken = (
            {side_of(w) for w in said_words} - {""} if len(said_words) <= FEW_WORDS else set()
        )  # a sentence speaks of other things, too
        measured = [c for a in above.args for c in calls(a) if MEASURES & words(last_name(c.func))]
        return (
            (spoken.pop(), f"what is printed as {' '.join(said).strip()!r}")
            if len(spoken) == 1 and len(measured) == 1
            else ("", "")
        )
    return "", ""


@rule("BH238")
def trained_on_held_out(subject: Subject) -> Iterator[Place]:
    """Every loop with a backward pass goes over something named after held-out rows, and a name of
    the same kind of the train rows is there.
    """
    program = subject.program
    yield from _tuned_on_test(program)
    found: list[tuple[Event, str]] = []
    for trace in subject.traces:
        stepped = {loop.node for e in trace if e.kind == "step" for loop in e.loops}
        for event in (e for e in trace if e.kind == "backward"):
            names = {
                n
                for loop in event.loops
                if loop.node in stepped
                for n in _gone_over(event, loop.node, loop.scope)
            }
            if any(side_of(n) == "train" for n in names):
                return
            found += [(event, n) for n in names if side_of(n) in ("val", "test") and _names_rows(n)]
    train = {n for n in all_names(program) if side_of(n) == "train"} if found else set()
    for event, name in found[:1]:
        kind = LOADERS & words(name)
        if any((kind & words(n)) if kind else len(words(n)) == 1 for n in train):
            yield (
                event.node,
                f"the optimizer learns from {name}, and nothing learns from the train rows",
            )


def _tuned_on_test(program: Program) -> Iterator[Place]:
    """A loss of labels that are named after test rows alone goes backward into an optimizer: a
    temperature that is chosen by what it is to be measured on.
    """
    if "step" not in program.called_names or not any(
        side_of(n) == "test" for n in program.identifiers
    ):
        return
    if {"inner", "outer", "meta", "support", "query", "episode", "maml"} & {
        w for n in program.identifiers for w in words(n)
    }:
        return  # a test set within each task is learned from
    for found in loss_calls(program):
        target = (
            last_name(found.target) if isinstance(found.target, (ast.Name, ast.Attribute)) else ""
        )
        if (
            side_of(target) != "test"
            or {"train", "time"} & words(target)
            or target in found.scope.parameters
        ):
            continue
        names = {last_name(t) for t in getattr(program.statement(found.call), "targets", ())}
        backward = [
            c
            for c in program.methods_of("backward")
            if program.scope(c) is found.scope and last_name(receiver(c)) in names
        ]
        if backward:
            yield found.call, f"the optimizer learns from {target}, the labels that are to test it"


def _gone_over(event: Event, node: ast.AST, scope: object) -> Iterator[str]:
    """What a loop goes over, by its name in the outermost caller that passes it."""
    frame = event.frame
    while frame.scope is not scope and frame.caller is not None:
        frame = frame.caller
    for part in walk(getattr(node, "iter", ast.Pass())):
        if isinstance(part, (ast.Name, ast.Attribute)):
            key = frame.key(part)
            yield key.rpartition(":")[2].rpartition(".")[2] if dotted(part) else ""


@rule("BH242")
def rows_unread(subject: Subject) -> Iterator[Place]:
    """In one function test rows are bound and never read, and the validation rows are given to a
    call in a loop and to another after it.
    """
    program = subject.program
    for scope in program.scopes:
        if not {"val", "test"} <= {side_of(n) for n in scope.bindings}:
            continue
        loaders = {
            n
            for n in scope.bindings
            if {"loader", "dl", "dataloader", "iter", "batches"} & words(n) or _is_table(scope, n)
        }
        held = {n for n in loaders if side_of(n) == "val"}
        if not held or not any(side_of(n) == "test" for n in loaders):
            continue
        read = {n.id for n in nodes_of(scope.node, ast.Name) if isinstance(n.ctx, ast.Load)}
        given = [
            (c, a.id)
            for c in calls(scope.node)
            for a in c.args
            if isinstance(a, ast.Name) and a.id in held
        ]
        looped = {
            c: n
            for c, n in given
            if any(isinstance(a, (ast.For, ast.While)) for a in program.ancestors(c))
        }
        last = next(
            (
                c
                for c, n in reversed(given)
                if c not in looped
                and any(m == n and d.lineno < c.lineno for d, m in looped.items())
            ),
            None,
        )
        unread = sorted(n for n in loaders if side_of(n) == "test" and n not in read)
        if last is not None and unread:
            yield (
                last,
                (
                    f"{unread[0]} is made and read by nothing: the last score is of the validation"
                    " rows again"
                ),
            )


def _is_table(scope: Scope, name: str) -> bool:
    """Whether a name is that of a side and no more, `test` or `val_rows`, and a call gave it beside
    those of other sides.
    """
    bound = scope.bindings[name]
    plain = (
        bool(side_of(name))
        and len(words(name) - {"set", "ds", "data", "rows", "df", "frame", "part", "split"}) == 1
    )
    return (
        plain
        and len(bound) == 1
        and bound[0].index is not None
        and isinstance(bound[0].value, ast.Call)
    )
