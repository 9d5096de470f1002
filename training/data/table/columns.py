"""Roles and kinds of the source columns, resolved from the declaration and the source's types."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping
from typing import Literal, NamedTuple, cast, get_args

from schemas.config import ColumnConfig, DataConfig, Declaration, GroupByConfig, TaskConfig
from schemas.errors import SchemaError, first_few
from schemas.records import LabelColumn, TableSpec
from training.data.advice import derived_in_yaml, sql_name
from training.data.table.kind_fits import require_kind_fits, require_shape_fits
from training.data.table.picture_specs import picture_specs
from training.data.table.reserved import RESERVED
from training.data.table.sql_types import WORDS, Family, family, is_whole
from training.data.table.time_units import declared_lengths, in_time_units

__all__ = ["Family", "Resolved", "family", "resolve"]
BagKind = Literal["text", "set", "smiles"]
BAGS = get_args(BagKind)
TIMES = ("time", "label_time", "available")
PATTERN = frozenset("*?[")


class Resolved(NamedTuple):
    """Meaning of the table: declaration and source type of each used column.

    It also has the types of the columns that group rows. `computed` are columns that expressions of
    `data.derive` make, whose floats may be NaN. NaN in the source's own columns is null already.
    """

    spec: TableSpec
    configs: dict[str, ColumnConfig]
    types: dict[str, str]
    grouping: dict[str, str] = {}
    computed: frozenset[str] = frozenset()


def resolve(types: Mapping[str, str], declaration: Declaration) -> Resolved:
    """Give each column of the source one role; each role gets the columns it needs.

    Args:
        types: column name to SQL type, in the order of the source, derived columns included.
        declaration: uses the sections `data`, `task` and `split`.

    Raises:
        SchemaError: a column is undeclared or missing, a role is taken twice, or a type does not
            fit its role or kind.
    """
    data = declaration.data
    configs = _matched(types, data)
    used = {n: c for n, c in configs.items() if c.role != "ignore"}
    for name in used:
        if name.lower() in RESERVED:
            raise SchemaError(
                f"column {name!r}: the preparation uses this name itself; rename it, or set"
                f" data.columns.{name}: ignore"
            )
    roles = {
        role: tuple(n for n, c in used.items() if c.role == role)
        for role in ("id", "group", *TIMES, "label", "weight", "split", "feature")
    }
    _one_of_each(roles, declaration.task)
    for name, config in used.items():
        _role_fits(name, config, types[name], declaration.task)
        if config.kind == "tensor":
            require_shape_fits(name, config.shape or (), types[name])
    _one_clock(roles, used, types)
    spec = _with_labels(
        _spec(roles, used, {n: family(types[n]) for n in used}, types, declaration.task),
        roles["label"],
        used,
        types,
        declaration.task,
    )
    ignored = tuple(n for n, c in configs.items() if c.role == "ignore")
    titles = data.group_by.titles if data.group_by else ()
    images = picture_specs(used, types)
    spec = spec.model_copy(update={"ignored": ignored, "group_by": titles, "images": images})
    for where, length in declared_lengths(declaration):
        in_time_units(length, spec, where)
    return Resolved(
        spec,
        used,
        {n: types[n] for n in used},
        _grouping(data.group_by, spec, types),
        frozenset(data.derive),
    )


def _grouping(
    by: GroupByConfig | None, spec: TableSpec, types: Mapping[str, str]
) -> dict[str, str]:
    """Return the columns that `data.group_by` names, with their types, in any role."""
    if by is None:
        return {}
    for name in by.source_columns:
        if name not in types:
            close = difflib.get_close_matches(name, list(types), n=1)
            raise SchemaError(
                f"data.group_by: the source has no column {name!r}"
                + (f"; did you mean {close[0]!r}?" if close else "")
            )
        if family(types[name]) in ("list", "other") and name not in spec.images:
            raise SchemaError(
                f"data.group_by: column {name!r} holds {WORDS[family(types[name])]}, which are no"
                " key; name others, or say duplicates: features"
            )
    if by.near_duplicates == "features" and (
        others := [n for n in by.smiles if n not in spec.features]
    ):
        raise SchemaError(
            f"data.group_by.smiles: {others[0]!r} is no feature; name it in near_duplicates, e.g."
            f" near_duplicates: [{others[0]}]"
        )
    return {name: types[name] for name in by.source_columns}


def _matched(types: Mapping[str, str], data: DataConfig) -> dict[str, ColumnConfig]:
    """Return the declaration of each source column, in the order of the declaration.

    Columns of one pattern keep the order of the source.
    """
    found = {name: data.column(name) for name in types}
    undeclared = [n for n, c in found.items() if c is None]
    if undeclared:
        shown = first_few(map(repr, undeclared), len(undeclared), limit=10)
        raise SchemaError(
            f"{len(undeclared)} source columns match nothing in data.columns: {shown}; add `'*':"
            " feature` for the rest, or `name: ignore` for each"
        )
    configs: dict[str, ColumnConfig] = {}
    for key, config in data.columns.items():
        matched = (
            [key]
            if key in types
            else [
                n
                for n in types
                if n not in configs and n not in data.columns and found[n] is config
            ]
        )
        if not matched and not any(fnmatch.fnmatchcase(n, key) for n in types) and key != "*":
            close = difflib.get_close_matches(key, list(types), n=3)
            advice = (
                f"did you mean {' or '.join(map(repr, close))}?"
                if close
                else f"the source has {first_few(types, limit=10)}"
            )
            raise SchemaError(
                f"data.columns.{key}: the source has no such"
                f" column{'s' if PATTERN & set(key) else ''}; {advice}"
            )
        configs |= dict.fromkeys(matched, config)
    return configs


def _one_of_each(roles: Mapping[str, tuple[str, ...]], task: TaskConfig) -> None:
    for role in (
        "time",
        "label_time",
        "weight",
        "split",
        *(() if task.has_several else ("label",)),
    ):
        if len(roles[role]) > 1:
            raise SchemaError(
                f"expected one column with role {role}, got {len(roles[role])}:"
                f" {first_few(roles[role])}; name the one, and ignore the others"
            )
    if not roles["label"] and task.kind != "causal_lm":
        raise SchemaError(
            "expected a column with role label, got none; declare it as `name: label`"
        )
    if task.has_several and len(roles["label"]) == 1:
        raise SchemaError(
            f"expected several columns with role label (task {task.kind}), got only"
            f" {roles['label'][0]!r}; declare the others, or use task.kind: binary"
        )
    for role in ("label_time", "available"):
        if roles[role] and not roles["time"]:
            raise SchemaError(
                f"column {roles[role][0]!r} (role {role}) is compared with the time of the"
                " prediction, and no column has role time; declare one as `name: time`"
            )
    if not roles["feature"]:
        raise SchemaError(
            "expected at least one feature, got none; declare the rest of the columns with `'*':"
            " feature`"
        )


def _one_clock(
    roles: Mapping[str, tuple[str, ...]],
    configs: Mapping[str, ColumnConfig],
    types: Mapping[str, str],
) -> None:
    """Check that compared times are all timestamps, or all numbers with units or all without."""
    for name in (*roles["time"], *roles["label_time"], *roles["available"]):
        if configs[name].unit is not None and family(types[name]) in ("date", "instant"):
            raise SchemaError(
                f"column {name!r}: unit is for a time of plain numbers, and this one holds"
                f" {WORDS[family(types[name])]}; remove unit"
            )
    for name in (*roles["label_time"], *roles["available"]):
        time = roles["time"][0]
        if (family(types[name]) in ("date", "instant")) != (
            family(types[time]) in ("date", "instant")
        ):
            kinds = (
                f"{name!r} holds {WORDS[family(types[name])]}, {time!r}"
                f" {WORDS[family(types[time])]}"
            )
            raise SchemaError(
                f"times that are compared must be alike: {kinds}; derive one from the other's kind"
            )
        if (configs[name].unit is None) != (configs[time].unit is None):
            known, unknown = (name, time) if configs[name].unit else (time, name)
            raise SchemaError(
                f"times that are compared need their units: column {known!r} declares"
                f" {configs[known].unit}, {unknown!r} none; declare it, e.g. {unknown}: {{role:"
                f" {configs[unknown].role}, unit: {configs[known].unit}}}"
            )


def _available(
    names: tuple[str, ...], configs: Mapping[str, ColumnConfig], features: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Return the features that each time of availability applies to."""
    found = {}
    for name in names:
        patterns = configs[name].of
        found[name] = tuple(
            f
            for f in features
            if patterns is None or any(f == p or fnmatch.fnmatchcase(f, p) for p in patterns)
        )
        unknown = [
            p
            for p in patterns or ()
            if not any(f == p or fnmatch.fnmatchcase(f, p) for f in features)
        ]
        if unknown:
            close = difflib.get_close_matches(unknown[0], features, n=1)
            hint = (
                f"did you mean {close[0]!r}?"
                if close
                else f"features are {first_few(features, limit=10)}"
            )
            raise SchemaError(
                f"column {name!r} (role available): of names {unknown[0]!r}, which is no feature;"
                f" {hint}"
            )
    return found


