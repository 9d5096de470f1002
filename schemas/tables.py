"""Table schemas: columns and types of the validated table and its splits, and pandera's checks.

The `TableSpec` fixes the Arrow types; the declaration gives the limits (nulls, min, max, allowed).
pandera checks Arrow batches, so that memory stays bounded. It reports the rule that a column
breaks, and the caller finds the rows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from schemas.config import ColumnConfig
from schemas.label_config import value_text
from schemas.records import TableSpec

# pandera imports pyspark if installed, which warns about pandas 3
with warnings.catch_warnings():
    warnings.filterwarnings(
        "ignore", message="PySpark does not yet fully support pandas", category=FutureWarning
    )
    import pandera.pyarrow as pandera
    from pandera.errors import SchemaErrors

LARGEST = 1.7976931348623157e308
LABEL_TYPES = {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "text": pa.string()}
RULES = {
    "SERIES_CONTAINS_NULLS": "nulls",
    "WRONG_DATATYPE": "type",
    "COLUMN_NOT_IN_DATAFRAME": "missing",
    "COLUMN_NOT_IN_SCHEMA": "unknown",
}


def arrow_schema(spec: TableSpec) -> pa.Schema:
    """Return the Arrow schema of the validated table, which its three splits share.

    `__id` and `__key` text without nulls; `__group` text or null; `__time` float64 or null;
    `__label_time` and times of availability float64 or null; labels by their types; weight float64;
    split text; numeric float64; categorical text; tensors fixed-size lists of uint8 or float32;
    texts and sets text; pictures the SHA-256 of their pixels as text.
    """
    fields = [
        pa.field("__id", pa.string()),
        pa.field("__key", pa.string()),
        pa.field("__group", pa.string()),
        pa.field("__time", pa.float64()),
    ]
    fields += [
        pa.field(name, pa.float64())
        for name in (*(("__label_time",) if spec.label_time else ()), *spec.available)
    ]
    fields += [
        pa.field(name, LABEL_TYPES[label.type]) for name, label in spec.label_columns.items()
    ]
    fields += [pa.field(spec.weight, pa.float64())] if spec.weight else []
    fields += [pa.field(spec.split, pa.string())] if spec.split else []
    fields += [pa.field(n, pa.float64()) for n in spec.numeric]
    fields += [pa.field(n, pa.string()) for n in spec.categorical]
    for name, shape in spec.tensor.items():
        element = pa.uint8() if spec.tensor_dtype[name] == "uint8" else pa.float32()
        fields.append(pa.field(name, pa.list_(element, math.prod(shape))))
    fields += [pa.field(n, pa.string()) for n in (*spec.images, *spec.bags)]
    return pa.schema(fields)


class Limit(NamedTuple):
    """What pandera checks of a column: its Arrow type, nulls, and limits of its values."""

    kind: pa.DataType
    nullable: bool
    least: float | None
    most: float | None
    allowed: tuple[str | int | float | bool, ...] | None

    @property
    def column(self) -> pandera.Column:
        """Return pandera's form."""
        return pandera.Column(self.kind, _checks(self), nullable=self.nullable)


def pandera_schema(
    spec: TableSpec, configs: Mapping[str, ColumnConfig], types: Mapping[str, pa.DataType]
) -> dict[str, Limit]:
    """Return the declared limits, as pandera checks them, for batches of columns except tensors.

    Args:
        spec: columns and their meaning.
        configs: declared limits by column.
        types: the columns of the batches and their Arrow types.
    """
    labels = set() if spec.has_several_labels else {spec.label}
    required = {
        "__id",
        "__key",
        *labels,
        spec.weight,
        spec.split,
        "__group" if spec.group else None,
        "__time" if spec.time else None,
    }
    limits = {}
    for name, kind in types.items():
        config = configs.get(name, ColumnConfig())
        nullable = name not in required and config.nullable is not False
        least = 0.0 if name == spec.weight and config.min is None else config.min
        limits[name] = Limit(kind, nullable, least, config.max, config.allowed)
    return limits


def broken_rules(limits: Mapping[str, Limit], rows: pa.Table) -> set[tuple[str, str]]:
    """Return pairs (column, rule) that some row breaks: nulls, type, finite, min, max, allowed.

    Columns of one type with the same limits are checked as one column, without a copy: pandera
    takes milliseconds for each column.
    """
    if set(rows.column_names) != set(limits):
        return _broken({name: limit.column for name, limit in limits.items()}, rows)
    alike: dict[tuple[str, str], list[str]] = {}
    for name, limit in limits.items():
        # as text, in which true and 1 differ
        alike.setdefault((str(rows.schema.field(name).type), repr(limit)), []).append(name)
    return {
        pair
        for names in alike.values()
        for pair in _broken_of_alike(limits[names[0]].column, rows, names)
    }


def _broken_of_alike(
    limit: pandera.Column, rows: pa.Table, names: list[str]
) -> set[tuple[str, str]]:
    """Return the pairs of columns of one type with the same limits.

    If they break a rule together, each half of them is checked.
    """
    joined = pa.chunked_array(
        [chunk for name in names for chunk in rows[name].chunks], rows.schema.field(names[0]).type
    )
    found = _broken({names[0]: limit}, pa.table({names[0]: joined}))
    if not found or len(names) == 1:
        return found
    middle = len(names) // 2
    return _broken_of_alike(limit, rows, names[:middle]) | _broken_of_alike(
        limit, rows, names[middle:]
    )


def _broken(columns: dict[str, pandera.Column], rows: pa.Table) -> set[tuple[str, str]]:
    """Return the pairs of `broken_rules` of columns that are checked one by one."""
    try:
        pandera.DataFrameSchema(columns, strict=True).validate(rows, lazy=True)
    except SchemaErrors as errors:
        return {
            (
                str(e.column_name or e.schema.name),
                RULES.get(e.reason_code.name, getattr(e.check, "name", None) or str(e.check)),
            )
            for e in errors.schema_errors
        }
    return set()


def has_bad_elements(column: pa.ListArray | pa.FixedSizeListArray) -> bool:
    """Return True if a tensor column contains a null, infinite or NaN element."""
    elements = column.flatten()
    if column.null_count or elements.null_count:
        return True
    return (
        pa.types.is_floating(elements.type)
        and not pc.all(pc.is_finite(elements), min_count=0).as_py()
    )


def _checks(limit: Limit) -> list[pandera.Check]:
    checks = []
    if pa.types.is_floating(limit.kind):
        checks.append(pandera.Check.in_range(-LARGEST, LARGEST, name="finite"))
    if limit.least is not None:
        checks.append(pandera.Check.ge(limit.least, name="min"))
    if limit.most is not None:
        checks.append(pandera.Check.le(limit.most, name="max"))
    if limit.allowed is not None:
        allowed = allowed_values(limit.allowed, limit.kind)
        checks.append(pandera.Check.isin(allowed, name="allowed"))
    return checks


def allowed_values(
    values: tuple[str | int | float | bool, ...], kind: pa.DataType
) -> list[str | int | float | bool]:
    """Return the declared values in the form of a typed column.

    >>> allowed_values((1.0, True, "a"), pa.string()), allowed_values((1, 2), pa.float64())
    (['1', 'true', 'a'], [1.0, 2.0])
    """
    if pa.types.is_string(kind):
        return [value_text(v) for v in values]
    if pa.types.is_boolean(kind):
        return [bool(v) for v in values]
    numbers = [float(v) for v in values]
    return (
        list(numbers) if pa.types.is_floating(kind) else [int(v) for v in numbers if v.is_integer()]
    )
