"""M5: mistakes in reinforcement learning and in critics of made rows, in several wordings: each is found by the rule named, sound ones by none."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.review.engine import chosen_rules, review_text

TEXT = (Path(__file__).resolve().parents[2] / "zoo" / "rewards.txt").read_text(encoding="utf-8")
PROGRAMS = [(*head.split(), code) for head, _, code in (part.partition("\n") for part in TEXT.split("### ")[1:])]


@pytest.mark.req("M5")
@pytest.mark.parametrize(("rule", "name", "code"), PROGRAMS, ids=[f"{name}-{rule}" for rule, name, _ in PROGRAMS])
def test_a_wording_is_found_by_its_rule_or_is_sound(rule: str, name: str, code: str) -> None:
    found = {f.rule for f in review_text(code, name, chosen_rules())}
    assert found == (set() if rule == "sound" else {rule})
