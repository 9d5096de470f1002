"""Sentences of a first look at a table, for the page and the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from schemas.table_look import SplitPreview, TableLook
from training.data.dependence.strength import as_score
from training.formatting import count, plain, plural, share

MOST_NAMES = 8
MOST_SETS = 10


def names_of(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Return names in a row, the first few of many."""
    shown = ", ".join(plain(n, 40) for n in names[:most])
    return shown + (f" and {count(len(names) - most)} more" if len(names) > most else "")


def kind_counts(look: TableLook) -> str:
    """Return how many columns there are of each kind, the most frequent kind first."""
    found = Counter(c.kind for c in look.columns).most_common()
    return ", ".join(f"{count(n)} {kind}" for kind, n in found)


def read_words(look: TableLook) -> str:
    """Say how many rows were read closely; empty if all."""
    if look.sampled == look.rows:
        return ""
    return (
        f"{count(look.sampled)} of {count(look.rows)} rows were read closely, chosen by the hash of"
        " their values; figures of all rows are estimates"
    )


def facts(look: TableLook) -> dict[str, tuple[str, ...]]:
    """Return what was found about repeats, missing values and order, as sentences."""
    return {
        "repeats": tuple(_repeats(look)),
        "missing": tuple(_missing(look)),
        "order": tuple(_order(look)),
    }


def _repeats(look: TableLook) -> list[str]:
    found, read = look.repeats, look.sampled
    said = [f"{_rows(found.rows, read)} repeat an earlier row" if found.rows else "No row repeats"]
    if found.apart_from_ids > found.rows:
        said.append(
            f"{_rows(found.apart_from_ids, read)} repeat an earlier row apart from id-like columns"
        )
    for words, sets in (
        ("Equal in every row", found.equal),
        ("One to one, under another name", found.one_to_one),
    ):
        said += [f"{words}: {names_of(names)}" for names in sets[:MOST_SETS]]
        if len(sets) > MOST_SETS:
            said.append(f"{words}: {count(len(sets) - MOST_SETS)} more sets of columns")
    return said


def _missing(look: TableLook) -> list[str]:
    holed = [c for c in look.columns if c.nulls]
    if not holed:
        return ["No value is missing"]
    worst = sorted(holed, key=lambda c: -c.nulls)[:MOST_NAMES]
    listed = ", ".join(f"{plain(c.name, 40)} {share(c.nulls / look.sampled)}" for c in worst)
    more = f" and {count(len(holed) - len(worst))} more" if len(holed) > len(worst) else ""
    said = [f"{plural(len(holed), 'column')} with nulls: {listed}{more}"]
    said += [
        f"Null together in {_rows(block.rows, look.sampled)}: {names_of(block.columns)}"
        for block in look.missing[:MOST_SETS]
    ]
    return said


def _order(look: TableLook) -> list[str]:
    found, said = look.order, []
    if found.rising:
        said.append(f"Rising along the file: {names_of(found.rising)}")
    if found.falling:
        said.append(f"Falling along the file: {names_of(found.falling)}")
    if not said:
        said.append("No column rises or falls along the file")
    if found.label_blocks and look.label is not None:
        means = ", ".join(f"{mean:.3g}" for mean in found.label_blocks)
        what = f"{plain(look.label, 40)}" + (
            f" = {plain(look.target, 40)}" if look.target is not None else ""
        )
        verdict = (
            "moves along the rows: the order of the file tells the label, or time does"
            if found.label_moves
            else "does not move along the rows"
        )
        said.append(f"{what} {verdict} (means of ten blocks: {means})")
    return said


def _rows(rows: int, of: int) -> str:
    return f"{plural(rows, 'row')} ({share(rows / of)})"


def tied_words(look: TableLook) -> str:
    """Say which rows belong together and both scores; empty if none were found."""
    found = look.tied
    if found is None:
        return ""
    names = names_of(found.columns)
    return (
        f"Rows of one {names} belong together: {as_score(found.as_split, found.is_class)} of"
        f" {plain(look.label, 40)} if rows are split at random,"
        f" {as_score(found.honest, found.is_class, named=False)} if rows of one value stay together"
        f" ({plural(found.values, 'value')} in {plural(found.rows, 'row')}; a quick learner)"
    )


def split_row(split: SplitPreview) -> tuple[str, str, str, str, str]:
    """Return a split as a line of a table: split, groups, rows and positives in test, remark."""
    name = {
        "random": "rows at random",
        "group": f"group {plain(split.column, 60)}",
        "time": f"time {plain(split.column, 60)}",
    }[split.kind]
    groups = (
        f"{count(split.test_groups)} of {count(split.groups)}"
        if split.groups is not None and split.test_groups is not None
        else ""
    )
    return (
        name,
        groups,
        _range(split.test_rows, split.test_rows_low, split.test_rows_high),
        _range(split.test_positives, split.test_positives_low, split.test_positives_high),
        split.note,
    )


def _range(middle: int | None, low: int | None, high: int | None) -> str:
    if middle is None:
        return ""
    if low is None or high is None or low == high:
        return count(middle)
    return f"{count(middle)} ({count(low)} to {count(high)})"
