"""Rules BH229, BH239 and BH255: the greatest score where the class that has it is wanted, the row that has it, and whether all rows are right where each is meant."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_model
from training.review.loops import innermost_loop
from training.review.program import Program, Scope
from training.review.provenance import is_loader, role
from training.review.syntax import calls, constant, is_true, keyword, last_name, method, names_read, receiver, walk
from training.review.values import PASSED_ON, reaching_elements

SAME = {"view", "reshape", "squeeze", "flatten", "cpu", "to", "detach", "float", "long", "int", "numpy"}


DECISIONS = {"argmax", "round", "gt", "ge", "lt", "le"}


@rule(
    "BH229",
    "greatest-score-as-class",
    "error",
    title="Labels are compared with the greatest score, not with its class",
    why="`max` over an axis gives values and indices. The values are scores: next to none equals a label, and the accuracy is near 0 however good the network is.",
    remedy="take the indices: `scores.argmax(dim=1)`, or `scores.max(dim=1).indices`",
    bad="""
        import torch

        @torch.no_grad()
        def hits(model, x, y):
            model.eval()
            guess, _ = model(x).max(dim=1)
            return (guess == y).sum().item()
        """,
    good="""
        import torch

        @torch.no_grad()
        def hits(model, x, y):
            model.eval()
            _, guess = model(x).max(dim=1)
            return (guess == y).sum().item()
        """,
)
def greatest_score_as_class(subject: Subject) -> Iterator[Place]:
    """The values of `max` over one axis of a network's scores are compared by == with something that is not made of them, or any such values with labels."""
    program = subject.program
    if "max" not in program.called_names:
        return
    for node, sides in _comparisons(program):
        for one, other in (sides, sides[::-1]):
            scope = program.scope(node)
            scores = _values_of(program, one, scope)
            if scores is None or constant(other) is not None or _extreme(other) or _values_of(program, other, scope) is not None:
                continue
            if _decided(program, scores, scope) or _of_same_scores(program, other, scores, scope):
                continue
            belong = role(program, scores, scope) == "scores" or role(program, other, scope) == "labels"
            if belong and not (names_read(scores) | names_read(one)) & names_read(other):
                yield node, f"{ast.unparse(one)} holds the greatest values of {ast.unparse(scores)}, not where they stand"
                break


@rule(
    "BH239",
    "decision-over-batch",
    "error",
    title="The greatest score is looked for among the rows",
    why="Dimension 0 of what a network gives is the batch. `argmax(0)` says for each class which row has most of it: compared with labels it is a number without meaning, that may even look like one.",
    remedy="look along the classes: `scores.argmax(dim=1)`",
    bad="""
        import torch

        @torch.no_grad()
        def accuracy(model, loader):
            model.eval()
            right = rows = 0
            for x, y in loader:
                right += (model(x).argmax(0) == y).sum().item()
                rows += len(y)
            return right / rows
        """,
    good="""
        import torch

        @torch.no_grad()
        def accuracy(model, loader):
            model.eval()
            right = rows = 0
            for x, y in loader:
                right += (model(x).argmax(1) == y).sum().item()
                rows += len(y)
            return right / rows
        """,
)
def decision_over_batch(subject: Subject) -> Iterator[Place]:
    """`argmax` or the indices of `max` over dimension 0 of what a network gives for a batch of a loader, compared with something; or over no dimension, compared with the places of all rows."""
    program = subject.program
    for node, sides in _comparisons(program):
        for side in sides:
            scope = program.scope(node)
            inner = next((n for n in walk(side) if isinstance(n, ast.Name)), None) if not isinstance(side, ast.Call) else None
            made = [v for v, _ in reaching_elements(program, inner, scope)] if inner is not None else [side]
            for value in made:
                scores = _along_rows(program, value)
                made_by = _network_call(program, scores, scope) if scores is not None else None
                if made_by is not None and _of_loader(program, made_by):
                    yield value, f"{ast.unparse(value)} is the row with the greatest score, for each class"
                    break
        if (single := _of_all(program, node, sides)) is not None:
            yield single, f"{ast.unparse(single)} is one number, the place of the greatest of all scores of all rows, and is compared with each row"


