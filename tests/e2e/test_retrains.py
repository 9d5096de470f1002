"""Repeated retrains on growing data: splits stay, champions are compared on rows that neither has
learned from, nothing is orphaned.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from prefect.testing.utilities import prefect_test_harness

from schemas.records import GateReport, Prepared
from tests.e2e.growing import Growing
from training.registry.registry import load_model


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=180):
        yield


@pytest.fixture
def growing(tmp_path: Path, server: None, monkeypatch: pytest.MonkeyPatch) -> Growing:
    made = Growing(tmp_path)
    monkeypatch.setenv("BULKHEAD_HOME", str(made.home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return made


def compared_as_promised(growing: Growing, summary: Any, champion: str) -> GateReport:
    """Return the gate's report, after a recount of its rows from the splits and the champion's own
    keys.
    """
    import hashlib

    evidence = (
        load_model(f"models:/growing/{summary.registered.version}", growing.uri).evidence
        if summary.registered.registered
        else None
    )
    gate = GateReport.model_validate(evidence["gate"]) if evidence else None
    assert gate is not None and gate.champion_version == champion
    known = set(load_model(f"models:/growing/{champion}", growing.uri).trained_on.tolist())
    split = Prepared.model_validate_json(
        (Path(summary.run_dir) / "prepared.json").read_bytes()
    ).split
    rows = pq.read_table(split.test.file.path, columns=["__id", "__group"]).to_pylist()

    def key(text: str) -> int:
        return int(hashlib.md5(text.encode()).hexdigest()[:16], 16)

    unseen = [
        r
        for r in rows
        if key(f"id:{r['__id']}") not in known and key(f"group:{r['__group']}") not in known
    ]
    assert gate.compared_rows == len(unseen) >= 30
    return gate


def retrain(growing: Growing, times: int) -> None:
    """Run, append, run again; check every promise after every run."""
    sides: dict[str, str] = {}
    champion, versions = "", 0
    for number in range(times):
        growing.grow()
        summary = growing.run("register.require_skill=false", "register.tolerance=1.0")
        for side, names in growing.sides(summary.run_dir).items():
            for name in (f"{kind}:{value}" for kind, values in names.items() for value in values):
                assert sides.setdefault(name, side) == side, (
                    f"{name} moved from {sides[name]} to {side} in retrain {number}"
                )
        assert summary.registered.registered and int(summary.registered.version) == versions + 1
        if champion:
            compared_as_promised(growing, summary, champion)
        expected = {"champion": str(versions + 1)} | ({"previous": champion} if champion else {})
        assert growing.aliases() == expected
        champion, versions = str(versions + 1), versions + 1
        runs = growing.client.search_runs(
            [growing.client.get_experiment_by_name("growing").experiment_id]
        )
        assert [run.info.status for run in runs] == ["FINISHED"] * versions
    assert len(sides) > 500 * times


@pytest.mark.long
@pytest.mark.req("D4")
@pytest.mark.req("R2")
@pytest.mark.timeout(3000)
def test_twenty_retrains_on_growing_data(growing: Growing) -> None:
    retrain(growing, 20)
