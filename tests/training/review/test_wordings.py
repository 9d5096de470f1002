"""M5: mistakes in wordings that their rules were not written after (decision 0024): each is found by the rule named, sound ones by none."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.review.engine import chosen_rules, review_text

TEXT = (Path(__file__).resolve().parents[2] / "zoo" / "wordings.txt").read_text(encoding="utf-8")
PROGRAMS = [(*head.split(), code) for head, _, code in (part.partition("\n") for part in TEXT.split("### ")[1:])]


@pytest.mark.req("M5")
@pytest.mark.parametrize(("rule", "name", "code"), PROGRAMS, ids=[f"{name}-{rule}" for rule, name, _ in PROGRAMS])
def test_a_wording_is_found_by_its_rule_or_is_sound(rule: str, name: str, code: str) -> None:
    found = {f.rule for f in review_text(code, name, chosen_rules())}
    if rule not in ("sound", "missed"):
        assert rule in found
    else:
        assert found == set(), "no longer missed: name its rule here" if rule == "missed" else "a false alarm"


def test_most_wordings_are_found() -> None:
    faulty = [rule for rule, *_ in PROGRAMS if rule != "sound"]
    assert len(faulty) >= 140 and len(PROGRAMS) - len(faulty) >= 25
    assert faulty.count("missed") <= 0.06 * len(faulty)
