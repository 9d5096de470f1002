"""Repeated retrains on growing data: splits stay, champions are compared on rows that neither has
learned from, nothing is orphaned.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from prefect.testing.utilities import prefect_test_harness

from flows.promote import promote
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


@pytest.mark.long
@pytest.mark.req("R2")
@pytest.mark.timeout(900)
def test_an_equal_retrain_is_registered_and_the_champion_stays(growing: Growing) -> None:
    """Until a person names it; its claim is the champion's in both cases."""
    growing.grow(groups=200)
    first = growing.run("register.require_skill=false")
    assert first.outcome == "promoted" and first.looks[0].number == 1
    growing.grow(groups=4)
    equal = growing.run("register.require_skill=false", "train.seed=1")
    assert (equal.outcome, equal.registered.version, equal.registered.alias) == ("kept", "2", None)
    assert equal.looks[0].number == 2 and equal.looks[0].optimism > 0
    assert growing.aliases() == {"champion": "1"}
    claims = []
    for version in ("1", "2"):
        evidence = load_model(f"models:/growing/{version}", growing.uri).evidence
        tags = growing.client.get_model_version("growing", version).tags
        claims.append(evidence["gate"]["claim"]["value"])
        assert tags["bulkhead.claimed.auroc"] == f"{claims[-1]:.6g}"
        assert tags["bulkhead.looks.auroc"] == version
    assert claims[0] == claims[1] == pytest.approx(first.metrics["auroc"].value)
    again = growing.run("register.require_skill=false", "train.seed=1")
    assert again.looks[0].number == 2  # the same program on the same rows is no new look
    made = promote(model_uri="models:/growing/2")
    assert growing.aliases() == {"champion": "2", "previous": "1"}
    assert "equal within the noise" in made.verdict
    lines = (growing.home / "ledgers" / "looks.jsonl").read_text().splitlines()
    assert len({json.loads(line)["model"] for line in lines}) == 2
