"""Typed table as SQL: columns cast to one form each, and keys that identify and split rows.

Forms: numbers float64 (NaN is null, no -0.0); categories text (1.0 is '1', so that whole numbers
read alike from any file format); texts and sets text; tensors flat lists of one length; keys
unicode NFC text; time float64, UTC epoch seconds of a timestamp.
"""

from __future__ import annotations

import math

from schemas.config import ColumnConfig
from schemas.records import LabelColumn, TableSpec
from schemas.tables import LABEL_TYPES, allowed_values
from training.data.engine.engine import ident, literal, row_md5_sql, without_nan
from training.data.serving_expressions import raw_columns
from training.data.serving_expressions.bag_codes import OF_LISTS
from training.data.table.columns import Resolved
from training.data.table.sql_types import family, nesting
from training.data.table.time_units import scale

KEPT = ("__id", "__key", "__group", "__time")
WHOLE = 2**53  # beyond it, doubles skip whole numbers
LABEL_SQL = {"bool": "boolean", "int": "bigint", "float": "double", "text": "varchar"}


def typed_sql(resolved: Resolved, relation: str, placed: bool = False) -> str:
    """Return a relation with the columns of the validated table, and some columns more.

    These are role columns that have limits, and the columns of `raw_names` and `grouping_names`; if
    `placed`, `__source_row` counts the rows in the order of the relation.
    Without a declared id, `__key` is the hash of the features and `__id` the hash of the whole row
    with its occurrence. So rows keep both when the source is reordered, and rows of equal
    features share a key.
    """
    spec = resolved.spec
    parts = {n: _feature(n, resolved) for n in spec.features} | {
        n: _role_value(n, resolved) for n in value_columns(resolved)
    }
    parts["__group"] = key_sql(spec.group) if spec.group else "cast(null as varchar)"
    parts["__time"] = time_sql(spec.time, resolved) if spec.time else "cast(null as double)"
    parts |= {"__label_time": time_sql(spec.label_time, resolved)} if spec.label_time else {}
    parts |= {name: time_sql(name, resolved) for name in spec.available}
    parts |= {stored: ident(name) for name, stored in raw_names(spec).items()}
    parts |= {
        stored: _grouping_value(name, resolved.grouping[name], resolved)
        for name, stored in grouping_names(resolved).items()
    }
    parts |= {"__source_row": "row_number() over () - 1"} if placed else {}
    if spec.id:
        parts |= {"__id": key_sql(spec.id), "__key": key_sql(spec.id)}
        return f"(select {_listed(parts)} from {relation})"
    typed = f"(select {_listed(parts)} from {relation})"
    content = (*spec.features, *_given(spec), "__group", "__time")
    hashed = (
        f"(select *, {row_md5_sql(spec.features)} as __key, {row_md5_sql(content)} as __content"
        f" from {typed})"
    )
    numbered = "concat(__content, '-', row_number() over (partition by __content))"
    return f"(select * exclude (__content), {numbered} as __id from {hashed})"


def validated_columns(spec: TableSpec) -> tuple[str, ...]:
    """Return the columns of the validated table in their order."""
    times = (*(("__label_time",) if spec.label_time else ()), *spec.available)
    return tuple(dict.fromkeys((*KEPT, *times, *_given(spec), *spec.features)))


def raw_names(spec: TableSpec) -> dict[str, str]:
    """Return the source columns of derived features, with the names of their raw copies."""
    return {
        name: f"__raw_{position}"
        for position, name in enumerate(raw_columns(spec.derived, spec.derived))
    }


def grouping_names(resolved: Resolved) -> dict[str, str]:
    """Return columns that group rows (`data.group_by`), with their names in the typed table.

    Numbers are float64, the rest text.
    """
    return {name: f"__by_{position}" for position, name in enumerate(resolved.grouping)}


def value_columns(resolved: Resolved) -> tuple[str, ...]:
    """Return role columns that the typed table has under their own names.

    These are label, weight, split, and any with limits.
    """
    limited = tuple(
        n
        for n in (*resolved.spec.id, *resolved.spec.group, resolved.spec.time)
        if n is not None and has_limits(resolved.configs[n])
    )
    return (*_given(resolved.spec), *limited)


def unlabelled_sql(resolved: Resolved) -> str:
    """Return an SQL condition: the row has no label; of several labels, none of them."""
    return (
        "("
        + " and ".join(
            f"({_role_value(name, resolved)}) is null" for name in resolved.spec.label_columns
        )
        + ")"
    )


def ignored_sql(resolved: Resolved) -> dict[str, str]:
    """Return, for each label with values that mean unknown, an SQL condition that it has one."""
    return {
        name: f"({_label_value(name, resolved)}) in ({_ignored(label)})"
        for name, label in resolved.spec.label_columns.items()
        if label.ignore
    }


def _ignored(label: LabelColumn) -> str:
    """Return the values that mean unknown, as literals of the label's type.

    The result is null if none of them is of that type.
    """
    return (
        ", ".join(literal(v) for v in allowed_values(label.ignore, LABEL_TYPES[label.type]))
        or "null"
    )


def has_limits(config: ColumnConfig) -> bool:
    """Return True if the declaration restricts the column's values."""
    return (
        config.min is not None
        or config.max is not None
        or config.allowed is not None
        or config.unique
    )


