"""From a gate to a person to the alias: approval, proof, comparison on today's rows, the event, the
rollback.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.testing.utilities import prefect_test_harness

from flows.promote import promote, rollback
from flows.reevaluate import reevaluate
from schemas.errors import IntegrityError, RegistryError
from tasks import promote as task
from tests.e2e.growing import Growing
from tests.training.test_verify import flip

pytestmark = pytest.mark.timeout(900)  # the first test includes both runs


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Growing]:
    """Train version 1 on random labels as champion; version 2 on better ones waits for a person."""
    made = Growing(tmp_path_factory.mktemp("promote"))
    with pytest.MonkeyPatch.context() as patch, prefect_test_harness(server_startup_timeout=180):
        patch.setenv("BULKHEAD_HOME", str(made.home))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        made.grow(flipped=0.5)
        assert made.run("register.require_skill=false").registered.uri == "models:/growing@champion"
        made.grow(groups=160)
        waiting = made.run("register.promotion=approval").registered
        assert (waiting.version, waiting.alias, waiting.uri) == (
            "2",
            "challenger",
            "models:/growing@challenger",
        )
        assert made.aliases() == {"champion": "1", "challenger": "2"}
        yield made


def events(count: int) -> list[dict[str, Any]]:
    """Wait for `count` promotion events of the server; return their payloads, newest first."""
    deadline = time.monotonic() + 30
    found: list[dict[str, Any]] = []
    while len(found) < count and time.monotonic() < deadline:
        with get_client(sync_client=True) as client:
            asked = {"filter": {"event": {"name": [task.EVENT]}}}
            found = client._client.post("/events/filter", json=asked).json()["events"]
        time.sleep(0.2)
    assert {e["resource"]["prefect.resource.id"] for e in found} == {"bulkhead.model.growing"}
    return [e["payload"] for e in found]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.req("R2")
def test_a_person_promotes_what_is_better_and_can_go_back(growing: Growing) -> None:
    made = promote(model_uri="models:/growing@challenger")
    assert growing.aliases() == {"champion": "2", "previous": "1"}
    assert "unseen by both" in made.verdict and made.previous_version == "1"
    assert events(2)[0] == made.model_dump(mode="json") and made.uri == "models:/growing/2"
    with get_client(sync_client=True) as client:
        assert client.read_global_concurrency_limit_by_name(task.LIMIT).limit == 1
    with pytest.raises(
        RegistryError,
        match=(
            r"models:/growing/1 is not promoted: refused: auroc 0\.\d+ against .* of version 2 on"
            r" \d+ rows unseen by both"
        ),
    ):
        promote(model_uri="models:/growing/1")
    assert growing.aliases() == {"champion": "2", "previous": "1"}
    assert rollback(name="growing").version == "1" and growing.aliases() == {
        "champion": "1",
        "previous": "2",
    }
    assert promote(model_uri="models:/growing/2").version == "2" and growing.aliases() == {
        "champion": "2",
        "previous": "1",
    }
    assert promote(model_uri="models:/growing/2").verdict == "version 2 is champion already"
    assert [e["version"] for e in events(4)] == ["2", "1", "2", "1"]


@pytest.mark.long
@pytest.mark.req("R2")
def test_what_cannot_be_proven_is_not_promoted(growing: Growing, tmp_path: Path) -> None:
    client = growing.client
    program = next(
        Path(client.get_model_version_download_uri("growing", "1").removeprefix("file://")).rglob(
            "program.pt2"
        )
    )
    before = program.read_bytes()
    flip(program)
    with pytest.raises(
        RegistryError, match=r"models:/growing/1 is not promoted: files: program.pt2 of version 1"
    ):
        promote(model_uri="models:/growing/1", alias="staging")
    program.write_bytes(before)
    run_id = str(client.get_model_version("growing", "1").run_id)
    text = Path(
        client.download_artifacts(run_id, "data/statistics.json", str(tmp_path))
    ).read_text()
    client.log_text(run_id, text.replace('"rows": ', '"rows": 1'), "data/statistics.json")
    with pytest.raises(
        IntegrityError,
        match=r"data/statistics.json of run \w+ was changed after models:/growing/1 was registered",
    ):
        promote(model_uri="models:/growing/1", alias="staging")
    client.log_text(run_id, text, "data/statistics.json")
    assert promote(model_uri="models:/growing/1", alias="staging").alias == "staging"
    assert growing.aliases()["staging"] == "1"


@pytest.mark.long
@pytest.mark.req("R2")
def test_one_promotion_at_a_time(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "LIMIT_SECONDS", 1.0)
    task.ensure_limit()
    with (
        concurrency(task.LIMIT, strict=True),
        pytest.raises(TimeoutError),
        task.one_promotion("growing"),
    ):
        pass
    inside: list[int] = []

    def enter(number: int) -> None:
        with task.one_promotion("growing"):
            inside.append(number)
            time.sleep(0.2)
            inside.append(number)

    monkeypatch.setattr(task, "ensure_limit", lambda: None)
    monkeypatch.setattr(task, "concurrency", lambda *a, **k: __import__("contextlib").nullcontext())
    threads = [threading.Thread(target=enter, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inside[0::2] == inside[1::2] and sorted(inside[0::2]) == [0, 1, 2]


@pytest.mark.req("R2")
def test_an_event_that_cannot_be_sent_fails_no_promotion(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from schemas.registry_records import Promotion

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("the server is away")

    monkeypatch.setattr(task, "emit_event", away)
    task.announce(
        Promotion(
            name="m",
            version="1",
            previous_version=None,
            alias="champion",
            uri="models:/m/1",
            run_id="",
            git_sha="",
            verdict="",
        )
    )
    assert (
        "bulkhead.model.promoted could not be sent: the server is away" in capsys.readouterr().err
    )


@pytest.mark.long
@pytest.mark.req("R2")
def test_the_champion_is_held_against_rows_that_came_since(growing: Growing) -> None:
    """Last in this file, since it appends rows: correct ones, then some with inverted labels."""
    if growing.aliases()["champion"] == "1":  # if this test runs alone
        promote(model_uri="models:/growing/2")
    growing.grow(groups=120)
    champion = growing.aliases()["champion"]
    found = reevaluate(config_path=str(growing.file), stop=False)
    assert (
        (found.uri, found.metric) == (f"models:/growing/{champion}", "auroc")
        and found.rows > 100
        and found.learned > 300
        and found.tested > 30
    )
    assert Path(found.report).read_text().lstrip().lower().startswith("<!doctype html>")
    (run,) = growing.client.search_runs(
        [growing.client.get_experiment_by_name("growing").experiment_id],
        "tags.`bulkhead.flow` = 'reevaluate'",
    )
    assert run.info.status == "FINISHED" and run.data.tags["bulkhead.model"] == found.uri
    assert run.data.metrics["new/auroc"] == found.metrics["auroc"].value and {
        "psi/x",
        "psi/z",
        "new/rows",
    } <= set(run.data.metrics)
    growing.grow(groups=300, flipped=1.0)
    with pytest.raises(
        RegistryError,
        match=(
            r"models:/growing/\d does not do any more what it did: auroc is worse: 0\.\d+ .* on new"
            r" rows"
        ),
    ):
        reevaluate(config_path=str(growing.file))
    assert growing.aliases()["champion"] == champion
