"""Headless Chromium driven over its own DevTools protocol: open, click, type, take a picture."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

WIDTH, HEIGHT = 1440, 1000
WAIT_SECONDS = 60.0


class Browser:
    """One page."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket, self.number = socket, 0
        for domain in ("Page", "Runtime"):
            self.send(f"{domain}.enable")
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=WIDTH,
            height=HEIGHT,
            deviceScaleFactor=1,
            mobile=False,
        )

    def send(self, method: str, **parameters: Any) -> Any:
        """Send one command and return its result."""
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self.socket.recv(timeout=WAIT_SECONDS))
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def evaluate(self, code: str) -> Any:
        """Return the value of an expression in the page."""
        return self.send(
            "Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True
        )["result"].get("value")

    def open(self, url: str) -> None:
        """Navigate to an address."""
        self.send("Page.navigate", url=url)

    def until(self, code: str, what: str) -> Any:
        """Wait until an expression is true and return its value."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            found = self.evaluate(code)
            if found:
                return found
            time.sleep(0.2)
        raise AssertionError(
            f"not in the page: {what}; it shows: {self.evaluate('document.body.innerText')[:1500]}"
        )

    def click(self, text: str, selector: str = "button, a, [role=menuitem]") -> None:
        """Click the middle of the first visible element that matches and has the given text, with a
        real mouse event.
        """
        find = f"""[...document.querySelectorAll({json.dumps(selector)})].filter(e => e.innerText.trim() === {json.dumps(text)} && e.offsetParent !== null)[0]"""  # noqa: E501
        place = (
            f"(() => {{ const e = {find}; if (!e) return null; e.scrollIntoView({{block:"
            " 'center'}); const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y +"
            " r.height / 2]; })()"
        )
        self._press(*self.until(place, f"{selector} {text!r}"))

    def reach(
        self, text: str, code: str, what: str, selector: str = "button, a, [role=tab]"
    ) -> None:
        """Click as `click` does until an expression is true: a page that is still being drawn
        moves, and loses a click.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while not self.evaluate(code):
            if time.monotonic() > deadline:
                self.until(code, what)
            self.click(text, selector)
            time.sleep(2.0)

    def focus(self, selector: str, number: int = 0) -> None:
        """Click into a matching element, by default the first; number -1 is the last."""
        place = (
            "(() => { const e ="
            f" [...document.querySelectorAll({json.dumps(selector)})].at({number}); if (!e) return"
            " null; e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        self._press(*self.until(place, selector))

    def type(self, text: str, replace: bool = True) -> None:
        """Replace the text of the focused element by typing."""
        if replace:
            self.evaluate("document.activeElement.select && document.activeElement.select()")
        self.send("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """Return a screenshot as PNG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])
        )

    def _press(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


@contextmanager
def browser(*extra: str) -> Iterator[Browser]:
    """Open a fresh page, with options of Chromium; skip if there is no Chromium."""
    program = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if program is None:
        pytest.skip("Chromium is absent (apt-get install chromium)")
    folder = Path(tempfile.mkdtemp(prefix="bulkhead-browser-"))
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--remote-debugging-port=0",
    ]
    process = subprocess.Popen(
        [program, *options, *extra, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        active = folder / "DevToolsActivePort"
        deadline = time.monotonic() + WAIT_SECONDS
        while not (active.exists() and active.read_text().strip()) and time.monotonic() < deadline:
            time.sleep(0.1)
        port = active.read_text().splitlines()[0]
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/json/list", timeout=WAIT_SECONDS
        ) as answer:
            page = next(target for target in json.loads(answer.read()) if target["type"] == "page")
        with connect(
            page["webSocketDebuggerUrl"],
            max_size=None,
            open_timeout=WAIT_SECONDS,
            ping_interval=None,
        ) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(folder, ignore_errors=True)
