"""Explain predictions of a registered model, for `bulkhead explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from schemas.errors import ConfigError, counted
from training.formatting import plain
from training.registry.explain_rows import (
    FORMATS,
    Explained,
    as_frame,
    explain_file,
    write_explained,
)

SHOWN_ROWS, SHOWN_COLUMNS, SHOWN_CHARACTERS = 10, 6, 40


def explain_rows(
    model_uri: str,
    rows: Path,
    background: Path | None,
    column: str | None,
    output: Path | None,
    tracking_uri: str | None,
    first: int | None = None,
) -> Explained:
    """Return the Shapley values of a file's rows, written to `output` if it is given."""
    if output is not None and output.suffix.lower() not in FORMATS:
        raise ConfigError(
            f"--output: expected a name that ends in {', '.join(FORMATS)}, got {output}"
        )
    found = explain_file(model_uri, rows, background, column, tracking_uri, first)
    if output is not None:
        write_explained(found, output)
    return found


def records_of(found: Explained) -> list[dict[str, Any]]:
    """Return a record for each row, for scripts."""
    records: list[dict[str, Any]] = as_frame(found).to_dict("records")
    return records


def lines_of(found: Explained) -> list[str]:
    """Return the strongest columns of the first rows, in lines for a terminal."""
    lines = [
        f"{found.column}: each value is what a column adds to the base, {found.base:.4f}",
        f"base: the mean prediction over {found.background}",
    ]
    width = max((len(name) for name in found.names), default=0)
    for row in range(min(len(found.predictions), SHOWN_ROWS)):
        lines.append(f"row {row}: {found.predictions[row]:.4f}")
        order = np.argsort(-np.abs(found.values[row]), kind="stable")
        for i in order[:SHOWN_COLUMNS]:
            name = found.names[i]
            given = f"  = {_cell(found.given[name].iloc[row])}" if name in found.given else ""
            lines.append(f"  {found.values[row, i]:+.4f}  {name:<{width}}{given}".rstrip())
        rest = order[SHOWN_COLUMNS:]
        if len(rest):
            lines.append(
                f"  {found.values[row, rest].sum():+.4f}  {counted(len(rest), 'other column')}"
            )
    if len(found.predictions) > SHOWN_ROWS:
        more = counted(len(found.predictions) - SHOWN_ROWS, "more row")
        lines.append(f"{more}: --output FILE or --json")
    return lines


def _cell(value: Any) -> str:
    """Return a value as given, on one line; a null as `missing`."""
    if np.ndim(value) > 0:
        return "…"
    if pd.isna(value):
        return "missing"
    return f"{value:.10g}" if isinstance(value, float) else plain(value, SHOWN_CHARACTERS)
