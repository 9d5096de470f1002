"""D3, D4, D5: each way to split keeps its promise on the written files, also when rows are added,
removed or reordered.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from schemas.config import SPLITS
from schemas.errors import DataError, IntegrityError, SplitError
from schemas.records import SplitTables, TestTable, TrainTable, ValidatedTable, ValTable
from tests.subset import some
from tests.training.data.chain import declared, read, sides_of, split_of, write_table
from training.data.engine.engine import connect, rows
from training.data.leakage import check_overlap, require_passed
from training.data.split.hash_sides import cut_point, hash_side_sql

COLUMNS: dict[str, Any] = {
    "id": "id",
    "who": "group",
    "at": "time",
    "side": "split",
    "y": "label",
    "x": "numeric",
}
WAYS: dict[
    str, tuple[dict[str, Any], set[str]]
] = {  # the split, and the roles that it needs declared
    "random": ({"kind": "random", "seed": 3}, set()),
    "group": ({"kind": "group", "seed": 1}, {"who"}),
    "stratified": ({"kind": "stratified"}, set()),
    "stratified_group": ({"kind": "stratified_group"}, {"who"}),
    "time": ({"kind": "time", "embargo": 3}, {"at"}),
    "group_time": (
        {
            "kind": "group_time",
            "embargo": 2,
            "group_fractions": {"train": 0.4, "val": 0.3, "test": 0.3},
        },
        {"who", "at"},
    ),
    "predefined": ({"kind": "predefined", "carve_val": 0.4}, {"who", "side"}),
    "balanced": ({"kind": "group", "seed": 2, "balance": True}, {"who"}),
}


def table_of(num_rows: int, seed: int, first: int = 0) -> dict[str, list[Any]]:
    """Rows of about `num_rows / 3` groups in which side goes by group; label and time are drawn."""
    draw = random.Random(seed)
    who = [draw.randrange(max(1, num_rows // 3)) for _ in range(num_rows)]
    return {
        "id": [f"r{first + i}" for i in range(num_rows)],
        "who": [f"g{g}" for g in who],
        "at": [float(draw.randrange(200)) for _ in range(num_rows)],
        "side": ["test" if g % 4 == 0 else "train" for g in who],
        "y": [int(draw.random() < 0.4) for _ in range(num_rows)],
        "x": [draw.random() for _ in range(num_rows)],
    }


def taken(table: dict[str, list[Any]], order: list[int]) -> dict[str, list[Any]]:
    return {name: [values[i] for i in order] for name, values in table.items()}


def joined(*tables: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: [v for t in tables for v in t[name]] for name in tables[0]}


def made(
    folder: Path, table: dict[str, list[Any]], way: str, ledger: Path | None = None, **changes: Any
) -> tuple[ValidatedTable, SplitTables, Any]:
    declaration, needed = {**WAYS[way][0], **changes}, WAYS[way][1]
    columns = {
        n: c if n not in ("who", "at", "side") or n in needed else "ignore"
        for n, c in COLUMNS.items()
    }
    declared_as = declared(write_table(folder / "t.parquet", table), columns, split=declaration)
    return *split_of(declared_as, folder / "out", ledger), declared_as


@pytest.mark.req("D3")
@pytest.mark.req("D5")
@pytest.mark.parametrize("way", some(WAYS, 3))
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(num_rows=st.integers(100, 300), seed=st.integers(0, 10_000))
def test_every_row_is_on_one_side_or_left_out_and_the_promise_holds(
    tmp_path_factory: pytest.TempPathFactory, way: str, num_rows: int, seed: int
) -> None:
    table = table_of(num_rows, seed)
    folder = tmp_path_factory.mktemp(way)
    try:
        validated, sides, declaration = made(folder, table, way)
    except (
        SplitError
    ) as error:  # small draws may leave a side empty, or with one class: then it must say so
        assert "expected" in str(error) and "split" in str(error)
        reject()
    side = sides_of(sides)
    assert len(side) + sum(sides.excluded.values()) == num_rows == validated.table.rows
    assert set(side) <= set(table["id"]) and set(sides.excluded) <= {"embargo", "group_time"}
    if "who" in WAYS[way][1]:
        groups = sides_of(sides, "__group")
        assert all(
            groups[table["who"][i]] == side[name]
            for i, name in enumerate(table["id"])
            if name in side
        )
    if "at" in WAYS[way][1]:
        times = {s: read(sides.side(s))["__time"] for s in SPLITS}
        gap = WAYS[way][0]["embargo"]
        assert max(times["train"]) + gap <= min(times["val"]) and max(times["val"]) + gap <= min(
            times["test"]
        )
    require_passed(check_overlap(sides, validated, declaration))


@pytest.mark.req("D4")
@pytest.mark.parametrize("way", some(WAYS, 3))
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10_000))
def test_rows_that_are_added_removed_or_reordered_move_no_other_row(
    tmp_path_factory: pytest.TempPathFactory, way: str, seed: int
) -> None:
    folder, draw = tmp_path_factory.mktemp(way), random.Random(seed)
    first, later = table_of(150, seed), table_of(60, seed + 1, first=150)
    try:
        before = sides_of(made(folder / "1", first, way, folder / "ledger")[1])
        order = draw.sample(range(210), 210)
        grown = sides_of(
            made(folder / "2", taken(joined(first, later), order), way, folder / "ledger")[1]
        )
        fewer = sides_of(
            made(folder / "3", taken(joined(first, later), order[:160]), way, folder / "ledger")[1]
        )
    except SplitError:
        reject()
    assert all(grown.get(name) == before.get(name) for name in first["id"])
    assert all(fewer[name] == grown[name] for name in fewer)
    assert way in ("time", "group_time") or set(grown) == {*first["id"], *later["id"]}


@pytest.mark.req("D4")
@pytest.mark.parametrize("way", some(WAYS, 3))
def test_the_order_of_the_source_does_not_show_in_the_files(tmp_path: Path, way: str) -> None:
    table = table_of(200, 5)
    one = made(tmp_path / "1", table, way)[1]
    two = made(tmp_path / "2", taken(table, random.Random(1).sample(range(200), 200)), way)[1]
    assert [one.side(s).file.sha256 for s in SPLITS] == [two.side(s).file.sha256 for s in SPLITS]
    assert (one.plan, one.summary, one.excluded) == (two.plan, two.summary, two.excluded)


@pytest.mark.req("D4")
@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.text(
            st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00"), max_size=12
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(0, 5),
)
def test_the_rule_is_the_hash_that_every_language_computes(keys: list[str], seed: int) -> None:
    fractions = declared("t.csv").split.fractions  # type: ignore[union-attr]
    connection = connect(threads=1)
    connection.register("k", pa.table({"position": range(len(keys)), "key": keys}))
    found = [
        r[0]
        for r in rows(
            connection, f"select {hash_side_sql('key', seed, fractions)} from k order by position"
        )
    ]
    digits = [hashlib.md5(f"{seed}:{key}".encode()).hexdigest()[:8] for key in keys]
    assert found == [
        "train" if d < cut_point(0.7) else "val" if d < cut_point(0.85) else "test" for d in digits
    ]


@pytest.mark.req("D3")
def test_shares_are_near_the_declared_ones_and_the_seed_decides(tmp_path: Path) -> None:
    table = table_of(6000, 2)
    found = [sides_of(made(tmp_path / str(seed), table, "random", seed=seed)[1]) for seed in (0, 1)]
    for sides in found:
        shares = [sum(s == side for s in sides.values()) / 6000 for side in SPLITS]
        assert shares == pytest.approx([0.7, 0.15, 0.15], abs=0.02)
    # 0.535 would agree by chance
    assert sum(found[0][name] == found[1][name] for name in found[0]) < 4000


@pytest.mark.req("D3")
@pytest.mark.parametrize("way", ["stratified", "stratified_group"])
def test_strata_have_the_declared_shares_now_and_after_growth(tmp_path: Path, way: str) -> None:
    first, later = table_of(900, 7), table_of(900, 8, first=900)
    later["y"] = [1] * 900  # the classes' balance changes
    tolerance = 0.002 if way == "stratified" else 0.02
    for name, table in (("1", first), ("2", joined(first, later))):
        sides = made(tmp_path / name, table, way, tmp_path / "ledger")[1]
        counts = {s: sides.summary[s]["label"]["counts"] for s in SPLITS}
        for label in ("0", "1"):
            total = sum(counts[s][label] for s in SPLITS)
            assert [counts[s][label] / total for s in SPLITS] == pytest.approx(
                [0.7, 0.15, 0.15], abs=tolerance
            )
        # groups that were placed stay, whatever their new rows say
        tolerance = 0.002 if way == "stratified" else 0.06


@pytest.mark.req("D3")
def test_a_number_is_stratified_by_its_quantiles_which_are_frozen(tmp_path: Path) -> None:
    table = table_of(400, 3)
    table["y"] = [random.Random(i).lognormvariate(0, 1) for i in range(400)]
    columns = {**COLUMNS, "who": "ignore", "at": "ignore", "side": "ignore"}
    way = {"kind": "stratified", "bins": 5}
    grown = joined(table, {**table_of(50, 4, first=400), "y": [99.0] * 50})
    plans = []
    for name, source in (("1", table), ("2", grown)):
        declaration = declared(
            write_table(tmp_path / f"{name}.parquet", source), columns, "regression", way
        )
        sides = split_of(declaration, tmp_path / name, tmp_path / "ledger")[1]
        plans.append(sides.plan["bin_edges"])
        of_bin = {
            s: np.bincount(
                np.searchsorted(plans[0], read(sides.side(s))["y"], side="right"), minlength=5
            )
            for s in SPLITS
        }
        size = np.array([80, 80, 80, 80, 80 if name == "1" else 130])
        assert all(
            (np.abs(of_bin[s] - share * size) <= 1).all()
            for s, share in (("train", 0.7), ("val", 0.15), ("test", 0.15))
        )
    assert plans[0] == plans[1] and len(plans[0]) == 4


@pytest.mark.req("D3")
def test_pins_fix_groups_by_hand_and_must_exist(tmp_path: Path) -> None:
    table = table_of(200, 9)
    pin = {"g1": "val", "g2": "test", "g3": "test"}
    sides = sides_of(made(tmp_path / "1", table, "group", pin=pin)[1], "__group")
    free = sides_of(made(tmp_path / "2", table, "group")[1], "__group")
    assert all(sides[g] == s for g, s in pin.items()) and all(
        sides[g] == free[g] for g in free if g not in pin
    )
    with pytest.raises(
        SplitError,
        match=(
            r"split\.pin: expected names of groups, got 'G1', which no row has; groups are 'g0',"
            r" 'g1'"
        ),
    ):
        made(tmp_path / "3", table, "group", pin={"G1": "val"})
    with pytest.raises(SplitError, match=r"split\.pin: .*'nobody'"):
        made(tmp_path / "4", table, "group_time", pin={"nobody": "val"})


def timed(values: list[Any]) -> dict[str, list[Any]]:
    return {
        "id": list(range(len(values))),
        "at": values,
        "x": [float(i) for i in range(len(values))],
        "y": [i % 2 for i in range(len(values))],
    }


TIMED = {"id": "id", "at": "time", "x": "numeric", "y": "label"}


@pytest.mark.req("D3")
def test_time_cuts_at_a_share_are_exact_and_part_no_timestamp(tmp_path: Path) -> None:
    declaration = declared(
        write_table(tmp_path / "a.parquet", timed([float(i) for i in range(100)])),
        TIMED,
        split={"kind": "time"},
    )
    sides = split_of(declaration, tmp_path / "a")[1]
    assert sides.plan["cuts"] == {"val": 70.0, "test": 85.0} and [
        sides.side(s).rows for s in SPLITS
    ] == [70, 15, 15]
    # 70 % falls into the tie at 2: train ends before or after it, never within
    ties = [1.0] * 60 + [2.0] * 25 + [3.0] * 15
    sides = split_of(
        declared(write_table(tmp_path / "b.parquet", timed(ties)), TIMED, split={"kind": "time"}),
        tmp_path / "b",
    )[1]
    assert [sides.side(s).rows for s in SPLITS] == [60, 25, 15]


@pytest.mark.req("D3")
def test_declared_cuts_take_an_embargo_after_each(tmp_path: Path) -> None:
    days = [dt.datetime(2024, 1, 1) + dt.timedelta(days=i) for i in range(60)]
    way = {
        "kind": "time",
        "cuts": {"val": "2024-01-21", "test": "2024-02-10T00:00:00Z"},
        "embargo": "2d",
    }
    sides = split_of(
        declared(write_table(tmp_path / "t.parquet", timed(days)), TIMED, split=way),
        tmp_path / "out",
    )[1]
    assert (
        [sides.side(s).rows for s in SPLITS] == [20, 18, 18]
        and sides.excluded == {"embargo": 4}
        and sides.ledger is None
    )
    assert (
        sides.summary["val"]["time_min"] == "2024-01-23T00:00:00+00:00"
        and sides.summary["val"]["time_max"] == "2024-02-09T00:00:00+00:00"
    )
    assert sides.summary["test"]["time_min"] == "2024-02-12T00:00:00+00:00"


@pytest.mark.req("D3")
def test_a_predefined_split_follows_its_column_and_carves_whole_groups(tmp_path: Path) -> None:
    table = table_of(300, 4)
    sides = made(tmp_path, table, "predefined")[1]
    side, declared_side = sides_of(sides), dict(zip(table["id"], table["side"], strict=True))
    assert all((side[name] == "test") == (declared_side[name] == "test") for name in side)
    assert 0.2 < sides.side("val").rows / sum(s == "train" for s in table["side"]) < 0.6


@pytest.mark.req("D5")
def test_only_the_split_names_train_and_each_file_says_its_side(tmp_path: Path) -> None:
    sides = made(tmp_path, table_of(200, 1), "random")[1]
    assert (type(sides.train), type(sides.val), type(sides.test)) == (
        TrainTable,
        ValTable,
        TestTable,
    )
    for side in SPLITS:
        assert (
            pq.read_schema(sides.side(side).file.path).metadata[b"bulkhead.side"] == side.encode()
        )
        ids = read(sides.side(side))["__id"]
        assert ids == sorted(ids, key=lambda i: hashlib.md5(i.encode()).hexdigest())


@pytest.mark.req("P8")
def test_the_summary_tells_rows_groups_times_and_labels(tmp_path: Path) -> None:
    table = table_of(300, 11)
    sides = made(tmp_path, table, "group_time")[1]
    for side in SPLITS:
        found, told = read(sides.side(side)), sides.summary[side]
        assert told["rows"] == len(found["__id"]) and told["groups"] == len(set(found["__group"]))
        assert (told["time_min"], told["time_max"]) == (min(found["__time"]), max(found["__time"]))
        assert told["label"]["counts"] == {
            str(v): found["y"].count(v) for v in sorted(set(found["y"]))
        }
    assert sum(sides.summary[s]["share"] for s in SPLITS) == pytest.approx(1, abs=1e-5)


def few(**columns: Any) -> dict[str, list[Any]]:
    base = {
        "id": list(range(12)),
        "who": ["a", "b", "c"] * 4,
        "at": [float(i) for i in range(12)],
        "side": ["train"] * 6 + ["val"] * 3 + ["test"] * 3,
        "y": [0, 1] * 6,
        "x": [1.0] * 12,
    }
    return {**base, **columns}


BAD: list[tuple[str, dict[str, list[Any]], str, dict[str, Any], str]] = [
    (
        "one group",
        few(who=["a"] * 12),
        "group",
        {},
        (
            r"split group: expected rows on every side, got train 12, val 0, test 0; 1 group: val"
            r" and test would be empty; fix some groups by hand with split\.pin"
        ),
    ),
    (
        "too few",
        few(),
        "random",
        {"fractions": {"train": 0.98, "val": 0.01, "test": 0.01}},
        r"would be empty; change split\.seed or split\.fractions",
    ),
    (
        "embargo",
        few(),
        "time",
        {"embargo": 50},
        (
            r"split time: expected rows on every side, got train 8, val 0, test 0, 4 left out"
            r" \(embargo\): .*shorten split\.embargo"
        ),
    ),
    (
        "two times",
        few(at=[1.0, 2.0] * 6),
        "time",
        {},
        r"split\.fractions: expected at least 3 different times to cut between, got 2",
    ),
    (
        "no val",
        few(side=["train"] * 8 + ["test"] * 4),
        "predefined",
        {"carve_val": 0.0},
        r"val would be empty; set split\.carve_val",
    ),
    (
        "unknown value",
        few(side=["train"] * 6 + ["dev"] * 3 + ["test"] * 3),
        "predefined",
        {},
        (
            r"column 'side' \(role split\): expected .*got also 'dev' \(3 rows\); list them under"
            r" split\.train"
        ),
    ),
    (
        "value twice",
        few(),
        "predefined",
        {"train": ["train", "test"]},
        r"expected each value of 'side' to mean one side, got test under several",
    ),
    (
        "one class in test",
        few(y=[0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 1, 1]),
        "time",
        {"embargo": 0},
        (
            r"column 'y': expected at least two classes in test, got only '1' \(2 rows\), so"
            r" ranking metrics are not defined"
        ),
    ),
    (
        "one class in train",
        few(y=[1] * 8 + [0, 1, 0, 1]),
        "time",
        {"embargo": 0},
        (
            r"column 'y': expected at least two classes in train, got only '1' \(8 rows\), so"
            r" nothing can be learnt"
        ),
    ),
    (
        "cuts out of order",
        few(),
        "time",
        {"cuts": {"val": 8, "test": 4}},
        r"split\.cuts: expected val before test, got 8\.0 and 4\.0",
    ),
    (
        "cuts as dates",
        few(),
        "time",
        {"cuts": {"val": "2024-01-01", "test": "2024-02-01"}},
        r"split\.cuts\.val: column 'at' holds numbers, got the text '2024-01-01'; give a number",
    ),
]


@pytest.mark.req("S2")
@pytest.mark.parametrize(
    ("table", "way", "changes", "message"), [b[1:] for b in BAD], ids=[b[0] for b in BAD]
)
def test_a_split_that_cannot_be_made_is_refused_and_freezes_nothing(
    tmp_path: Path, table: Any, way: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SplitError, match=message):
        made(tmp_path, table, way, tmp_path / "ledger", **changes)
    written = {p.name for p in (tmp_path / "out").iterdir()}
    assert not (tmp_path / "ledger").exists()
    assert written == {"validated.parquet", "row_places.parquet"}


@pytest.mark.req("S2")
@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        ({"val": 5, "test": 7}, "holds timestamps, got the number 5"),
        ({"val": "soon", "test": "later"}, "expected an ISO date or time"),
    ],
)
def test_cuts_must_fit_a_column_of_timestamps(
    tmp_path: Path, cuts: dict[str, Any], message: str
) -> None:
    days = [dt.datetime(2024, 1, 1) + dt.timedelta(days=i) for i in range(10)]
    with pytest.raises(
        SplitError, match=rf"split\.cuts\.val: {message}|split\.cuts\.val: column 'at' {message}"
    ):
        split_of(
            declared(
                write_table(tmp_path / "t.parquet", timed(days)),
                TIMED,
                split={"kind": "time", "cuts": cuts},
            ),
            tmp_path / "out",
        )


@pytest.mark.req("S2")
def test_a_class_that_train_lacks_is_named(tmp_path: Path) -> None:
    table = few(y=["a", "b"] * 3 + ["a", "c", "b"] + ["a", "b", "c"])
    columns = {**COLUMNS, "who": "ignore", "at": "ignore"}
    declaration = declared(
        write_table(tmp_path / "t.parquet", table), columns, "multiclass", "predefined"
    )
    with pytest.raises(
        SplitError,
        match=r"column 'y': expected every class of val in train, but train lacks 'c' \(1 row\)",
    ):
        split_of(declaration, tmp_path / "out")


@pytest.mark.req("D5")
def test_a_table_that_changed_after_validation_is_refused(tmp_path: Path) -> None:
    validated, _, declaration = made(tmp_path, table_of(100, 1), "random")
    pq.write_table(pq.read_table(validated.table.file.path).slice(1), validated.table.file.path)
    from training.data.split.split import split

    with pytest.raises(IntegrityError, match="changed after it was written"):
        split(validated, declaration, tmp_path / "again", tmp_path / "ledger")
    assert issubclass(SplitError, DataError)
