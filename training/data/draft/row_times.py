"""The time of a row, in whatever form a table has it, and features made of dates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from training.data.draft.column_hints import BIRTHS, TIMES, has_word, name_words
from training.data.draft.guesses import Guess, Table, left
from training.data.draft.panels import period_of_few
from training.data.draft.profile import SAMPLE, Profile, date_format, plain
from training.data.engine.engine import ident, literal, row
from training.data.table.sql_types import INTEGERS

EPOCHS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
ISO = r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}"
FIRST, LAST = 631_152_000, 2_208_988_800  # seconds of 1990 and 2040
YEARS = (1000, 2200)
TIME_DERIVED = "the time is derived of it"
COUNTED_TIMES = {"t", "time", "period", "date", "month", "week", "day", "year", "quarter", "trend"}
MOST_NULLS = 0.01  # share of rows without a time that are left out
MOST_DATES = 4  # dates from which features are derived


class Moment(NamedTuple):
    """A column that is a date or a time, the expression that makes it one, and the reason.

    `form`: of a text, how its dates are written.
    """

    column: Profile
    expression: str
    why: str
    form: str | None = None


class RowTime(NamedTuple):
    """The time of a row: derived columns, the column's name, and a filter with its reason."""

    derive: dict[str, tuple[str, str]]
    name: str | None
    filter: tuple[str, str] | None = None


def guess_time(table: Table, others: Sequence[Profile], guesses: dict[str, Guess]) -> RowTime:
    """Guess the time of a row: dates, a text that is one, year, month and day, or an epoch.

    Gives the time's columns their roles in `guesses`. A column that is null in up to a hundredth of
    the rows counts, with a filter that leaves these rows out.
    """
    hour = _hour(others)
    dated = [
        Moment(c, table.sql(c), "dates or timestamps in every row")
        for c in sorted(others, key=lambda c: c.family != "instant")
        if c.family in ("date", "instant") and _is_row_time(c)
    ]
    if dated:
        return _direct(table, dated[0], hour, guesses)
    if found := _of_parts(table, hour, guesses) or _of_years(table, guesses):
        return found
    for column in (c for c in others if c.family in ("text", "int") and _is_row_time(c)):
        if moment := text_moment(table, column) or _digits(table, column):
            guesses[column.name] = Guess("ignore", TIME_DERIVED)
            added = f" + to_hours({table.sql(hour)})" if hour else ""
            return _derived(table, column, moment.expression + added, moment.why, guesses)
    for column in others:
        if unit := _epoch_unit(table, column):
            guesses[column.name] = Guess(
                f"{{role: time, unit: {unit}}}",
                f"{unit} since 1970, from {_year(column.low, unit)} to {_year(column.high, unit)}",
            )
            return RowTime({}, column.name, _filter(table, column, table.sql(column)))
    for column in others:
        if _counts_time(table, column) and any(_could_learn(c) for c in others if c is not column):
            why = "numbers named as a time that rise from row to row: a series in time"
            guesses[column.name] = Guess("time", why)
            return RowTime({}, column.name)
    if period := period_of_few(table, others):
        guesses[period[0].name] = Guess("time", period[1])
        return RowTime({}, period[0].name)
    return RowTime({}, None)


def _counts_time(table: Table, column: Profile) -> bool:
    """Return True for periods 1, 2, 3, … or moments such as 1947.01, if the file is in their order.

    Each row has its own, and no other column says when it was.
    """
    if not column.is_number or column.null_share or not table.in_order:
        return False
    if column.distinct < column.present or not has_word(column.name, COUNTED_TIMES):
        return False
    name = ident(column.name)
    return not row(
        table.connection,
        f"select count(*) filter (where v <= b) from (select {name} as v, lag({name}) over (order"
        f" by rowid) as b from {SAMPLE})",
    )[0]


def _is_row_time(column: Profile) -> bool:
    return (
        column.present > 0
        and column.distinct > 2
        and column.null_share <= MOST_NULLS
        and not has_word(column.name, BIRTHS)
    )


