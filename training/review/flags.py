"""The idiom `is_best = score < best; best = min(best, score); save(state, is_best)`, put as the
condition that it stands for: `if score < best: best = score; save(state, is_best)`.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass
from typing import cast

from training.review.syntax import located, names_read, of_kind, whole

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


def with_flags(tree: ast.Module) -> ast.Module:
    r"""The tree with each such flag as a condition, where it is compared before the best changes
    and agrees with that change.

    >>> print(ast.unparse(with_flags(ast.parse("for e in r:\n    top = acc > best\n    best = max(acc, best)\n    save(net.state_dict(), top)"))))
    for e in r:
        top = acc > best
        if acc > best:
            best = acc
            save(net.state_dict(), top)
    """  # noqa: E501
    if not any(
        isinstance(n.func, ast.Name) and n.func.id in BETTER and len(n.args) == 2
        for n in of_kind(tree, ast.Call)
    ):
        return tree
    put = False
    for node in whole(tree):
        for part in ("body", "orelse"):
            block = getattr(node, part, None)
            if isinstance(block, list) and len(block) > 1:
                for flag in flags_of(block):
                    put |= flag.agrees and not flag.late and _put(block, flag)
    return located(tree) if put else tree


def _put(block: list[ast.stmt], flag: Flag) -> bool:
    """Put the condition, where something is saved by the flag."""
    saves = [
        s
        for s in block
        if isinstance(s, ast.Expr)
        and isinstance(s.value, ast.Call)
        and flag.name in _given(s.value)
        and s.lineno > flag.told.lineno
    ]
    if not saves:
        return False
    first = ast.copy_location(
        ast.Assign(flag.updated.targets, copy.deepcopy(flag.score)), flag.updated
    )
    test = ast.copy_location(copy.deepcopy(flag.told.value), flag.updated)
    made = ast.copy_location(ast.If(test, [first, *saves], []), flag.updated)
    made.end_lineno = saves[-1].end_lineno
    block[:] = [made if s is flag.updated else s for s in block if s not in saves]
    return True


def _given(call: ast.Call) -> set[str]:
    return {
        n
        for a in (*call.args, *(k.value for k in call.keywords))
        for n in names_read(a)
        if isinstance(a, ast.Name)
    }
