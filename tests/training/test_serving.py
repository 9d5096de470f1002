"""Serving: raw rows in any order and number type, refusals by name, spellings as training had them;
alone.
"""

from __future__ import annotations

import ast
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.digest import sha256_file
from schemas.records import ExportedModel
from tests.training.cases import Case, arrow, expected
from tests.training.data.sides import spec_of
from tests.training.mlflow_home import clinic
from training.data.arrays.apply import encode_categories
from training.data.engine.engine import connect
from training.data.table.columns import Resolved
from training.data.table.typed import _category
from training.serving import serving
from training.serving.reference_network import reference_network

__all__ = ["clinic"]
ENGINE = connect(threads=1)
MEANING = Resolved(spec_of(categorical=("c",)), {}, {})


class Served:
    """An exported case and what evaluation says of its test rows."""

    def __init__(self, case: Case, exported: ExportedModel) -> None:
        self.case, self.exported = case, exported
        self.spec = serving.read_spec(self.exported.spec.path)
        self.program = serving.load_program(self.exported.program.path, self.spec)
        self.rows = self.case.raw["test"]
        self.wanted = expected(self.case, reference_network(self.case.run, self.case.weights))[:, 1]

    def __call__(self, frame: pd.DataFrame) -> pd.DataFrame:
        return serving.predict(self.spec, self.program, frame)


@pytest.fixture(scope="module")
def served(clinic: tuple[Case, ExportedModel]) -> Served:
    return Served(*clinic)


# ---------------------------------------------------------------------------------- equal numbers


@pytest.mark.req("R1")
@pytest.mark.parametrize("number", ["float32", "float64", "object", "Float64"])
def test_columns_in_any_order_and_number_type_give_the_evaluated_numbers(
    served: Served, number: str
) -> None:
    frame = served.rows.assign(extra=1, another="x")[
        ["another", *reversed(served.rows.columns), "extra"]
    ]
    frame = frame.astype(dict.fromkeys(("age", "visits", "dose"), number)).set_index(
        np.arange(50) * 7
    )
    found = served(frame)
    tolerance = 1e-6 if number == "float32" else 1e-12
    np.testing.assert_allclose(found["probability_yes"], served.wanted, rtol=0, atol=tolerance)
    assert found.index.equals(frame.index)
    assert list(found.columns) == ["prediction", "probability_no", "probability_yes"]


@pytest.mark.req("R1")
def test_rows_read_back_from_parquet_and_csv_give_the_evaluated_numbers(
    served: Served, tmp_path: Path
) -> None:
    arrow(served.rows).to_pandas().to_parquet(tmp_path / "rows.parquet")
    np.testing.assert_allclose(
        served(pd.read_parquet(tmp_path / "rows.parquet"))["probability_yes"],
        served.wanted,
        rtol=0,
        atol=1e-12,
    )
    served.rows.drop(columns="scan").to_csv(tmp_path / "rows.csv", index=False)
    found = served(pd.read_csv(tmp_path / "rows.csv").assign(scan=served.rows["scan"]))
    np.testing.assert_allclose(found["probability_yes"], served.wanted, rtol=0, atol=1e-12)


