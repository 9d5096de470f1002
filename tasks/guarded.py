"""Guard of Prefect's and MLflow's servers: a password, no requests for other hosts or from other
pages.

    python -m tasks.guarded PORT                        Prefect, with what its environment says
    mlflow server --app-name bulkhead --port PORT …     MLflow; its plugin is `mlflow_app`

`BULKHEAD_GUARD_PORT` is the port and `BULKHEAD_GUARD_LOGIN` is `user:password`; both are in the
environment, which other users cannot read. `BULKHEAD_GUARD_HOSTS` names further hosts, such as
`mlflow:5000` between containers. Prefect checks the password itself
(PREFECT_SERVER_API_AUTH_STRING); MLflow has no password check here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import SimpleCookie
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
PORT, LOGIN, HOSTS = "BULKHEAD_GUARD_PORT", "BULKHEAD_GUARD_LOGIN", "BULKHEAD_GUARD_HOSTS"
OPEN = {"/health", "/api/health", "/login"}  # answered without a password, to this host alone
NAMES = ("127.0.0.1", "localhost", "[::1]")
KEEP_SECONDS = 30 * 86400
# The address that `bulkhead up` prints has the password after #, which a browser never sends.
# Prefect's page reads it where its login form stores it; MLflow gets a cookie.
PAGE = """<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>Bulkhead</title>
<body style="font: 16px sans-serif; margin: 4em auto; max-width: 34em">
<h1>Log in</h1><p id="said">…</p>
<form id="form" hidden><input id="key" size="40" autocomplete="off" aria-label="user:password"> <button>Log in</button></form>
<script>
const said = document.getElementById("said"), form = document.getElementById("form");
async function login(key) {
  const token = btoa(key);
  const answer = await fetch("/login", {method: "POST", headers: {Authorization: "Basic " + token}});
  if (!answer.ok) { ask("The password is another one. It is in keys/servers of the Bulkhead home."); return; }
  localStorage.setItem("prefect-password", token);
  location.replace("/");
}
function ask(words) {
  said.textContent = words; form.hidden = false;
  form.onsubmit = event => { event.preventDefault(); login(document.getElementById("key").value.trim()); };
}
const key = decodeURIComponent(location.hash.slice(1));
history.replaceState(null, "", "/login");
if (key) login(key); else ask("Paste user:password; it is in keys/servers of the Bulkhead home.");
</script>
"""  # noqa: E501


class Guard:
    """An ASGI application that guards another.

    Args:
        app: the guarded application.
        port: port that it listens on; hosts and origins with another port or name are refused.
        login: `user:password`.
        asks: the guard checks the password; False if the application does.
    """

    def __init__(self, app: App, port: int, login: str, asks: bool) -> None:
        self.app, self.asks, self.login = app, asks, login.encode()
        self.hosts = {f"{name}:{port}" for name in NAMES} | set(
            filter(None, os.environ.get(HOSTS, "").split(","))
        )
        self.origins = {f"http://{host}" for host in self.hosts}
        self.cookie = f"bulkhead-{port}"
        self.token = hmac.new(self.login, b"cookie", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):  # lifespan
            await self.app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        if headers.get("host", "") not in self.hosts:
            await _answer(scope, send, 403, "this server answers to its own address alone\n")
        elif "origin" in headers and headers["origin"] not in self.origins:
            await _answer(scope, send, 403, "pages of other origins may not use this server\n")
        elif scope["type"] == "http" and scope["path"] == "/login":
            await self._log_in(scope, headers, send)
        elif not self.asks or scope["path"] in OPEN or self._knows(headers):
            await self.app(scope, receive, _unframed(send))
        elif scope["type"] == "http" and "text/html" in headers.get("accept", ""):
            await _answer(scope, send, 303, "", {"location": "/login"})
        else:
            words = (
                "a password is needed: MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
                " (keys/servers of the Bulkhead home)\n"
            )
            await _answer(scope, send, 401, words, {"www-authenticate": 'Basic realm="bulkhead"'})

    def _knows(self, headers: dict[str, str]) -> bool:
        """Return True if the request has the password, or the cookie of a login."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            try:
                return hmac.compare_digest(base64.b64decode(given, validate=True), self.login)
            except ValueError:
                return False
        cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        return cookie is not None and hmac.compare_digest(
            cookie.value.encode(), self.token.encode()
        )

    async def _log_in(self, scope: Scope, headers: dict[str, str], send: Send) -> None:
        if scope["method"] != "POST":
            policy = {
                "content-security-policy": (
                    "default-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline';"
                    " frame-ancestors 'none'"
                )
            }
            await _answer(
                scope,
                send,
                200,
                PAGE,
                {"content-type": "text/html; charset=utf-8", "cache-control": "no-store"} | policy,
            )
        elif self._knows({"authorization": headers.get("authorization", "")}):
            cookie = (
                f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict;"
                f" Max-Age={KEEP_SECONDS}"
            )
            await _answer(scope, send, 204, "", {"set-cookie": cookie})
        else:
            await _answer(scope, send, 403, "another password\n")


async def _answer(
    scope: Scope, send: Send, status: int, text: str, headers: dict[str, str] | None = None
) -> None:
    """Answer a request, or refuse a websocket."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    found = {"content-type": "text/plain; charset=utf-8", **(headers or {})}
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(k.encode(), v.encode()) for k, v in found.items()],
        }
    )
    await send({"type": "http.response.body", "body": text.encode()})


def _unframed(send: Send) -> Send:
    """Return a sender that forbids other pages to show the answers in frames."""

    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {
                **message,
                "headers": [
                    *message.get("headers", ()),
                    (b"content-security-policy", b"frame-ancestors 'self'"),
                ],
            }
        await send(message)

    return sent


def mlflow_app() -> Any:
    """Return MLflow's application behind the guard, which checks the password."""
    from mlflow.server.fastapi_app import app

    return Guard(app, int(os.environ[PORT]), os.environ[LOGIN], asks=True)


def serve_prefect(port: int) -> None:
    """Serve Prefect's API and UI on loopback until the process is asked to stop."""
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    settings = get_current_settings().server.api
    guarded = Guard(create_app(final=True), port, os.environ[LOGIN], asks=False)
    uvicorn.run(
        guarded,
        host="127.0.0.1",
        port=port,
        timeout_keep_alive=settings.keepalive_timeout,
        ws_ping_interval=settings.websocket_ping_interval,
        ws_ping_timeout=settings.websocket_ping_timeout,
        log_level="warning",
    )


if __name__ == "__main__":
    serve_prefect(int(sys.argv[1]))
