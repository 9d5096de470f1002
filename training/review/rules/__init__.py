"""All rules, in order of their ids."""

from __future__ import annotations

from training.review.findings import PAGES, RULES, Place, Rule, Subject, read_rule
from training.review.rules import (  # each registers its rules
    accumulation,  # noqa: F401
    arrays,  # noqa: F401
    attention,  # noqa: F401
    best,  # noqa: F401
    distributed,  # noqa: F401
    evaluation,  # noqa: F401
    files,  # noqa: F401
    graph,  # noqa: F401
    leaks,  # noqa: F401
    loaders,  # noqa: F401
    losses,  # noqa: F401
    modules,  # noqa: F401
    optimizers,  # noqa: F401
    precision,  # noqa: F401
    ranks,  # noqa: F401
    schedules,  # noqa: F401
    scores,  # noqa: F401
    selection,  # noqa: F401
    shared,  # noqa: F401
    splits,  # noqa: F401
    steps,  # noqa: F401
    tensors,  # noqa: F401
)


def seen(_: Subject) -> list[Place]:
    """What the program did when it was run (`bulkhead review PROGRAM --run`)."""
    return []


LOADED: dict[str, Rule] = dict(sorted(RULES.items()))  # that read code
RUN_RULES: dict[str, Rule] = {
    id: read_rule(id, seen)
    for id in sorted(page.stem for page in PAGES.glob("BH*.md"))
    if id not in RULES
}  # that only a run shows
KNOWN: dict[str, Rule] = dict(sorted((LOADED | RUN_RULES).items()))
