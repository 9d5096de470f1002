"""Rule BH119: ReduceLROnPlateau waits for the wrong direction."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.direction import direction
from training.review.findings import Place, Subject, rule
from training.review.rules_schedule import stepped
from training.review.syntax import constant, keyword


@rule("BH119")
def plateau_in_wrong_direction(subject: Subject) -> Iterator[Place]:
    """The literal mode of a plateau schedule is not the one in which the value that it is stepped
    with gets better, by all that names it.
    """
    for event, made in stepped(subject.program, subject.traces):
        watched = keyword(event.call, "metrics", 0)
        if (
            made.last != "ReduceLROnPlateau"
            or watched is None
            or any(k.arg is None for k in made.call.keywords)
        ):
            continue
        given = keyword(made.call, "mode", 1)
        mode = "min" if given is None else constant(given)
        better = direction(subject.program, watched, event.scope)
        if mode in ("min", "max") and better and better != mode:
            yield (
                made.call,
                f"mode is {mode!r}, and {ast.unparse(watched)} gets better the other way",
                event.node,
            )