@pytest.mark.req("R4")
def test_one_row_at_a_time_equals_all_at_once_and_no_rows_give_none(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = served(served.rows)
    single = pd.concat([served(served.rows.iloc[[i]]) for i in range(6)])
    pd.testing.assert_frame_equal(single, whole.iloc[:6], rtol=0, atol=1e-12)
    monkeypatch.setattr(serving, "ROWS_PER_CALL", 16)
    pd.testing.assert_frame_equal(served(served.rows), whole, rtol=0, atol=1e-12)
    empty = served(served.rows.iloc[:0])
    assert empty.empty
    assert empty.dtypes.equals(whole.dtypes)


@pytest.mark.req("R1")
def test_serving_leaves_torch_threads_and_the_callers_frame_alone(served: Served) -> None:
    threads, before = torch.get_num_threads(), served.rows.copy(deep=True)
    served(served.rows)
    assert torch.get_num_threads() == threads
    pd.testing.assert_frame_equal(served.rows, before)


# -------------------------------------------------------------------------------------- refusals

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "null": (
        {"visits": [1.0, np.nan, 2.0]},
        (
            r"column 'visits': nulls \(NaN\), which training never saw there, in 1 rows \(index"
            r" 1\); fill or leave out"
        ),
    ),
    "infinite": (
        {"income": [1.0, np.inf, -np.inf]},
        r"column 'income': infinite numbers in 2 rows \(index 1, 2\)",
    ),
    "infinite where nulls are filled": (
        {"age": [np.inf, 1.0, 2.0]},
        r"column 'age': infinite numbers in 1 rows \(index 0\)",
    ),
    "text": (
        {"age": [1.0, "old", None]},
        r"column 'age': expected numbers, got 'old' in 1 rows \(index 1\)",
    ),
    "dates": (
        {"age": pd.to_datetime(["2020-01-01"] * 3)},
        r"column 'age': expected numbers, got Timestamp.* in 3 rows",
    ),
    "small picture": (
        {"scan": [np.zeros((4, 4)), np.zeros((3, 4)), np.zeros(16)]},
        r"column 'scan': expected 16 numbers of shape \[4, 4\].*in 1 rows \(index 1\)",
    ),
    "no picture": (
        {"scan": [np.zeros(16), None, np.zeros(16)]},
        r"column 'scan': expected 16 numbers.*in 1 rows \(index 1\)",
    ),
    "scaled picture": (
        {"scan": [np.zeros(16), np.full(16, 0.5), np.full(16, 256)]},
        r"column 'scan': elements that uint8 cannot hold in 2 rows \(index 1, 2\)",
    ),
}


@pytest.mark.req("S2")
@pytest.mark.parametrize("fault", REFUSED)
def test_a_value_that_training_could_not_have_seen_is_refused_by_column_and_row(
    served: Served, fault: str
) -> None:
    columns, message = REFUSED[fault]
    frame = served.rows.iloc[:3].astype(dict.fromkeys(columns, object))
    served(frame)
    with pytest.raises(ValueError, match=message):
        served(frame.assign(**columns))


@pytest.mark.req("S2")
def test_missing_and_repeated_columns_are_refused_by_name(served: Served) -> None:
    with pytest.raises(ValueError, match=r"missing columns: 'income', 'scan'"):
        served(served.rows.drop(columns=["scan", "income"]))
    with pytest.raises(ValueError, match=r"columns given twice: 'age'"):
        served(pd.concat([served.rows, served.rows[["age"]]], axis=1))


# ------------------------------------------------------------------------------------ categories


@pytest.mark.req("R1")
def test_categories_have_the_codes_that_training_gave_them(served: Served) -> None:
    stored = encode_categories(
        pq.read_table(served.case.split.test.file.path), served.case.run.statistics
    )
    found = serving.inputs(served.spec, served.rows)["categorical"].numpy()
    np.testing.assert_array_equal(found, stored)
    assert {0: 0, 1: 0}.keys() & set(stored.ravel()) == {1}  # a null is there, and nothing unknown


@pytest.mark.req("R1")
def test_unknown_categories_and_nulls_go_to_their_slots() -> None:
    column = {"name": "site", "values": ["1", "2", "true", "0.5"]}
    values = pd.Series([1, 2.0, 0.5, "9", 7, None, np.nan, pd.NA, "?", "TRUE"], dtype=object)
    assert serving.codes(values, column, ("?",)).tolist() == [2, 3, 5, 0, 0, 1, 1, 1, 1, 4]
    assert serving.codes(pd.Series([True, None, False]), column).tolist() == [4, 1, 0]


