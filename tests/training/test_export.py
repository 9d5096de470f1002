"""The exported program repeats preprocessing, network and units on raw rows."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import CheckpointError, IntegrityError
from schemas.records import ExportedModel, NumericStats, Statistics
from tests.training.cases import Case, declaration_of, expected, make_case
from tests.training.mlflow_home import clinic
from training.data.arrays.apply import transform_numeric
from training.serving import serving
from training.serving.export import export_model
from training.serving.numeric_block import NumericBlock
from training.serving.reference_network import reference_network

__all__ = ["clinic"]
MODELS: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear"},
    "mlp": {"kind": "mlp", "hidden": [16]},
    "resmlp": {"kind": "resmlp", "width": 16, "depth": 2},
    "realmlp": {"kind": "realmlp", "hidden": [16, 16], "one_hot": 3},
    "tabm": {"kind": "tabm", "width": 16, "members": 4, "one_hot": 3},
    "ft_transformer": {"kind": "ft_transformer", "width": 16, "heads": 2, "depth": 2},
    "cnn": {"kind": "cnn", "channels": [4], "hidden": 8},
}


@pytest.mark.req("R1")
@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("binary", "linear"),
        pytest.param("multiclass", "resmlp", marks=pytest.mark.long),
        ("binary", "ft_transformer"),
        ("regression", "cnn"),
        ("binary", "realmlp"),
        ("multiclass", "tabm"),
        pytest.param("regression", "tabm", marks=pytest.mark.long),
    ],
)
def test_raw_rows_through_the_saved_program_equal_the_network_on_the_arrays(
    tmp_path: Path, task: str, model: str
) -> None:
    case = make_case(tmp_path, task, model=MODELS[model])
    exported = export_model(case.run, case.weights, tmp_path / "model", case.split.val)
    assert 0 <= exported.parity < 1e-9
    spec = serving.read_spec(exported.spec.path)
    found = serving.predict(
        spec, serving.load_program(exported.program.path, spec), case.raw["test"]
    )
    wanted = expected(case, reference_network(case.run, case.weights))
    if task == "regression":
        assert 100 < np.abs(wanted).mean() < 2000  # in the label's own units
        np.testing.assert_allclose(found["prediction"], wanted, rtol=0, atol=1e-8)
        return
    np.testing.assert_allclose(found[spec["probability_columns"]], wanted, rtol=0, atol=1e-12)
    assert found["prediction"].tolist() == [spec["classes"][i] for i in wanted.argmax(axis=1)]
    assert set(found["prediction"]) <= set(case.raw["test"]["y"])


@pytest.mark.req("R1")
@pytest.mark.parametrize(
    ("kept", "model"),
    [
        (("scan",), "cnn"),
        (("ward", "site", "insured", "dose"), "mlp"),
        (("age", "visits", "income", "smoker"), "linear"),
    ],
)
def test_a_block_that_the_model_lacks_is_no_input(
    tmp_path: Path, kept: tuple[str, ...], model: str
) -> None:
    features = ("age", "visits", "income", "smoker", "ward", "site", "insured", "dose", "scan")
    case = make_case(
        tmp_path, model=MODELS[model], ignored=tuple(f for f in features if f not in kept)
    )
    exported = export_model(case.run, case.weights, tmp_path / "model", case.split.test)
    spec = serving.read_spec(exported.spec.path)
    found = serving.predict(
        spec, serving.load_program(exported.program.path, spec), case.raw["test"][list(kept)]
    )
    np.testing.assert_allclose(
        found["probability_yes"],
        expected(case, reference_network(case.run, case.weights))[:, 1],
        atol=1e-12,
    )


@pytest.mark.req("R1")
def test_the_same_run_exports_the_same_bytes_without_paths_data_or_pickles(
    clinic: tuple[Case, ExportedModel], tmp_path: Path
) -> None:
    case, first = clinic
    second = export_model(case.run, case.weights, tmp_path, case.split.val)
    assert first.program.sha256 == second.program.sha256
    assert first.spec.sha256 == second.spec.sha256
    with zipfile.ZipFile(first.program.path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    here = str(Path(__file__).resolve().parents[2]).encode()
    assert not [name for name, content in parts.items() if here in content]
    assert [len(content) for name, content in parts.items() if "sample_inputs" in name] == [0]
    assert not [
        name
        for name, content in parts.items()
        if name.endswith("config.json") and b'"use_pickle": true' in content
    ]

    _says_what_serving_needs(json.loads(Path(first.spec.path).read_text()))


def _says_what_serving_needs(spec: dict[str, Any]) -> None:
    assert [c["name"] for c in spec["numeric"]] == ["age", "visits", "income", "smoker"]
    assert [c["fill"] is None for c in spec["numeric"]] == [False, True, True, True]
    assert {c["name"]: sorted(c["values"]) for c in spec["categorical"]} == {
        "ward": ["a", "b", "c"],
        "site": ["1", "2", "3", "4", "5"],
        "insured": ["false", "true"],
        "dose": ["0.5", "1", "2"],
    }
    assert spec["tensor"] == [{"name": "scan", "shape": [4, 4], "dtype": "uint8"}]
    assert (spec["classes"], spec["class_dtype"], spec["probability_columns"]) == (
        ["no", "yes"],
        "str",
        ["probability_no", "probability_yes"],
    )
    assert spec["versions"]["torch"] == torch.__version__


@pytest.mark.req("M4")
def test_a_network_that_looks_at_other_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "tests")
    case = make_case(
        tmp_path,
        model={"kind": "custom", "path": "tests.training.cases:Mixing"},
        ignored=("ward", "site", "insured", "dose", "scan"),
    )
    with pytest.raises(
        IntegrityError,
        match=(
            r"the exported program differs from the network by .* \(val, batch of 1\).*treat rows"
            r" alike"
        ),
    ):
        export_model(case.run, case.weights, tmp_path / "model", case.split.val)


@pytest.mark.req("R1")
def test_a_custom_network_that_insists_on_single_precision_is_exported_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "tests")
    case = make_case(
        tmp_path,
        model={"kind": "custom", "path": "tests.training.cases:SingleOnly"},
        ignored=("ward", "site", "insured", "dose", "scan"),
    )
    assert next(reference_network(case.run, case.weights).parameters()).dtype == torch.float32
    assert export_model(case.run, case.weights, tmp_path / "model", case.split.val).parity < 1e-6


@pytest.mark.req("R1")
def test_a_custom_network_may_ask_for_its_rows_by_len(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "tests")
    case = make_case(
        tmp_path,
        model={"kind": "custom", "path": "tests.training.cases:Counting"},
        ignored=("ward", "site", "insured", "dose", "scan"),
    )
    first, second = (
        export_model(case.run, case.weights, tmp_path / name, case.split.val)
        for name in ("first", "second")
    )
    assert first.parity < 1e-6 and first.program.sha256 == second.program.sha256
    here = str(Path(__file__).resolve().parents[2]).encode()
    with zipfile.ZipFile(first.program.path) as archive:
        assert not [name for name in archive.namelist() if here in archive.read(name)]


@pytest.mark.req("S1")
def test_weights_of_another_network_or_with_code_are_refused(
    clinic: tuple[Case, ExportedModel], tmp_path: Path
) -> None:
    case = clinic[0]
    marker, hostile = tmp_path / "executed", tmp_path / "hostile.pt"
    with open(hostile, "wb") as file:
        pickle.dump(_Bomb(marker), file)
    with pytest.raises(
        CheckpointError, match=r"hostile.pt: expected the weights of the declared network"
    ):
        reference_network(case.run, hostile)
    assert not marker.exists()
    torch.save({"layer.weight": torch.zeros(2)}, tmp_path / "other.pt")
    with pytest.raises(
        CheckpointError, match=r"other.pt: expected the weights of the declared network"
    ):
        reference_network(case.run, tmp_path / "other.pt")


class _Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.mark.req("R1")
def test_parity_rows_must_be_those_that_were_split(tmp_path: Path) -> None:
    case = make_case(tmp_path)
    Path(case.split.val.file.path).write_bytes(b"something else")
    with pytest.raises(IntegrityError, match=r"val.parquet: SHA-256 is .* the file was changed"):
        export_model(case.run, case.weights, tmp_path / "model", case.split.val)  # type: ignore[arg-type]


knots = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12).map(lambda v: tuple(sorted(v)))
columns = st.one_of(
    st.builds(
        NumericStats,
        name=st.just("s"),
        method=st.just("standard"),
        center=st.floats(-1e3, 1e3),
        scale=st.floats(1e-3, 1e3),
        fill=st.floats(-9, 9),
        indicator=st.booleans(),
    ),
    st.builds(
        NumericStats,
        name=st.just("q"),
        method=st.just("quantile"),
        knots=knots,
        fill=st.floats(-9, 9),
        indicator=st.booleans(),
    ),
    st.builds(NumericStats, name=st.just("n"), method=st.just("none"), fill=st.none()),
)


@pytest.mark.req("R1")
@given(
    stats=st.lists(columns, min_size=1, max_size=5),
    clip=st.sampled_from([None, 2.0, 10.0]),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_columns_repeat_the_appliers_arithmetic_bit_for_bit(
    stats: list[NumericStats], clip: float | None, data: st.DataObject
) -> None:
    statistics = Statistics(
        train_sha256="0", rows=2, numeric=tuple(stats), categorical=(), tensor=(), clip=clip
    )
    near = [k for s in stats for k in s.knots] or [0.0]
    value = st.one_of(st.floats(-1e6, 1e6), st.just(float("nan")), st.sampled_from(near))
    rows = np.array(
        data.draw(
            st.lists(
                st.lists(value, min_size=len(stats), max_size=len(stats)), min_size=1, max_size=6
            )
        )
    )
    found = NumericBlock(statistics)(torch.from_numpy(rows)).numpy()
    np.testing.assert_array_equal(found, transform_numeric(rows, statistics))


def test_declarations_of_the_case_cover_every_kind_of_column() -> None:
    kinds = {c.kind for c in declaration_of("binary").data.columns.values()}
    assert {"numeric", "categorical", "tensor"} <= kinds
