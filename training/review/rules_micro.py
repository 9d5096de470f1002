"""Rules BH140 and BH141: windows of accumulation that begin with a single batch, and losses that are divided by their window twice."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to
from training.review.loops import Steps, step_groups
from training.review.program import Program, Scope, argument
from training.review.rules_window import condition, window_of
from training.review.syntax import constant, dotted, keyword, last_name, method, own_nodes, receiver, walk
from training.review.values import number

TWICE = 2
DEPTH = 6  # names and functions that a loss is followed through
KEEPS = {"mean", "sum", "scale", "to", "float", "squeeze", "double", "reshape", "view"}  # of what is divided the same share


@rule(
    "BH140",
    "first-window-of-one-batch",
    "warning",
    title="The first accumulation window holds one batch",
    why="Counted from 0, `i % window == 0` is true at the first batch: a step is made of its gradient alone, divided by the window, and the last batches of each epoch are left over.",
    remedy="`if (i + 1) % window == 0 or i + 1 == len(loader)`",
    bad="""
        import torch

        def train(model, optimizer, loader, loss_fn, window):
            optimizer.zero_grad()
            for i, (x, y) in enumerate(loader):
                (loss_fn(model(x), y) / window).backward()
                if i % window == 0 or i + 1 == len(loader):
                    optimizer.step()
                    optimizer.zero_grad()
        """,
    good="""
        import torch

        def train(model, optimizer, loader, loss_fn, window):
            optimizer.zero_grad()
            for i, (x, y) in enumerate(loader):
                (loss_fn(model(x), y) / window).backward()
                if (i + 1) % window == 0 or i + 1 == len(loader):
                    optimizer.step()
                    optimizer.zero_grad()
        """,
)
def first_window_of_one_batch(subject: Subject) -> Iterator[Place]:
    """After a backward that nothing guards, a step where a counter from 0 divides evenly: the counter of the loop itself, or of `enumerate`."""
    for steps in step_groups(subject):
        branch = window_of(steps)
        if branch is None or steps.loop is None or not isinstance(steps.loop.node, ast.For) or steps.step.via == "closure":
            continue
        counter, test = _from_zero(steps.loop.node), condition(branch, steps.step.scope)
        compared = [test, *test.values] if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]
        written = {last_name(n.target) for n in walk(steps.loop.node) if isinstance(n, ast.AugAssign)}
        if counter and counter not in written and any(_divides_evenly(c, counter) for c in compared) and not _starts_over(steps):
            told = f"{ast.unparse(test)} is true for the first batch already, as {counter} counts from 0"
            yield branch, f"{told}: the first window holds one batch", steps.loop.node


def _from_zero(loop: ast.For) -> str:
    """The name that counts the passages of a loop from 0; empty where there is none."""
    head = loop.iter
    while isinstance(head, ast.Call) and last_name(head.func) in ("tqdm", "track") and head.args:
        head = head.args[0]
    if not isinstance(head, ast.Call):
        return ""
    start = keyword(head, "start", 1)
    if last_name(head.func) == "enumerate" and isinstance(loop.target, ast.Tuple) and (start is None or constant(start) == 0):
        return last_name(loop.target.elts[0])
    if last_name(head.func) in ("range", "trange") and len(head.args) == 1:
        return last_name(loop.target) if isinstance(loop.target, ast.Name) else ""
    return ""


def _divides_evenly(test: ast.expr, counter: str) -> bool:
    """Whether it is `counter % n == 0` or `not counter % n`; of a window of 1 there is nothing to say."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        rest = test.operand
    elif isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq) and constant(test.comparators[0]) == 0 and len(test.ops) == 1:
        rest = test.left
    else:
        return False
    return isinstance(rest, ast.BinOp) and isinstance(rest.op, ast.Mod) and isinstance(rest.left, ast.Name) and rest.left.id == counter


def _starts_over(steps: Steps) -> bool:
    """Whether gradients are cleared in every passage: then no window is added up, and the backward is none of this optimizer's or of another rule."""
    return any(c.event.branches == steps.backwards[0].event.branches for c in steps.clears)