def _hour(others: Sequence[Profile]) -> Profile | None:
    return next(
        (
            c
            for c in others
            if c.name.lower() in ("hr", "hour")
            and c.type in INTEGERS
            and c.low >= 0
            and c.high <= 23
            and not c.null_share
        ),
        None,
    )


def _direct(
    table: Table, moment: Moment, hour: Profile | None, guesses: dict[str, Guess]
) -> RowTime:
    """Return the time of a column that is a date or a timestamp already."""
    column = moment.column
    if column.family == "date" and hour:
        guesses[column.name] = Guess("ignore", TIME_DERIVED)
        expression = f"cast({moment.expression} as timestamp) + to_hours({table.sql(hour)})"
        return _derived(table, column, expression, "date and hour in one", guesses)
    found = _filter(table, column, moment.expression)
    why = moment.why if found is None else "dates or timestamps in nearly every row"
    guesses[column.name] = Guess("time", why)
    return RowTime({}, column.name, found)


def _of_parts(table: Table, hour: Profile | None, guesses: dict[str, Guess]) -> RowTime | None:
    """Return the time of columns year, month and day, if each row has a real date."""
    parts = _parts(table.columns)
    if parts is None:
        return None
    year, month, day = parts
    if year.low < 1 or month.low < 1 or month.high > 12 or day.low < 1 or day.high > 31:
        return None
    names = ", ".join(table.sql(p) for p in parts)
    expression = f"make_timestamp({names}, {table.sql(hour) if hour else 0}, 0, 0)"
    text = " || '-' || ".join(f"cast({table.sql(p)} as varchar)" for p in parts)
    good, present = row(
        table.connection, f"select count(try_strptime({text}, '%Y-%m-%d')), count(*) from {SAMPLE}"
    )
    if good < present:
        return None
    guesses["row_time"] = Guess("time", "derived above")
    return RowTime({"row_time": (expression, "year, month and day in one")}, "row_time")


def _parts(columns: Sequence[Profile]) -> tuple[Profile, Profile, Profile] | None:
    """Return columns such as year, month and day, or YearSold, MonthSold and DaySold, or None."""
    found: dict[tuple[str, ...], dict[str, Profile]] = {}
    for column in columns:
        words = name_words(column.name)
        part = next((word for word in words if word in ("year", "month", "day")), None)
        whole = column.type in INTEGERS and not column.null_share
        if part and whole and not has_word(column.name, BIRTHS):
            found.setdefault(tuple(w for w in words if w != part), {})[part] = column
    for _, parts in sorted(found.items(), key=lambda item: len(item[0])):
        if len(parts) == 3:
            return parts["year"], parts["month"], parts["day"]
    return None


def _of_years(table: Table, guesses: dict[str, Guess]) -> RowTime | None:
    """Return the time of a series with one row for each year, quarter or month."""
    year = table.named("year", "yr")
    if year is None or not _is_part(year, *YEARS):
        return None
    for part, low, high, month in (
        (None, 0, 0, "1"),
        (table.named("quarter", "qtr"), 1, 4, "3 * {} - 2"),
        (table.named("month", "mnth"), 1, 12, "{}"),
    ):
        parts = [year] if part is None else [year, part]
        if part is not None and not _is_part(part, low, high):
            continue
        names = ", ".join(ident(c.name) for c in parts)
        moments = f"select count(distinct ({names})) from {table.relation or SAMPLE}"
        if row(table.connection, moments)[0] < table.rows:
            continue
        first, *rest = (
            table.sql(c) if c.family == "int" else f"cast({table.sql(c)} as bigint)" for c in parts
        )
        expression = f"make_timestamp({first}, {month.format(*rest)}, 1, 0, 0, 0)"
        guesses["row_time"] = Guess("time", "derived above")
        why = f"one row for each {' and '.join(plain(c.name) for c in parts)}: a series in time"
        return RowTime({"row_time": (expression, why)}, "row_time")
    return None


