"""Commands for a first start: `bulkhead init`, `schema`, `doctor`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.output import print_json
from flows.cli.shared import AsJson, Debug, environment, stated
from schemas.errors import ConfigError

if TYPE_CHECKING:
    pass


@stated
def schema() -> None:
    """Print the JSON schema of the declaration, for editors."""
    from schemas.describe import json_schema

    print_json(json_schema())


@stated
def init(
    data: Annotated[str, typer.Argument(help="Parquet, CSV, folder or glob.", metavar="DATA")],
    label: Annotated[
        str | None, typer.Option(help="The column to predict; guessed when absent.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the model; from the file name when absent.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write here instead of to standard output."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Draft a declaration from a table, with the reason for each guess."""
    from schemas.digest import write_atomic
    from schemas.output_file import require_room
    from tasks.draft import draft_declaration

    if output is not None:
        require_room(output, "--output")
        if output.exists():
            raise ConfigError(f"{output} exists already; give another --output or remove it first")
    text = draft_declaration(data, label, name)
    if output is None:
        print(text, end="")
    else:
        write_atomic(output, text)
        print(
            f"✓ {output}: read it, correct what was guessed wrong, then: bulkhead run {output}",
            file=sys.stderr,
        )


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