@rule(
    "BH141",
    "divided-by-the-window-twice",
    "error",
    title="The loss is divided by the accumulation window twice",
    why="Each window's gradient is as many times too small as it has batches: with SGD the rate is divided by it, and weight decay or clipping shift with it. Adam hides it until it meets eps.",
    remedy="divide once, where `backward` is called; a loss that was divided is no longer the one to log",
    bad="""
        import torch

        def train(model, optimizer, loader, loss_fn, window):
            for i, (x, y) in enumerate(loader):
                loss = loss_fn(model(x), y) / window
                (loss / window).backward()
                if (i + 1) % window == 0 or i + 1 == len(loader):
                    optimizer.step()
                    optimizer.zero_grad()
        """,
    good="""
        import torch

        def train(model, optimizer, loader, loss_fn, window):
            for i, (x, y) in enumerate(loader):
                loss = loss_fn(model(x), y) / window
                loss.backward()
                if (i + 1) % window == 0 or i + 1 == len(loader):
                    optimizer.step()
                    optimizer.zero_grad()
        """,
)
def divided_by_the_window_twice(subject: Subject) -> Iterator[Place]:
    """On its way into `backward` a loss is divided more than once by what a window is counted by, a library's own division included."""
    program = subject.program
    for steps in step_groups(subject):
        if steps.loop is None:
            continue
        branch = window_of(steps)
        counted = [n.right for n in walk(condition(branch, steps.step.scope)) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod)] if branch else []
        for placed in steps.backwards:
            call, scope = placed.event.call, placed.event.scope
            of_library = _divided_by_library(program, placed.event.via)
            loss = call.args[0] if call.args and not isinstance(receiver(call), ast.BinOp) and placed.event.via == "accelerator" else receiver(call)
            for window in of_library or (*counted, *_inner_counts(steps, placed.event.loops)):
                followed = _Divisions(program, window, steps.step.scope)
                times = followed.of(loss, scope) + bool(of_library)
                if loss is not None and times >= TWICE:
                    by = "once more by the accelerator itself" if of_library else f"{times} times before it is propagated"
                    yield call, f"the loss is divided by {ast.unparse(window)}, {by}", steps.loop.node


def _inner_counts(steps: Steps, loops: tuple[object, ...]) -> list[ast.expr]:
    """The n of a loop over `range(n)` that holds a backward and not the step."""
    heads = [x.node.iter for b in steps.backwards for x in b.event.loops if x not in steps.step.loops and x in loops and isinstance(x.node, ast.For)]
    return [head.args[0] for head in heads if isinstance(head, ast.Call) and last_name(head.func) == "range" and len(head.args) == 1]


def _divided_by_library(program: Program, via: str) -> list[ast.expr]:
    """What an `Accelerator` of this file divides every loss by before its backward."""
    if via != "accelerator":
        return []
    made = calls_to(program, "accelerate.Accelerator")
    given = [keyword(c, "gradient_accumulation_steps") for c in made]
    return [g for g in given if g is not None and constant(g) != 1] if len(made) == 1 else []


