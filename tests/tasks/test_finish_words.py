"""What a run says of intervals, for margins of every size and scale."""

from __future__ import annotations

import pytest

from schemas.calibration_records import Margin
from tasks.finish import margin_words


@pytest.mark.parametrize(
    ("scale", "margin", "words"),
    [
        ("value", 0.25, "within 0.25 of the prediction"),
        ("value", 125_000.0, "within 1.25e+05 of the prediction"),
        ("value", 1e300, "within 1e+300 of the prediction"),
        ("log", 0.6931471805599453, "within a factor of 2 of the prediction"),
        ("log1p", 0.6931471805599453, "within a factor of 2 of the prediction (plus one)"),
        ("log", 2_000.0, "within a factor of any size of the prediction"),
        ("probability", 0.9, "among the classes of probability 0.1 or more"),
    ],
)
def test_a_margin_of_any_size_has_words(scale: str, margin: float, words: str) -> None:
    found = Margin(label="price", coverage=0.9, scale=scale, margin=margin, rows=400)
    assert margin_words(found) == f"price: {words} in 90% of new rows (400 of validation)"


def test_too_few_rows_have_no_bounds() -> None:
    found = Margin(label="price", coverage=0.9, scale="value", margin=None, rows=4)
    assert "4 rows of validation are too few" in margin_words(found)
