"""Rule BH219: only the last batch is scored."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_model
from training.review.program import Program, Scope
from training.review.provenance import is_loader
from training.review.syntax import (
    calls,
    children,
    constant,
    dotted,
    identifiers,
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

TRAINS = {"backward", "step", "manual_backward", "train_step", "training_step"}
QUIET = {"no_grad", "inference_mode", "eval", "set_grad_enabled"}


@rule("BH219")
def only_last_batch_counts(subject: Subject) -> Iterator[Place]:
    """In an evaluation a loop over batches sets names anew from a network, keeps nothing, and they
    are returned or measured after it; or of what it kept the last is taken.
    """
    program = subject.program
    for loop, scope in evaluating(program):
        made = _from_network(program, loop, scope)
        if _carried(loop, made):
            continue
        if made and is_loader(program, loop.iter, scope) and not _kept(program, loop, made):
            used = next(
                (n for n in _used_after(program, loop, scope, made) if _counted(program, n)), None
            )
            if used is not None:
                yield (
                    used,
                    (
                        f"{used.id} is of the last batch alone: each round of the loop in line"
                        f" {loop.lineno} sets it anew"
                    ),
                    loop,
                )
        for name, place in _sums_overwritten(program, loop, scope):
            yield (
                place,
                (
                    f"{name} begins at zero in line"
                    f" {program.statement(scope.bindings[name][0].statement).lineno}, and each"
                    " round sets it anew instead of adding to it"
                ),
                loop,
            )
        for call in _last_of_kept(program, loop, scope, made):
            yield (
                call,
                f"{ast.unparse(call)} is the value of the last batch, and nothing reads the others",
                loop,
            )


@once
def evaluating(program: Program) -> tuple[tuple[ast.For, Scope], ...]:
    """Loops that call a network and train nothing, in code that switches gradients or the train
    mode off; none that ends in its first round.
    """
    return tuple(_evaluating(program))


def _evaluating(program: Program) -> Iterator[tuple[ast.For, Scope]]:
    for loop in program.nodes[ast.For]:
        scope = program.scope(loop)
        quiet = QUIET & identifiers(scope.node) or any(
            QUIET & identifiers(a)
            for w in program.ancestors(loop)
            if isinstance(w, ast.With)
            for a in w.items
        )
        if not quiet:
            continue
        called = {method(c) or last_name(c.func) for c in calls(loop)}
        if (
            called & TRAINS
            or any("train" in words(n) or "fit" in words(n) for n in called)
            or scope.name in ("forward", "__iter__")
        ):
            continue
        ends = any(isinstance(s, (ast.Break, ast.Return)) for s in loop.body) or any(
            isinstance(n, (ast.Yield, ast.YieldFrom)) for n in walk(loop)
        )
        if not ends and any(
            is_model(program, c.func, scope) and not program.resolve(c.func) for c in calls(loop)
        ):
            yield loop, scope


def _statements(loop: ast.For) -> Iterator[ast.stmt]:
    """The statements of a loop that every round runs, those of `with` included."""
    pending = list(loop.body)
    while pending:
        statement = pending.pop(0)
        if isinstance(statement, ast.With):
            pending = [*statement.body, *pending]
        else:
            yield statement


def _from_network(program: Program, loop: ast.For, scope: Scope) -> dict[str, ast.stmt]:
    """The names that each round sets to something that a network gave, and where."""
    found: dict[str, ast.stmt] = {}
    for statement in _statements(loop):
        if not isinstance(statement, ast.Assign):
            continue
        forward = any(
            is_model(program, c.func, scope) and not program.resolve(c.func)
            for c in calls(statement.value)
        )
        if forward or names_read(statement.value) & found.keys():
            stored = {
                n.id
                for t in statement.targets
                for n in nodes_of(t, ast.Name)
                if isinstance(n.ctx, ast.Store)
            }
            found |= {n: found.get(n, statement) for n in stored}
    return found


def _carried(loop: ast.For, made: dict[str, ast.stmt]) -> bool:
    """Whether a round reads what the one before left: states, generated tokens, sums."""
    for name, first in made.items():
        reads = [
            n
            for s in _statements(loop)
            for n in nodes_of(s, ast.Name)
            if n.id == name and isinstance(n.ctx, ast.Load)
        ]
        if any(n.lineno <= (first.end_lineno or first.lineno) for n in reads):
            return True
    return False


def _kept(program: Program, loop: ast.For, made: dict[str, ast.stmt]) -> bool:
    """Whether the loop hands on anything that a network gave, other than to a name that the next
    round sets anew.
    """
    inner = [s for s in walk(loop) if isinstance(s, ast.stmt) and s is not loop]
    for statement in inner:
        if isinstance(statement, ast.Assign) and all(
            isinstance(t, (ast.Name, ast.Tuple)) for t in statement.targets
        ):
            forwarded = any(
                isinstance(n, (ast.Attribute, ast.Subscript)) and isinstance(n.ctx, ast.Store)
                for t in statement.targets
                for n in walk(t)
            )
            if not forwarded and statement in list(_statements(loop)):
                continue
        own = [e for e in children(statement) if isinstance(e, ast.expr)]
        if (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Call)
            and last_name(statement.value.func) == "print"
        ):
            continue
        if any(
            names_read(e) & made.keys()
            or any(is_model(program, c.func, program.scope(c)) for c in calls(e))
            for e in own
            if isinstance(e, ast.expr)
        ):
            return True
    return False


def _used_after(
    program: Program, loop: ast.For, scope: Scope, made: dict[str, ast.stmt]
) -> Iterator[ast.Name]:
    """Each reading of such a name after the loop, before anything else is bound to it."""
    end = loop.end_lineno or loop.lineno
    for node in own_nodes_of(scope.node, ast.Name):
        if node.id in made and isinstance(node.ctx, ast.Load) and node.lineno > end:
            bound = [program.statement(b.statement).lineno for b in scope.bindings.get(node.id, ())]
            if not any(end < line < node.lineno for line in bound):
                yield node


def _counted(program: Program, name: ast.Name) -> bool:
    """Whether a value is returned, or given to a metric or compared; its shape is the same of all
    batches.
    """
    around = program.ancestors(name)
    if isinstance(program.parents[name], ast.Attribute) and getattr(
        program.parents[name], "attr", ""
    ) in ("shape", "ndim", "dtype", "device"):
        return False
    return any(
        isinstance(a, (ast.Return, ast.Compare))
        or (
            isinstance(a, ast.Call)
            and program.resolve(a.func).startswith(("sklearn.metrics.", "torchmetrics."))
        )
        for a in around
    )


def _sums_overwritten(
    program: Program, loop: ast.For, scope: Scope
) -> Iterator[tuple[str, ast.stmt]]:
    """Names that are 0 before the loop, set by every round and read behind it alone: `loss = …`
    where `loss += …` was meant.
    """
    made = _from_network(program, loop, scope)
    for name, statement in made.items():
        bound = scope.bindings.get(name, [])
        zero = (
            len(bound) == 2
            and program.statement(bound[0].statement).lineno < loop.lineno
            and type(constant(bound[0].value)) in (int, float)
            and not constant(bound[0].value)
        )
        read = [n for n in nodes_of(loop, ast.Name) if n.id == name and isinstance(n.ctx, ast.Load)]
        beside = any(
            isinstance(s, ast.AugAssign) and isinstance(s.op, ast.Add) for s in _statements(loop)
        )
        if (
            zero
            and beside
            and not read
            and statement in list(_statements(loop))
            and any(
                _counted(program, n) for n in _used_after(program, loop, scope, {name: statement})
            )
        ):
            yield name, statement


def _last_of_kept(
    program: Program, loop: ast.For, scope: Scope, made: dict[str, ast.stmt]
) -> Iterator[ast.expr]:
    """Of a list or tensor that each round adds one number to: the last element, where no other is
    read.
    """
    kept: dict[str, ast.stmt] = {}
    for statement in _statements(loop):
        value, name = None, ""
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Subscript)
            and isinstance(statement.targets[0].slice, ast.Name)
        ):
            value, name = statement.value, dotted(statement.targets[0].value)
        elif (
            isinstance(statement, ast.Expr)
            and method(statement.value) == "append"
            and isinstance(statement.value, ast.Call)
            and statement.value.args
        ):
            value, name = statement.value.args[0], dotted(receiver(statement.value))
        if (
            value is None
            or name not in scope.bindings
            or scope.bindings[name][0].statement in set(walk(loop))
        ):
            continue
        forward = any(
            is_model(program, c.func, scope) and not program.resolve(c.func) for c in calls(value)
        )
        number = any(
            last_name(c.func) in ("item", "float", "mean")
            or "loss" in last_name(c.func)
            or "entropy" in last_name(c.func)
            for c in calls(value)
        )
        if (forward or names_read(value) & made.keys()) and (
            number or any("loss" in words(n) for n in names_read(value))
        ):
            kept[name] = statement
    for name, filled in kept.items():
        reads = [
            n
            for n in own_nodes_of(scope.node, ast.Name)
            if n.id == name and isinstance(n.ctx, ast.Load)
        ]
        elsewhere = [
            n for n in reads if filled not in (program.statement(n), *program.ancestors(n))
        ]
        last = [
            p
            for n in elsewhere
            if isinstance(p := program.parents[n], ast.Subscript)
            and p.value is n
            and constant(p.slice) == -1
        ]
        if (
            last
            and len(last) == len(elsewhere)
            and all(n.lineno > (loop.end_lineno or 0) for n in elsewhere)
        ):
            yield last[0]
