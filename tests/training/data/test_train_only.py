"""From the source to the statistics: whatever happens to validation and test rows, the fit stays
byte-identical.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from schemas.config import Declaration
from schemas.records import SplitTables, Statistics, digest_of
from tests.training.data.sides import declaration_of
from training.data.fit.normalize import fit
from training.data.sources.source import fingerprint
from training.data.split.split import split
from training.data.table.validate import validate

FEW = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ROWS = 500


def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    amount = rng.lognormal(1, 2, ROWS)
    amount[rng.random(ROWS) < 0.1] = np.nan
    return {
        "id": np.arange(ROWS),
        "who": rng.integers(0, 80, ROWS),
        "amount": amount,
        "level": rng.normal(size=ROWS),
        "colour": rng.choice(["red", "blue", "green", "grey"], ROWS, p=[0.5, 0.3, 0.15, 0.05]),
        "y": rng.integers(0, 3, ROWS),
    }


def run(folder: Path, columns: dict[str, Any]) -> tuple[SplitTables, Statistics, Declaration]:
    arrays = {n: pa.array(v, from_pandas=True) for n, v in columns.items()}
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(arrays), folder / "source.parquet")
    declaration = declaration_of(
        "multiclass",
        columns={"who": "group"},
        split={"kind": "group", "fractions": {"train": 0.6, "val": 0.2, "test": 0.2}},
        normalize={"scale": "robust"},
        loss={"class_weights": "balanced"},
    )
    declaration = declaration.model_copy(
        update={"data": declaration.data.model_copy(update={"uri": str(folder / "source.parquet")})}
    )
    validated = validate(fingerprint(declaration.data), declaration, folder / "validated")
    sides = split(validated, declaration, folder / "split", folder / "ledger.jsonl")
    return sides, fit(sides.train, validated.spec, declaration), declaration


def ids_of(sides: SplitTables, side: str) -> np.ndarray:
    return np.array(
        pq.read_table(sides.side(side).file.path, columns=["__id"])["__id"].to_pylist()
    ).astype(int)


@pytest.mark.req("D7")
@FEW
@given(
    seed=st.integers(0, 10**6),
    change=st.sampled_from(["values", "labels", "shuffled", "fewer", "shuffled whole table"]),
)
def test_changed_shuffled_and_deleted_rows_of_val_and_test_leave_the_statistics_byte_identical(
    tmp_path, seed, change
):
    columns, rng = table(), np.random.default_rng(seed)
    sides, statistics, _ = run(tmp_path / "before", columns)
    held = np.isin(columns["id"], np.concatenate([ids_of(sides, "val"), ids_of(sides, "test")]))
    assert 50 < held.sum() < 400
    order = np.arange(ROWS)
    if change == "values":
        columns["amount"][held], columns["level"][held] = 1e9 * rng.normal(size=held.sum()), np.pi
        columns["colour"] = np.where(held, "violet", columns["colour"])
    elif change == "labels":
        columns["y"][held] = rng.integers(0, 3, held.sum())
    elif change == "shuffled":
        order[held] = rng.permutation(order[held])
    elif change == "fewer":
        order = np.concatenate([order[~held], rng.permutation(order[held])[: held.sum() // 2 + 20]])
    else:
        order = rng.permutation(ROWS)
    again, changed, _ = run(tmp_path / "after", {n: v[order] for n, v in columns.items()})
    assert digest_of(changed) == digest_of(statistics)
    assert again.train.file.sha256 == sides.train.file.sha256


@pytest.mark.req("D7")
def test_a_changed_train_row_does_change_the_statistics(tmp_path):
    columns = table()
    sides, statistics, _ = run(tmp_path / "before", columns)
    columns["level"][ids_of(sides, "train")[0]] += 1e-6
    assert digest_of(run(tmp_path / "after", columns)[1].numeric[1]) != digest_of(
        statistics.numeric[1]
    )


@pytest.mark.req("D7")
def test_what_the_train_side_lacks_is_not_learned(tmp_path):
    columns = table()
    sides, _, _ = run(tmp_path / "before", columns)
    held = np.isin(columns["id"], ids_of(sides, "test"))
    columns["colour"] = np.where(held, "violet", columns["colour"])
    _, statistics, _ = run(tmp_path / "after", columns)
    assert "violet" not in statistics.categorical[0].values
    assert statistics.rows == sides.train.rows and sum(statistics.class_counts) == sides.train.rows
