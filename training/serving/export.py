"""Export the best weights as a program on raw values: preprocessing, network and units in one
graph.

The network is that of `training.serving.reference_network`, in float64, so that served numbers
equal the evaluated ones.

Shapes: B rows, D numeric columns, C classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from schemas.calibration_records import Margin
from schemas.config import Declaration
from schemas.digest import verify, write_atomic
from schemas.load import declare
from schemas.records import (
    ExportedModel,
    FileRef,
    NumericStats,
    RunSpec,
    Statistics,
    TestTable,
    TrainTable,
    ValTable,
)
from training.data.arrays.apply import fitted_ranges
from training.objectives.link import Link, link_of, on_trained_scale
from training.objectives.metrics import predict
from training.objectives.targets import Target, Targets, targets_of
from training.serving import raw_columns, serving
from training.serving.export_text import export_text
from training.serving.exported_program import (
    PARITY_ROWS,
    describe_run,
    require_parity,
    save_program,
)
from training.serving.numeric_block import NumericBlock
from training.serving.reference_network import (
    blank_batch,
    precision,
    reference_network,
    reference_scores,
)
from training.serving.window_rules import given_windows, tensor_inputs


class Program(nn.Module):
    """Module from raw values to predictions, which serving calls.

    Each input is present only if the model has such columns: `numeric` float64 [B, D] (NaN is
    null), `categorical` int64 [B, columns], `tensor_<column>` and `bag_<column>` as stored.
    Output float64: probabilities [B, C] (two columns for binary), or values [B] in the label's
    units. For several labels it is [B, K], like `training.objectives.metrics.predict`.

    Args:
        network: In eval mode; runs in the precision of its parameters.
        statistics: Fitted on train.
        task: Kind of the task.
        labels: Labels of a task of several labels.
        link: Link of a single label's loss (`training.objectives.link`); None: that of its task.
    """

    def __init__(
        self,
        network: nn.Module,
        statistics: Statistics,
        task: str,
        labels: Targets = (),
        link: Link | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.task, self.labels, self.link = task, labels, link
        self.precision = precision(network)
        self.center, self.scale = statistics.target_center, statistics.target_scale
        self.columns = NumericBlock(statistics) if statistics.numeric else None

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Map a batch of raw values to predictions [B, C] or [B]."""
        inputs = dict(batch)
        if self.columns is not None:
            inputs["numeric"] = self.columns(batch["numeric"]).to(self.precision)
        scores = self.network(inputs).double()
        if self.labels:
            return torch.cat([_linked(t, scores[:, t.columns]) for t in self.labels], dim=1)
        if self.link is not None:
            return self.link(scores)
        if self.task == "regression":
            return scores[:, 0] * self.scale + self.center
        if self.task == "multiclass":
            return torch.softmax(scores, dim=1)
        positive = torch.sigmoid(scores[:, 0])
        return torch.stack([1 - positive, positive], dim=1)


def _linked(label: Target, scores: Tensor) -> Tensor:
    """Map scores of one of several labels to its columns of the predictions."""
    if (link := link_of(label.declaration, label.statistics)) is not None:
        return link(scores)[:, None]  # of a regression; labels with classes have no other link
    if label.kind == "regression":
        return scores * label.statistics.target_scale + label.statistics.target_center
    return torch.sigmoid(scores) if label.kind == "binary" else torch.softmax(scores, dim=1)


# ------------------------------------------------------------------------------------------- export


def export_model(
    run: RunSpec,
    weights: Path,
    out_dir: Path,
    table: TrainTable | ValTable | TestTable,
    thresholds: Mapping[str, float] | None = None,
    margins: Sequence[Margin] = (),
) -> ExportedModel:
    """Export `program.pt2`, `spec.json` and, for derived features, `expressions.zip`; verify them.

    The program must equal the network on real rows.

    Args:
        run: the trained run.
        weights: the checkpoint's weights, loaded without unpickling any code.
        out_dir: created; files of an earlier export are replaced.
        table: the table of one split, usually validation. Its first rows go through the saved
            program as raw values (from before features were derived), and the same rows of
            `run.arrays` through the network.
        thresholds: label to threshold, where one is declared.
        margins: of intervals, where they are declared.

    Returns:
        References to both files; `parity` is the largest difference found, in probability, or in
        standard deviations of the label for a regression.

    Raises:
        IntegrityError: program and network differ by 1e-6 or more, or the table changed.
    """
    verify(table.file)
    declaration = declare(run.declaration)
    if run.statistics.tokens is not None:
        return export_text(run, weights, out_dir, table)
    network = reference_network(run, weights)
    out_dir.mkdir(parents=True, exist_ok=True)
    batch = blank_batch(run.statistics, torch.float64, width=len(run.statistics.numeric))
    labels = targets_of(declaration, run.statistics)
    link = None if labels else link_of(declaration, run.statistics)
    program = save_program(
        Program(network, run.statistics, declaration.task.kind, labels, link),
        batch,
        out_dir / "program.pt2",
    )
    expressions = raw_columns.write_code(run, out_dir)
    spec = make_spec(run, declaration, program, expressions, thresholds or {}, margins)
    derive = serving.load_expressions(out_dir / raw_columns.EXPRESSIONS, spec)
    found = parity(run, network, serving.load_program(program.path, spec), spec, table, derive)
    written = write_atomic(out_dir / "spec.json", json.dumps(spec, indent=1, ensure_ascii=False))
    return ExportedModel(program=program, spec=written, parity=found, expressions=expressions)


# --------------------------------------------------------------------------------------------- spec


def probability_columns(classes: tuple[Any, ...]) -> list[str]:
    """Return the names of the columns of class probabilities, in class order."""
    return [f"probability_{value}" for value in classes]


