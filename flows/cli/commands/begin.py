"""Commands for a first start: `bulkhead init`, `schema`, `doctor`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.output import print_json
from flows.cli.shared import AsJson, Debug, Query, Sheet, Table, environment, stated
from schemas.database_config import Choice
from schemas.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tasks.draft import LabelChoice


@stated
def schema() -> None:
    """Print the JSON schema of the declaration, for editors."""
    from schemas.describe import json_schema

    print_json(json_schema())


@stated
def init(
    data: Annotated[
        str,
        typer.Argument(
            help="Parquet, CSV, JSON-lines or Excel file, folder, glob, DuckDB or SQLite file, or"
            " postgresql://host/database.",
            metavar="DATA",
        ),
    ],
    label: Annotated[
        str | None,
        typer.Option(help="The column to predict; when absent, guessed, or asked at a terminal."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the model; from the file name when absent.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write here instead of to standard output."),
    ] = None,
    table: Table = None,
    query: Query = None,
    sheet: Sheet = None,
    debug: Debug = False,
) -> None:
    """Draft a declaration from a table, with the reason for each guess."""
    from schemas.digest import write_atomic
    from schemas.output_file import require_room
    from tasks.draft import draft_declaration, findings_of

    if str(output) == "-":
        output = None
    if output is not None:
        require_room(output, "--output")
        if output.exists():
            raise ConfigError(f"{output} exists already; give another --output or remove it first")
    at_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    choice = Choice(table, query, sheet)
    text = draft_declaration(data, label, name, _ask_label if at_terminal else None, choice)
    if output is None:
        print(text, end="")
    else:
        write_atomic(output, text)
        for finding in findings_of(text):
            print(f"! {finding}", file=sys.stderr)
        print(
            f"✓ {output}: read it, correct what was guessed wrong, then: bulkhead run {output}",
            file=sys.stderr,
        )


def _ask_label(choices: Sequence[LabelChoice]) -> str:
    """Let a person choose the column to predict: by number, or any other column by name."""
    print("Which column is to be predicted?", file=sys.stderr)
    for place, choice in enumerate(choices, 1):
        print(f"  {place}  {choice.name} ({choice.why})", file=sys.stderr)
    answer = str(typer.prompt("Number or name", default="1", err=True)).strip()
    if answer.isdecimal() and 1 <= int(answer) <= len(choices):
        return choices[int(answer) - 1].name
    return answer


@stated
def doctor(as_json: AsJson = False) -> None:
    """Check this machine: versions, cores, devices, disk, tracking, and what is missing."""
    environment(debug=False)
    from tasks.doctor import examine

    findings = examine()
    if as_json:
        print_json([f.model_dump(mode="json") for f in findings])
    else:
        for finding in findings:
            print(
                f"{'✓' if finding.ok else '✗'} {finding.what:<18} {finding.found}"
                + (f"  → {finding.remedy}" if finding.remedy else "")
            )
    raise typer.Exit(0 if all(f.ok for f in findings) else 1)
