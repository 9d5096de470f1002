"""Labels as numbers in SQL, for checks that pass over all rows."""

from __future__ import annotations

from typing import NamedTuple

from training.data.engine.engine import ident, literal, rows
from training.data.leakage.sides import Sides

MOST_CLASSES = 3


class LabelNumber(NamedTuple):
    """A label as SQL of a double (null where unknown): the number itself, or 1 for one class and 0
    for the others.
    """

    name: str
    sql: str


def label_numbers(sides: Sides, with_places: bool = False) -> list[LabelNumber]:
    """Of each label the number, the rarer of two classes, or each of the most frequent of several.

    `with_places` adds, of several classes, the place of the class in their order, which is what
    label encoders make of it.
    """
    found: list[LabelNumber] = []
    for name in sides.spec.label_columns if sides.spec.text is None else ():
        if sides.declaration.task.label(name).kind == "regression":
            found.append(LabelNumber(name, f"cast({ident(name)} as double)"))
            continue
        counts = rows(
            sides.connection,
            f"select {ident(name)}, count(*) as n from {sides.relations['train']} where"
            f" {ident(name)} is not null group by 1",
        )
        classes = [value for value, _ in sorted(counts, key=lambda c: (-c[1], str(c[0])))]
        chosen = classes[-1:] if len(classes) == 2 else classes[:MOST_CLASSES]
        found += [
            LabelNumber(name, f"cast({ident(name)} = {literal(value)} as double)")
            for value in chosen
        ]
        if with_places and len(classes) > 2:
            whens = " ".join(
                f"when {literal(value)} then {place}" for place, value in enumerate(sorted(classes))
            )
            found.append(LabelNumber(name, f"cast(case {ident(name)} {whens} end as double)"))
    return found
