"""Servers behind a guard refuse a client without the password, under another host's name, or from
another page.
"""

from __future__ import annotations

import asyncio
import base64
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient, Response

from schemas.errors import ConfigError
from schemas.home import home, server_login
from tasks.bootstrap import job_template
from tasks.claim import Servers, claimed, log_in, running_servers, used_servers
from tasks.guarded import Guard

LOGIN = "bulkhead:s3cret"
PORT = 4200
OWN = f"http://127.0.0.1:{PORT}"
BASIC = {"Authorization": "Basic " + base64.b64encode(LOGIN.encode()).decode()}


async def behind(scope: Any, receive: Any, send: Any) -> None:
    """Run a server behind the guard that answers everything."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"rows"})


def ask(
    path: str = "/api/2.0/mlflow/experiments/search",
    method: str = "GET",
    asks: bool = True,
    **headers: str,
) -> Response:
    async def request() -> Response:
        guard: Any = Guard(behind, PORT, LOGIN, asks)
        async with AsyncClient(transport=ASGITransport(guard), base_url=OWN) as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(request())


@pytest.mark.req("S1")
@pytest.mark.parametrize("path", ["/", "/api/flows/", "/login", "/health", "/api/health"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": f"evil.example:{PORT}"},
        {"Host": "127.0.0.1:9999"},
        {"Host": f"127.0.0.1.evil.example:{PORT}"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{PORT}.evil.example"},
        {"Origin": "http://127.0.0.1:8888"},
    ],
)
@pytest.mark.parametrize("asks", [True, False])
def test_another_host_name_and_another_origin_are_refused_even_with_the_password(
    path: str, headers: dict[str, str], asks: bool
) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        found = ask(path, method, asks, **(BASIC | headers))
        assert found.status_code == 403 and b"rows" not in found.content
        assert "access-control-allow-origin" not in found.headers


@pytest.mark.req("S1")
def test_without_the_password_nothing_is_read_and_with_it_everything() -> None:
    wrong = base64.b64encode(b"bulkhead:other").decode()
    for headers in (
        {},
        {"Authorization": f"Basic {wrong}"},
        {"Authorization": "Basic %%%"},
        {"Authorization": "Bearer x"},
        {"Cookie": f"bulkhead-{PORT}=x"},
    ):
        found = ask(**headers)
        assert found.status_code == 401 and "MLFLOW_TRACKING_PASSWORD" in found.text
    assert ask(**BASIC).content == b"rows" and ask(**BASIC, Origin=OWN).content == b"rows"
    assert ask("/health").content == b"rows", "whether it is up is no secret of this host"
    assert ask("/", Accept="text/html").headers["location"] == "/login"
    assert ask(asks=False).content == b"rows", "Prefect asks for its password itself"


@pytest.mark.req("S1")
def test_the_login_page_gives_a_cookie_that_scripts_and_other_sites_cannot_use() -> None:
    page = ask("/login")
    assert (
        "location.hash" in page.text
        and "no-store" in page.headers["cache-control"]
        and LOGIN not in page.text
    )
    assert ask("/login", "POST").status_code == 403
    cookie = ask("/login", "POST", **BASIC, Origin=OWN).headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "s3cret" not in cookie
    assert ask(Cookie=cookie.split(";")[0]).content == b"rows"
    assert ask("/login", "POST", Cookie=cookie.split(";")[0]).status_code == 403, (
        "a cookie alone makes no new one"
    )


@pytest.mark.req("S1")
def test_a_websocket_of_another_page_is_closed() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "websocket",
        "path": "/api/events/out",
        "headers": [(b"host", f"127.0.0.1:{PORT}".encode()), (b"origin", b"http://evil.example")],
    }
    asyncio.run(Guard(behind, PORT, LOGIN, asks=False)(scope, None, send))  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.req("S1")
def test_a_job_may_choose_neither_its_command_nor_its_folder() -> None:
    template = job_template()
    assert (
        template["job_configuration"]["command"] is None
        and template["job_configuration"]["working_dir"] is None
    )
    assert {"command", "working_dir"}.isdisjoint(template["variables"]["properties"])
    assert "{{ env }}" in template["job_configuration"].values(), "the rest is Prefect's"


@pytest.mark.req("S1")
def test_the_home_and_its_password_are_the_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BULKHEAD_HOME", str(tmp_path / "new"))
    login = server_login()
    path = tmp_path / "new" / "keys" / "servers"
    assert login == server_login() and login.startswith("bulkhead:") and len(login) > 30
    assert [stat.S_IMODE(p.stat().st_mode) for p in (path, path.parent, home())] == [
        0o600,
        0o700,
        0o700,
    ]
    earlier, other = tmp_path / "earlier", tmp_path / "no home"
    for folder in (earlier / "runs", other / "letters"):
        folder.mkdir(parents=True)
        folder.parent.chmod(0o755)
        monkeypatch.setenv("BULKHEAD_HOME", str(folder.parent))
        home()
    assert (
        stat.S_IMODE(earlier.stat().st_mode) == 0o700
        and stat.S_IMODE(other.stat().st_mode) == 0o755
    )


@pytest.mark.req("P3")
def test_a_second_up_is_refused_with_the_address_of_the_first_until_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BULKHEAD_HOME", str(tmp_path / "home"))
    for name in (
        "PREFECT_API_AUTH_STRING",
        "MLFLOW_TRACKING_USERNAME",
        "MLFLOW_TRACKING_PASSWORD",
        "PREFECT_API_URL",
    ):
        monkeypatch.setenv(name, "x")  # so that the test undoes what it sets below
        monkeypatch.delenv(name)
    first = Servers("http://127.0.0.1:4711", "http://127.0.0.1:4712", os.getpid())
    assert running_servers() is None
    with claimed(first):
        assert running_servers() == first
        with (
            pytest.raises(
                ConfigError,
                match=(
                    r"another `bulkhead up` serves .*: Prefect http://127.0.0.1:4711, MLflow"
                    r" http://127.0.0.1:4712"
                ),
            ),
            claimed(first),
        ):
            pass
        assert (
            used_servers("sqlite:///x.db")
            == "Prefect http://127.0.0.1:4711, MLflow http://127.0.0.1:4712"
        )
        assert (
            used_servers("http://other:80")
            == "Prefect http://127.0.0.1:4711, MLflow http://other:80"
        )
        monkeypatch.setenv("PREFECT_API_URL", "http://localhost:4711/api")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9999")
        log_in()
        assert os.environ["PREFECT_API_AUTH_STRING"] == server_login()
        assert "MLFLOW_TRACKING_PASSWORD" not in os.environ, (
            "the password goes to this home's servers alone"
        )
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:4712/")
        log_in()
        assert os.environ["MLFLOW_TRACKING_PASSWORD"] == server_login().partition(":")[2]
    assert running_servers() is None
    hold = (
        "from tasks.claim import *; import time\nwith claimed(Servers('a', 'b', 1)):\n   "
        " print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[2],
        env=os.environ | {"PYTHONPATH": "."},
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        assert running_servers() == Servers("a", "b", 1)
        other.kill()
    assert running_servers() is None, "the lock goes with its process, however that ends"
