"""D1, S2: a source is read whole, or refused with the file's name and what to do."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from schemas.config import DataConfig
from schemas.errors import SourceError
from tests.training.data.chain import write_table, write_text
from training.data.engine.engine import connect, literal, row, rows
from training.data.sources.source import fingerprint, relation_sql, verify_source
from training.data.sources.text_types import text_types


def config(uri: Path | str | tuple[str, ...], **options: Any) -> DataConfig:
    return DataConfig(
        uri=uri if isinstance(uri, tuple) else str(uri),
        columns={"y": "label", "*": "feature"},
        **options,
    )


def table_of(data: DataConfig) -> tuple[dict[str, str], list[tuple[Any, ...]]]:
    """Types by column, and all rows."""
    connection = connect(threads=1)
    relation = relation_sql(fingerprint(data), data, connection)
    types = {r[0]: r[1] for r in rows(connection, f"describe select * from {relation}")}
    return types, rows(connection, f"select * from {relation} order by all")


CONTENT = {"a": [1, 2, None], "b": ["x", "y,z", 'say "hi"'], "c": [0.5, None, -2.0]}


@pytest.mark.req("D1")
@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".csv.gz", ".tsv", ".feather", ".arrow"])
def test_every_format_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    table, path = pa.table(CONTENT), tmp_path / f"t{suffix}"
    if suffix == ".parquet":
        pq.write_table(table, path)
    elif suffix in (".feather", ".arrow"):
        feather.write_feather(table, path)
    else:
        gap = "\t" if ".tsv" in suffix else ","
        lines = [
            f"a{gap}b{gap}c",
            f"1{gap}x{gap}0.5",
            f'2{gap}"y,z"{gap}',
            f'{gap}"say ""hi"""{gap}-2.0',
        ]
        text = ("\n".join(lines) + "\n").encode()
        path.write_bytes(gzip.compress(text) if suffix.endswith(".gz") else text)
    types, found = table_of(config(path))
    assert types == {"a": "BIGINT", "b": "VARCHAR", "c": "DOUBLE"}
    assert found == [(1, "x", 0.5), (2, "y,z", None), (None, 'say "hi"', -2.0)]


@pytest.mark.req("D1")
def test_folder_glob_and_list_are_the_same_source_in_any_order(tmp_path: Path) -> None:
    paths = [write_text(tmp_path / "deep" / f"{n}.csv", f"a,y\n{n},0\n") for n in (1, 2, 3)]
    write_text(tmp_path / "README.md", "not data")
    write_text(tmp_path / "_SUCCESS", "not data")
    uris = [
        tmp_path,
        tmp_path / "**" / "*.csv",
        tuple(str(p) for p in reversed(paths)),
        (str(paths[0]), str(tmp_path)),
    ]
    found = [fingerprint(config(uri)) for uri in uris]
    assert len({f.sha256 for f in found}) == 1 and all(
        [r.path for r in f.files] == sorted(map(str, paths)) for f in found
    )
    assert [r[0] for r in table_of(config(tmp_path))[1]] == [1, 2, 3]


@pytest.mark.req("P5")
def test_names_do_not_count_in_the_digest_but_bytes_do(tmp_path: Path) -> None:
    first = [write_text(tmp_path / "one" / f"{n}.csv", f"a,y\n{n},0\n") for n in (1, 2)]
    write_text(tmp_path / "two" / "x.csv", first[1].read_text())
    write_text(tmp_path / "two" / "z.csv", first[0].read_text())
    write_text(tmp_path / "three" / "x.csv", "a,y\n1,1\n")
    one, two, three = (fingerprint(config(tmp_path / n)).sha256 for n in ("one", "two", "three"))
    assert one == two != three


@pytest.mark.req("D1")
def test_files_are_matched_by_column_name_and_typed_over_all_rows_of_all_files(
    tmp_path: Path,
) -> None:
    write_text(tmp_path / "1.csv", "a,b,y\n1,,0\n2,,1\n")
    write_text(tmp_path / "2.csv", "y,b,a\n1,2.5,x7\n")
    types, found = table_of(config(tmp_path))
    assert types == {"a": "VARCHAR", "b": "DOUBLE", "y": "BIGINT"}
    assert found == [("1", None, 0), ("2", None, 1), ("x7", 2.5, 1)]


