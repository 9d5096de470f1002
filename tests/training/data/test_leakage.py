"""D5, D6: each check catches its planted fault on the written files, by name, and passes the clean
case.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.config import Declaration
from schemas.digest import file_ref
from schemas.errors import IntegrityError, LeakageError
from schemas.load import declare
from schemas.records import CheckReport, CheckResult, SplitTables, TableRef, ValidatedTable
from tests.training.data.sides import numbers, spec_of, split_of
from training.data.leakage import check_leakage, check_overlap, require_passed

SPEC: dict[str, Any] = {
    "group": ("patient",),
    "time": "seen",
    "time_is_timestamp": True,
    "numeric": ("x",),
    "categorical": ("c",),
}


def side(
    ids: list[str],
    groups: list[str],
    times: list[float],
    x: list[float | None],
    c: list[str | None] | None = None,
    y: list[int] | None = None,
) -> dict[str, Any]:
    return {
        "__id": ids,
        "__group": groups,
        "__time": numbers(times),
        "x": numbers(x),
        "c": pa.array(c or ["a"] * len(ids), pa.string()),
        "y": y or [0, 1] * (len(ids) // 2) + [0] * (len(ids) % 2),
    }


TRAIN = side(["a", "b", "c"], ["p1", "p1", "p2"], [0.0, 10.0, 20.0], [1.0, 2.0, None])
VAL = side(["d", "e"], ["p3", "p3"], [100.0, 110.0], [4.0, 5.0])
TEST = side(["f", "g"], ["p4", "p5"], [200.0, 210.0], [6.0, 7.0])


def declared(split: dict[str, Any] | None = None, **sections: Any) -> Declaration:
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
            "data": {"uri": "t.parquet", "columns": columns},
            "task": {"kind": "binary"},
            "split": split or {"kind": "group_time", "embargo": "50s"},
            **sections,
        }
    )


def tables(
    folder: Path,
    train: dict[str, Any] = TRAIN,
    val: dict[str, Any] = VAL,
    test: dict[str, Any] = TEST,
    extra: list[str] | None = None,
) -> tuple[SplitTables, ValidatedTable]:
    split = split_of(folder, train, val, test)
    ids = sorted({*train["__id"], *val["__id"], *test["__id"], *(extra or [])})
    whole = folder / "validated.parquet"
    pq.write_table(pa.table({"__id": ids}), whole)
    return split, ValidatedTable(
        table=TableRef(file=file_ref(whole), rows=len(ids)), spec=spec_of(**SPEC)
    )


def result(report: CheckReport, name: str) -> CheckResult:
    return next(r for r in report.results if r.name == name)


@pytest.mark.req("D5")
def test_clean_sides_pass_every_check(tmp_path: Path) -> None:
    split, validated = tables(tmp_path)
    report = check_overlap(split, validated, declared())
    assert {r.name: r.verdict for r in report.results} == {
        "row_coverage": "pass",
        "id_overlap": "pass",
        "id_alias": "pass",
        "group_overlap": "pass",
        "group_alias": "pass",
        "time_overlap": "pass",
    }
    leakage = check_leakage(split, validated, declared())
    assert {"min_rows", "duplicates", "label_conflicts"} <= {r.name for r in leakage.results} and {
        r.verdict for r in leakage.results if r.name != "min_rows"
    } == {"pass"}
    assert result(leakage, "min_rows").verdict == "warn"  # of two rows; see test_small_samples.py
    require_passed(report)
    require_passed(leakage)


FAULTS = [
    (
        "id_overlap",
        {"test": side(["a", "g"], ["p4", "p5"], [200.0, 210.0], [6.0, 7.0])},
        r"1 id \(id\) is on more than one side \(first: a\)",
    ),
    (
        "id_overlap",
        {"test": side(["f", "f"], ["p4", "p5"], [200.0, 210.0], [6.0, 7.0])},
        r"1 id \(id\) stands twice on one side",
    ),
    (
        "group_overlap",
        {"test": side(["f", "g"], ["p1", "p2"], [200.0, 210.0], [6.0, 7.0])},
        (
            r"2 patient values are in both train and test \(first: p., p.\), 5 rows; set"
            r" split\.kind: group with patient: group"
        ),
    ),
    (
        "time_overlap",
        {"val": side(["d", "e"], ["p3", "p3"], [69.0, 110.0], [4.0, 5.0])},
        (
            r"train ends at 1970-01-01T00:00:20\+00:00, less than the embargo of 50 s before val"
            r" begins"
        ),
    ),
    (
        "time_overlap",
        {"test": side(["f", "g"], ["p4", "p5"], [110.0, 210.0], [6.0, 7.0])},
        r"val ends at .* not before test begins",
    ),
]


@pytest.mark.req("D5")
@pytest.mark.parametrize(
    ("name", "sides", "message"), FAULTS, ids=[f"{f[0]}-{i}" for i, f in enumerate(FAULTS)]
)
def test_a_planted_overlap_is_refused_by_name(
    tmp_path: Path, name: str, sides: dict[str, Any], message: str
) -> None:
    report = check_overlap(*tables(tmp_path, **sides), declared())
    assert name in [r.name for r in report.failed]
    with pytest.raises(LeakageError, match=message):
        require_passed(report)


@pytest.mark.req("D5")
def test_the_embargo_is_in_time_units_and_exact_at_its_edge(tmp_path: Path) -> None:
    edge = side(["d", "e"], ["p3", "p3"], [70.0, 110.0], [4.0, 5.0])
    assert (
        result(check_overlap(*tables(tmp_path, val=edge), declared()), "time_overlap").verdict
        == "pass"
    )


@pytest.mark.req("D5")
def test_a_row_that_vanished_or_came_from_elsewhere_is_refused(tmp_path: Path) -> None:
    split, validated = tables(tmp_path / "lost", extra=["z"])
    with pytest.raises(LeakageError, match="1 row is on no side"):
        require_passed(check_overlap(split, validated, declared()))
    stated = split.model_copy(update={"excluded": {"embargo": 1}})
    require_passed(check_overlap(stated, validated, declared()))
    split, validated = tables(tmp_path / "stranger")
    only = validated.model_copy(
        update={
            "table": (
                tables(
                    tmp_path / "other", train=side(["a", "b"], ["p1", "p1"], [0.0, 1.0], [1.0, 2.0])
                )[1].table
            )
        }
    )
    with pytest.raises(LeakageError, match=r"1 row is not in the validated table \(c\)"):
        require_passed(check_overlap(split, only, declared()))


@pytest.mark.req("D5")
def test_files_are_read_as_they_are_now_and_a_changed_one_is_refused(tmp_path: Path) -> None:
    split, validated = tables(tmp_path)
    split.test.file.file.write_bytes(split.train.file.file.read_bytes())
    with pytest.raises(IntegrityError, match="changed after it was written"):
        check_overlap(split, validated, declared())


@pytest.mark.req("D6")
def test_a_group_overlap_can_be_allowed_with_a_reason(tmp_path: Path) -> None:
    planted = side(["f", "g"], ["p1", "p5"], [200.0, 210.0], [6.0, 7.0])
    allow = {
        "allow": [{"check": "group_overlap", "reason": "the same patients return in production"}]
    }
    report = check_overlap(*tables(tmp_path, test=planted), declared(checks=allow))
    found = result(report, "group_overlap")
    assert found.verdict == "allowed" and found.reason == "the same patients return in production"
    require_passed(report)


@pytest.mark.req("D6")
def test_rows_with_equal_features_on_two_sides_are_refused_with_pairs(tmp_path: Path) -> None:
    # equals row c: x null, c "a"
    copied = side(["f", "g"], ["p4", "p5"], [200.0, 210.0], [None, 7.0], y=[1, 0])
    report = check_leakage(*tables(tmp_path, test=copied), declared())
    found = result(report, "duplicates")
    assert (
        found.verdict == "fail"
        and found.figures["test_rows"] == 1
        and found.figures["val_rows"] == 0
    )
    assert found.evidence == ({"test_id": "f", "train_id": "c", "label": "1"},)
    with pytest.raises(
        LeakageError,
        match=(
            r"1 of 2 test rows \(50\.00%\) equals a train row in every feature, 1 of them with"
            r" another label; drop the copies"
        ),
    ):
        require_passed(report)
    tolerant = check_leakage(
        *tables(tmp_path, test=copied), declared(checks={"max_duplicate_share": 0.5})
    )
    assert result(tolerant, "duplicates").verdict == "warn"


@pytest.mark.req("D6")
def test_null_and_empty_text_and_shifted_text_are_not_duplicates(tmp_path: Path) -> None:
    train = side(
        ["a", "b", "c"], ["p1", "p1", "p2"], [0.0, 10.0, 20.0], [1.0, 1.0, 1.0], [None, "ab", ""]
    )
    test = side(["f", "g"], ["p4", "p5"], [200.0, 210.0], [1.0, 11.0], ["-", "b"])
    assert (
        result(
            check_leakage(*tables(tmp_path, train=train, test=test), declared()), "duplicates"
        ).verdict
        == "pass"
    )


@pytest.mark.req("S2")
def test_a_side_below_the_declared_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        LeakageError, match=r"fewer than 3 rows: val 2, test 2; change split\.fractions"
    ):
        require_passed(check_leakage(*tables(tmp_path), declared(checks={"min_rows": 3})))


@pytest.mark.req("D5")
def test_a_predefined_split_is_held_to_the_roles_too(tmp_path: Path) -> None:
    planted = side(["f", "g"], ["p1", "p5"], [15.0, 210.0], [6.0, 7.0])
    report = check_overlap(*tables(tmp_path, test=planted), declared(split={"kind": "predefined"}))
    assert {r.name for r in report.failed} == {"group_overlap", "time_overlap"}
    with pytest.raises(LeakageError, match="correct the split column"):
        require_passed(report)


@pytest.mark.req("D5")
def test_validation_carved_out_of_a_predefined_train_shares_its_time_but_test_does_not(
    tmp_path: Path,
) -> None:
    among = side(["d", "e"], ["p3", "p3"], [5.0, 15.0], [4.0, 5.0])
    carved = declared(split={"kind": "predefined", "carve_val": 0.3})
    assert (
        result(check_overlap(*tables(tmp_path / "1", val=among), carved), "time_overlap").verdict
        == "pass"
    )
    assert (
        result(
            check_overlap(
                *tables(tmp_path / "2", val=among), declared(split={"kind": "predefined"})
            ),
            "time_overlap",
        ).verdict
        == "fail"
    )
    early = side(["f", "g"], ["p4", "p5"], [12.0, 210.0], [6.0, 7.0])
    assert (
        result(
            check_overlap(*tables(tmp_path / "3", val=among, test=early), carved), "time_overlap"
        ).verdict
        == "fail"
    )
