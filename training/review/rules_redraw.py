"""Rule BH136: every step of training draws the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_model
from training.review.lookups import calls_to
from training.review.loops import innermost_loop
from training.review.program import Program, Scope, argument
from training.review.syntax import calls, constant, last_name, method, names_read, receiver, walk
from training.review.train_scores import Loops, loss_names

GENERATORS = {"numpy.random.default_rng", "numpy.random.RandomState", "random.Random"}
GLOBAL = {"torch.manual_seed", "numpy.random.seed", "random.seed", "torch.random.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all"}
NUMBERS = {"rand", "randn", "randn_like", "rand_like", "normal", "uniform", "bernoulli", "dropout", "random", "gauss"}
ROWS = {"randint", "integers", "choice", "choices", "permutation", "randperm", "sample", "shuffle", "multinomial", "random_integers", "randrange"}


@rule(
    "BH136",
    "same-draw-each-step",
    "error",
    title="Every step draws the same random numbers",
    why="A generator that is made anew from the same seed in each step begins anew as well: the same rows or the same noise come each time, and the network learns those few by heart.",
    remedy="make the generator once, before the loop",
    bad="""
        import torch

        def fit(model, optimizer, rows, labels, loss_fn, steps):
            for step in range(steps):
                generator = torch.Generator().manual_seed(0)
                at = torch.randint(len(rows), (64,), generator=generator)
                optimizer.zero_grad()
                loss_fn(model(rows[at]), labels[at]).backward()
                optimizer.step()
        """,
    good="""
        import torch

        def fit(model, optimizer, rows, labels, loss_fn, steps):
            generator = torch.Generator().manual_seed(0)
            for step in range(steps):
                at = torch.randint(len(rows), (64,), generator=generator)
                optimizer.zero_grad()
                loss_fn(model(rows[at]), labels[at]).backward()
                optimizer.step()
        """,
)
def same_draw_each_step(subject: Subject) -> Iterator[Place]:
    """A generator is made from a seed that does not change, in the loop with the backward or in a helper that it calls, and the loss comes from what it draws.

    Or a global generator is seeded so in that loop.
    """
    program = subject.program
    trains = {innermost_loop(program, c) for c in program.methods_of("backward", "manual_backward")}
    seeded = any(_seed(program, c) is not None for c in (*calls_to(program, *GENERATORS), *program.methods_of("manual_seed")))
    for loop in (n for n in (*program.nodes[ast.For], *program.nodes[ast.While]) if isinstance(n, Loops) and n in trains):
        scope = program.scope(loop)
        yield from _seeded_anew(program, loop, scope)
        for statement in _behind_the_loss(program, loop) if seeded else ():
            for call in calls(statement):
                if (seed := _seed(program, call)) is not None and not _changes(program, seed, loop, scope):
                    yield call, f"{ast.unparse(call)} begins anew in every step: each draws the same", loop
                for helper in program.callees(call, scope):
                    yield from (
                        (made, f"{ast.unparse(made)} begins anew whenever {helper.name} is called, in every step", loop)
                        for made in _rows_by(program, helper, call)
                    )


def _seeded_anew(program: Program, loop: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> Iterator[tuple[ast.AST, str, ast.AST]]:
    """A global generator is seeded with what does not change in a statement of the loop itself, and the loop draws by it or calls a network.

    None where the loop makes what it steps: each of its rounds is a run of its own.
    """
    made = [s.value for s in loop.body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)]
    seeds = [c for c in made if program.resolve(c.func) in GLOBAL and len(c.args) == 1]
    if not seeds:
        return
    stored = {n.id for n in walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    stepped = {last_name(receiver(c)) for c in calls(loop) if method(c) == "step"} | {last_name(a) for c in calls(loop) if method(c) == "step" for a in c.args}
    if not stepped - {""} or stepped & stored:
        return
    draws = {last_name(c.func) for c in calls(loop)} & (ROWS | NUMBERS) or any(is_model(program, c.func, scope) for c in calls(loop))
    for call in seeds if draws else ():
        if not _changes(program, call.args[0], loop, scope):
            yield call, f"{ast.unparse(call)} begins anew in every step: each draws the same", loop


def _seed(program: Program, call: ast.Call) -> ast.expr | None:
    """The seed of a generator that is made there; None for anything else."""
    if program.resolve(call.func) in GENERATORS and call.args and constant(call.args[0]) is not None:
        return call.args[0]
    if program.resolve(call.func) in GENERATORS and call.args:
        return call.args[0]
    on = receiver(call)
    made = method(call) == "manual_seed" and isinstance(on, ast.Call) and program.resolve(on.func) == "torch.Generator"
    return call.args[0] if made and len(call.args) == 1 else None


def _changes(program: Program, seed: ast.expr, loop: ast.AST, scope: Scope) -> bool:
    """Whether a seed may be another one in the next round: anything but a number, or a name that only code outside sets."""
    if isinstance(constant(seed), int):
        return False
    if not isinstance(seed, (ast.Name, ast.Attribute)):
        return True
    inside = set(walk(loop))
    stored = [n for n in inside if isinstance(n, (ast.Name, ast.Attribute)) and last_name(n) == last_name(seed) and not isinstance(n.ctx, ast.Load)]
    return bool(stored) or (isinstance(seed, ast.Attribute) and not names_read(seed) & {"args", "cfg", "config", "self"})


def _behind_the_loss(program: Program, loop: ast.For | ast.AsyncFor | ast.While) -> list[ast.stmt]:
    """The statements of a loop, in no inner loop and no branch, on whose results the loss depends, and those that compute it."""
    own = [s for s in walk(loop) if isinstance(s, ast.stmt) and s is not loop and innermost_loop(program, s) is loop and not _branched(program, s, loop)]
    needed = set(loss_names(program, loop))
    final = [s for s in own if isinstance(s, ast.Expr) and any(method(c) in ("backward", "manual_backward") for c in calls(s))]
    needed |= {n for s in final for n in names_read(s)}
    found: list[ast.stmt] = [*final]
    assigned = [s for s in own if isinstance(s, (ast.Assign, ast.AnnAssign))]
    for _ in range(4):
        for statement in assigned:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            stored = {n.id for t in targets for n in walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            if stored & needed and statement not in found:
                found.append(statement)
                needed |= names_read(statement.value)
    return found


def _branched(program: Program, statement: ast.stmt, loop: ast.AST) -> bool:
    around = program.ancestors(statement)
    return any(isinstance(a, (ast.If, ast.Try, ast.Match)) for a in around[: around.index(loop)])


def _rows_by(program: Program, helper: Scope, call: ast.Call) -> Iterator[ast.Call]:
    """Generators that a helper makes from a seed of its own to draw which rows it gives."""
    for made in (c for c in calls(helper.node) if program.scope(c) is helper):
        seed = _seed(program, made)
        statement = program.statement(made)
        if seed is None or innermost_loop(program, made) is not None or any(isinstance(a, ast.If) for a in program.ancestors(made)):
            continue
        given = argument(call, helper, seed.id) if isinstance(seed, ast.Name) else None
        parameter = isinstance(seed, ast.Name) and seed.id in helper.parameters
        fixed = (
            isinstance(constant(seed), int)
            or (isinstance(seed, ast.Name) and not parameter and seed.id not in helper.bindings)
            or (given is None and parameter)
        )
        names = {n.id for n in walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} if isinstance(statement, ast.Assign) else set()
        drawn = [c for c in calls(helper.node) if last_name(c.func) in ROWS and (names & names_read(c) or made in set(walk(c)))]
        if fixed and not any(k.arg is None for k in call.keywords) and any(_indexes(program, c, helper) for c in drawn):
            yield made


def _indexes(program: Program, draw: ast.Call, helper: Scope) -> bool:
    """Whether what is drawn picks rows of what the helper is given, or of something outside."""
    statement = program.statement(draw)
    names = {n.id for n in walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    comprehended = {
        t.id for n in walk(helper.node) if isinstance(n, ast.comprehension) and names_read(n.iter) & names for t in walk(n.target) if isinstance(t, ast.Name)
    }
    picked = [n for n in walk(helper.node) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load) and draw not in set(walk(n.value))]
    rows = [n.slice.elts[0] if isinstance(n.slice, ast.Tuple) and n.slice.elts else n.slice for n in picked]  # what permutes columns picks no rows
    return any(names_read(r) & (names | comprehended) or draw in set(walk(r)) for r in rows)
