"""The page of `bulkhead look` in a real browser: it fits wide and narrow windows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.browser import browser
from tests.training.data.test_look import people
from training.data.look.look import look
from training.report.look_page import write_look


@pytest.mark.long
def test_the_page_fits_windows_of_two_widths(tmp_path: Path) -> None:
    """Save a picture in BULKHEAD_SCREENSHOTS, else next to the test's other files."""
    people(3000).to_csv(tmp_path / "visits.csv", index=False)
    write_look(look(str(tmp_path / "visits.csv"), "died"), tmp_path / "look.html")
    folder = Path(os.environ.get("BULKHEAD_SCREENSHOTS", str(tmp_path))).absolute()
    with browser() as page:
        for width in (800, 1440):
            page.send(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=1000,
                deviceScaleFactor=1,
                mobile=False,
            )
            page.open((tmp_path / "look.html").as_uri())
            page.until("document.querySelectorAll('.card svg').length > 3", "small pictures")
            assert page.evaluate("document.documentElement.scrollWidth") == width
            page.picture((folder if width == 1440 else tmp_path) / "look.png")
    assert (folder / "look.png").stat().st_size > 10_000
