"""Small trainings from arrays whose bits depend on no library: the raw words of PCG64, whose stream
NumPy promises.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from schemas.digest import file_ref, write_atomic
from schemas.load import declare
from schemas.records import (
    ArraysRef,
    CategoryStats,
    LabelColumn,
    LabelStats,
    NumericStats,
    RunSpec,
    SplitArrays,
    Statistics,
    TableSpec,
    TokenStats,
    digest_of,
)
from tests.golden.pinned import calls, environment, python

ROWS = {"train": 150, "val": 50, "test": 20}
WIDTH, WARDS = 5, 3
CONTEXT, LETTERS = 24, "abcdefgh"
MLP = {"kind": "mlp", "hidden": [16, 8], "dropout": 0.1}
BLOCKS = {"kind": "resmlp", "width": 16, "depth": 2, "dropout": 0.1}
TRAIN = {"epochs": 3, "batch_size": 32, "log_every": 1, "threads": 1, "device": "cpu"}
FP16 = {
    "precision": "fp16",
    "loss_scale": {"initial": 2.0**24, "growth_interval": 4},
    "clip_at": 0.05,
}
ADAMW = {"kind": "adamw", "lr": 0.01}
SEVERAL = {"toxic": "binary", "stage": "multiclass", "dose": "regression"}


class Case(NamedTuple):
    """One training: kind of task, sections of the declaration over the common ones, and processes
    it is launched with.
    """

    task: str
    sections: dict[str, Any]
    ranks: tuple[int, ...] = (1,)

    def declaration(self, ranks: int) -> dict[str, Any]:
        """The tree of the declaration for so many processes."""
        language = self.task == "causal_lm"
        columns = (
            {"id": "id", "text": "text"}
            if language
            else {"id": "id", "w": "weight", "x*": "numeric", "ward": "categorical"}
        )
        labels: dict[str, Any] = {
            "multilabel": dict.fromkeys(("toxic", "late", "rare"), "label"),
            "multitask": dict.fromkeys(SEVERAL, "label"),
        }
        task: dict[str, Any] = {"kind": self.task} | (
            {"labels": SEVERAL} if self.task == "multitask" else {}
        )
        tree = {
            "name": "golden",
            "data": {
                "uri": "nowhere.parquet",
                "columns": columns | ({} if language else labels.get(self.task, {"y": "label"})),
            },
            "task": task,
            "split": {"kind": "random"},
            "model": MLP,
            "optimizer": ADAMW,
            "train": TRAIN,
        } | self.sections
        return (
            tree
            | {"train": TRAIN | tree["train"] | {"ranks": ranks}}
            | ({"tokens": {"context": CONTEXT, "samples": 0}} if language else {})
        )


CASES = {
    "exact": Case("binary", {"schedule": {"kind": "warmup_cosine", "warmup": 0.2}}),
    "replicated": Case("binary", {"train": {"micro_batch_size": 5}}, (2,)),
    "elastic": Case(
        "binary",
        {"train": {"mode": "elastic", "logical_shards": 4, "augment": {"noise": 0.1}}},
        (1, 2),
    ),
    "fp16": Case("binary", {"train": FP16 | {"epochs": 5}}),
    "fsdp2": Case(
        "binary",
        {
            "model": BLOCKS,
            "train": {"parallel": "fsdp", "micro_batch_size": 8, "metric": "log_loss"},
        },
        (2,),
    ),
    "fsdp2, fp16": Case(
        "binary", {"model": BLOCKS, "train": {"parallel": "fsdp", "epochs": 5, **FP16}}, (2,)
    ),
    "language model": Case(
        "causal_lm",
        {
            "model": {"kind": "causal_transformer", "width": 16, "depth": 2, "heads": 2},
            "train": {"batch_size": 8},
        },
    ),
    "several labels": Case("multilabel", {"loss": {"pos_weight": "balanced"}}),
    "labels of several kinds": Case("multitask", {}),
    "multiclass, attention": Case(
        "multiclass",
        {
            "model": {"kind": "ft_transformer", "width": 8, "depth": 1, "heads": 2},
            "loss": {"label_smoothing": 0.1},
            "train": {"metric": "log_loss"},
        },
    ),
    "regression, SGD": Case(
        "regression",
        {
            "model": BLOCKS,
            "optimizer": {"kind": "sgd", "lr": 0.05},
            "loss": {"kind": "huber"},
            "train": {"recompute_activations": True},
        },
    ),
}
LONG = (  # each takes seconds
    "replicated",
    "fsdp2, fp16",
    "fp16",
    "elastic",
    "several labels",
    "labels of several kinds",
    "regression, SGD",
)


# --------------------------------------------------------------------------------------------
# arrays


def uniform(seed: int, *shape: int) -> np.ndarray:
    """Multiples of 2^-24 in [0, 1), as float64, from the raw words of the generator."""
    words = np.random.PCG64(seed).random_raw(int(np.prod(shape)))
    return ((words >> np.uint64(40)).astype(np.float64) / 2**24).reshape(shape)


def table_arrays(task: str, rows: int, seed: int) -> dict[str, np.ndarray]:
    """Numbers, a ward and labels that depend on them; where there are several labels, about a fifth
    of each is unknown.
    """
    numeric = (uniform(seed, rows, WIDTH) - 0.5) * 4
    ward = (uniform(seed + 1, rows) * WARDS).astype(np.int64)
    noise = uniform(seed + 2, rows, 3) - 0.5
    signal = numeric[:, 0] - np.abs(numeric[:, 1]) + (ward == 1) + noise[:, 0]
    other = numeric[:, 2] + noise[:, 1]
    binary, stage = (signal > -0.5).astype(np.int64), np.digitize(signal, [-1.2, 0.2])
    labels = {
        "binary": binary,
        "multiclass": stage.astype(np.int64),
        "regression": signal.astype(np.float32),
        "multilabel": np.stack([binary, other > 0, numeric[:, 3] > 1.2], axis=1).astype(np.float32),
        "multitask": np.stack([binary, stage, other], axis=1).astype(np.float32),
    }[task]
    arrays = {
        "numeric": numeric.astype(np.float32),
        "categorical": (2 + ward)[:, None],
        "label": labels,
        "weight": (0.25 + uniform(seed + 3, rows)).astype(np.float32),
    }
    if labels.ndim == 2:
        labels[uniform(seed + 4, *labels.shape) < 0.2] = np.nan
        labels[np.isnan(labels).all(axis=1), 0] = 0
    return arrays


def token_arrays(rows: int, seed: int) -> dict[str, np.ndarray]:
    """Rows of two documents each, in which a letter is mostly followed by the next one; the end of
    a row is padding.
    """
    draws = uniform(seed, rows, CONTEXT + 1)
    steps = np.where(draws < 0.8, 1, (draws * 97).astype(np.int64) % len(LETTERS))
    text = 4 + np.cumsum(steps, axis=1) % len(LETTERS)
    places = np.arange(CONTEXT)
    cut, end = (
        CONTEXT // 2 + (draws[:, :1] * 5).astype(np.int64),
        CONTEXT - (draws[:, 1:2] * 4).astype(np.int64),
    )
    segments = np.where(places < cut, 1, np.where(places < end, 2, 0))
    inputs = np.where((places == 0) | (places == cut), 1, text[:, :-1])
    inputs, targets = np.where(segments > 0, inputs, 0), np.where(segments > 0, text[:, 1:], -100)
    return {
        "tokens": inputs.astype(np.int32),
        "label": targets.astype(np.int32),
        "segments": segments.astype(np.int16),
    }


def write_side(folder: Path, arrays: dict[str, np.ndarray], side: str) -> SplitArrays:
    """Write the arrays of a side, with ids, and for tokens the documents."""
    folder.mkdir(parents=True)
    rows = len(arrays["label"])
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    ids: dict[str, Any] = {
        "__id": [f"{side}-{i}" for i in range(rows)],
        "__group": pa.nulls(rows, pa.string()),
        "__time": pa.nulls(rows, pa.float64()),
    }
    documents = None
    if "tokens" in arrays:
        starts = [[0, 0]] * rows
        per_document = [
            int(((arrays["segments"][i] == part) & (arrays["label"][i] >= 0)).sum())
            for i in range(rows)
            for part in (1, 2)
        ]
        found = {
            "__id": [f"{side}-{i}" for i in range(2 * rows)],
            "__group": pa.nulls(2 * rows, pa.string()),
            "__time": pa.nulls(2 * rows, pa.float64()),
        }
        pq.write_table(
            pa.table(
                found
                | {
                    "tokens": per_document,
                    "characters": per_document,
                    "unknown": [0] * 2 * rows,
                }
            ),
            folder / "documents.parquet",
        )
        documents = file_ref(folder / "documents.parquet")
        ids |= {"documents": [[2 * i, 2 * i + 1] for i in range(rows)], "starts": starts}
    pq.write_table(pa.table(ids), folder / "ids.parquet")
    return SplitArrays(
        rows=rows,
        arrays={name: file_ref(folder / f"{name}.npy") for name in arrays},
        ids=file_ref(folder / "ids.parquet"),
        documents=documents,
    )


def label_statistics(name: str, kind: str, known: int) -> LabelStats:
    """Statistics of one of several labels; a third of the known rows is positive."""
    classes: tuple[Any, ...] = {"binary": (0, 1), "multiclass": (1, 2, 3), "regression": ()}[kind]
    counts = {
        "binary": (known - known // 3, known // 3),
        "multiclass": (known // 3,) * 3,
        "regression": (),
    }[kind]
    return LabelStats(
        name=name,
        kind=kind,
        known=known,
        share=0.75,
        classes=classes,
        class_counts=counts,
        class_weights=(1.0,) * len(classes),
    )


def statistics(task: str) -> Statistics:
    """Statistics of a table with the arrays' columns."""
    classes: tuple[Any, ...] = {"binary": (False, True), "multiclass": (0, 1, 2)}.get(task, ())
    several = {
        "multilabel": dict.fromkeys(("toxic", "late", "rare"), "binary"),
        "multitask": SEVERAL,
    }.get(task, {})
    language, known = task == "causal_lm", 120
    tokens = TokenStats(
        name="text",
        tokenizer="character",
        values=tuple(LETTERS),
        counts=(100,) * len(LETTERS),
        documents=2 * ROWS["train"],
        characters=100 * len(LETTERS),
        longest=CONTEXT,
        context=CONTEXT,
        stride=CONTEXT // 2,
        packing="documents",
    )
    return Statistics(
        train_sha256="0" * 64,
        rows=ROWS["train"],
        numeric=(
            ()
            if language
            else tuple(NumericStats(name=f"x{i}", method="standard") for i in range(WIDTH))
        ),
        categorical=(
            ()
            if language
            else (
                CategoryStats(name="ward", values=("a", "b", "c"), counts=(50,) * WARDS, nulls=0),
            )
        ),
        tensor=(),
        classes=classes,
        class_counts=(ROWS["train"] // max(1, len(classes)),) * len(classes),
        class_weights=(1.0,) * len(classes),
        label_mean=0.5,
        labels=tuple(label_statistics(name, kind, known) for name, kind in several.items()),
        tokens=tokens if language else None,
    )


def table_spec(task: str) -> TableSpec:
    """The columns of the table."""
    several = {"multilabel": ("toxic", "late", "rare"), "multitask": tuple(SEVERAL)}.get(task, ())
    language = task == "causal_lm"
    return TableSpec(
        id=("id",),
        group=(),
        time=None,
        label="text" if language else ", ".join(several) or "y",
        label_type="text" if language else "float" if task == "regression" else "int",
        weight=None if language else "w",
        split=None,
        numeric=() if language else tuple(f"x{i}" for i in range(WIDTH)),
        categorical=() if language else ("ward",),
        tensor={},
        text="text" if language else None,
        labels={name: LabelColumn(type="float" if name == "dose" else "int") for name in several},
    )


def write_run(folder: Path, case: Case, ranks: int) -> Path:
    """Write arrays and `resolved.json` of a case; the path of the latter."""
    language = case.task == "causal_lm"
    rows = {side: n // 3 if language else n for side, n in ROWS.items()}
    made = {
        s: token_arrays(n, i) if language else table_arrays(case.task, n, 10 * i)
        for i, (s, n) in enumerate(rows.items(), start=1)
    }
    sides = {
        side: write_side(folder / "arrays" / side, arrays, side) for side, arrays in made.items()
    }
    fitted = statistics(case.task)
    write_atomic(folder / "arrays" / "statistics.json", fitted.model_dump_json())
    spec = RunSpec(
        run_id="golden",
        name="golden",
        declaration=declare(case.declaration(ranks)).model_dump(mode="json", by_alias=True),
        spec=table_spec(case.task),
        statistics=fitted,
        arrays=ArraysRef(
            directory=str(folder / "arrays"),
            **sides,
            statistics=file_ref(folder / "arrays" / "statistics.json"),
            sha256=digest_of(
                {name: side.model_dump(mode="json")["arrays"] for name, side in sides.items()}
            ),
        ),
    )
    write_atomic(folder / "resolved.json", spec.model_dump_json())
    return folder / "resolved.json"


# ------------------------------------------------------------------------------------------
# training


def weights_sha256(path: Path) -> str:
    """SHA-256 over the names, types, shapes and bytes of a state dict, in the order of its names."""  # noqa: E501
    found = hashlib.sha256()
    for name, tensor in sorted(torch.load(path, weights_only=True, map_location="cpu").items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def figures(run_dir: Path) -> dict[str, Any]:
    """What is recorded of a finished training: digests of the best and the last weights, and the
    loss of every logged step.
    """
    result = json.loads((run_dir / "result.json").read_text())
    last = max((run_dir / "checkpoints").glob("step-*")) / "model.pt"
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {
        "best weights": weights_sha256(Path(result["best_checkpoint"]["path"])),
        "model_sha256": result["model_sha256"],
        "last weights": weights_sha256(last) if last.exists() else None,
        **{
            name: result[name]
            for name in ("status", "steps", "best_step", "metric", "best_metric", "skipped_steps")
        },
        "losses": [line["values"]["train/loss"] for line in lines if line["kind"] == "step"],
    }


def train(folder: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Train cases below a folder with the training program; what is recorded of each, by its name,
    and for several processes their number.

    Raises:
        RuntimeError: one did not end with 0; with the end of its output.
    """
    wanted = {
        (name, ranks): folder / f"{number}-{ranks}"
        for number, name in enumerate(names)
        for ranks in CASES[name].ranks
    }
    specs = {one: write_run(place, CASES[one[0]], one[1]) for one, place in wanted.items()}
    here = [one for one in wanted if one[1] == 1]
    given = [
        {
            "program": "training.main:main",
            "arguments": arguments(specs[one]),
            "folder": str(wanted[one]),
            "variables": environment(),
        }
        for one in here
    ]
    ended = dict(
        zip(
            here,
            calls(
                given,
                ("training.main", "torch", "pyarrow.parquet", "schemas.records", "schemas.load"),
                folder,
            ),
            strict=True,
        )
    )
    for one in wanted.keys() - ended.keys():
        agent = [
            "-m",
            "training.agent",
            "--nproc-per-node",
            str(one[1]),
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "127.0.0.1:0",
            "--max-restarts",
            "0",
        ]
        done = python(*agent, "-m", "training.main", *arguments(specs[one]), folder=wanted[one])
        ended[one] = {"code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
    for (name, ranks), found in ended.items():
        if found["code"]:
            raise RuntimeError(
                f"{name} on {ranks} ended with"
                f" {found['code']}:\n{found['stdout'][-2000:]}\n{found['stderr'][-4000:]}"
            )
    return {
        name if ranks == 1 else f"{name}, {ranks} ranks": figures(place / "run")
        for (name, ranks), place in wanted.items()
    }


def arguments(resolved: Path) -> list[str]:
    """Of the training program, for a run next to its `resolved.json`."""
    return ["--config", str(resolved), "--run-dir", str(resolved.parent / "run")]
