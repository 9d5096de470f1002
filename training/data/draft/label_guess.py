"""The column to predict, or several of them, and the task that fits."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from schemas.errors import ConfigError, first_few
from training.data.draft.column_hints import has_word, hint_of
from training.data.draft.guesses import Guess, Table
from training.data.draft.profile import SAMPLE, Profile, plain, split_values
from training.data.draft.target import task_line
from training.data.draft.yaml_lines import quoted
from training.data.engine.engine import ident, row, rows
from training.data.table.sql_types import WORDS

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
# words that name what people predict; they decide only where no other column has one
LABEL_WORDS = {
    *("label", "target", "outcome", "response", "survived", "churn", "churned", "readmitted"),
    *("diagnosis", "default", "defaulted", "species", "spam", "fraud", "status", "died", "dead"),
    *("death", "deceased", "mortality", "price", "saleprice", "salary", "wage", "wages"),
    *("attrition", "denied", "deny", "approved", "converted", "clicked"),
}
MOST_ASKED = 6  # candidates that a person chooses among
WEIGHTS = ("sample_weight", "row_weight", "instance_weight", "case_weight")
YES = {"yes", "y", "true", "t", "1", "positive", "pos", "case", "event", "present", "on"}
NO = {"no", "n", "false", "f", "0", "-1", "negative", "neg", "control", "none", "absent", "off"}
BY_NAME = "by its name"
LEAST_SIBLINGS = 3
TEST_SHARE = 0.15
FEW = 20  # rows of a class in test: fewer carry no claim


class LabelChoice(NamedTuple):
    """A column that could be predicted, and what speaks for it."""

    name: str
    why: str


# returns the name of one of several candidates
Ask = Callable[[Sequence[LabelChoice]], str]


def guess_label(table: Table, wanted: str | None, ask: Ask | None = None) -> tuple[Profile, str]:
    """Return the column to predict and the reason.

    It is the requested one, one with a typical name, the only one with a typical word in its name,
    or the last that could be.

    Args:
        table: the table.
        wanted: the requested column.
        ask: chooses among the candidates where names do not tell.

    Raises:
        ConfigError: there is no such column, or none that could be a label.
    """
    if wanted is not None:
        return _requested(table, wanted), "as asked for"
    choices = label_choices(table)
    if not choices:
        raise ConfigError(
            "no column could be a label: all are constant, dates or lists; name one with label"
        )
    if ask is not None and choices[0].why != BY_NAME and len(choices) > 1:
        return _requested(table, ask(choices)), "as chosen"
    chosen = _requested(table, choices[0].name)
    others = [plain(c.name) for c in choices[1:4]]
    if choices[0].why == BY_NAME or not others:
        return chosen, choices[0].why
    return chosen, f"{choices[0].why}; others that could be: {', '.join(others)}"


def _requested(table: Table, wanted: str) -> Profile:
    found = next((c for c in table.columns if c.name == wanted), None)
    # spaces around a name in the file are not seen in most programs
    bare = [c for c in table.columns if c.name.strip() == wanted.strip()]
    if found is None and len(bare) == 1:
        return bare[0]
    if found is None:
        names = [c.name for c in table.columns]
        raise ConfigError(
            f"label {wanted!r}: no such column; did you mean one of"
            f" {first_few(difflib.get_close_matches(wanted, names) or names)}?"
        )
    return found


def label_choices(table: Table) -> list[LabelChoice]:
    """Return columns that could be predicted, the likeliest first.

    A typical name comes first, then the only column with a typical word in its name, the last
    column, the first, and those of two values from the end.
    """
    usable = [c for c in table.columns if _could_be(c) and not _names_sides(table, c)]
    named = table.named(*label_names(c.name for c in table.columns))
    worded = [c for c in usable if has_word(c.name, LABEL_WORDS)]
    found = [LabelChoice(named.name, BY_NAME)] if named else []
    if len(worded) == 1:
        found.append(LabelChoice(worded[0].name, "by a word in its name"))
    if usable:
        found.append(LabelChoice(usable[-1].name, _last(table, usable[-1])))
    found += [LabelChoice(c.name, "by a word in its name") for c in worded]
    found += [LabelChoice(c.name, "the first column that could be one") for c in usable[:1]]
    found += [LabelChoice(c.name, "two values") for c in reversed(usable) if c.distinct == 2]
    first: dict[str, LabelChoice] = {}
    for choice in found:
        first.setdefault(choice.name, choice)
    return list(first.values())[:MOST_ASKED]


def label_names(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the typical names of a label; y is none between x and z.

    >>> "y" in label_names(["a", "y"]), "y" in label_names(["X", "y", "z"])
    (True, False)
    """
    axes = {name.lower() for name in columns} & {"x", "z"}
    return tuple(name for name in LABEL_NAMES if name != "y" or len(axes) < 2)


