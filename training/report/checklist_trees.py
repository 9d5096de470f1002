"""Checklist items of boosted trees, in place of those on networks, steps and resuming."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from schemas.observed import Statement
from training.formatting import number, plural
from training.report.checklist_facts import (
    LOG,
    PREFLIGHT,
    RESULT,
    Items,
    RunFacts,
    Statements,
    fact,
    from_check,
    not_applicable,
    not_shown,
)
from training.report.checklist_model import NAMED

DISK = "checkpoints, verified again for this page"
NO_STEPS = "trees are fitted without gradients, steps or an optimizer"
ONE_PROCESS = "trees are fitted in one process, without ranks"
NO_MODES = "trees compute the same in training and scoring"
AGAIN = "a fit that is cut off starts again from the first tree and gives the same trees"
WITHOUT: dict[str, str] = {
    "M5": "the trees are built in; no code of yours took part",
    "T1": ONE_PROCESS,
    "T2": NO_STEPS,
    "T3": NO_STEPS,
    "T4": "trees compare and add in float64, whatever train.precision says",
    "T5": NO_STEPS,
    "T6": NO_STEPS,
    "T7": NO_STEPS,
    "T8": NO_MODES,
    "T11": NO_STEPS,
    "T14": "scikit-learn does not report its memory",
    "T15": ONE_PROCESS,
    "C2": f"there is no state of a loop to save: {AGAIN}",
    "C5": AGAIN,
    "C6": f"nothing is saved before the end: {AGAIN}",
}


def trees(facts: RunFacts) -> Iterator[Statement]:
    """Check that trees as arrays score like scikit-learn's."""
    yield from_check(facts, "trees")
    yield fact(
        facts.train.num_parameters == facts.preflight.num_parameters == 0,
        f"{plural(facts.train.best_step, 'iteration')} kept, of {facts.train.steps} fitted; no"
        " parameter is trained by gradients",
        f"{PREFLIGHT}, {RESULT}",
    )


def tried(facts: RunFacts) -> Iterator[Statement]:
    """List each check on a few trees."""
    for name in (r.name for r in facts.preflight.checks.results if r.name not in NAMED):
        yield from_check(facts, name)


def kept_iteration(facts: RunFacts) -> Iterator[Statement]:
    """Check that the kept iteration has the lowest validation loss in the log."""
    steps, losses = facts.history.series("evaluations", "val/loss")
    if not losses:
        yield not_shown("no evaluation was logged", LOG)
        return
    kept = dict(zip(steps, losses, strict=True)).get(facts.train.best_step)
    told = (
        f"of {plural(len(losses), 'evaluation')} the lowest validation loss is"
        f" {number(min(losses))}; kept: iteration {facts.train.best_step}, loss {number(kept)}"
    )
    if len(facts.prepared.statistics.labels) > 1:
        yield fact(kept is not None, f"each label keeps its own best iteration; {told}", LOG)
        return
    # the fit compares losses in another precision than the log's
    is_lowest = kept is not None and kept <= min(losses) + 1e-5 * abs(min(losses))
    yield fact(is_lowest, told, f"{LOG}, {RESULT}")


def repeatable(facts: RunFacts) -> Iterator[Statement]:
    """Report what a repeated fit depends on."""
    seed = facts.declaration.train.seed
    yield fact(True, f"seed {seed}; promise: {facts.train.promise or 'none'}", RESULT)


def all_rows(facts: RunFacts) -> Iterator[Statement]:
    """Check that every train row took part in each iteration."""
    rows = facts.prepared.arrays.train.rows
    text = f"each of {plural(facts.train.steps, 'iteration')} was fitted on {plural(rows, 'row')}"
    yield fact(rows > 0, text, RESULT)


def kept_files(facts: RunFacts) -> Iterator[Statement]:
    """Check that the kept trees exist."""
    wanted = f"best-{facts.train.best_step:08d}"
    names = [c.name for c in facts.files.checkpoints]
    yield fact(
        wanted in names, f"the trees are in {wanted}", DISK, f"the trees, {wanted}, are gone"
    )


def _without(why: str, _facts: RunFacts) -> Iterator[Statement]:
    yield not_applicable(why)


OWN: dict[str, tuple[str, Statements]] = {
    "M1": ("The trees that are served are those that scikit-learn fitted", trees),
    "M4": ("What would fail after hours was tried on a few trees before", tried),
    "T10": ("The iterations with the lowest validation loss are kept", kept_iteration),
    "T12": ("The run can be repeated as its mode promises", repeatable),
    "T13": ("All train rows take part", all_rows),
    "C4": ("The kept trees are there", kept_files),
}


def for_trees(items: Items) -> Items:
    """Return the items with those of trees in place of a network's."""
    return {
        name: OWN.get(
            name,
            (title, partial(_without, WITHOUT[name]) if name in WITHOUT else statements),
        )
        for name, (title, statements) in items.items()
    }