def _is_share(program: Program, node: ast.AST) -> bool:
    """Whether the mean or the sum is taken of it, of its numbers perhaps."""
    above = program.parents[node]
    while isinstance(above, ast.Attribute) and above.attr in ("float", "double", "long", "int", "to"):
        above = program.parents[program.parents[above]]
    return isinstance(above, ast.Attribute) and above.attr in ("sum", "mean")


def _of_all(program: Program, node: ast.expr, sides: tuple[ast.expr, ast.expr]) -> ast.expr | None:
    """`scores.argmax()` beside `torch.arange(n)`, in a share of right answers: without a dimension it is looked for among all."""
    places = [s for s in sides if isinstance(s, ast.Call) and last_name(s.func) == "arange"]
    if not places:
        return None
    above, scope = program.parents[node], program.scope(node)
    named = above.targets[0].id if isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name) else ""
    uses = [n for n in walk(scope.node) if isinstance(n, ast.Name) and n.id == named and isinstance(n.ctx, ast.Load)] if named else [node]
    counted = any(_is_share(program, n) for n in uses)  # and no one-hot row
    for side in sides if counted else ():
        if isinstance(side, ast.Call) and last_name(side.func) == "argmax" and not side.keywords:
            on_torch = program.is_torch(side.func, "argmax")
            if len(side.args) == (1 if on_torch else 0):
                return side
    return None


DEPTH = 4
SQUASHES = ("softmax", "sigmoid", "log_softmax", "exp")


def _along_rows(program: Program, node: ast.expr) -> ast.expr | None:
    """Of what the greatest is looked for along dimension 0."""
    while isinstance(node, (ast.Subscript, ast.Attribute)) or (isinstance(node, ast.Call) and method(node) in SAME):
        node = node.value if isinstance(node, (ast.Subscript, ast.Attribute)) else (receiver(node) or ast.Constant(None))
    if not isinstance(node, ast.Call) or last_name(node.func) not in ("argmax", "max"):
        return None
    on_torch = program.is_torch(node.func, "argmax", "max")
    axis = constant(keyword(node, "dim", 1 if on_torch else 0))
    return None if axis != 0 or isinstance(axis, bool) else node.args[0] if on_torch else receiver(node)


def _network_call(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> ast.Call | None:
    """The call of a network that gave scores, which were reshaped or squashed at most."""
    if isinstance(node, ast.Name) and depth < DEPTH:
        found = reaching_elements(program, node, scope)
        return _network_call(program, found[0][0], scope, depth + 1) if len(found) == 1 and found[0][1] is None else None
    if not isinstance(node, ast.Call):
        return None
    if program.is_torch(node.func, *SQUASHES) and node.args:
        return _network_call(program, node.args[0], scope, depth)
    if method(node) in (*PASSED_ON, *SQUASHES) and not program.resolve(node.func) and (on := receiver(node)) is not None:
        return _network_call(program, on, scope, depth)
    return node if is_model(program, node.func, scope) else None


def _of_loader(program: Program, call: ast.Call) -> bool:
    """Whether a network is given what a loop over a loader gives."""
    loop = innermost_loop(program, call)
    named = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)} if isinstance(loop, ast.For) else set()
    given = {n for a in call.args for n in names_read(a)}
    return isinstance(loop, ast.For) and is_loader(program, loop.iter, program.scope(call)) and bool(named & given)


def _comparisons(program: Program) -> Iterator[tuple[ast.expr, tuple[ast.expr, ast.expr]]]:
    """Both sides of ==, `.eq()` and `torch.eq()`."""
    for node in program.nodes[ast.Compare]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
            yield node, (node.left, node.comparators[0])
    for call in program.all_calls if "eq" in program.called_names else ():
        if program.is_torch(call.func, "eq") and len(call.args) == 2:
            yield call, (call.args[0], call.args[1])
        elif method(call) == "eq" and len(call.args) == 1 and (on := receiver(call)) is not None:
            yield call, (on, call.args[0])


