"""Shapley values add up to prediction minus base, are 0 for what the model does not use, and no row
is stored in a model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from schemas.errors import ConfigError, DataError
from schemas.records import ExportedModel
from tasks.explain import lines_of
from tests.training.cases import Case, make_case
from tests.training.mlflow_home import blank_database
from tests.training.test_score_file import URI, Registry, registry
from training.registry import explain_rows
from training.registry.explain_rows import (
    Explained,
    as_frame,
    explain_file,
    features_of,
    require_captum,
    shapley,
    write_explained,
)
from training.serving import serving
from training.serving.export import export_model

__all__ = ["blank_database", "registry"]
pytest.importorskip("captum")
ROWS, BEHIND = 12, 9
PLACES: list[list[tuple[str, int | None]]] = [
    [("numeric", 0)],
    [("numeric", 1), ("numeric", 2)],
    [("categorical", 0)],
    [("tensor_scan", None)],
    [("numeric", 3)],
]


def batch(rows: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    numeric = torch.randn((rows, 4), generator=generator, dtype=torch.float64)
    numeric[::3, 1] = torch.nan  # a null
    return {
        "numeric": numeric,
        "categorical": torch.randint(0, 5, (rows, 1), generator=generator),
        "tensor_scan": torch.randn((rows, 2, 2), generator=generator),
    }


def interacting(given: dict[str, torch.Tensor]) -> np.ndarray:
    """Predictions with interactions; the last number is not used."""
    number = given["numeric"].nan_to_num(0.3)
    found = number[:, 0] * number[:, 1] + number[:, 2].sin() * given["categorical"][:, 0]
    return (found + given["tensor_scan"].sum((1, 2)) * number[:, 0]).numpy()


@pytest.mark.req("R1")
def test_values_add_up_to_prediction_minus_base_and_are_0_for_what_is_not_used() -> None:
    rows, behind = batch(ROWS, 0), batch(BEHIND, 1)
    values, base, predictions = shapley(interacting, rows, behind, PLACES)
    np.testing.assert_array_equal(predictions, interacting(rows))
    assert base == pytest.approx(interacting(behind).mean())
    np.testing.assert_allclose(values.sum(1), predictions - base, atol=1e-5)
    np.testing.assert_array_equal(values[:, 4], 0)
    again = shapley(interacting, rows, behind, PLACES)[0]
    np.testing.assert_array_equal(values, again)  # the seed decides


@pytest.mark.req("R1")
def test_values_of_a_sum_are_exact_and_independent_of_other_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, behind = batch(ROWS, 2), batch(BEHIND, 3)

    def added(given: dict[str, torch.Tensor]) -> np.ndarray:
        return (2 * given["numeric"][:, 0] - given["numeric"][:, 3]).numpy()

    values = shapley(added, rows, behind, PLACES)[0]
    numbers, others = rows["numeric"].numpy(), behind["numeric"].numpy()
    np.testing.assert_allclose(values[:, 0], 2 * (numbers[:, 0] - others[:, 0].mean()), atol=1e-5)
    np.testing.assert_allclose(values[:, 4], others[:, 3].mean() - numbers[:, 3], atol=1e-5)
    monkeypatch.setattr(explain_rows, "ROWS_AT_ONCE", 5)
    np.testing.assert_array_equal(shapley(added, rows, behind, PLACES)[0], values)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, ExportedModel]:
    folder = tmp_path_factory.mktemp("explained")
    case = make_case(folder)
    return case, export_model(case.run, case.weights, folder / "model", case.split.val)


@pytest.mark.long
@pytest.mark.req("R1")
def test_the_exported_program_is_explained_from_raw_rows(
    exported: tuple[Case, ExportedModel],
) -> None:
    case, made = exported
    spec = serving.read_spec(made.spec.path)
    program = serving.load_program(made.program.path, spec)
    derive = serving.load_expressions(Path(made.spec.path).parent / "expressions.zip", spec)
    rows, behind = (
        serving.inputs(spec, case.raw[side].iloc[:count], derive)
        for side, count in (("test", 5), ("train", 8))
    )
    features = features_of(spec)
    assert sum(len(places) for places in features.values()) == len(
        [*spec["numeric"], *spec["categorical"], *spec["tensor"]]
    )

    def positive(given: dict[str, torch.Tensor]) -> np.ndarray:
        return serving.run(program, given)[:, 1]

    values, base, predictions = shapley(positive, rows, behind, list(features.values()))
    served = serving.predict(spec, program, case.raw["test"].iloc[:5], derive)
    np.testing.assert_allclose(predictions, served["probability_yes"], atol=1e-12)
    np.testing.assert_allclose(values.sum(1), predictions - base, atol=1e-5)
    assert np.abs(values).max() > 0


@pytest.mark.long
@pytest.mark.req("S4")
def test_no_row_of_training_is_in_the_exported_files(exported: tuple[Case, ExportedModel]) -> None:
    case, made = exported
    texts = Path(made.spec.path).read_text() + json.dumps(
        str(sorted(p.name for p in Path(made.spec.path).parent.iterdir()))
    )
    assert "background" not in texts
    incomes = case.raw["train"]["income"].dropna()
    assert sum(f" {value!r}" in texts for value in incomes) <= 2  # smallest and largest at most


def found(rows: int = 2) -> Explained:
    return Explained(
        "probability_yes", ["age", "ward"], np.array([0.7, 0.2])[:rows], 0.4,
        np.array([[0.2, 0.1], [-0.3, 0.1]])[:rows],
        pd.DataFrame({"age": [4.0, None], "ward": ["A\nB", "C"]}), "2 background rows: rows.csv",
    )  # fmt: skip


@pytest.mark.req("R1")
@pytest.mark.parametrize("suffix", ["parquet", "csv", "json"])
def test_values_are_written_as_they_are(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"values.{suffix}"
    write_explained(found(), path)
    readers = {"parquet": pd.read_parquet, "csv": pd.read_csv, "json": pd.read_json}
    pd.testing.assert_frame_equal(
        readers[suffix](path), as_frame(found()), check_dtype=False, rtol=1e-9
    )
    with pytest.raises(ConfigError, match=r"ends in \.parquet, \.csv, \.json"):
        write_explained(found(), tmp_path / "values.txt")


@pytest.mark.req("R1")
def test_a_terminal_shows_the_strongest_columns_first() -> None:
    assert lines_of(found()) == [
        "probability_yes: each value is what a column adds to the base, 0.4000",
        "base: the mean prediction over 2 background rows: rows.csv",
        "row 0: 0.7000",
        "  +0.2000  age   = 4",
        "  +0.1000  ward  = A·B",
        "row 1: 0.2000",
        "  -0.3000  age   = missing",
        "  +0.1000  ward  = C",
    ]


@pytest.mark.req("R1")
def test_without_captum_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "captum", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'bulkhead\[explain\]'"):
        require_captum()


@pytest.mark.req("R1")
def test_outputs_must_be_named_where_there_are_several() -> None:
    classes = {"labels": [], "task": "multiclass", "probability_columns": ["p_a", "p_b", "p_c"]}
    assert explain_rows._output(classes, "p_b") == (1, "p_b")
    with pytest.raises(ConfigError, match=r"--of: expected one of p_a, p_b, p_c; none was named"):
        explain_rows._output(classes, None)
    assert explain_rows._output({**classes, "task": "binary"}, None) == (1, "p_b")
    single = {"labels": [], "task": "regression", "probability_columns": []}
    assert explain_rows._output(single, None) == (None, "prediction")


@pytest.mark.long
@pytest.mark.req("R1")
def test_a_registered_model_is_explained_with_rows_of_a_file(
    registry: Registry, tmp_path: Path
) -> None:
    rows, behind = tmp_path / "rows.parquet", tmp_path / "behind.parquet"
    registry.rows.to_parquet(rows)
    registry.case.raw["train"].drop(columns="scan").to_parquet(behind)
    explained = explain_file(URI, rows, behind, None, registry.uri)
    wanted = registry.wanted["probability_yes"].to_numpy()
    np.testing.assert_allclose(explained.predictions, wanted, atol=1e-12)
    np.testing.assert_allclose(explained.values.sum(1), wanted - explained.base, atol=1e-5)
    with pytest.raises(ConfigError, match="a model holds no rows; give --background FILE"):
        explain_file(URI, rows, None, None, registry.uri)
    pd.concat([registry.rows] * 21).to_parquet(rows)
    with pytest.raises(DataError, match=r"expected at most 1,000 rows.*add --rows N"):
        explain_file(URI, rows, behind, None, registry.uri)
    few = explain_file(URI, rows, behind, None, registry.uri, first=3)
    np.testing.assert_array_equal(few.values, explained.values[:3])
    registry.rows.drop(columns="age").to_parquet(rows)
    with pytest.raises(DataError, match=r"rows\.parquet: missing columns: 'age'"):
        explain_file(URI, rows, behind, None, registry.uri)
    registry.rows.iloc[:0].to_parquet(rows)
    with pytest.raises(DataError, match="expected rows to explain, got none"):
        explain_file(URI, rows, behind, None, registry.uri)
