"""Figures of number columns: those of NumPy are those of the engine."""

from __future__ import annotations

import math

import pytest

from training.data.draft import profile
from training.data.draft.profile import SAMPLE, describe_sample
from training.data.engine.engine import connect

VALUES = {
    "DOUBLE": ["1.5", "1.5", "'nan'", "'nan'", "null", "-2"],
    "FLOAT": ["'inf'", "0.0", "-0.0", "3", "null", "3"],
    "BIGINT": ["9007199254740993", "9007199254740992", "0", "0", "null", "-1"],
    "UBIGINT": ["18446744073709551615", "1", "1", "null", "null", "0"],
    "TINYINT": ["1", "2", "3", "4", "5", "6"],
    "INTEGER": ["null"] * 6,
    "HUGEINT": ["1", "1", "null", "2", "3", "3"],
    "VARCHAR": ["'a'", "'a'", "'b'", "null", "''", "'c'"],
    "BOOLEAN": ["true", "false", "null", "null", "true", "true"],
}


@pytest.mark.parametrize("constant", ["2.0", "0.5", "'nan'", "null"])
def test_figures_of_a_wide_sample_are_those_of_the_engine(
    constant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for wide in (1, 1000):
        monkeypatch.setattr(profile, "WIDE", wide)
        with connect() as connection:
            lines = " union all ".join(
                "(select "
                + ", ".join(f"cast({v[i]} as {kind}) as c_{kind}" for kind, v in VALUES.items())
                + f", cast({constant} as double) as c)"
                for i in range(6)
            )
            connection.execute(f"create temp table given as {lines}")
            columns, total = describe_sample(connection, "given")
            assert total == 6 and connection.sql(f"from {SAMPLE}").columns[-1] == "c"
        found.append(columns)
    quick, slow = ([[_known(v) for v in column] for column in columns] for columns in found)
    assert quick == slow


def _known(value: object) -> object:
    """Return the value; NaN, which differs from itself, as a text."""
    return "nan" if isinstance(value, float) and math.isnan(value) else value