def _last(table: Table, found: Profile) -> str:
    last = table.columns[-1]
    if found.name == last.name:
        return "the last column, for want of a telling name"
    return (
        "the last column that could be one, for want of a telling name (the last,"
        f" {plain(last.name)}, {_other(table, last)})"
    )


def _could_be(column: Profile) -> bool:
    typed = (
        column.is_number
        or column.family == "bool"
        or (column.family == "text" and column.distinct <= 100)
    )
    return (
        typed
        and column.distinct > 1
        and not hint_of(column.name)
        and column.name.lower() not in WEIGHTS
    )


def _names_sides(table: Table, column: Profile) -> bool:
    """Return True if the values of a column are names of sides, such as train and test."""
    return {"train", "test"} <= split_values(table.connection, column)


def _other(table: Table, column: Profile) -> str:
    """Return what a column is that could be no label."""
    if column.distinct <= 1:
        return "is constant"
    if column.name.lower() in WEIGHTS:
        return "is a weight by its name"
    if hint_of(column.name):
        return "is a key by its name"
    if _names_sides(table, column):
        return "says the side of each row"
    if column.family == "text":
        return f"is text of {column.distinct} values"
    return f"holds {WORDS[column.family]}"


def siblings(table: Table, label: Profile) -> tuple[Profile, ...]:
    """Return the label and the columns like it, where they look like several labels of a row.

    All contain the same two values and nulls; a feature rarely is unknown like that.
    """
    alike = [
        c
        for c in table.columns
        if c.family == label.family and c.distinct == 2 and 0.01 <= c.null_share < 1
    ]
    if (
        label not in alike
        or len(alike) < LEAST_SIBLINGS
        or label.family not in ("int", "float", "bool")
    ):
        return ()
    found = tuple(c for c in alike if (c.low, c.high) == (0, 1) or c.family == "bool")
    return found if len(found) >= LEAST_SIBLINGS and label in found else ()


def respelt(table: Table, label: Profile) -> tuple[str, str] | None:
    """Return an expression that joins spellings of one class, with its reason.

    `Yes`, `yes` and `YES ` are one class; None if every class has one spelling.
    """
    if label.family != "text" or not 2 < label.distinct <= 1000:
        return None
    name = ident(label.name)
    found = rows(
        table.connection,
        f"select lower(trim({name})) as v, list(distinct {name} order by {name}) from {SAMPLE}"
        f" where {name} is not null group by 1 order by 1",
    )
    shown = next((spelt for _, spelt in found if len(spelt) > 1), None)
    if shown is None or len(found) < 2:
        return None
    return (
        f"lower(trim({table.sql(label)}))",
        f"{label.distinct} spellings of {len(found)} values: {', '.join(map(repr, shown[:4]))} are"
        " one",
    )


