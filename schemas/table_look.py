"""What `bulkhead look` finds in a table before there is a declaration."""

from __future__ import annotations

from typing import Literal

from schemas.references import Record

LookKind = Literal[
    "numeric", "categorical", "boolean", "text", "time", "id-like", "constant", "list", "other"
]
LookRole = Literal["id", "group", "time", "label", "weight"]


class Bar(Record):
    """A value and its rows, or an interval of numbers and the rows within."""

    text: str
    rows: int


class ColumnLook(Record):
    """One column in the rows that were read.

    `distinct` counts values besides null. `bars` are intervals of equal width of a number or time,
    else the most frequent values; `others` are the rows of all other values. `low` and `high` are
    the extremes as text.
    """

    name: str
    type: str
    kind: LookKind
    nulls: int
    distinct: int
    low: str = ""
    high: str = ""
    bars: tuple[Bar, ...] = ()
    others: int = 0


class Repeats(Record):
    """Rows and columns that say the same.

    `rows` repeat an earlier row in every column; `apart_from_ids` do so in every column that is not
    id-like. `equal` are sets of columns with the same values in every row; `one_to_one` are sets in
    which each value of one column goes with one value of the other.
    """

    rows: int
    apart_from_ids: int
    equal: tuple[tuple[str, ...], ...] = ()
    one_to_one: tuple[tuple[str, ...], ...] = ()


class MissingBlock(Record):
    """Columns that are null in exactly the same rows, and the number of these rows."""

    columns: tuple[str, ...]
    rows: int


class OrderLook(Record):
    """What the order of the rows in the file says.

    `rising` and `falling` columns never turn along the rows. `label_blocks` are the label's means
    (its share, of a class) in ten consecutive blocks of rows; `label_moves` is true if they differ
    by more than chance.
    """

    rising: tuple[str, ...] = ()
    falling: tuple[str, ...] = ()
    label_blocks: tuple[float, ...] = ()
    label_moves: bool = False


class TiedRows(Record):
    """Rows that belong together, by what a quick learner's score loses when they are kept whole.

    `columns`: of whose equal values the rows belong together, `values` of them in `rows` rows.
    `as_split` and `honest`: the score if rows are split at random, and if rows of one value stay
    together; strength from 0 to 1, `2 AUROC - 1` where `is_class`, else R2 of ranks.
    """

    columns: tuple[str, ...]
    values: int
    rows: int
    as_split: float
    honest: float
    is_class: bool


class RoleCandidate(Record):
    """A column that could have a role, the reason, and the figures behind it."""

    role: LookRole
    column: str
    reason: str
    figures: dict[str, float] = {}


class SplitPreview(Record):
    """What a split would leave in test.

    `column` is none for a split of rows at random. `low` and `high` are the 5 % and 95 % quantiles
    over draws of whole groups; of a split by time there is one draw. Rows and groups are of the
    whole table, estimated if not every row was read.
    """

    kind: Literal["random", "group", "time"]
    column: str | None
    groups: int | None = None
    test_groups: int | None = None
    test_rows: int
    test_rows_low: int
    test_rows_high: int
    test_positives: int | None = None
    test_positives_low: int | None = None
    test_positives_high: int | None = None
    note: str = ""


class TableLook(Record):
    """One look at a table.

    `sampled` rows were read closely; they are all rows unless there are more than a look takes.
    `label` is the requested column, or the first candidate; `target` says which rows of it are
    counted as positive: `positive` of them, of a label with classes. `tied`: rows that a score
    would rest on, if they were split at random.
    """

    name: str
    format: str
    num_files: int
    rows: int
    sampled: int
    columns: tuple[ColumnLook, ...]
    repeats: Repeats
    missing: tuple[MissingBlock, ...]
    order: OrderLook
    candidates: tuple[RoleCandidate, ...]
    label: str | None = None
    target: str | None = None
    positive: int | None = None
    splits: tuple[SplitPreview, ...] = ()
    tied: TiedRows | None = None
    seconds: float = 0.0
