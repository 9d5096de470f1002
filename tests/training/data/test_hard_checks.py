"""D3, D5, D6: spellings of one key, times of labels and features, and shares of a stratified label,
each with a planted fault.
"""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.config import Declaration
from schemas.errors import SchemaError
from schemas.load import declare
from schemas.records import CheckResult, SplitTables, ValidatedTable
from tests.training.data.sides import numbers, spec_of, split_of
from training.data.advice import in_yaml
from training.data.engine.engine import connect, literal, row
from training.data.leakage import hard_results, straddle
from training.data.leakage.keys import _characters
from training.data.leakage.sides import sides_of
from training.data.leakage.spellings import SPELLINGS, fold, one_spelling, text_of
from training.data.sources.source import fingerprint
from training.data.split.split import split
from training.data.table.validate import validate

KEYS = [f"Ward {i:03d}-b" for i in range(1, 200)]


def declared(split: dict[str, Any] | None = None, **data: Any) -> Declaration:
    columns = {
        "id": "id",
        "patient": "group",
        "seen": "time",
        "side": "split",
        "y": "label",
        "*": "feature",
    }
    return declare(
        {
            "name": "leaks",
            "data": {"uri": "t.parquet", "columns": columns, **data},
            "task": {"kind": "binary"},
            "split": split or {"kind": "group"},
        }
    )


def results(
    folder: Path, sides: dict[str, dict[str, Any]], declaration: Declaration, **spec: Any
) -> dict[str, CheckResult]:
    """The hard assertions on three written sides, by name."""
    written = split_of(folder, sides["train"], sides["val"], sides["test"])
    connection = connect()
    try:
        return {
            r.name: r
            for r in hard_results(
                sides_of(connection, written, spec_of(numeric=("x",), **spec), declaration)
            )
        }
    finally:
        connection.close()