def _is_part(column: Profile, low: int, high: int) -> bool:
    return column.is_whole and not column.null_share and low <= column.low <= column.high <= high


def _derived(
    table: Table, column: Profile, expression: str, why: str, guesses: dict[str, Guess]
) -> RowTime:
    name = "row_time" if not table.named("row_time") else "row_time_"
    guesses[name] = Guess("time", "derived above")
    return RowTime({name: (expression, why)}, name, _filter(table, column, table.sql(column)))


def _filter(table: Table, column: Profile, expression: str) -> tuple[str, str] | None:
    if table.is_complete(column):
        return None
    count = round(column.null_share * table.rows) or 1
    text = "1 row has no time and is" if count == 1 else f"{count} rows have no time and are"
    return f"{expression} is not null", f"{text} left out"


def text_moment(table: Table, column: Profile) -> Moment | None:
    """Return the time that every text of a column is, or None."""
    if found := date_format(table.connection, column):
        form, several = found
        why = f"every value has the form {form}"
        why += "; other forms fit as well, check it" if several else ""
        return Moment(column, f"strptime({table.sql(column)}, {literal(form)})", why)
    if column.family != "text" or not column.present:
        return None
    example = row(table.connection, f"select any_value({ident(column.name)}) from {SAMPLE}")[0]
    if not re.match(ISO, str(example)):
        return None
    name, dated = table.sql(column), ISO + ".*"
    fits, offsets = row(
        table.connection,
        f"select count(*) filter (where regexp_full_match({name}, {literal(dated)}) and"
        f" try_cast({name} as timestamptz) is not null), count(*) filter (where"
        f" regexp_full_match({name}, '.*([Zz]|[+-][0-9]{{2}}:?([0-9]{{2}})?)')) from {SAMPLE}",
    )
    if fits < column.present:
        return None
    why = f"ISO times, {offsets} of {fits} with an offset; the others are read as UTC"
    return Moment(column, f"cast({name} as timestamptz)", why)


def _digits(table: Table, column: Profile) -> Moment | None:
    """Return the date that whole numbers such as 20240131 are, if they are named as one."""
    if column.family != "int" or not 19_000_101 <= column.low <= column.high <= 21_001_231:
        return None
    expression = f"strptime(cast({table.sql(column)} as varchar), '%Y%m%d')"
    good = row(table.connection, f"select count({'try_' + expression}) from {SAMPLE}")[0]
    if good < column.present or not has_word(column.name, TIMES | {"day"}):
        return None
    return Moment(column, expression, "every number has the form %Y%m%d")


def _epoch_unit(table: Table, column: Profile) -> str | None:
    """Return the unit in which whole numbers count from 1970, if their values lie in 1990–2040.

    Seconds also need a name of a time, or the order of the file: other numbers look like them.
    """
    if column.family != "int" or not _is_row_time(column):
        return None
    unit = next(
        (u for u, n in EPOCHS.items() if n * FIRST <= column.low <= column.high <= n * LAST), None
    )
    if unit is None or column.high == column.low:
        return None
    named = has_word(column.name, TIMES) or re.search(
        r"(?i)(time|date|epoch|_ts|_at)$", column.name
    )
    return unit if named or _rises(table, column) else None


def _rises(table: Table, column: Profile) -> bool:
    """Return True if the values rise through the file without being an even count of rows."""
    if not table.in_order or column.distinct < 0.5 * column.present:
        return False
    name = ident(column.name)
    falls, steps = row(
        table.connection,
        f"select count(*) filter (where v < b), count(distinct v - b) from (select {name} as v,"
        f" lag({name}) over (order by rowid) as b from {SAMPLE})",
    )
    return not falls and steps > 1


def _year(value: float, unit: str) -> int:
    return int(1970 + value / EPOCHS[unit] / 31_556_952)


