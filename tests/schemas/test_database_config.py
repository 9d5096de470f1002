"""Addresses and queries of databases: no secret passes, and nothing but one SELECT."""

from __future__ import annotations

import re

import pytest

from schemas.database_config import is_server, require_select, require_server
from schemas.errors import ConfigError
from schemas.load import declare

SECRET = "s3cret-w0rd"


def declaration(**data: object) -> dict[str, object]:
    return {
        "name": "n",
        "data": {"columns": {"y": "label", "*": "feature"}, **data},
        "task": {"kind": "binary"},
        "split": {"kind": "random"},
    }


@pytest.mark.parametrize(
    "uri",
    [
        f"postgresql://ann:{SECRET}@db/clinic",
        f"postgres://ann:{SECRET}@db:5432/clinic?sslmode=require",
        f"postgresql://ann@db/clinic?password={SECRET}",
        f"postgresql://db/clinic?passfile={SECRET}",
        f"postgresql://db/clinic?sslpassword={SECRET}",
    ],
)
def test_a_password_in_an_address_is_refused_and_shown_nowhere(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"without a password.*set PGPASSWORD") as error:
        declare(declaration(uri=uri, table="visits"))
    cause = error.value.__cause__
    assert SECRET not in str(error.value) and SECRET not in str(cause)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("postgresql://db/clinic?host=evil", "parameter 'host' is not allowed"),
        ("postgresql://db/clinic?hostaddr=1.2.3.4", "parameter 'hostaddr' is not allowed"),
        ("postgresql://db/clinic?options=-cdefault_transaction_read_only%3Doff", "'options' is"),
        ("postgresql://db/clinic?service=other", "'service' is not allowed"),
        ("postgresql://one,two/clinic", "expected one host"),
        ("postgresql://db", "expected one database"),
        ("postgresql://db/a/b", "expected one database"),
        ("postgresql://db:99999/clinic", "check host and port"),
        ("postgresql://db/cli\nnic", "expected one database|check host"),
    ],
)
def test_an_address_names_one_host_and_one_database(uri: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        require_server(uri)


@pytest.mark.parametrize(
    "uri", ["postgresql://db/clinic", "postgres://ann@db:5432/clinic?sslmode=require"]
)
def test_a_plain_address_passes(uri: str) -> None:
    assert is_server(uri) and require_server(uri) == uri
    assert declare(declaration(uri=uri, table="visits")).data.uri == uri


@pytest.mark.parametrize(
    "query",
    [
        "delete from visits",
        "DROP TABLE visits",
        "update visits set y = 1",
        "insert into visits select 1",
        "select 1; delete from visits",
        "select 1; -- x\n drop table visits;",
        "/* select */ delete from visits",
        "-- select\ndelete from visits",
        "copy visits to '/tmp/x'",
        "attach 'other.db'",
        "set transaction read write",
        "pragma table_info(visits)",
        "call f()",
        "explain analyze delete from visits",
        "",
        ";",
    ],
)
def test_anything_but_one_select_is_refused(query: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.query: expected one SELECT"):
        declare(declaration(uri="a.duckdb", query=query))


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("select * from visits", None),
        ("  SELECT 1 as a ;  ", "SELECT 1 as a"),
        ("with a as (select 1 as b) select * from a", None),
        ("-- the visits\n/* all */ select ';' as a, \"x;y\" from visits -- end; here", None),
        ("select 1 as a; -- done", "select 1 as a"),
    ],
)
def test_one_select_passes(query: str, kept: str | None) -> None:
    assert require_select(query) == (query if kept is None else kept)


def test_table_query_and_sheet_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="table and query exclude each other"):
        declare(declaration(uri="a.duckdb", table="t", query="select 1 as a"))


def test_a_declaration_without_the_new_keys_is_recorded_as_before() -> None:
    found = declare(declaration(uri="a.csv")).data.model_dump(mode="json")
    assert not {"table", "query", "sheet"} & set(found)
    assert "encoding" not in found["csv"]


@pytest.mark.parametrize("name", ["nonsense", "hex", "rot13", "base64"])
def test_an_encoding_that_is_none_of_text_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"got {name!r}")):
        declare(declaration(uri="a.csv", csv={"encoding": name}))
