"""File of an exported program, and the part of the spec that describes its run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from schemas.config import Declaration
from schemas.digest import file_ref
from schemas.errors import IntegrityError
from schemas.records import FileRef, RunSpec, digest_of
from training.run.provenance import library_versions
from training.serving import serving
from training.uncollected import uncollected

PARITY_ROWS = 256
PARITY = 1e-6
LIBRARIES = ("torch", "numpy", "pandas", "mlflow")


def save_program(
    program: nn.Module, batch: dict[str, Tensor], path: Path, free_axes: tuple[int, ...] = (0,)
) -> FileRef:
    """Export with free axes and write; the bytes depend on program and torch version alone.

    Stack traces (with paths of this machine), origins of nodes (with memory addresses) and example
    inputs (which would be pickled) are removed.

    Args:
        program: takes one batch.
        batch: see `exported`.
        path: path of the file.
        free_axes: see `exported`.
    """
    made = exported(program, batch, free_axes)
    for module in made.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta.pop("stack_trace", None)
            node.meta.pop("from_node", None)
            # the bytecode tracer names it by address: use the name of the part
            if stack := node.meta.get("nn_module_stack"):
                node.meta["nn_module_stack"] = {
                    (part if key.isdigit() else key): (part, kind)
                    for key, (part, kind) in stack.items()
                }
    made._example_inputs = None
    torch.export.save(made, path)
    return file_ref(path)


def exported(
    program: nn.Module, batch: dict[str, Tensor], free_axes: tuple[int, ...] = (0,)
) -> torch.export.ExportedProgram:
    """Export the program's graph, in eval mode.

    Args:
        program: takes one batch.
        batch: at least two rows: a batch of one row would be exported as a constant.
        free_axes: axes of every input that may have any length in a call.
    """
    shapes = ({name: dict.fromkeys(free_axes, torch.export.Dim.DYNAMIC) for name in batch},)
    # the nodes of the graph would take a quarter of the time
    with uncollected(), warnings.catch_warnings():
        # about attributes that a recurrent layer sets; parity decides if the program is right
        warnings.simplefilter("ignore", UserWarning)
        try:
            return torch.export.export(program.eval(), (batch,), dynamic_shapes=shapes)
        except Exception as plain:
            # Python's len(tensor) is a plain number, so the number of rows becomes a constant; the
            # bytecode tracer keeps it free
            try:
                return torch.export.export(
                    program.eval(), (batch,), dynamic_shapes=shapes, strict=True
                )
            except Exception:
                raise plain from None


def require_parity(
    difference: Callable[[int], np.ndarray], ids: pd.Series, side: str, where: str, alike: str
) -> float:
    """Return the largest difference between program and network, over batches of 1, 3 and all rows.

    Args:
        difference: takes a number of rows, returns the difference of each, [rows].
        ids: ids of the rows.
        side: split of the rows.
        where: unit of the difference and meaning of a row, for the error.
        alike: what a model must treat equally, for the error.

    Raises:
        IntegrityError: the difference reaches `PARITY` or is not a number; the message says where.
    """
    worst = 0.0
    for rows in sorted({1, min(3, len(ids)), len(ids)}):
        found = difference(rows)
        if not (found < PARITY).all():
            at = int(np.argmax(np.where(np.isnan(found), np.inf, found)))
            raise IntegrityError(
                f"the exported program differs from the network by {found[at]:.3g}{where}"
                f" {ids.iloc[at]!r} ({side}, batch of {rows}), expected less than {PARITY:g}; the"
                f" model must treat {alike}, in eval mode, and keep no state"
            )
        worst = max(worst, float(found.max()))
    return worst


def describe_run(run: RunSpec, declaration: Declaration, program: FileRef) -> dict[str, Any]:
    """Return the part of a model's spec that is the same for all tasks."""
    return {
        "format": serving.FORMAT,
        "name": run.name,
        "run_id": run.run_id,
        "task": declaration.task.kind,
        "label": run.spec.label,
        "csv": declaration.data.csv.recorded(),
        "null_texts": list(run.spec.null_texts),
        "program": {
            "file": Path(program.path).name,
            "sha256": program.sha256,
            "num_bytes": program.num_bytes,
        },
        "statistics_sha256": digest_of(run.statistics),
        "versions": {
            name: version for name, version in library_versions().items() if name in LIBRARIES
        },
    }
