"""JSON lines, Excel sheets and texts in other encodings: the rows of their Parquet or CSV copy."""

from __future__ import annotations

import contextlib
import gzip
import json
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config import DataConfig
from schemas.errors import ConfigError, SourceError
from schemas.records import SourceRef
from tests.training.data.chain import declared, validated_of, write_table, write_text
from tests.training.data.xlsx import write_xlsx
from training.data.draft.draft import draft
from training.data.engine.engine import connect
from training.data.look.look import look
from training.data.sources import excel_sheet
from training.data.sources.source import fingerprint, relation_sql

excel = pytest.mark.skipif(
    find_spec("python_calamine") is None, reason="pip install python-calamine (extra excel)"
)
N = 200
COLUMNS = {"id": "id", "y": "label", "*": "feature"}
VALUES = {
    "id": list(range(N)),
    "age": [None if i % 7 == 0 else i / 4 for i in range(N)],
    "ward": [f"ward {'äöü'[i % 3]}" for i in range(N)],
    "code": [f"{i % 12:03d}" for i in range(N)],
    "y": [i % 3 == 0 for i in range(N)],
}
LINES = [dict(zip(VALUES, line, strict=True)) for line in zip(*VALUES.values(), strict=True)]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BULKHEAD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def config(path: Path, **data: Any) -> DataConfig:
    return DataConfig(uri=str(path), **{"columns": {"*": "feature"}, **data})


def read(path: Path, **data: Any) -> tuple[SourceRef, pa.Table]:
    source = fingerprint(config(path, **data))
    with contextlib.closing(connect()) as connection:
        relation = relation_sql(source, config(path, **data), connection)
        return source, connection.sql(f"select * from {relation}").to_arrow_table()


def refused(path: Path, **data: Any) -> str:
    with pytest.raises(SourceError) as error:
        read(path, **data)
    return str(error.value)


def json_lines(path: Path, *lines: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def same_table(one: Path, other: Path, folder: Path, **data: Any) -> None:
    first = validated_of(declared(one, COLUMNS, data=data), folder / "a")
    second = validated_of(declared(other, COLUMNS), folder / "b")
    assert first.table.file.sha256 == second.table.file.sha256 and first.spec == second.spec


# ------------------------------------------------------------------------------------- JSON lines


@pytest.mark.parametrize("ending", [".jsonl", ".ndjson.gz"])
def test_json_lines_validate_to_the_bytes_of_their_parquet_copy(
    ending: str, tmp_path: Path
) -> None:
    lines = [{k: v for k, v in line.items() if v is not None} for line in LINES]
    path = json_lines(tmp_path / f"t{ending}", *lines)
    same_table(path, write_table(tmp_path / "t.parquet", VALUES), tmp_path)


@settings(max_examples=8, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "whole": st.integers(-(2**63), 2**63 - 1),
                "text": st.text(st.characters(codec="utf-8", exclude_characters="\x00")),
                "list": st.lists(st.integers(0, 9), max_size=3),
                "truth": st.booleans(),
            },
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_lines_are_read_as_they_are(lines: list[dict[str, Any]]) -> None:
    import tempfile

    full = {"whole": 1, "text": "text", "list": [1], "truth": True}
    with tempfile.TemporaryDirectory() as folder:
        path = json_lines(Path(folder) / "t.jsonl", full, *lines)
        found = read(path)[1].to_pylist()
    assert found == [full, *({name: line.get(name) for name in full} for line in lines)]


def test_types_are_decided_on_every_line(tmp_path: Path) -> None:
    first = {"a": 1, "day": "2024-01-02", "at": "2024-01-02T03:04:05Z", "code": "12", "none": None}
    many = [first] * 3000
    last = first | {"a": 2.5, "late": [1.5], "day": None}
    table = read(json_lines(tmp_path / "t.jsonl", *many, last))[1]
    kinds = {f.name: str(f.type) for f in table.schema}
    assert kinds == {
        "a": "double",
        "day": "date32[day]",
        "at": "timestamp[us]",
        "code": "string",
        "none": "string",
        "late": "list<l: double>",
    }
    changed = read(json_lines(tmp_path / "t.jsonl", *many, last | {"day": "1/2/24"}))[1]
    assert str(changed.schema.field("day").type) == "string"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1}\n{"a": "x"}\n', "expected one type for each key, but 'a' has values of several"),
        ('{"a": 1}\n{"a": 2', "line [23].*expected a JSON object in each line"),
        ('{"a": 1}\n[1]\n', "expected a JSON object in each line"),
        ('{"a": 1, "A": 2}\n', "two keys are 'a' but for case|two keys are 'A' but for case"),
        ('{"a": 1}\n{"a": 12345678901234567890123}\n', "beyond 64 bits, e.g. 123456789012345678"),
        ("", "the file is empty"),
    ],
)
def test_lines_that_are_no_rows_are_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=words):
        read(write_text(tmp_path / "t.jsonl", text))


