"""The leak benchmark plants and scores as it says, and its page is written from figures."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.leaks import plants_duplicates, plants_roles
from benchmarks.leaks.__main__ import main
from benchmarks.leaks.cases import Case, Tables, planted_cases
from benchmarks.leaks.kinds import KINDS
from benchmarks.leaks.pipelines import CLEAN, LEAKY, accused
from benchmarks.leaks.run import Record
from benchmarks.leaks.score import alarms, score
from benchmarks.leaks.tools import Finding, Outcome


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Tables(None)


@pytest.mark.long
@pytest.mark.req("D6")
def test_every_kind_has_a_place_and_changes_the_rows(tables: Tables) -> None:
    cases = list(planted_cases(tables))
    assert {c.kind for c in cases} == {k.name for k in KINDS} - {"respelt_smiles"} and len(
        KINDS
    ) >= 26
    for case in {c.kind: c for c in cases}.values():
        planted, honest = tables.planted(case), tables.sides(case)
        assert planted is not None and honest is not None
        changed = not planted.sides.train.equals(honest.train) or not planted.sides.test.equals(
            honest.test
        )
        assert changed, case.kind
        assert all(c in planted.sides.train for c in planted.columns)


def test_planting_is_a_function_of_the_case(tables: Tables) -> None:
    case = Case("generated_people", "binary", "group", 0, "straddling_groups", 0.1)
    first, second = tables.planted(case), tables.planted(case)
    assert first is not None and second is not None and first.sides.test.equals(second.sides.test)
    shared = first.sides.test["person"].isin(first.sides.train["person"]).sum()
    assert shared == round(0.1 * len(first.sides.test))


def test_a_spelling_differs_from_the_key_and_rings_are_renumbered() -> None:
    for seed in range(12):
        spell = plants_roles.spelling(np.random.default_rng(seed))
        assert spell("K000123") != "K000123"  # type: ignore[operator]
    assert doctest.testmod(plants_duplicates).failed == 0


def test_a_hit_names_the_column_and_is_silent_on_the_honest_rows() -> None:
    case = Case("generated_rows", "binary", "random", 0, "label_copy", 0.01)
    columns = {case.name: ("v_17",)}

    def judged(
        finding: Finding, honest: tuple[Finding, ...] = ()
    ) -> tuple[float | None, float | None]:
        records = [
            Record("bulkhead", case, Outcome((finding,), 1.0)),
            Record("bulkhead", case.honest, Outcome(honest, 1.0)),
        ]
        found = score("bulkhead", records, columns)
        return found.recall, found.net

    assert judged(Finding("label_proxy", "fail", ("v_17",))) == (1, 1)
    assert judged(Finding("label_proxy", "fail", ("height",))) == (0, 0)
    assert judged(Finding("shift", "warn", ("v_17",))) == (0, 0)
    assert judged(
        Finding("label_proxy", "fail", ("v_17",)), (Finding("label_proxy", "warn", ("height",)),)
    ) == (1, 0)
    assert alarms(
        "bulkhead", [Record("bulkhead", case.honest, Outcome((Finding("shift", "warn"),), 1.0))]
    ) == [("shift", "warn", 1, ("generated_rows",))]


@pytest.mark.req("D7")
def test_the_poison_test_tells_leaky_fits_from_clean_ones() -> None:
    assert len(LEAKY) >= 15
    assert [name for name, fit in LEAKY.items() if not accused(fit)] == []
    assert [name for name, fit in CLEAN.items() if accused(fit)] == []


@pytest.mark.long
@pytest.mark.req("D6")
def test_the_quick_form_writes_the_page_with_figures(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    arguments = ["--quick", "--no-peers", "--cache", str(tmp_path / "cache"), "--output", str(page)]
    main(arguments)
    text = page.read_text()
    rows = re.findall(
        r"^\| Bulkhead, all but held out \| (\d+) \| ([0-9.]+) \| ([0-9.]+) .*$",
        text,
        flags=re.MULTILINE,
    )
    assert (
        len(rows) == 1 and int(rows[0][0]) >= 6 and 0 < float(rows[0][2]) <= float(rows[0][1]) <= 1
    )
    assert "## Speed" in text and re.search(r"\| 20 k \| numbers \| \d+\.\d+ s \|", text)
    assert "17 of 17 ways of fitting" in text and "clean rows" not in text
    kept = (tmp_path / "cache" / "results.jsonl").read_text()
    main(arguments)
    assert (tmp_path / "cache" / "results.jsonl").read_text() == kept  # nothing was measured again
