"""`bulkhead look`: facts of a table before there is a declaration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.output import print_json
from flows.cli.shared import AsJson, Debug, Query, Sheet, Table, stated
from schemas.database_config import Choice

ENDINGS = (
    *(".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".arrow", ".feather"),
    *(".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".xlsx", ".xlsm"),
    *(".duckdb", ".ddb", ".db", ".sqlite", ".sqlite3"),
)


def _tables(incomplete: str) -> list[str]:
    """Tab-completion of the first argument: data files here and one folder below."""
    return [
        str(path)
        for pattern in ("*", "*/*")
        for path in sorted(Path().glob(pattern))
        if path.name.lower().endswith(ENDINGS) and str(path).startswith(incomplete)
    ]


def _columns(context: typer.Context, incomplete: str) -> list[str]:
    """Tab-completion of the label: the columns of the table."""
    from tasks.audit_files import column_names

    file = context.params.get("file")
    return [n for n in column_names([str(file)] if file else []) if n.startswith(incomplete)]


@stated
def look(
    file: Annotated[
        str,
        typer.Argument(
            help="Parquet, CSV, Arrow, JSON-lines or Excel file, folder, glob, DuckDB or SQLite"
            " file, or postgresql://host/database.",
            metavar="FILE",
            autocompletion=_tables,
        ),
    ],
    label: Annotated[
        str | None,
        typer.Option(
            help="The column to predict; the likeliest candidate when absent.",
            autocompletion=_columns,
            metavar="COLUMN",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write a page here too, e.g. look.html.", metavar="HTML"
        ),
    ] = None,
    table: Table = None,
    query: Query = None,
    sheet: Sheet = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Look at a table before any declaration: columns, repeats, order, missing values, candidates
    for each role, and what a split by each would leave in test.

    Of a large table a sample of the rows is read closely. Nothing is decided: `bulkhead init`
    drafts a declaration.
    """
    from schemas.output_file import require_room

    if output is not None:
        require_room(output, "--output")
    from tasks.look import look_at_table

    report = look_at_table(file, label, output, Choice(table, query, sheet))
    if as_json:
        print_json(report.model_dump(mode="json"))
        return
    from flows.cli.look_table import print_look

    print_look(report, output)