class _Divisions:
    """Counts how often a value has been divided by one number, along the way on which that is most."""

    def __init__(self, program: Program, window: ast.expr, scope: Scope) -> None:
        self.program = program
        self.name, self.value = last_name(window), number(program, window, scope)

    def of(self, node: ast.expr | None, scope: Scope, depth: int = 0) -> int:
        """The number of divisions in what an expression is made of."""
        if node is None or depth > DEPTH:
            return 0
        match node:
            case ast.BinOp(op=ast.Div()):
                return self.of(node.left, scope, depth) + self._is_window(node.right, scope)
            case ast.BinOp(op=ast.Mult()):
                sides = (node.left, node.right)
                shares = sum(self._is_share(side, scope) for side in sides) - sum(self._is_window(side, scope) for side in sides)
                return max(0 if self._is_share(side, scope) else self.of(side, scope, depth) for side in sides) + shares
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                return max(self.of(node.left, scope, depth), self.of(node.right, scope, depth))
            case ast.UnaryOp():
                return self.of(node.operand, scope, depth)
            case ast.Name():
                return self._of_name(node, scope, depth)
            case ast.Call():
                return self._of_call(node, scope, depth)
        return 0

    def _of_call(self, node: ast.Call, scope: Scope, depth: int) -> int:
        function = self.program.callees_by_name(node, scope)
        if function is not None:
            returned = [n.value for n in own_nodes(function.node) if isinstance(n, ast.Return) and n.value is not None]
            return max((self.of(r, function, depth + 1) for r in returned), default=0)
        if method(node) == "scale" and node.args:
            return self.of(node.args[0], scope, depth)
        if method(node) in ("div", "div_") and node.args:
            return self.of(receiver(node), scope, depth) + self._is_window(node.args[0], scope)
        return self.of(receiver(node), scope, depth) if method(node) in KEEPS else 0

    def _of_name(self, node: ast.Name, scope: Scope, depth: int) -> int:
        """The last value before, and the divisions in place after it; of a parameter what callers pass."""
        line, around = (node.lineno, node.col_offset), set(self.program.ancestors(node))
        before = [b for b in scope.bindings.get(node.id, ()) if (self._line(b.statement)) < line and b.statement is not self.program.statement(node)]
        most, divided = 0, 0
        for binding in sorted(before, key=lambda b: self._line(b.statement), reverse=True):
            branches = [a for a in self.program.ancestors(binding.statement) if isinstance(a, ast.If)]
            if any(b in around and self._other_arm(b, binding.statement, node) for b in branches):
                continue
            if binding.how == "augment" and isinstance(binding.statement, ast.AugAssign):
                divided += isinstance(binding.statement.op, ast.Div) and self._is_window(binding.value, scope)
            elif binding.how == "assign" and binding.index is None:
                most = max(most, divided + self.of(binding.value, scope, depth + 1))
                if all(b in around for b in branches):
                    return most
            else:
                return most
        if node.id in scope.parameters:
            passed = [(argument(call, scope, node.id), caller) for call, caller in self.program.call_sites[scope]]
            most = max((divided + self.of(given, caller, depth + 1) for given, caller in passed), default=most)
        return most

    def _line(self, statement: ast.AST) -> tuple[int, int]:
        return int(getattr(statement, "lineno", 0)), int(getattr(statement, "col_offset", 0))

    def _other_arm(self, branch: ast.If, statement: ast.AST, node: ast.AST) -> bool:
        """Whether two things stand in different arms of a condition."""
        within = [{id(n) for part in arm for n in walk(part)} for arm in (branch.body, branch.orelse)]
        return any(id(statement) in a and id(node) in b for a, b in (within, within[::-1]))

    def _is_window(self, node: ast.expr, scope: Scope) -> bool:
        """Whether it is the number that a window is counted by: of that name, or the same known number."""
        if isinstance(node, ast.Call) and last_name(node.func) == "float" and node.args:
            node = node.args[0]
        if self.name and last_name(node) == self.name and isinstance(node, (ast.Name, ast.Attribute)):
            return True
        if self._passed_as(node, scope):
            return True
        same = constant(node) if self.name else number(self.program, node, scope)  # another name of the same number is another thing
        return self.value is not None and self.value > 1 and same == self.value

    def _passed_as(self, node: ast.expr, scope: Scope) -> bool:
        """Whether it is a parameter that every caller gives the window."""
        if not isinstance(node, ast.Name) or node.id not in scope.parameters or not self.name:
            return False
        given = [argument(call, scope, node.id) for call, _ in self.program.call_sites[scope]]
        return bool(given) and all(g is not None and dotted(g) and last_name(g) == self.name for g in given)

    def _is_share(self, node: ast.expr, scope: Scope) -> bool:
        """Whether it is `1 / window`."""
        return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and constant(node.left) in (1, 1.0) and self._is_window(node.right, scope)
