"""M5: sound programs of many kinds raise no alarm; every mistake planted in them is found and named
by its rule.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zoo.mutations import MUTATIONS, ZOO, Mutation
from training.review.engine import chosen_rules, python_files, review_file, review_text

ROOT = Path(__file__).resolve().parents[3]
SOUND = sorted([*(ZOO / "scripts").glob("*.py"), *(ZOO / "sound").glob("*.py")])
FAULTY = sorted((ZOO / "faulty").glob("*.py"))
OURS = [ROOT / name for name in ("training", "tasks", "flows", "schemas", "benchmarks", "examples")]


@pytest.mark.req("M5")
@pytest.mark.parametrize("path", SOUND, ids=lambda p: p.stem)
def test_a_sound_program_raises_no_alarm(path: Path) -> None:
    assert review_file(path, chosen_rules()) == []


@pytest.mark.req("M5")
@pytest.mark.parametrize(
    "mutation", MUTATIONS, ids=lambda m: f"{m.program.partition('/')[2]}-{m.rule}"
)
def test_a_planted_mistake_is_named_by_its_rule(mutation: Mutation) -> None:
    found = review_text(mutation.text, mutation.program, chosen_rules(strict=True))
    assert mutation.rule in {f.rule for f in found}, [f.message for f in found]
    assert all(f.message and f.line > 0 for f in found)


@pytest.mark.req("M5")
@pytest.mark.parametrize("path", FAULTY, ids=lambda p: p.stem)
def test_a_faulty_program_is_found_by_the_rule_in_its_name(path: Path) -> None:
    rule = path.stem.partition("_")[0]
    found = {f.rule for f in review_file(path, chosen_rules())}
    assert found == {rule}


def test_the_zoo_is_large_enough() -> None:
    assert len(MUTATIONS) + len(FAULTY) >= 185 and len(SOUND) >= 38
    assert {m.program.partition("/")[0] for m in MUTATIONS} == {"scripts", "sound"}


def test_this_repository_raises_no_alarm() -> None:
    rules = chosen_rules()
    assert [
        f for path in python_files(OURS) for f in review_file(path, rules) if not f.allowed
    ] == []
