"""Training checklist: every requirement on model, training and checkpoints, compared with a run.

A statement is a function of recorded facts (`RunFacts`): results of preflight, observations of the
training program, `metrics.jsonl`, the checkpoints now on disk, the evaluated rows. Without a record
it says so, and never that the requirement is met. The items are in `checklist_model`,
`checklist_training` and `checklist_files`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from schemas.config import Declaration
from schemas.observed import Checklist, ChecklistItem, Standing, Statement
from schemas.records import EvaluationReport, PreflightReport, Prepared, TrainReport
from training.report import checklist_files, checklist_model, checklist_training
from training.report.checklist_facts import RunFacts
from training.report.checklist_files import read_files
from training.report.checklist_trees import for_trees
from training.report.curves import read_history

WORST: tuple[Standing, ...] = ("contradicted", "warning", "not shown", "shown", "not applicable")


def build_checklist(
    run_dir: Path,
    declaration: Declaration,
    prepared: Prepared,
    preflight: PreflightReport,
    train: TrainReport,
    test: EvaluationReport,
) -> Checklist:
    """Build the checklist of a finished run; verify its checkpoints once more.

    Args:
        run_dir: directory of the run.
        declaration: declaration of the run.
        prepared: the data.
        preflight: results on one batch.
        train: result of the training program.
        test: evaluation on test.
    """
    facts = RunFacts(
        declaration,
        prepared,
        preflight,
        train,
        test,
        read_history(run_dir / "metrics.jsonl"),
        read_files(run_dir, declaration),
    )
    return Checklist(run_id=train.run_id, items=tuple(judge(facts)))


def judge(facts: RunFacts) -> Iterator[ChecklistItem]:
    """Return every item, in the order of a run's life."""
    items = {**checklist_model.ITEMS, **checklist_training.ITEMS, **checklist_files.ITEMS}
    if facts.declaration.model.kind == "boosting":
        items = for_trees(items)
    for name, (title, statements) in items.items():
        found = tuple(statements(facts))
        yield ChecklistItem(id=name, title=title, standing=worst(found), statements=found)


def worst(statements: Iterable[Statement]) -> Standing:
    """Return the worst status of an item's statements; "shown" beats "not applicable"."""
    return min((s.standing for s in statements), key=WORST.index)