def _role_fits(name: str, config: ColumnConfig, kind: str, task: TaskConfig) -> None:
    """Refuse a type that does not fit a role or kind, and say what to do instead."""
    found = family(kind)
    where, words = f"column {name!r} (role {config.role})", WORDS[found]
    if (
        config.role in ("id", "group")
        and not is_whole(kind)
        and found not in ("text", "bool", "date", "instant")
    ):
        raise SchemaError(
            f"{where}: expected text or whole numbers, got {words}, which do not compare reliably;"
            f" derive a key, e.g. {derived_in_yaml('row_key', f'cast({sql_name(name)} as bigint)')}"
        )
    if config.role in TIMES and found not in ("int", "float", "date", "instant"):
        time_of_text = f"strptime({sql_name(name)}, '%Y-%m-%d')"
        raise SchemaError(
            f"{where}: expected dates, timestamps or numbers, got {words}; derive one, e.g."
            f" {derived_in_yaml('row_time', time_of_text)}"
        )
    if config.role == "weight" and found not in ("int", "float"):
        raise SchemaError(f"{where}: expected numbers, got {words}; derive a number from it")
    if config.role == "split" and found not in ("int", "text", "bool"):
        raise SchemaError(f"{where}: expected text such as train and test, got {words}; derive one")
    if config.role in ("id", "group", "time", "weight") and config.nullable:
        raise SchemaError(
            f"{where}: nulls cannot be allowed for this role; remove nullable, and leave such rows"
            " out with data.filter"
        )
    if config.role == "label":
        _label_fits(where, config, found, task.label(name).kind)
    if config.role == "feature":
        require_kind_fits(f"column {name!r}", name, config, kind)
    if (config.min is not None or config.max is not None) and _kind(config, found) != "numeric":
        raise SchemaError(
            f"{where}: min and max are for numbers, got {words}; remove them, or declare kind:"
            " numeric"
        )
    if (
        config.allowed is not None
        and _kind(config, found) == "numeric"
        and not all(isinstance(v, int | float) for v in config.allowed)
    ):
        raise SchemaError(
            f"{where}: allowed must hold numbers, got"
            f" {first_few(map(repr, config.allowed), len(config.allowed))}; fix it, or declare"
            " kind: categorical"
        )
    if config.kind == "tensor" and (config.allowed is not None or config.unique):
        raise SchemaError(f"{where}: allowed and unique do not apply to a tensor; remove them")


