"""M5: sound code that comes as near to a mistake as sound code can (decision 0031): each stands under the rule that once told it, and nothing is told now."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.review.engine import chosen_rules, review_text

TEXT = (Path(__file__).resolve().parents[2] / "zoo" / "close_calls.txt").read_text(encoding="utf-8")
PROGRAMS = [(*head.split(), code) for head, _, code in (part.partition("\n") for part in TEXT.split("### ")[1:])]


@pytest.mark.req("M5")
@pytest.mark.parametrize(("rule", "name", "code"), PROGRAMS, ids=[f"{rule}-{name}" for rule, name, _ in PROGRAMS])
def test_sound_code_near_a_mistake_is_told_by_nothing(rule: str, name: str, code: str) -> None:
    assert review_text(code, name, chosen_rules()) == []


def test_there_are_many_of_many_rules() -> None:
    assert len(PROGRAMS) >= 300 and len({rule for rule, *_ in PROGRAMS}) >= 40
