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


WORDS = [
    "free",
    "prize",
    "call",
    "now",
    "meet",
    "at",
    "noon",
    "see",
    "you",
    "later",
    "thanks",
    "urgent",
    "cash",
]
TAGS = ("I10", "E11.9", "J45", "N18", "Z99")
MIXED: dict[str, Any] = {
    "row": "id",
    "y": "label",
    "note": {"kind": "text", "bag": {"size": 4}},
    "reply": {"kind": "text", "bag": {"unit": "characters", "size": 4}},
    "tags": {"kind": "set", "bag": {"size": 3}},
    "codes": {"kind": "set", "separator": ";"},
    "seen": "date",
    "ward": "categorical",
    "x": "numeric",
}


def mixed_rows(count: int = 160, seed: int = 0) -> pd.DataFrame:
    """Rows with two texts, a list, a delimited text, a date, a category and a number."""
    rng = np.random.default_rng(seed)
    notes, replies = (
        [" ".join(rng.choice(WORDS, rng.integers(0, 9))) for _ in range(count)] for _ in range(2)
    )
    tags = [sorted(rng.choice(TAGS, rng.integers(0, 4), replace=False)) for _ in range(count)]
    missing = rng.random(count) < 0.1
    days = pd.to_timedelta(rng.integers(0, 900 * 24, count), unit="h")
    return pd.DataFrame(
        {
            "row": [f"r{i:03d}" for i in range(count)],
            "y": [int("prize" in note) for note in notes],
            "note": pd.Series(notes, dtype=object).where(~missing, None),
            "reply": replies,
            "tags": pd.Series(tags, dtype=object).where(~np.roll(missing, 3), None),
            "codes": [";".join(t) for t in tags],
            "seen": pd.Series(pd.Timestamp("2020-05-01") + days).astype("datetime64[us]"),
            "ward": rng.choice(["a", "b", "c"], count),
            "x": rng.normal(size=count).round(3),
        }
    )


def mixed_run(folder: Path, **sections: Any) -> RunSpec:
    """Prepare `mixed_rows` and write `resolved.json` of a run over them."""
    run = prepared(folder, mixed_rows(), MIXED, **sections).run
    (folder / "resolved.json").write_text(run.model_dump_json())
    return run