def _label_fits(where: str, config: ColumnConfig, found: Family, task: str) -> None:
    if found not in ("int", "float", "bool", "text"):
        raise SchemaError(
            f"{where}: expected numbers, text or true/false, got {WORDS[found]}; derive a label"
            " from it"
        )
    numeric = found in ("int", "float") or (found == "text" and config.kind == "numeric")
    if task == "regression" and (not numeric or config.kind == "categorical"):
        advice = (
            "declare its null texts in data.csv.null_values, set kind: numeric, or set task.kind:"
            " multiclass"
        )
        raise SchemaError(
            f"{where}: a regression label must be numeric, got {WORDS[found]}; {advice}"
        )


def _with_labels(
    spec: TableSpec,
    names: tuple[str, ...],
    configs: Mapping[str, ColumnConfig],
    types: Mapping[str, str],
    task: TaskConfig,
) -> TableSpec:
    """Return the spec with every label column and the label values that mean unknown."""
    labels = {}
    for name in names:
        kind = _label_type(configs[name], family(types[name]), types[name])
        ignore = (*task.ignore, *task.label(name).ignore)
        if others := [
            v
            for v in ignore
            if (kind == "bool" and not isinstance(v, bool))
            or (kind in ("int", "float") and isinstance(v, str))
        ]:
            wanted = "true or false" if kind == "bool" else "numbers"
            raise SchemaError(
                f"column {name!r} (role label): task.ignore must hold {wanted}, as the column does,"
                f" got {first_few(map(repr, others))}; fix it"
            )
        labels[name] = LabelColumn(type=kind, ignore=ignore)
    if len(names) < 2 and not any(label.ignore for label in labels.values()):
        return spec
    return spec.model_copy(update={"labels": labels, "label": ", ".join(names)})


