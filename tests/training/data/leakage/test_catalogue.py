"""D6: the catalogue and the results never disagree, and the thresholds it names can be set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import training.data.leakage as leakage
from schemas.config import ChecksConfig
from tests.training.data.leakage.planted import honest_table, results_for, shares
from training.data.leakage.catalogue import CATALOGUE, explanation

FOLDER = Path(str(leakage.__file__)).parent
NAME = re.compile(r'name=f?"([a-z_{}]+)"')
# names that reach the result as an argument
PASSED_ON = {"pooled_scaling", "pooled_fill", "id_order", "row_order", "file_order"}


def names_in_code() -> set[str]:
    """Every name that a result is given in the sources of the checks."""
    text = "\n".join(path.read_text() for path in FOLDER.glob("*.py"))
    found = (
        set(NAME.findall("\n".join(re.findall(r"CheckResult\((?:[^()]|\([^()]*\))*", text))))
        | PASSED_ON
    )
    return {name.replace("{what}", what) for name in found for what in ("id", "group")}


@pytest.mark.req("D6")
def test_every_check_is_described_and_every_description_has_its_check() -> None:
    assert names_in_code() == set(CATALOGUE)


@pytest.mark.req("D6")
def test_results_have_names_that_the_catalogue_knows_and_thresholds_that_can_be_set() -> None:
    for result in results_for(shares(honest_table(hours=True, task="regression")), "regression"):
        assert explanation(result.name).title and result.summary
    assert {t for e in CATALOGUE.values() for t in e.thresholds} == set(
        ChecksConfig.model_fields
    ) - {"constant_features", "allow"}
    for entry in CATALOGUE.values():
        assert all(
            len(text) > 10
            for text in (
                entry.title,
                entry.looks_for,
                entry.statistic,
                entry.few_alarms,
                entry.cost,
                entry.inflates,
                entry.remedy,
            )
        )


@pytest.mark.req("D6")
def test_nothing_is_ever_called_clean() -> None:
    words = " ".join(" ".join(map(str, e)) for e in CATALOGUE.values())
    assert "clean" not in words.lower()
