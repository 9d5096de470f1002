"""Categories that are numbers in another spelling are named, with an expression that reads them;
and decimal commas can be declared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml

from tests.training.data.chain import declared, read, validated_of, write_table
from tests.training.data.test_draft import reason
from training.data.draft.draft import draft

pytestmark = pytest.mark.req("D2")
VALUES = np.random.default_rng(0).normal(size=60) * 3000
ROLES = {"id": "id", "y": "label", "*": "feature"}
SPELLINGS: dict[str, Callable[[float], str]] = {
    "decimal": lambda v: f"{v:.2f}".replace(".", ","),
    "points": lambda v: f"{v:,.2f}".translate(str.maketrans(",.", ".,")),
    "spaces": lambda v: f"{v:,.2f}".translate(str.maketrans(",.", " ,")),
    "thousands": lambda v: f"{v:,.2f}",
    "dollar": lambda v: f"{'-' if v < 0 else ''}${abs(v):,.2f}",
    "code": lambda v: f"USD {v:.2f}",
    "euro": lambda v: f"{v:,.2f} €".translate(str.maketrans(",.", ".,")),
    "cent": lambda v: f"{v:.2f}%",
    "cent_comma": lambda v: f"{v:.2f} %".replace(".", ","),
}


def table(texts: list[str | None]) -> dict[str, list[object]]:
    return {
        "id": list(range(len(texts))),
        "price": list(texts),
        "a": [i % 7 / 2 for i in range(len(texts))],
        "y": [i % 2 for i in range(len(texts))],
    }


def derived(note: str) -> tuple[str, str]:
    """Name and expression that a note gives as YAML."""
    tree = yaml.safe_load(re.search(r"declare data\.(derive: .*) and set", note)[1])
    return next(iter(tree["derive"].items()))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_spelling_is_named_and_its_remedy_reads_the_numbers(
    tmp_path: Path, spelling: str
) -> None:
    path = write_table(tmp_path / "t.parquet", table([None, *map(SPELLINGS[spelling], VALUES)]))
    (note,) = validated_of(declared(path, ROLES), tmp_path / "out").notes
    assert note.startswith("'price': '") and "looks like a number as people write it" in note
    assert "numbers as people write them, e.g." in reason(draft(str(path)), "price")
    columns = yaml.safe_load(note.split("declare data.")[1])["columns"]
    made = validated_of(declared(path, columns | ROLES), tmp_path / "declared")
    found = dict(zip(read(made.table)["__id"], read(made.table)["price"], strict=True))
    assert found["0"] is None
    assert all(
        math.isclose(found[str(i + 1)], round(v, 2), abs_tol=1e-9) for i, v in enumerate(VALUES)
    )


def test_a_computed_text_is_named_with_the_remedy_that_it_can_have(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.parquet", table([f"{v:.2f}%" for v in VALUES]))
    derive = {"share": "lower(price)"}
    roles = ROLES | {"price": "ignore"}
    (note,) = validated_of(declared(path, roles, data={"derive": derive}), tmp_path / "out").notes
    assert note.endswith("make a number of it in data.derive")


@pytest.mark.parametrize(
    "form", ["%d.%m.%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %I:%M %p", "%Y/%m/%d %H:%M"]
)
def test_a_time_as_text_is_named_and_its_remedy_reads_it(tmp_path: Path, form: str) -> None:
    moments = pd.date_range("2024-01-28 05:07", periods=60, freq="9h")
    path = write_table(tmp_path / "t.parquet", table([m.strftime(form) for m in moments]))
    notes = validated_of(declared(path, ROLES), tmp_path / "out").notes
    assert "looks like dates with a time" in notes[0]
    name, expression = derived(notes[0])
    made = read(
        validated_of(
            declared(path, ROLES | {"price": "ignore"}, data={"derive": {name: expression}}),
            tmp_path / "derived",
        ).table
    )
    assert sorted(made[name]) == [m.replace(second=0).timestamp() for m in moments]


def test_texts_that_hardly_repeat_are_named_and_categories_are_not(tmp_path: Path) -> None:
    path = write_table(
        tmp_path / "t.parquet",
        table([f"note {i}" for i in range(60)])
        | {
            "ward": ["n", "s"] * 30,
            "share": ["10%", "20%", "30%"] * 20,
        },
    )
    notes = validated_of(declared(path, ROLES), tmp_path / "out").notes
    assert notes == (
        (
            "'price': a category with 60 values in 60 rows, e.g. 'note 0': hardly any repeats, so"
            " nothing is learnt of it; ignore it, or derive from it"
        ),
    )
    codes = write_table(tmp_path / "codes.parquet", table([f"{i // 3:03d}" for i in range(60)]))
    assert not validated_of(declared(codes, ROLES), tmp_path / "codes").notes


@pytest.mark.parametrize("gap", [";", "\t"])
def test_a_declared_decimal_comma_gives_the_numbers(tmp_path: Path, gap: str) -> None:
    frame = pd.DataFrame(
        {
            "id": range(60),
            "a": VALUES,
            "n": range(60),
            "odd": [f"1.{i}" for i in range(60)],
            "y": [i % 2 for i in range(60)],
        }
    )
    frame.assign(at="2024-01-31 10:00:00.5", empty=None).to_csv(
        tmp_path / "t.csv", sep=gap, decimal=",", index=False
    )
    csv = {"delimiter": gap}
    told = validated_of(
        declared(
            tmp_path / "t.csv",
            ROLES | {"at": "ignore", "empty": "ignore", "odd": "ignore"},
            data={"csv": csv},
        ),
        tmp_path / "told",
    ).notes
    assert 'declare data.csv: {decimal: ","}' in told[0]
    roles = ROLES | {"at": "time", "empty": "ignore", "odd": "categorical"}
    made = validated_of(
        declared(tmp_path / "t.csv", roles, data={"csv": csv | {"decimal": ","}}), tmp_path / "out"
    )
    found = read(made.table)
    assert made.spec.numeric == ("a", "n") and made.spec.time_is_timestamp
    assert dict(zip(found["__id"], found["a"], strict=True)) == {
        str(i): v for i, v in enumerate(VALUES)
    }


def test_a_whole_table_of_numbers_says_nothing(tmp_path: Path) -> None:
    assert not validated_of(
        declared(
            write_table(
                tmp_path / "t.parquet",
                table([])
                | {k: pa.array([1.0, 2.0]) for k in ("id2", "price", "a")}
                | {"id": [1, 2], "y": [0, 1]},
            ),
            ROLES | {"id2": "ignore"},
        ),
        tmp_path / "out",
    ).notes
