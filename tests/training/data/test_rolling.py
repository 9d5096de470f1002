"""Cuts that move on with a growing table: windows at its end, no row back, and what people do."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import ConfigError, SplitError
from tests.training.data.chain import declared, read, sides_of
from tests.training.data.nights import COLUMNS, ROLL, Nights, joined, table
from training.data.split.ledger import copy_as_of
from training.data.split.rolling import window_end

ORDER = {"train": 0, "val": 1, "test": 2}
DAY = 86_400.0


@given(st.floats(-1e9, 1e9), st.floats(0.01, 1e7), st.floats(-1e6, 1e6))
def test_windows_end_on_the_grid_at_or_before_the_newest_row(
    newest: float, roll: float, anchor: float
) -> None:
    end = window_end(newest, roll, anchor)
    assert newest - roll * 1.000001 - 1e-3 <= end <= newest + 1e-3
    assert (end - anchor) / roll == pytest.approx(round((end - anchor) / roll), abs=1e-3)


def test_windows_lie_at_the_end_and_weeks_begin_on_monday(tmp_path: Path) -> None:
    rows = table(range(19_723, 19_823))  # days from 2024-01-01 on
    rows["__time"] = [DAY * day for day in rows["__time"]]
    way = {"kind": "time", "roll": "7d", "test": "14d", "val": "7d"}
    made = Nights(tmp_path, way, timestamps=True).split(rows)
    # the newest row is of Tuesday, 2024-04-09; the windows end on Monday, the 8th
    assert made.plan["cuts_text"]["test"].startswith("2024-03-25")
    assert made.plan["cuts_text"]["val"].startswith("2024-03-18")
    assert (made.val.rows, made.test.rows) == (7, 16)
    assert made.plan["newest_row"].startswith("2024-04-09")
    assert "they move on with the table and never back" in made.plan["cuts_from"]


def test_train_grows_and_no_row_goes_back(tmp_path: Path) -> None:
    nights, places, trained = Nights(tmp_path), dict[str, str](), list[int]()
    for newest in (60, 64, 69, 90, 91, 104):
        made = nights.split(table(range(newest)))
        for name, side in sides_of(made).items():
            assert ORDER[side] <= ORDER[places.setdefault(name, "test")], name
            places[name] = side
        trained.append(made.train.rows)
        assert 20 <= made.test.rows <= 27 and made.val.rows == 10
    assert trained == sorted(trained) and trained[-1] - trained[0] >= 40


def test_the_same_table_has_the_same_cuts_in_any_order_and_later(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    first = nights.split(table(range(80)))
    ledger = nights.ledger.read_bytes()
    again = nights.split(table(range(80)))
    assert [again.side(s).file.sha256 for s in ORDER] == [first.side(s).file.sha256 for s in ORDER]
    assert nights.ledger.read_bytes() == ledger
    order = random.Random(1).sample(range(80), 80)
    other = Nights(tmp_path / "other").split(table(order))
    assert sides_of(other) == sides_of(first) and other.plan["cuts"] == first.plan["cuts"]


def test_held_out_rows_do_not_reach_train(tmp_path: Path) -> None:
    rows = table(range(80))
    first = Nights(tmp_path / "a").split(rows)
    held_out = {*read(first.test)["__id"], *read(first.val)["__id"]}
    changed = [
        99.0 if name in held_out else x for name, x in zip(rows["__id"], rows["x"], strict=True)
    ]
    second = Nights(tmp_path / "b").split(rows | {"x": changed})
    assert second.train.file.sha256 == first.train.file.sha256
    assert second.test.file.sha256 != first.test.file.sha256


def test_late_rows_go_where_their_times_say_and_are_counted(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    before = nights.split(table(range(80)))
    late = table([3.5, 4.5, 52.5], "late")
    after = nights.split(joined(table(range(82)), late))
    sides = sides_of(after)
    assert (sides["late3.5"], sides["late52.5"]) == ("train", "val")
    (note,) = after.plan["notes"]
    assert note.startswith("late rows: 3 with times up to 79") and "2 where train was, 1" in note
    assert "notes" not in before.plan
    assert nights.roll(joined(table(range(83)), late)).notes == ()


def test_rows_that_are_gone_or_changed_are_told(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights.roll(table(range(80)))
    gone = nights.roll(table(range(3, 81)))
    assert gone.notes == ("3 rows with times up to 79.0 are gone (3 where train was)",)
    moved = table(range(3, 81))
    moved["__time"][0] = 3.25  # the row's time was corrected
    (note,) = nights.roll(moved).notes
    assert note.startswith("ids or time stamps of rows up to 80.0 were changed")


def test_a_table_that_moves_back_keeps_the_later_cuts(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights.split(table(range(80)))
    later = nights.split(table(range(90)))
    back = nights.split(table(range(80)))
    assert back.plan["cuts"] == later.plan["cuts"]
    assert back.plan["notes"][0].endswith("table's was of 89.0: the cuts do not move back")
    assert back.train.rows == later.train.rows and back.test.rows == later.test.rows - 10
    with pytest.raises(SplitError, match=r"test would be empty.*with split\.roll"):
        nights.split(table(range(60)))


def test_one_wrong_time_stamp_in_the_future_is_refused_and_moves_nothing(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights.roll(table(range(80)))
    ledger = nights.ledger.read_bytes()
    for wrong in ([5000], [5000, 5010, 5019], [102]):
        with pytest.raises(SplitError, match=r"got \d from .* on, .* more than split\.test"):
            nights.roll(joined(table(range(81)), table(wrong)))
    assert nights.ledger.read_bytes() == ledger
    assert nights.roll(table(range(84))).cuts == {"val": 47.0, "test": 57.0}
    # a pause that was: windows as long as it, until it lies before the windows
    longer = Nights(tmp_path, ROLL | {"test": 40, "val": 30})
    assert longer.roll(table([*range(84), *range(110, 120)])).cuts["test"] == 79.0
    assert nights.roll(table([*range(84), *range(110, 130)])).cuts["test"] == 106.0


def test_other_lengths_of_windows_move_no_cut_back(tmp_path: Path) -> None:
    first = Nights(tmp_path).roll(table(range(80)))
    longer = Nights(tmp_path, ROLL | {"test": 40, "val": 20}).roll(table(range(80)))
    assert longer.cuts == first.cuts
    shorter = Nights(tmp_path, ROLL | {"test": 9, "val": 5}).roll(table(range(80)))
    assert shorter.cuts["test"] > first.cuts["test"]


def test_the_embargo_is_kept_while_windows_move(tmp_path: Path) -> None:
    nights = Nights(tmp_path, ROLL | {"embargo": 3})
    for newest in (80, 88):
        made = nights.split(table(range(newest)))
        times = {s: read(made.side(s))["__time"] for s in ORDER}
        assert max(times["train"]) + 3 < min(times["val"])
        assert max(times["val"]) + 3 < min(times["test"])
        assert made.excluded == {"embargo": 6}


def test_a_group_in_test_never_trains_and_its_rows_leave(tmp_path: Path) -> None:
    shares = {"train": 0.4, "val": 0.3, "test": 0.3}
    nights = Nights(tmp_path, ROLL | {"kind": "group_time", "group_fractions": shares})
    sides, trained = dict[str, str](), list[int]()
    for newest in (80, 100, 120):
        rows = joined(*(table([day + k / 8 for k in range(8)]) for day in range(newest)))
        rows["y"] = [i % 2 for i in range(len(rows["y"]))]
        rows["__group"] = [f"g{i % 24}" for i in range(len(rows["y"]))]
        made = nights.split(rows)
        for group, side in sides_of(made, "__group").items():
            assert sides.setdefault(group, side) == side
        trained.append(made.train.rows)
        assert made.excluded["group_time"] > 0
    assert trained == sorted(trained) and trained[-1] > trained[0]


def test_bounded_memory_gives_the_same_sides(tmp_path: Path) -> None:
    made = Nights(tmp_path, data={"memory_limit": "400MB"}).split(table(range(80)))
    assert made.plan["cuts"] == {"val": 47.0, "test": 57.0}
    assert (made.train.rows, made.val.rows, made.test.rows) == (47, 10, 23)


@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(1, 15), min_size=2, max_size=4), st.integers(1, 30))
def test_cuts_only_move_forward(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], roll: int
) -> None:
    nights = Nights(tmp_path_factory.mktemp("n"), ROLL | {"roll": roll})
    newest, before = 90, {"val": 0.0, "test": 0.0}
    for step in steps:
        newest += step
        cuts = nights.roll(table(range(newest))).cuts
        assert cuts["val"] >= before["val"] and cuts["test"] >= before["test"]
        assert cuts["test"] <= newest - 20 and cuts["val"] <= cuts["test"] - 10
        before = cuts


@pytest.mark.parametrize(
    ("split", "sections", "message"),
    [
        ({"roll": "7d"}, {}, "test and val not given"),
        ({"test": "7d"}, {}, "test is a window of roll"),
        (ROLL | {"fractions": {"train": 0.8, "val": 0.1, "test": 0.1}}, {}, "remove cuts and frac"),
        (ROLL | {"cuts": {"val": 1, "test": 2}}, {}, "remove cuts and fractions"),
        (ROLL | {"embargo": 10}, {}, "covers the whole val window"),
        (ROLL | {"roll": 0}, {}, "roll: expected a length above 0"),
        (ROLL | {"test": "60d"}, {}, "all have a unit, or none of them"),
        (ROLL, {"cv": {"folds": 3}}, "the folds of a table are frozen"),
        ({}, {"register": {"fresh_rows": 50}}, "fresh_rows counts rows that came since"),
    ],
)
def test_what_cannot_be_is_refused_at_the_declaration(
    split: dict[str, Any], sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        declared("a.parquet", COLUMNS, split={"kind": "time", **split}, **sections)


def test_declarations_without_roll_keep_their_digest_and_their_ledger(tmp_path: Path) -> None:
    nights = Nights(tmp_path, {"kind": "time"})
    assert not {"roll", "test", "val"} & set(nights.declaration.split.model_dump(mode="json"))
    assert "fresh_rows" not in nights.declaration.register_.model_dump(mode="json")
    made = nights.split(table(range(100)))
    assert made.plan["cuts"] == {"val": 70.0, "test": 85.0} and made.train.rows == 70
    assert "later rows never train" in made.plan["cuts_from"]
    assert nights.split(table(range(200))).train.rows == 70


def test_a_reproduction_makes_the_cuts_of_then_from_the_ledger_of_then(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    then = nights.split(table(range(80)))
    assert then.ledger is not None
    nights.roll(table(range(90)))
    moved_on = nights.split(table(range(80)))
    assert moved_on.plan["cuts"] != then.plan["cuts"]
    again = Nights(tmp_path / "again")
    assert copy_as_of(nights.ledger, then.ledger.sha256, again.ledger)
    made = again.split(table(range(80)))
    assert [made.side(s).file.sha256 for s in ORDER] == [then.side(s).file.sha256 for s in ORDER]
    assert made.ledger is not None and made.ledger.sha256 == then.ledger.sha256
