"""Tables of DuckDB and SQLite files: the same rows as a Parquet copy, read-only, sealed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config import DataConfig
from schemas.confinement import FLOW_RUN, ROOTS
from schemas.digest import sha256_file
from schemas.errors import ConfigError, SourceError
from schemas.load import load_declaration
from schemas.records import SourceRef
from schemas.scratch import SUFFIX
from tests.training.data.chain import declared, validated_of, write_table
from training.data.draft.draft import draft
from training.data.engine.engine import connect, rows
from training.data.sources.databases import recorded
from training.data.sources.snapshots import Rows, now, sealed_rows
from training.data.sources.source import fingerprint, relation_sql, verify_source

N = 300
TABLE = pa.table(
    {
        "id": list(range(N)),
        "age": [None if i % 7 == 0 else i / 3 for i in range(N)],
        "ward": [f"ward {i % 5}" for i in range(N)],
        "y": [i % 3 == 0 for i in range(N)],
    }
)
COLUMNS = {"id": "id", "y": "label", "*": "feature"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BULKHEAD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def duckdb_file(path: Path, *statements: str, **tables: pa.Table) -> Path:
    path.unlink(missing_ok=True)
    with contextlib.closing(duckdb.connect(str(path))) as connection:
        for name, table in tables.items():
            connection.register("given", table)
            connection.execute(f"create table {name} as select * from given")
            connection.unregister("given")
        for statement in statements:
            connection.execute(statement)
    return path


def sqlite_file(path: Path, *statements: str, **tables: pa.Table) -> Path:
    path.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for name, table in tables.items():
            kinds = {pa.int64(): "integer", pa.float64(): "real", pa.bool_(): "boolean"}
            columns = ", ".join(f'"{f.name}" {kinds.get(f.type, "text")}' for f in table.schema)
            connection.execute(f"create table {name} ({columns})")
            marks = ", ".join("?" * table.num_columns)
            lines = [tuple(line.values()) for line in table.to_pylist()]
            connection.executemany(f"insert into {name} values ({marks})", lines)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path


MAKE = {"duckdb": duckdb_file, "sqlite": sqlite_file}


def config(path: Path | str, **data: Any) -> DataConfig:
    return DataConfig(uri=str(path), **{"columns": {"*": "feature"}, **data})


def read(data: DataConfig) -> tuple[SourceRef, pa.Table]:
    source = fingerprint(data)
    with contextlib.closing(connect()) as connection:
        relation = relation_sql(source, data, connection)
        return source, connection.sql(f"select * from {relation}").to_arrow_table()


def refused(path: Path | str, **data: Any) -> str:
    with pytest.raises(SourceError) as error:
        fingerprint(config(path, **data))
    return str(error.value)


def files_of(home: Path) -> list[Path]:
    return [p for p in home.rglob("*") if p.is_file()] if home.is_dir() else []


# ------------------------------------------------------------------------------------- same rows


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
@pytest.mark.parametrize("choice", [{"query": "select * from visits"}, {}])
def test_a_table_validates_to_the_bytes_of_its_parquet_copy(
    kind: str, choice: dict[str, str], tmp_path: Path
) -> None:
    path = MAKE[kind](tmp_path / "clinic.db", visits=TABLE)
    copy = write_table(tmp_path / "visits.parquet", TABLE.to_pydict())
    mine = validated_of(declared(path, COLUMNS, data=choice), tmp_path / "a")
    other = validated_of(declared(copy, COLUMNS), tmp_path / "b")
    assert mine.table.file.sha256 == other.table.file.sha256
    assert mine.spec == other.spec


CELLS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(st.characters(exclude_characters="\x00", codec="utf-8"), max_size=9),
}


@settings(max_examples=5, deadline=None)
@given(st.data())
def test_any_table_is_read_as_it_is(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(CELLS)), min_size=1, max_size=4))
    count = data.draw(st.integers(1, 8))
    table = pa.table(
        {
            f"c{i}": pa.array(
                [data.draw(st.one_of(st.none(), CELLS[kind])) for _ in range(count)], kind
            )
            for i, kind in enumerate(kinds)
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        for kind, make in MAKE.items():
            found = read(config(make(Path(folder) / f"t.{kind}", t=table)))[1]
            assert found.to_pylist() == table.to_pylist(), kind


def test_types_of_duckdb_become_those_of_rows(tmp_path: Path) -> None:
    path = duckdb_file(
        tmp_path / "t.duckdb",
        "create type mood as enum ('ok', 'bad')",
        "create table t as select 1.25::decimal(10, 2) as d, sum(1) as h, 'ok'::mood as m,"
        " '00000000-0000-0000-0000-000000000001'::uuid as u, '{\"a\": 1}'::json as j, [1, 2] as l,"
        " timestamptz '2024-01-01 02:00:00+02' as z, '\\x00'::blob as b, null as n,"
        " [1.0::float, 2.0]::float[2] as v",
    )
    _, found = read(config(path))
    line = found.to_pylist()[0]
    assert line["d"] == Decimal("1.25") and line["h"] == 1 and line["m"] == "ok"
    assert line["u"].endswith("0001") and line["j"] == '{"a": 1}' and line["l"] == [1, 2]
    assert line["z"].isoformat() == "2024-01-01T00:00:00+00:00" and line["v"] == [1.0, 2.0]
    assert line["b"] == b"\x00" and line["n"] is None


def test_types_of_sqlite_are_those_of_all_values(tmp_path: Path) -> None:
    path = sqlite_file(
        tmp_path / "t.sqlite",
        "create table t (i integer, r real, both numeric, ok boolean, no boolean, born date,"
        " seen timestamp, zoned datetime, odd date, t text, b blob, n text)",
        "insert into t values (1, 1.5, 1, 1, 2, '2024-01-02', '2024-01-02 03:04:05.5',"
        " '2024-01-02T03:04Z', '1/2/24', '2024-01-02', x'00', null)",
        "insert into t values (2, 2, 2.5, 0, 0, '2024-01-03', '2024-01-02 03:04',"
        " '2024-01-02T05:04+02:00', '2024-01-02', '007', x'01', null)",
    )
    found = read(config(path))[1].schema
    kinds = {f.name: str(f.type) for f in found}
    assert kinds == {
        "i": "int64",
        "r": "double",
        "both": "double",
        "ok": "bool",
        "no": "int64",
        "born": "date32[day]",
        "seen": "timestamp[us]",
        "zoned": "timestamp[us, tz=UTC]",
        "odd": "string",
        "t": "string",
        "b": "binary",
        "n": "string",
    }


# ---------------------------------------------------------------------------------- what is kept


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_equal_rows_give_one_copy_and_changed_rows_another(
    kind: str, tmp_path: Path, home: Path
) -> None:
    path = MAKE[kind](tmp_path / "clinic.db", visits=TABLE)
    first = fingerprint(config(path))
    again = fingerprint(config(MAKE[kind](path, visits=TABLE)))
    assert again.files == first.files and again.sha256 == first.sha256
    assert again.snapshots[0].moment > first.snapshots[0].moment
    more = fingerprint(config(MAKE[kind](path, visits=TABLE.slice(1))))
    assert more.sha256 != first.sha256
    assert more.snapshots[0].rows == N - 1
    verify_source(first)  # the copy of the earlier rows is still there
    assert len([p for p in files_of(home) if p.suffix == ".parquet"]) == 2


def test_the_record_says_what_was_read_and_when(tmp_path: Path) -> None:
    path = duckdb_file(tmp_path / "clinic.duckdb", visits=TABLE)
    before = now()
    copy = fingerprint(config(path)).snapshots[0]
    assert (copy.table, copy.query, copy.rows) == ("visits", None, N)
    assert before <= copy.moment <= now()
    assert copy.sha256 == sha256_file(copy.path)
    query = "select id, y from visits"
    assert fingerprint(config(path, query=query)).snapshots[0].query == query


def test_a_record_of_files_has_no_word_on_snapshots(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.parquet", TABLE.to_pydict())
    assert "snapshots" not in fingerprint(config(path)).model_dump(mode="json")


def test_the_kept_copy_stands_in_for_a_database_that_went_on(tmp_path: Path) -> None:
    path = sqlite_file(tmp_path / "clinic.db", visits=TABLE)
    data = config(path, table="visits")
    then = fingerprint(data)
    sqlite_file(path, visits=TABLE.slice(5))
    as_then = recorded(data, then.sha256)
    assert as_then.table is None and fingerprint(as_then).sha256 == then.sha256
    copy = Path(then.files[0].path)
    copy.write_bytes(copy.read_bytes()[:-1] + b"x")  # damaged: it is no copy of that digest
    assert recorded(data, then.sha256) == data
    assert recorded(data, hashlib.sha256().hexdigest()) == data


def test_a_reproduction_reads_the_kept_copy(tmp_path: Path) -> None:
    from training.registry.reproduce import source_as_recorded  # it loads mlflow

    path = sqlite_file(tmp_path / "clinic.db", visits=TABLE)
    declaration = declared(path, COLUMNS, data={"table": "visits"})
    then = fingerprint(declaration.data)
    sqlite_file(path, visits=TABLE.slice(5))
    evidence = SimpleNamespace(source_sha256=then.sha256)
    overrides = source_as_recorded(SimpleNamespace(declaration=declaration, evidence=evidence))
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(declaration.model_dump(mode="json", exclude_unset=True)))
    assert fingerprint(load_declaration(file, overrides).data).sha256 == then.sha256
    assert fingerprint(load_declaration(file).data).sha256 != then.sha256
    evidence = SimpleNamespace(source_sha256=hashlib.sha256().hexdigest())
    assert not source_as_recorded(SimpleNamespace(declaration=declaration, evidence=evidence))


def test_an_interrupted_read_leaves_nothing(home: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from TABLE.to_batches()
        raise OSError("the connection is lost")

    with pytest.raises(OSError, match="lost"):
        sealed_rows("here", config("here"), Rows(TABLE.schema, batches(), now(), "visits"))
    assert not files_of(home) and not list(home.glob(f"*{SUFFIX}"))


# -------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_a_query_reads_this_database_alone_and_changes_nothing(kind: str, tmp_path: Path) -> None:
    path = MAKE[kind](tmp_path / "clinic.db", visits=TABLE)
    write_table(tmp_path / "other.parquet", TABLE.to_pydict())
    sqlite_file(tmp_path / "other.db", secret=TABLE)
    before = sha256_file(path)
    queries = {
        "duckdb": (
            f"select * from '{tmp_path / 'other.parquet'}'",
            f"select * from read_csv('{tmp_path / 'other.parquet'}')",
            f"select * from read_text('{tmp_path / 'other.parquet'}')",
            "select * from glob('/*')",
            "with gone as (delete from visits returning *) select * from gone",
            "select nextval('s') as n from visits",
        ),
        "sqlite": (
            "select load_extension('x') as a",
            "select * from pragma_table_info('visits')",
            f"select readfile('{tmp_path / 'other.db'}') as a",
            "with a as (select 1 as b) delete from visits",
            "with a as (select 1 as b) insert into visits select 1, 2, 3, 4",
        ),
    }[kind]
    for query in queries:
        assert "cannot be read" in refused(path, query=query), query
    assert sha256_file(path) == before
    assert not (set(tmp_path.iterdir()) - {path, *tmp_path.glob("other.*"), tmp_path / "home"})


def test_a_view_over_a_file_is_refused(tmp_path: Path) -> None:
    other = write_table(tmp_path / "other.parquet", TABLE.to_pydict())
    path = duckdb_file(tmp_path / "t.duckdb", f"create view v as select * from '{other}'")
    assert "may read this database alone" in refused(path)


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_a_table_is_named_where_there_are_several(kind: str, tmp_path: Path) -> None:
    view = "create view young as select * from visits where age < 40"
    path = MAKE[kind](tmp_path / "clinic.db", view, visits=TABLE)
    assert "holds 2 tables; name one with data.table" in (said := refused(path))
    assert said.endswith("visits, young")
    assert "no table 'nowhere' that may be read, expected one of visits, young" in refused(
        path, table="nowhere"
    )
    assert "found none" in refused(MAKE[kind](tmp_path / "empty.db", "create table x (a int)",
                                              "drop table x"))  # fmt: skip
    assert "no such column: nono" in (said := refused(path, query="select nono from visits")) or (
        '"nono" not found' in said
    )
    assert read(config(path, table="young"))[1].num_rows < N


def test_a_table_is_for_databases_and_a_sheet_for_excel(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.parquet", TABLE.to_pydict())
    assert "data.table is for databases" in refused(path, table="t")
    assert "data.query is for databases" in refused(path, query="select 1 as a")
    assert "data.sheet is for Excel files" in refused(path, sheet="t")
    database = duckdb_file(tmp_path / "t.duckdb", t=TABLE)
    assert "data.sheet is for Excel files" in refused(database, sheet="t")


def test_a_column_without_counterpart_is_refused_with_a_query_that_works(tmp_path: Path) -> None:
    path = duckdb_file(
        tmp_path / "t.duckdb",
        "create table t as select i as id, interval 2 hour as stay, {'x': i} as place, time '10:00'"
        " as at from range(9) r(i)",
    )
    said = refused(path)
    assert "column 'stay' is INTERVAL, 'place' is STRUCT, 'at' is TIME" in said
    query = said.partition("declare query: ")[2].rpartition(", or leave")[0]
    line = read(config(path, query=query))[1].to_pylist()[3]
    assert line == {"id": 3, "stay": 7200.0, "place": 3, "at": 36000.0}
    ignored = {"stay": "ignore", "place": "ignore", "at": "ignore", "*": "feature"}
    assert read(config(path, columns=ignored))[1].num_columns == 4


def test_numbers_among_texts_are_refused_with_a_query_that_works(tmp_path: Path) -> None:
    path = sqlite_file(tmp_path / "t.sqlite", "create table t (id integer, mass)",
                       "insert into t values (1, 2.5), (2, 'n/a'), (3, 4)")  # fmt: skip
    said = refused(path)
    assert "column 'mass' is 2 numbers and 1 text" in said
    query = said.partition("declare query: ")[2].rpartition(", or leave")[0]
    assert read(config(path, query=query))[1]["mass"].to_pylist() == [2.5, None, 4.0]


def test_names_that_sql_does_not_tell_apart_are_refused(tmp_path: Path) -> None:
    path = duckdb_file(tmp_path / "t.duckdb", t=TABLE)
    assert "a different name for each column" in refused(path, query="select id, age as ID from t")


def test_a_file_that_a_program_writes_to_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = sqlite_file(tmp_path / "t.sqlite", t=TABLE)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("begin exclusive")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("training.data.sources.sqlite_file.WAIT_SECONDS", 0.1)
            assert "another program writes to it" in refused(path)
    assert fingerprint(config(path)).snapshots[0].rows == N


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_a_damaged_file_is_refused_in_a_sentence(kind: str, tmp_path: Path) -> None:
    path = MAKE[kind](tmp_path / "t.db", t=TABLE)
    path.write_bytes(path.read_bytes()[:4000])
    assert "damaged" in refused(path)
    (tmp_path / "no.db").write_bytes(b"nothing of a database")
    assert "unknown format '.db'" in refused(tmp_path / "no.db")


def test_a_flow_run_of_a_worker_reads_under_its_roots_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir(), outside.mkdir()
    monkeypatch.setenv(FLOW_RUN, "1")
    monkeypatch.setenv(ROOTS, str(inside))
    assert fingerprint(config(duckdb_file(inside / "t.duckdb", t=TABLE))).snapshots[0].rows == N
    os.symlink(duckdb_file(outside / "t.duckdb", t=TABLE), inside / "link.duckdb")
    for path in (outside / "t.duckdb", inside / "link.duckdb"):
        with pytest.raises(ConfigError, match="may read only under"):
            fingerprint(config(path))
    with pytest.raises(ConfigError, match=r"may call only hosts that BULKHEAD_HTTP_HOSTS lists"):
        fingerprint(config("postgresql://db.example/clinic"))


# ----------------------------------------------------------------------------------------- drafts


def test_a_draft_names_the_table_and_its_own_run_takes_it(tmp_path: Path) -> None:
    path = sqlite_file(tmp_path / "clinic.db", visits=TABLE)
    tree = yaml.safe_load(draft(str(path), label="y"))
    assert tree["data"]["table"] == "visits" and tree["name"] == "visits"
    assert rows_of(tree) == N


def rows_of(tree: dict[str, Any]) -> int:
    data = DataConfig(**tree["data"])
    with contextlib.closing(connect()) as connection:
        relation = relation_sql(fingerprint(data), data, connection)
        return int(rows(connection, f"select count(*) from {relation}")[0][0])
