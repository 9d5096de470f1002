"""Explain predictions: Shapley values of a registered model's program for each row of a file.

Command: `bulkhead explain MODEL_URI ROWS`. A value says how far a column moves the prediction of a
row away from the base, the mean prediction of background rows; values of a row add up to prediction
minus base. A column is absent from a coalition where it has the value of a background row.

Background rows come from a file, or from the train table of the run, where this home has it. No row
is ever stored in a model: whoever may load it need not be one who may see patients.

Source: Shapley values by sampled permutations as in Castro, Gómez and Tejada 2009, computed by
Captum; interventional values as in Janzing, Minorics and Blöbaum 2020. N rows, M background rows, G
columns.
"""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
from torch import Tensor

from schemas.digest import verify, write_atomic
from schemas.errors import ConfigError, DataError, ResumeError, counted, first_few
from schemas.records import Prepared
from training.data.engine.engine import connect
from training.data.sources.source import fingerprint, relation_sql
from training.registry.registry import LoadedModel, load_model
from training.registry.score_file import as_trained
from training.run.record import PREPARED, find, has_part, read_part
from training.serving import serving
from training.tracking.mlflow import default_tracking_uri

MOST_ROWS = 1_000
BACKGROUND = 50  # rows
PERMUTATIONS = 10  # each with a tenth of the background rows
ROWS_AT_ONCE = 64
FORMATS = (".parquet", ".csv", ".json")
Batch = dict[str, Tensor]


class Explained(NamedTuple):
    """Shapley values of rows.

    `column`: which output of the model. `predictions` [N], `base`: mean of the background.
    `values` [N, G] by `names`. `given`: the rows as read. `background`: where its rows are from,
    with their number.
    """

    column: str
    names: list[str]
    predictions: np.ndarray
    base: float
    values: np.ndarray
    given: pd.DataFrame
    background: str


def explain_file(
    model_uri: str,
    rows_path: Path,
    background: Path | None = None,
    column: str | None = None,
    tracking_uri: str | None = None,
    first: int | None = None,
) -> Explained:
    """Return the Shapley values of each row of a file.

    Args:
        model_uri: `models:/NAME@champion`, `models:/NAME/3`, or a folder with a model.
        rows_path: rows with the model's raw columns, at most `MOST_ROWS` without `first`.
        background: rows like those that the model learned from; None: train rows of its run.
        column: output to explain; None: the value, or the probability of the positive class.
        tracking_uri: address of the registry.
        first: explain only so many rows, the first of the file; None: all.

    Raises:
        ConfigError: Captum is not installed, no background is at hand, or `column` must be given.
        DataError: a column is missing, a value is refused, or there are too many rows.
    """
    require_captum()
    model = load_model(model_uri, tracking_uri or default_tracking_uri(None))
    if "text" in model.spec:
        raise ConfigError(f"{model_uri}: a language model has no columns to explain")
    place, name = _output(model.spec, column)
    given = _read(model, rows_path, first or MOST_ROWS + 1)
    _require_count(len(given), rows_path, first)
    others, where = _background(model, background)
    rows, behind = _inputs(model, given, str(rows_path)), _inputs(model, others, where)
    features = features_of(model.spec)
    values, base, predictions = shapley(
        lambda batch: _predicted(model, batch, place), rows, behind, list(features.values())
    )
    number = f"{counted(len(others), 'background row')}: {where}"
    return Explained(name, list(features), predictions, base, values, given, number)


def require_captum() -> None:
    """Check that the extra `explain` is installed.

    Raises:
        ConfigError: it is not.
    """
    if importlib.util.find_spec("captum") is None:
        raise ConfigError(
            "bulkhead explain needs the package captum, which is not installed: pip install"
            " 'bulkhead[explain]'"
        )


# -------------------------------------------------------------------------------------------- rows


def _read(model: LoadedModel, path: Path, limit: int) -> pd.DataFrame:
    """Return the first rows of a file, read like a training source."""
    data = as_trained(model, path)
    with closing(connect()) as connection:
        relation = relation_sql(fingerprint(data), data, connection)
        table = connection.sql(f"select * from {relation} limit {limit}").to_arrow_table()
    return table.to_pandas(integer_object_nulls=True)


