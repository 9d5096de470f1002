"""The end of a run is its state's name, a tag, an event and an exit code; a retrain without new
data says so.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect import flow
from prefect.testing.utilities import prefect_test_harness

import tasks.live
import tasks.outcome
from schemas.digest import file_ref
from schemas.new_rows import NewRows
from schemas.records import (
    GateReport,
    Registered,
    SplitTables,
    TableRef,
    TestTable,
    TrainTable,
    ValTable,
)
from schemas.registry_records import Outcome
from tasks.outcome import NAMES, ended, outcome_of
from tests.training.mlflow_home import declaration
from training.data.split.new_rows import find_new_rows

PASSED, REFUSED = (
    GateReport(passed=True, verdict="passed: fine", conditions=()),
    GateReport(passed=False, verdict="refused: worse", conditions=()),
)
EQUAL = GateReport(passed=True, verdict="kept: equal", conditions=(), replaces=False)
WAITS = GateReport(passed=True, verdict="waits: 3 rows", conditions=(), replaces=False)
SAME = GateReport(passed=False, verdict="unchanged: the program is version 3", conditions=())


def registered(version: str | None = None, alias: str | None = None) -> Registered:
    return Registered(
        registered=version is not None,
        name="m",
        version=version,
        uri=version and f"models:/m/{version}",
        alias=alias,
        verdict="v",
    )


@pytest.mark.parametrize(
    ("gate", "found", "register", "outcome"),
    [
        (PASSED, registered("3", "champion"), {}, "promoted"),
        (PASSED, registered("3", "challenger"), {"promotion": "approval"}, "waiting"),
        (PASSED, registered("3"), {"promotion": "never"}, "registered"),
        (EQUAL, registered("3"), {}, "kept"),
        (EQUAL, registered("3"), {"promotion": "approval"}, "kept"),
        (EQUAL, registered("3"), {"promotion": "never"}, "registered"),
        (WAITS, registered("3"), {}, "undecided"),
        (WAITS, registered("3"), {"promotion": "never"}, "registered"),
        (SAME, registered(), {}, "unchanged"),
        (REFUSED, registered(), {}, "refused"),
        (REFUSED, registered(), {"enabled": False}, "not registered"),
        (PASSED, registered(), {"enabled": False}, "not registered"),
    ],
)
def test_each_outcome_has_its_name_tag_and_event(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gate: GateReport,
    found: Registered,
    register: dict[str, Any],
    outcome: Outcome,
) -> None:
    sent: list[str] = []
    tags: dict[str, str] = {}
    monkeypatch.setattr(
        tasks.live, "emit_event", lambda event, resource, payload: sent.append(event)
    )
    run = SimpleNamespace(
        declaration=declaration(register=register),
        run_dir=tmp_path,
        run_id="r",
        tracker=SimpleNamespace(set_tags=tags.update),
    )
    assert (
        outcome_of(run.declaration, gate, found)
        == outcome
        == tasks.outcome.report_outcome.fn(found, gate, run)
    )  # type: ignore[arg-type]
    assert tags == {"bulkhead.outcome": outcome, "bulkhead.outcome_reason": gate.verdict}
    assert sent == (
        [] if outcome == "promoted" else [f"bulkhead.model.{outcome.replace(' ', '-')}"]
    )
    assert Registered.model_validate_json((tmp_path / "registered.json").read_bytes()) == found


@pytest.mark.long
def test_a_flow_ends_in_a_state_of_that_name_and_gives_its_result() -> None:
    @flow(persist_result=False)
    def refused() -> Registered:
        return ended("refused", "worse than version 3", registered())

    with prefect_test_harness(server_startup_timeout=120):
        assert refused() == registered()
        state = refused(return_state=True)
    assert (state.name, state.message, state.is_completed()) == (
        NAMES["refused"],
        "worse than version 3",
        True,
    )


def sides(folder: Path, cuts: dict[str, Any] | None = None, **ids: list[str]) -> SplitTables:
    folder.mkdir()
    made = {}
    for name, kind in (("train", TrainTable), ("val", ValTable), ("test", TestTable)):
        path = folder / f"{name}.parquet"
        pq.write_table(pa.table({"__id": ids[name]}), path)
        made[name] = kind(**TableRef(file=file_ref(path), rows=len(ids[name])).model_dump())
    plan = (
        {"cuts_text": cuts, "cuts_from": "shares of rows at first sight, frozen in the ledger"}
        if cuts
        else {}
    )
    return SplitTables(strategy="time" if cuts else "group", plan=plan, **made)


def test_new_rows_are_counted_by_side_and_a_frozen_cut_is_named(tmp_path: Path) -> None:
    cuts = {"val": "2024-05-01T00:00:00+00:00", "test": "2024-06-01T00:00:00+00:00"}
    before = sides(tmp_path / "a", cuts, train=["a", "b"], val=["c"], test=["d"])
    now = sides(tmp_path / "b", cuts, train=["a", "b"], val=["c"], test=["d", "e", "f"])
    found = find_new_rows(now, before, "version 3")
    assert (
        found == NewRows(since="version 3", train=0, val=0, test=2, cut=cuts["val"], is_frozen=True)
        and found.learns_nothing_new
    )
    assert found.sentence.startswith(
        "0 new train rows since version 3 (0 val, 2 test); the cut is frozen at"
        " 2024-05-01T00:00:00+00:00; rows after it never train"
    )
    grown = find_new_rows(
        sides(tmp_path / "c", train=["a", "b", "z"], val=["c"], test=["d"]), before, "run x"
    )
    assert (
        grown is not None
        and not grown.learns_nothing_new
        and grown.sentence == "1 new train row since run x (0 val, 0 test)"
    )
    rolled = now.model_copy(update={"plan": {"cuts_text": cuts, "newest": 9.0}})
    found = find_new_rows(rolled, before, "version 3")
    assert found is not None and not found.learns_nothing_new
    assert found.sentence.endswith("until the windows of split.roll move on")
    same = find_new_rows(before, before, "run x")
    assert same is not None and (same.train, same.val, same.test, same.learns_nothing_new) == (
        0,
        0,
        0,
        False,
    )
    Path(before.test.file.path).unlink()
    assert find_new_rows(now, before, "version 3") is None