TYPES = [
    (["1", "-20", " 3 "], "BIGINT"),
    (["1", "007"], "VARCHAR"),  # a code: 007 is not 7
    (["1", "2.5", "-.5", "1e3"], "DOUBLE"),
    (
        ["1.5", "NaN", "inf"],
        "DOUBLE",
    ),  # so that infinity is refused by name, not taken for a category
    (["1", "1_000"], "VARCHAR"),
    (["0x1F", "0x20"], "VARCHAR"),
    (["123456789012345678901"], "VARCHAR"),  # too long for 64 bits
    (["true", "False"], "BOOLEAN"),
    (["true", "yes"], "VARCHAR"),
    (["2020-01-31", "2020-02-01"], "DATE"),
    (["2020-02-31"], "VARCHAR"),
    (["1/2/11", "3/4/12"], "VARCHAR"),  # day and month are not told apart
    (["2020-01-31", "2020-02-01 10:00"], "VARCHAR"),
    (["2020-01-31T10:00", "2020-02-01 10:00:00.5"], "TIMESTAMP"),
    (["2020-01-31T10:00Z", "2020-02-01 10:00:00+02"], "INSTANT"),
    (["2020-01-31T10:00Z", "2020-02-01 10:00:00"], "VARCHAR"),  # with and without a zone
    ([None, None], "VARCHAR"),
    ([None, "4"], "BIGINT"),
    (["a", "1"], "VARCHAR"),
]


@pytest.mark.req("D1")
@pytest.mark.parametrize(("values", "expected"), TYPES, ids=[f"{v[0]}-{v[-1]}" for v, _ in TYPES])
@pytest.mark.parametrize("turn", [1, -1])
def test_a_text_column_has_the_type_that_all_its_values_have(
    values: list[str | None], expected: str, turn: int
) -> None:
    listed = ", ".join(f"({literal(v)})" for v in values[::turn])
    assert text_types(
        connect(threads=1), f"(select cast(c as varchar) as c from (values {listed}) t(c))", ["c"]
    ) == {"c": expected}


@pytest.mark.req("D1")
def test_an_offset_is_taken_into_account(tmp_path: Path) -> None:
    path = write_text(
        tmp_path / "t.csv", "seen,y\n2020-01-01T02:00:00+02:00,0\n2020-01-01T00:00:00Z,1\n"
    )
    connection = connect()
    data = config(path)
    assert row(
        connection,
        "select count(distinct seen), min(epoch(seen)) from"
        f" {relation_sql(fingerprint(data), data, connection)}",
    ) == (1, 1577836800.0)


def _gzip_cut(path: Path) -> Path:
    path.write_bytes(gzip.compress(b"a,y\n" + b"1,0\n" * 50_000)[:-20])
    return path


def _gzip_flipped(path: Path) -> Path:
    whole = bytearray(
        gzip.compress(b"a,y\n" + bytes(f"{i},0\n" * 3, "ascii") if (i := 12345) else b"")
    )
    whole[-6] ^= 1  # in the checksum
    path.write_bytes(bytes(whole))
    return path


def _parquet_cut(path: Path) -> Path:
    write_table(path, {"a": list(range(1000)), "y": [0] * 1000})
    path.write_bytes(path.read_bytes()[:-100])
    return path


def _two_formats(path: Path) -> Path:
    write_text(path / "a.csv", "a,y\n1,0\n")
    write_table(path / "b.parquet", {"a": [1], "y": [0]})
    return path


BAD_FILES = [
    ("missing.csv", lambda p: p, r"missing\.csv: no such file or folder; check data\.uri"),
    ("none*.csv", lambda p: p, "the glob matches none; check the pattern"),
    ("empty", lambda p: p.mkdir() or p, "expected data files in the folder, found none"),
    ("empty.csv", lambda p: write_text(p, ""), r"empty\.csv: the file is empty"),
    (
        "what.xyz",
        lambda p: write_text(p, "a"),
        r"unknown format '\.xyz'; expected one of \.parquet.*or set data\.format",
    ),
    (
        "cut.csv.gz",
        _gzip_cut,
        r"cut\.csv\.gz: cannot be read as csv: .*damaged or cut short: copy or write it again",
    ),
    ("flipped.csv.gz", _gzip_flipped, r"flipped\.csv\.gz: cannot be read as csv: CRC check failed"),
    (
        "cut.parquet",
        _parquet_cut,
        r"cut\.parquet: cannot be read as parquet: .*damaged or cut short",
    ),
    (
        "text.parquet",
        lambda p: write_text(p, "a,y\n1,0\n"),
        r"text\.parquet: cannot be read as parquet",
    ),
    ("text.arrow", lambda p: write_text(p, "a,y\n1,0\n"), r"text\.arrow: cannot be read as arrow"),
    (
        "both",
        _two_formats,
        (
            r"expected files of one format, got several: a\.csv \(csv\), b\.parquet \(parquet\);"
            r" set data\.format"
        ),
    ),
    (
        "ftp://host/t.parquet",
        None,
        (
            r"ftp://host/t\.parquet: expected a local path, s3:// or https://, got ftp://; mount or"
            r" copy the data"
        ),
    ),
]


@pytest.mark.req("S2")
@pytest.mark.parametrize(("name", "make", "message"), BAD_FILES, ids=[b[0] for b in BAD_FILES])
def test_a_source_that_cannot_be_read_is_refused_by_name(
    tmp_path: Path, name: str, make: Any, message: str
) -> None:
    uri = str(make(tmp_path / name)) if make else name
    with pytest.raises(SourceError, match=message):
        fingerprint(config(uri))