def _background(model: LoadedModel, path: Path | None) -> tuple[pd.DataFrame, str]:
    """Return background rows and where they come from."""
    if path is not None:
        rows = _read(model, path, BACKGROUND)
        if rows.empty:
            raise DataError(f"{path}: expected background rows, got none")
        return rows, str(path)
    try:
        run_dir = find(str(model.spec["run_id"]))
        if not has_part(run_dir, PREPARED):
            raise ResumeError("its run left no prepared rows")
        table = read_part(run_dir, PREPARED, Prepared).split.train.file
        with pq.ParquetFile(verify(table)) as file:  # in the order of hashed ids: a random sample
            found = next(file.iter_batches(batch_size=BACKGROUND)).to_pandas()
    except (ResumeError, OSError) as error:
        raise ConfigError(
            f"{model.uri}: the train rows of its run are not on this machine, and a model holds no"
            " rows; give --background FILE with rows like those it learned from"
        ) from error
    return found, f"train rows of run {model.spec['run_id']}"


def _require_count(rows: int, path: Path, first: int | None) -> None:
    if not rows:
        raise DataError(f"{path}: expected rows to explain, got none")
    if first is None and rows > MOST_ROWS:
        raise DataError(
            f"{path}: expected at most {MOST_ROWS:,} rows to explain, got more, and each takes"
            f" {BACKGROUND} predictions for each column; add --rows N to explain the first N"
        )


def _inputs(model: LoadedModel, frame: pd.DataFrame, where: str) -> Batch:
    try:
        return serving.inputs(model.spec, frame, model.model.derive)
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error


# --------------------------------------------------------------------------------- outputs, inputs


def _output(spec: dict[str, Any], wanted: str | None) -> tuple[int | None, str]:
    """Return the place of an output in the program's result, None of a single value, and its name.

    Raises:
        ConfigError: there is no such output, or several and none is named.
    """
    names = output_names(spec)
    if wanted is None and spec["task"] == "regression":
        return None, names[0]
    if wanted is None and spec["task"] == "binary":
        return 1, names[1]
    if wanted not in names:
        got = "none was named" if wanted is None else f"got {wanted!r}"
        raise ConfigError(f"--of: expected one of {first_few(names, limit=12)}; {got}")
    return (None if spec["task"] == "regression" else names.index(wanted)), wanted


def output_names(spec: dict[str, Any]) -> list[str]:
    """Return the names of the program's outputs, in its order."""
    if spec["labels"]:
        each = (label["probabilities"] or [label["prediction"]] for label in spec["labels"])
        return [name for names in each for name in names]
    return list(spec["probability_columns"]) or ["prediction"]


def _predicted(model: LoadedModel, batch: Batch, place: int | None) -> np.ndarray:
    found = serving.run(model.model.program, batch)
    return found if place is None else found[:, place]


def features_of(spec: dict[str, Any]) -> dict[str, list[tuple[str, int | None]]]:
    """Return each explained column with its places in the program's inputs.

    Features that are derived from the same raw columns, such as the parts of a date, are one.
    """
    found = dict[str, list[tuple[str, int | None]]]()
    trees = spec["derived"]
    names = [c["name"] for kind in ("numeric", "categorical") for c in spec[kind]]

    def source(name: str) -> str:
        read = set(trees[name]["columns"]) if name in trees else set()
        alike = [n for n in names if read and n in trees and set(trees[n]["columns"]) == read]
        return " + ".join(alike) if len(alike) > 1 else name

    for kind in ("numeric", "categorical"):
        for i, column in enumerate(spec[kind]):
            found.setdefault(source(column["name"]), []).append((kind, i))
    for column in (*spec["tensor"], *spec.get("windows", [])):
        found[column["name"]] = [(f"tensor_{column['name']}", None)]
    for column in spec.get("bags", []):
        found[column["name"]] = [(f"bag_{column['name']}", None)]
    return found


