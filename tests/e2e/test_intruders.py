"""Another page, another local user and a rebound host name can do nothing to the servers of
`bulkhead up`.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.browser import browser
from tests.e2e.operated import Operated, free_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
REBOUND = "rebound.example"
# Reads, writes that need no preflight, and writes that need one; every answer is recorded.
PAGE = """<!doctype html><title>evil</title><script>
async function attempt(url, options) {
  try { const a = await fetch(url, options); return a.type === "opaque" ? "opaque" : a.status + " " + (await a.text()).slice(0, 80); }
  catch (error) { return "refused"; }
}
async function all(api, mlflow, marker) {
  const job = JSON.stringify({name: "evil"}), text = {method: "POST", mode: "no-cors", body: job};
  return JSON.stringify([
    await attempt(api + "/flows/filter", {method: "POST", headers: {"Content-Type": "application/json"}, body: "{}"}),
    await attempt(api + "/flows/filter", {method: "POST", credentials: "include", headers: {"Content-Type": "application/json"}, body: "{}"}),
    await attempt(api + "/flows/", text),
    await attempt(mlflow + "/api/2.0/mlflow/experiments/search?max_results=5", {credentials: "include"}),
    await attempt(mlflow + "/ajax-api/2.0/mlflow/experiments/create", {method: "POST", credentials: "include", mode: "no-cors", body: job}),
  ]);
}
</script>"""  # noqa: E501


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    found = Operated(tmp_path_factory.mktemp("intruders"))
    found.make_rows(300)
    found.start()
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[str]:
    """Return the address of a page on another server."""
    (tmp_path / "index.html").write_text(PAGE)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", free_port()), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def request(address: str, body: Any = None, **headers: str) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(address, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def names(operated: Operated) -> set[str]:
    return {flow["name"] for flow in operated.call("/flows/filter", {})} | {
        e.name for e in operated.client().search_experiments()
    }


@pytest.mark.req("S1")
def test_a_page_of_another_origin_reads_and_starts_nothing_even_in_a_logged_in_browser(
    operated: Operated, elsewhere: str
) -> None:
    before = names(operated)
    with browser() as page:
        operated.log_in(page)
        page.open(f"{operated.tracking_uri}/")
        page.until("document.body.innerText.includes('Experiments')", "MLflow, logged in")
        page.open(elsewhere)
        page.until("document.title === 'evil'", "the other page")
        found = json.loads(page.evaluate(f"all({operated.api!r}, {operated.tracking_uri!r})"))
    assert set(found) <= {"refused", "opaque"}, found
    assert names(operated) == before


@pytest.mark.req("S1")
def test_a_rebound_name_is_refused_by_both_servers(operated: Operated) -> None:
    with browser(f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1") as page:
        for port in (operated.prefect, operated.mlflow):
            page.open(f"http://{REBOUND}:{port}/")
            page.until(
                "document.body && document.body.innerText.includes('its own address alone')",
                "the refusal",
            )
    for address in (
        f"{operated.api}/admin/version",
        f"{operated.tracking_uri}/api/2.0/mlflow/experiments/search?max_results=1",
    ):
        assert request(address, Host=f"{REBOUND}:{operated.prefect}")[0] == 403


@pytest.mark.req("S1")
def test_another_local_user_is_refused_and_finds_the_password_nowhere(
    operated: Operated, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    job = {
        "name": "evil",
        "flow_id": "0" * 8,
        "work_pool_name": "bulkhead",
        "entrypoint": "x:y",
        "job_variables": {"command": f"touch {marker}"},
    }
    assert request(f"{operated.api}/deployments/", job)[0] == 401
    assert request(f"{operated.api}/flows/", {"name": "evil"})[0] == 401
    assert (
        request(f"{operated.tracking_uri}/api/2.0/mlflow/experiments/search?max_results=1")[0]
        == 401
    )
    password = operated.login.partition(":")[2]
    readable = [p for p in Path("/proc").glob("[0-9]*/cmdline") if _holds(p, password)]
    assert readable == [], "arguments of processes are everybody's to read"
    assert password not in "".join(
        p.read_text(errors="replace") for p in (operated.home / "logs").glob("*.log")
    )
    for path in (operated.home, operated.home / "keys", operated.home / "keys" / "servers"):
        assert os.stat(path).st_mode & 0o077 == 0
    time.sleep(1)
    assert not marker.exists()


def _holds(path: Path, word: str) -> bool:
    try:
        return word.encode() in path.read_bytes()
    except OSError:
        return False


@pytest.mark.req("S1")
def test_who_knows_the_password_may_not_name_a_command(operated: Operated) -> None:
    flow = operated.call("/flows/", {"name": "harmless"})["id"]
    wanted = {
        "name": "evil",
        "flow_id": flow,
        "work_pool_name": "bulkhead",
        "entrypoint": "x:y",
        "path": ".",
        "job_variables": {"command": "touch /tmp/x"},
    }
    found = operated.call("/deployments/", wanted)
    template = operated.call("/work_pools/bulkhead")["base_job_template"]
    assert (
        "command" not in template["variables"]["properties"]
        and template["job_configuration"]["command"] is None
    )
    assert found["name"] == "evil", "the variable is stored, and no job reads it"


@pytest.mark.req("P4")
def test_a_run_by_the_api_and_one_from_the_terminal_find_the_servers_by_themselves(
    operated: Operated,
) -> None:
    operated.bulkhead("deploy")
    flow_run = operated.pipeline("train.epochs=2", name="by-api")
    assert operated.wait(flow_run)[0] == "COMPLETED", operated.worker_log()[-3000:]
    assert operated.mlflow_run(flow_run).info.status == "FINISHED"
    done = operated.bulkhead(
        "train",
        "tests/clinic_visits.yaml",
        "model.kind=mlp",
        "checks.min_rows=20",
        "train.epochs=2",
        "name=by-hand",
    )
    assert re.search(r"train .*2 epochs", done.stdout + done.stderr)
