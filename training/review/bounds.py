"""Sides that are taken by bounds of one value, `rows[rank >= 1]` and `rows[rank == 1]`: which of
them share rows.
"""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from training.review.program import Program, Scope
from training.review.sides import row_takes, side_of, targets_of
from training.review.syntax import constant


class Range(NamedTuple):
    """Numbers between two bounds, each of which belongs to it or not."""

    low: float
    high: float
    with_low: bool
    with_high: bool

    def meets(self, other: Range) -> bool:
        """Whether a number is in both.

        >>> at_least_1, is_1, above_1 = Range(1, math.inf, True, False), Range(1, 1, True,
        ...     True), Range(1, math.inf, False, False)
        >>> at_least_1.meets(is_1), above_1.meets(is_1)
        (True, False)
        """
        low, high = max(self.low, other.low), min(self.high, other.high)
        if low != high:
            return low < high
        return all(
            (r.with_low or r.low < low) and (r.with_high or r.high > low) for r in (self, other)
        )


class Taken(NamedTuple):
    """Rows of one side that are taken by bounds of a value."""

    node: ast.expr
    side: str
    range: Range


def meeting(program: Program) -> Iterator[tuple[ast.expr, str, Scope]]:
    """Rows of a side that are in another side as well: the later of both, what to tell, and the
    function.
    """
    found: dict[tuple[Scope, str, str], list[Taken]] = defaultdict(list)
    for node, rows, selector in row_takes(program):
        bounds = _range(selector)
        names = {side_of(n) for n in targets_of(program, node)} - {""}
        if bounds is not None and len(names) == 1:
            found[program.scope(node), ast.unparse(rows), bounds[0]].append(
                Taken(node, names.pop(), bounds[1])
            )
    for (scope, _, _), taken in found.items():
        for a, b in combinations(taken, 2):
            if a.side != b.side and a.range.meets(b.range):
                yield (
                    b.node,
                    (
                        f"{b.side} takes {ast.unparse(b.node)}, and {a.side} takes"
                        f" {ast.unparse(a.node)}: some rows are in both"
                    ),
                    scope,
                )
                break


def whole_beside_part(program: Program) -> Iterator[tuple[ast.expr, str, Scope]]:
    """`return rows, rows[rank == 0]`, which a caller unpacks as train and test: the train side is
    all of the table.
    """
    for node in program.nodes[ast.Return]:
        made = node.value
        if not isinstance(made, ast.Tuple):
            continue
        for whole in (e for e in made.elts if isinstance(e, ast.Name)):
            if {side_of(n) for n in targets_of(program, whole)} != {"train"}:
                continue
            for part in made.elts:
                bounds = (
                    _range(part.slice)
                    if isinstance(part, ast.Subscript) and ast.unparse(part.value) == whole.id
                    else None
                )
                if bounds is not None and {side_of(n) for n in targets_of(program, part)} & {
                    "val",
                    "test",
                }:
                    yield (
                        part,
                        f"train is all of {whole.id}, and {ast.unparse(part)} is a part of it",
                        program.scope(part),
                    )
                    break


def _range(selector: ast.expr) -> tuple[str, Range] | None:
    """What a comparison bounds, and by which numbers; None for anything else."""
    match selector:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            number = constant(right)
            if not isinstance(number, (int, float)) or isinstance(number, bool):
                return None
            ranges = {
                ast.Eq: Range(number, number, True, True),
                ast.GtE: Range(number, math.inf, True, False),
                ast.Gt: Range(number, math.inf, False, False),
                ast.LtE: Range(-math.inf, number, False, True),
                ast.Lt: Range(-math.inf, number, False, False),
            }
            found = ranges.get(type(op))
            return (ast.unparse(left), found) if found is not None else None
    return None
