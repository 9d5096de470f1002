"""docs/benchmarks.md is written section by section."""

from __future__ import annotations

from pathlib import Path

from benchmarks.page import HEAD, write_section


def test_a_section_is_replaced_in_its_place_and_the_others_stay(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    write_section("first", "## First\n\n1", page)
    write_section("second", "## Second\n\n2", page)
    write_section("first", "## First\n\nanew", page)
    write_section("first", "## First\n\nanew", page)
    expected = (
        "<!-- first: begin -->\n## First\n\nanew\n<!-- first: end -->\n\n<!-- second: begin -->\n##"
        " Second\n\n2\n<!-- second: end -->\n"
    )
    assert page.read_text() == f"{HEAD}\n{expected}"
