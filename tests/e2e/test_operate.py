"""One command from nothing to scheduled runs: the same test over SQLite and over PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.operated import SMALL, Operated, until
from tests.e2e.postgres import PASSWORD, postgres

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
READY_SECONDS = 60


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def operated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operated]:
    """Start `bulkhead up` with every deployment, over small data."""
    with ExitStack() as stack:
        settings = (
            {"BULKHEAD_POSTGRES": stack.enter_context(postgres())}
            if request.param == "postgres"
            else {}
        )
        found = Operated(tmp_path_factory.mktemp(request.param), settings=settings)
        found.make_rows(1200)
        seconds = found.start()
        stack.callback(
            lambda: found.stop() if found.process and found.process.poll() is None else 0
        )
        quiet = os.getloadavg()[0] < (os.cpu_count() or 1)
        assert seconds < READY_SECONDS or not quiet, f"ready after {seconds:.0f} s"
        made = json.loads(found.bulkhead("deploy", "--json").stdout)
        assert {"pipeline/nightly", "pipeline/manual", "resume/manual"} <= {
            deployment["name"] for deployment in made
        }
        yield found


@pytest.fixture(scope="module")
def triggered(operated: Operated) -> str:
    """Trigger a run over the API and wait for its end."""
    flow_run = operated.pipeline()
    assert operated.wait(flow_run)[0] == "COMPLETED"
    return flow_run


@pytest.mark.req("P4")
@pytest.mark.req("P7")
def test_a_run_triggered_over_the_api_ends_with_a_version_a_report_and_its_artifacts(
    operated: Operated, triggered: str
) -> None:
    record, client = operated.record(triggered), operated.client()
    version = client.get_model_version_by_alias("small", "champion")
    assert (
        version.run_id == record["mlflow_run_id"] and (record["run_dir"] / "report.html").is_file()
    )
    run = client.get_run(record["mlflow_run_id"])
    assert run.info.status == "FINISHED" and triggered in run.data.tags["bulkhead.prefect_url"]
    assert str(operated.prefect) in run.data.tags["bulkhead.prefect_url"]
    made = operated.call("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [triggered]}}})
    shown = {artifact["key"]: artifact for artifact in made}
    assert {
        "mlflow-run",
        "run",
        "train",
        "metrics",
        "summary",
        "report",
        "checks-preflight",
    } <= set(shown)
    assert shown["train"]["data"] == 100.0 and shown["run"]["data"] == 100.0
    assert [row["epoch"] for row in json.loads(shown["metrics"]["data"])] == [1, 2, 3]
    assert (
        operated.tracking_uri in shown["report"]["data"]
        and "test metric" in shown["summary"]["data"]
    )
    out = operated.folder / "scores.parquet"
    operated.bulkhead(
        "predict", "models:/small@champion", str(operated.folder / "clinic.parquet"), str(out)
    )
    assert out.is_file()


@pytest.mark.req("P4")
def test_wrong_values_never_run(operated: Operated) -> None:
    for parameters, message in (
        ({"config_path": "examples/absent.yaml"}, "examples/absent.yaml: cannot be read"),
        (
            {"config_path": "tests/clinic_visits.yaml", "overrides": ["train.epocs=3"]},
            "did you mean 'epochs'",
        ),
    ):
        flow_run = operated.trigger("pipeline/manual", **parameters)
        state, text = operated.wait(flow_run)
        states = operated.call(f"/flow_run_states/?flow_run_id={flow_run}")
        assert (
            state == "FAILED" and message in text and "RUNNING" not in {s["type"] for s in states}
        )
        assert operated.run_dir(flow_run) is None
    # the server refuses what the form's own schema forbids
    with pytest.raises(urllib.error.HTTPError, match=r"409|422"):
        operated.trigger("pipeline/manual", config_path="tests/clinic_visits.yaml", model="bert")


@pytest.mark.req("P4")
def test_a_schedule_with_a_time_zone_starts_runs(operated: Operated, triggered: str) -> None:
    deployment = operated.call("/deployments/name/pipeline/manual")
    every_minute: dict[str, Any] = {"cron": "* * * * *", "timezone": "Asia/Kathmandu"}
    values = {
        "config_path": "tests/clinic_visits.yaml",
        "epochs": 2,
        "overrides": [*SMALL, "name=scheduled"],
    }
    (made,) = operated.call(
        f"/deployments/{deployment['id']}/schedules",
        [{"schedule": every_minute, "active": True, "parameters": values}],
    )
    asked = {
        "deployments": {"id": {"any_": [deployment["id"]]}},
        "flow_runs": {"tags": {"all_": ["auto-scheduled"]}},
    }

    def begun() -> str | None:
        found = operated.call("/flow_runs/filter", asked)
        return next(
            (run["id"] for run in found if run["state_type"] not in ("SCHEDULED", "PENDING")), None
        )

    flow_run = until(begun, 240, "a scheduled run begins")
    operated.call(f"/deployments/{deployment['id']}/pause_deployment", {})
    assert operated.wait(flow_run)[0] == "COMPLETED"
    assert (
        operated.record(flow_run)["name"] == "scheduled"
        and made["schedule"]["timezone"] == "Asia/Kathmandu"
    )
    operated.call(f"/deployments/{deployment['id']}/resume_deployment", {})


@pytest.mark.req("P4")
def test_two_deployments_of_one_model_take_turns(operated: Operated, triggered: str) -> None:
    asked = {
        "config_path": "tests/clinic_visits.yaml",
        "epochs": 3,
        "overrides": [*SMALL, "name=small"],
    }
    flow_runs = [
        operated.trigger(f"pipeline/{deployment}", **asked) for deployment in ("nightly", "manual")
    ]
    assert [operated.wait(flow_run, 480)[0] for flow_run in flow_runs] == ["COMPLETED"] * 2
    told = operated.call("/logs/filter", {"logs": {"flow_run_id": {"any_": flow_runs}}})
    assert any("another run of small is at work" in line["message"] for line in told)
    first, second = sorted(
        (operated.record(flow_run) for flow_run in flow_runs),
        key=lambda record: str(record["created"]),
    )
    ended = operated.client().get_run(first["mlflow_run_id"]).info.end_time
    assert operated.client().get_run(second["mlflow_run_id"]).info.start_time >= ended


@pytest.mark.req("S1")
def test_no_file_and_no_command_shows_the_password(operated: Operated, triggered: str) -> None:
    commands = "\n".join(operated.processes("").values())
    texts = [
        operated.output,
        *operated.home.glob("logs/*"),
        *operated.home.glob("runs/**/*.json"),
        *operated.home.glob("runs/**/*.html"),
    ]
    assert PASSWORD not in commands and all(
        PASSWORD not in path.read_text(errors="replace") for path in texts
    )
    worker = next(iter(operated.processes("prefect worker start")))
    assert PASSWORD not in Path(f"/proc/{worker}/environ").read_text()


@pytest.mark.req("C7")
def test_it_stops_whole_and_a_killed_one_leaves_nothing(operated: Operated, triggered: str) -> None:
    assert operated.stop() == 0
    assert operated.processes("") == {} and "stopped" in operated.output.read_text()
    operated.start()
    assert (
        operated.client().get_model_version_by_alias("small", "champion").run_id
        == operated.record(triggered)["mlflow_run_id"]
    )
    assert operated.stop(signal.SIGKILL) == -signal.SIGKILL
    until(
        lambda: operated.processes("") == {},
        20,
        f"nothing is left of a killed one: {operated.processes('')}",
    )
