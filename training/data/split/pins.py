"""Groups whose split is fixed by hand (`split.pin`)."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

import duckdb

from schemas.errors import SplitError, first_few
from training.data.engine.engine import literal, rows


def find_pins(
    connection: duckdb.DuckDBPyConnection, table: str, pins: Mapping[str, str]
) -> dict[str, str]:
    """Return groups fixed by hand, in the form that keys have; refuse a name that no row has."""
    found = {unicodedata.normalize("NFC", group): side for group, side in pins.items()}
    known = {
        r[0]
        for r in rows(
            connection,
            f"select distinct __group from {table} where __group in"
            f" ({', '.join(map(literal, found)) or 'null'})",
        )
    }
    unknown = [repr(p) for p in found if p not in known]
    if unknown:
        groups = [
            repr(r[0])
            for r in rows(connection, f"select distinct __group from {table} order by 1 limit 6")
        ]
        raise SplitError(
            f"split.pin: expected names of groups, got {first_few(unknown, len(unknown))}, which no"
            f" row has; groups are {first_few(groups)}"
        )
    return found
