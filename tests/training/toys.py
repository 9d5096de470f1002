"""Small learnable problems with every kind of input: arrays, statistics, declaration, and runs of
them on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from schemas.config import Declaration
from schemas.digest import file_ref
from schemas.records import (
    ArraysRef,
    CategoryStats,
    NumericStats,
    RunSpec,
    SplitArrays,
    Statistics,
    TableSpec,
    TensorStats,
)

Arrays = dict[str, np.ndarray]
COLORS = ("blue", "green", "red")
CLASSES: dict[str, tuple[Any, ...]] = {
    "binary": (False, True),
    "multiclass": ("a", "b", "c"),
    "regression": (),
}
CENTER, SCALE = 50.0, 8.0
KINDS = ("linear", "mlp", "resmlp", "realmlp", "tabm", "ft_transformer", "cnn")


@dataclass(frozen=True)
class Toy:
    """A problem: what is declared, what was fitted, and rows."""

    declaration: Declaration
    statistics: Statistics
    arrays: Arrays

    def batch(self, rows: int) -> tuple[dict[str, Tensor], Tensor]:
        """The first rows as the network takes them, and their labels."""
        tensors = {
            name: torch.from_numpy(a[:rows].copy())
            for name, a in self.arrays.items()
            if name != "weight"
        }
        label = tensors.pop("label")
        return tensors, label


def declare(task: str, model: dict[str, Any] | None = None, **sections: Any) -> Declaration:
    """A declaration of a task and model; columns are nominal, the arrays are made here."""
    tree = {
        "name": "toy",
        "data": {"uri": "toy.parquet", "columns": {"y": "label", "*": "feature"}},
        "task": {"kind": task},
        "split": {"kind": "random"},
        **({"model": model} if model else {}),
        **sections,
    }
    return Declaration.model_validate(tree)


def make_arrays(
    task: str, rows: int, seed: int = 0, tensor: bool = False, weight: bool = False
) -> Arrays:
    """Five scaled columns and an indicator, two categorical columns, perhaps a picture; the label
    follows from them all.
    """
    rng = np.random.default_rng(seed)
    numeric = np.concatenate(
        [rng.normal(size=(rows, 5)), rng.random((rows, 1)) < 0.1], axis=1
    ).astype(np.float32)
    categorical = np.stack([rng.integers(2, 5, rows), rng.integers(1, 5, rows)], axis=1)
    signal = (
        numeric[:, 0]
        - 0.8 * np.abs(numeric[:, 1])
        + 0.9 * (categorical[:, 0] == 3)
        + 0.3 * rng.normal(size=rows)
    )
    arrays: Arrays = {"numeric": numeric, "categorical": categorical.astype(np.int64)}
    if tensor:
        picture = rng.integers(0, 256, (rows, 9, 7))
        picture[:, :4] = np.clip(picture[:, :4] * 0.3 + 60 * (signal[:, None, None] + 1), 0, 255)
        arrays["tensor_picture"] = picture.astype(np.uint8)
    if task == "regression":
        arrays["label"] = ((signal - signal.mean()) / signal.std()).astype(np.float32)
    else:
        cuts = [0.6] if task == "binary" else [-0.8, 0.5]
        arrays["label"] = np.digitize(signal, cuts).astype(np.int64)
    if weight:
        arrays["weight"] = rng.uniform(0.2, 2.0, rows).astype(np.float32)
    return arrays


def make_statistics(task: str, arrays: Arrays) -> Statistics:
    """What a fit on these arrays would have recorded."""
    rows, classes = len(arrays["label"]), CLASSES[task]
    counts = np.bincount(arrays["label"], minlength=len(classes)) if classes else np.zeros(0, int)
    picture = arrays.get("tensor_picture")
    numeric = [
        NumericStats(
            name=f"x{i}", method="standard", indicator=i == 4, fill=0.0, nulls=1 if i == 4 else 0
        )
        for i in range(5)
    ]
    return Statistics(
        train_sha256="0" * 64,
        rows=rows,
        numeric=tuple(numeric) if "numeric" in arrays else (),
        categorical=(
            (
                CategoryStats(name="color", values=COLORS, counts=(1, 1, 1)),
                CategoryStats(name="shape", values=COLORS, counts=(1, 1, 1), nulls=3),
            )
            if "categorical" in arrays
            else ()
        ),
        tensor=(
            ()
            if picture is None
            else (
                TensorStats(
                    name="picture",
                    shape=picture.shape[1:],
                    dtype="uint8",
                    mean=(float(picture.mean()),),
                    std=(float(picture.std()),),
                ),
            )
        ),
        clip=10.0,
        classes=classes,
        class_counts=tuple(int(c) for c in counts),
        class_weights=tuple(float(rows / (len(classes) * c)) for c in counts),
        label_mean=CENTER if task == "regression" else 0.0,
        label_std=SCALE if task == "regression" else 1.0,
        target_center=CENTER if task == "regression" else 0.0,
        target_scale=SCALE if task == "regression" else 1.0,
    )


def make_toy(
    task: str = "binary",
    model: dict[str, Any] | None = None,
    rows: int = 400,
    seed: int = 0,
    weight: bool = False,
    **sections: Any,
) -> Toy:
    """A problem in memory; with a picture where the model is a CNN."""
    arrays = make_arrays(
        task, rows, seed, tensor=bool(model) and model["kind"] == "cnn", weight=weight
    )
    return Toy(declare(task, model, **sections), make_statistics(task, arrays), arrays)


def write_side(folder: Path, task: str, arrays: Arrays, groups: int | None = None) -> SplitArrays:
    """Arrays and ids of one side on disk; labels are given as classes or in their own units."""
    folder.mkdir(parents=True)
    rows = len(arrays["label"])
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    label = (
        arrays["label"].astype(np.float64) * SCALE + CENTER
        if task == "regression"
        else np.array(CLASSES[task])[arrays["label"].clip(0, len(CLASSES[task]) - 1)]
    )
    group = (
        pa.nulls(rows, pa.string())
        if groups is None
        else pa.array([f"g{i % groups}" for i in range(rows)])
    )
    ids = {
        "__id": [f"{folder.name}-{i}" for i in range(rows)],
        "__group": group,
        "__time": pa.nulls(rows, pa.float64()),
        "label": label,
    }
    pq.write_table(pa.table(ids), folder / "ids.parquet")
    return SplitArrays(
        rows=rows,
        arrays={name: file_ref(folder / f"{name}.npy") for name in arrays},
        ids=file_ref(folder / "ids.parquet"),
    )


def write_run(
    folder: Path,
    declaration: Declaration,
    rows: int = 400,
    sides: dict[str, Arrays] | None = None,
    groups: int | None = None,
    **options: Any,
) -> RunSpec:
    """A run on disk whose three sides come from one process, or are the arrays given."""
    task = declaration.task.kind
    made = {
        side: make_arrays(task, rows if side == "train" else max(rows // 2, 30), seed=i, **options)
        for i, side in enumerate(("train", "val", "test"))
    }
    made |= sides or {}
    statistics = make_statistics(task, make_arrays(task, rows, **options))
    (folder / "arrays").mkdir(parents=True)
    refs = {
        side: write_side(folder / "arrays" / side, task, arrays, groups)
        for side, arrays in made.items()
    }
    (folder / "arrays" / "statistics.json").write_text(statistics.model_dump_json())
    spec = TableSpec(
        id=("id",),
        group=(),
        time=None,
        label="y",
        label_type="float",
        weight=None,
        split=None,
        numeric=tuple(s.name for s in statistics.numeric),
        categorical=(),
        tensor={},
    )
    arrays = ArraysRef(
        directory=str(folder / "arrays"),
        **refs,
        statistics=file_ref(folder / "arrays" / "statistics.json"),
        sha256="0" * 64,
    )
    return RunSpec(
        run_id="toy",
        name="toy",
        declaration=declaration.model_dump(mode="json"),
        spec=spec,
        statistics=statistics,
        arrays=arrays,
    )