def guess_task(table: Table, label: Profile, labels: Sequence[Profile] = ()) -> tuple[str, str]:
    """Return the task that fits a label, or several of them, as YAML, and the reason."""
    if labels:
        unknown = sum(c.null_share for c in labels) / len(labels)
        return (
            "{kind: multilabel}",
            f"{len(labels)} columns of the same two values, {unknown:.0%} of them unknown",
        )
    if label.distinct == 2:
        counts = _counts(table, label)
        positive, count, why = _positive(counts)
        return (
            f"{{kind: binary, positive: {value_text(positive)}}}",
            f"two values; {why} is positive ({_share(count, label)})"
            + _few(table, min(n for _, n in counts), "of the rarer value"),
        )
    task, why = task_line(table.connection, label)
    if "multiclass" in task:
        why += _few(table, min(n for _, n in _counts(table, label)), "of the rarest value")
    return task, why


def unlabelled(table: Table, labels: Sequence[Profile]) -> float:
    """Return the share of rows that know none of the labels."""
    unknown = " and ".join(f"{ident(c.name)} is null" for c in labels)
    share = row(table.connection, f"select avg(cast({unknown} as integer)) from {SAMPLE}")[0]
    return float(share or 0.0)


def rarest_rows(table: Table, label: Profile) -> int:
    """Return the rows of the rarest class in the whole table, estimated from the sample."""
    return round(min(n for _, n in _counts(table, label)) * _scale(table))


def _counts(table: Table, label: Profile) -> list[tuple[Any, int]]:
    return [
        (value, int(count))
        for value, count in rows(
            table.connection,
            f"select {ident(label.name)}, count(*) from {SAMPLE} where {ident(label.name)} is not"
            " null group by all order by 2, 1",
        )
    ]


def _scale(table: Table) -> float:
    sampled = int(row(table.connection, f"select count(*) from {SAMPLE}")[0])
    return max(table.rows, sampled) / max(sampled, 1)


def _share(count: int, label: Profile) -> str:
    share = count / label.present
    return f"{share:.1%} of the rows" if share >= 0.005 else f"{count} of {label.present} rows"


def _few(table: Table, count: int, words: str) -> str:
    """Return a warning if the test side would contain too few rows of a class."""
    held = round(count * _scale(table) * TEST_SHARE)
    if held >= FEW or not table.rows:  # an audit has its sides already
        return ""
    row_text = "row" if held == 1 else "rows"
    return f"; test will have about {held} {row_text} {words}: too few for a claim about it"


def _positive(counts: list[tuple[Any, int]]) -> tuple[Any, int, str]:
    """Return the positive class of two (rarer first), its rows, and the reason.

    It is the one that means yes, or the other of one that means no, else the rarer.

    >>> _positive([("no", 46), ("yes", 54)]), _positive([("ill", 3), ("well", 9)])[0]
    (('yes', 54, "'yes', by its meaning,"), 'ill')
    """
    counts = [(_whole(value), count) for value, count in counts]
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


def _whole(value: Any) -> Any:
    """Return a number of any type as a whole one if it is whole; anything else unchanged."""
    if isinstance(value, bool) or not isinstance(value, float | Decimal):
        return value
    return int(value) if value == int(value) else float(value)


def value_text(value: Any) -> str:
    """Return a label's value in YAML.

    >>> value_text(Decimal(1)), value_text(Decimal("0.50")), value_text(True), value_text("no")
    ('1', '0.5', 'true', '"no"')
    """
    value = _whole(value)
    return json.dumps(value) if isinstance(value, bool | int | float) else quoted(str(value))


def require_label(label: Profile) -> None:
    """Refuse a label that has one value, or whose type cannot be predicted.

    Raises:
        ConfigError: with the column and what to name instead.
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


def guess_weight(table: Table, columns: Sequence[Profile], guesses: dict[str, Guess]) -> None:
    """Give the role weight to a column named as one, if every row has a positive number."""
    for column in columns:
        if (
            column.name.lower() in WEIGHTS
            and column.is_number
            and column.low > 0
            and column.distinct > 1
            and table.is_complete(column)
        ):
            guesses[column.name] = Guess(
                "weight", f"by its name; {column.low:g} to {column.high:g} in every row"
            )
            return
