"""Rule BH527: two sides of a split hold the same rows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import combinations

from training.review.bounds import meeting, whole_beside_part
from training.review.findings import Place, Subject, rule
from training.review.intervals import overlap, share_of
from training.review.program import Program, Scope
from training.review.selections import Chosen, chosen, table_key
from training.review.sides import elements_of, is_random_order, row_takes, side_of
from training.review.splitting import line_of
from training.review.syntax import (
    calls,
    constant,
    dotted,
    last_name,
    method,
    names_read,
    walk,
    words,
)
from training.review.values import value_of

ON_PURPOSE = {
    "overfit",
    "overfitting",
    "sanity",
    "bootstrap",
    "memorise",
    "memorize",
    "transductive",
}
CONTEXT = {
    "window", "windows", "lookback", "lag", "lags", "context", "horizon", "block", "seq",
    "sequence", "history", "past", "burn", "warmup",
}  # fmt: skip
SELECTS = {
    "sampler", "idx", "indices", "index", "mask", "split", "subset", "ids", "fold", "part", "stop",
    "start", "end", "rows",
}  # fmt: skip
AT_LEAST = 0.2  # of the held-out rows, where a window before them may be wanted


@rule("BH527")
def sides_share_rows(subject: Subject) -> Iterator[Place]:
    """Names of two sides get rows of one table by the same positions, by slices that overlap or by
    two draws; or train gets all of a table, another side a part.
    """
    program = subject.program
    if ON_PURPOSE & {
        w for n in program.identifiers | {s.name for s in program.scopes} for w in words(n)
    }:
        return
    found = sorted(chosen(program), key=lambda c: (line_of(c.node), c.node.col_offset))
    told: set[int] = set()
    for a, b in combinations(found, 2):
        if (
            a.side == b.side
            or a.scope is not b.scope
            or a.table != b.table
            or line_of(b.node) in told
            or apart(program, a.node, b.node)
        ):
            continue
        message = _shared(program, a, b)
        if message:
            told.add(line_of(b.node))
            yield b.node, message, b.scope.node if b.scope.name else b.node
    yield from _train_has_all(program)
    yield from _split_twice(program)
    yield from _two_orders(program)
    for node, message, scope in (*meeting(program), *whole_beside_part(program)):
        if line_of(node) not in told:
            yield node, message, scope.node if scope.name else node


def apart(program: Program, a: ast.expr, b: ast.expr) -> bool:
    """Whether two expressions stand in different branches, or in one for a certain number
    of rows.
    """
    here, there = (set(_branches(program, x)) for x in (a, b))
    few = any(
        isinstance(n, ast.If)
        and isinstance(n.test, ast.Compare)
        and isinstance(constant(n.test.comparators[0]), int)
        for n, _ in here
    )
    return here != there or few


def _branches(program: Program, node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """The conditions around a node, each with whether it stands where the condition does
    not hold.
    """
    inner = node
    for above in program.ancestors(node):
        if isinstance(above, (ast.If, ast.IfExp, ast.Match)):
            yield (
                above,
                (
                    inner in above.orelse
                    if isinstance(above, ast.If)
                    else inner is getattr(above, "orelse", None)
                ),
            )
        inner = above


def _shared(program: Program, a: Chosen, b: Chosen) -> str:
    first, second = ast.unparse(a.node), ast.unparse(b.node)
    if a.base == b.base:
        train, held = (a, b) if a.side == "train" or b.side == "test" else (b, a)
        how = overlap(train.within, held.within)
        by_order = not a.base.startswith("rows of ") or is_random_order(
            program, a.table.partition(" ")[0], a.scope
        )
        if how == "inside" or (how and (by_order or _without_window(program, train, held))):
            return f"{b.side} takes {second}, and {a.side} takes {first}: " + (
                "the same rows" if first == second else "some rows are in both"
            )
    elif a.draw is not None and b.draw is not None and _of_the_same(a.draw, b.draw):
        drawn = (
            f"lines {line_of(a.draw)} and {line_of(b.draw)}"
            if line_of(a.draw) != line_of(b.draw)
            else f"line {line_of(a.draw)}"
        )
        seeded = any(
            isinstance(c, ast.Call)
            and last_name(c.func) in ("seed", "manual_seed")
            and line_of(a.draw) < line_of(c) < line_of(b.draw)
            for c in program.all_calls
        )
        return (
            ""
            if seeded
            else (
                f"{a.side} and {b.side} rows are drawn independently of each other ({drawn}): about"
                " as many are in both as chance gives"
            )
        )
    return ""


def _without_window(program: Program, train: Chosen, held: Chosen) -> bool:
    """Whether slices in order overlap by more than a look back would need."""
    return share_of(train.within, held.within) >= AT_LEAST and not CONTEXT & {
        w for n in program.identifiers for w in words(n)
    }


def _of_the_same(a: ast.Call, b: ast.Call) -> bool:
    """Whether two draws are of the same numbers."""
    if method(a) == "sample" and method(b) == "sample":
        return ast.dump(a) != ast.dump(b)
    return bool(a.args and b.args) and ast.dump(a.args[0]) == ast.dump(b.args[0])


def _train_has_all(program: Program) -> Iterator[Place]:
    """`Rows(x, y)` for train beside `Rows(x[b], y[b])`, or `train = x` beside `val = x[5000:]`."""
    held = [c for c in chosen(program) if c.side != "train"]
    for scope in dict.fromkeys(c.scope for c in held):
        for name, bindings in scope.bindings.items():
            if (
                side_of(name) != "train"
                or len(bindings) != 1
                or bindings[0].how != "assign"
                or bindings[0].index is not None
            ):
                continue
            for part in (c for c in held if c.scope is scope):
                whole = _whole(program, bindings[0].value, part)
                used = any(
                    isinstance(r, ast.Name) and r.id == name for _, r, _ in row_takes(program)
                )
                if whole and not used and not apart(program, bindings[0].value, part.node):
                    yield (
                        bindings[0].value,
                        (
                            f"{name} is made of all rows of {whole}, and {part.side} of"
                            f" {ast.unparse(part.node)}"
                        ),
                        scope.node if scope.name else part.node,
                    )
                    break


def _whole(program: Program, value: ast.expr, part: Chosen) -> str:
    """The table that a value holds as a whole of which a side takes a part, in the same place of
    the same call.
    """
    if isinstance(value, ast.Name):
        return (
            value.id
            if table_key(program, value, part.scope) == part.table and _is_direct(program, part)
            else ""
        )
    inner = program.parents[part.node]
    if not isinstance(inner, ast.Call) or part.node not in inner.args:
        return ""
    for call in calls(value):
        at = inner.args.index(part.node)
        if (
            dotted(call.func) != dotted(inner.func)
            or len(call.args) != len(inner.args)
            or not dotted(call.func)
        ):
            continue
        given = call.args[at]
        if not isinstance(given, ast.Name) or table_key(program, given, part.scope) != part.table:
            continue
        others = [*call.args, *(k.value for k in call.keywords)]
        selecting = {w for k in call.keywords for w in words(k.arg or "")} | {
            w for a in others for n in names_read(a) for w in words(n)
        }
        if not selecting & SELECTS and not any(
            isinstance(n, ast.Subscript) for a in others for n in walk(a)
        ):
            return given.id
    return ""


def _is_direct(program: Program, part: Chosen) -> bool:
    """Whether a side is the rows that are taken themselves."""
    above = program.parents[part.node]
    return isinstance(above, ast.Assign) or (
        isinstance(above, ast.Tuple) and isinstance(program.parents[above], ast.Assign)
    )


def _split_twice(program: Program) -> Iterator[Place]:
    """Test rows split off a table, and then train and validation rows split off the same table once
    more, not off what was left.
    """
    found: list[tuple[ast.Call, Scope, str, set[str]]] = []
    for call in program.calls_of("train_test_split", "random_split"):
        statement, scope = program.statement(call), program.scope(call)
        if not call.args or not isinstance(statement, ast.Assign):
            continue
        if statement.value is call and isinstance(call.args[0], ast.Name):
            names = {last_name(e) for t in statement.targets for e in elements_of(t)}
            found.append(
                (
                    call,
                    scope,
                    table_key(program, call.args[0], scope),
                    {side_of(n) for n in names} - {""},
                )
            )
    for (a, scope, table, sides), (b, again, same, others) in combinations(found, 2):
        fresh = (
            scope is again
            and table == same
            and ast.dump(a) != ast.dump(b)
            and not apart(program, a, b)
        )
        if (
            fresh
            and "train" in sides
            and "train" not in others
            and others & {"test", "val"}
            and not sides & {"test", "val"}
        ):
            yield (
                b,
                (
                    f"{' and '.join(sorted(others))} rows are split off {ast.unparse(b.args[0])} by"
                    f" another draw than the train rows of line {line_of(a)}"
                ),
            )
        for held in ("test", "val"):
            if fresh and held in sides and held not in others and "train" in others:
                yield (
                    b,
                    (
                        f"train rows are split off {ast.unparse(b.args[0])} again, of which line"
                        f" {line_of(a)} took the {held} rows"
                    ),
                    scope.node if scope.name else b,
                )
                break


def _two_orders(program: Program) -> Iterator[Place]:
    """`train, test = order[:n], torch.randperm(len(x))[n:]`: the positions of each side come from
    an order of its own.
    """
    for scope in program.scopes if program.calls_of("randperm", "permutation") else ():
        sides: dict[str, tuple[ast.expr, ast.Call]] = {}
        for name, bindings in scope.bindings.items():
            value = bindings[0].value if len(bindings) == 1 and bindings[0].index is None else None
            drawn = (
                value_of(program, value.value, scope)
                if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice)
                else None
            )
            if (
                isinstance(drawn, ast.Call)
                and last_name(drawn.func) in ("randperm", "permutation")
                and value is not None
                and side_of(name)
            ):
                sides.setdefault("train" if side_of(name) == "train" else "held", (value, drawn))
        if len(sides) == 2 and sides["train"][1] is not sides["held"][1]:
            seeded = any(
                k.arg == "generator" for d in sides.values() for k in d[1].keywords
            ) or not all(d[1].args for d in sides.values())
            if not seeded and ast.dump(sides["train"][1]) == ast.dump(sides["held"][1]):
                yield (
                    sides["held"][0],
                    "the positions come from another order than those of train: rows are in both",
                )