# ------------------------------------------------------------------------------------------ values


def shapley(
    predict: Callable[[Batch], np.ndarray],
    rows: Batch,
    background: Batch,
    features: list[list[tuple[str, int | None]]],
    seed: int = 0,
) -> tuple[np.ndarray, float, np.ndarray]:
    """Return Shapley values [N, G], base, and predictions [N].

    Each row is compared with each background row along one permutation of the columns; values add
    up to prediction minus base, whatever the permutations are. The same seed gives the same values.

    Args:
        predict: maps inputs to one prediction a row.
        rows: inputs of the program, N rows.
        background: inputs of M rows.
        features: places of each column in the inputs.
        seed: of the permutations.
    """
    from captum.attr import ShapleyValueSampling

    predictions, behind = predict(rows), predict(background)
    count, size = len(predictions), len(behind)
    found = np.zeros((count, len(features)))
    parts = np.array_split(np.arange(size), min(PERMUTATIONS, size))
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(seed)
        for part in parts:
            start_state = torch.get_rng_state()  # rows of all chunks share the permutation
            for start in range(0, count, ROWS_AT_ONCE):
                torch.set_rng_state(start_state)
                mine = np.arange(start, min(start + ROWS_AT_ONCE, count))
                at, of = np.repeat(mine, len(part)), np.tile(part, len(mine))
                mixed = _Mixed(predict, _taken(rows, at), _taken(background, of), features)
                sampler = ShapleyValueSampling(mixed)
                ones = torch.ones((len(at), len(features)), dtype=torch.float64)
                moved = sampler.attribute(ones, baselines=0.0, n_samples=1).numpy()
                found[mine] += moved.reshape(len(mine), len(part), -1).sum(axis=1)
    return found / size, float(behind.mean()), predictions


def _taken(batch: Batch, places: np.ndarray) -> Batch:
    return {name: block[torch.from_numpy(places)] for name, block in batch.items()}


class _Mixed:
    """Predictions of rows whose columns come from the row where a coalition has them, else from the
    background.
    """

    __name__ = "predictions"

    def __init__(
        self,
        predict: Callable[[Batch], np.ndarray],
        rows: Batch,
        background: Batch,
        features: list[list[tuple[str, int | None]]],
    ) -> None:
        self.predict, self.rows, self.background = predict, rows, background
        self.features = features

    def __call__(self, coalition: Tensor) -> Tensor:
        """Return predictions [B] of a coalition [B, G], 1 where it has a column."""
        mixed = {name: block.clone() for name, block in self.background.items()}
        for i, places in enumerate(self.features):
            present = coalition[:, i] > 0.5
            for name, place in places:
                if place is None:
                    mixed[name][present] = self.rows[name][present]
                else:
                    mixed[name][present, place] = self.rows[name][present, place]
        return torch.from_numpy(np.ascontiguousarray(self.predict(mixed)))


# ----------------------------------------------------------------------------------------- writing


def as_frame(found: Explained) -> pd.DataFrame:
    """Return a row for each explained row: its number, prediction, base, and the values."""
    facts = {
        "row": np.arange(len(found.predictions)),
        "explained": found.column,
        "prediction": found.predictions,
        "base": found.base,
    }
    values = {f"value_{name}": found.values[:, i] for i, name in enumerate(found.names)}
    return pd.DataFrame({**facts, **values})


def write_explained(found: Explained, path: Path) -> None:
    """Write the values as Parquet, CSV or JSON, completely or not at all.

    Raises:
        ConfigError: the name ends in something else.
    """
    suffix = path.suffix.lower()
    frame = as_frame(found)
    if suffix == ".parquet":
        buffer = io.BytesIO()
        frame.to_parquet(buffer, index=False)
        write_atomic(path, buffer.getvalue())
    elif suffix == ".csv":
        write_atomic(path, frame.to_csv(index=False))
    elif suffix == ".json":
        write_atomic(path, json.dumps(frame.to_dict("records"), indent=1) + "\n")
    else:
        raise ConfigError(f"{path}: expected a name that ends in {', '.join(FORMATS)}")