def wrong_shape_sql(name: str, shape: tuple[int, ...], kind: str) -> str:
    """Return an SQL condition: the list is null or does not have this shape, flat or nested."""
    column = ident(name)
    if nesting(kind) == 1:
        return f"({column} is null or len({column}) <> {math.prod(shape)})"
    tests = [f"len({column}) <> {shape[0]}"]
    for depth in range(1, len(shape)):
        outer, inner = _flat(column, depth - 1), _flat(column, depth)
        tests.append(
            f"len({inner}) <> {math.prod(shape[: depth + 1])} or len(list_filter({outer}, lambda v:"
            f" v is null or len(v) <> {shape[depth]})) > 0"
        )
    return f"({column} is null or {' or '.join(tests)})"


def _listed(parts: dict[str, str]) -> str:
    return ", ".join(f"{sql} as {ident(name)}" for name, sql in parts.items())


def _given(spec: TableSpec) -> tuple[str, ...]:
    return tuple(n for n in (*spec.label_columns, spec.weight, spec.split) if n is not None)


def _feature(name: str, resolved: Resolved) -> str:
    if name in resolved.spec.tensor:
        return _tensor(name, resolved)
    kind = resolved.types[name]
    if name in resolved.spec.bags:
        return _joined(name, kind)
    return (
        number_sql(name, kind, resolved)
        if name in resolved.spec.numeric
        else _category(name, kind, resolved)
    )


def number_sql(name: str, kind: str, resolved: Resolved) -> str:
    """Return SQL of a column of an SQL type as float64, NaN as null."""
    column, found = ident(name), family(kind)
    if found == "int":
        return f"cast({column} as double)"
    if found == "bool":
        return f"cast(cast({column} as integer) as double)"
    # NaN of the source is null already: see `usable`
    if found == "float" and name not in resolved.computed:
        return f"cast({column} as double) + cast(0 as double)"  # makes 0.0 of -0.0
    number = f"try_cast({column} as double)" if found == "text" else f"cast({column} as double)"
    return f"{without_nan(number)} + cast(0 as double)"


def _grouping_value(name: str, kind: str, resolved: Resolved) -> str:
    return (
        number_sql(name, kind, resolved)
        if family(kind) in ("int", "float", "bool")
        else f"cast({ident(name)} as varchar)"
    )


def _category(name: str, kind: str, resolved: Resolved) -> str:
    if family(kind) != "float":
        return f"cast({ident(name)} as varchar)"
    return whole_number_text(f"({number_sql(name, kind, resolved)})")


def whole_number_text(number: str) -> str:
    """Return SQL of a float as text, in which 1.0 is '1'."""
    whole = f"{number} = floor({number}) and abs({number}) < {WHOLE}"
    return (
        f"case when {whole} then cast(cast({number} as bigint) as varchar) else cast({number} as"
        " varchar) end"
    )


def _tensor(name: str, resolved: Resolved) -> str:
    kind, shape = resolved.types[name], resolved.spec.tensor[name]
    element = "utinyint" if resolved.spec.tensor_dtype[name] == "uint8" else "float"
    flat = _flat(ident(name), nesting(kind) - 1)
    # the test keeps the cast from failing; rows of another shape are refused by name before
    return (
        f"case when {wrong_shape_sql(name, shape, kind)} then null else cast({flat} as"
        f" {element}[]) end"
    )


def _joined(name: str, kind: str) -> str:
    """Return a text as it is, and the different values of a list as one text in their order."""
    if family(kind) != "list":
        return f"cast({ident(name)} as varchar)"
    values = f"list_sort(list_distinct(cast({ident(name)} as varchar[])))"
    return f"array_to_string({values}, {literal(OF_LISTS)})"


def _flat(column: str, times: int) -> str:
    return "flatten(" * times + column + ")" * times


def _role_value(name: str, resolved: Resolved) -> str:
    """Return a role column under its own name.

    The label keeps its type, weights and limited numbers are float64, the rest is text.
    """
    spec, kind = resolved.spec, resolved.types[name]
    if name in spec.label_columns:
        ignored = ignored_sql(resolved).get(name)
        return (
            f"case when {ignored} then null else {_label_value(name, resolved)} end"
            if ignored
            else _label_value(name, resolved)
        )
    if name == spec.weight or (name != spec.split and family(kind) in ("int", "float")):
        return number_sql(name, kind, resolved)
    return f"cast({ident(name)} as varchar)"


def _label_value(name: str, resolved: Resolved) -> str:
    """Return a label as its type, with the values that mean unknown."""
    kind = resolved.spec.label_columns[name].type
    return (
        number_sql(name, resolved.types[name], resolved)
        if kind == "float"
        else f"cast({ident(name)} as {LABEL_SQL[kind]})"
    )


def key_sql(names: tuple[str, ...]) -> str:
    """Return one text for one or several columns; null if any is null.

    Several are joined so that no two keys give the same text.
    """
    texts = [f"nfc_normalize(cast({ident(n)} as varchar))" for n in names]
    if len(texts) == 1:
        return texts[0]
    return " || '|' || ".join(f"replace(replace({t}, '%', '%25'), '|', '%7C')" for t in texts)


def time_sql(name: str, resolved: Resolved) -> str:
    """Return SQL of a time as float64: UTC epoch seconds, or numbers in the unit of `__time`."""
    if not resolved.spec.time_is_timestamp:
        number, factor = (
            number_sql(name, resolved.types[name], resolved),
            scale(resolved.configs[name].unit, resolved.spec.time_unit),
        )
        return number if factor == 1 else f"(({number}) * {literal(factor)})"
    return f"cast(epoch(cast({ident(name)} as timestamp)) as double)"
