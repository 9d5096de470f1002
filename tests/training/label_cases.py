"""Generated tables of several labels, any of which may be missing, taken through the real data
path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from schemas.config import Declaration
from schemas.load import declare
from schemas.records import CheckReport, Prepared, RunSpec, SplitTables, ValidatedTable
from training.data.arrays.shards import materialise
from training.data.fit.normalize import fit
from training.data.leakage import check_leakage, check_overlap
from training.data.sources.source import fingerprint
from training.data.split.split import split
from training.data.table.validate import validate

COLUMNS: dict[str, Any] = {"row": "id", "x*": "numeric", "ward": "categorical"}
MULTITASK: dict[str, Any] = {
    "kind": "multitask",
    "labels": {
        "toxic": {"weight": 2.0},
        "stage": {"kind": "multiclass", "ignore": [9]},
        "dose": {"kind": "regression", "weight": 0.5},
    },
}
TASKS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "multilabel": (
        {"kind": "multilabel", "labels": {"toxic": {"positive": "yes"}}},
        ("toxic", "late", "rare"),
    ),
    "multitask": (MULTITASK, ("toxic", "stage", "dose")),
}


class LabelCase(NamedTuple):
    """What preparation made of a table, and what training reads."""

    declaration: Declaration
    raw: pd.DataFrame
    validated: ValidatedTable
    split: SplitTables
    prepared: Prepared
    run: RunSpec


def label_rows(rows: int = 600, seed: int = 0) -> pd.DataFrame:
    """Labels that follow from four numbers and a ward: two binary, a rare one, three stages and a
    dose; a fifth or more of each is null.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4))
    ward = rng.integers(0, 3, rows)
    signal = x[:, 0] - 0.7 * np.abs(x[:, 1]) + 0.6 * (ward == 1) + 0.4 * rng.normal(size=rows)
    frame = pd.DataFrame(
        {
            "row": [f"r{i:05d}" for i in range(rows)],
            **{f"x{i}": x[:, i] for i in range(4)},
            "ward": np.array(["a", "b", "c"])[ward],
        }
    )
    frame["toxic"] = pd.array(np.where(signal > 0.2, "yes", "no"), dtype="str")
    frame["late"] = pd.array((x[:, 2] + 0.5 * rng.normal(size=rows) > 0).astype(int), dtype="Int64")
    frame["rare"] = pd.array((x[:, 3] > 1.3).astype(int), dtype="Int64")
    frame["stage"] = pd.array(np.digitize(signal, [-0.6, 0.6]) + 1, dtype="Int64")
    frame["dose"] = 40 + 9 * (x[:, 2] + 0.3 * rng.normal(size=rows))
    for name, share in (
        ("toxic", 0.2),
        ("late", 0.35),
        ("rare", 0.3),
        ("stage", 0.25),
        ("dose", 0.6),
    ):
        frame.loc[rng.random(rows) < share, name] = None
    return frame[
        frame[["toxic", "late", "dose"]].notna().any(axis=1)
        & frame[["toxic", "stage"]].notna().any(axis=1)
    ].reset_index(drop=True)


def label_declaration(uri: Path, task: str, **sections: Any) -> Declaration:
    """A declaration of one of `TASKS` over a table; columns that are no label of it are
    left out.
    """
    config, labels = TASKS[task]
    columns = COLUMNS | dict.fromkeys(labels, "label") | {"*": "ignore"}
    tree = {
        "name": f"clinic-{task}",
        "data": {"uri": str(uri), "columns": columns, "null_labels": "drop"},
        "task": config,
        "split": {"kind": "random"},
        "model": {"kind": "mlp", "hidden": [16], "dropout": 0.1},
        "train": {"epochs": 3, "batch_size": 64},
        "evaluate": {"bootstrap": 40, "baselines": ["constant", "linear"]},
    }
    return declare(tree | sections)


def make_label_case(
    folder: Path, task: str, frame: pd.DataFrame | None = None, **sections: Any
) -> LabelCase:
    """A table as a Parquet source, validated, split, checked, fitted and materialised."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = label_rows() if frame is None else frame
    raw.to_parquet(folder / "rows.parquet", index=False)
    declaration = label_declaration(folder / "rows.parquet", task, **sections)
    source = fingerprint(declaration.data)
    validated = validate(source, declaration, folder)
    sides = split(validated, declaration, folder / "split", folder / "ledger")
    reports = (
        check_overlap(sides, validated, declaration),
        check_leakage(sides, validated, declaration),
    )
    statistics = fit(sides.train, validated.spec, declaration)
    arrays = materialise(sides, validated, statistics, declaration, folder / "arrays")
    checks = CheckReport(results=tuple(r for report in reports for r in report.results))
    prepared = Prepared(
        key="k",
        directory=str(folder),
        source=source,
        validated=validated,
        split=sides,
        checks=checks,
        statistics=statistics,
        arrays=arrays,
    )
    tree = declaration.model_dump(mode="json", by_alias=True)
    run = RunSpec(
        run_id=f"run-{task}",
        name=declaration.name,
        declaration=tree,
        spec=validated.spec,
        statistics=statistics,
        arrays=arrays,
    )
    return LabelCase(declaration, raw, validated, sides, prepared, run)
