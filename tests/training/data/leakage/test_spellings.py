"""D6: canonical spellings, held against Python's own regular expressions, and aliases against a
comparison of all pairs.
"""

from __future__ import annotations

import random
import re
import unicodedata
from contextlib import closing
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.data.sides import numbers, spec_of, split_of
from tests.training.data.test_hard_checks import declared
from training.data.engine.engine import connect
from training.data.leakage import straddle
from training.data.leakage.aliases import Aliases, find_aliases
from training.data.leakage.sides import sides_of
from training.data.leakage.spellings import SPELLINGS, fold

KEYS = st.text(alphabet="0017aBK- ._é½Ｗ京\n", max_size=9)


def folded_by_python(text: str, steps: tuple[str, ...]) -> str:
    """One text, by the rule as it is written down."""
    text = "".join(
        c for c in unicodedata.normalize("NFKD", text) if unicodedata.category(c) != "Mn"
    )
    for step in steps:
        if step == "case":
            text = text.lower()
        elif step == "spaces":
            text = re.sub(r"[\t\n\f\r ]+", "", text)
        elif step == "punctuation":
            text = "".join(c for c in text if unicodedata.category(c)[0] in "LN")
        else:
            text = re.sub(r"(?:(?<=[^0-9])|^)0+([0-9])", r"\1", text)
    return text


@pytest.mark.req("D6")
@pytest.mark.parametrize("spelling", SPELLINGS)
@given(texts=st.lists(KEYS, max_size=20))
def test_texts_are_folded_as_the_rule_says(spelling: str, texts: list[str]) -> None:
    batch = pa.array(["skipped 007", *texts], pa.string()).slice(1)
    assert fold(batch, spelling).to_pylist() == [
        folded_by_python(t, SPELLINGS[spelling]) for t in texts
    ]


RESPELT = (
    str,
    str.upper,
    str.lower,
    lambda k: k.replace("-", " "),
    lambda k: k.replace("K0", "K"),
    lambda k: "Ｋ" + k[1:],
    lambda k: k.replace("7", "½"),
)


@pytest.mark.req("D6")
@pytest.mark.parametrize("rows_at_once", [30, 2**25])
@pytest.mark.parametrize("seed", range(8))
def test_aliases_are_those_of_a_comparison_of_all_pairs(
    tmp_path: Path, rows_at_once: int, seed: int
) -> None:
    draw = random.Random(seed)
    letters = "xyXY" if seed % 4 == 3 else "xy"  # with both, case tells the keys of train apart
    keys = [f"K{draw.randrange(300):03d}-{draw.choice(letters)}" for _ in range(150)]
    train = sorted({*keys[:100], *(draw.choice(RESPELT)(key) for key in keys[:1])})
    test = sorted({draw.choice(RESPELT)(key) for key in keys[90:]})
    found = aliases(tmp_path, rows_at_once, train, test)
    for name, steps in SPELLINGS.items():
        plain = {key: folded_by_python(key, steps) for key in (*train, *test)}
        if len(train) - len({plain[key] for key in train}) <= 0.02 * len(train):
            expected = {
                plain[a] for a, b in product(train, test) if plain[a] == plain[b] and a != b
            }
            assert found is not None
            assert (found.spelling, found.keys, found.train_keys) == (
                name,
                len(expected),
                len(train),
            )
            assert found.rows == sum(plain[key] in expected for key in (*train, *test))
            return
    assert found is None


def aliases(folder: Path, rows_at_once: int, train: list[str], test: list[str]) -> Aliases | None:
    """What `find_aliases` says of groups with these names."""

    def side(keys: list[str], name: str) -> dict[str, object]:
        count = len(keys)
        return {
            "__id": [f"{name}{i}" for i in range(count)],
            "__group": keys,
            "__time": numbers([0.0] * count),
            "x": numbers([1.0] * count),
            "y": [0] * count,
        }

    written = split_of(folder, side(train, "a"), side([], "b"), side(test, "c"))
    with closing(connect()) as connection, pytest.MonkeyPatch.context() as patch:
        patch.setattr(straddle, "ROWS_AT_ONCE", rows_at_once)
        return find_aliases(
            sides_of(connection, written, spec_of(numeric=("x",), group=("patient",)), declared()),
            "__group",
            len(set(train)),
        )
