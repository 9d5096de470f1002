"""First declaration, guessed from the table: `bulkhead init DATA`.

Every guess has its reason in a comment next to it. It is a draft to be read, not a verdict. A draft
of a table that is not too large is tried before it is given out, so that its own run accepts it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from schemas.config import DataConfig
from schemas.database_config import ONLY_TABLE, Choice
from schemas.errors import ConfigError
from training.data.draft.guesses import Draft, Guess, Table
from training.data.draft.label_guess import Ask, guess_label, guess_task
from training.data.draft.number_columns import csv_lines, remark_of, variants_note, written_role
from training.data.draft.pandas_nulls import pandas_nulls_note
from training.data.draft.profile import (
    AT_ONCE,
    SAMPLE,
    SAMPLE_ROWS,
    Profile,
    batched,
    plain,
    read_table,
)
from training.data.draft.rare_values import min_count
from training.data.draft.rehearsal import Judge, Rehearsal, amended, rehearse
from training.data.draft.role_guess import guess_roles
from training.data.draft.sample_codes import SampleCodes
from training.data.draft.split_guess import Plan, plans
from training.data.draft.target import loss_lines
from training.data.draft.tied_rows import tie_rows
from training.data.draft.yaml_lines import key, quoted, scalar
from training.data.engine.engine import connect, ident, row

__all__ = ["Draft", "Guess", "Table", "draft", "guess_label", "guess_roles", "guess_task"]

LISTED = 80  # columns that are listed one by one; of more, only those that need a remark
REHEARSED_CELLS = 600_000  # of a table that is tried: larger ones follow from the counts
READ_MOLECULES = 3_000  # whose scaffolds are found in a second
FEW_NULLS = 12  # fewer may all be outside train
ODD_ROWS = 20  # that differ from all others: fewer may all be held out
BOUNDED = 100  # rows, or groups, of which validation has enough to bound 90 %
ROUNDS = 4  # of a draft without the columns that its own checks refuse
FINDING = "# Its run will stop at"  # begins a line on top of a draft
Line = tuple[str, str]


def draft(
    uri: str,
    label: str | None = None,
    name: str | None = None,
    judge: Judge | None = None,
    ask: Ask | None = None,
    choice: Choice = ONLY_TABLE,
) -> str:
    """Return the YAML text of a first declaration for a table.

    It loads as it is and gives a reason next to each line.

    Args:
        uri: file, folder, glob or database.
        label: the label's column; guessed by name, else the last column.
        name: of the declaration; by default derived from the file's name.
        judge: checks for leaks, of which the draft takes out what it can.
        ask: chooses the label among candidates, where it is not given and no name tells.
        choice: table, query or sheet.

    Raises:
        SourceError: the source cannot be found or read.
        ConfigError: there is no such label column, a table without rows or features, or one whose
            rows no split can divide.
    """
    where = uri if "://" in uri else str(Path(uri).absolute())
    with closing(connect()) as connection:
        data, columns, total, relation = read_table(connection, where, choice)
        if not total or len(columns) < 2:
            raise ConfigError(
                f"{uri}: expected rows and at least two columns, got {total} rows of {len(columns)}"
                " columns; give another table"
            )
        whole = total <= SAMPLE_ROWS
        table = Table(connection, data, tuple(columns), total, relation, whole)
        target, why = guess_label(table, label, ask)
        found = guess_roles(table, target, why)
        task = guess_task(table, found.label, found.labels)
        found = tie_rows(table, found, task[0])
        return _accepted(table, found, task, name or _slug(data.table or where), judge)


def _accepted(table: Table, found: Draft, task: Line, name: str, judge: Judge | None = None) -> str:
    """Return the first text that its own run accepts; of a large table, the likeliest.

    Where leaks are left that no line of a draft takes out, the text begins with them.

    Raises:
        ConfigError: every way to split the rows is refused; with the reason of the first.
    """
    small = table.rows * len(table.columns) <= REHEARSED_CELLS
    if found.molecules and table.rows > READ_MOLECULES:
        small = False
    refusal, told = "", ""
    for _ in range(ROUNDS):
        changed = found
        for plan in plans(table, found, task[0]):
            text, tried = _tried(table, plan, task, name, judge if small else None, small)
            if tried.refusal is not None:
                refusal = refusal or tried.refusal
                continue
            changed = amended(found, tried.failed)
            told = told or _with_findings(text, tried)
            if not tried.failed:
                return text
            if changed != found or not tried.is_torn:
                break
        if changed == found or not any(g.is_feature for g in changed.columns.values()):
            break
        found, told = changed, ""
    if told:
        return told
    raise ConfigError(
        f"expected rows that a split can divide into train, val and test, got {table.rows} that"
        f" none can; give more rows. The first way was refused: {refusal}"
    )


def _tried(
    table: Table, plan: Plan, task: Line, name: str, judge: Judge | None, small: bool
) -> tuple[str, Rehearsal]:
    """Return the text of a plan, and what its own run says of it; of a large table nothing."""
    able = plan._replace(draft=_with_few_nulls(table, _with_odd_rows(table, plan.draft)))
    text = _render(table, able, task, name)
    if not small:
        return text, Rehearsal(None)
    tried = rehearse(text, judge)
    if tried.is_constant:
        line = ("constant_features: drop", _constants(str(tried.refusal)))
        checked = able.draft._replace(checks=(*able.draft.checks, line))
        text = _render(table, able._replace(draft=checked), task, name)
        tried = rehearse(text, judge)
    if tried.nullable:
        able = able._replace(draft=able.draft._replace(nullable=tried.nullable))
        text = _render(table, able, task, name)
    return text, tried


def _with_findings(text: str, tried: Rehearsal) -> str:
    """Put the checks that will stop the run, with their remedies, on top of the text."""
    found = "".join(
        f"{FINDING} {plain(r.name)}: {plain(r.summary)}. To go on: {plain(r.remedy)}\n"
        for r in tried.failed
    )
    return found + text


def _constants(refusal: str) -> str:
    names = refusal.partition(": ")[2].partition(";")[0]
    return f"train rows show one value only of {plain(names)[:200]}"


def _with_few_nulls(table: Table, found: Draft) -> Draft:
    """Let the run fill numbers with so few nulls that train may have none of them."""
    few = [
        c.name
        for c in table.columns
        if c.is_number
        and found.columns[c.name].is_feature
        and c.null_share
        and c.null_share * table.rows < FEW_NULLS
    ]
    return found._replace(nullable=tuple(few))


def _with_odd_rows(table: Table, found: Draft) -> Draft:
    """Let the run drop features that differ in so few rows that train may have none of them."""
    checked = [
        c
        for c in table.columns
        if found.columns[c.name].is_feature and c.family != "list" and c.distinct <= 10
    ]
    if table.rows * len(table.columns) <= REHEARSED_CELLS or not checked:
        return found
    counts = SampleCodes(table.connection).outside_modes(checked) or [
        n for part in batched(checked, AT_ONCE) for n in _outside_modes(table, part)
    ]
    odd = [(c, n) for c, n in zip(checked, counts, strict=True) if n < ODD_ROWS]
    if not odd:
        return found
    rows_of = "1 row" if odd[0][1] == 1 else f"{odd[0][1]} rows"
    why = f"{plain(odd[0][0].name)} differs in {rows_of} only: train may have none of them"
    return found._replace(checks=(*found.checks, ("constant_features: drop", why)))


def _outside_modes(table: Table, columns: Sequence[Profile]) -> tuple[int, ...]:
    """Return in how many rows of the sample each column differs from its most frequent value."""
    modes = ", ".join(f"mode({ident(c.name)}) as m{i}" for i, c in enumerate(columns))
    counts = ", ".join(
        f"count(*) filter (where s.{ident(c.name)} is distinct from modes.m{i})"
        for i, c in enumerate(columns)
    )
    return row(
        table.connection,
        f"select {counts} from {SAMPLE} s, (select {modes} from {SAMPLE}) modes",
    )


def _render(table: Table, plan: Plan, task: Line, name: str) -> str:
    found = plan.draft
    lines: list[Line] = [
        (f"name: {key(name)}", ""),
        ("data:", ""),
        (f"  uri: {quoted(str(table.data.uri))}", f"{table.rows} rows"),
        *_choice_lines(table.data),
        *csv_lines(table.connection, table.data),
        *_row_lines(found),
        *_column_lines(table, found),
    ]
    lines += [(f"task: {task[0]}", task[1]), (f"split: {plan.split}", plan.why)]
    if found.checks:
        lines += [("checks:", ""), *((f"  {line}", why) for line, why in found.checks)]
    if not found.labels:
        lines += loss_lines(table.connection, found.label)
    lines += _model_lines(table, found)
    head = (
        "# Drafted from the data; read each line, its reason stands next to it. `bulkhead schema`"
        " lists all that can be set.\n"
    )
    return head + "".join(
        f"{text}  # {plain(why)}\n" if why else f"{text}\n" for text, why in lines
    )


def _choice_lines(data: DataConfig) -> list[Line]:
    """Return the line that says what is read of a database or an Excel file."""
    if data.query is not None:
        return [(f"  query: {quoted(data.query)}", "")]
    return [
        (f"  {name}: {quoted(value)}", "")
        for name, value in (("table", data.table), ("sheet", data.sheet))
        if value is not None
    ]


def _row_lines(found: Draft) -> list[Line]:
    """Return the lines that say which rows count, and what is derived of them."""
    lines = []
    if found.row_number:
        column, why = found.row_number
        lines.append((f"  row_number: {key(column)}", why))
    if found.unlabelled:
        text = f"{found.unlabelled:.1%} of the rows have no label"
        lines.append(("  null_labels: drop", text))
    if found.filter:
        condition, why = found.filter
        lines.append((f"  filter: {quoted(condition)}", why))
    if found.derive:
        lines.append(("  derive:", ""))
        lines += [
            (f"    {key(column)}: {scalar(expression)}", why)
            for column, (expression, why) in found.derive.items()
        ]
    return lines


def _column_lines(table: Table, found: Draft) -> list[Line]:
    lines = [("  columns:", "")]
    if found.row_number:
        lines.append((f"    {key(found.row_number[0])}: id", "counted above"))
    short = len(found.columns) > LISTED
    lines += [
        (f"    {key(c)}: {_role(table, found, c)}", _with_remark(table, c, g))
        for c, g in found.columns.items()
        if not (short and g.obvious) or c in found.nullable or c in table.data.columns
    ]
    if short:
        lines.append(('    "*": feature', "the rest: numbers are numeric, text is categorical"))
    if found.together[0]:
        lines.append((f"  group_by: {{{found.together[0]}: features}}", found.together[1]))
    if found.molecules:
        lines.append(
            (
                f"  group_by: {{scaffold: {quoted(found.molecules.name)}}}",
                "molecules of one scaffold resemble each other; needs RDKit (extra chem)",
            )
        )
    if found.tied:
        names = ", ".join(map(quoted, found.tied.columns))
        lines.append((f"  group_by: {{duplicates: [{names}]}}", found.tied.why))
    return lines


def _role(table: Table, found: Draft, name: str) -> str:
    """Return the role of a column as YAML, with its spelling and whether nulls are filled."""
    role = written_role(found.columns[name].role, table.data, name)
    if name not in found.nullable:
        return role
    if role.startswith("{"):
        return f"{role.removesuffix('}')}, nullable: true}}"
    return "{kind: numeric, nullable: true}" if role == "numeric" else role


def _with_remark(table: Table, name: str, guess: Guess) -> str:
    """Add what was found in the texts of a column to the reason for its role."""
    is_text = any(c.name == name and c.family == "text" for c in table.columns)
    variants = (
        variants_note(table.connection, SAMPLE, name, guess.role)
        if is_text and guess.role in ("label", "categorical")
        else ""
    )
    nulls = (
        pandas_nulls_note(table.connection, SAMPLE, name)
        if is_text and guess.role in ("label", "categorical", "feature")
        else ""
    )
    remarks = (guess.why, remark_of(table.connection, name), variants, nulls)
    return "; ".join(filter(None, remarks))


def _model_lines(table: Table, found: Draft) -> list[Line]:
    lines = []
    if floor := min_count(table, found):
        lines.append((f"normalize: {{min_count: {floor[0]}}}", floor[1]))
    if any(
        g.role.startswith("{kind: tensor") and g.role.count(",") > 1 for g in found.columns.values()
    ):
        lines.append(("model: {kind: cnn}", "a tensor column looks like pictures"))
    else:
        why = "networks and boosting, blended; quick spends less time, best more"
        lines.append(("model: {kind: auto, effort: default}", why))
    groups = found.groups.distinct if found.groups else found.tied.distinct if found.tied else 0
    if (groups or table.rows) >= BOUNDED:
        new = "new groups" if groups else "new rows"
        why = f"bulkhead predict --intervals adds what holds the truth of 90% of {new}"
        lines.append(("evaluate: {intervals: 0.9}", why))
    return lines


def _slug(uri: str) -> str:
    """Return a declaration's name from a path.

    >>> _slug("/data/Bike Hour_2.csv.gz")
    'bike-hour_2'
    """
    stem = Path(uri).name.split(".")[0] or "table"
    return re.sub(r"[^a-z0-9_-]+", "-", stem.lower()).strip("-_")[:63] or "table"