def make_spec(
    run: RunSpec,
    declaration: Declaration,
    program: FileRef,
    expressions: FileRef | None,
    thresholds: Mapping[str, float],
    margins: Sequence[Margin] = (),
) -> dict[str, Any]:
    """Return the spec of serving: columns, vocabularies, fillings, classes, thresholds, margins,
    derived features, digests.
    """
    intervals = {m.label: {"interval": m.served} for m in margins}
    statistics, labels = run.statistics, targets_of(declaration, run.statistics)
    own = thresholds.get(run.spec.label) if not labels else None
    return {
        "numeric": [
            {
                "name": s.name,
                "fill": s.fill,
                "typical": s.mean,
                "boolean": s.name in run.spec.boolean,
                "low": low,
                "high": high,
                **_seen(s, low),
            }
            for s, (low, high) in zip(statistics.numeric, fitted_ranges(statistics), strict=True)
        ],
        "categorical": [
            {
                "name": s.name,
                "values": list(s.values),
                "nulls": nulls,
                **({"unseen_null": True} if nulls and not s.nulls else {}),
            }
            for s, nulls in zip(statistics.categorical, _with_nulls(run, declaration), strict=True)
        ],
        **tensor_inputs(run.spec, statistics),
        **({"bags": [bag.rule() for bag in statistics.bags]} if statistics.bags else {}),
        "classes": list(statistics.classes),
        "class_dtype": _class_dtype(statistics.classes),
        "probability_columns": probability_columns(statistics.classes),
        "labels": [
            _label_spec(t, thresholds.get(t.name)) | intervals.get(t.name, {}) for t in labels
        ],
        **({} if own is None else {"threshold": own}),
        **({} if labels else intervals.get(run.spec.label, {})),
        **raw_columns.describe(run, expressions),
        **describe_run(run, declaration, program),
    }


def _seen(column: NumericStats, low: float | None) -> dict[str, Any]:
    """Return train's range of a column that is not clipped: serving counts numbers outside it."""
    if low is not None or column.min is None or column.max is None:
        return {}
    return {"seen": [column.min, column.max]}


def _with_nulls(run: RunSpec, declaration: Declaration) -> list[bool]:
    """Return for each categorical column if it may be null at serving.

    It may if train, validation or test had a null, or if the declaration allows it.
    """
    sides = [
        side
        for side in (run.arrays.train, run.arrays.val, run.arrays.test)
        if "categorical" in side.arrays
    ]
    held = [
        (np.load(side.arrays["categorical"].path, mmap_mode="r") == serving.NULL).any(axis=0)
        for side in sides
    ]
    found = np.any(held, axis=0) if held else np.zeros(len(run.statistics.categorical), dtype=bool)
    declared = [declaration.data.column(s.name) for s in run.statistics.categorical]
    return [
        bool(seen) or bool(column is not None and column.nullable)
        for seen, column in zip(found, declared, strict=True)
    ]


def _label_spec(label: Target, threshold: float | None) -> dict[str, Any]:
    """Describe one of several labels: its classes, and its columns in program order."""
    classes = label.statistics.classes
    names = {"prediction": label.prediction_column, "probabilities": label.probability_columns}
    return {
        "name": label.name,
        "kind": label.kind,
        "classes": list(classes),
        "class_dtype": _class_dtype(classes),
        **names,
        **({} if threshold is None else {"threshold": threshold}),
    }


def _class_dtype(classes: tuple[Any, ...]) -> str:
    """Return the pandas type of predicted classes."""
    names: dict[type, str] = {bool: "bool", int: "int64", str: "str"}
    kinds = {type(value) for value in classes}
    return names.get(kinds.pop(), "float64") if len(kinds) == 1 else "float64"


# ------------------------------------------------------------------------------------------- parity


def parity(
    run: RunSpec,
    network: nn.Module,
    program: serving.Program,
    spec: dict[str, Any],
    table: TrainTable | ValTable | TestTable,
    derive: serving.Derive | None = None,
) -> float:
    """Return the largest difference between the served path and the network on the same rows.

    The served path starts from raw rows, the network from their stored arrays. Batches of 1, 3 and
    up to 256 rows go through the program. A regression is compared in standard deviations of its
    label.

    Raises:
        IntegrityError: the difference reaches 1e-6 or is not a number; the message says where.
    """
    declaration, stored = declare(run.declaration), _first_rows(table.file.file)
    stored = stored.assign(
        **given_windows(run.statistics, run.arrays.side(table.side), len(stored))
    )
    frame, places = raw_columns.as_raw(run, stored)
    expected = predict(
        declaration,
        run.statistics,
        reference_scores(network, run.arrays.side(table.side), len(stored)),
    )[places]
    # target_scale is 1 for classes
    unit = np.array(
        [
            t.statistics.target_scale
            for t in targets_of(declaration, run.statistics)
            for _ in range(t.width)
        ]
        or [run.statistics.target_scale]
    )

    def difference(rows: int) -> np.ndarray:
        found = serving.run(program, serving.inputs(spec, frame.iloc[:rows], derive))
        apart = np.abs(_trained_scale(run, found) - _trained_scale(run, expected[:rows]))
        return np.asarray((apart / unit).reshape(rows, -1).max(axis=1))

    return require_parity(
        difference, frame["__id"], table.side, " in row", "rows alike for every batch size"
    )


def _trained_scale(run: RunSpec, predictions: np.ndarray) -> np.ndarray:
    found = on_trained_scale(run.statistics, torch.from_numpy(predictions))
    return np.asarray(found.numpy())


def _first_rows(path: Path) -> pd.DataFrame:
    """Return the first rows of a split's table, as raw named columns."""
    with pq.ParquetFile(path) as file:
        return next(file.iter_batches(batch_size=PARITY_ROWS)).to_pandas()