def date_features(
    table: Table, others: Sequence[Profile], time: str | None, guesses: dict[str, Guess]
) -> dict[str, tuple[str, str]]:
    """Return derived features of dates: the days between two, and texts as dates.

    Dates become features of kind `date`; a date of birth only as the days to another one. The time
    of the row itself gives its season where no other feature is left.
    """
    dates = [m for c in others if (m := _date(table, c))][:MOST_DATES]
    free = [m for m in dates if m.column.name in {c.name for c in left(others, guesses)}]
    has_other = any(_could_learn(c) for c in left(others, guesses))
    derive: dict[str, tuple[str, str]] = {}
    for a, b in combinations(dates, 2):
        if a in free or b in free:
            derive[_new(table, f"days_{a.column.name}_to_{b.column.name}")] = (
                f"date_diff('day', {a.expression}, {b.expression})",
                f"days from {plain(a.column.name)} to {plain(b.column.name)}; check that both are"
                " known when predicting",
            )
    numbers = {name: made for name, made in derive.items() if _varies(table, made[0])}
    texts: dict[str, tuple[str, str]] = {}
    for moment in dates:
        if moment not in free:
            if not (has_other or derive):
                numbers |= _season(table, moment)
        elif derive and has_word(moment.column.name, BIRTHS):
            guesses[moment.column.name] = Guess("ignore", "the days to another date are derived")
        else:
            texts |= _as_date(table, moment, guesses)
    for name in numbers:
        guesses[name] = Guess("numeric", "derived above")
    return numbers | texts


def _as_date(table: Table, moment: Moment, guesses: dict[str, Guess]) -> dict[str, tuple[str, str]]:
    """Guess a date as a feature of kind `date`; return the expression where it must be read."""
    column = moment.column
    note = "its days, weekday and day of the year; check that it is known when predicting"
    if moment.form is None or moment.form.startswith("%Y-%m-%d"):
        guesses[column.name] = Guess("date", f"{moment.why}: {note}")
        return {}
    name = _new(table, f"{column.name}_date")
    guesses[column.name] = Guess("ignore", "the date is derived of it")
    guesses[name] = Guess("date", note)
    return {name: (f"strptime({table.sql(column)}, {literal(moment.form)})", moment.why)}


def _could_learn(column: Profile) -> bool:
    return column.distinct > 1 and (
        column.is_number
        or column.family in ("bool", "list")
        or (column.family == "text" and column.distinct < 0.5 * column.present)
    )


def _date(table: Table, column: Profile) -> Moment | None:
    """Return a column as a date, in an expression that the served model can compute."""
    if not column.present or column.distinct < 2:
        return None
    if column.family in ("date", "instant"):
        return Moment(column, f"cast({table.sql(column)} as date)", "dates")
    found = date_format(table.connection, column) if column.family == "text" else None
    if found is None:
        return None
    expression = f"cast(strptime({table.sql(column)}, {literal(found[0])}) as date)"
    return Moment(column, expression, f"dates of the form {found[0]}", found[0])


def _season(table: Table, moment: Moment) -> dict[str, tuple[str, str]]:
    name, day = plain(moment.column.name), moment.expression
    angle = f"2 * pi() * dayofyear({day}) / 365.25"
    parts = {
        "season_sine": (f"sin({angle})", f"season of {name}: the day of the year on a circle"),
        "season_cosine": (f"cos({angle})", f"season of {name}, second part"),
        "weekday": (f"isodow({day})", f"weekday of {name}, 1 is Monday"),
    }
    return {
        _new(table, f"{moment.column.name}_{part}"): made
        for part, made in parts.items()
        if _varies(table, made[0])
    }


def _new(table: Table, name: str) -> str:
    """Return a name for a derived column: plain, and no column's own."""
    name = re.sub(r"\W+", "_", name).strip("_").lower() or "derived"
    while table.named(name):
        name += "_"
    return name


def _varies(table: Table, expression: str) -> bool:
    return bool(row(table.connection, f"select count(distinct {expression}) > 1 from {SAMPLE}")[0])
