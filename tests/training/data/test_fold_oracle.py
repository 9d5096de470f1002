"""D3: the rule of every kind of fold against an oracle in plain Python, row by row, on many small
random tables.

The rules are asked for in the engine, without files; `test_folds.py` looks at the files that folds
are written to.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from schemas.config import Declaration
from schemas.errors import SplitError
from schemas.records import TableSpec, digest_of
from tests.subset import some
from tests.training.data.chain import declared
from tests.training.data.sides import spec_of
from tests.training.data.test_folds import ONCE, ROLES, WAYS
from training.data.engine.engine import connect, rows
from training.data.split.fold_times import END
from training.data.split.folds import POOL, decide_fold, embargo_of, fold_way, label_end_sql
from training.data.split.ledger import opened
from training.data.split.split import ROWS

EXAMPLES, MANY_EXAMPLES = 12, 400
SEED, VAL = 5, 0.25


class Row(NamedTuple):
    """A row: its entity, its time, when its label is known (after it by so much), and its class."""

    who: int
    at: int
    late: int
    y: int


Tables = st.lists(
    st.builds(
        Row,
        st.integers(0, 15),
        st.integers(0, 40),
        st.sampled_from([0, 0, 1, 6]),
        st.integers(0, 1),
    ),
    min_size=4,
    max_size=60,
)


class Fold(NamedTuple):
    """Side of each row by id (or why it has none), and where the blocks lie."""

    side: dict[str, str]
    plan: dict[str, Any]


@pytest.fixture(scope="module")
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with closing(connect(threads=1)) as connection:
        yield connection


def declaration_for(way: str, k: int) -> tuple[TableSpec, Declaration]:
    split, cv, roles = WAYS[way]
    has = set(roles)
    spec = spec_of(
        group=("who",) if "who" in has else (),
        time="at" if "at" in has else None,
        label_time="known" if "known" in has else None,
        numeric=("x",),
    )
    columns = {"id": "id", "y": "label", "x": "numeric", **ROLES, **roles}
    return spec, declared(
        "made.parquet", columns, split=split, cv={**cv, "folds": k, "seed": SEED, "val": VAL}
    )


def folds_of(
    engine: duckdb.DuckDBPyConnection, table: list[Row], way: str, k: int, folder: Path
) -> list[Fold]:
    """What the rule says of each row, fold by fold; each is decided again, as if it were the
    first.
    """
    spec, declaration = declaration_for(way, k)
    ids = [f"r{i}" for i in range(len(table))]
    columns = {
        "__id": ids,
        "__key": ids,
        "__group": [f"g{r.who}" for r in table],
        "__time": [float(r.at) for r in table],
        "__label_time": [float(r.at + r.late) for r in table],
        "y": [r.y for r in table],
    }
    engine.register("given", pa.table(columns))
    engine.execute(
        f"create or replace view {ROWS} as select *, {label_end_sql(spec, declaration)} as {END}"
        " from given"
    )
    engine.execute(f"create or replace view {POOL} as select * from {ROWS}")
    found = []
    for number in range(k):
        with opened(folder / "ledger", digest_of(fold_way(declaration, spec))) as book:
            decided = decide_fold(engine, spec, declaration, number, book)
            found.append(
                Fold(
                    dict(
                        rows(
                            engine, f"select __id, {decided.side_sql} from {POOL} {decided.joined}"
                        )
                    ),
                    decided.plan,
                )
            )
    return found


# -------------------------------------------------------------------------------------------
# oracles


def hashed(salt: str, key: str) -> int:
    return int(hashlib.md5(f"{salt}:{key}".encode()).hexdigest()[:8], 16)


def number_of(key: str, k: int) -> int:
    """The fold that a key's hash falls into."""
    return hashed(f"cv:{SEED}", key) * k // 2**32


def by_hash(key: str, k: int, number: int) -> str:
    if number_of(key, k) == number:
        return "test"
    return "val" if hashed(f"cv-val:{SEED}", key) < VAL * 2**32 else "train"


def by_time(
    way: str, row: Row, table: list[Row], plan: dict[str, Any], declaration: Declaration
) -> str | None:
    """The side that a row may have, from the definition: what was known, how long the label looks
    ahead, how long the gap is.
    """
    has_known = "known" in WAYS[way][2]
    gap, horizon = embargo_of(declaration), declaration.cv.horizon

    def end(r: Row) -> float:
        return r.at + (r.late if has_known else 0) + horizon

    begin, stop = float(plan["test_begins"]), float(plan["test_ends"] or "inf")
    val, tested = float(plan["val_begins"]), [r for r in table if begin <= r.at < stop]
    if begin <= row.at < stop:
        return "test"
    if "purged" in way:
        last = max(map(end, tested))
        meets = row.at <= last and end(row) >= begin
        return (
            None
            if meets or last < row.at <= last + gap
            else "val"
            if row.at >= val
            else None
            if end(row) >= val
            else "train"
        )
    if row.at >= begin or end(row) >= begin or row.at + gap > begin:
        return None
    if plan["window"] is not None and row.at < begin - gap - plan["window"]:
        return None
    return "val" if row.at >= val else None if end(row) >= val or row.at + gap > val else "train"


