"""Rule BH210: a decision threshold that is chosen on the rows whose score is reported."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.held_out import is_test
from training.review.kinds import is_model
from training.review.program import Binding, Program, Scope
from training.review.splitting import line_of
from training.review.syntax import calls, last_name, names_read, nodes_of, walk, words

THRESHOLD = {"threshold", "thresholds", "thr", "thresh", "cutoff", "tau", "th"}
NOT_FINAL = {
    "train", "val", "valid", "validation", "dev", "calib", "calibration", "calibrate", "tune",
    "tuning", "oof", "holdin", "cv",
}  # fmt: skip
CURVES = {"precision_recall_curve", "roc_curve"}  # each gives the cuts that it is made of
CHOOSES = {
    "max",
    "argmax",
    "nanargmax",
    "min",
    "argmin",
    "sorted",
    "maximize",
    "minimize_scalar",
    "idxmax",
}


@rule("BH210")
def threshold_chosen_on_scored_rows(subject: Subject) -> Iterator[Place]:
    """A threshold is the best one for some scores and labels, which nothing says are validation
    rows, and is then used on these alone.
    """
    program = subject.program
    by_scope = _cutting(program)
    for scope in program.scopes:
        cutting = by_scope[scope]
        for name, bindings in scope.bindings.items():
            called_so = bool(words(name) & THRESHOLD)
            if not called_so and name not in cutting:
                continue
            for binding in bindings:
                if not called_so and not _tries_cuts(program, binding, scope):
                    continue
                given = _chosen_on(program, scope, name, binding)
                chosen_on = {
                    n for n in given if not is_model(program, ast.Name(n, ast.Load()), scope)
                }
                behind = _behind(chosen_on, scope, binding)
                around = (
                    set() if any(map(is_test, behind)) else set(words(scope.name))
                )  # `train()` may hold the whole program
                if (
                    len(given) < 2
                    or not chosen_on
                    or any(words(s) & NOT_FINAL for s in behind | around)
                ):
                    continue
                uses = list(_uses(program, scope, name, binding))
                if uses and all(
                    used and _same_rows(program, used, chosen_on, scope, binding) for used in uses
                ):
                    on = " and ".join(sorted(chosen_on))
                    yield (
                        binding.statement,
                        (
                            f"{name} is the best one for {on}, and the score that is reported is"
                            " that of the same rows"
                        ),
                        scope.node,
                    )


def _behind(names: set[str], scope: Scope, binding: Binding, depth: int = 0) -> set[str]:
    """The names of data that some data came of; what a network was made of, whose method was
    called, is none.
    """
    found = set(names)
    for made in (b for n in names if not is_test(n) for b in _in_force(scope, n, binding)):
        methods = {n for c in calls(made.value) for n in names_read(c.func)}
        inner = names_read(made.value) - methods - found
        found |= _behind(inner, scope, made, depth + 1) if depth < 3 else inner
    return found


def _in_force(scope: Scope, name: str, binding: Binding) -> list[Binding]:
    """What a name may hold where the threshold is chosen: nothing from before a value that it gets
    in any case, in the function's own block.
    """
    made = sorted(
        (
            b
            for b in scope.bindings.get(name, ())
            if line_of(b.statement) <= line_of(binding.statement)
        ),
        key=lambda b: line_of(b.statement),
    )
    block = getattr(scope.node, "body", [])
    for at in reversed(range(len(made))):
        if (
            made[at].how == "assign"
            and made[at].statement in block
            and name not in names_read(made[at].value)
        ):
            return made[at:]
    return made


def _cutting(program: Program) -> dict[Scope, set[str]]:
    """Of each function the names with which something is compared by its size there, or in a
    function inside.
    """
    found: dict[Scope, set[str]] = defaultdict(set)
    for test in program.nodes[ast.Compare]:
        if not isinstance(test.ops[0], (ast.Gt, ast.GtE, ast.Lt, ast.LtE)):
            continue
        scope: Scope | None = program.scope(test)
        while scope is not None:
            found[scope] |= {
                side.id for side in (test.left, *test.comparators) if isinstance(side, ast.Name)
            }
            scope = scope.parent
    return found


def _tries_cuts(program: Program, binding: Binding, scope: Scope) -> bool:
    """Whether a value comes from code that cuts scores at one bound after the other, here or in the
    helper that is called: `[f1(p > t, y) for t in grid]`, or the best place of a curve.
    """
    bodies: list[ast.AST] = [binding.value]
    bodies += [f.node for c in calls(binding.value) for f in program.callees(c, scope)]
    for body in bodies:
        tried = {
            n.id
            for c in walk(body)
            if isinstance(c, (ast.comprehension, ast.For))
            for n in nodes_of(c.target, ast.Name)
        }
        tried |= {a.arg for c in nodes_of(body, ast.Lambda) for a in c.args.args}
        tests = [
            n
            for n in nodes_of(body, ast.Compare)
            if isinstance(n.ops[0], (ast.Gt, ast.GtE, ast.Lt, ast.LtE))
        ]
        inner = [
            t
            for t in tests
            if isinstance(program.parents.get(t), (ast.BinOp, ast.Call, ast.Attribute, ast.Compare))
        ]
        if any(
            isinstance(t.left, ast.Name)
            and t.left.id not in tried
            and last_name(t.comparators[0]) in tried
            for t in inner
        ):
            return True
        called = {last_name(c.func) for c in calls(body)}
        if called & CURVES and called & CHOOSES:
            return True
    return False


def _same_rows(
    program: Program, used: set[str], chosen_on: set[str], scope: Scope, binding: Binding
) -> bool:
    """Whether data is that by which the threshold was chosen, or made of it alone, by networks or
    not.
    """
    line = line_of(binding.statement)
    if used <= chosen_on:
        first = {n: {ast.dump(b.value) for b in _in_force(scope, n, binding)} for n in used}
        later = [
            (n, b)
            for n in used
            for b in scope.bindings.get(n, ())
            if line_of(b.statement) > line and b.how == "assign"
        ]
        return all(ast.dump(b.value) in first[n] for n, b in later)
    for name in used - chosen_on:
        bound = [b for b in scope.bindings.get(name, ()) if b.how == "assign"]
        called = {n for b in bound for c in calls(b.value) for n in names_read(c.func)}
        of = [
            {
                n
                for n in names_read(b.value) - called
                if not is_model(program, ast.Name(n, ast.Load()), scope)
            }
            for b in bound
        ]
        moved = any(
            min(line, line_of(b.statement))
            <= line_of(other.statement)
            <= max(line, line_of(b.statement))
            for b in bound
            for n in chosen_on
            for other in scope.bindings.get(n, ())
        )
        if not bound or moved or any(not o or not o <= chosen_on for o in of):
            return False
    return True


def _chosen_on(program: Program, scope: Scope, name: str, binding: Binding) -> set[str]:
    """The names of data by which the best value was chosen; empty where it was not chosen so."""
    value = binding.value
    around = program.ancestors(binding.statement)
    branch = next(
        (a for a in around if isinstance(a, ast.If) and isinstance(a.test, ast.Compare)), None
    )
    loop = next((a for a in around if isinstance(a, ast.For)), None)
    if branch is not None and loop is not None and names_read(value) & names_read(loop.target):
        made = {n.id for n in nodes_of(loop, ast.Name) if isinstance(n.ctx, ast.Store)}
        return _data(program, loop, scope) - made
    if binding.how != "assign" or not any(_chooses(program, c, scope) for c in calls(value)):
        return set()
    return _data(program, value, scope) - {name}


def _chooses(program: Program, call: ast.Call, scope: Scope, depth: int = 0) -> bool:
    """Whether it is `max(…, key=…)`, an argmax, or a function of this file that returns one."""
    if last_name(call.func) in CHOOSES:
        return last_name(call.func) not in ("max", "min", "sorted") or any(
            k.arg == "key" for k in call.keywords
        )
    for called in program.callees(call, scope) if depth < 3 else ():
        if any(
            _chooses(program, c, called, depth + 1)
            for c in calls(called.node)
            if program.scope(c) is called and c is not call
        ):
            return True
    return False


def _data(program: Program, node: ast.AST, scope: Scope) -> set[str]:
    """The names of arrays that a piece of code reads: what is given to calls and compared, without
    functions, modules and grids.
    """
    called = {n.id for c in calls(node) for n in [c.func] if isinstance(n, ast.Name)}
    inner = {a.arg for n in nodes_of(node, ast.Lambda) for a in n.args.args}
    inner |= {n.id for c in nodes_of(node, ast.comprehension) for n in nodes_of(c.target, ast.Name)}
    heads = [c.iter for c in walk(node) if isinstance(c, (ast.comprehension, ast.For))]
    heads += [c.args[0] for c in calls(node) if last_name(c.func) in ("max", "min") and c.args]
    grids = {n for h in heads for n in names_read(h)}
    return {
        n
        for n in names_read(node) - called - inner - grids
        if n not in program.aliases and not words(n) & THRESHOLD and not _is_grid(n, scope)
    }


def _is_grid(name: str, scope: Scope) -> bool:
    made = [b.value for b in scope.bindings.get(name, ())]
    return any(
        isinstance(v, ast.Call) and last_name(v.func) in ("linspace", "arange", "range")
        for v in made
    )


def _uses(program: Program, scope: Scope, name: str, binding: Binding) -> Iterator[set[str]]:
    """For each later use of the threshold on data, the names of the data; of one that hands it on,
    none.
    """
    for node in walk(scope.node):
        if not (
            isinstance(node, ast.Name)
            and node.id == name
            and isinstance(node.ctx, ast.Load)
            and line_of(node) > line_of(binding.statement)
        ):
            continue
        if isinstance(program.parents[node], ast.FormattedValue) or last_name(
            getattr(program.parents[node], "func", None)
        ) in ("print", "float", "round"):
            continue
        used: set[str] = set()
        around: ast.AST = node
        for above in program.ancestors(node):
            if used and not isinstance(program.parents.get(above), ast.expr):
                break
            used, around = _data(program, above, scope) - {name}, above
            if len(used) > 1 or isinstance(above, ast.stmt):
                break
        yield set() if isinstance(around, (ast.Return, ast.Dict, ast.Tuple)) else used
