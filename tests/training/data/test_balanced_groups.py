"""`split.balance`: few groups fall as declared, no group ever moves, and a hash stays as it was."""

from __future__ import annotations

import doctest
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config import SPLITS
from tests.training.data.chain import declared, sides_of, split_of, write_table
from training.data.leakage.sizes import few_at_once
from training.data.split import balanced_groups
from training.data.split.balanced_groups import assign

COLUMNS: dict[str, Any] = {"id": "id", "who": "group", "y": "label", "x": "numeric"}
SHARES = (0.7, 0.15, 0.15)
SEED = 1  # a hash gives three of twenty groups to test


def table_of(groups: int, seed: int = 0, first: int = 0, rows: int = 6) -> dict[str, list[Any]]:
    """Rows of groups of different size."""
    draw = random.Random(seed)
    who = [f"g{g}" for g in range(first, first + groups) for _ in range(draw.randint(1, 2 * rows))]
    return {
        "id": [f"{seed}-{i}" for i in range(len(who))],
        "who": who,
        "y": [i % 2 for i in range(len(who))],
        "x": [draw.random() for _ in who],
    }


def groups_of(
    folder: Path, table: dict[str, list[Any]], ledger: Path | None = None, **split: Any
) -> tuple[dict[str, str], Any, Any]:
    """Return the side of each group, the split and its declaration."""
    declaration = declared(
        write_table(folder / "t.parquet", table),
        COLUMNS,
        split={"kind": "group", "balance": True, **split},
    )
    _, made = split_of(declaration, folder / "out", ledger)
    return sides_of(made, "__group"), made, declaration


def joined(*tables: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: [v for t in tables for v in t[name]] for name in tables[0]}


def numbers(sides: dict[str, str]) -> list[int]:
    return [list(sides.values()).count(side) for side in SPLITS]


def most_off(sides: dict[str, str]) -> float:
    """Return by how many groups a side misses its share, at most."""
    due = [share * len(sides) for share in SHARES]
    return max(abs(n - d) for n, d in zip(numbers(sides), due, strict=True))


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 50), min_size=20, max_size=300), seed=st.integers(0, 1000))
def test_each_side_has_its_share_of_groups_and_of_rows(sizes: list[int], seed: int) -> None:
    sizes.sort(key=lambda n: -np.floor(np.log2(n)))
    found = np.array(assign(sizes, [(0, 0)] * 3, SHARES))
    for side, share in enumerate(SHARES):
        mine = np.array(sizes)[found == side]
        assert abs(len(mine) - share * len(sizes)) <= 3
        assert abs(mine.sum() - share * sum(sizes)) <= 1.5 * max(sizes)


def test_forty_two_groups_give_six_to_test_whatever_the_seed(tmp_path: Path) -> None:
    for seed in (0, 7):
        sides, made, declaration = groups_of(tmp_path / str(seed), table_of(42), seed=seed)
        assert all(
            abs(n - 42 * share) <= 1.5 for n, share in zip(numbers(sides), SHARES, strict=True)
        )
        assert made.ledger is not None and "frozen in the ledger" in made.plan["balanced"]
        assert few_at_once(made, declaration) == ""


def test_no_group_moves_when_others_arrive_and_shares_stay(tmp_path: Path) -> None:
    ledger, table = tmp_path / "ledger", table_of(30)
    before, *_ = groups_of(tmp_path / "0", table, ledger)
    lines = ledger.read_bytes()
    again, *_ = groups_of(tmp_path / "again", table, ledger)
    assert again == before and ledger.read_bytes() == lines
    for turn in (1, 2):
        table = joined(table_of(9, turn, 30 + 9 * (turn - 1)), table)
        sides, *_ = groups_of(tmp_path / str(turn), table, ledger)
        assert {group: sides[group] for group in before} == before
        assert all(
            abs(n - len(sides) * s) <= 2 for n, s in zip(numbers(sides), SHARES, strict=True)
        )
        before = sides
    fewer = {n: v[: len(v) // 2] for n, v in table.items()}
    sides, *_ = groups_of(tmp_path / "fewer", fewer, ledger)
    assert sides == {group: before[group] for group in sides}


@pytest.mark.long
def test_the_order_of_rows_decides_nothing(tmp_path: Path) -> None:
    table = table_of(25)
    order = random.Random(5).sample(range(len(table["id"])), len(table["id"]))
    turned = {n: [v[i] for i in order] for n, v in table.items()}
    assert groups_of(tmp_path / "a", table)[0] == groups_of(tmp_path / "b", turned)[0]


@pytest.mark.long
def test_groups_fixed_by_hand_count_and_are_not_written_down(tmp_path: Path) -> None:
    ledger, pins = tmp_path / "ledger", {f"g{i}": "test" for i in range(4)}
    sides, *_ = groups_of(tmp_path / "0", table_of(40), ledger, pin=pins)
    assert all(sides[group] == "test" for group in pins)
    assert numbers(sides)[2] <= 8
    free, *_ = groups_of(tmp_path / "1", table_of(40), ledger)
    assert {g: s for g, s in free.items() if g not in pins} == {
        g: s for g, s in sides.items() if g not in pins
    }


@pytest.mark.long
def test_many_groups_fall_as_their_hash_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(60)
    monkeypatch.setattr(balanced_groups, "MOST_DEALT", 50)
    sides, *_ = groups_of(tmp_path / "a", table, tmp_path / "ledger")
    by_hash, made, _ = groups_of(tmp_path / "b", table, balance=False)
    assert sides == by_hash and made.ledger is None
    monkeypatch.undo()
    assert groups_of(tmp_path / "c", table, tmp_path / "ledger")[0] == sides


def test_too_few_groups_or_positives_are_told_from_the_split_alone(tmp_path: Path) -> None:
    sides, made, declaration = groups_of(tmp_path / "3", table_of(20), balance=False, seed=SEED)
    assert numbers(sides)[2] == 3
    assert few_at_once(made, declaration) == (
        "3 groups in test: no claim can be made, 5 are needed; split.balance: true gives test its"
        " share of few groups"
    )
    rare = table_of(300)
    rare["y"] = [int(i % 97 == 0) for i in range(len(rare["y"]))]
    _, made, declaration = groups_of(tmp_path / "rare", rare)
    positives = made.summary["test"]["label"]["counts"]["1"]
    told = few_at_once(made, declaration)
    assert (positives < 5) == (f"{positives} row" in told and "no claim can be made" in told)


def test_the_doctest_deals_forty_two_groups() -> None:
    assert doctest.testmod(balanced_groups).failed == 0
