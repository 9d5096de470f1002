"""`bulkhead init` declares how numbers are written and how a file is laid out; its run accepts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from schemas.config import Declaration
from schemas.csv_config import CsvConfig
from schemas.errors import SourceError
from schemas.load import declare
from schemas.records import ValidatedTable
from tests.training.data.chain import declared, validated_of
from training.data.draft.draft import draft
from training.data.draft.text_layout import layout_of
from training.data.sources.other_formats import convert_line
from training.data.sources.source import fingerprint
from training.data.sources.spelling import guess_spelling

RNG = np.random.default_rng(5)
N = 90
VALUES = np.round(RNG.normal(size=N) * 900, 2)
LABEL = (VALUES > 0).astype(int)


def german(text: str) -> str:
    return text.translate(str.maketrans(",.", ".,"))


# name: the text of a number, and the spelling that is declared
SPELLINGS: dict[str, tuple[Callable[[float], str], dict[str, Any]]] = {
    "thousands": (lambda v: f"{v * 99:,.2f}", {"thousands": ","}),
    "dollar": (lambda v: f"${v * 99:,.2f}", {"thousands": ",", "units": ["$"]}),
    "euro": (
        lambda v: german(f"{v * 99:,.2f}") + " €",
        {"decimal": ",", "thousands": ".", "units": ["€"]},
    ),
    "swiss": (
        lambda v: f"CHF {v * 99:,.2f}".replace(",", "'"),
        {"thousands": "'", "units": ["CHF"]},
    ),
    "percent": (lambda v: f"{v:.1f}%", {"units": ["%"]}),
    "unit": (lambda v: f"{v:.1f} kg", {"units": ["kg"]}),
    "units": (lambda v: f"{v:.1f} {'kg' if v > 0 else 'KG'}", {"units": ["KG", "kg"]}),
    "some unit": (lambda v: f"{v:.1f}" + (" kg" if v > 0 else ""), {"units": ["kg", ""]}),
    "bound": (
        lambda v: f"<{0.5}" if v < 0.5 else f">{900}" if v > 900 else f"{v}",
        {"limits": "bound"},
    ),
    "parentheses": (lambda v: f"({-v:.2f})" if v < 0 else f"{v:.2f}", {"parentheses": True}),
    "marks": (
        lambda v: f"{v:.2f}" + ("*" if v > 500 else "[2]" if v < -500 else ""),
        {"marks": ["*", "[2]"]},
    ),
    "letters": (lambda v: f"{v:.2f}" + ("a" if v > 900 else ""), {"marks": ["a"]}),
    "nulls": (lambda v: f"{v:.2f}" if v > -500 else "below", {"nulls": ["below"]}),
}


QUICK = {("dollar", ".csv"), ("bound", ".parquet"), ("marks", ".csv")}
LONG_ENDS = [pytest.param(end, marks=pytest.mark.long) for end in ("\r\n", "\r")]


def drafted(path: Path) -> tuple[Declaration, str]:
    text = draft(str(path), name="drafted")
    return declare(yaml.safe_load(text)), text


def in_order(made: ValidatedTable) -> pd.DataFrame:
    """The validated rows in the order of their ids."""
    found = pq.read_table(made.table.file.path).to_pandas()
    return found.sort_values("__id", key=lambda ids: ids.astype(int))


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        pytest.param(n, s, marks=[] if (n, s) in QUICK else pytest.mark.long)
        for n in SPELLINGS
        for s in (".csv", ".parquet")
    ],
)
def test_a_spelling_is_drafted_and_read(name: str, suffix: str, tmp_path: Path) -> None:
    write, how = SPELLINGS[name]
    texts = [write(v) for v in VALUES]
    path = tmp_path / f"t{suffix}"
    table = pd.DataFrame({"id": range(N), "v": texts, "b": VALUES[::-1], "y": LABEL})
    table.to_csv(path, index=False) if suffix == ".csv" else table.to_parquet(path)
    declaration, _ = drafted(path)
    written = declaration.data.columns["v"].written
    assert written is not None and written.model_dump(exclude_defaults=True) == {
        key: tuple(value) if isinstance(value, list) else value for key, value in how.items()
    }
    made = validated_of(declaration, tmp_path / "out")
    found = in_order(made)["v"]
    factor = 99 if "thousands" in how else 1
    wanted = [_reference(t, how) for t in texts]
    assert np.allclose(found, wanted, equal_nan=True)
    assert factor == 1 or np.allclose(found, VALUES * 99, atol=0.01)


def _reference(text: str, how: dict[str, Any]) -> float:
    """The number by replacing of characters, as a user of pandas writes it."""
    if text in how.get("nulls", ()):
        return float("nan")
    negative = "-" in text or "(" in text
    for mark in how.get("marks", ()):
        text = text.replace(mark, "")
    digits = re.sub("[^0-9.,]", "", text)
    digits = digits.replace(how.get("thousands", "x"), "").replace(",", ".")
    return -float(digits) if negative else float(digits)


@pytest.mark.parametrize(
    "texts",
    [
        [f"{i:04d}" for i in range(40)],  # codes with leading zeros
        [f"{i} kg" if i % 2 else f"{i} g" for i in range(40)],  # two units
        [f"{i}%" if i % 2 else f"{i / 100}" for i in range(40)],  # per cent and shares
        [f"2021-01-{i % 28 + 1:02d}x" for i in range(40)],
        [f"555 {100 + i} 4567" for i in range(40)],  # telephone
        [f"A{i}" for i in range(40)],
        [f"{'V' * (i % 2)}{i}" for i in range(80)],  # codes of diagnoses
        [f"{i}K" if i % 2 else f"{i}M" for i in range(40)],
        ["$5", "$10"] * 20,  # two codes
        [f"[{i}-{i + 10})" for i in range(40)],
        [str(10**17 + i) for i in range(40)],
        [f"201505{i % 28 + 1:02d}T000000" for i in range(40)],
    ],
)
def test_texts_that_are_no_numbers_have_no_spelling(texts: list[str]) -> None:
    assert guess_spelling(dict.fromkeys(texts, 1)) is None


def test_a_comma_that_may_be_either_follows_the_other_columns_and_is_told(tmp_path: Path) -> None:
    unclear = [f"{i % 9 + 1},{i * 7 % 1000:03d}" for i in range(N)]
    clear = [f"{v:.1f}".replace(".", ",") for v in VALUES]
    path = tmp_path / "t.csv"
    pd.DataFrame({"v": unclear, "b": clear, "y": LABEL}).to_csv(path, index=False, sep=";")
    assert 'decimal: ","' in drafted(path)[1]
    pd.DataFrame({"v": unclear, "b": VALUES, "y": LABEL}).to_csv(path, index=False)
    declaration, text = drafted(path)
    assert declaration.data.columns["v"].written.thousands == ","
    assert "check that it is the thousands sign" in text


def test_a_german_file_has_a_decimal_comma_and_points_of_thousands(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    table = {"v": [f"{i % 9 + 1}.{i * 7 % 1000:03d}" for i in range(N)], "b": VALUES, "y": LABEL}
    pd.DataFrame(table).to_csv(path, index=False, sep=";", decimal=",")
    declaration, _ = drafted(path)
    assert declaration.data.csv.decimal == ","
    made = validated_of(declaration, tmp_path / "out")
    found = pq.read_table(made.table.file.path).to_pandas()
    assert sorted(found["v"]) == sorted(float(t.replace(".", "")) for t in table["v"])
    assert np.allclose(np.sort(found["b"]), np.sort(VALUES))


def test_a_late_bound_is_found_and_a_late_word_is_told(tmp_path: Path) -> None:
    """The first rows decide which columns are looked at, all rows how they are read."""
    texts = [f"${i % 700}.5" for i in range(3000)] + ["<$1", "n.b."]
    path = tmp_path / "t.csv"
    pd.DataFrame({"v": texts, "y": [0, 1] * 1501}).to_csv(path, index_label="id")
    declaration, text = drafted(path)
    written = declaration.data.columns["v"].written
    assert (written.limits, written.nulls) == ("bound", ("n.b.",))
    assert "1 of 3,002 texts are texts such as 'n.b.'" in text
    assert len(validated_of(declaration, tmp_path / "out").notes) == 2


def test_spellings_of_a_category_are_told_with_a_declaration_that_works(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    answers = [["Yes", "yes ", "YES", "No"][i % 4] for i in range(N)]
    label = [int(v > 0) for v in VALUES]
    pd.DataFrame({"a": VALUES, "answer": answers, "y": label}).to_csv(path, index=False)
    text = drafted(path)[1]
    told = re.search(r"declare data\.(derive: .*?\}) and in data\.(columns: .*?\})", text)
    changes = [yaml.safe_load(part) for part in told.groups()]
    columns = {"a": "numeric", "y": "label"} | changes[1]["columns"]
    declaration = declared(path, columns, data={"derive": changes[0]["derive"]})
    made = validated_of(declaration, tmp_path / "out")
    assert set(pq.read_table(made.table.file.path)["answer_clean"].to_pylist()) == {"yes", "no"}


ROWS = "".join(f"{i},{v},{int(v > 0)}\n" for i, v in enumerate(VALUES))
LAYOUTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "plain": ("id,v,y\n" + ROWS, {}, ""),
    "comment": ("# made by x, 2020\n#\n\nid,v,y\n" + ROWS, {"skip": 3}, "3 lines above"),
    "hash, same width": ("# a, b, c\nid,v,y\n" + ROWS, {"skip": 1}, "above the names"),
    "title": ("Report of 2020\nid,v,y\n" + ROWS, {"skip": 1}, "e.g. 'Report of 2020'"),
    "units": ("id,v,y\n,cm,\n" + ROWS, {"skip_below": 1}, "'cm'"),
    "two headers": ("key,data,data\nid,v,y\n" + ROWS, {"skip": 1}, "'key, data, data'"),
    "two headers and units": (
        "key,data,data\nid,v,y\n,cm,\n" + ROWS,
        {"skip": 1, "skip_below": 1},
        "'cm'",
    ),
    "comment above tabs": (
        "# one\nid\tv\ty\n" + ROWS.replace(",", "\t"),
        {"skip": 1, "delimiter": "\t"},
        "1 line above",
    ),
    "trailing": ("id,v,y,\n" + ROWS.replace("\n", ",\n"), {"empty_columns": 1}, "holds nothing"),
    "trailing in rows": ("id,v,y\n" + ROWS.replace("\n", ",\n"), {"empty_columns": 1}, "nothing"),
    "Excel": ("id,v,y,,\n" + ROWS.replace("\n", ",,\n"), {"empty_columns": 2}, "holds nothing"),
    "index": (",v,y\n" + ROWS, {"unnamed": "number"}, "column0"),
    "no header": (ROWS, {"header": False}, "numbers for names"),
    "all": (
        "# x\nid,v,y,\n,cm,,\n" + ROWS.replace("\n", ",\n"),
        {"skip": 1, "skip_below": 1, "empty_columns": 1},
        "",
    ),
}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_drafted_and_every_row_is_read(
    name: str, mark: bytes, end: str, tmp_path: Path
) -> None:
    content, options, remark = LAYOUTS[name]
    path = tmp_path / "t.csv"
    path.write_bytes(mark + content.replace("\n", end).encode())
    source = fingerprint(declared(path).data)
    found = layout_of(source)
    assert found.options == CsvConfig(**options)
    assert remark in "; ".join(found.remarks)


@pytest.mark.long
def test_the_run_accepts_the_draft_of_each_layout(tmp_path: Path) -> None:
    for name, (content, _, remark) in LAYOUTS.items():
        path = tmp_path / f"{name}.csv"
        path.write_text(content)
        declaration, text = drafted(path)
        assert remark in text
        assert validated_of(declaration, tmp_path / "out" / name).table.rows == N


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("end", ["\n", *LONG_ENDS])
def test_the_rows_are_those_of_pandas(name: str, end: str, tmp_path: Path) -> None:
    content, options, _ = LAYOUTS[name]
    path = tmp_path / "t.csv"
    path.write_bytes(content.replace("\n", end).encode())
    names = ["column0", "column1", "column2"] if name == "no header" else ["id", "v", "y"]
    names[0] = "column0" if name == "index" else names[0]
    columns = {names[0]: "id", names[2]: "label", names[1]: "numeric"}
    made = validated_of(declared(path, columns, data={"csv": options}), tmp_path / "out")
    assert in_order(made)[names[1]].to_numpy() == pytest.approx(VALUES)


def test_a_value_in_an_empty_column_is_refused_by_row(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,v,y,\n" + ROWS.replace("\n", ",\n") + "90,1,0,oops\n")
    columns = {"id": "id", "v": "numeric", "y": "label"}
    with pytest.raises(SourceError, match=r"last 1 columns.*'oops' in row 91"):
        validated_of(declared(path, columns, data={"csv": {"empty_columns": 1}}), tmp_path / "o")


# ----------------------------------------------------------------------------- files of other kinds


def follow(line: str) -> None:
    """Run the command of a message in a shell where `python` is this one."""
    paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(line, shell=True, check=True, env={**os.environ, "PATH": paths})


def advised(path: Path) -> str:
    with pytest.raises(SourceError) as error:
        draft(str(path))
    return re.search("this line converts it: (.*)", str(error.value))[1]


@pytest.mark.long
@pytest.mark.parametrize("ending", [".json", ".csv.xz"])
def test_a_file_of_another_format_is_converted_by_the_line_of_its_message(
    ending: str, tmp_path: Path
) -> None:
    table = pd.DataFrame({"code": [f"{i:03d}" for i in range(N)], "v": VALUES, "y": LABEL})
    path = tmp_path / f"it's {ending[1:]}{ending}"
    if ending.startswith(".json"):
        table.to_json(path, orient="records")
    else:
        table.to_csv(path, index=False)
    follow(advised(path))
    made = next(p for p in tmp_path.iterdir() if p != path)
    declaration, _ = drafted(made)
    validated = validated_of(declaration, tmp_path / "out")
    found = pq.read_table(validated.table.file.path).to_pandas()
    assert sorted(found["v"]) == pytest.approx(sorted(VALUES))
    is_parquet = made.suffix == ".parquet"
    converted = pd.read_parquet(made) if is_parquet else pd.read_csv(made, dtype=str)
    assert "007" in set(converted["code"]), "a code keeps its zeros"


def test_the_line_for_excel_installs_what_it_needs() -> None:
    line = convert_line(Path("a b.xlsx"))
    assert line.startswith("pip install openpyxl && python -c ") and '"a b.csv"' in line


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-16"])
@pytest.mark.parametrize("where", ["header", "rows"])
def test_text_in_another_encoding_is_converted_by_the_line_of_its_message(
    encoding: str, where: str, tmp_path: Path
) -> None:
    word = {"cp1252": "süß €", "latin-1": "süß \x81", "utf-16": "süß 中"}[encoding]
    names = f"{word},v,y\n" if where == "header" else "w,v,y\n"
    lines = "".join(f"{word}{i % 3},{v},{int(v > 0)}\n" for i, v in enumerate(VALUES))
    path = tmp_path / "t.csv"
    path.write_bytes((names + lines).encode(encoding))
    with pytest.raises(SourceError) as error:
        validated_of(declared(path, {"y": "label", "*": "feature"}), tmp_path / "none")
    follow(re.search("this line converts it: (.*)", str(error.value))[1])
    declaration, _ = drafted(tmp_path / "t-utf8.csv")
    validated = validated_of(declaration, tmp_path / "out")
    first = pq.read_table(validated.table.file.path).to_pandas()
    assert {f"{word}{i}" for i in range(3)} in [set(first[c]) for c in first]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_texts_that_pandas_reads_as_nulls_are_told(suffix: str, tmp_path: Path) -> None:
    garage = np.where(np.arange(N) % 3 == 0, "None", np.where(np.arange(N) % 3 == 1, "shed", "big"))
    frame = pd.DataFrame({"id": range(N), "garage": garage, "size": VALUES, "y": LABEL})
    path = tmp_path / f"t{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    text = drafted(path)[1]
    (line,) = (line for line in text.splitlines() if line.strip().startswith("garage:"))
    assert "'None' in 33.3% of the rows is a value here, not a gap; pandas reads it as" in line
    assert text.count("pandas reads it") == 1


def test_marks_of_a_null_among_numbers_are_missing_values(tmp_path: Path) -> None:
    table = pd.DataFrame({"v": VALUES.astype(str), "w": ["x", "."] * (N // 2), "y": LABEL})
    table.loc[[3, 40], "v"] = "."
    path = tmp_path / "t.csv"
    table.to_csv(path, index=False)
    declaration, text = drafted(path)
    assert declaration.data.csv.null_values == ("", ".") and "v: {kind: numeric" in text
    table.loc[[3, 40], "v"] = "7"  # a point among words alone is a word
    table.to_csv(path, index=False)
    assert "." not in drafted(path)[0].data.csv.null_values


@pytest.mark.parametrize("kinds", ["c\td\td", "continuous\tno yes\td"])
def test_the_lines_that_orange_writes_below_names_are_left_out(tmp_path: Path, kinds: str) -> None:
    rows = [f"{v}\t{'no' if v < 0 else 'yes'}\t{y}" for v, y in zip(VALUES, LABEL, strict=True)]
    path = tmp_path / "t.tab"
    path.write_text("\n".join(["v\tb\ty", kinds, "\t\tclass", *rows]) + "\n")
    declaration, text = drafted(path)
    assert declaration.data.csv.skip_below == 2 and "2 lines below the names are left out" in text
    validated = validated_of(declaration, tmp_path / "out")
    found = pq.read_table(validated.table.file.path).to_pandas()
    assert sorted(found["v"]) == pytest.approx(sorted(VALUES))
    path.write_text("\n".join(["v\tb\ty", *rows]) + "\n")
    assert drafted(path)[0].data.csv.skip_below == 0


@pytest.mark.parametrize("ending", [".tab", ".txt", ".data"])
def test_other_endings_of_delimited_text_are_read(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t{ending}"
    pd.DataFrame({"v": VALUES, "y": LABEL}).to_csv(path, index=False, sep="\t")
    declaration, _ = drafted(path)
    validated = validated_of(declaration, tmp_path / "out")
    assert pq.read_table(validated.table.file.path).num_rows == N
