"""Candidates for the roles of a declaration, from what the values do; names are hints."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from schemas.table_look import LookRole, RoleCandidate
from training.data.draft.column_hints import CALENDAR, has_word, hint_of
from training.data.draft.label_guess import LABEL_WORDS, NO, WEIGHTS, YES, label_names
from training.data.look.along_rows import LEAST
from training.data.look.coded_columns import CodedColumn
from training.data.look.small_pictures import moment_text, number_text

EPOCH = re.compile(r".*(time|epoch|stamp|ts|date).*")
NO_LABELS = ("split", "fold", *WEIGHTS)
PARTS = ("year", "month", "day", "hour")
MOST = 5  # candidates of a role
CHECKED = 200  # columns that are compared with a possible group
TRIED = 12  # possible groups that are compared with the columns
STEADY, COMMON = 0.98, 0.6  # values without a change, and pairs of rows that agree by luck
TOGETHER = 0.9  # rows next to a row of their group
CLASSES = 20


class KnownTable(NamedTuple):
    """The table as the candidates see it.

    `rows` counts all rows; `distinct` gives different values of each column in all rows, exact for
    columns that could be an id; `alike` are sets of columns that say the same.
    """

    columns: tuple[CodedColumn, ...]
    rows: int
    distinct: Mapping[str, int]
    alike: Sequence[tuple[str, ...]] = ()

    def named(self, name: str) -> CodedColumn:
        """Return the column of this name."""
        return next(c for c in self.columns if c.name == name)


def find_candidates(table: KnownTable, label: str | None) -> tuple[RoleCandidate, ...]:
    """Return candidates for id, group, time, label and weight, the likeliest of each role first.

    Args:
        table: the columns and what is known of all rows.
        label: the requested label, which gets no other role.
    """
    others = [c for c in table.columns if c.name != label]
    labels = _labels(table, label)
    likeliest = labels[0].column if labels else None
    return (
        *_ids(table, others),
        *_groups(table, [c for c in others if c.name != likeliest]),
        *_times(table, others),
        *labels,
        *_weights(others),
    )


def _ids(table: KnownTable, columns: Sequence[CodedColumn]) -> list[RoleCandidate]:
    found = []
    for column in columns:
        if column.family not in ("int", "text") or column.kind in ("time", "text", "constant"):
            continue
        distinct = table.distinct[column.name]
        is_key = hint_of(column.name) in ("key", "entity")
        if column.nulls or not (is_key or column.kind == "id-like"):
            continue
        if distinct == table.rows > 1:
            reason = f"another value in every one of {table.rows:,} rows"
        elif is_key and distinct >= 0.99 * table.rows and table.rows >= 100:
            reason = f"{distinct:,} values in {table.rows:,} rows: a few repeat; named like a key"
        else:
            continue
        steps = _steps(column)
        found.append((not is_key, distinct < table.rows, column.name, distinct, reason + steps))
    return [
        _candidate("id", name, reason, distinct=distinct, rows=table.rows)
        for _, _, name, distinct, reason in sorted(found)[:MOST]
    ]


def _steps(column: CodedColumn) -> str:
    if column.by_code is None or len(column.codes) < LEAST or not column.is_unique:
        return ""
    steps = np.unique(np.diff(column.by_code))
    if len(steps) == 1:
        return f"; it counts the rows in steps of {number_text(float(steps[0]))}"
    return "; it rises along the rows" if steps[0] > 0 else ""


def _groups(table: KnownTable, columns: Sequence[CodedColumn]) -> list[RoleCandidate]:
    possible = [
        c
        for c in columns
        if c.family in ("int", "text")
        and c.kind not in ("time", "text", "boolean", "constant")
        and not c.nulls
        and not has_word(c.name, CALENDAR)
        and 2 < table.distinct[c.name] <= (0.9999 if hint_of(c.name) else 0.9) * table.rows
        and c.present > c.distinct
    ]
    possible.sort(key=lambda c: (not hint_of(c.name), -c.distinct))
    found = []
    for column in possible[:TRIED]:
        steady, together = _steady(table, column), _together(column)
        named = bool(hint_of(column.name))
        if named or steady or together > TOGETHER:
            found.append((column, steady, together, named))
    found.sort(key=lambda f: (-(f[3] * 2 + min(len(f[1]), 3)), -f[0].distinct, f[0].name))
    return [_group(table, *f) for f in found[:MOST]]


def _group(
    table: KnownTable, column: CodedColumn, steady: Sequence[str], together: float, named: bool
) -> RoleCandidate:
    distinct = table.distinct[column.name]
    parts = [f"{distinct:,} values, {_rows_each(table.rows / distinct)} rows each"]
    if steady:
        shown = ", ".join(steady[:3]) + (f" and {len(steady) - 3} more" if len(steady) > 3 else "")
        parts.append(f"constant within a value: {shown}")
    if together > TOGETHER:
        parts.append("rows of a value lie together in the file")
    if named:
        is_key = hint_of(column.name) == "key"
        parts.append(f"named like {'a key' if is_key else 'a person, a thing or a place'}")
    return _candidate(
        "group",
        column.name,
        "; ".join(parts),
        distinct=distinct,
        rows=table.rows,
        constant_columns=len(steady),
        share_together=round(together, 4),
    )


def _rows_each(mean: float) -> str:
    return f"about {mean:,.0f}" if mean >= 10 else f"about {mean:.3g}"


def _steady(table: KnownTable, group: CodedColumn) -> list[str]:
    """Return columns that hardly change within a value of the group, though they change elsewhere.

    A value counts if it has several rows. Columns that agree by luck (a frequent value) or by
    definition (the same category under another name) say nothing.
    """
    twins = {n for names in table.alike if group.name in names for n in names}
    _, first = np.unique(group.codes, return_index=True)
    owner = first[group.codes]
    several = int(np.sum(group.counts > 1))
    if len(group.codes) - group.distinct < LEAST or not several:
        return []
    found = []
    for column in table.columns[:CHECKED]:
        is_twin = column.name in twins and column.family != "float"
        if is_twin or column.name == group.name or column.distinct < 2:
            continue
        shares = np.append(column.counts, column.nulls) / len(column.codes)
        if float(np.sum(shares**2)) > COMMON:
            continue
        changed = group.codes[column.codes != column.codes[owner]]
        unlike = int(np.count_nonzero(np.bincount(changed, minlength=1)))
        if 1 - unlike / several >= STEADY:
            found.append(column.name)
    return found


def _together(group: CodedColumn) -> float:
    """Return the share of rows that could follow a row of their value, and do.

    A value of n rows has n - 1 rows that could. It is zero if luck would do as well.
    """
    could = len(group.codes) - group.distinct
    do = int(np.sum(group.codes[1:] == group.codes[:-1]))
    luck = float(np.sum((group.counts / len(group.codes)) ** 2))
    return do / could if could >= LEAST and luck < 0.5 else 0.0


def _times(table: KnownTable, columns: Sequence[CodedColumn]) -> list[RoleCandidate]:
    found = []
    for column in columns:
        numbers = column.by_code
        is_epoch = (
            column.kind in ("numeric", "id-like")
            and numbers is not None
            and bool(EPOCH.fullmatch(column.name.lower()))
            and bool(np.all((numbers >= 1e8) & (numbers < 4.2e9)))
        )
        if (column.kind != "time" and not is_epoch) or numbers is None or column.distinct < 2:
            continue
        span = f"{moment_text(float(numbers.min()))} to {moment_text(float(numbers.max()))}"
        nulls = f"; {column.nulls:,} rows have none" if column.nulls else ""
        epoch = "; seconds since 1970" if is_epoch else ""
        found.append((column.nulls, -column.distinct, column.name, span + epoch + nulls))
    parts = {c.name.lower(): c for c in columns if c.family == "int" and not c.nulls}
    if not found and all(part in parts for part in PARTS[:3]):
        names = ", ".join(parts[p].name for p in PARTS if p in parts)
        found.append((0, 0, parts["year"].name, f"with {names} it makes one time"))
    return [
        _candidate("time", name, reason, distinct=table.distinct[name], nulls=nulls)
        for nulls, _, name, reason in sorted(found)[:MOST]
    ]


def _labels(table: KnownTable, wanted: str | None) -> list[RoleCandidate]:
    usable = [
        (place, c)
        for place, c in enumerate(table.columns)
        if c.kind in ("numeric", "boolean")
        or (c.kind == "categorical" and 2 <= c.distinct <= 5 * CLASSES)
        if c.name == wanted or not (hint_of(c.name) or c.name.lower() in NO_LABELS)
    ]
    scores = []
    names = label_names(c.name for c in table.columns)
    worded = [c.name for _, c in usable if has_word(c.name, LABEL_WORDS)]
    for place, column in usable:
        named = column.name.lower() in names
        last = place == len(table.columns) - 1
        word = column.name in worded
        hint: tuple[bool, ...] = (
            *(column.name == wanted, named, word and len(worded) == 1, last, word),
            column.distinct == 2,
        )
        why = [
            words
            for words, holds in zip(
                ("as asked for", "named like a label", "a word in its name", "the last column"),
                (hint[0], named, word and not named, last),
                strict=True,
            )
            if holds
        ]
        if not why and (place, column) == usable[-1]:
            why, hint = ["the last that could be one"], (*hint[:3], True, *hint[4:])
        if why or column.distinct == 2:
            scores.append((tuple(not h for h in hint), column.name, why, column))
    return [
        _candidate(
            "label",
            name,
            "; ".join([*why, _values_of(column)]),
            distinct=table.distinct[name],
            nulls=column.nulls,
        )
        for _, name, why, column in sorted(scores, key=lambda s: s[:2])[:MOST]
    ]


def _values_of(column: CodedColumn) -> str:
    if column.distinct == 2:
        code, share = positive_code(column), 0.0
        share = float(column.counts[code]) / max(column.present, 1)
        return f"two values, {column.texts[code]} in {share:.3g} of the rows"
    if column.by_code is not None:
        low, high = float(np.min(column.by_code)), float(np.max(column.by_code))
        return f"{column.distinct:,} numbers from {number_text(low)} to {number_text(high)}"
    return f"{column.distinct:,} classes, the rarest with {int(column.counts.min()):,} rows"


def positive_code(column: CodedColumn) -> int:
    """Return the code of the value that means yes, else of the rarest value.

    Equal counts are decided by the text.
    """
    words = [text.strip().lower() for text in column.texts]
    said = [i for i, word in enumerate(words) if word in YES]
    said = said if len(said) == 1 else [i for i, w in enumerate(words) if w not in NO]
    if column.distinct == 2 and len(said) == 1:
        return said[0]
    return min(range(column.distinct), key=lambda c: (int(column.counts[c]), words[c]))


def _weights(columns: Sequence[CodedColumn]) -> list[RoleCandidate]:
    found = []
    for column in columns:
        numbers = column.by_code
        named = column.name.lower() in (*WEIGHTS, "fnlwgt", "survey_weight", "weights")
        if not named or numbers is None or column.nulls or float(numbers.min()) < 0:
            continue
        # rounded, as a sum of floats depends on its order
        mean = float(f"{np.average(numbers, weights=column.counts):.6g}")
        reason = (
            f"no number below zero, {number_text(mean)} on average; named like a weight of rows"
        )
        found.append(_candidate("weight", column.name, reason, mean=mean))
    return found[:MOST]


def _candidate(role: LookRole, column: str, reason: str, **figures: float) -> RoleCandidate:
    return RoleCandidate(role=role, column=column, reason=reason, figures=figures)
