"""Names that the preparation gives to columns of its own."""

from __future__ import annotations

RESERVED = (
    *("__id", "__key", "__group", "__time", "__label_time", "__label_end", "__source_row"),
    *("__side", "__series", "__place", "__content", "__declared", "__at", "__hash", "__code"),
    *("__m", "__v", "__k", "__label_of_the_row", "__bulkhead_file"),
)
