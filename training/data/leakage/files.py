"""Two or three files from anywhere as splits, with one type per column.

Nothing is refused that the checks themselves must report.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import yaml

from schemas.audit import FilesToAudit
from schemas.config import Declaration, Role, SplitName
from schemas.errors import ConfigError, SchemaError, first_few
from schemas.load import apply_overrides, declare
from schemas.records import SourceRef
from training.data.draft.draft import Table, guess_label, guess_roles, guess_task
from training.data.draft.open_source import open_source
from training.data.draft.profile import SAMPLE, Profile, date_format, describe_sample
from training.data.engine.engine import ident, literal, row, rows
from training.data.leakage.sides import Sides
from training.data.sources.source import relation_sql
from training.data.table.columns import Family, family, resolve
from training.data.table.reserved import RESERVED
from training.data.table.typed import typed_sql, whole_number_text

ROW = "row of the file"  # the id if none is declared
SETTABLE = ("checks", "task", "split")
TIME_ROLES: tuple[Role, ...] = ("time", "label_time", "available")
NUMBERS: tuple[Family, ...] = ("int", "float")
MOMENTS: tuple[Family, ...] = ("date", "instant")


class Opened(NamedTuple):
    """Opened splits, digests of their sources, assumptions with reasons, and hints at roles."""

    sides: Sides
    sha256: dict[str, str]
    guesses: tuple[str, ...]
    hints: dict[str, tuple[str, str]]  # role → column, reason


class _Columns(NamedTuple):
    """Columns that the files share: the type of each, its SQL in every split, and remarks."""

    types: dict[str, str]
    casts: dict[SplitName, dict[str, str]]
    notes: list[str]

    def relation(self, side: SplitName, raw: str) -> str:
        """Return the rows of a split with every column as its type."""
        columns = (f"{sql} as {ident(name)}" for name, sql in self.casts[side].items())
        return f"(select {', '.join(columns)} from {raw})"


def open_files(connection: duckdb.DuckDBPyConnection, request: FilesToAudit) -> Opened:
    """Open the files as splits over typed rows.

    Delimited text, and files without a declared id, are loaded into the engine once (it spills to
    disk). Other Parquet and Arrow files are read in place, and only the columns that a check
    uses.

    Raises:
        SourceError: a file cannot be found or read.
        ConfigError: a named column is in no file, or a setting does not exist.
        SchemaError: a type does not fit the given role.
    """
    sources = {side: open_source(uris) for side, uris in request.uris.items()}
    nulls = tuple(
        dict.fromkeys(text for _, data in sources.values() for text in data.csv.null_values)
    )
    relations = {}
    for side, (source, data) in sources.items():
        same = data.model_copy(update={"csv": data.csv.model_copy(update={"null_values": nulls})})
        relations[side] = _raw(
            connection,
            side,
            source,
            relation_sql(source, same, connection),
            numbered=not request.id,
        )
    columns = _agreed(connection, relations, request)
    profiles, _ = describe_sample(connection, columns.relation("train", relations["train"]))
    table = Table(connection, sources["train"][1], tuple(p for p in profiles if p.name != ROW), 0)
    declaration, guesses = _declared(table, request, columns)
    sides = _typed(
        connection,
        {side: columns.relation(side, r) for side, r in relations.items()},
        declaration,
        columns.types,
    )
    return Opened(
        sides,
        {side: source.sha256 for side, (source, _) in sources.items()},
        (*guesses, *columns.notes),
        _hints(table, request, declaration),
    )


def _raw(
    connection: duckdb.DuckDBPyConnection,
    side: str,
    source: SourceRef,
    relation: str,
    numbered: bool,
) -> str:
    """Return the rows of a split, from the engine if reads are expensive or rows need numbers."""
    if source.format != "csv" and not numbered:
        return relation
    number = (
        f", {literal(side + ' row ')} || row_number() over () as {ident(ROW)}" if numbered else ""
    )
    connection.execute(
        f"create temp table {ident('raw_' + side)} as select *{number} from {relation}"
    )
    return ident("raw_" + side)


def _agreed(
    connection: duckdb.DuckDBPyConnection, relations: Mapping[SplitName, str], request: FilesToAudit
) -> _Columns:
    """Return columns that every file has, cast alike; report the others and leave them out."""
    types = {
        side: {str(r[0]): str(r[1]) for r in rows(connection, f"describe select * from {r}")}
        for side, r in relations.items()
    }
    named = [
        n
        for n in (*request.id, *request.group, *request.times, request.label, *request.ignore)
        if n
    ]
    for name in named:
        lacking = [side for side, found in types.items() if name not in found]
        if (
            lacking
            and not (name == request.label and "train" not in lacking)
            and name not in request.ignore
        ):
            raise ConfigError(
                f"column {name!r}: not in the {' and '.join(lacking)} file, which has"
                f" {first_few(types[lacking[0]], limit=12)}"
            )
    for name in types["train"]:
        if name.lower() in RESERVED:
            raise SchemaError(
                f"column {name!r}: the preparation uses this name itself; rename it in the files"
            )
    notes: list[str] = []
    common: dict[str, str] = {}
    casts: dict[SplitName, dict[str, str]] = {side: {} for side in relations}
    everywhere = [n for n in types["train"] if all(n in found for found in types.values())]
    if request.label and request.label not in everywhere:
        everywhere.append(request.label)
    alone = {side: [n for n in found if n not in everywhere] for side, found in types.items()}
    notes += [
        f"left out, not in every file: {first_few(map(repr, names), limit=20)} (of {side})"
        for side, names in alone.items()
        if names
    ]
    for name in everywhere:
        kinds = {side: found[name] for side, found in types.items() if name in found}
        common[name] = _common(kinds.values())
        if len({family(k) for k in kinds.values()}) > 1:
            notes.append(
                f"{name}: read as {common[name].lower()}, since it is "
                + ", ".join(f"{k.lower()} in {side}" for side, k in kinds.items())
            )
        for side in relations:
            casts[side][name] = (
                f"cast({ident(name) if side in kinds else 'null'} as {common[name]})"
            )
        # whole numbers next to nulls, as pandas writes them
        if name in (*request.id, *request.group) and family(common[name]) == "float":
            common[name] = "VARCHAR"
            for side in relations:
                casts[side][name] = whole_number_text(ident(name))
    return _Columns(common, casts, notes)


def _common(kinds: Iterable[str]) -> str:
    """Return the type that values of all these types can be cast to.

    >>> (_common(["BIGINT", "DOUBLE"]), _common(["BIGINT", "VARCHAR"]),
    ...     _common(["DATE", "TIMESTAMP"]), _common(["INTEGER", "INTEGER"]))
    ('DOUBLE', 'VARCHAR', 'TIMESTAMP', 'INTEGER')
    """
    different = list(dict.fromkeys(kinds))
    found = {family(k) for k in different}
    if len(different) == 1:
        return different[0]
    if found == {"int"}:
        return "HUGEINT" if any("HUGE" in k or k == "UBIGINT" for k in different) else "BIGINT"
    if found <= set(NUMBERS):
        return "DOUBLE"
    if found <= set(MOMENTS):
        return "TIMESTAMP"
    return different[0] if found == {"list"} else "VARCHAR"


def _declared(
    table: Table, request: FilesToAudit, columns: _Columns
) -> tuple[Declaration, list[str]]:
    """Return a declaration, guessed where the user gave none, and each guess with its reason."""
    guesses = []
    roles: dict[str, Any] = (
        dict.fromkeys(request.ignore, "ignore")
        | dict.fromkeys(request.group, "group")
        | dict.fromkeys(request.id or (ROW,), "id")
    )
    roles |= {
        name: role
        for name, role in ((request.time, "time"), (request.label_time, "label_time"))
        if name
    }
    roles |= {
        name: {"role": "available", "of": list(features) or None}
        for name, features in request.available.items()
    }
    task = {"kind": "causal_lm"}
    if request.task == "causal_lm":
        roles |= _documents(table, roles, request.label)
    else:
        label, why = guess_label(_without(table, roles), request.label)
        if request.label is None:
            guesses.append(f"label: {label.name} ({why})")
        roles[label.name] = "label"
        found, why = guess_task(table, label)
        task = (
            yaml.safe_load(found)
            if request.task in (None, yaml.safe_load(found)["kind"])
            else {"kind": request.task}
        )
        if request.task is None and not _is_set(request, "task", "task.kind"):
            guesses.append(f"task: {task['kind']} ({why})")
        for column in _without(table, roles).columns:
            roles[column.name], note = _feature(table.connection, column, columns)
            guesses += [note] if note else []
    kind, why = (request.split, "") if request.split else _split_kind(request, table)
    guesses += (
        [f"split: {kind} ({why})"] if why and not _is_set(request, "split", "split.kind") else []
    )
    tree: dict[str, Any] = {
        "name": _slug(request.train[0]),
        "data": {
            "uri": list(request.train),
            "columns": {n: roles[n] for n in columns.types if n in roles},
        },
    }
    tree |= {"task": task, "split": {"kind": kind}, "checks": {"constant_features": "drop"}}
    if wrong := [s for s in request.settings if s.split(".", maxsplit=1)[0] not in SETTABLE]:
        raise ConfigError(
            f"{wrong[0]!r}: of files, {', '.join(SETTABLE)} can be set, e.g."
            " checks.max_duplicate_share=0.01 or split.embargo=7d"
        )
    return declare(apply_overrides(tree, request.settings), "the audit"), guesses


def _is_set(request: FilesToAudit, *paths: str) -> bool:
    """Return True if a setting was given, so that nothing is assumed in its place."""
    return any(setting.partition("=")[0].strip() in paths for setting in request.settings)


def _documents(table: Table, roles: Mapping[str, Any], name: str | None) -> dict[str, str]:
    """Return the documents of a language model; leave out other columns without a role."""
    left = _without(table, roles).columns
    if not any(c.name == name and c.family == "text" for c in left):
        texts = [repr(c.name) for c in left if c.family == "text"]
        raise ConfigError(
            f"--label: of --task causal_lm expected the column of texts, got {name!r}; columns of"
            f" text are {first_few(texts) or 'none'}"
        )
    return {c.name: "text" if c.name == name else "ignore" for c in left}


def _without(table: Table, roles: Mapping[str, Any]) -> Table:
    return table._replace(columns=tuple(c for c in table.columns if c.name not in roles))


def _feature(
    connection: duckdb.DuckDBPyConnection, column: Profile, columns: _Columns
) -> tuple[Any, str]:
    """Return the type of a feature, with a remark if needed; dates become seconds in `columns`."""
    if column.family in MOMENTS:
        for casts in columns.casts.values():
            casts[column.name] = f"cast(epoch(cast({ident(column.name)} as timestamp)) as double)"
        columns.types[column.name] = "DOUBLE"
        return "numeric", ""
    if (
        column.family == "list"
        and column.shortest == column.longest > 0
        and family(column.type.split("[", maxsplit=1)[0]) in NUMBERS
        and column.type.count("[") == 1
    ):
        return {"role": "feature", "kind": "tensor", "shape": [column.longest]}, ""
    if column.family in ("list", "other"):
        return (
            "ignore",
            f"{column.name}: not looked at, it holds neither numbers, text nor lists of one length",
        )
    return "numeric" if column.is_number else "categorical", ""


def _split_kind(request: FilesToAudit, table: Table) -> tuple[str, str]:
    """Return how the rows were probably assigned to the files.

    A numeric time counts per group, and says nothing across groups.
    """
    time = next((c for c in table.columns if c.name == request.time), None)
    ordered = time is not None and (time.family not in NUMBERS or not request.group)
    kind = (
        "group_time"
        if request.group and ordered
        else "time"
        if ordered
        else "group"
        if request.group
        else "random"
    )
    because = [
        f"--group {' '.join(request.group)}" if request.group else "",
        f"--time {request.time}" if ordered else "",
    ]
    return kind, (
        "of " + " and ".join(filter(None, because))
        if any(because)
        else "neither group nor time was named"
    )


def _slug(uri: str) -> str:
    return (
        re.sub(r"[^a-z0-9_-]+", "-", Path(uri).name.split(".")[0].lower()).strip("-_")[:63]
        or "files"
    )


def _hints(
    table: Table, request: FilesToAudit, declaration: Declaration
) -> dict[str, tuple[str, str]]:
    """Return columns that look like an id, a group or a time that was not named.

    They are a question to the user, never an assumption.
    """
    label = next((c for c in table.columns if c.name in declaration.data.named("label")), None)
    if label is None:  # a language model has none
        return {}
    given = {*request.id, *request.group, *request.times, *request.ignore}
    try:
        found = guess_roles(
            table._replace(columns=tuple(c for c in table.columns if c.name not in given)),
            label,
            "",
        )
    except ConfigError:  # nothing is left to guess
        return {}
    return {
        g.role: (name, g.why)
        for name, g in found.columns.items()
        if g.role in ("id", "group", "time")
        and not getattr(request, g.role)
        and name in declaration.data.columns
    }


def _typed(
    connection: duckdb.DuckDBPyConnection,
    relations: dict[SplitName, str],
    declaration: Declaration,
    types: Mapping[str, str],
) -> Sides:
    """Return the columns of the validated table over each file's rows.

    Rows whose id is null share one id, so that they are reported.
    """
    if forms := _text_times(connection, declaration, types):
        parsed = ", ".join(
            f"try_strptime({ident(name)}, {literal(form)}) as {ident(name)}"
            for name, form in forms.items()
        )
        relations = {
            side: f"(select * replace ({parsed}) from {relation})"
            for side, relation in relations.items()
        }
        types = {**types, **dict.fromkeys(forms, "TIMESTAMP")}
    resolved = resolve(types, declaration)
    typed: dict[SplitName, str] = {}
    for side, relation in relations.items():
        typed[side] = (
            "(select * replace (coalesce(__id, 'null id') as __id, coalesce(__key, 'null id') as"
            f" __key) from {typed_sql(resolved, relation)})"
        )
    counts: dict[SplitName, int] = {
        side: int(row(connection, f"select count(*) from {relation}")[0])
        for side, relation in relations.items()
    }
    if empty := [side for side, n in counts.items() if not n]:
        raise SchemaError(
            f"expected rows on every side, got none in {' and '.join(empty)}; give another file"
        )
    declared_id = () if resolved.spec.id == (ROW,) else resolved.spec.id
    return Sides(
        connection, typed, counts, resolved.spec.model_copy(update={"id": declared_id}), declaration
    )


def _text_times(
    connection: duckdb.DuckDBPyConnection, declaration: Declaration, types: Mapping[str, str]
) -> dict[str, str]:
    """Return time columns that hold text in a form other than ISO, and that form."""
    forms = {}
    for name in (
        n for role in TIME_ROLES for n in declaration.data.named(role) if family(types[n]) == "text"
    ):
        present = int(row(connection, f"select count({ident(name)}) from {SAMPLE}")[0])
        found = date_format(connection, Profile(name, "VARCHAR", "text", present, 0, 0.0))
        if found is None:
            raise SchemaError(
                f"column {name!r}: expected dates, timestamps or numbers, got text in no known"
                " form; write ISO dates such as 2024-01-31"
            )
        forms[name] = found[0]
    return forms