def with_keys(
    train: list[str], test: list[str], val: list[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Sides whose groups are the keys."""

    def side(keys: list[str], name: str) -> dict[str, Any]:
        count = len(keys)
        return {
            "__id": [f"{name}{i}" for i in range(count)],
            "__group": keys,
            "__time": numbers([0.0] * count),
            "x": numbers([1.0] * count),
            "y": [0] * count,
        }

    return {
        "train": side(train, "a"),
        "val": side(val or ["someone else"], "b"),
        "test": side(test, "c"),
    }


@pytest.mark.req("D6")
@pytest.mark.parametrize(
    "respelt",
    [
        "WARD 007-B",
        "ward007b",
        " Ward 007-b",
        "Ward  007 b",
        "Ward 7-b",
        "Ｗard 007-b",
        "Wárd 007‐b",
        "ward_7_B",
    ],
)
def test_a_group_in_another_spelling_is_found_and_named(tmp_path: Path, respelt: str) -> None:
    found = results(
        tmp_path, with_keys(KEYS, ["Clinic 1", respelt]), declared(), group=("patient",)
    )["group_alias"]
    assert (found.verdict, found.figures["keys"], found.columns) == ("fail", 1, ("patient",))
    assert {found.evidence[0]["key"], found.evidence[0]["other key"]} == {"Ward 007-b", respelt}
    assert "bring the key to one spelling" in found.remedy
    if not respelt.isascii():
        return
    to_one = str(found.figures["one_spelling"])
    assert f"data.{in_yaml(derive={'patient_key': to_one})}, and declare that" in found.remedy
    with closing(connect()) as connection:
        keys = f"(values ('Ward 007-b'), ({literal(respelt)}), ('Ward 008-b')) t(patient)"
        assert row(connection, f"select count(distinct {to_one}) from {keys}")[0] == 2


@pytest.mark.req("D6")
@given(st.lists(st.text(st.characters(max_codepoint=126), max_size=9), min_size=1))
def test_the_engine_spells_as_the_check_does(texts: list[str]) -> None:
    kept = [text for text in texts if "\0" not in text]
    with closing(connect()) as connection:
        for spelling in SPELLINGS:
            rows = pa.table({"k": pa.array(kept, pa.string())})
            found = connection.from_arrow(rows).project(one_spelling("k", spelling))
            wanted = fold(pa.array(kept, pa.string()), spelling)
            assert found.to_arrow_table().column(0).to_pylist() == wanted.to_pylist()


@pytest.mark.req("D6")
def test_an_alias_between_val_and_test_counts_too(tmp_path: Path) -> None:
    found = results(
        tmp_path, with_keys(KEYS, ["Clinic 1"], val=["clinic 01"]), declared(), group=("patient",)
    )["group_alias"]
    assert found.verdict == "fail"
    assert "clinic 01" in found.summary


@pytest.mark.req("D6")
@pytest.mark.parametrize(
    ("train", "test"),
    [
        (KEYS, [f"Ward {i:03d}-b" for i in range(300, 400)]),
        (
            [f"{a}{b}" for a in "abcdABCD" for b in "xyXY"],
            ["ax", "Zz"],
        ),  # case tells train's keys apart
        (
            [f"0{i}" for i in range(100)] + [str(i) for i in range(100)],
            ["0100"],
        ),  # so do leading zeros
        (
            [f"1-{i}" for i in range(1, 40)] + [f"{i}-1" for i in range(11, 40)],
            ["111"],
        ),  # so does punctuation: 1-11 and 11-1
        ([str(i) for i in range(1, 100)], [str(i) for i in range(100, 200)]),
    ],
)
def test_keys_that_differ_in_more_than_spelling_pass(
    tmp_path: Path, train: list[str], test: list[str]
) -> None:
    test = [key for key in test if key not in train]
    assert (
        results(tmp_path, with_keys(train, test), declared(), group=("patient",))[
            "group_alias"
        ].verdict
        == "pass"
    )


@pytest.mark.req("D6")
def test_train_that_holds_aliases_itself_does_not_hide_those_across(tmp_path: Path) -> None:
    train = [*KEYS, "ward 3 B"]
    found = results(
        tmp_path,
        with_keys(train, [f"WARD {i:03d}-B" for i in range(10, 20)]),
        declared(),
        group=("patient",),
    )["group_alias"]
    assert (found.verdict, found.figures["keys"], found.figures["collisions_in_train"]) == (
        "fail",
        10,
        1,
    )


def timed(
    label_times: list[float | None], available: list[float | None]
) -> dict[str, dict[str, Any]]:
    """Train at 0 to 3, validation at 10, test at 20; the times given are those of train."""

    def side(
        name: str, times: list[float], known: list[float | None], since: list[float | None]
    ) -> dict[str, Any]:
        count = len(times)
        return {
            "__id": [f"{name}{i}" for i in range(count)],
            "__group": pa.nulls(count, pa.string()),
            "__time": numbers(times),
            "__label_time": numbers(known),
            "drawn": numbers(since),
            "x": numbers([1.0] * count),
            "y": [0] * count,
        }

    train = side("a", [0.0, 1.0, 2.0, 3.0], label_times, available)
    return {
        "train": train,
        "val": side("b", [10.0, 11.0], [12.0, None], [9.0, 9.0]),
        "test": side("c", [20.0], [30.0], [20.0]),
    }


SPEC: dict[str, Any] = {"time": "seen", "label_time": "outcome_at", "available": {"drawn": ("x",)}}


@pytest.mark.req("D6")
def test_labels_and_features_known_in_time_pass(tmp_path: Path) -> None:
    found = results(
        tmp_path,
        timed([1.0, 2.0, None, 9.9], [0.0, 0.5, None, 3.0]),
        declared({"kind": "time"}),
        **SPEC,
    )
    assert {
        name: r.verdict
        for name, r in found.items()
        if name in ("time_overlap", "label_interval", "availability")
    } == {
        "time_overlap": "pass",
        "label_interval": "pass",
        "availability": "pass",
    }


@pytest.mark.req("D6")
def test_a_label_that_became_known_when_the_next_side_had_begun_is_found(tmp_path: Path) -> None:
    found = results(
        tmp_path, timed([1.0, 10.0, None, 15.0], [0.0] * 4), declared({"kind": "time"}), **SPEC
    )["label_interval"]
    assert (found.verdict, found.columns, found.figures["rows"]) == ("fail", ("outcome_at",), 2)
    assert (
        "2 train rows have a label that became known at or after 10, when val begins"
        in found.summary
    )


@pytest.mark.req("D6")
def test_a_feature_from_after_the_prediction_is_found(tmp_path: Path) -> None:
    found = results(
        tmp_path, timed([None] * 4, [0.0, 1.5, 2.0, 2.0]), declared({"kind": "time"}), **SPEC
    )["availability"]
    assert (found.verdict, found.columns, found.figures["train"]) == ("fail", ("drawn", "x"), 1)
    assert found.evidence[0]["available"] == "1.5"


@pytest.mark.req("D6")
def test_a_stratified_side_with_another_share_is_found(tmp_path: Path) -> None:
    sides = {
        name: with_keys([f"{name}{i}" for i in range(200)], ["x"])["train"]
        for name in ("train", "val", "test")
    }
    for name, ones in (("train", 60), ("val", 60), ("test", 90)):
        sides[name]["__id"] = [f"{name}{i}" for i in range(200)]
        sides[name]["y"] = [1] * ones + [0] * (200 - ones)
    found = results(tmp_path / "1", sides, declared({"kind": "stratified"}), group=("patient",))[
        "stratification"
    ]
    assert (found.verdict, found.figures["deviation"]) == ("fail", pytest.approx(0.1))
    assert "on test is 0.1000 away" in found.summary
    sides["test"]["y"] = [1] * 60 + [0] * 140
    assert (
        results(tmp_path / "2", sides, declared({"kind": "stratified"}), group=("patient",))[
            "stratification"
        ].verdict
        == "pass"
    )


@pytest.mark.req("D6")
@pytest.mark.parametrize(("zeros", "verdict"), [(25, "pass"), (50, "fail")])
def test_classes_too_rare_for_a_side_leave_more_to_the_others(
    tmp_path: Path, zeros: int, verdict: str
) -> None:
    rare = [2 + i // 2 for i in range(50)]
    labels = {"train": [0] * 50 + [1] * 50 + rare, "val": [0] * 25 + [1] * 25}
    labels["test"] = [0] * zeros + [1] * (50 - zeros)
    sides = {}
    for name, values in labels.items():
        ids = [f"{name}{i}" for i in range(len(values))]
        sides[name] = with_keys(ids, ["x"])["train"] | {"__id": ids, "y": values}
    found = results(tmp_path, sides, declared({"kind": "stratified"}), group=("patient",))
    assert found["stratification"].verdict == verdict


def prepared(
    folder: Path, columns: dict[str, Any], roles: dict[str, Any], way: dict[str, Any]
) -> tuple[SplitTables, ValidatedTable, Declaration]:
    """A table through validation and split."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / "t.parquet")
    declaration = declare(
        {
            "name": "t",
            "data": {"uri": str(folder / "t.parquet"), "columns": roles},
            "task": {"kind": "regression"},
            "split": way,
        }
    )
    validated = validate(fingerprint(declaration.data), declaration, folder / "v")
    return split(validated, declaration, folder / "s", folder / "ledger"), validated, declaration


ROLES: dict[str, Any] = {
    "k": "id",
    "t": "time",
    "until": "label_time",
    "lab_at": {"role": "available", "of": ["x"]},
    "y": "label",
    "*": "feature",
}
TABLE: dict[str, Any] = {
    "k": [str(i) for i in range(100)],
    "t": [float(i) for i in range(100)],
    "until": [float(i + 5) for i in range(100)],
    "lab_at": [float(i - 1) for i in range(100)],
    "x": [float(i % 7) for i in range(100)],
    "z": [float(i % 5) for i in range(100)],
    "y": [float(i % 3) for i in range(100)],
}


@pytest.mark.req("D3")
def test_a_time_split_leaves_out_rows_whose_label_came_after_the_cut(tmp_path: Path) -> None:
    sides, validated, declaration = prepared(
        tmp_path, TABLE, ROLES, {"kind": "time", "cuts": {"val": 60, "test": 80}}
    )
    assert sides.excluded == {"label_interval": 10}
    assert (validated.spec.label_time, validated.spec.available) == ("until", {"lab_at": ("x",)})
    train = pq.read_table(sides.train.file.path)
    assert (max(train["__time"].to_pylist()), max(train["__label_time"].to_pylist())) == (
        54.0,
        59.0,
    )
    connection = connect()
    found = {
        r.name: r.verdict
        for r in hard_results(sides_of(connection, sides, validated.spec, declaration))
    }
    connection.close()
    assert (found["label_interval"], found["availability"], found["time_overlap"]) == (
        "pass",
        "pass",
        "pass",
    )


@pytest.mark.req("D1")
@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (
            {**ROLES, "t": "ignore"},
            (
                "role label_time.*is compared with the time of the prediction, and no column has"
                " role time"
            ),
        ),
        (
            {**ROLES, "lab_at": {"role": "available", "of": ["xx"]}},
            "of names 'xx', which is no feature; did you mean 'x'",
        ),
        ({**ROLES, "z": "label_time"}, "expected one column with role label_time, got 2"),
    ],
)
def test_roles_of_time_that_make_no_sense_are_refused(
    tmp_path: Path, roles: dict[str, Any], message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        prepared(tmp_path, TABLE, roles, {"kind": "random"})


@pytest.mark.req("D5")
@pytest.mark.parametrize("rows_at_once", [10, 2**25])
def test_keys_on_two_sides_are_found_in_however_many_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    monkeypatch.setattr(straddle, "ROWS_AT_ONCE", rows_at_once)
    found = results(
        tmp_path,
        with_keys(KEYS, [KEYS[3], KEYS[90], "clinic"], val=[KEYS[3], "WARD 9-B"]),
        declared(),
        group=("patient",),
    )
    assert (
        found["group_overlap"].figures["groups_on_two_sides"],
        found["group_overlap"].figures["rows"],
    ) == (2, 5)
    assert {(e["group"], e["sides"]) for e in found["group_overlap"].evidence} == {
        (KEYS[3], "val and train and test"),
        (KEYS[90], "train and test"),
    }
    assert found["group_alias"].figures["keys"] == 1


@given(st.lists(st.text(alphabet="0123aB-é", max_size=6), min_size=1, max_size=30))
def test_the_characters_of_keys_are_those_of_a_plain_reading(texts: list[str]) -> None:
    used, lengths, zeros = _characters(text_of(pa.array(["skipped", *texts], pa.string()).slice(1)))
    data = [t.encode() for t in texts]
    assert set(np.flatnonzero(used)) == set(b"".join(data))
    assert lengths == (min(map(len, data)), max(map(len, data)))
    assert zeros == (
        any(re.search(r"(^|[^0-9])0[0-9]", t) for t in texts)
        and not re.search(r"[a-z].*[A-Z]|[A-Z].*[a-z]|[^0-9a-zA-Z]", "".join(texts))
    )