def _values_of(program: Program, node: ast.expr, scope: Scope, index: int | None = None) -> ast.expr | None:
    """The scores of which these are the greatest along an axis."""
    match node:
        case ast.Name() if index is None:
            found = reaching_elements(program, node, scope)
            return _values_of(program, found[0][0], scope, found[0][1] if found[0][1] is not None else -1) if len(found) == 1 else None
        case ast.Subscript() if index in (None, -1):
            return _values_of(program, node.value, scope, 0) if constant(node.slice) == 0 and isinstance(node.value, ast.Call) else None
        case ast.Attribute(attr="values") if index in (None, -1):
            return _values_of(program, node.value, scope, 0)
        case ast.Call() if method(node) in SAME and index in (None, -1) and not program.resolve(node.func):
            on = receiver(node)
            return _values_of(program, on, scope, index) if on is not None else None
        case ast.Call() if index == 0:
            return _of_max(program, node)
    return None


def _of_max(program: Program, call: ast.Call) -> ast.expr | None:
    """What `torch.max(scores, 1)` or `scores.max(dim=1)` goes over: with an axis that is left out afterwards."""
    if last_name(call.func) != "max" or is_true(keyword(call, "keepdim")):
        return None
    if program.is_torch(call.func, "max"):
        axis = keyword(call, "dim", 1)
        return call.args[0] if call.args and isinstance(constant(axis), int) and len(call.args) <= 2 else None
    axis = keyword(call, "dim", 0)
    return receiver(call) if isinstance(constant(axis), int) and len(call.args) <= 1 else None


def _decided(program: Program, scores: ast.expr, scope: Scope) -> bool:
    """Whether what the greatest is taken of are decisions already, of which it is one."""
    values = [v for v, _ in reaching_elements(program, scores, scope)] if isinstance(scores, ast.Name) else []
    return any(last_name(c.func) in DECISIONS for v in (scores, *values) for c in calls(v)) or any(
        isinstance(n, ast.Compare) for v in (scores, *values) for n in walk(v)
    )


def _of_same_scores(program: Program, other: ast.expr, scores: ast.expr, scope: Scope) -> bool:
    """Whether the other side is taken out of the same scores, one name back."""
    values = [v for n in walk(other) if isinstance(n, ast.Name) for v, _ in reaching_elements(program, n, scope)]
    return any(names_read(v) & names_read(scores) for v in values)


def _extreme(node: ast.expr) -> bool:
    """Whether the other side is a least or greatest value too, or infinite."""
    return isinstance(node, ast.UnaryOp) or last_name(node) == "inf" or (isinstance(node, ast.Call) and last_name(node.func) in ("max", "min", "amax", "amin"))


@rule(
    "BH255",
    "all-of-the-batch",
    "error",
    title="Whether all rows are right is counted as if it were each of them",
    why="`.all()` without a dimension is one answer for the whole batch: its sum is 0 or 1, however many rows are right, and a share of it falls with the size of the batch.",
    remedy="ask along the places of a row: `(found == wanted).all(dim=1).sum()`",
    bad="""
        import torch

        @torch.no_grad()
        def exact(model, loader):
            model.eval()
            right = rows = 0
            for x, y in loader:
                right += (model.complete(x) == y).all().sum().item()
                rows += len(y)
            return right / rows
        """,
    good="""
        import torch

        @torch.no_grad()
        def exact(model, loader):
            model.eval()
            right = rows = 0
            for x, y in loader:
                right += (model.complete(x) == y).all(dim=1).sum().item()
                rows += len(y)
            return right / rows
        """,
)
def all_of_the_batch(subject: Subject) -> Iterator[Place]:
    """The sum or mean of `.all()` or `.any()` of a comparison, without a dimension."""
    program = subject.program
    for call in program.methods_of("all", "any"):
        if not call.args and not call.keywords and isinstance(receiver(call), ast.Compare) and _is_share(program, call):
            yield call, f"{ast.unparse(call)} is one answer for the whole batch"
