"""D9, S1: what the engine lets through, and what its files promise."""

from __future__ import annotations

import resource
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.digest import sha256_file
from training.data.engine import engine
from training.data.engine.engine import (
    confine,
    connect,
    ident,
    literal,
    row,
    row_md5_sql,
    row_text_sql,
    rows,
    write_parquet,
)

ENGINE = connect(threads=1)
TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00"), max_size=8)


@pytest.mark.req("S1")
@settings(max_examples=40, deadline=None)
@given(
    name=TEXT.filter(bool),
    value=st.one_of(
        TEXT,
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.booleans(),
        st.none(),
    ),
)
def test_any_name_and_value_comes_back_as_it_went_in(name: str, value: object) -> None:
    found = ENGINE.execute(f"select v as {ident(name)} from (select {literal(value)} as v)")  # type: ignore[arg-type]
    assert found.description[0][0] == name
    assert found.fetchall() == [(value,)]


@pytest.mark.req("S1")
@pytest.mark.parametrize(
    ("call", "bad"),
    [(ident, "a\x00b"), (literal, "a\x00b"), (literal, float("inf")), (literal, float("nan"))],
)
def test_values_that_sql_cannot_hold_are_refused(call: object, bad: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        call(bad)  # type: ignore[operator]


@pytest.mark.req("S1")
def test_the_engine_sees_no_python_variable_and_loads_no_extension() -> None:
    secret = {"a": [1]}
    connection = connect()
    with pytest.raises(duckdb.CatalogException, match="does not exist"):
        connection.execute("select * from secret")
    with pytest.raises(duckdb.Error):
        connection.execute("load spatial")
    assert secret


@pytest.mark.req("S1")
def test_a_confined_engine_reads_its_files_and_no_other(tmp_path: Path) -> None:
    for name in ("open", "closed"):
        (tmp_path / f"{name}.csv").write_text("a\n1\n")
    connection = connect()
    confine(connection, [tmp_path / "open.csv"])
    assert row(
        connection, f"select count(*) from read_csv({literal(str(tmp_path / 'open.csv'))})"
    ) == (1,)
    with pytest.raises(duckdb.PermissionException):
        connection.execute(f"select * from read_csv({literal(str(tmp_path / 'closed.csv'))})")
    with pytest.raises(duckdb.Error):
        connection.execute("set enable_external_access = true")


def test_a_query_of_one_row_is_held_to_it() -> None:
    with pytest.raises(RuntimeError, match="expected one row, got 2"):
        row(connect(), "select * from range(2)")


VALUES = st.one_of(st.none(), st.sampled_from(["", "-", "1:a", "a", "b", "1", ":", "0:"]))


@pytest.mark.req("D6")
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=2, max_size=6))
def test_rows_share_a_text_only_if_they_are_equal(table: list[tuple[str | None, ...]]) -> None:
    values = ", ".join("(" + ", ".join(literal(v) for v in r) + ")" for r in table)
    texts = [
        r[0]
        for r in rows(
            ENGINE, f"select {row_text_sql(['a', 'b', 'c'])} from (values {values}) t(a, b, c)"
        )
    ]
    assert len(set(texts)) == len(set(table))
    turned = [
        r[0]
        for r in rows(
            ENGINE, f"select {row_md5_sql(['c', 'a', 'b'])} from (values {values}) t(a, b, c)"
        )
    ]
    assert turned == [
        r[0]
        for r in rows(
            ENGINE, f"select {row_md5_sql(['a', 'b', 'c'])} from (values {values}) t(a, b, c)"
        )
    ]


QUERY = (
    "select md5(cast(i as varchar)) as h, i, i / 7 as x, cast([i % 256, 1] as utinyint[2]) as t"
    " from range(150000) r(i) order by h"
)


@pytest.mark.req("P5")
def test_equal_rows_give_equal_bytes_for_any_number_of_threads(tmp_path: Path) -> None:
    first = write_parquet(connect(threads=1), QUERY, tmp_path / "one.parquet", {"k": "v"})
    second = write_parquet(connect(threads=4), QUERY, tmp_path / "four.parquet", {"k": "v"})
    assert first.rows == second.rows == 150_000
    assert first.file.sha256 == second.file.sha256 == sha256_file(tmp_path / "four.parquet")
    assert pq.read_schema(tmp_path / "one.parquet").metadata == {b"k": b"v"}
    assert pq.ParquetFile(tmp_path / "one.parquet").metadata.num_row_groups == 3


@pytest.mark.req("D9")
def test_wide_rows_make_small_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "ROW_GROUP_BYTES", 8 << 20)
    # longer than the engine's own arrays can be
    schema = pa.schema([pa.field("t", pa.list_(pa.float32(), 200_000))])
    write_parquet(
        connect(),
        "select cast(range(0, 200000) as float[]) as t from range(15)",
        tmp_path / "wide.parquet",
        schema=schema,
    )
    written = pq.ParquetFile(tmp_path / "wide.parquet")
    assert written.schema_arrow.field("t").type == schema.field("t").type
    assert written.metadata.row_group(0).num_rows == (8 << 20) // 800_000 == 10


@pytest.mark.req("S2")
def test_a_query_that_fails_midway_leaves_nothing_and_the_old_file_as_it_was(
    tmp_path: Path,
) -> None:
    write_parquet(connect(), "select 1 as a", tmp_path / "t.parquet")
    before = (tmp_path / "t.parquet").read_bytes()
    failing = (
        "select case when i > 149000 then cast('x' || i as integer) else i end as a from"
        " range(150000) r(i)"
    )
    with pytest.raises(Exception, match="Could not convert"):
        write_parquet(connect(), failing, tmp_path / "t.parquet")
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]
    assert (tmp_path / "t.parquet").read_bytes() == before


@pytest.mark.parametrize(("rows", "limit"), [(10, 16), (3 * engine.ROW_GROUP_ROWS, 600_000)])
def test_a_full_disk_is_told_as_that_at_the_end_and_midway_and_the_rest_is_not_tried(
    tmp_path: Path, rows: int, limit: int
) -> None:
    """A limit of the size of files fails as a full disk does: at the rows that wait for the end, or
    at a row group on the way.
    """
    table, before = pa.table({"x": [0.5] * rows}), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        with (
            pytest.raises(OSError, match="File too large"),
            engine.TableWriter(tmp_path / "x.parquet", table.schema) as writer,
        ):
            writer.write(table)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_empty_result_is_a_file_with_columns(tmp_path: Path) -> None:
    ref = write_parquet(connect(), "select 1 as a where false", tmp_path / "none.parquet")
    assert ref.rows == 0 and pq.read_table(ref.file.path).column_names == ["a"]
