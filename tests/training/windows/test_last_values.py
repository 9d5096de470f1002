"""Baselines of the label's past, and the check of windows with planted faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.digest import file_ref
from schemas.errors import ConfigError
from schemas.references import SplitTables
from tests.training.kind_cases import Prepared
from tests.training.windows.tables import COLUMNS, prepared_series, series
from training.data.leakage import check_overlap, window_results
from training.evaluation.baselines import baseline_predictions

AHEAD: dict[str, Any] = {
    "columns": COLUMNS | {"y": {"role": "label", "ahead": "4h"}},
    "task": "regression",
    "data": {"null_labels": "drop"},
    "evaluate": {"baselines": []},
}
HOURLY = {"columns": ["x", "y"], "look_back": "16h", "step": "2h"}


def ahead(folder: Path, window: dict[str, Any], **options: Any) -> Prepared:
    frame = series(clock=True)
    return prepared_series(folder, frame.assign(y=frame["x"]), HOURLY | window, **AHEAD | options)


def test_last_and_seasonal_values_are_those_of_the_source(tmp_path: Path) -> None:
    case = ahead(tmp_path, {"season": "12h"})
    found = baseline_predictions(case.declaration, case.run.statistics, case.run.arrays)
    assert list(found) == ["constant", "last_value", "seasonal_value"]
    frame = series(clock=True).set_index("row")
    values = frame.set_index(["unit", "at"])["x"]
    ids = pd.read_parquet(case.run.arrays.test.ids.path)["__id"]
    for row, last, seasonal in zip(ids, found["last_value"], found["seasonal_value"], strict=True):
        unit, at = frame.loc[row, ["unit", "at"]]
        np.testing.assert_allclose(last, frame.loc[row, "x"], rtol=1e-6)
        before = at + pd.Timedelta("4h") - pd.Timedelta("12h")  # one season before the label
        np.testing.assert_allclose(seasonal, values.get((unit, before), frame.loc[row, "x"]), 1e-6)


def test_a_season_needs_a_window_that_holds_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="season 24h: the window is too short"):
        ahead(tmp_path, {"season": "24h"})
    with pytest.raises(ConfigError, match="season is for a window that holds the label"):
        ahead(tmp_path, {"season": "12h", "columns": ["x"]})


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared_series(tmp_path_factory.mktemp("windows"), series(), {"lag": 1})


def changed(case: Prepared, side: str, folder: Path, change: Any) -> SplitTables:
    """The split with other files of a side's window."""
    table = case.split.side(side)  # type: ignore[arg-type]
    history = table.histories["past"]
    files = {n: pq.read_table(getattr(history, n).path) for n in ("steps", "ends")}
    files |= change(**files)
    for name, made in files.items():
        pq.write_table(made, folder / f"{name}.parquet")
    refs = {name: file_ref(folder / f"{name}.parquet") for name in files}
    own = {"past": history.model_copy(update=refs)}
    return case.split.model_copy(update={side: table.model_copy(update={"histories": own})})


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    place = table.column_names.index(name)
    return table.set_column(place, name, pa.array(values, table.schema.field(name).type))


def test_windows_without_a_fault_pass(case: Prepared) -> None:
    results = check_overlap(case.split, case.validated, case.declaration).results
    assert [r.verdict for r in results if r.name == "windows"] == ["pass"]


def test_a_held_out_row_in_windows_of_train_is_found(case: Prepared, tmp_path: Path) -> None:
    stranger = pd.read_parquet(case.split.test.file.path)["__id"][0]

    def change(steps: pa.Table, ends: pa.Table) -> dict[str, pa.Table]:
        return {"steps": with_column(steps, "__id", [stranger, *steps["__id"].to_pylist()[1:]])}

    planted = changed(case, "train", tmp_path, change)
    (result,) = window_results(planted, case.validated, case.declaration)
    assert result.verdict == "fail" and stranger in result.summary
    assert "windows of train (past) hold rows of val or test: 1 row" in result.summary


def test_steps_of_the_future_and_of_another_series_are_found(
    case: Prepared, tmp_path: Path
) -> None:
    def later(steps: pa.Table, ends: pa.Table) -> dict[str, pa.Table]:
        return {
            "ends": with_column(ends, "end", np.minimum(ends["end"].to_numpy() + 1, len(steps)))
        }

    (result,) = window_results(changed(case, "test", tmp_path, later), *case[1::-1])
    assert result.verdict == "fail" and "come after their row" in result.summary

    def longer(steps: pa.Table, ends: pa.Table) -> dict[str, pa.Table]:
        return {"ends": with_column(ends, "count", ends["end"].to_numpy())}

    (result,) = window_results(changed(case, "val", tmp_path, longer), *case[1::-1])
    assert result.verdict == "fail" and "steps of another series" in result.summary


@pytest.mark.parametrize("kind", ["group", "predefined"])
def test_a_split_that_tears_series_apart_is_refused_by_the_check(tmp_path: Path, kind: str) -> None:
    frame = series(units=12, rows=12)
    frame["side"] = np.array(["train", "val", "test"])[np.arange(len(frame)) % 3]
    frame["all"] = "one"
    columns = COLUMNS | {"side": "split" if kind == "predefined" else "ignore", "all": "ignore"}
    data = {"series": "all"} if kind == "group" else {}
    if kind == "group":  # one series for all groups
        frame["at"] = np.arange(len(frame)) * 2.0
    case = prepared_series(tmp_path, frame, split=kind, columns=columns, data=data)
    (result,) = window_results(case.split, case.validated, case.declaration)
    assert result.verdict == "fail" and "rows of val or test" in result.summary
