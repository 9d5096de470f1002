"""Try a draft on its own table: what the run would refuse before training is found now."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from schemas.config import Declaration
from schemas.errors import BulkheadError
from schemas.load import declare
from schemas.records import CheckResult, SplitTables, ValidatedTable
from training.data.arrays.new_nulls import new_nulls
from training.data.draft.guesses import Draft, Guess
from training.data.engine.in_memory import holding
from training.data.fit.normalize import fit
from training.data.sources.source import fingerprint
from training.data.split.split import split
from training.data.table.validate import validate

# checks whose failure means that columns hold the answer
ANSWERS = ("label_proxy", "label_combination", "label_missingness", "pure_values", "equal_values")
# returns the checks of leaks that fail on the sides of a draft
Judge = Callable[[SplitTables, ValidatedTable, Declaration], Sequence[CheckResult]]


class Rehearsal(NamedTuple):
    """What a run of the draft says before training.

    `refusal` is None if it accepts, `failed` are the checks of leaks that stop it, `nullable` are
    numbers that are null on other sides than train.
    """

    refusal: str | None
    is_constant: bool = False
    failed: tuple[CheckResult, ...] = ()
    nullable: tuple[str, ...] = ()

    @property
    def is_torn(self) -> bool:
        """Return True if another split of the same rows may be accepted."""
        return any(result.name == "stratification" for result in self.failed)


def rehearse(text: str, judge: Judge | None = None) -> Rehearsal:
    """Load, validate, split, check and fit a drafted declaration, in a folder that is removed.

    Args:
        text: the declaration.
        judge: checks for leaks; none are made without it.
    """
    with tempfile.TemporaryDirectory(prefix="bulkhead-draft-") as folder, holding():
        try:
            declaration = declare(yaml.safe_load(text), "the draft")
            validated = validate(fingerprint(declaration.data), declaration, Path(folder))
            made = split(validated, declaration, Path(folder) / "split", Path(folder) / "ledger")
            statistics = fit(made.train, validated.spec, declaration)
            others = [ref for ref in (made.val, made.test) if ref is not None]
            nulls = {n: 0 for ref in others for n in new_nulls(ref, statistics, declaration.data)}
            failed = tuple(judge(made, validated, declaration)) if judge else ()
        except BulkheadError as error:
            message = str(error)
            return Rehearsal(message, "checks.constant_features" in message)
    return Rehearsal(None, failed=failed, nullable=tuple(nulls))


def amended(draft: Draft, failed: Sequence[CheckResult]) -> Draft:
    """Return the draft without what the failed checks found, as far as one line can do that.

    A column that holds the answer is left out, with the finding as the reason. Rows that are equal
    or nearly so in every feature become a group, also together with a declared one. A group that is
    spelt in several ways is brought to one.
    """
    # a column that numbers what rows belong to: without it they would stay tied
    tying = {
        result.columns[0]
        for result in failed
        if result.name == "dependence" and result.figures.get("tie") == "key"
    }
    for result in failed:
        if result.name in ANSWERS:
            for column in result.columns:
                if draft.columns[column].is_feature and column not in tying:
                    draft = draft.with_column(
                        column, Guess("ignore", f"suspicious: {result.summary}; known before it?")
                    )
        elif result.name in ("duplicates", "near_duplicates") and not (
            draft.molecules or draft.tied or draft.split or (draft.time and not draft.groups)
        ):
            draft = draft._replace(together=(result.name, result.summary))
        elif result.name == "group_alias" and (text := result.figures.get("one_spelling")):
            draft = _of_one_spelling(draft, result, str(text))
    return draft


def _of_one_spelling(draft: Draft, result: CheckResult, expression: str) -> Draft:
    """Group by the group's name in one spelling, where it is a column of the table."""
    name = result.columns[0]
    if draft.groups is None or draft.groups.name != name or name in draft.derive:
        return draft
    new = f"{name}_key"
    while new in draft.columns:
        new += "_"
    columns = {**draft.columns, name: Guess("ignore", "the group is derived of it")}
    return draft._replace(
        groups=draft.groups._replace(name=new),
        derive={**draft.derive, new: (expression, result.summary)},
        columns={**columns, new: Guess("group", draft.columns[name].why)},
    )
