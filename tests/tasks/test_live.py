"""Prefect's UI shows the newest value of a run, rarely, and never delays the run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.testing.utilities import prefect_test_harness

from tasks import live
from tasks.live import progress, publish, table
from tasks.say import bar, phases, say


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=180):
        yield


def artifacts(key: str) -> list[Any]:
    with get_client(sync_client=True) as client:
        return client.read_artifacts(
            artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key]))
        )


@pytest.mark.long
@pytest.mark.req("P7")
def test_bars_and_table_end_with_their_last_value_in_few_updates(
    server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "UPDATE_SECONDS", 0.2)

    @flow
    def work() -> None:
        with phases("pipeline"), bar("train") as shown, table("metrics", "so far") as append:
            for number in range(1, 1001):
                shown(number / 1000, f"epoch {number}")
                append({"epoch": number, "val loss": f"{1 / number:.4f}"})
                time.sleep(0.001)
            say("train", "done in figures")

    work()
    (train,), (metrics,), (run,) = artifacts("train"), artifacts("metrics"), artifacts("run")
    assert train.data == 100.0 and train.description == "epoch 1000"
    assert (
        len(json.loads(metrics.data)) == 1000
        and json.loads(metrics.data)[-1]["val loss"] == "0.0010"
    )
    assert run.data == pytest.approx(66.7) and run.description == "train: done in figures"
    assert (
        train.flow_run_id == run.flow_run_id == metrics.flow_run_id
        and train.flow_run_id is not None
    )


@pytest.mark.long
@pytest.mark.req("S3")
def test_an_artifact_that_is_not_taken_fails_nothing_and_holds_nothing_up(
    server: None, caplog: pytest.LogCaptureFixture
) -> None:
    def away(**fields: Any) -> None:
        time.sleep(0.2)
        raise OSError("the server is away")

    @flow
    def work() -> str:
        publish(away, key="summary")
        with progress("Not A Key!") as show:  # refused by the server
            began = time.monotonic()
            for number in range(100):
                show(number / 100, "on")
            assert time.monotonic() - began < 1  # 100 answers of the server, if sent one at a time
        return "done"

    assert work() == "done"
    assert "Prefect did not take the artifact summary: the server is away" in caplog.text
    publish(create_markdown_artifact, key="outside", markdown="of a run")
    assert artifacts("outside") == []
