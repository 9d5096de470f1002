"""Tables with features of one kind, from raw rows to an exported model, by the real functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from schemas.config import Declaration
from schemas.records import ExportedModel, RunSpec, SplitTables, ValidatedTable
from tests.training.cases import write_weights
from tests.training.data.chain import declared, split_of
from training.data.arrays.shards import materialise
from training.data.fit.normalize import fit
from training.objectives.metrics import predict
from training.serving import serving
from training.serving.export import export_model
from training.serving.reference_network import reference_network, reference_scores


class Prepared(NamedTuple):
    """A table after preparation."""

    declaration: Declaration
    validated: ValidatedTable
    split: SplitTables
    run: RunSpec


def prepared(
    folder: Path, frame: pd.DataFrame, columns: dict[str, Any], **options: Any
) -> Prepared:
    """Validate, split, fit and materialise; options are those of `declared`."""
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(folder / "rows.parquet", index=False)
    options = {"model": {"kind": "mlp", "hidden": [8]}} | options
    declaration = declared(folder / "rows.parquet", columns, **options)
    validated, split = split_of(declaration, folder / "split")
    statistics = fit(split.train, validated.spec, declaration)
    arrays = materialise(split, validated, statistics, declaration, folder / "arrays")
    run = RunSpec(
        run_id="run",
        name=declaration.name,
        declaration=declaration.model_dump(mode="json", by_alias=True),
        spec=validated.spec,
        statistics=statistics,
        arrays=arrays,
        raw_rows=validated.raw_rows,
    )
    return Prepared(declaration, validated, split, run)


def exported(case: Prepared, folder: Path) -> tuple[ExportedModel, Path]:
    """The exported model with random weights, and these weights."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = write_weights(folder / "weights.pt", case.run, steps=0, seed=0)
    return export_model(case.run, weights, folder / "model", case.split.val), weights


def served(model: ExportedModel, frame: pd.DataFrame) -> np.ndarray:
    """What the exported model says of raw rows: the probability of the positive class."""
    spec = serving.read_spec(model.spec.path)
    program = serving.load_program(model.program.path, spec)
    code = None if model.expressions is None else Path(model.expressions.path)
    derive = None if code is None else serving.load_expressions(code, spec)
    return serving.predict(spec, program, frame, derive)[spec["probability_columns"][1]].to_numpy()


def evaluated(case: Prepared, weights: Path, side: str) -> dict[str, float]:
    """What evaluation says of a side, by id."""
    scores = reference_scores(reference_network(case.run, weights), case.run.arrays.side(side))
    found = predict(case.declaration, case.run.statistics, scores)[:, 1]  # type: ignore[arg-type]
    ids = pd.read_parquet(case.run.arrays.side(side).ids.path)["__id"]
    return dict(zip(ids, found.tolist(), strict=True))


def digests(case: Prepared, side: str) -> dict[str, str]:
    """The SHA-256 of each array of a side."""
    return {name: ref.sha256 for name, ref in case.run.arrays.side(side).arrays.items()}
