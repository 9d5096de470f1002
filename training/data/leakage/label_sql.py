"""Labels as numbers in SQL, for checks that scan all rows."""

from __future__ import annotations

from typing import NamedTuple

from training.data.engine.engine import ident, literal, rows
from training.data.leakage.sides import Sides

MOST_CLASSES = 3


class LabelNumber(NamedTuple):
    """Label as SQL of a double, null where unknown.

    It is the number itself, or 1 for one class and 0 for the others.
    """

    name: str
    sql: str


def label_numbers(sides: Sides, with_places: bool = False) -> list[LabelNumber]:
    """Return the label as numbers: itself, the rarer of two classes, or the most frequent classes.

    `with_places` adds, for several classes, the index of the class in their order, as
    label encoders compute it.
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
