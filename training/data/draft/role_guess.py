"""The role of every column, with the reason."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence

from schemas.errors import ConfigError
from training.data.draft.column_hints import CALENDAR, has_word, hint_of
from training.data.draft.entities import guess_group, guess_ids
from training.data.draft.guesses import Draft, Guess, Table, left
from training.data.draft.label_guess import (
    guess_weight,
    require_label,
    respelt,
    siblings,
    unlabelled,
)
from training.data.draft.panels import names_of_groups
from training.data.draft.picture_columns import picture_guesses
from training.data.draft.profile import SAMPLE, Profile, like_label, profile_of, split_values
from training.data.draft.row_times import date_features, guess_time
from training.data.draft.rows_alike import coarse_rows
from training.data.draft.smiles_columns import MOLECULES, WITH_RDKIT, smiles_guess
from training.data.draft.sparse import telling_nulls
from training.data.draft.telling_dates import allow_telling_dates
from training.data.engine.engine import ident, row
from training.data.sources.written_numbers import LEAST_VALUES, category_note
from training.data.table.reserved import RESERVED

CODE_ENDS = (
    *("_id", "code", "type", "class", "weekday", "month", "mnth", "hour", "season"),
    *("category", "zip", "zipcode", "region", "district", "county", "province", "department"),
)
HOURS = {"hr"}  # also a word for a heart rate
HALF = 0.5  # of the words of a text are words
FEW_WORDS = 3.5  # of a typical text; with fewer it is a name or a code
MANY = 1_000  # values of a text that may be numbers in another spelling
SPARSE = 0.95  # share of nulls above which a column is left out


def guess_roles(table: Table, label: Profile, why: str) -> Draft:
    """Guess the role of every column, with the reason.

    Raises:
        ConfigError: the label has one value, or no feature is left besides it.
    """
    require_label(label)
    labels = (
        siblings(table, label)
        if why not in ("as asked for", "as chosen", "by its name", "")
        else ()
    )
    if labels:
        found = _draft(table, labels, why)
        if any(guess.is_feature for guess in found.columns.values()):
            return found
    found = _draft(table, (label,), why)
    if not any(guess.is_feature for guess in found.columns.values()):
        raise ConfigError(
            f"no feature is left next to label {label.name!r}:"
            f" {_left_out(found)}; give a table with features"
        )
    return found


def _left_out(found: Draft) -> str:
    reasons = [f"{name} is {g.role} ({g.why})" for name, g in found.columns.items()]
    return "; ".join(reasons[:5])[:500] + (f" and {len(reasons) - 5} more" if reasons[5:] else "")


def _draft(table: Table, labels: Sequence[Profile], why: str) -> Draft:
    label = labels[0]
    guesses = {c.name: Guess("label", why) for c in labels}
    if len(labels) > 1:
        guesses |= {c.name: Guess("label", f"{c.null_share:.0%} unknown") for c in labels}
    derive, label = _spelt_once(table, label, guesses) if why else ({}, label)
    names = {c.name for c in labels}
    others = [c for c in table.columns if c.name not in names]
    guesses |= picture_guesses(table, others)
    guess_weight(table, left(others, guesses), guesses)
    moment = guess_time(table, left(others, guesses), guesses)
    split = _split_column(table, left(others, guesses), guesses)
    guess_ids(table, left(others, guesses), guesses)
    known = [*others, label]
    groups = guess_group(table, left(others, guesses), known, guesses, timed=bool(moment.name))
    derive |= moment.derive
    if groups and groups.family == "float":
        groups = _whole_group(table, groups, derive, guesses)
    told: dict[str, str] = {}
    for column in left(others, guesses):
        if reason := _useless(table, column, label, told):
            guesses[column.name] = Guess("ignore", reason)
    timeless = [
        c for c in left(others, guesses) if not (moment.name and has_word(c.name, CALENDAR))
    ]  # a trend follows the calendar, which is known before
    for found, reason in like_label(table.connection, label, timeless).items():
        guesses[found] = Guess("ignore", f"suspicious: {reason}")
    molecules = _molecules(others) if not (groups or moment.name or split) else None
    derive |= date_features(table, others, moment.name, guesses)
    _features(table, left(others, guesses), guesses, told)
    if groups is not None:
        categories = [c for c in others if guesses[c.name].role == "categorical"]
        guesses |= names_of_groups(table, groups, categories)
    _keep_one(table, others, guesses)
    in_order = {c.name: guesses[c.name] for c in table.columns}
    in_order |= {name: guess for name, guess in guesses.items() if name in derive}
    draft = Draft(
        *(derive, in_order, label, groups, moment.name, split, molecules),
        labels=tuple(labels) if len(labels) > 1 else (),
        filter=moment.filter,
        unlabelled=unlabelled(table, labels),
    )
    return allow_telling_dates(table, coarse_rows(table, draft))


def _spelt_once(
    table: Table, label: Profile, guesses: dict[str, Guess]
) -> tuple[dict[str, tuple[str, str]], Profile]:
    """Return a derived label with one spelling for each class, where the label has several."""
    if not (found := respelt(table, label)):
        return {}, label
    name = f"{label.name}_spelt_once"
    expression, why = found
    guesses[label.name] = Guess("ignore", "the label is derived of it")
    guesses[name] = Guess("label", why)
    table.connection.execute(f"alter table {SAMPLE} add column {ident(name)} varchar")
    table.connection.execute(f"update {SAMPLE} set {ident(name)} = {expression}")
    return {name: (expression, why)}, profile_of(table.connection, name, "VARCHAR")


def _whole_group(
    table: Table,
    group: Profile,
    derive: dict[str, tuple[str, str]],
    guesses: dict[str, Guess],
) -> Profile:
    """Derive a group of whole numbers from a column that a file holds as decimal ones."""
    name = f"{group.name}_number"
    derive[name] = (
        f"cast({table.sql(group)} as bigint)",
        "decimal numbers do not compare reliably",
    )
    guesses[name] = guesses[group.name]
    guesses[group.name] = Guess("ignore", "the group is derived of it")
    table.connection.execute(f"alter table {SAMPLE} add column {ident(name)} bigint")
    table.connection.execute(
        f"update {SAMPLE} set {ident(name)} = cast({ident(group.name)} as bigint)"
    )
    return profile_of(table.connection, name, "BIGINT")


def _split_column(table: Table, columns: Sequence[Profile], guesses: dict[str, Guess]) -> set[str]:
    for column in columns:
        values = split_values(table.connection, column)
        if "train" in values and "test" in values and not column.null_share:
            guesses[column.name] = Guess("split", f"holds {', '.join(sorted(values))}")
            return values
    return set()


def _useless(table: Table, column: Profile, label: Profile, told: dict[str, str]) -> str | None:
    """Return why a column is no feature, or None.

    `told` gets the figures of a nearly empty column that stays.
    """
    if column.name.lower() in RESERVED:
        return "a name that the preparation uses itself; rename it to use it"
    if not column.present:
        return "all null"
    if column.distinct <= 1 and not column.null_share:
        return "constant"
    if column.distinct <= 1 or column.null_share > SPARSE:
        if figures := telling_nulls(table, column, label):
            told[column.name] = figures
            return None
        return _nearly_empty(column)
    if column.family in ("date", "instant"):
        return None
    return (
        "neither number, text nor list of one length"
        if column.family == "other"
        or (
            column.family == "list"
            and column.type != "VARCHAR[]"
            and column.shortest != column.longest
        )
        else None
    )


def _nearly_empty(column: Profile) -> str:
    if column.distinct > 1:
        return f"{column.null_share:.0%} null"
    return f"one value, and {column.null_share:.0%} null"


def _molecules(others: Sequence[Profile]) -> Profile | None:
    """Return a column of SMILES, if the extra that reads them is installed."""
    if not importlib.util.find_spec("rdkit"):
        return None
    return next((c for c in others if c.name.lower() in MOLECULES and c.family == "text"), None)


def _features(
    table: Table, columns: Sequence[Profile], guesses: dict[str, Guess], told: dict[str, str]
) -> None:
    """Guess the kind of each feature; `told` has figures of nearly empty columns that stay."""
    for column in columns:
        if column.family in ("date", "instant"):
            guesses[column.name] = Guess("date", "dates; check that it is known when predicting")
            continue
        if (molecules := smiles_guess(table, column)) is not None:
            guesses[column.name] = molecules
            continue
        guess = _with_note(table, column, _of_words(table, column) or _feature(column))
        if column.name in told:
            guess = Guess(guess.role, f"{guess.why}; kept: {told[column.name]}")
        if column.name.lower() in MOLECULES and not importlib.util.find_spec("rdkit"):
            guess = guess._replace(why=f"{guess.why}; {WITH_RDKIT}")
        guesses[column.name] = guess


def _of_words(table: Table, column: Profile) -> Guess | None:
    """Return the guess of a text of several words, or of lists of texts; else None."""
    if column.type == "VARCHAR[]":
        return Guess("set", f"lists of up to {column.longest} values")
    if column.family != "text" or not _hardly_repeats(column):
        return None
    text = f"trim({ident(column.name)})"
    words, spelt = row(
        table.connection,
        f"select avg(len(string_split_regex({text}, '\\s+'))), avg(len(regexp_extract_all({text},"
        f" '\\S*\\pL{{2}}\\S*'))) from {SAMPLE}",
    )
    if words < FEW_WORDS:
        return None
    if spelt < HALF * words:
        return Guess(
            "ignore",
            f"texts of {words:.0f} numbers or codes a row, such as a shape; derive what they say",
        )
    return Guess("text", f"{words:.0f} words a row; its words and pairs of words are read")


def _hardly_repeats(column: Profile) -> bool:
    share = 0.5 if column.distinct > MANY else 0.9
    return column.distinct > 20 and column.distinct > share * max(column.present, 1)


def _with_note(table: Table, column: Profile, guess: Guess) -> Guess:
    """Add a remark to the guess if texts are respelt numbers or times, or hardly repeat."""
    if column.family != "text" or guess.role not in ("categorical", "ignore"):
        return guess
    if column.distinct < LEAST_VALUES:  # codes, of which nothing is said
        return guess
    note = category_note(table.connection, SAMPLE, column.name, is_csv=table.data.format == "csv")
    if note and guess.role == "ignore" and note.startswith("a category with"):
        return guess
    if not note:
        return guess
    if column.distinct <= MANY:  # numbers in another spelling
        return Guess("categorical", f"{column.distinct} values; {note}")
    return guess._replace(why=f"{guess.why}; {note}", obvious=False)


def _feature(column: Profile) -> Guess:
    nulls = f", {_nulls(column)} null" if column.null_share else ""
    if column.family == "list":
        side = math.isqrt(column.longest)
        shape = [side, side] if side * side == column.longest and side > 3 else [column.longest]
        return Guess(
            f"{{kind: tensor, shape: {shape}}}",
            f"lists of {column.longest} numbers; say [channels, height, width] if they are pictures"
            " with channels",
        )
    if column.is_number:
        coded = (
            column.family == "int"
            and column.distinct <= 100
            and (
                column.name.lower().endswith(CODE_ENDS)
                or (has_word(column.name, HOURS) and column.low >= 0 and column.high <= 24)
                or hint_of(column.name) == "key"
            )
        )
        return (
            Guess("categorical", f"{column.distinct} codes{nulls}")
            if coded
            else Guess("numeric", f"{column.low:g} to {column.high:g}{nulls}", obvious=True)
        )
    if _hardly_repeats(column):
        return Guess(
            "ignore",
            f"text that hardly repeats ({column.distinct} values in {column.present} rows)",
        )
    return Guess("categorical", f"{column.distinct} values{nulls}", obvious=True)


def _nulls(column: Profile) -> str:
    return f"{column.null_share:.0%}" if column.null_share >= 0.005 else "under 1%"


def _keep_one(table: Table, others: Sequence[Profile], guesses: dict[str, Guess]) -> None:
    """Make a counted id a feature where nothing else is left to learn from."""
    if any(guess.is_feature for guess in guesses.values()):
        return
    for column in others:
        counted = guesses[column.name].role == "id" and not hint_of(column.name)
        if counted and column.family == "int":
            text = f"{column.low:g} to {column.high:g}; the only column that could be a feature"
            guesses[column.name] = Guess("numeric", text)
            return
