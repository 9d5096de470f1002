"""The exported program's file, and what every model's spec says of the run that made it."""

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

    Stack traces (they hold paths of this machine), where nodes came from (addresses in memory) and
    example inputs (they would be pickled) are left out.

    Args:
        program: takes one batch.
        batch: as `exported` takes it.
        path: of the file.
        free_axes: as `exported` takes them.
    """
    made = exported(program, batch, free_axes)
    for module in made.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta.pop("stack_trace", None)
            node.meta.pop("from_node", None)
            # by address, from the tracer of bytecode: by the name of the part
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
    """The program's graph, in eval mode.

    Args:
        program: takes one batch.
        batch: of at least two rows: one of a single row would be exported as a constant.
        free_axes: of every input, of any length when the program is called.
    """
    shapes = ({name: dict.fromkeys(free_axes, torch.export.Dim.DYNAMIC) for name in batch},)
    # a quarter of the time would go to the nodes of the graph
    with uncollected(), warnings.catch_warnings():
        # of attributes that a recurrent layer sets; whether the program is right is for its parity
        # to say
        warnings.simplefilter("ignore", UserWarning)
        try:
            return torch.export.export(program.eval(), (batch,), dynamic_shapes=shapes)
        except Exception as plain:
            # Python's len(tensor) is a plain number, by which the number of rows becomes a
            # constant; the tracer of bytecode keeps it free
            try:
                return torch.export.export(
                    program.eval(), (batch,), dynamic_shapes=shapes, strict=True
                )
            except Exception:
                raise plain from None


def require_parity(
    difference: Callable[[int], np.ndarray], ids: pd.Series, side: str, where: str, alike: str
) -> float:
    """The largest difference between the exported program and the network, over batches of 1, 3 and
    all rows.

    Args:
        difference: of the first so many rows, [rows].
        ids: of the rows.
        side: their side.
        where: unit of the difference and what a row is, for the error.
        alike: what a model must treat alike, for the error.

    Raises:
        IntegrityError: the difference reaches `PARITY` or is not a number, naming where.
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
    """The part of a model's spec that is alike for all tasks."""
    return {
        "format": serving.FORMAT,
        "name": run.name,
        "run_id": run.run_id,
        "task": declaration.task.kind,
        "label": run.spec.label,
        "csv": declaration.data.csv.model_dump(mode="json"),
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
