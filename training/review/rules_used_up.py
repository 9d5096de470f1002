"""Rule BH159: an iterator that is made once and gone through in every epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_model
from training.review.program import Binding, Program, Scope, argument
from training.review.syntax import FUNCTIONS, dotted, last_name, method, own_nodes, receiver, walk

# What gives each element once; `cycle`, `count` and `repeat` never end.
ONCE = {"zip", "map", "filter", "enumerate", "iter", "reversed", "chain", "from_iterable", "islice", "zip_longest", "starmap", "takewhile", "dropwhile"}
ENDLESS = {"cycle", "count", "repeat"}
CLIPS = {"clip_grad_norm_", "clip_grad_value_"}


@rule(
    "BH159",
    "iterator-used-up",
    "error",
    title="An iterator that is used up after the first epoch",
    why="`zip`, `map`, `iter` and generators give each element once: from the second epoch on the loop has nothing to go through, and nothing is trained, without any error.",
    remedy="make it inside the loop over epochs, or loop over the loader itself",
    bad="""
        import torch

        def fit(model, optimizer, marked, plain, epochs):
            batches = zip(marked, plain)
            for epoch in range(epochs):
                for (x, y), u in batches:
                    optimizer.zero_grad()
                    loss = torch.nn.functional.cross_entropy(model(x), y) + model(u).var(0).mean()
                    loss.backward()
                    optimizer.step()
        """,
    good="""
        import torch

        def fit(model, optimizer, marked, plain, epochs):
            for epoch in range(epochs):
                for (x, y), u in zip(marked, plain):
                    optimizer.zero_grad()
                    loss = torch.nn.functional.cross_entropy(model(x), y) + model(u).var(0).mean()
                    loss.backward()
                    optimizer.step()
        """,
)
def iterator_used_up(subject: Subject) -> Iterator[Place]:
    """A loop within a loop goes to its end through what gives each element once, here or in a function that is given it, and it is made before the outer loop."""
    program = subject.program
    for scope in program.scopes:
        loops = [n for n in own_nodes(scope.node) if isinstance(n, (ast.For, ast.While))]
        if not loops:
            continue
        once = {
            name: bound[0] for name, bound in scope.bindings.items() if len(bound) == 1 and _is_made(bound[0]) and _gives_once(program, bound[0].value, scope)
        }
        for loop in loops if once else ():
            for name, binding in once.items():
                made = program.statement(binding.statement)
                through = _gone_through(program, loop, name, scope) if made.lineno < loop.lineno and not _ends_at_once(loop) else None
                if through is not None and not any(part is made for part in walk(loop)):
                    told = f"{name} of line {made.lineno} gives each element once: there is nothing left from the second round of line {loop.lineno} on"
                    yield through, told, loop


def _is_made(binding: Binding) -> bool:
    return binding.how == "assign" and binding.index is None


def _ends_at_once(loop: ast.For | ast.While) -> bool:
    return any(isinstance(s, (ast.Break, ast.Return)) for s in loop.body)


def _gives_once(program: Program, value: ast.expr, scope: Scope) -> bool:
    if isinstance(value, ast.GeneratorExp):
        return True
    if not isinstance(value, ast.Call):
        return False
    called = program.callees_by_name(value, scope)
    if called is None and method(value) in ("parameters", "named_parameters", "buffers", "modules"):
        return is_model(program, receiver(value), scope)
    if called is None and last_name(value.func) not in ONCE:
        return False
    if any(isinstance(c, ast.Call) and last_name(c.func) in ENDLESS for c in walk(value)):
        return False
    if called is not None:
        nodes = list(own_nodes(called.node))
        yields = any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in nodes) and isinstance(called.node, FUNCTIONS) and not called.node.decorator_list
        return yields and not any(isinstance(n, ast.While) for n in nodes) and not any(isinstance(c, ast.Call) and last_name(c.func) in ENDLESS for c in nodes)
    plain = isinstance(value.func, ast.Name) and value.func.id in ONCE
    name = program.resolve(value.func)
    if not (plain and not name) and not name.startswith("itertools."):
        return False
    # `iter(endless())` ends as little as what it is given
    return not any(_never_ends(program, a, scope) for a in value.args)


def _never_ends(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether it may give elements without end: a stream of this file, or what is named after one."""
    made = program.origins(node, scope)
    calls = [o.call for o in made] + [c for c in walk(node) if isinstance(c, ast.Call)]
    streams = [program.callees_by_name(c, scope) for c in calls]
    named = " ".join(n.id if isinstance(n, ast.Name) else "" for n in walk(node)).lower()
    return any(s is not None and any(isinstance(n, ast.While) for n in own_nodes(s.node)) for s in streams) or any(
        word in named for word in ("stream", "endless", "infinite", "forever", "cycle")
    )


def _gone_through(program: Program, loop: ast.For | ast.While, name: str, scope: Scope) -> ast.AST | None:
    """Where a loop goes to the end of an iterator in each of its rounds."""
    body = [n for s in loop.body for n in walk(s)]
    if any(isinstance(n, ast.Call) and last_name(n.func) in ("next", "islice") and any(isinstance(a, ast.Name) and a.id == name for a in n.args) for n in body):
        return None
    for node in body:
        if not isinstance(node, (ast.For, ast.Call)) or program.scope(node) is not scope or _on_a_condition(program, node, loop):
            continue
        if isinstance(node, ast.For):
            if isinstance(node.iter, ast.Name) and node.iter.id == name and not _leaves(node):
                return node.iter
        elif last_name(node.func) in CLIPS and node.args and dotted(node.args[0]) == name:
            return node
        elif any(isinstance(n, ast.Name) and n.id == name for n in walk(node)):
            for called in program.callees(node, scope):
                given = (argument(node, called, p) for p in called.parameters if _loops_over(called, p))
                if any(isinstance(a, ast.Name) and a.id == name for a in given):
                    return node
    return None


def _on_a_condition(program: Program, node: ast.AST, loop: ast.For | ast.While) -> bool:
    """Whether a part of a loop may be come to in one of its rounds alone."""
    around = program.ancestors(node)
    return any(isinstance(a, (ast.If, ast.Try, ast.Match)) for a in around[: around.index(loop)])


def _loops_over(called: Scope, parameter: str) -> bool:
    loops = [n for n in own_nodes(called.node) if isinstance(n, ast.For) and isinstance(n.iter, ast.Name) and n.iter.id == parameter]
    return parameter not in called.bindings and bool(loops) and not any(_leaves(n) for n in loops)


def _leaves(loop: ast.For) -> bool:
    """Whether the loop may end before what it goes through does."""
    return any(isinstance(n, (ast.Break, ast.Return)) for s in loop.body for n in walk(s))
