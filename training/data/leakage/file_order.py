"""Position of a row in its file, compared with the label.

Only files from elsewhere still have their own order.
"""

from __future__ import annotations

from schemas.config import SplitName
from schemas.records import CheckResult
from training.data.engine.engine import ident
from training.data.leakage.order import find_order, judge_order
from training.data.leakage.sampled import sampled
from training.data.leakage.sides import Sides
from training.data.leakage.verdict import judged

PLACE = "place in the file"
REMEDY = (
    "shuffle the files, and ask how their rows came to be in the order of the label: a batch, a"
    " loader or a fold that goes by place will tell it"
)


def file_order_results(sides: Sides) -> list[CheckResult]:
    """Warn if a row's number in its file predicts the label better than the declared time does."""
    places: dict[SplitName, str] = {}
    before = 0
    for side, relation in sides.relations.items():
        kept = ", ".join(ident(c) for c in ("__group", "__time", *sides.spec.label_columns))
        places[side] = (
            f"(select cast({before} + row_number() over () as varchar) as __id, {kept} from"
            f" {relation})"
        )
        before += sides.num_rows[side]
    spec = sides.spec.model_copy(
        update={"id": (PLACE,), "numeric": (), "categorical": (), "tensor": {}, "text": None}
    )
    numbered = Sides(sides.connection, places, sides.num_rows, spec, sides.declaration)
    rows = sampled(numbered)
    found = next(
        r
        for r in judge_order(find_order(rows, numbered), rows, sides.declaration.checks)
        if r.name == "id_order"
    )
    said = (
        {
            "summary": found.summary.replace(
                f"the number in id {PLACE!r}", "the place of a row in its file"
            ),
            "remedy": REMEDY,
        }
        if found.verdict != "pass"
        else {}
    )
    return [
        judged(
            found.model_copy(update={"name": "file_order", "columns": (), **said}),
            sides.declaration,
        )
    ]
