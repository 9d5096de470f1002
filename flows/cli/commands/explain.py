"""Command `bulkhead explain`: why a model predicts what it does for each row."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.output import print_json
from flows.cli.shared import AsJson, Debug, TrackingUri, environment, stated
from schemas.errors import counted


@stated
def explain(
    model_uri: Annotated[
        str, typer.Argument(help="e.g. models:/clinic-visits@champion", metavar="MODEL_URI")
    ],
    rows: Annotated[
        Path,
        typer.Argument(help="Parquet or CSV with the rows to explain.", metavar="ROWS"),
    ],
    background: Annotated[
        Path | None,
        typer.Option(
            help="Rows like those that the model learned from, of which the first 50 are used."
            " Default: train rows of its run, if they are on this machine; a model holds none."
        ),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option("--rows", min=1, help="Only the first N rows. Default: all, at most 1,000."),
    ] = None,
    of: Annotated[
        str | None,
        typer.Option(
            "--of", help="Output, e.g. probability_yes. Default: value or positive class."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Parquet, CSV or JSON to write the values of all rows to.")
    ] = None,
    tracking_uri: TrackingUri = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say which columns moved the prediction of each row of ROWS, as Shapley values: they add up to
    the prediction minus the mean prediction of background rows. Needs the extra explain.
    """
    environment(debug)
    from schemas.output_file import require_room
    from tasks.explain import explain_rows, lines_of, records_of

    if output is not None:
        require_room(output, "--output")
    found = explain_rows(model_uri, rows, background, of, output, tracking_uri, first)
    if as_json:
        print_json(records_of(found))
    elif output is None:
        print("\n".join(lines_of(found)))
    else:
        print(f"✓ {counted(len(found.values), 'row')} explained → {output}", file=sys.stderr)
