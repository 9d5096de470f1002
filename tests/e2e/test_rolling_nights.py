"""Nights of a growing table with `split.roll`: the real flow, registry, ledger and reproduction."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect.testing.utilities import prefect_test_harness

from schemas.errors import SplitError
from tests.e2e.growing import Growing
from tests.e2e.test_reproduce import bulkhead
from training.registry.registry import load_model

DECLARATION = """
name: growing
data: {uri: rows, columns: {id: id, at: time, y: label, "*": feature}}
task: {kind: binary}
split: {kind: time, roll: 7d, test: 21d, val: 14d, embargo: 1d}
model: {kind: mlp, hidden: [8]}
train: {epochs: 2, batch_size: 64, ranks: 1, threads: 1}
evaluate: {bootstrap: 50, baselines: [constant]}
register: {require_skill: false, fresh_rows: 60}
"""
START, A_DAY = dt.datetime(2024, 1, 1), 12


class Dated(Growing):
    """Rows with time stamps, a file for each append."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file.write_text(DECLARATION)
        self.days = 0

    def until(self, day: int) -> Path:
        """Append the rows of the days up to this one."""
        count = A_DAY * (day - self.days)
        draw = np.random.default_rng(self.days)
        x, noise = draw.normal(size=(2, count))
        path = self.folder / "rows" / f"{day:03d}.parquet"
        times = [START + dt.timedelta(days=self.days, hours=2 * i) for i in range(count)]
        columns = {"id": [f"{self.days}-{i}" for i in range(count)], "at": times, "x": x}
        pq.write_table(pa.table(columns | {"y": (x + noise > 0).astype(np.int64)}), path)
        self.days = day
        return path

    def claim(self, version: str) -> dict[str, Any]:
        """Return the claim of a version, as its evidence holds it."""
        evidence = load_model(f"models:/growing/{version}", self.uri).evidence
        assert evidence is not None
        found: dict[str, Any] = evidence["gate"]["claim"]
        return found


@pytest.fixture
def dated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dated]:
    made = Dated(tmp_path)
    monkeypatch.setenv("BULKHEAD_HOME", str(made.home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with prefect_test_harness(server_startup_timeout=180):
        yield made


@pytest.mark.long
@pytest.mark.req("R2")
@pytest.mark.req("R3")
@pytest.mark.timeout(1800)
def test_nights_of_a_growing_table(dated: Dated, tmp_path: Path) -> None:
    dated.until(100)
    first = dated.run()
    assert first.outcome == "promoted"
    window = dated.claim("1")["window"]
    assert window["after"] is None and window["between"].startswith("up to 2024-04-09")
    trained = dated.sides(first.run_dir)["train"]["__id"]

    dated.until(103)  # three days are too few rows to decide anything
    second = dated.run("train.seed=1")
    assert (second.outcome, dated.aliases()) == ("undecided", {"champion": "1"})
    assert "36 test rows came that neither was trained" in second.registered.verdict or any(
        "36 test rows" in line for line in (Path(second.report).read_text(),)
    )

    dated.until(110)
    third = dated.run("train.seed=1", "register.replace=not_worse", "register.tolerance=1.0")
    assert third.outcome == "promoted" and dated.aliases()["champion"] == "3"
    claim = dated.claim("3")
    assert claim["window"]["after"] == window["until"] and claim["window"]["rows"] == 120
    assert trained < dated.sides(third.run_dir)["train"]["__id"]

    again = dated.run("train.seed=2")
    assert again.outcome == "undecided"
    ledger = (dated.home / "ledgers" / "growing").read_text().splitlines()
    gated = [json.loads(line)["frozen"]["gated"] for line in ledger if '"gated"' in line]
    assert [found["rows"] for found in gated] == [window["rows"], 120]
    assert [found["champion"] for found in gated] == [None, "1"]

    wrong = dated.folder / "rows" / "wrong.parquet"
    table = pq.read_table(dated.folder / "rows" / "110.parquet").slice(0, 1).to_pydict()
    late = {"id": ["wrong"], "at": [dt.datetime(2099, 1, 1)], "x": table["x"], "y": table["y"]}
    pq.write_table(pa.table(late), wrong)
    with pytest.raises(SplitError, match=r"more than split\.test"):
        dated.run()
    wrong.unlink()

    # later, with the table as it was: the recorded cuts, though the ledger has moved on
    for later in ("103", "110"):
        shutil.move(dated.folder / "rows" / f"{later}.parquet", tmp_path / f"{later}.parquet")
    bulkhead(dated.home, "verify", "models:/growing/1")
    assert bulkhead(dated.home, "reproduce", "models:/growing/1", "--apply-diff")[0]["identical"]
