"""Report section on the search behind a model: how many trials, which values, how far they hold."""

from __future__ import annotations

from schemas.config import Declaration
from schemas.records import EvaluationReport, TrainReport
from schemas.search_config import SearchFound
from training.formatting import capital, duration, metric_name, number, plural, show
from training.registry.evidence import searched
from training.report.blocks import Block, Callout, Facts, Heading, Words, table

SAME = 1e-9  # relative difference of two scores that counts as none


def search_blocks(
    declaration: Declaration, train: TrainReport, test: EvaluationReport
) -> list[Block]:
    """Show what was tried before these values, and the gap from validation to test; none without a
    search.
    """
    found = declaration.search.found if declaration.search else None
    evidence = searched(declaration, test)
    if found is None or evidence is None:
        return []
    name = capital(metric_name(found.metric))
    facts = (
        ("Trials", str(found.trials)),
        ("Stopped early", str(found.pruned)),
        ("Failed", str(found.failed)),
        ("Time", duration(found.hours * 3600)),
        ("Best trial", str(found.trial)),
        (f"{name} on validation rows, best trial", number(found.score)),
        (f"{name} on validation rows, as declared", number(found.declared_score)),
        (f"{name} on test rows", number(evidence["test_score"])),
        ("Validation better than test by", number(evidence["gap"])),
        ("Run of the search", found.run_id),
    )
    blocks: list[Block] = [Words(_meaning(found)), Facts(facts), *_changed(found, train)]
    return [
        *blocks,
        Heading("Values of the best trial"),
        table(("path", "value"), [(path, show(value)) for path, value in found.params.items()]),
    ]


def _meaning(found: SearchFound) -> str:
    return (
        f"The values below are the best of {plural(found.trials, 'trial')} by"
        f" {metric_name(found.metric)} on the validation rows. That score is therefore too good: of"
        " many trials, the luckiest is chosen. The test rows were not read by any trial, so the"
        " test score does not suffer from this."
    )


def _changed(found: SearchFound, train: TrainReport) -> list[Block]:
    """Report a training that did not reach its trial's score."""
    again = train.best_metric
    if again is None or abs(again - found.score) <= SAME * max(1.0, abs(found.score)):
        return []
    return [
        Callout(
            "warn",
            "Not the trial's score",
            f"Trained again, the best validation score is {number(again)}, in the search it was"
            f" {number(found.score)}: another machine, software, or train.mode: fast.",
        )
    ]
