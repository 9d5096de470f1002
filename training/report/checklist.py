"""The training checklist: every requirement on model, training and checkpoints, held against what
one run recorded.

A statement is a function of recorded facts (`RunFacts`): the preflight's results, what the training
program saw of itself, `metrics.jsonl`, the checkpoints as they lie on disk now, the evaluated rows.
Where nothing was recorded it says so, and never that all is well. The items stand in
`checklist_model`, `checklist_training` and `checklist_files`.
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
    """The checklist of a finished run; its checkpoints are verified once more for it.

    Args:
        run_dir: of the run.
        declaration: as it ran.
        prepared: the data.
        preflight: what was found on one batch.
        train: the outcome of the training program.
        test: the evaluation of the test side.
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
    """Every item, in the order of a run's life."""
    for name, (title, statements) in {
        **checklist_model.ITEMS,
        **checklist_training.ITEMS,
        **checklist_files.ITEMS,
    }.items():
        found = tuple(statements(facts))
        yield ChecklistItem(id=name, title=title, standing=worst(found), statements=found)


def worst(statements: Iterable[Statement]) -> Standing:
    """The standing of an item: that of its worst statement; "shown" beats "not applicable"."""
    return min((s.standing for s in statements), key=WORST.index)
