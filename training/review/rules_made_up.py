"""Rule BH528: sides that are drawn from the same seed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import combinations

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope, argument
from training.review.rules_sides import apart
from training.review.sides import side_of_names, targets_of
from training.review.splitting import line_of
from training.review.syntax import calls, constant, keyword, last_name, names_read, own_nodes, receiver, walk

RANDOM = {
    "randn", "rand", "randint", "normal", "standard_normal", "integers", "uniform", "random", "poisson", "choice", "randperm", "permutation", "binomial",
    "exponential", "gamma", "beta", "randn_like", "rand_like", "multinomial", "shuffle",
}  # fmt: skip
COUNTED = {
    "randn", "rand", "randint", "normal", "standard_normal", "integers", "uniform", "random", "poisson", "choice", "range", "zeros", "ones", "empty", "arange",
    "linspace", "full", "randperm", "binomial", "exponential", "gamma", "beta",
}  # fmt: skip


@rule(
    "BH528",
    "sides-made-up-alike",
    "error",
    title="Two sides are drawn from the same seed",
    why="A generator that starts from the same seed gives the same numbers: the rows of the second side are those of the first, or its beginning.",
    remedy="give each side its own seed, or draw all rows at once and divide them",
    bad="""
        import torch

        def make(rows, seed):
            generator = torch.Generator().manual_seed(seed)
            x = torch.randn(rows, 8, generator=generator)
            return x, x.sum(dim=1)

        train_x, train_y = make(800, seed=0)
        test_x, test_y = make(200, seed=0)
        """,
    good="""
        import torch

        def make(rows, seed):
            generator = torch.Generator().manual_seed(seed)
            x = torch.randn(rows, 8, generator=generator)
            return x, x.sum(dim=1)

        train_x, train_y = make(800, seed=0)
        test_x, test_y = make(200, seed=1)
        """,
)
def sides_made_up_alike(subject: Subject) -> Iterator[Place]:
    """A function of the file that seeds its generator, or is given one that is seeded in the call, is called for two sides with the same arguments, the number of
    rows aside.
    """
    program = subject.program
    yield from _by_one_generator(program)
    for function in (s for s in program.scopes if len(program.call_sites[s]) > 1):
        seeds = [c for c in calls(function.node) if last_name(c.func) in ("manual_seed", "default_rng", "RandomState", "Random", "seed") and len(c.args) == 1]
        if len(seeds) != 1 or program.scope(seeds[0]) is not function or not _seeded_alike(seeds[0].args[0], function):
            continue
        if not _all_drawn_by(program, seeds[0], function):
            continue
        made_by = function.owner.name if function.owner is not None and function.name == "__init__" else function.name
        sites = [(c, s, _sides_of(program, c)) for c, s in program.call_sites[function]]
        for (a, scope, one), (b, again, two) in combinations(sites, 2):
            if _two_sides(program, a, b, one, two) and scope is again and not apart(program, a, b) and _alike(program, a, b, function, seeds[0].args[0]):
                of = f"the {one} rows" if one else ", ".join(targets_of(program, a))
                yield (
                    b,
                    f"{f'{two} rows' if two else ', '.join(targets_of(program, b))} are made by {made_by} from the seed that made {of} in line {line_of(a)}",
                    function.node,
                )
                break


def _by_one_generator(program: Program) -> Iterator[Place]:
    """`train = rows(900, Generator().manual_seed(7))` and `val = rows(300, Generator().manual_seed(7))`; or such a call in a loop that gives two sides."""
    for function, sites in program.call_sites.items():
        seeded = [(c, s, g) for c, s in sites for g in (*c.args, *(k.value for k in c.keywords)) if _seeds(g)]
        for call, _, given in seeded:
            around = next((a for a in program.ancestors(call) if isinstance(a, (ast.ListComp, ast.GeneratorExp))), None)
            targets = {n.id for g in around.generators for n in walk(g.target) if isinstance(n, ast.Name)} if around is not None else set()
            sides = {side_of_names((n,)) for n in targets_of(program, call)} - {""}
            if around is not None and len(sides) > 1 and not names_read(call) & targets:
                yield call, f"{' and '.join(sorted(sides))} rows are drawn with the same seed: {ast.unparse(given)}", function.node
                return
        for (a, scope, one), (b, again, two) in combinations(seeded, 2):
            names = [side_of_names(targets_of(program, c)) for c in (a, b)]
            if scope is again and ast.dump(one) == ast.dump(two) and all(names) and names[0] != names[1] and _same_kind(a, b, one, two):
                yield b, f"{names[1]} rows are drawn with the seed that made the {names[0]} rows in line {line_of(a)}: {ast.unparse(two)}", function.node
                return


def _seeds(node: ast.expr) -> bool:
    """Whether a generator is made and seeded there."""
    made = [c for c in walk(node) if isinstance(c, ast.Call) and last_name(c.func) in ("manual_seed", "default_rng", "RandomState", "Random") and c.args]
    return isinstance(node, ast.Call) and len(made) == 1


def _same_kind(a: ast.Call, b: ast.Call, one: ast.expr, two: ast.expr) -> bool:
    """Whether both calls are given the same beside numbers of rows."""
    rest = [[ast.dump(g) for g in (*c.args, *(k.value for k in c.keywords)) if g is not seed and constant(g) is None] for c, seed in ((a, one), (b, two))]
    return rest[0] == rest[1]


def _two_sides(program: Program, a: ast.Call, b: ast.Call, one: str, two: str) -> bool:
    """Whether two calls make rows of two sides, or those of one side, held out, and others that are called nothing else."""
    if one and two:
        return one != two
    names, others = (set(targets_of(program, c)) for c in (a, b))
    return bool(one or two) and (one or two) != "train" and bool(names and others) and not names & others


def _sides_of(program: Program, call: ast.Call) -> str:
    return side_of_names(targets_of(program, call)) if isinstance(program.statement(call), ast.Assign) else ""


def _seeded_alike(seed: ast.expr, function: Scope) -> bool:
    """Whether the seed is a number or a parameter as it was given."""
    return isinstance(constant(seed), int) or (isinstance(seed, ast.Name) and seed.id in function.parameters and seed.id not in function.bindings)


def _all_drawn_by(program: Program, seed: ast.Call, function: Scope) -> bool:
    """Whether every random number of a function comes from the generator that a call seeds."""
    statement = program.statement(seed)
    own = {last_name(t) for t in statement.targets} if isinstance(statement, ast.Assign) else set()
    everywhere = not own and isinstance(statement, ast.Expr) and last_name(seed.func) in ("seed", "manual_seed")
    own |= {last_name(receiver(seed))} if isinstance(statement, ast.Expr) and not program.resolve(seed.func) else set()
    found = False
    for call in calls(function.node):
        if last_name(call.func) in RANDOM:
            found, given = True, keyword(call, "generator")
            if not (last_name(given) in own - {""} if given is not None else everywhere or last_name(receiver(call)) in own - {""}):
                return False
    return found


def _alike(program: Program, a: ast.Call, b: ast.Call, function: Scope, seed: ast.expr) -> bool:
    """Whether two calls give the same arguments, but for one that says how many rows there are."""
    if any(k.arg is None for c in (a, b) for k in c.keywords) or any(isinstance(x, ast.Starred) for c in (a, b) for x in c.args):
        return False
    changing = [n for c in (a, b) for n in walk(c) if isinstance(n, ast.Call) and n is not c]
    differ = []
    for name in function.parameters:
        one, two = argument(a, function, name), argument(b, function, name)
        if (ast.dump(one) if one is not None else "") != (ast.dump(two) if two is not None else ""):
            differ.append(name)
    if isinstance(seed, ast.Name) and seed.id in differ:
        return False
    rows = [n for n in function.parameters if _is_a_number_of_rows(function, n)]
    return not changing and bool(rows) and len(differ) <= 1 and set(differ) <= set(rows)


def _is_a_number_of_rows(function: Scope, name: str) -> bool:
    """Whether a parameter does nothing but say how many values are drawn or made."""
    reads = [n for n in own_nodes(function.node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    counted = {id(n) for c in calls(function.node) if last_name(c.func) in COUNTED for a in (*c.args, *c.keywords) for n in walk(a)}
    asked: set[int] = set()
    for node in walk(function.node):
        if isinstance(node, (ast.Compare, ast.If, ast.IfExp)):
            asked |= {id(n) for n in walk(node if isinstance(node, ast.Compare) else node.test)}
    return bool(reads) and all(id(n) in counted and id(n) not in asked for n in reads)
