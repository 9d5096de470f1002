"""Draft a declaration from a table, for `bulkhead init`."""

from __future__ import annotations

from schemas.config import Declaration
from schemas.database_config import ONLY_TABLE, Choice
from schemas.records import CheckResult, SplitTables, ValidatedTable
from training.data.draft.draft import FINDING, draft
from training.data.draft.label_guess import Ask, LabelChoice
from training.data.leakage import check_leakage, check_overlap

__all__ = ["Ask", "LabelChoice", "draft_declaration", "failed_checks", "findings_of"]


def draft_declaration(
    uri: str,
    label: str | None,
    name: str | None,
    ask: Ask | None = None,
    choice: Choice = ONLY_TABLE,
) -> str:
    """Return a declaration as YAML text, with the reason for each guess next to it.

    `ask` chooses the label among candidates, where neither `label` nor a name tells.
    """
    return draft(uri, label=label, name=name, judge=failed_checks, ask=ask, choice=choice)


def findings_of(text: str) -> list[str]:
    """Return what a draft says on top of the checks that its run will stop at."""
    lines = text.splitlines()
    return [line.removeprefix("# ") for line in lines if line.startswith(FINDING)]


def failed_checks(
    made: SplitTables, validated: ValidatedTable, declaration: Declaration
) -> tuple[CheckResult, ...]:
    """Return the checks that would stop the run of a declaration before training."""
    overlap = check_overlap(made, validated, declaration).failed
    return overlap or check_leakage(made, validated, declaration).failed
