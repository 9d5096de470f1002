"""Check the rules against programs that together execute every line of them: each program's heading
names what is found in it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from training.review.engine import LOADED, chosen_rules, review_text

TEXT = (Path(__file__).resolve().parents[2] / "zoo" / "programs.txt").read_text(encoding="utf-8")
PROGRAMS = [
    (*head.split(), code)
    for head, _, code in (part.partition("\n") for part in TEXT.split("### ")[1:])
]


@pytest.mark.req("M5")
@pytest.mark.parametrize(
    ("rules", "name", "code"), PROGRAMS, ids=[f"{rules}-{name}" for rules, name, _ in PROGRAMS]
)
def test_a_program_is_found_by_the_rules_of_its_heading_alone(
    rules: str, name: str, code: str
) -> None:
    named = set() if rules == "sound" else set(rules.split(","))
    notes = {rule for id, rule in LOADED.items() if id in named and rule.severity == "note"}
    assert {f.rule for f in review_text(code, name, [*chosen_rules(), *notes])} == named


def test_every_program_has_a_rule_that_exists_and_many_are_sound() -> None:
    named = {rule for rules, *_ in PROGRAMS if rules != "sound" for rule in rules.split(",")}
    assert named <= set(LOADED) and len(named) >= 90
    assert sum(rules == "sound" for rules, *_ in PROGRAMS) >= 150
