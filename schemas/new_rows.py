"""Record of the rows that a run has and the one before had not."""

from __future__ import annotations

from pydantic import Field

from schemas.references import Record


class NewRows(Record):
    """Rows of each side that the run before did not have there.

    `since`: the run before, in words. `cut`: where a time split's validation begins; `is_frozen`:
    whether the ledger holds it. `moves_on`: it moves with the table (`split.roll`).
    """

    since: str
    train: int
    val: int
    test: int
    cut: str | None = None
    is_frozen: bool = False
    moves_on: bool = Field(False, exclude_if=lambda found: not found)

    @property
    def learns_nothing_new(self) -> bool:
        """True if rows were added and none of them is or will be used for training."""
        return self.train == 0 and self.val + self.test > 0 and not self.moves_on

    @property
    def sentence(self) -> str:
        """The counts, with the reason if train got no rows."""
        nouns = ", ".join(f"{n:,} {side}" for side, n in (("val", self.val), ("test", self.test)))
        counts = (
            f"{self.train:,} new train row{'' if self.train == 1 else 's'} since {self.since}"
            f" ({nouns})"
        )
        if self.cut is None or self.train:
            return counts
        if self.moves_on:
            return f"{counts}; the cut is at {self.cut} until the windows of split.roll move on"
        ending = "; rows after it never train, see docs/scheduling.md" if self.is_frozen else ""
        return (
            f"{counts}; the cut {'is frozen' if self.is_frozen else 'stands'} at {self.cut}{ending}"
        )
