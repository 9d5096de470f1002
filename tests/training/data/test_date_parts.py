"""Dates as features: their parts, what is fitted of them, and the same numbers from raw dates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from schemas.errors import ConfigError, DataError, SchemaError
from schemas.load import declare
from tests.subset import some
from tests.training.data.chain import declared, split_of
from tests.training.kind_cases import (
    Prepared,
    digests,
    evaluated,
    exported,
    prepared,
    served,
)
from training.data.arrays.apply import transform_numeric
from training.data.fit.normalize import fit

COLUMNS: dict[str, Any] = {"row": "id", "y": "label", "seen": "date", "x": "numeric"}
PARTS = ("days", "hour_sin", "hour_cos", "weekday_sin", "weekday_cos", "yearday_sin", "yearday_cos")


def rows(count: int = 200, seed: int = 0, unit: str = "min", nulls: float = 0.1) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    minutes = rng.integers(0, 3 * 365 * 24 * 60, count)
    seen = pd.Timestamp("2019-02-01") + pd.to_timedelta(minutes, unit="min")
    if unit == "d":
        seen = seen.floor("D")
    return pd.DataFrame(
        {
            "row": [f"r{i:03d}" for i in range(count)],
            "y": rng.permutation(np.arange(count) % 2),
            "seen": pd.Series(seen).where(rng.random(count) >= nulls).astype("datetime64[us]"),
            "x": rng.normal(size=count).round(3),
        }
    )


def table(case: Prepared, side: str = "train") -> pd.DataFrame:
    return pd.read_parquet(case.split.side(side).file.path)  # type: ignore[arg-type]


def test_the_parts_are_those_of_pandas(tmp_path: Path) -> None:
    frame = rows()
    case = prepared(tmp_path, frame, COLUMNS)
    assert case.run.spec.numeric == (*(f"seen.{part}" for part in PARTS), "x")
    found = table(case).set_index("__id")
    seen = frame.set_index("row").loc[found.index, "seen"]
    np.testing.assert_allclose(
        found["seen.days"], (seen - pd.Timestamp("1970-01-01")) / pd.Timedelta("1D"), rtol=1e-12
    )
    turns = {
        "hour": (seen.dt.hour + seen.dt.minute / 60) / 24,
        "weekday": (seen.dt.dayofweek + 1) / 7,
        "yearday": seen.dt.dayofyear / 365.25,
    }
    for part, turn in turns.items():
        np.testing.assert_allclose(found[f"seen.{part}_sin"], np.sin(2 * np.pi * turn), atol=1e-12)
        np.testing.assert_allclose(found[f"seen.{part}_cos"], np.cos(2 * np.pi * turn), atol=1e-12)


def test_days_are_scaled_and_bounded_by_train_and_circles_stay_circles(tmp_path: Path) -> None:
    case = prepared(tmp_path, rows(), COLUMNS)
    fitted = {s.name: s for s in case.run.statistics.numeric}
    days = fitted["seen.days"]
    assert days.bounded and days.indicator and days.fill is not None
    assert (days.min, days.max) == (table(case)["seen.days"].min(), table(case)["seen.days"].max())
    circles = [s for n, s in fitted.items() if n.startswith("seen.") and n != "seen.days"]
    assert {s.method for s in circles} == {"none"} and not any(s.indicator for s in circles)
    values = np.tile([s.mean or 0.0 for s in case.run.statistics.numeric], (4, 1))
    values[:, 0] = [days.min - 1000, days.min, days.max, days.max + 1000]  # type: ignore[operator]
    scaled = transform_numeric(values, case.run.statistics)[:, 0]
    # values in between may be rounded to float32, the bounds never
    assert scaled[1] < scaled[2]
    assert scaled[[0, 3]].tolist() == pytest.approx(scaled[[1, 2]].tolist(), rel=1e-6)


@pytest.mark.parametrize(
    ("unit", "kind", "constant"),
    [("d", "timestamp", True), ("d", "date", False), ("d", "text", True)],
)
def test_only_parts_that_vary_in_train_are_kept(
    tmp_path: Path, unit: str, kind: str, constant: bool
) -> None:
    frame = rows(unit=unit, nulls=0)
    seen = frame["seen"]
    frame["seen"] = {
        "timestamp": seen,
        "date": seen.dt.date,
        "text": seen.dt.strftime("%Y-%m-%d"),
    }[kind]
    case = prepared(tmp_path, frame, COLUMNS, checks={"constant_features": "fail"})
    kept = [s.name for s in case.run.statistics.numeric]
    assert kept == [*(f"seen.{p}" for p in PARTS if not p.startswith("hour")), "x"]
    assert set(case.run.statistics.dropped) == (
        {"seen.hour_sin", "seen.hour_cos"} if constant else set()
    )


def test_a_date_that_never_varies_is_a_constant_feature(tmp_path: Path) -> None:
    frame = rows(nulls=0).assign(seen=pd.Timestamp("2020-01-01"))
    with pytest.raises(DataError, match=r"7 features say nothing.*seen.days \(always 18262\)"):
        prepared(tmp_path, frame, COLUMNS)


def test_held_out_rows_change_nothing_that_is_fitted(tmp_path: Path) -> None:
    frame = rows()
    before = prepared(tmp_path / "a", frame, COLUMNS)
    held = set(table(before, "val")["__id"]) | set(table(before, "test")["__id"])
    moved = frame["row"].isin(held)
    later = frame.assign(seen=frame["seen"].where(~moved, frame["seen"] + pd.Timedelta("4000D")))
    after = prepared(tmp_path / "b", later, COLUMNS)
    assert before.run.statistics == after.run.statistics
    assert digests(before, "train") == digests(after, "train")
    assert digests(before, "test") != digests(after, "test")


FORMS = {
    "timestamp": lambda seen: seen,
    "zone": lambda seen: seen.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"),
    "text": lambda seen: seen.dt.strftime("%Y-%m-%d %H:%M:%S").astype(object).where(seen.notna()),
    "date": lambda seen: seen.dt.date,
}


@pytest.mark.parametrize("form", some(FORMS, len(FORMS)))
def test_the_exported_model_takes_raw_dates_in_any_form(tmp_path: Path, form: str) -> None:
    frame = rows()
    case = prepared(tmp_path, frame.assign(seen=FORMS[form](frame["seen"])), COLUMNS)
    model, weights = exported(case, tmp_path / "out")
    assert model.parity < 1e-6
    wanted = evaluated(case, weights, "test")
    test = frame.set_index("row").loc[list(wanted)]
    others = {"date": ("date",), "text": ("text",)}.get(form, ("timestamp", "zone", "text"))
    for other in others:
        given = served(model, test.assign(seen=FORMS[other](test["seen"])))
        np.testing.assert_allclose(given, list(wanted.values()), atol=1e-12, err_msg=other)
    late = pd.Series(pd.Timestamp("2093-05-01"), test.index)
    far = test.assign(seen=FORMS[others[0]](late))
    assert np.isfinite(served(model, far)).all()


def test_a_text_in_another_form_and_a_copy_of_the_time_are_derived(tmp_path: Path) -> None:
    frame = rows(nulls=0, unit="d")
    frame = frame.assign(when=frame["seen"], seen=frame["seen"].dt.strftime("%d.%m.%Y"))
    case = prepared(
        tmp_path,
        frame,
        {"row": "id", "y": "label", "when": "time", "season": "date", "at": "date", "*": "ignore"},
        data={"derive": {"at": "strptime(seen, '%d.%m.%Y')", "season": '"when"'}},
        split={"kind": "time"},
    )
    values = table(case)
    for part in ("days", "weekday_sin", "yearday_cos"):
        np.testing.assert_array_equal(values[f"at.{part}"], values[f"season.{part}"])


def test_a_pattern_and_a_time_of_availability_reach_the_parts(tmp_path: Path) -> None:
    frame = rows(nulls=0).assign(known=pd.Timestamp("2019-01-01"))
    frame = frame.assign(first_on=frame["seen"], last_on=frame["seen"] + pd.Timedelta("3D"))
    columns = {"row": "id", "y": "label", "seen": "time", "*_on": {"kind": "date"}}
    columns |= {"known": {"role": "available", "of": ["first_on"]}, "x": "numeric"}
    path = tmp_path / "rows.parquet"
    frame.to_parquet(path)
    validated, _ = split_of(declared(path, columns), tmp_path / "out")
    assert validated.spec.numeric[0] == "first_on.days" and "last_on.days" in validated.spec.dates
    assert set(validated.spec.available["known"]) == {f"first_on.{part}" for part in PARTS}


@pytest.mark.parametrize(
    ("columns", "change", "message"),
    [
        ({}, {"seen": 3.5}, "kind date needs dates, timestamps or text in ISO form, got numbers"),
        ({"*": "ignore"}, {"SEEN.days": 1}, "makes a feature 'seen.days', and the table has a"),
        ({}, {"seen": "yesterday"}, "seen.days"),
        ({"seen": {"kind": "date", "nullable": False}}, {"seen": None}, "seen.days.*null"),
    ],
)
def test_what_is_no_date_is_refused_by_name(
    tmp_path: Path, columns: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    frame = rows(nulls=0)
    frame = frame.assign(**{n: [v] * len(frame) for n, v in change.items()})
    if change.get("seen", 0) is None:
        frame["seen"] = frame["seen"].astype("datetime64[us]")
    with pytest.raises(SchemaError, match=message):
        prepared(tmp_path, frame, COLUMNS | columns)


def test_limits_of_a_date_are_refused() -> None:
    columns = {"y": "label", "seen": {"kind": "date", "min": 3}}
    data = {"uri": "x.parquet", "columns": columns}
    with pytest.raises(
        ConfigError, match="a feature of kind date has no min, max, allowed or unique"
    ):
        declare(
            {"name": "a", "data": data, "task": {"kind": "binary"}, "split": {"kind": "random"}}
        )


def test_a_date_can_be_scaled_by_declaration(tmp_path: Path) -> None:
    own = {"columns": {"seen.weekday_sin": {"scale": "standard"}, "seen.days": {"scale": "none"}}}
    case = prepared(tmp_path, rows(), COLUMNS)
    changed = case.declaration.model_copy(
        update={"normalize": case.declaration.normalize.model_validate(own)}
    )
    found = {s.name: s for s in fit(case.split.train, case.run.spec, changed).numeric}
    assert found["seen.weekday_sin"].method == "standard" and found["seen.days"].scale == 1.0
