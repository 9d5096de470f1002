"""Check that the files of a source have the same columns, under names that SQL distinguishes."""

from __future__ import annotations

import pyarrow as pa

from schemas.errors import SourceError, first_few


def require_agreement(columns: dict[str, list[tuple[str, str]]]) -> None:
    """Refuse names that SQL cannot distinguish, and files with different columns.

    Raises:
        SourceError: with the names, or the difference between two files.
    """
    first_path, first = next(iter(columns.items()))
    for path, fields in columns.items():
        seen: dict[str, str] = {}
        for name, _ in fields:
            if name.lower() in seen:
                raise SourceError(
                    f"{path}: columns {seen[name.lower()]!r} and {name!r} have the same name but"
                    " for case; rename one"
                )
            seen[name.lower()] = name
        difference = _difference(dict(first), dict(fields))
        if difference:
            raise SourceError(
                f"{path}: expected the columns of {first_path}: {difference}; give files of one"
                " table, or read them as tables of their own"
            )


def _difference(expected: dict[str, str], found: dict[str, str]) -> str:
    parts = []
    if missing := [n for n in expected if n not in found]:
        parts.append(f"it lacks {first_few(missing, limit=10)}")
    if extra := [n for n in found if n not in expected]:
        parts.append(f"it adds {first_few(extra, limit=10)}")
    unlike = [
        n
        for n in expected
        if n in found and found[n] != expected[n] and "null" not in (found[n], expected[n])
    ]
    if unlike:
        parts.append(
            "types differ: "
            + first_few(
                (f"{n} is {found[n]}, not {expected[n]}" for n in unlike), len(unlike), limit=10
            )
        )
    return "; ".join(parts)


def type_family(kind: pa.DataType) -> str:
    """Return one name for types that may differ between files of one table.

    Example: whole numbers with nulls are often written as floats.
    """
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        return "text"
    if pa.types.is_timestamp(kind):
        return "timestamp with time zone" if kind.tz else "timestamp"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"list of {type_family(kind.value_type)}"
    return str(kind)
