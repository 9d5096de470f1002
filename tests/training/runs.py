"""Small runs for tests: arrays on disk and the RunSpec over them, without the data pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from schemas.digest import file_ref, write_atomic
from schemas.load import declare
from schemas.records import (
    ArraysRef,
    NumericStats,
    RunSpec,
    SplitArrays,
    Statistics,
    TableSpec,
    digest_of,
)

WIDTH = 6
SIDES = ("train", "val", "test")


def synthetic(rows: int, seed: int, task: str = "binary") -> dict[str, np.ndarray]:
    """Numeric features, a noisy label that depends on them, and sample weights."""
    rng = np.random.default_rng(seed)
    numeric = rng.normal(size=(rows, WIDTH)).astype(np.float32)
    signal = (
        numeric @ np.linspace(-1, 1, WIDTH)
        + np.sin(2 * numeric[:, 0])
        + 0.3 * rng.normal(size=rows)
    )
    labels = {
        "binary": (signal > 0).astype(np.int64),
        "multiclass": np.digitize(signal, [-0.7, 0.7]).astype(np.int64),
        "regression": (
            (signal / signal.std()).astype(np.float32) if rows > 1 else signal.astype(np.float32)
        ),
    }
    return {
        "numeric": numeric,
        "label": labels[task],
        "weight": rng.uniform(0.2, 2.0, rows).astype(np.float32),
    }


def write_side(folder: Path, arrays: dict[str, np.ndarray], name: str = "row") -> SplitArrays:
    """The arrays as a side on disk; ids are `<name>-<number>`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = len(arrays["label"])
    for key, array in arrays.items():
        np.save(folder / f"{key}.npy", array)
    ids = pa.table(
        {
            "__id": [f"{name}-{i}" for i in range(rows)],
            "__group": pa.nulls(rows, pa.string()),
            "__time": pa.nulls(rows, pa.float64()),
        }
    )
    pq.write_table(ids, folder / "ids.parquet")
    return SplitArrays(
        rows=rows,
        arrays={key: file_ref(folder / f"{key}.npy") for key in arrays},
        ids=file_ref(folder / "ids.parquet"),
    )


def statistics(task: str = "binary") -> Statistics:
    """Statistics that fit `synthetic`."""
    classes = {"binary": (False, True), "multiclass": (0, 1, 2), "regression": ()}[task]
    return Statistics(
        train_sha256="0" * 64,
        rows=100,
        numeric=tuple(NumericStats(name=f"x{i}", method="standard") for i in range(WIDTH)),
        categorical=(),
        tensor=(),
        classes=classes,
        class_counts=(50,) * len(classes),
        class_weights=(1.0,) * len(classes),
        label_mean=0.5,
    )


def declaration_tree(task: str = "binary", **sections: Any) -> dict[str, Any]:
    """A declaration as a tree, with sections replaced."""
    tree: dict[str, Any] = {
        "name": "tiny",
        "data": {
            "uri": "nowhere.parquet",
            "columns": {"id": "id", "y": "label", "w": "weight", "x*": "numeric"},
        },
        "task": {"kind": task},
        "split": {"kind": "random"},
        "model": {"kind": "mlp", "hidden": [16], "dropout": 0.1},
        "train": {"epochs": 2, "batch_size": 16},
    }
    return tree | sections


def make_run(
    folder: Path,
    rows: tuple[int, int] = (100, 40),
    task: str = "binary",
    arrays: dict[str, dict[str, np.ndarray]] | None = None,
    **sections: Any,
) -> RunSpec:
    """A RunSpec over arrays written below the folder, also as `resolved.json` in it.

    Args:
        folder: where arrays and `resolved.json` go.
        rows: of train and of val.
        task: kind of the label.
        arrays: in place of synthetic ones, by side.
        sections: of the declaration.
    """
    found = arrays or {
        side: synthetic(n, seed, task)
        for seed, (side, n) in enumerate(zip(SIDES, (*rows, rows[1]), strict=True))
    }
    sides = {
        side: write_side(folder / "arrays" / side, values, side) for side, values in found.items()
    }
    sides.setdefault("test", sides["val"])
    stats = statistics(task)
    write_atomic(folder / "arrays" / "statistics.json", stats.model_dump_json())
    tree = declaration_tree(task, **sections)
    spec = RunSpec(
        run_id="run-1",
        name="tiny",
        declaration=declare(tree).model_dump(mode="json", by_alias=True),
        spec=TableSpec(
            id=("id",),
            group=(),
            time=None,
            label="y",
            label_type="int",
            weight="w",
            split=None,
            numeric=tuple(f"x{i}" for i in range(WIDTH)),
            categorical=(),
            tensor={},
        ),
        statistics=stats,
        arrays=ArraysRef(
            directory=str(folder / "arrays"),
            **sides,
            statistics=file_ref(folder / "arrays" / "statistics.json"),
            sha256=digest_of({s: r.model_dump(mode="json")["arrays"] for s, r in sides.items()}),
        ),
    )
    write_atomic(folder / "resolved.json", spec.model_dump_json())
    return spec


@contextmanager
def keep_torch_settings() -> Iterator[None]:
    """Put back what a training run sets for its whole process."""
    deterministic, threads, precision = (
        torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
    )
    filling = torch.utils.deterministic.fill_uninitialized_memory
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = filling
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