BAD_TEXT = [
    (
        ["a,y\n1,0\n2\n"],
        (
            r"t0\.csv: cannot be read: .*Line: 3.*Expected Number of Columns: 2 Found: 1.*; check"
            r" data\.csv"
        ),
    ),
    (["a,y\n1,0,3\n"], r"t0\.csv: cannot be read: .*Expected Number of Columns: 2 Found: 3"),
    (['a,y\n1,"0\n'], r"t0\.csv: cannot be read: .*unterminated quote"),
    (["a,A\n1,0\n"], r"t0\.csv: columns 'a' and 'A' have the same name but for case; rename one"),
    (["a,a\n1,0\n"], r"columns 'a' and 'a' have the same name"),
    (
        ["a,,y\n1,2,0\n"],
        r"t0\.csv: expected a name for each column, but number 2 has none; name it",
    ),
    (
        ["a,y\n1,0\n", "a,z\n1,0\n"],
        r"t1\.csv: expected the columns of .*t0\.csv: it lacks y; it adds z",
    ),
]


@pytest.mark.req("S2")
@pytest.mark.parametrize(("texts", "message"), BAD_TEXT, ids=[m[:30] for _, m in BAD_TEXT])
def test_text_that_is_no_table_is_refused_and_no_row_is_skipped(
    tmp_path: Path, texts: list[str], message: str
) -> None:
    for i, text in enumerate(texts):
        write_text(tmp_path / f"t{i}.csv", text)
    with pytest.raises(SourceError, match=message):
        table_of(config(tmp_path))


@pytest.mark.req("S2")
def test_text_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("a,y\né,0\n".encode("latin-1"))
    with pytest.raises(
        SourceError,
        match=r"t\.csv: cannot be read: .*Line: 2.*not utf-8 encoded.*encoding \(UTF-8\)",
    ):
        table_of(config(tmp_path / "t.csv"))
    (tmp_path / "t.csv").write_bytes("é,y\n1,0\n".encode("latin-1"))
    with pytest.raises(SourceError, match=r"t\.csv: the first line is no UTF-8 text"):
        table_of(config(tmp_path / "t.csv"))


@pytest.mark.req("D1")
def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("\ufeffa,y\r\n1,0\r\n".encode())
    assert table_of(config(tmp_path / "t.csv")) == ({"a": "BIGINT", "y": "BIGINT"}, [(1, 0)])


@pytest.mark.req("S2")
def test_parquet_files_of_different_types_are_refused_but_whole_numbers_written_as_floats_are_not(
    tmp_path: Path,
) -> None:
    write_table(tmp_path / "a.parquet", {"x": [1, 2], "y": [0, 1]})
    write_table(tmp_path / "b.parquet", {"x": [1.0, None], "y": [0, 1]})
    assert table_of(config(tmp_path))[0] == {"x": "DOUBLE", "y": "BIGINT"}
    write_table(tmp_path / "c.parquet", {"x": ["u", "v"], "y": [0, 1]})
    with pytest.raises(
        SourceError,
        match=(
            r"c\.parquet: expected the columns of .*a\.parquet: types differ: x is text, not number"
        ),
    ):
        table_of(config(tmp_path))


@pytest.mark.req("S2")
def test_a_file_that_changed_since_is_refused(tmp_path: Path) -> None:
    path = write_text(tmp_path / "t.csv", "a,y\n1,0\n")
    source = fingerprint(config(path))
    verify_source(source)
    path.write_text("a,y\n2,0\n")
    with pytest.raises(SourceError, match=r"t\.csv: expected the file with SHA-256 .*; run again"):
        verify_source(source)


@pytest.mark.req("D1")
def test_null_texts_delimiter_quote_and_header_are_as_declared(tmp_path: Path) -> None:
    path = write_text(tmp_path / "t.csv", "1;?;it's\n2;5;'a;b'\n")
    data = config(path, csv={"delimiter": ";", "quote": "'", "null_values": ["?"], "header": False})
    assert table_of(data) == (
        {"column0": "BIGINT", "column1": "BIGINT", "column2": "VARCHAR"},
        [(1, None, "it's"), (2, 5, "a;b")],
    )


@pytest.mark.req("D1")
def test_a_file_that_does_not_quote_keeps_all_its_rows(real_data: Path) -> None:
    data = config(real_data / "sms_spam.tsv", csv={"quote": "", "header": False})
    found = table_of(data)[1]
    assert len(found) == 5574 and sum(r[0] == "spam" for r in found) == 747
    with pytest.raises(SourceError, match="unterminated quote"):
        table_of(config(real_data / "sms_spam.tsv", csv={"header": False}))