@pytest.mark.req("R1")
@settings(max_examples=60, deadline=None)
@given(
    values=st.one_of(
        st.lists(st.one_of(st.none(), st.integers(-(2**62), 2**62)), min_size=1, max_size=8),
        st.lists(
            st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
            min_size=1,
            max_size=8,
        ),
        st.lists(
            st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False, width=32)),
            min_size=1,
            max_size=8,
        ),
        st.lists(st.one_of(st.none(), st.booleans()), min_size=1, max_size=8),
        st.lists(
            st.one_of(
                st.none(),
                st.text(
                    min_size=1, alphabet=st.characters(codec="utf-8", exclude_characters="\x00")
                ),
            ),
            min_size=1,
            max_size=8,
        ),
    ),
    single=st.booleans(),
)
def test_every_category_is_spelled_as_validation_spells_it(values: list[Any], single: bool) -> None:
    """The text that the typed table would hold is among the spellings, so the value finds its own
    place in the vocabulary.
    """
    numbers = [v for v in values if isinstance(v, float)]
    kind = (
        pa.float32()
        if single and numbers and all(abs(v) < 1e38 and float(np.float32(v)) == v for v in numbers)
        else None
    )
    table = pa.table({"c": pa.array(values, type=kind)})
    ENGINE.register("given", table)
    sql_type = ENGINE.execute("describe given").fetchall()[0][1]
    texts = [
        row[0]
        for row in ENGINE.execute(
            f"select {_category('c', sql_type, MEANING)} from given"
        ).fetchall()
    ]
    vocabulary = sorted({t for t in texts if t is not None})
    column = {"name": "c", "values": vocabulary}
    wanted = [1 if t is None else 2 + vocabulary.index(t) for t in texts]
    assert serving.codes(pd.Series(values, dtype=object), column).tolist() == wanted
    assert (
        serving.codes(table.column("c").to_pandas(integer_object_nulls=True), column).tolist()
        == wanted
    )


# -------------------------------------------------------------------------------------- integrity


@pytest.mark.req("S1")
def test_a_changed_program_is_refused_before_a_byte_of_it_is_read(
    served: Served, tmp_path: Path
) -> None:
    """The stand-in would run code when it is read: it is a pickle in the form that torch's loader
    falls back to.
    """
    marker, hostile = tmp_path / "executed", tmp_path / "program.pt2"
    with (
        zipfile.ZipFile(served.exported.program.path) as source,
        zipfile.ZipFile(hostile, "w") as target,
    ):
        for name in source.namelist():
            content = source.read(name)
            target.writestr(
                name, pickle.dumps(_Bomb(marker)) if "sample_inputs" in name else content
            )
    with pytest.raises(
        ValueError, match=r"program.pt2: SHA-256 is .* the program was changed after its export"
    ):
        serving.load_program(hostile, served.spec)
    assert not marker.exists()
    with pytest.raises(
        ValueError,
        match=(
            r"entry 'data/sample_inputs/model.pt' holds pickled example inputs; nothing of it"
            r" was run"
        ),
    ):
        serving.load_program(hostile, {"program": {"sha256": sha256_file(hostile)}})
    assert not marker.exists()
    with pytest.raises(Exception):  # noqa: B017 - whatever torch says of it; that its code runs is the point
        torch.export.load(hostile)
    assert marker.exists(), "the stand-in must be dangerous, or this test proves nothing"


class _Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.mark.req("S1")
def test_one_changed_bit_of_the_program_is_refused(served: Served, tmp_path: Path) -> None:
    content = bytearray(Path(served.exported.program.path).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "program.pt2").write_bytes(content)
    with pytest.raises(ValueError, match="was changed after its export"):
        serving.load_program(tmp_path / "program.pt2", served.spec)


@pytest.mark.req("S1")
@pytest.mark.parametrize("content", ['{"format": 99}', "[]"])
def test_a_spec_of_another_format_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "spec.json").write_text(content)
    with pytest.raises(ValueError, match=r"spec.json: expected a model spec of format 1"):
        serving.read_spec(tmp_path / "spec.json")


@pytest.mark.req("R1")
def test_the_shipped_file_imports_nothing_of_ours() -> None:
    for path in (Path(serving.__file__), Path(serving.__file__).with_name(serving.READER)):
        tree = ast.parse(path.read_text())
        found = {
            alias.name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        found |= {
            str(node.module).split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
        }
        assert found <= {"mlflow", "numpy", "pandas", "torch"} | set(sys.stdlib_module_names)
