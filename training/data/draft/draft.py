"""First declaration, guessed from the table: `bulkhead init DATA`.

Every guess has its reason in a comment next to it. It is a draft to be read, not a verdict.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import yaml

from schemas.config import DataConfig
from schemas.duration import seconds_of
from schemas.errors import ConfigError, first_few
from training.data.draft.number_columns import csv_lines, remark_of, variants_note, written_role
from training.data.draft.profile import (
    SAMPLE,
    Profile,
    date_format,
    like_label,
    plain,
    read_sample,
    split_values,
)
from training.data.draft.target import loss_lines, task_line
from training.data.engine.engine import connect, ident, row, rows
from training.data.sources.written_numbers import category_note
from training.data.table.columns import INTEGERS, WORDS

LABEL_NAMES = (
    "label",
    "target",
    "outcome",
    "y",
    "response",
    "survived",
    "churn",
    "readmitted",
    "diagnosis",
    "default",
    "class",
)
ENTITY = re.compile(
    r"(patient|person|people|user|subject|participant|customer|client|member|household|account|donor|animal|unit|device|machine|engine|vehicle|sensor|"
    r"site|station|hospital|school|store|shop|speaker|writer|author|family|group|batch|session)(_?(id|nbr|no|num|nr|number|name|code))?",
    re.IGNORECASE,
)
ID = re.compile(
    r"id|uid|uuid|guid|key|index|instant|no|nr|row|row_?(id|number)|.*(_id|_key|_no|_nbr|_number|ID|Id)"
)
CODE = re.compile(
    r".*(_id|_?code|_?type|_?class|weekday|month|mnth|hour|hr|season|category|zip|region)",
    re.IGNORECASE,
)
MOLECULES = ("smiles", "canonical_smiles", "smiles_canonical", "mol_smiles")
WEIGHTS = ("sample_weight", "row_weight", "instance_weight", "case_weight")
PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
YES = {"yes", "y", "true", "t", "1", "positive", "pos", "case", "event", "present", "on"}
NO = {"no", "n", "false", "f", "0", "-1", "negative", "neg", "control", "none", "absent", "off"}
YAML_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
EMBARGOES = ("1d", "12h", "6h", "3h", "1h", "30min", "10min", "1min", "1s")
LISTED = 80  # columns that are listed one by one; of more, only those that need a remark


class Guess(NamedTuple):
    """One line of `columns`: the column's role, the reason, and a flag.

    The flag says whether `*: feature` would have the same effect.
    """

    role: str
    why: str
    obvious: bool = False


class Table(NamedTuple):
    """Known facts about the table when the roles are guessed."""

    connection: duckdb.DuckDBPyConnection
    data: DataConfig
    columns: tuple[Profile, ...]
    rows: int

    def named(self, *names: str) -> Profile | None:
        """Return the first column with one of these names, in any case."""
        return next((c for n in names for c in self.columns if c.name.lower() == n), None)

    def sql(self, column: Profile) -> str:
        """Return the column in an expression, quoted only if it must be."""
        reserved = {
            str(r[0])
            for r in rows(
                self.connection,
                "select keyword_name from duckdb_keywords() where keyword_category = 'reserved'",
            )
        }
        return (
            column.name
            if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", column.name)
            and column.name.lower() not in reserved
            else ident(column.name)
        )


class Draft(NamedTuple):
    """All guesses: derived columns, a line for each column, and the basis of the split.

    `molecules` names a column of SMILES.
    """

    derive: dict[str, tuple[str, str]]
    columns: dict[str, Guess]
    label: Profile
    groups: Profile | None
    time: str | None
    split: set[str]
    molecules: Profile | None = None


def draft(uri: str, label: str | None = None, name: str | None = None) -> str:
    """Return the YAML text of a first declaration for a table.

    It loads as it is and gives a reason next to each line.

    Args:
        uri: Parquet, CSV, CSV.gz or Arrow file, folder or glob.
        label: the label's column; guessed by name, else the last column.
        name: of the declaration; by default derived from the file's name.

    Raises:
        SourceError: the source cannot be found or read.
        ConfigError: there is no such label column, or a table without rows or features.
    """
    where = uri if "://" in uri else str(Path(uri).absolute())
    with closing(connect()) as connection:
        data, columns, total = read_sample(connection, where)
        if not total or len(columns) < 2:
            raise ConfigError(
                f"{uri}: expected rows and at least two columns, got {total} rows of {len(columns)}"
                " columns; give another table"
            )
        table = Table(connection, data, tuple(columns), total)
        target, why = guess_label(table, label)
        return _render(table, guess_roles(table, target, why), name or _slug(where))


def guess_label(table: Table, wanted: str | None) -> tuple[Profile, str]:
    """Return the column to predict and the reason.

    It is the requested one, one with a typical name, or the last that could be.

    Raises:
        ConfigError: there is no such column, or none that could be a label.
    """
    if wanted is not None:
        found = next((c for c in table.columns if c.name == wanted), None)
        if found is None:
            names = [c.name for c in table.columns]
            raise ConfigError(
                f"label {wanted!r}: no such column; did you mean one of"
                f" {first_few(difflib.get_close_matches(wanted, names) or names)}?"
            )
        return found, "as asked for"
    if found := table.named(*LABEL_NAMES):
        return found, "by its name"
    typed = [
        c
        for c in table.columns
        if c.is_number or c.family == "bool" or (c.family == "text" and c.distinct <= 100)
    ]
    usable = [
        c
        for c in typed
        if c.distinct > 1 and not ENTITY.fullmatch(c.name) and not ID.fullmatch(c.name)
    ]
    if not usable:
        raise ConfigError(
            "no column could be a label: all are constant, dates or lists; name one with label"
        )
    return usable[-1], "the last column, for want of a telling name"


def guess_roles(table: Table, label: Profile, why: str) -> Draft:
    """Guess the role of every column, with the reason.

    Raises:
        ConfigError: the label has one value, or no feature is left besides it.
    """
    if label.distinct < 2:
        raise ConfigError(
            f"label {label.name!r}: expected at least two values, got {label.distinct}; name"
            " another column with label"
        )
    if label.family in ("date", "instant", "list", "other"):
        raise ConfigError(
            f"label {label.name!r}: expected numbers, text or true/false, got"
            f" {WORDS[label.family]}; name another column with label"
        )
    others = [c for c in table.columns if c.name != label.name]
    guesses = {label.name: Guess("label", why)}
    derive, time = _time(table, others, guesses)
    split = _split_column(table, others, guesses)
    groups = _group(_left(others, guesses), guesses)
    _id(_left(others, guesses), guesses)
    for column in _left(others, guesses):
        if reason := _useless(column):
            guesses[column.name] = Guess("ignore", reason)
    for found, reason in like_label(table.connection, label, _left(others, guesses)).items():
        guesses[found] = Guess("ignore", f"suspicious: {reason}")
    for column in _left(others, guesses):
        guesses[column.name] = _with_note(table, column, _feature(column, table.rows))
    ordered = {c.name: guesses[c.name] for c in table.columns} | {
        n: g for n, g in guesses.items() if n in derive
    }
    if not any(
        g.role in ("feature", "numeric", "categorical") or g.role.startswith("{")
        for g in ordered.values()
    ):
        raise ConfigError(
            f"no feature is left next to label {label.name!r}; give a table with features"
        )
    molecules = (
        next((c for c in others if c.name.lower() in MOLECULES and c.family == "text"), None)
        if not (groups or time or split)
        else None
    )
    return Draft(derive, ordered, label, groups, time, split, molecules)


def _left(columns: Iterable[Profile], guesses: dict[str, Guess]) -> list[Profile]:
    return [c for c in columns if c.name not in guesses]


def _useless(column: Profile) -> str | None:
    if column.distinct <= 1:
        return "constant" if column.present else "all null"
    if column.null_share > 0.95:
        return f"{column.null_share:.0%} null"
    if ID.fullmatch(column.name) and column.distinct > 100:
        return (
            "named like a key, but it repeats; make it a group if rows of one value belong together"
        )
    if column.family in ("date", "instant"):
        return "a date is no feature as such; derive its month or the days since something"
    return (
        "neither number, text nor list of one length"
        if column.family == "other"
        or (column.family == "list" and column.shortest != column.longest)
        else None
    )


def _time(
    table: Table, others: Sequence[Profile], guesses: dict[str, Guess]
) -> tuple[dict[str, tuple[str, str]], str | None]:
    """Guess the time of a row: a date column, a text that is a date, or year, month and day."""
    dated = [
        c
        for c in others
        if c.family in ("date", "instant") and c.present and c.null_share == 0 and c.distinct > 1
    ]
    instants = sorted(dated, key=lambda c: c.family != "instant")
    hour = next(
        (
            c
            for c in others
            if c.name.lower() in ("hr", "hour")
            and c.type in INTEGERS
            and c.low >= 0
            and c.high <= 23
        ),
        None,
    )
    parts = [table.named(part) for part in ("year", "month", "day")]
    if instants:
        guesses[instants[0].name] = Guess("time", "dates or timestamps in every row")
        return {}, instants[0].name
    if all(p is not None and p.type in INTEGERS and p.null_share == 0 for p in parts):
        names = ", ".join(table.sql(p) for p in parts if p)
        return _derived_time(
            guesses,
            f"make_timestamp({names}, {table.sql(hour) if hour else 0}, 0, 0)",
            "year, month and day in one",
        )
    for column in others:
        if (
            column.distinct > 1
            and column.null_share == 0
            and (found := date_format(table.connection, column))
        ):
            guesses[column.name] = Guess("ignore", "the time is derived of it")
            why = f"every value has the form {found[0]}" + (
                "; other forms fit as well, check it" if found[1] else ""
            )
            return _derived_time(
                guesses,
                f"strptime({table.sql(column)}, '{found[0]}')"
                + (f" + to_hours({table.sql(hour)})" if hour else ""),
                why,
            )
    return {}, None


def _derived_time(
    guesses: dict[str, Guess], expression: str, why: str
) -> tuple[dict[str, tuple[str, str]], str]:
    guesses["row_time"] = Guess("time", "derived above")
    return {"row_time": (expression, why)}, "row_time"


def _split_column(table: Table, others: Sequence[Profile], guesses: dict[str, Guess]) -> set[str]:
    for column in _left(others, guesses):
        values = split_values(table.connection, column)
        if "train" in values and "test" in values and not column.null_share:
            guesses[column.name] = Guess("split", f"holds {', '.join(sorted(values))}")
            return values
    return set()


def _group(columns: Sequence[Profile], guesses: dict[str, Guess]) -> Profile | None:
    """Guess the group of rows, such as one patient, user or device; the finest column counts."""

    def repeats(column: Profile) -> bool:
        """Return True if the values of a column repeat like those of a group."""
        return (
            column.family in ("int", "text")
            and not column.null_share
            and 2 < column.distinct < 0.95 * column.present
        )

    named = [c for c in columns if repeats(c) and ENTITY.fullmatch(c.name)]
    coded = [
        c
        for c in columns
        if repeats(c) and c.name.lower().endswith(("_id", "_nbr")) and c.distinct >= 50
    ]
    found = max(named or coded, key=lambda c: c.distinct, default=None)
    if found is not None:
        guesses[found.name] = Guess(
            "group",
            f"{found.distinct} values for {found.present} rows: rows of one of them resemble each"
            " other",
        )
    return found


def _id(columns: Sequence[Profile], guesses: dict[str, Guess]) -> None:
    unique = [
        c
        for c in columns
        if c.family in ("int", "text")
        and c.distinct == c.present
        and not c.null_share
        and c.present > 1
    ]
    counted = [c for c in unique if c.family == "int" and c.high - c.low == c.present - 1]
    named = [c for c in unique if ID.fullmatch(c.name) or ID.fullmatch(c.name.lower())]
    for column in dict.fromkeys([*named, *counted]):
        first = not any(g.role == "id" for g in guesses.values())
        guesses[column.name] = (
            Guess("id", "another value in every row")
            if first
            else Guess("ignore", "another value in every row, like the id")
        )


def _with_note(table: Table, column: Profile, guess: Guess) -> Guess:
    """Add a remark to the guess if texts are respelt numbers or times, or hardly repeat."""
    if column.family != "text" or guess.role not in ("categorical", "ignore"):
        return guess
    note = category_note(table.connection, SAMPLE, column.name, is_csv=table.data.format == "csv")
    return guess._replace(why=f"{guess.why}; {note}", obvious=False) if note else guess


def _feature(column: Profile, total: int) -> Guess:
    nulls = f", {column.null_share:.0%} null" if column.null_share else ""
    if column.family == "list":
        side = math.isqrt(column.longest)
        shape = [side, side] if side * side == column.longest and side > 3 else [column.longest]
        return Guess(
            f"{{kind: tensor, shape: {shape}}}",
            f"lists of {column.longest} numbers; say [channels, height, width] if they are pictures"
            " with channels",
        )
    if column.is_number:
        coded = column.family == "int" and (
            column.distinct <= 100 if CODE.fullmatch(column.name) else False
        )
        return (
            Guess("categorical", f"{column.distinct} codes{nulls}")
            if coded
            else Guess("numeric", f"{column.low:g} to {column.high:g}{nulls}", obvious=True)
        )
    if column.distinct > 1000 and column.distinct > 0.5 * column.present:
        return Guess(
            "ignore",
            f"text that hardly repeats ({column.distinct} values in {column.present} rows)",
        )
    return Guess("categorical", f"{column.distinct} values{nulls}", obvious=True)


def guess_task(table: Table, label: Profile) -> tuple[str, str]:
    """Return the task that fits a label, as YAML, and the reason."""
    if label.distinct == 2:
        counts = rows(
            table.connection,
            f"select {ident(label.name)}, count(*) from {SAMPLE} where {ident(label.name)} is not"
            " null group by all order by 2, 1",
        )
        positive, count, why = _positive(counts)
        return (
            f"{{kind: binary, positive: {_value(positive)}}}",
            f"two values; {why} is positive ({count / label.present:.1%} of the rows)",
        )
    return task_line(table.connection, label)


def _positive(counts: list[tuple[Any, ...]]) -> tuple[Any, int, str]:
    """Return the positive class of two (rarer first), its rows, and the reason.

    It is the one that means yes, or the other of one that means no, else the rarer.

    >>> _positive([("no", 46), ("yes", 54)]), _positive([("ill", 3), ("well", 9)])[0]
    (('yes', 54, "'yes', by its meaning,"), 'ill')
    """
    counts = [(_plain(value), count) for value, count in counts]
    words = [str(value).strip().lower() for value, _ in counts]
    said = [
        i for i, word in enumerate(words) if word in YES and (word != "1" or words[1 - i] in NO)
    ]  # of 1 and 2 neither says yes
    yes = said or [1 - i for i, word in enumerate(words) if word in NO]
    if len(yes) == 1:
        value, count = counts[yes[0]]
        return value, count, f"{value!r}, by its meaning,"
    value, count = counts[0]
    return value, count, "the rarer one"


def _split(found: Draft, table: Table, task: str) -> tuple[str, str]:
    classes = "regression" not in task
    if found.split:
        carve = "" if found.split & {"val", "valid", "validation"} else ", carve_val: 0.2"
        return f"{{kind: predefined{carve}}}", "the table says the side of each row" + (
            "; validation is carved out of train" if carve else ""
        )
    if found.groups and found.time and found.groups.distinct >= 20:
        return (
            f"{{kind: group_time, embargo: {_embargo(found, table)}}}",
            "new groups in later time; make embargo as long as the label looks ahead",
        )
    if found.groups and found.groups.distinct >= 10:
        if classes and found.groups.distinct < 500:
            return (
                "{kind: stratified_group}",
                "whole groups, few enough that the shares of the classes need care",
            )
        return "{kind: group}", "whole groups, so that test holds new ones"
    if found.molecules:
        kind = "stratified_group" if classes and table.rows < 20_000 else "group"
        return f"{{kind: {kind}}}", "test holds new scaffolds, as a new series of molecules does"
    if found.time:
        return (
            f"{{kind: time, embargo: {_embargo(found, table)}}}",
            "train before test, as in use; make embargo as long as the label looks ahead",
        )
    if classes and table.rows < 20_000:
        return (
            "{kind: stratified}",
            "no group or time found; few rows, so the shares of the classes are kept equal",
        )
    return "{kind: random}", "no group or time found; if rows belong together, declare the group"


def _embargo(found: Draft, table: Table) -> str:
    """Return a day, or less if the times have a short span: at most a fortieth of it.

    A day could then leave nothing.
    """
    expression = (
        found.derive[str(found.time)][0] if found.time in found.derive else ident(str(found.time))
    )
    moment = f"epoch(cast({expression} as timestamp))"
    span = float(
        row(table.connection, f"select coalesce(max({moment}) - min({moment}), 0) from {SAMPLE}")[0]
    )
    return next((length for length in EMBARGOES if seconds_of(length) <= span / 40), "0")


def _render(table: Table, found: Draft, name: str) -> str:
    task, why_task = guess_task(table, found.label)
    split, why_split = _split(found, table, task)
    lines: list[tuple[str, str]] = [
        (f"name: {_key(name)}", ""),
        ("data:", ""),
        (f"  uri: {_quoted(str(table.data.uri))}", f"{table.rows} rows"),
    ]
    lines += csv_lines(table.connection, table.data)
    if found.label.null_share:
        lines.append(
            ("  null_labels: drop", f"{found.label.null_share:.1%} of the rows have no label")
        )
    if found.derive:
        lines.append(("  derive:", ""))
        lines += [
            (f"    {column}: {_scalar(expression)}", why)
            for column, (expression, why) in found.derive.items()
        ]
    lines.append(("  columns:", ""))
    short = len(found.columns) > LISTED
    lines += [
        (f"    {_key(c)}: {written_role(g.role, table.data, c)}", with_remark(table, c, g))
        for c, g in found.columns.items()
        if not (short and g.obvious) or table.data.columns.get(c) is not None
    ]
    if short:
        lines.append(('    "*": feature', "the rest: numbers are numeric, text is categorical"))
    if found.molecules:
        lines.append(
            (
                f"  group_by: {{scaffold: {_quoted(found.molecules.name)}}}",
                "molecules of one scaffold resemble each other; needs RDKit (extra chem)",
            )
        )
    lines += [(f"task: {task}", why_task), (f"split: {split}", why_split)]
    lines += loss_lines(table.connection, found.label) + _model_lines(table, found)
    head = (
        "# Drafted from the data; read each line, its reason stands next to it. `bulkhead schema`"
        " lists all that can be set.\n"
    )
    return head + "".join(
        f"{text}  # {plain(why)}\n" if why else f"{text}\n" for text, why in lines
    )


def with_remark(table: Table, name: str, guess: Guess) -> str:
    """Add what was found in the texts of a column to the reason for its role."""
    profile = next((c for c in table.columns if c.name == name and c.family == "text"), None)
    variants = (
        variants_note(table.connection, SAMPLE, name, guess.role)
        if profile and guess.role in ("label", "categorical")
        else ""
    )
    return "; ".join(filter(None, (guess.why, remark_of(table.connection, name), variants)))


def _model_lines(table: Table, found: Draft) -> list[tuple[str, str]]:
    lines = []
    if any(
        c.family == "text" and c.distinct > 100 and found.columns[c.name].role == "categorical"
        for c in table.columns
    ):
        lines.append(
            ("normalize: {min_count: 20}", "a column has many categories; rare ones share a slot")
        )
    if any(
        g.role.startswith("{kind: tensor") and g.role.count(",") > 1 for g in found.columns.values()
    ):
        lines.append(("model: {kind: cnn}", "a tensor column looks like pictures"))
    else:
        why = "networks and boosting, blended; quick spends less time, best more"
        lines.append(("model: {kind: auto, effort: default}", why))
    return lines


def _key(text: str) -> str:
    """Return a YAML key or value: quoted unless it is plain and no YAML word (`no`, `y`)."""
    return text if PLAIN_KEY.fullmatch(text) and text.lower() not in YAML_WORDS else _quoted(text)


def _plain(value: Any) -> Any:
    """Return a number of any type as a whole one if it is whole; anything else unchanged."""
    if isinstance(value, bool) or not isinstance(value, float | Decimal):
        return value
    return int(value) if value == int(value) else float(value)


def _value(value: Any) -> str:
    """Return a label's value in YAML.

    >>> _value(Decimal(1)), _value(Decimal("0.50")), _value(True), _value("no")
    ('1', '0.5', 'true', '"no"')
    """
    value = _plain(value)
    return json.dumps(value) if isinstance(value, bool | int | float) else _quoted(str(value))


def _quoted(text: str) -> str:
    """Return text in double quotes, escaped so that YAML reads any character back."""
    return str(yaml.safe_dump(text, default_style='"', allow_unicode=True, width=math.inf)).strip()


def _scalar(text: str) -> str:
    """Return a YAML value, quoted if plain text would be read as something else."""
    return text if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\([^\n#:]*", text) else _quoted(text)


def _slug(uri: str) -> str:
    """Return a declaration's name from a path.

    >>> _slug("/data/Bike Hour_2.csv.gz")
    'bike-hour_2'
    """
    stem = Path(uri).name.split(".")[0] or "table"
    return re.sub(r"[^a-z0-9_-]+", "-", stem.lower()).strip("-_")[:63] or "table"