def expected(way: str, table: list[Row], fold: Fold, number: int, k: int) -> list[str | None]:
    """The side of every row of one fold."""
    declaration = declaration_for(way, k)[1]
    if way in ("kfold", "group"):
        return [
            by_hash(f"g{r.who}" if way == "group" else f"r{i}", k, number)
            for i, r in enumerate(table)
        ]
    found = [by_time(way, r, table, fold.plan, declaration) for r in table]
    if way != "group_walk_forward":
        return found
    of_group = {0: "test", 1: "val"}
    groups = [of_group.get((number_of(f"g{r.who}", k) - number) % k, "train") for r in table]
    return [side if side == group else None for side, group in zip(found, groups, strict=True)]


def check_rows(way: str, table: list[Row], folds: list[Fold]) -> None:
    """Every row has the side that the oracle gives it; tested once; no group and no timestamp on
    two sides.
    """
    k, tested = len(folds), Counter[str]()
    for number, fold in enumerate(folds):
        side = {name: s if s in ("train", "val", "test") else None for name, s in fold.side.items()}
        if "stratified" not in way:
            assert list(side.values()) == expected(way, table, fold, number, k)
        tested.update(name for name, s in side.items() if s == "test")
        for column in ("who", "at"):
            if column in WAYS[way][2] and not (column == "at" and way == "group_walk_forward"):
                values: dict[int, set[str]] = {}
                for name, s in side.items():
                    if s is not None:
                        values.setdefault(getattr(table[int(name[1:])], column), set()).add(s)
                assert all(len(sides) == 1 for sides in values.values())
    assert set(tested.values()) <= {1} and (way not in ONCE or len(tested) == len(table))


def check_strata(way: str, table: list[Row], folds: list[Fold]) -> None:
    """Classes are dealt out evenly: rows to within one, groups to within the rows of the largest
    one.
    """
    units = (
        Counter((r.who, r.y) for r in table)
        if way == "stratified_group"
        else Counter({(i, r.y): 1 for i, r in enumerate(table)})
    )
    for label in {r.y for r in table}:
        counts = [
            sum(s == "test" and table[int(name[1:])].y == label for name, s in fold.side.items())
            for fold in folds
        ]
        largest = max(n for (_, y), n in units.items() if y == label)
        assert max(counts) - min(counts) <= largest * (1 if way == "stratified" else 2), (
            counts,
            largest,
        )


def compare(
    engine: duckdb.DuckDBPyConnection, folder: Path, way: str, table: list[Row], k: int
) -> None:
    """One example; folds of new groups in later time need a group for each side."""
    try:
        folds = folds_of(
            engine, table, way, max(k, 3) if way == "group_walk_forward" else k, folder
        )
    except SplitError as error:
        assert "expected at least" in str(error) or "need at least" in str(error)
        event("refused")
        return
    event("compared")
    check_rows(way, table, folds)
    if "stratified" in way:
        check_strata(way, table, folds)


SETTINGS = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.req("D3")
@pytest.mark.parametrize("way", some(WAYS, 4))
@SETTINGS
@given(table=Tables, k=st.integers(2, 5))
def test_every_row_has_the_side_that_the_definition_gives(
    engine: duckdb.DuckDBPyConnection,
    tmp_path_factory: pytest.TempPathFactory,
    way: str,
    table: list[Row],
    k: int,
) -> None:
    compare(engine, tmp_path_factory.mktemp("oracle"), way, table, k)


@pytest.mark.long
@pytest.mark.req("D3")
@pytest.mark.parametrize("way", WAYS)
@settings(SETTINGS, max_examples=MANY_EXAMPLES)
@given(table=Tables, k=st.integers(2, 5))
def test_every_row_has_the_side_that_the_definition_gives_on_many_tables(
    engine: duckdb.DuckDBPyConnection,
    tmp_path_factory: pytest.TempPathFactory,
    way: str,
    table: list[Row],
    k: int,
) -> None:
    compare(engine, tmp_path_factory.mktemp("oracle"), way, table, k)