def test_folders_of_lines_have_keys_and_an_older_format_comes_first(tmp_path: Path) -> None:
    for year in (2023, 2024):
        json_lines(tmp_path / "d" / f"year={year}" / "t.jsonl", {"a": year, "b": "x"}, {"a": 1})
    found = read(tmp_path / "d")[1]
    assert found.to_pydict()["year"] == [2023, 2023, 2024, 2024]
    assert found.column_names == ["year", "a", "b"]
    write_table(tmp_path / "d" / "year=2025" / "t.parquet", {"a": [1], "b": ["x"]})
    assert fingerprint(config(tmp_path / "d")).format == "parquet"
    assert fingerprint(config(tmp_path / "d", format="jsonl")).format == "jsonl"


def test_a_draft_of_lines_is_taken_by_its_own_run(tmp_path: Path) -> None:
    path = json_lines(tmp_path / "t.jsonl", *LINES)
    tree = yaml.safe_load(draft(str(path), label="y"))
    assert tree["data"]["uri"] == str(path) and look(str(path)).rows == N


# ------------------------------------------------------------------------------------------ Excel


def shown(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@excel
def test_a_sheet_validates_to_the_bytes_of_its_csv_copy(tmp_path: Path) -> None:
    lines = [list(VALUES), *map(list, zip(*VALUES.values(), strict=True))]
    path = write_xlsx(tmp_path / "t.xlsx", {"visits": lines, "empty": []})
    text = "".join(",".join(map(shown, line)) + "\n" for line in lines)
    same_table(path, write_text(tmp_path / "t.csv", text), tmp_path, sheet="visits")
    copy = fingerprint(config(path)).snapshots[0]
    assert copy.sheet == "visits" and copy.table is None


@excel
def test_cells_become_the_texts_that_a_person_sees(tmp_path: Path) -> None:
    day, time = datetime(2024, 1, 2), datetime(2024, 1, 2, 3, 4)
    rows = [
        ["id", "x", "day", "at", "ok", "code", "n"],
        [1, 0.1, day, day, True, "007", "5 kg"],
        [],
        [2, 1e300, day, time, False, 'a,"b"\nc', 7],
        [3, 5, day, time, False, None, None],
    ]
    found = read(write_xlsx(tmp_path / "t.xlsx", {"a": rows}))[1]
    assert [list(line.values()) for line in found.to_pylist()] == [
        [1, 0.1, day.date(), day, True, "007", "5 kg"],
        [2, 1e300, day.date(), time, False, 'a,"b"\nc', "7"],
        [3, 5.0, day.date(), time, False, None, None],
    ]


@excel
def test_what_stands_above_a_header_is_found_as_in_a_file_of_text(tmp_path: Path) -> None:
    rows = [["Visits of 2024"], ["id", "mass", "y"], [None, "kg", None]]
    rows += [[i, i / 4, i % 3 == 0] for i in range(60)]
    path = write_xlsx(tmp_path / "t.xlsx", {"s": rows})
    tree = yaml.safe_load(draft(str(path), label="y"))
    assert tree["data"]["sheet"] == "s"
    assert tree["data"]["csv"] == {"skip": 1, "skip_below": 1}
    assert read(path, csv=tree["data"]["csv"])[1].to_pydict()["mass"][:3] == [0.0, 0.25, 0.5]
    commas = read(path, csv={"delimiter": ";", "decimal": ",", "skip": 1, "skip_below": 1})[1]
    assert commas.to_pydict()["mass"][:3] == [0.0, 0.25, 0.5]


@excel
def test_sheets_are_named_where_there_are_several(tmp_path: Path) -> None:
    path = write_xlsx(tmp_path / "t.xlsx", {"a b": [["x"], [1]], "c": [["x"], [2]], "d": []})
    assert "2 sheets hold something; name one with data.sheet" in (said := refused(path))
    assert said.endswith("'a b', 'c'")
    assert "no sheet 'x', expected one of 'a b', 'c', 'd'" in refused(path, sheet="x")
    assert "holds nothing" in refused(path, sheet="d")
    assert read(path, sheet="c")[1].to_pydict() == {"x": [2]}
    path.write_bytes(path.read_bytes()[:300])
    assert "cannot be read as an Excel file" in refused(path)


def test_without_the_extra_the_message_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_xlsx(tmp_path / "t.xlsx", {"a": [["x"], [1]]})
    monkeypatch.setattr(excel_sheet, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'bulkhead\[excel\]'"):
        fingerprint(config(path))


# -------------------------------------------------------------------------------------- encodings


@pytest.mark.parametrize(
    ("name", "word"), [("cp1252", "süß €"), ("latin-1", "süß \x81"), ("utf-16", "süß 中")]
)
@pytest.mark.parametrize("ending", [".csv", ".tsv.gz"])
def test_a_text_in_another_encoding_has_the_rows_of_its_utf8_copy(
    name: str, word: str, ending: str, tmp_path: Path
) -> None:
    mark = "\t" if ending.startswith(".tsv") else ","
    lines = [f"id{mark}{word}{mark}y", *(f"{i}{mark}{word}{i % 3}{mark}{i % 2}" for i in range(60))]
    text = "\n".join(lines) + "\n"
    path = tmp_path / f"t{ending}"
    raw = text.encode(name)
    path.write_bytes(gzip.compress(raw) if ending.endswith(".gz") else raw)
    plain = write_text(tmp_path / f"plain{ending.removesuffix('.gz')}", text)
    first, table = read(path, csv={"encoding": name})
    second, other = read(plain)
    assert table.equals(other) and first.sha256 == second.sha256
    assert (
        first.snapshots[0].encoding
        == DataConfig(uri="a", columns={"*": "feature"}, csv={"encoding": name}).csv.encoding
    )


def test_a_draft_declares_the_encoding_and_its_own_run_takes_it(tmp_path: Path) -> None:
    lines = "".join(f"{i},Grün {i % 3},{i % 2}\n" for i in range(60))
    path = tmp_path / "t.csv"
    path.write_bytes(f"id,tür,y\n{lines}".encode("cp1252"))
    text = draft(str(path), label="y")
    tree = yaml.safe_load(text)
    assert tree["data"]["csv"] == {"encoding": "cp1252"} and "tür" in tree["data"]["columns"]
    assert "whether this encoding is the right one" in text
    assert "tür" in [c.name for c in look(str(path)).columns]


def test_a_run_does_not_guess_an_encoding(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("id,a\n1,ü\n".encode("cp1252"))
    assert "declare data.csv: {encoding: cp1252}; or this line converts it" in refused(path)
    path.write_bytes("ü,a\n1,2\n".encode("cp1252"))
    assert "declare data.csv: {encoding: cp1252}" in refused(path)
    path.write_bytes(b"id,a\n1,\x81\n")
    said = refused(path, csv={"encoding": "cp1252"})
    assert "byte 7 is none; declare data.csv: {encoding: latin-1}" in said
    assert "expected text in utf-16" in refused(path, csv={"encoding": "utf-16"})
