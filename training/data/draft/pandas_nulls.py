"""Texts of a category that pandas reads as nulls, so that a caller may pass a null for them."""

from __future__ import annotations

import duckdb

from training.data.engine.engine import ident, literal, rows

# `na_values` of pandas.read_csv, but for the empty text. Source: pandas, "IO tools", na_values
TEXTS = (
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)


def pandas_nulls_note(connection: duckdb.DuckDBPyConnection, relation: str, name: str) -> str:
    """Return a sentence on texts of a column that pandas turns into nulls; empty without any."""
    column = ident(name)
    found = rows(
        connection,
        f"select {column}, count(*) as n, (select count(*) from {relation}) from {relation} where"
        f" {column} in ({', '.join(map(literal, TEXTS))}) group by 1 order by 2 desc, 1",
    )
    if not found:
        return ""
    shown = ", ".join(repr(str(text)) for text, _, _ in found[:3])
    share = sum(count for _, count, _ in found) / found[0][2]
    return (
        f"{shown} in {share:.1%} of the rows is a value here, not a gap; pandas reads it as null"
        " unless keep_default_na=False, so list it in data.csv.null_values if it means a gap"
    )