def _kind(config: ColumnConfig, found: Family) -> str:
    """Resolve `auto`: numbers are numeric, the rest is categorical."""
    if config.kind != "auto":
        return config.kind
    return "numeric" if found in ("int", "float") else "categorical"


def _spec(
    roles: Mapping[str, tuple[str, ...]],
    configs: Mapping[str, ColumnConfig],
    families: Mapping[str, Family],
    types: Mapping[str, str],
    task: TaskConfig,
) -> TableSpec:
    features = roles["feature"]
    kinds = {n: _kind(configs[n], families[n]) for n in features}
    has_tokens = task.kind == "causal_lm"
    text = next((n for n in features if kinds[n] == "text"), None) if has_tokens else None
    label, time = text or roles["label"][0], next(iter(roles["time"]), None)
    tensors = {n: configs[n].shape or () for n in features if kinds[n] == "tensor"}
    return TableSpec(
        id=roles["id"],
        group=roles["group"],
        time=time,
        time_is_timestamp=time is not None and families[time] in ("date", "instant"),
        time_unit=configs[time].unit if time is not None else None,
        label_time=next(iter(roles["label_time"]), None),
        available=_available(roles["available"], configs, features),
        label=label,
        label_type=_label_type(configs[label], families[label], types[label]),
        weight=next(iter(roles["weight"]), None),
        split=next(iter(roles["split"]), None),
        numeric=tuple(n for n in features if kinds[n] == "numeric"),
        categorical=tuple(n for n in features if kinds[n] == "categorical"),
        tensor=tensors,
        bags={n: cast(BagKind, kinds[n]) for n in features if kinds[n] in BAGS and n != text},
        text=text,
        tensor_dtype={
            n: "uint8" if types[n].startswith("UTINYINT[") else "float32" for n in tensors
        },
        integer=tuple(n for n in features if families[n] == "int"),
        boolean=tuple(n for n in features if families[n] == "bool"),
    )


def _label_type(
    config: ColumnConfig, found: Family, kind: str
) -> Literal["bool", "int", "float", "text"]:
    if config.kind == "categorical":
        return "text"
    if found == "int":
        return "float" if kind in ("HUGEINT", "UHUGEINT", "UBIGINT") else "int"
    if found == "text":
        return "float" if config.kind == "numeric" else "text"
    return "bool" if found == "bool" else "float"
