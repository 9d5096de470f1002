"""Tables of a real PostgreSQL: the bytes of their Parquet copy, one snapshot, plain refusals."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from schemas.config import DataConfig
from schemas.digest import sha256_file
from schemas.errors import SourceError
from schemas.records import SourceRef
from schemas.scratch import SUFFIX
from tests.e2e.operated import until
from tests.e2e.postgres import PASSWORD, postgres
from tests.training.data.chain import declared
from training.data.arrays.shards import materialise
from training.data.engine.engine import connect
from training.data.fit.normalize import fit
from training.data.sources.source import fingerprint, relation_sql
from training.data.split.split import split
from training.data.table.validate import validate

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        find_spec("adbc_driver_postgresql") is None or find_spec("psycopg") is None,
        reason="pip install adbc-driver-postgresql psycopg (extra postgres)",
    ),
]
ROWS = 300_000
COLUMNS = {"id": "id", "y": "label", "seen": "date", "*": "feature"}
WIDE = (
    "create table visits as select i as id, (i * 7919::bigint) % 100 > 60 as y,"
    " sin(i * 1.37)::float8 as a, case when i % 7 = 0 then null else cos(i * 0.7)::float4 end"
    " as b, (i % 90)::smallint as c, (i % 1000)::numeric(10, 2) / 8 as cost,"
    " 'ward ' || (i % 40) as ward, date '2020-01-01' + (i % 1500)::int as seen"
    f" from generate_series(1, {ROWS}) as s(i)"
)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as address:
        execute(address, WIDE)
        yield address


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BULKHEAD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    return tmp_path / "home"


def execute(address: str, *statements: str) -> list[tuple[Any, ...]]:
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def plain(address: str) -> str:
    return address.replace(f":{PASSWORD}@", "@")


def config(address: str, **data: Any) -> DataConfig:
    return DataConfig(uri=plain(address), **{"columns": {"*": "feature"}, **data})


def read(address: str, **data: Any) -> tuple[SourceRef, list[dict[str, Any]]]:
    source = fingerprint(config(address, **data))
    with contextlib.closing(connect()) as connection:
        relation = relation_sql(source, config(address, **data), connection)
        return source, connection.sql(f"select * from {relation}").to_arrow_table().to_pylist()


def refused(address: str, **data: Any) -> str:
    with pytest.raises(SourceError) as error:
        fingerprint(config(address, **data))
    said = str(error.value)
    assert PASSWORD not in said and "\n" not in said
    return said


def arrays_of(uri: str, folder: Path, **data: Any) -> str:
    declaration = declared(uri, COLUMNS, data=data)
    validated = validate(fingerprint(declaration.data), declaration, folder)
    sides = split(validated, declaration, folder / "split", folder / "ledger")
    statistics = fit(sides.train, validated.spec, declaration)
    return materialise(sides, validated, statistics, declaration, folder / "arrays").sha256


# ------------------------------------------------------------------------------------------- rows


def test_a_table_prepares_to_the_bytes_of_its_parquet_copy(server: str, tmp_path: Path) -> None:
    copy = fingerprint(config(server, table="visits")).snapshots[0]
    assert copy.rows == ROWS and copy.table == "visits" and copy.sha256 == sha256_file(copy.path)
    other = tmp_path / "visits.parquet"
    pq.write_table(pq.read_table(copy.path), other, row_group_size=10_000)
    mine = arrays_of(plain(server), tmp_path / "a", table="visits")
    assert mine == arrays_of(str(other), tmp_path / "b")
    assert mine == arrays_of(plain(server), tmp_path / "c", query="select * from visits;")


def test_an_unchanged_table_gives_the_same_copy(server: str, home: Path) -> None:
    first, again = (fingerprint(config(server, table="visits")) for _ in range(2))
    assert first.sha256 == again.sha256 and first.files == again.files
    assert first.snapshots[0].moment < again.snapshots[0].moment
    assert len(list(home.rglob("*.parquet"))) == 1


def test_every_type_has_its_counterpart(server: str) -> None:
    execute(
        server,
        "create type mood as enum ('ok', 'bad'); create domain positive as int check (value > 0)",
        "create table kinds (a bigint, n numeric(10, 2), w numeric(12, 0), s varchar(9), c char(3),"
        " ok boolean, day date, at timestamp, z timestamptz, u uuid, j jsonb, l int[], t text[],"
        ' f numeric[], m mood, p positive, b bytea, o oid, ip inet, "We ""ird" real)',
        "insert into kinds values (9007199254740993, 12.34, 77, 'x', 'y', true, '2024-01-02',"
        " '2024-01-02 03:04:05.678901', '2024-01-02 03:04:05+02',"
        " 'c0ffee00-0000-0000-0000-000000000001', '{\"a\": 1}', '{1, null}', '{a, b}', '{1.5}',"
        " 'ok', 3, '\\x00ff', 5, '10.0.0.1', 1.5)",
        "insert into kinds (a) values (null)",
    )
    _, (line, nulls) = read(server, table="kinds")
    z, day, at = line.pop("z"), line.pop("day"), line.pop("at")
    assert line == {
        "a": 9007199254740993, "n": 12.34, "w": 77, "s": "x", "c": "y", "ok": True, "u":
        "c0ffee00-0000-0000-0000-000000000001", "j": '{"a": 1}', "l": [1, None], "t": ["a", "b"],
        "f": [1.5], "m": "ok", "p": 3, "b": b"\x00\xff", "o": 5, "ip": "10.0.0.1/32",
        'We "ird': 1.5,
    }  # fmt: skip
    assert (z.isoformat(), str(day)) == ("2024-01-02T01:04:05+00:00", "2024-01-02")
    assert at.microsecond == 678901 and set(nulls.values()) == {None}


def test_a_column_without_counterpart_is_refused_with_a_query_that_works(server: str) -> None:
    execute(
        server,
        "create table odd as select 1 as a, interval '2 hours' as stay, time '10:00' as at,"
        " 1.5::float8::numeric::money as paid, int4range(1, 5) as span",
    )
    said = refused(server, table="odd")
    for words in ("'stay' is interval", "'at' is time", "'paid' is money", "'span' is a range"):
        assert words in said
    query = said.partition("declare query: ")[2].rpartition(", or leave")[0]
    assert read(server, query=query)[1] == [
        {"a": 1, "stay": 7200.0, "at": 36000.0, "paid": 1.5, "span": "[1,5)"}
    ]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("12345678901234567890", 'write "v"::text in data.query where it is a key'),
        ("'infinity'::date", "infinite times; write case when isfinite"),
        ("'-infinity'::timestamptz", "infinite times; write case when isfinite"),
        ("'infinity'::timestamp", "infinite times; write case when isfinite"),
    ],
)
def test_values_without_counterpart_are_refused(server: str, value: str, words: str) -> None:
    assert words in refused(server, query=f"select 1 as id, {value} as v")


def test_tables_are_listed_where_several_can_be_read(server: str) -> None:
    execute(server, "create schema if not exists ward", "create table ward.beds (a int)")
    assert "name one with data.table" in (said := refused(server)) and "ward.beds" in said
    assert "no table 'nowhere' that may be read" in refused(server, table="nowhere")
    assert read(server, table="ward.beds")[1] == []


# ----------------------------------------------------------------------------------------- faults


def test_a_table_that_changes_meanwhile_gives_one_snapshot(server: str) -> None:
    execute(
        server,
        "create table moving as select i as id, 0 as version, repeat('x', 200) as pad from"
        " generate_series(1, 200000) as s(i)",
    )
    stop = threading.Event()

    def write() -> None:
        version = 0
        while not stop.is_set():
            version += 1
            new = f"insert into moving values ({200_000 + version}, {version}, 'new')"
            execute(server, f"update moving set version = {version}", new)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        time.sleep(0.3)
        found = [read(server, query="select id, version from moving")[1] for _ in range(3)]
    finally:
        stop.set()
        writer.join()
    for lines in found:
        versions = {line["version"] for line in lines}
        newest = max(versions)
        # each writer's pair of statements is two transactions: the second may be missing
        assert len({line["id"] for line in lines}) == len(lines)
        assert versions == {newest} and len(lines) - 200_000 in (newest, newest - 1)


def test_a_lost_connection_is_a_sentence_and_leaves_nothing(server: str, home: Path) -> None:
    def cut() -> None:
        find = (
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name ="
            " 'bulkhead' and query like 'COPY%pg_sleep%' and query not like '%limit 0%'"
        )
        until(lambda: bool(execute(server, find)), 30, "the rows are read")

    cutter = threading.Thread(target=cut)
    cutter.start()
    slow = "select *, case when id % 1000 = 0 then pg_sleep(0.01)::text end as s from visits"
    said = refused(server, query=slow)
    cutter.join()
    assert "the connection was lost and nothing was kept" in said
    assert not list(home.rglob("*.parquet")) and not list(home.glob(f"*{SUFFIX}"))


def test_a_killed_process_leaves_nothing_after_the_next_command(server: str, home: Path) -> None:
    code = (
        "from schemas.config import DataConfig;"
        " from training.data.sources.source import fingerprint;"
        f" fingerprint(DataConfig(uri={plain(server)!r}, columns={{'*': 'feature'}}, query="
        "'select *, case when id % 1000 = 0 then pg_sleep(0.01)::text end as s from visits'))"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: bool(list(home.glob(f"*{SUFFIX}/*"))), 60, "a copy is being written")
    process.kill()
    process.wait()
    from schemas.scratch import remove_abandoned

    assert remove_abandoned(home) and not list(home.rglob("*.parquet"))


def test_a_wrong_password_is_a_sentence(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "wrong")
    assert "set PGPASSWORD in the environment" in refused(server, table="visits")
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.setenv("PGPASSFILE", os.devnull)
    assert "set PGPASSWORD in the environment" in refused(server, table="visits")


def test_a_server_that_is_not_there_is_a_sentence(server: str) -> None:
    assert "check host and port" in refused("postgresql://ann@127.0.0.1:1/clinic")
    assert "check the database in data.uri" in refused(server + "x", table="visits")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("with a as (delete from visits returning id) select id from a", "at the top level"),
        ("select * from visits for update", "read-only transaction"),
        ("select set_config('transaction_read_only', 'off', true) as a", "before any query"),
        ("select nextval('counter') as n", "read-only transaction"),
        ("select nono from visits", '"nono" does not exist'),
        ("select 1 / (id - 1) as a from visits", "division by zero"),
    ],
)
def test_a_query_that_does_more_than_read_is_refused(server: str, query: str, words: str) -> None:
    execute(server, "create sequence if not exists counter")
    assert words in refused(server, query=query)
    assert execute(server, "select count(*) from visits") == [(ROWS,)]


def test_what_a_read_only_session_lets_pass_is_rolled_back(server: str) -> None:
    fingerprint(config(server, query="select lo_create(0) as n"))  # refused from PostgreSQL 16 on
    assert execute(server, "select count(*) from pg_largeobject_metadata") == [(0,)]


def test_a_user_sees_only_what_is_granted(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(server, "drop role if exists poor", "create role poor login password 'poor'")
    monkeypatch.setenv("PGPASSWORD", "poor")
    poor = plain(server).replace("ann@", "poor@")
    assert "found none that may be read" in refused(poor)
    assert "grant select to the user" in refused(poor, query="select * from visits")


def test_memory_does_not_grow_with_the_rows(server: str, home: Path) -> None:
    def peak(rows: int) -> int:
        code = (
            "import resource; from schemas.config import DataConfig; from"
            " training.data.sources.source import fingerprint;"
            f" fingerprint(DataConfig(uri={plain(server)!r}, columns={{'*': 'feature'}}, query="
            f"'select a.*, b.i from visits as a, generate_series(1, {rows // ROWS}) as b(i)'));"
            " print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        command = [sys.executable, "-c", code]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    small, large = peak(ROWS), peak(8 * ROWS)
    assert large < small + 60_000  # KB: the 2.4 million rows are about 150 MB as Arrow


# -------------------------------------------------------------------------------- from end to end


def test_a_draft_of_a_table_is_validated_by_the_command(server: str, tmp_path: Path) -> None:
    environment = os.environ | {"PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    execute(server, "create table if not exists few as select * from visits where id <= 2000")

    def bulkhead(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "flows.cli", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment)

    looked = json.loads(bulkhead("look", plain(server), "--table", "few", "--json").stdout)
    assert looked["rows"] == 2000 and looked["name"] == "postgres, few"
    file = tmp_path / "few.yaml"
    bulkhead("init", plain(server), "--table", "few", "--label", "y", "-o", str(file))
    assert 'table: "few"' in file.read_text()
    done = bulkhead("prepare", str(file))
    assert "table few, 2,000 rows as of 20" in done.stderr and PASSWORD not in done.stderr
