"""Checklist items on model and loss."""

from __future__ import annotations

from collections.abc import Iterator

from schemas.observed import Statement
from training.formatting import count, number, plural
from training.report.checklist_facts import (
    LOG,
    PREFLIGHT,
    RESULT,
    Items,
    RunFacts,
    fact,
    from_check,
    not_applicable,
    not_shown,
)

# preflight's checks with their own item
NAMED = ("review", "forward", "initial_loss", "labels", "tokens")


def network(facts: RunFacts) -> Iterator[Statement]:
    """Check that the trained network is the declared and checked one."""
    declared, trained, checked = (
        facts.declaration.model,
        facts.train.num_parameters,
        facts.preflight.num_parameters,
    )
    what = getattr(declared, "path", "") or declared.kind
    alike = (
        f"{what}: preflight and training counted {plural(trained, 'parameter')} each,"
        f" {count(facts.preflight.num_trainable)} of them trained"
    )
    yield fact(
        trained == checked,
        alike,
        f"{PREFLIGHT}, {RESULT}",
        f"{what}: preflight counted {plural(checked, 'parameter')}, training {count(trained)}: not"
        " the same network",
    )


def contract(facts: RunFacts) -> Iterator[Statement]:
    """Check shapes, finite scores and initial weights."""
    yield from_check(facts, "forward")
    yield from_check(facts, "initial_loss")


def loss(facts: RunFacts) -> Iterator[Statement]:
    """Check the loss, its weights, and its decrease."""
    declaration, fitted = facts.declaration, facts.prepared.statistics
    weighted = (
        ", class weights fitted on train"
        if fitted.class_weights and declaration.loss.class_weights != "none"
        else ""
    )
    yield from_check(facts, "tokens" if fitted.tokens else "labels")
    series = facts.history.series("evaluations", "train_eval/loss")[1]
    name = f"{declaration.loss_kind.replace('_', ' ')}{weighted}"
    if not series:
        yield not_shown(f"{name}: no evaluation was logged", LOG)
        return
    start = facts.preflight.initial_loss
    yield fact(
        min(series) < start,
        f"{name}: {number(start)} before training, at best {number(min(series))} on train rows in"
        " eval mode",
        f"{PREFLIGHT}, {LOG}",
        f"{name}: {number(start)} before training, never below {number(min(series))} afterwards:"
        " nothing was learned",
    )


def preflight(facts: RunFacts) -> Iterator[Statement]:
    """List each check on one batch that no other item names."""
    results = facts.preflight.checks.results
    rest, clean = (
        [r.name for r in results if r.name not in NAMED],
        sum(r.verdict == "pass" for r in results),
    )
    yield fact(
        not facts.preflight.checks.failed,
        f"{clean} of {plural(len(results), 'check')} on one batch passed",
        PREFLIGHT,
    )
    for name in rest:
        yield from_check(facts, name)
    if "overfit" not in rest:
        yield not_shown("no batch was overfitted", PREFLIGHT)


def review(facts: RunFacts) -> Iterator[Statement]:
    """Check that custom code was reviewed."""
    if facts.declaration.model.kind != "custom":
        yield not_applicable(
            f"the network is the built-in {facts.declaration.model.kind}; no code of yours took"
            " part"
        )
        return
    yield from_check(facts, "review")


ITEMS: Items = {
    "M1": ("The network that trained is the one that was declared and checked", network),
    "M2": ("Forward keeps its contract, and the first weights are sound", contract),
    "M3": ("The loss suits the labels, and training lowered it", loss),
    "M4": ("What would fail after hours was tried on one batch before", preflight),
    "M5": ("Your own code was read for well-known mistakes", review),
}
