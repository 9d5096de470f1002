"""Rule BH119: ReduceLROnPlateau waits for the wrong direction."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.direction import direction
from training.review.findings import Place, Subject, rule
from training.review.rules_schedule import stepped
from training.review.syntax import constant, keyword


@rule(
    "BH119",
    "plateau-in-wrong-direction",
    "error",
    title="ReduceLROnPlateau waits for the wrong direction",
    why='With `mode="max"` a falling loss is no progress, and with the default `mode="min"` a rising accuracy is none: the rate is cut every few epochs while all goes well.',
    remedy='give `mode="min"` for losses and errors, `mode="max"` for scores',
    bad="""
        from torch.optim.lr_scheduler import ReduceLROnPlateau

        def fit(optimizer, train_epoch, evaluate, epochs):
            schedule = ReduceLROnPlateau(optimizer, mode="max")
            for epoch in range(epochs):
                train_epoch()
                val_loss = evaluate()
                schedule.step(val_loss)
        """,
    good="""
        from torch.optim.lr_scheduler import ReduceLROnPlateau

        def fit(optimizer, train_epoch, evaluate, epochs):
            schedule = ReduceLROnPlateau(optimizer, mode="min")
            for epoch in range(epochs):
                train_epoch()
                val_loss = evaluate()
                schedule.step(val_loss)
        """,
)
def plateau_in_wrong_direction(subject: Subject) -> Iterator[Place]:
    """The literal mode of a plateau schedule is not the one in which the value that it is stepped with gets better, by all that names it."""
    for event, made in stepped(subject.program, subject.traces):
        watched = keyword(event.call, "metrics", 0)
        if made.last != "ReduceLROnPlateau" or watched is None or any(k.arg is None for k in made.call.keywords):
            continue
        given = keyword(made.call, "mode", 1)
        mode = "min" if given is None else constant(given)
        better = direction(subject.program, watched, event.scope)
        if mode in ("min", "max") and better and better != mode:
            yield made.call, f"mode is {mode!r}, and {ast.unparse(watched)} gets better the other way", event.node
