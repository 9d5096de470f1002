"""A person who never saw the code starts a run in Prefect's UI, watches it, and finds model and
report; the pictures of docs/ are made here.

make screenshots
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.browser import Browser, browser
from tests.e2e.operated import Operated, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
SETTLE_SECONDS = 6.0  # for a page to draw what it has loaded
EPOCHS = 20


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    found = Operated(tmp_path_factory.mktemp("ui"))
    found.make_rows(4000)
    found.start()
    try:
        found.bulkhead("deploy")
        yield found
    finally:
        found.stop()


def picture(page: Browser, operated: Operated, name: str) -> None:
    """Save a picture of the page in BULKHEAD_SCREENSHOTS, else next to the test's other files."""
    time.sleep(SETTLE_SECONDS)
    path = (
        Path(os.environ.get("BULKHEAD_SCREENSHOTS", str(operated.folder / "pictures"))).absolute()
        / f"{name}.png"
    )
    page.picture(path)
    assert path.stat().st_size > 10_000


def newest_run(operated: Operated) -> dict[str, Any] | None:
    found = operated.call(
        "/flow_runs/filter",
        {
            "sort": "EXPECTED_START_TIME_DESC",
            "flow_runs": {"tags": {"all_": ["pipeline"]}},
            "limit": 50,
        },
    )
    return next((run for run in found if not run["auto_scheduled"]), None)


@pytest.mark.req("P4")
def test_a_run_started_by_clicking_ends_with_a_version_and_its_report(operated: Operated) -> None:
    ui = operated.api.removesuffix("/api")
    deployment = operated.call("/deployments/name/pipeline/manual")["id"]
    with browser() as page:
        operated.log_in(page)
        page.open(f"{ui}/deployments")
        page.until("document.body.innerText.includes('nightly')", "the list of deployments")
        picture(page, operated, "deployments")
        page.open(f"{ui}/deployments/deployment/{deployment}")
        page.click("Run")
        page.click("Custom run", "[role=menuitem], .p-overflow-menu-item, a, button")
        page.until("document.body.innerText.includes('Declaration')", "the form")
        page.focus("textarea")
        page.type("tests/clinic_visits.yaml")
        page.focus("input[type=number]")
        page.type(str(EPOCHS))
        page.click("Add item")
        page.until("document.querySelectorAll('textarea').length >= 2", "a field for another value")
        page.focus("textarea", -1)
        page.type("train.patience=1000")
        picture(page, operated, "form")
        page.click("Submit")
        run = until(lambda: newest_run(operated), 60, "a run was asked for")
        given = {
            "config_path": "tests/clinic_visits.yaml",
            "epochs": EPOCHS,
            "overrides": ["train.patience=1000"],
        }
        assert run["parameters"] == {**run["parameters"], **given}
        flow_run = run["id"]
        until(
            lambda: f"epoch 8/{EPOCHS}" in operated.worker_log(),
            300,
            f"the eighth epoch: {operated.worker_log()}",
        )
        page.open(f"{ui}/runs/flow-run/{flow_run}")
        page.reach(
            "Artifacts",
            "/metrics/i.test(document.body.innerText)",
            "the table of evaluations",
            "[role=tab], .p-tab, a, button",
        )
        picture(page, operated, "progress")
        assert operated.wait(flow_run)[0] == "COMPLETED"
        record = operated.record(flow_run)
        page.open(
            f"{operated.tracking_uri}/#/experiments/{operated.mlflow_run(flow_run).info.experiment_id}/runs/{record['mlflow_run_id']}/model-metrics"
        )
        page.until("document.body.innerText.includes('auroc')", "the metrics of the run in MLflow")
        picture(page, operated, "mlflow-run")
    version = operated.client().get_model_version_by_alias("clinic-visits", "champion")
    assert (
        version.run_id == record["mlflow_run_id"] and (record["run_dir"] / "report.html").is_file()
    )
    assert json.loads((record["run_dir"] / "result.json").read_text())["epochs"] == EPOCHS
