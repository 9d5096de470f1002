"""A length of time keeps its unit: the same rows are left out, whatever the time column counts."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from schemas.config import SPLITS
from schemas.duration import SECONDS
from schemas.errors import ConfigError, SchemaError
from schemas.records import SplitTables, ValidatedTable
from tests.training.data.chain import declared, read, split_of, write_table
from training.data.leakage import check_overlap, require_passed
from training.data.leakage.fold_checks import check_intervals
from training.data.split.folds import make_fold

ROWS = 400
BEGIN = dt.datetime(2024, 1, 1)
STEP = dt.timedelta(hours=6)
WEEK = 28  # rows of seven days at four a day
THIRDS = {"train": 0.4, "val": 0.3, "test": 0.3}
UNITS = ("us", "ms", "s", "min", "h", "d")


def table_of(unit: str | None) -> dict[str, Any]:
    """Six-hourly rows; the time as timestamps (None) or as numbers since the epoch in a unit."""
    moments = [BEGIN + i * STEP for i in range(ROWS)]
    seconds = [(m - dt.datetime(1970, 1, 1)).total_seconds() for m in moments]
    times = moments if unit is None else [s / SECONDS[unit] for s in seconds]
    later = (
        [t + dt.timedelta(days=2) for t in moments]
        if unit is None
        else [s + 2 * 86400 for s in seconds]
    )
    return {
        "id": list(range(ROWS)),
        "who": [f"g{i % 97}" for i in range(ROWS)],
        "at": pa.array(times),
        "known": pa.array(later),  # as numbers: seconds, whatever `at` counts
        "y": [i % 2 for i in range(ROWS)],
        "x": [float(i) for i in range(ROWS)],
    }


def halves(
    folder: Path, unit: str | None, split: dict[str, Any], known: bool = False, **cv: Any
) -> tuple[ValidatedTable, SplitTables, Any]:
    at = {"role": "time"} if unit is None else {"role": "time", "unit": unit}
    who = "group" if split["kind"] == "group_time" else "ignore"
    columns: dict[str, Any] = {
        "id": "id",
        "who": who,
        "at": at,
        "known": "ignore",
        "y": "label",
        "x": "numeric",
    }
    if known:
        columns["known"] = (
            {"role": "label_time"} if unit is None else {"role": "label_time", "unit": "s"}
        )
    declaration = declared(
        write_table(folder / "t.parquet", table_of(unit)), columns, "binary", split, cv=cv
    )
    return *split_of(declaration, folder / "out"), declaration


def ids(sides: SplitTables) -> dict[str, set[str]]:
    return {side: set(read(sides.side(side))["__id"]) for side in SPLITS}


@pytest.mark.req("D3")
@pytest.mark.parametrize(
    "split",
    [
        {"kind": "time", "embargo": "7d"},
        {"kind": "group_time", "embargo": "1w", "group_fractions": THIRDS},
    ],
    ids=["time", "group_time"],
)
@pytest.mark.parametrize("unit", UNITS)
def test_an_embargo_leaves_out_the_same_rows_in_every_unit(
    tmp_path: Path, unit: str, split: dict[str, Any]
) -> None:
    validated, sides, declaration = halves(tmp_path / "number", unit, split)
    _, wanted, _ = halves(tmp_path / "timestamp", None, split)
    assert ids(sides) == ids(wanted) and sides.excluded == wanted.excluded
    if split["kind"] == "time":
        assert sides.excluded == {"embargo": 2 * WEEK}
    report = check_overlap(sides, validated, declaration)
    require_passed(report)
    assert f"{7 * 86400 / SECONDS[unit]:g} {unit} between them" in next(
        r.summary for r in report.results if r.name == "time_overlap"
    )


@pytest.mark.req("D3")
@pytest.mark.parametrize("unit", ["ms", "d"])
def test_labels_known_later_are_compared_in_one_unit(tmp_path: Path, unit: str) -> None:
    _, sides, _ = halves(tmp_path / "number", unit, {"kind": "time"}, known=True)
    _, wanted, _ = halves(tmp_path / "timestamp", None, {"kind": "time"}, known=True)
    assert ids(sides) == ids(wanted) and sides.excluded == wanted.excluded == {"label_interval": 16}


@pytest.mark.req("D3")
@pytest.mark.parametrize(
    "lengths",
    [{"embargo": "2d", "horizon": "36h"}, {"window": "20d", "horizon": "1d"}],
    ids=["embargo", "window"],
)
@pytest.mark.parametrize("unit", ["us", "h"])
def test_lengths_of_folds_keep_their_unit(
    tmp_path: Path, unit: str, lengths: dict[str, str]
) -> None:
    found = []
    for folder, kind in (("number", unit), ("timestamp", None)):
        validated, pool, declaration = halves(
            tmp_path / folder, kind, {"kind": "time"}, folds=3, **lengths
        )
        made = make_fold(
            validated, pool, declaration, 2, tmp_path / folder / "fold", tmp_path / folder / "folds"
        )
        require_passed(check_intervals(made, validated.spec, declaration))
        found.append((ids(made), made.excluded))
    assert found[0] == found[1] and set(found[0][1]) & {"embargo", "purged", "window"}


@pytest.mark.req("P1")
@pytest.mark.parametrize(
    ("setting", "split", "cv"),
    [
        ("split.embargo", {"kind": "time", "embargo": "7d"}, {}),
        ("split.embargo", {"kind": "group_time", "embargo": "36h"}, {}),
        ("cv.horizon", {"kind": "time"}, {"folds": 3, "horizon": "1d"}),
        ("cv.window", {"kind": "time"}, {"folds": 3, "window": "20d"}),
        ("cv.embargo", {"kind": "time"}, {"folds": 3, "embargo": "2d"}),
    ],
)
def test_a_length_with_a_unit_needs_the_unit_of_a_numeric_time(
    tmp_path: Path, setting: str, split: dict[str, Any], cv: dict[str, Any]
) -> None:
    columns = {
        "id": "id",
        "who": "group",
        "at": "time",
        "known": "ignore",
        "y": "label",
        "x": "numeric",
    }
    declaration = declared(
        write_table(tmp_path / "t.parquet", table_of("ms")), columns, "binary", split, cv=cv
    )
    with pytest.raises(
        SchemaError,
        match=rf"{setting}: \S+ has a unit, and column 'at' .* at: \{{role: time, unit: ms\}}",
    ):
        split_of(declaration, tmp_path / "out")


@pytest.mark.req("P1")
def test_a_plain_number_counts_what_a_numeric_time_counts_and_nothing_of_timestamps(
    tmp_path: Path,
) -> None:
    _, plain, _ = halves(tmp_path / "plain", "h", {"kind": "time", "embargo": 168})
    assert plain.excluded == {"embargo": 2 * WEEK}
    with pytest.raises(
        SchemaError,
        match=(
            r"split\.embargo: 7 has no unit, and column 'at' \(role time\) holds timestamps; give a"
            r" length such as 7d"
        ),
    ):
        halves(tmp_path / "timestamps", None, {"kind": "time", "embargo": 7})


@pytest.mark.req("P1")
def test_units_are_refused_where_they_cannot_hold(tmp_path: Path) -> None:
    source = write_table(tmp_path / "t.parquet", table_of(None))
    base = {"id": "id", "who": "ignore", "known": "ignore", "y": "label", "x": "numeric"}
    with pytest.raises(
        SchemaError,
        match="column 'at': unit is for a time of plain numbers, and this one holds timestamps",
    ):
        split_of(
            declared(source, {**base, "at": {"role": "time", "unit": "ms"}}, split="time"),
            tmp_path / "a",
        )
    with pytest.raises(ConfigError, match="unit is for times"):
        declared(source, {**base, "at": {"role": "id", "unit": "ms"}})
    with pytest.raises(ConfigError, match="'ns', 'us', 'ms'"):
        declared(source, {**base, "at": {"role": "time", "unit": "fortnight"}}, split="time")
    numbers = write_table(tmp_path / "n.parquet", table_of("ms"))
    mixed = {**base, "at": "time", "known": {"role": "label_time", "unit": "s"}}
    with pytest.raises(SchemaError, match="column 'known' declares s, 'at' none; declare it"):
        split_of(declared(numbers, mixed, split="time"), tmp_path / "b")


@pytest.mark.req("P1")
def test_long_names_of_units_are_known(tmp_path: Path) -> None:
    declaration = declared(
        "t.parquet",
        {"at": {"role": "time", "unit": "milliseconds"}, "y": "label", "*": "feature"},
        split="time",
    )
    assert declaration.data.columns["at"].unit == "ms"
