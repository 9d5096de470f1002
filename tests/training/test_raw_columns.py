"""Models with derived features: raw rows in, the evaluated numbers out; the code goes with the
model and is verified.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from schemas.errors import IntegrityError
from schemas.records import ExportedModel
from tests.training.cases import DERIVE, Case, expected, make_case
from training.serving import raw_columns, serving
from training.serving.export import export_model
from training.serving.reference_network import reference_network
from training.serving.signature import input_columns, input_example, input_types, signature

RAW = {"seen", "hour", "born", "rank", "smoker", "age"}


class Served:
    """An exported case with derived features, and what evaluation says of its test rows."""

    def __init__(self, folder: Path) -> None:
        self.case: Case = make_case(folder, derive=DERIVE)
        self.folder = folder / "model"
        self.exported: ExportedModel = export_model(
            self.case.run, self.case.weights, self.folder, self.case.split.val
        )
        self.spec = serving.read_spec(self.exported.spec.path)
        self.program = serving.load_program(self.exported.program.path, self.spec)
        self.derive = serving.load_expressions(self.folder / raw_columns.EXPRESSIONS, self.spec)
        self.rows = self.case.raw["test"]
        self.wanted = expected(self.case, reference_network(self.case.run, self.case.weights))[:, 1]

    def __call__(self, frame: pd.DataFrame) -> np.ndarray:
        return serving.predict(self.spec, self.program, frame, self.derive)[
            "probability_yes"
        ].to_numpy()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(tmp_path_factory.mktemp("derived"))


# ---------------------------------------------------------------------------------------- raw rows


@pytest.mark.req("R1")
def test_raw_rows_give_the_evaluated_numbers_in_any_form(served: Served, tmp_path: Path) -> None:
    assert not set(DERIVE) & set(served.rows.columns)
    np.testing.assert_allclose(served(served.rows), served.wanted, rtol=0, atol=1e-12)
    floats = served.rows.astype({"hour": "float32", "rank": "float64"})[
        [*reversed(served.rows.columns)]
    ].assign(extra=1)
    np.testing.assert_allclose(served(floats), served.wanted, rtol=0, atol=1e-12)
    served.rows.drop(columns="scan").to_csv(tmp_path / "rows.csv", index=False)
    np.testing.assert_allclose(
        served(pd.read_csv(tmp_path / "rows.csv").assign(scan=served.rows["scan"])),
        served.wanted,
        rtol=0,
        atol=1e-12,
    )
    np.testing.assert_allclose(
        np.concatenate([served(served.rows.iloc[[i]]) for i in range(5)]),
        served.wanted[:5],
        rtol=0,
        atol=1e-12,
    )
    assert len(served(served.rows.iloc[:0])) == 0


@pytest.mark.req("R1")
def test_a_derived_column_that_is_there_is_taken_as_given(served: Served) -> None:
    assert served.derive is not None
    given = served.derive(served.rows, served.spec["derived"])
    np.testing.assert_allclose(
        served(given.drop(columns=["seen", "hour", "born", "rank"])),
        served.wanted,
        rtol=0,
        atol=1e-12,
    )
    assert not np.allclose(served(given.assign(season=-given["season"])), served.wanted, atol=1e-3)


@pytest.mark.req("S2")
def test_missing_raw_columns_and_rows_without_a_value_are_refused_by_name(served: Served) -> None:
    with pytest.raises(
        ValueError,
        match=(
            r"missing columns: 'born' \(for 'known_days'\), 'hour' \(for 'shift',"
            r" 'seen_at'\)|missing columns: .*'hour' \(for"
        ),
    ):
        served(served.rows.drop(columns=["hour", "born"]))
    with pytest.raises(ValueError, match=r"missing columns: 'income'$"):
        served(served.rows.drop(columns=["hour", "income"]))
    with pytest.raises(
        ValueError,
        match=(
            r"derived column 'seen_at' .*: expected text of the form '%m/%d/%y', got '2020-01-01'"
            r" in 1 rows \(index 3\)"
        ),
    ):
        served(
            served.rows.assign(seen=served.rows["seen"].where(served.rows.index != 3, "2020-01-01"))
        )
    with pytest.raises(
        ValueError,
        match=r"column 'hour' \(for '.*'\): expected numbers \(BIGINT\), got .*0.5.* in 50 rows",
    ):
        served(served.rows.assign(hour=0.5))
    with pytest.raises(
        ValueError,
        match=(
            r"column 'season': nulls \(NaN\), which training never saw there, in 1 rows \(index 2\)"
        ),
    ):
        served(served.rows.assign(seen=served.rows["seen"].where(served.rows.index != 2)))


# --------------------------------------------------------------------- numbers in another spelling


def spelt(values: pd.Series, bound: float) -> pd.Series:
    """Amounts as people write them, bounds among them."""
    return values.map(lambda v: f"<${v:,.2f}" if v == bound else f"${v:,.2f}", na_action="ignore")


@pytest.mark.parametrize("derive", [pytest.param({}, marks=pytest.mark.long), DERIVE])
def test_texts_in_the_declared_spelling_and_numbers_give_the_same(
    derive: dict[str, str], tmp_path: Path
) -> None:
    case = make_case(tmp_path, derive=derive)
    how = {"units": ["$"], "thousands": ",", "limits": "bound"}
    written = {"role": "feature", "written": how}
    data = case.run.declaration["data"]
    columns = {"income": written, "age": written} | data["columns"]
    columns |= {"income": written, "age": written}
    declaration = case.run.declaration | {"data": data | {"columns": columns}}
    run = case.run.model_copy(update={"declaration": declaration})
    exported = export_model(run, case.weights, tmp_path / "model", case.split.val)
    spec = serving.read_spec(exported.spec.path)
    assert set(spec["spellings"]) == {"income", "age"}
    model = serving.RawRows()
    model.load(
        {
            "spec": exported.spec.path,
            "program": exported.program.path,
            "expressions": tmp_path / "model" / raw_columns.EXPRESSIONS,
        }
    )
    rows = case.raw["test"].assign(
        income=case.raw["test"]["income"].round(2), age=case.raw["test"]["age"].round(2)
    )
    texts = rows.assign(**{n: spelt(rows[n], rows[n].max()) for n in ("income", "age")})
    assert texts["income"].str.startswith("<$").any()
    pd.testing.assert_frame_equal(model.predict(None, texts), model.predict(None, rows))
    mixed = texts.assign(income=texts["income"].where(rows.index % 2 == 0, rows["income"]))
    pd.testing.assert_frame_equal(model.predict(None, mixed), model.predict(None, rows))
    with pytest.raises(ValueError, match=r"'income': expected numbers .* got '5 kg' in 1 rows"):
        model.predict(None, texts.assign(income=texts["income"].where(rows.index != 3, "5 kg")))


def test_a_model_without_spellings_has_none_in_its_spec(served: Served) -> None:
    assert "spellings" not in served.spec and "skip" not in served.spec["csv"]


# ------------------------------------------------------------------------------------ what is said


@pytest.mark.req("R1")
def test_signature_and_example_name_raw_columns(served: Served) -> None:
    names = input_columns(served.spec)
    assert set(names) == {
        "age",
        "visits",
        "income",
        "smoker",
        "ward",
        "site",
        "insured",
        "dose",
        "scan",
        "seen",
        "hour",
        "born",
        "rank",
    }
    assert signature(served.spec).inputs is None and list(input_types(served.spec)) == names
    assert {input_types(served.spec)[n] for n in ("income", "site", "seen", "born", "scan")} == {
        "double",
        "string",
        "varchar",
        "date",
        "uint8[4, 4]",
    }
    example = input_example(served.spec)
    assert list(example.columns) == names
    assert np.isfinite(served(example)).all()
    assert {c["name"]: c["type"] for c in served.spec["raw"]} == {
        "seen": "VARCHAR",
        "hour": "BIGINT",
        "smoker": "BOOLEAN",
        "age": "DOUBLE",
        "born": "DATE",
        "rank": "BIGINT",
    }
    assert set(example["seen"]) == {"06/15/20"}
    assert json.loads(Path(served.exported.spec.path).read_text()) == served.spec


@pytest.mark.req("R1")
def test_without_a_made_up_raw_value_the_example_holds_features(served: Served) -> None:
    spec = served.spec | {"raw": [c | {"example": None} for c in served.spec["raw"]]}
    example = input_example(spec)
    assert {"season", "shift"} <= set(example.columns)
    assert not {"seen", "born"} & set(example.columns)
    assert np.isfinite(served(example)).all()


@pytest.mark.req("R1")
def test_made_up_values_pass_through_the_expressions() -> None:
    from training.data.table.portable import portable

    types = {"age": "VARCHAR", "grade": "VARCHAR", "year": "BIGINT", "at": "TIMESTAMP"}
    derive = {
        "years": "10 * cast(substr(age, 2, 1) as integer) + 5",
        "good": "1 // cast(grade in ('x', 'y') as integer)",
        "late": "hour(make_timestamp(year, 1, 1, 2, 0, 0))",
    }
    trees = portable(derive, types)
    statistics = _statistics(list(derive))
    found = raw_columns._example(
        trees, {"age": "VARCHAR", "grade": "VARCHAR", "year": "BIGINT"}, list(derive), statistics
    )
    assert found == {"age": "1" * 10, "grade": "x", "year": 1}
    hopeless = portable({"y": "1 // cast(age = concat(age, '!') as integer)"}, types)
    assert raw_columns._example(hopeless, {"age": "VARCHAR"}, ["y"], _statistics(["y"])) == {}


def _statistics(names: list[str]) -> raw_columns.Statistics:
    from schemas.records import NumericStats, Statistics

    numeric = tuple(NumericStats(name=n, method="none") for n in names)
    return Statistics(train_sha256="0", rows=1, numeric=numeric, categorical=(), tensor=())


# ---------------------------------------------------------------------------------- export and code


@pytest.mark.req("R1")
def test_the_same_sources_make_the_same_code_file_and_a_plain_model_has_none(
    served: Served, tmp_path: Path
) -> None:
    assert served.exported.expressions is not None
    assert raw_columns.code()[1] == Path(served.exported.expressions.path).read_bytes()
    plain = make_case(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / raw_columns.EXPRESSIONS).write_bytes(b"of an earlier export")
    exported = export_model(plain.run, plain.weights, tmp_path / "model", plain.split.val)
    spec = serving.read_spec(exported.spec.path)
    assert exported.expressions is None
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["program.pt2", "spec.json"]
    assert (
        spec["derived"],
        spec["raw"],
        spec["expressions"],
        serving.load_expressions("", spec),
    ) == ({}, [], None, None)


@pytest.mark.req("R1")
def test_export_is_tried_on_rows_from_before_the_derivation(served: Served, tmp_path: Path) -> None:
    """A tree that computes something else is found, on the row and before anything is
    registered.
    """
    frame, places = raw_columns.as_raw(
        served.case.run, pd.read_parquet(served.case.split.val.file.path)
    )
    assert set(frame.columns) >= RAW
    assert not set(DERIVE) & set(frame.columns)
    assert len(places) == 40
    spec = served.case.run.spec
    wrong = spec.derived | {
        "known_days": (
            spec.derived["known_days"] | {"root": {"op": "constant", "type": "BIGINT", "value": 4}}
        )
    }
    run = served.case.run.model_copy(update={"spec": spec.model_copy(update={"derived": wrong})})
    with pytest.raises(
        IntegrityError,
        match=r"the exported program differs from the network by .* in row 'val0-0000'",
    ):
        export_model(run, served.case.weights, tmp_path / "model", served.case.split.val)
    assert not (tmp_path / "model" / "spec.json").exists()


@pytest.mark.req("R1")
def test_rows_whose_source_was_not_kept_are_tried_as_they_are(served: Served) -> None:
    stored = pd.read_parquet(served.case.split.val.file.path)
    for run in (served.case.run.model_copy(update={"raw_rows": None}), served.case.run):
        frame, places = raw_columns.as_raw(run, stored.assign(__id=[f"new-{i}" for i in range(40)]))
        assert set(DERIVE) - {"seen_at"} <= set(frame.columns)
        assert places.tolist() == list(range(40))


@pytest.mark.req("S1")
def test_changed_code_is_refused_before_any_of_it_runs(served: Served, tmp_path: Path) -> None:
    hostile, marker = tmp_path / "expressions.zip", tmp_path / "executed"
    module = "bulkhead_expressions_0123456789ab"
    with zipfile.ZipFile(hostile, "w") as archive:
        archive.writestr(
            f"{module}/__init__.py", f"open({str(marker)!r}, 'w').close()\ndef derive(*args): ..."
        )
    spec = served.spec | {"expressions": served.spec["expressions"] | {"module": module}}
    with pytest.raises(
        ValueError,
        match=(
            r"expressions.zip: SHA-256 is .* the code that was shipped with the model was changed"
            r" after its export"
        ),
    ):
        serving.load_expressions(hostile, spec)
    assert not marker.exists()
    from schemas.digest import sha256_file

    spec["expressions"]["sha256"] = sha256_file(hostile)
    serving.load_expressions(hostile, spec)
    assert marker.exists(), "the stand-in must be dangerous, or this test proves nothing"
    del sys.modules[module]


@pytest.mark.req("R1")
def test_models_of_two_versions_keep_their_own_code(served: Served, tmp_path: Path) -> None:
    from schemas.digest import sha256_file

    module = "bulkhead_expressions_other"
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr(f"{module}/__init__.py", "def derive(frame, *args): return 'other'")
    other = serving.load_expressions(
        tmp_path / "other.zip",
        {"expressions": {"sha256": sha256_file(tmp_path / "other.zip"), "module": module}},
    )
    assert other is not None
    assert other(served.rows) == "other"
    np.testing.assert_allclose(served(served.rows), served.wanted, rtol=0, atol=1e-12)
    del sys.modules[module]
