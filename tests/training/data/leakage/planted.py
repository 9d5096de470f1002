"""Sides in memory for the checks: a plain table with an honest signal, and whatever fault a test
plants in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import numpy as np
import pandas as pd

from schemas.config import Declaration
from schemas.load import declare
from schemas.records import CheckResult, TableSpec
from tests.training.data.sides import spec_of
from training.data.leakage.battery import statistical_results
from training.data.leakage.sides import Sides
from training.data.leakage.verdict import judged

LABEL_TYPES = {"regression": "float", "binary": "int", "multiclass": "text"}


def honest_table(
    rows: int = 3000, seed: int = 0, task: str = "binary", groups: int = 0, hours: bool = False
) -> pd.DataFrame:
    """Four measured and three coarse columns, one with nulls; the label rests on several of them
    and on chance.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4))
    coarse = rng.integers(0, 5, rows)
    signal = x @ [0.6, -0.5, 0.4, 0.3] + 0.3 * coarse + rng.normal(size=rows)
    label = {
        "regression": 10 + 3 * signal,
        "binary": (signal > np.quantile(signal, 0.7)).astype(int),
    }.get(task)
    frame = pd.DataFrame({f"x{i}": x[:, i] for i in range(4)}).assign(
        coarse=coarse.astype(float),
        dose=np.where(rng.random(rows) < 0.2, np.nan, rng.gamma(2, 2, rows)),
        ward=rng.choice(list("abcdef"), rows),
        y=(
            label
            if label is not None
            else np.array(["low", "mid", "high"])[
                np.digitize(signal, np.quantile(signal, [0.4, 0.8]))
            ]
        ),
    )
    frame.insert(0, "__id", [f"r{seed}-{i:06d}" for i in rng.permutation(rows)])
    frame.insert(1, "__group", [f"g{g}" for g in rng.integers(0, groups, rows)] if groups else None)
    frame.insert(2, "__time", np.arange(rows) * 3600.0 if hours else np.nan)
    return frame


def shares(frame: pd.DataFrame, seed: int = 0) -> dict[str, pd.DataFrame]:
    """70, 15 and 15 % of the rows, by group where there are groups, by time where there is time
    alone.
    """
    rng = np.random.default_rng(seed)
    if frame["__group"].notna().any():
        names = np.sort(frame["__group"].unique())
        place = (
            frame["__group"]
            .map(dict(zip(names, rng.permutation(len(names)) / len(names), strict=True)))
            .to_numpy()
        )
    else:
        place = (
            np.arange(len(frame)) if frame["__time"].notna().any() else rng.permutation(len(frame))
        ) / len(frame)
    return {
        "train": frame[place < 0.7],
        "val": frame[(place >= 0.7) & (place < 0.85)],
        "test": frame[place >= 0.85],
    }


def spec_for(frame: pd.DataFrame, task: str) -> TableSpec:
    """Numbers are numeric features, texts categorical; group and time are declared where the table
    has them.
    """
    names = [c for c in frame.columns if not c.startswith("__") and c != "y"]
    numeric = tuple(c for c in names if pd.api.types.is_numeric_dtype(frame[c]))
    return spec_of(
        label_type=LABEL_TYPES[task],
        group=("unit",) if frame["__group"].notna().any() else (),
        time="at" if frame["__time"].notna().any() else None,
        numeric=numeric,
        categorical=tuple(c for c in names if c not in numeric),
    )


def declared_for(spec: TableSpec, task: str, **checks: Any) -> Declaration:
    """The declaration that fits: group, time or random split by what is declared."""
    kind = "group" if spec.group else "time" if spec.time else "random"
    columns = {
        "id": "id",
        "y": "label",
        **({"unit": "group"} if spec.group else {}),
        **({"at": "time"} if spec.time else {}),
        "*": "feature",
    }
    tree = {
        "name": "planted",
        "data": {"uri": "planted.parquet", "columns": columns},
        "task": {"kind": task},
        "split": {"kind": kind},
        "checks": checks,
    }
    return declare(tree)


@contextmanager
def sides_for(parts: dict[str, pd.DataFrame], task: str, **checks: Any) -> Iterator[Sides]:
    """The parts as the sides of a connection."""
    spec = spec_for(pd.concat(parts.values()), task)
    with duckdb.connect() as connection:
        for side, part in parts.items():
            connection.register(f"given_{side}", part)
            texts = ", ".join(
                f'cast("{c}" as varchar) as "{c}"'
                for c in (
                    "__id",
                    "__group",
                    *spec.categorical,
                    *(["y"] if task == "multiclass" else []),
                )
            )
            connection.execute(
                f"create table {side} as select * replace ({texts}, cast(__time as double) as"
                f" __time) from given_{side}"
            )
        yield Sides(
            connection,
            {s: s for s in parts},
            {s: len(p) for s, p in parts.items()},
            spec,
            declared_for(spec, task, **checks),
        )


def results_for(
    parts: dict[str, pd.DataFrame], task: str = "binary", **checks: Any
) -> list[CheckResult]:
    """What the statistical checks find in these sides."""
    with sides_for(parts, task, **checks) as sides:
        return [judged(result, sides.declaration) for result in statistical_results(sides)]


def named(results: list[CheckResult], name: str) -> list[CheckResult]:
    """The results of one check; there must be some."""
    found = [r for r in results if r.name == name]
    assert found, f"no result {name}"
    return found


def flagged(results: list[CheckResult]) -> dict[str, set[str]]:
    """Check to the columns of its warnings and failures."""
    return {
        n: {c for r in results if r.name == n and r.verdict != "pass" for c in r.columns}
        for n in {r.name for r in results if r.verdict != "pass"}
    }
