"""M5: each rule finds what its own page calls wrong, and nothing else; what the page calls right is
found by none.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from training.review.engine import chosen_rules, review_text
from training.review.findings import PAGES, Rule, read_rule
from training.review.rules import KNOWN, LOADED, RUN_RULES

RULES = list(LOADED.values())


def with_default(rule: Rule) -> tuple[Rule, ...]:
    return tuple(dict.fromkeys([*chosen_rules(), rule]))


@pytest.mark.req("M5")
@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_wrong_code_of_the_page_is_found_by_its_rule_alone_and_right_code_by_none(
    rule: Rule,
) -> None:
    assert {f.rule for f in review_text(rule.bad, rules=with_default(rule))} == {rule.id}
    assert review_text(rule.good, rules=with_default(rule)) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_a_rule_says_what_goes_wrong_and_what_to_do(rule: Rule) -> None:
    assert (
        rule.id.startswith("BH")
        and rule.name == rule.name.lower()
        and rule.severity in ("error", "warning", "note")
    )
    assert all(
        len(text) > 10 for text in (rule.title, rule.why, rule.remedy, rule.check.__doc__ or "")
    )
    ast.parse(rule.bad), ast.parse(rule.good)
    assert rule.bad != rule.good


def test_names_differ_and_what_only_a_run_shows_begins_at_801() -> None:
    assert len({r.name for r in KNOWN.values()}) == len(KNOWN)
    assert {r.id < "BH800" for r in RULES} == {True} and {id > "BH800" for id in RUN_RULES} == {
        True
    }


def test_a_page_of_another_form_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (PAGES / "BH101.md").read_text(encoding="utf-8")
    monkeypatch.setattr("training.review.findings.PAGES", tmp_path)
    for planted in (
        text.replace("BH101", "BH102"),
        text.replace("Severity: error", "Severity: bad"),
        text.replace("```diff", "```python"),
    ):
        (tmp_path / "BH101.md").write_text(planted)
        with pytest.raises(ValueError, match=r"pages/BH101\.md"):
            read_rule("BH101", LOADED["BH101"].check)
    (tmp_path / "BH101.md").write_text(text)
    assert read_rule("BH101", LOADED["BH101"].check) == LOADED["BH101"]


def test_notes_are_told_only_when_they_are_asked_for() -> None:
    note = LOADED["BH704"]
    assert (
        note not in chosen_rules()
        and note in chosen_rules(strict=True)
        and note in chosen_rules(select=["BH704"])
    )
    assert note not in chosen_rules(strict=True, ignore=["BH7"])
