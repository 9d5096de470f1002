"""What serving refuses, counts and reports: nulls in categories, unknown ones, clipped numbers;
from Python, over HTTP and of files.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from httpx import ASGITransport, AsyncClient, Response

from schemas.errors import DataError
from tests.training.mlflow_home import blank_database
from tests.training.test_score_file import URI, Registry
from training.registry.score_file import predict_file
from training.serving.serving import mlflow

__all__ = ["blank_database"]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, blank_database: Path) -> Registry:
    folder = tmp_path_factory.mktemp("refusals")
    (folder / "mlflow.db").write_bytes(blank_database.read_bytes())
    return Registry(folder)


@pytest.fixture(scope="module")
def model(registry: Registry) -> Iterator[Any]:
    mlflow.set_tracking_uri(registry.uri)
    try:
        yield mlflow.pyfunc.load_model(URI)
    finally:
        mlflow.set_tracking_uri(None)


@pytest.fixture(scope="module")
def endpoint(model: Any) -> Any:
    """The application that `mlflow models serve` runs."""
    from mlflow.pyfunc import scoring_server

    app = scoring_server.init(model)

    def post(content: str, kind: str = "application/json") -> Response:
        async def ask() -> Response:
            async with AsyncClient(
                transport=ASGITransport(app), base_url="http://endpoint"
            ) as client:
                return await client.post(
                    "/invocations", content=content, headers={"Content-Type": kind}
                )

        return asyncio.run(ask())

    return post


def scores(answer: Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    return np.array([row["probability_yes"] for row in answer.json()["predictions"]])


@pytest.mark.req("R1", "S2")
def test_a_null_in_a_category_that_had_none_is_refused_by_name_and_one_that_had_some_is_served(
    registry: Registry, model: Any
) -> None:
    """`site` had no null in any row, `ward` had some in train."""
    nulls = {c["name"]: c["nulls"] for c in registry.champion.spec["categorical"]}
    assert nulls["ward"] and not nulls["site"]
    for null in (None, np.nan, pd.NA):
        frame = registry.rows.astype({"site": object}).assign(
            site=lambda f, null=null: f["site"].where(f.index != 3, null)
        )
        with pytest.raises(
            ValueError,
            match=r"column 'site': nulls, .* in 1 rows \(index 3\); .*keep_default_na=False",
        ) as caught:
            model.predict(frame)
        assert isinstance(caught.value, ValueError) and isinstance(
            caught.value, mlflow.exceptions.MlflowException
        )
    assert len(model.predict(registry.rows.assign(ward=None))) == len(registry.rows)


@pytest.mark.req("R1")
def test_models_of_earlier_versions_take_nulls_as_they_did(registry: Registry) -> None:
    from training.serving import serving

    earlier = {"name": "site", "values": ["1", "2"]}
    assert serving.codes(pd.Series([1, None], dtype=object), earlier).tolist() == [2, 1]


@pytest.mark.req("R1")
def test_unknown_categories_and_clipped_numbers_are_counted_in_one_line_of_the_log(
    registry: Registry, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    strange = registry.rows.astype({"site": object}).assign(
        site=lambda f: f["site"].where(f.index > 2, "elsewhere")
    )
    with caplog.at_level(logging.WARNING, logger="bulkhead.serving"):
        model.predict(registry.rows[registry.rows["income"] < 100])
        assert caplog.messages == []
        model.predict(strange)
    (line,) = caplog.messages
    assert (
        "column 'site': 3 rows hold a category that training did not know (first: elsewhere)"
        in line
    )
    assert (
        "column 'income': 1 row holds a number outside the range that the model was fitted to,"
        " which is clipped (first: 200.64)" in line
    )


@pytest.mark.req("R1")
def test_extra_columns_in_any_number_make_no_warning(
    registry: Registry,
    model: Any,
    recwarn: pytest.WarningsRecorder,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, logger="bulkhead.serving")
    found = model.predict(
        registry.rows.assign(extra=1, more="x")[[*reversed(registry.rows.columns), "more", "extra"]]
    )
    np.testing.assert_array_equal(found["probability_yes"], registry.wanted["probability_yes"])
    assert not list(recwarn) and caplog.messages == []


@pytest.mark.req("R1")
@pytest.mark.parametrize("kind", ["float32", "Int64", "category", "pyarrow", "object"])
def test_every_type_of_pandas_gives_equal_numbers(
    registry: Registry, model: Any, kind: str
) -> None:
    rows = registry.rows
    if kind == "pyarrow":
        frame = rows.convert_dtypes(dtype_backend="pyarrow")
    elif kind == "category":
        frame = rows.astype({"ward": "category", "site": "category"})
    elif kind == "object":
        frame = rows.astype(object)
    else:
        frame = rows.astype({"visits": kind, "hour": kind})
    np.testing.assert_allclose(
        model.predict(frame)["probability_yes"],
        registry.wanted["probability_yes"],
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.req("R4")
def test_an_endpoint_takes_csv_records_and_split_and_reads_epoch_milliseconds_as_dates(
    registry: Registry, endpoint: Any
) -> None:
    rows, wanted = registry.rows, registry.wanted["probability_yes"]
    for orient in ("split", "records"):
        body = {f"dataframe_{orient}": json.loads(rows.to_json(orient=orient))}
        assert isinstance(json.loads(rows.to_json(orient="records"))[0]["born"], int), (
            "pandas writes dates as milliseconds"
        )
        np.testing.assert_allclose(scores(endpoint(json.dumps(body))), wanted, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        scores(endpoint(rows.to_csv(index=False), "text/csv")), wanted, rtol=0, atol=1e-12
    )


@pytest.mark.req("R4", "S2")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": "income"}, "missing columns: 'income'"),
        (
            {"site": None},
            (
                "column 'site': nulls, which training never saw there, in 50 rows (index 0, 1, 2,"
                " 3, 4, …)"
            ),
        ),
        ({"visits": "many"}, "column 'visits': expected numbers, got 'many' in 50 rows"),
        ({"seen": "2020"}, "derived column 'seen_at'"),
    ],
)
def test_a_refusal_over_http_is_400_and_its_sentence_is_the_message(
    registry: Registry, endpoint: Any, change: dict[str, Any], message: str
) -> None:
    frame = (
        registry.rows.drop(columns=change["drop"])
        if "drop" in change
        else registry.rows.assign(**change)
    )
    answer = endpoint(json.dumps({"dataframe_split": json.loads(frame.to_json(orient="split"))}))
    assert answer.status_code == 400
    assert answer.json()["error_code"] == "BAD_REQUEST" and answer.json()["message"].startswith(
        message
    )
    assert "Traceback" not in answer.text and "stack_trace" not in answer.json()


@pytest.mark.req("R4")
def test_a_file_reports_what_the_model_does_not_know_summed_over_batches(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.registry.score_file.BATCH_ROWS", 7)
    registry.rows.assign(site=9).to_parquet(tmp_path / "in.parquet")
    made = predict_file(URI, tmp_path / "in.parquet", tmp_path / "out.parquet", registry.uri)
    assert made.unfamiliar["site"] == {"what": "unknown", "rows": 50, "first": "9"}


@pytest.mark.req("R4", "S2")
def test_a_csv_is_read_as_training_read_it_where_pandas_would_make_nulls_of_texts(
    registry: Registry, tmp_path: Path
) -> None:
    rows = registry.rows.astype({"site": object}).assign(
        site=lambda f: f["site"].where(f.index != 2, "None")
    )
    rows.to_csv(tmp_path / "in.csv", index=False)
    made = predict_file(URI, tmp_path / "in.csv", tmp_path / "out.csv", registry.uri)
    assert made.unfamiliar["site"] == {
        "what": "unknown",
        "rows": 1,
        "first": "None",
    }, "a text, and no null"
    rows.assign(site=lambda f: f["site"].where(f.index != 4, None)).to_csv(
        tmp_path / "null.csv", index=False
    )
    with pytest.raises(
        DataError, match="column 'site': nulls, which training never saw there, in 1 rows"
    ):
        predict_file(URI, tmp_path / "null.csv", tmp_path / "out.csv", registry.uri)


@pytest.mark.req("R4")
@pytest.mark.parametrize("batch", [7, 16_384])
def test_a_csv_passes_its_texts_on_as_they_are(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr("training.registry.score_file.BATCH_ROWS", batch)
    texts = [
        "1e5",
        "1.10",
        "007",
        "",
        "2024-01-01 00:00:00",
        "TRUE",
        "a,b",
        'say "x"',
        "None",
        "NA",
    ]
    extra = {"exact": texts * 5, "amount": ["1.10", "1e5"] * 25, "when": ["2024-01-01 10:00"] * 50}
    registry.rows.assign(**extra).to_csv(tmp_path / "in.csv", index=False)
    predict_file(URI, tmp_path / "in.csv", tmp_path / "out.csv", registry.uri)
    given, found = (
        pd.read_csv(tmp_path / f"{name}.csv", dtype=str, keep_default_na=False)
        for name in ("in", "out")
    )
    pd.testing.assert_frame_equal(found[given.columns], given)
    np.testing.assert_allclose(
        found["probability_yes"].astype(float),
        registry.wanted["probability_yes"],
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.req("R4")
@pytest.mark.parametrize("target", ["out.csv", "out.parquet"])
def test_predictions_of_a_partitioned_folder_are_next_to_their_own_rows(
    registry: Registry, tmp_path: Path, target: str
) -> None:
    """One file a folder: a join of the keys would give the rows in any order."""
    rows = registry.rows.assign(row=range(len(registry.rows)))
    for number in range(len(rows)):
        folder = tmp_path / "in" / f"part={number:02d}"
        folder.mkdir(parents=True)
        rows.iloc[[number]].to_csv(folder / "rows.csv", index=False)
    for _ in range(3):
        predict_file(URI, tmp_path / "in", tmp_path / target, registry.uri)
        found = (
            pd.read_csv(tmp_path / target)
            if target.endswith("csv")
            else pd.read_parquet(tmp_path / target)
        )
        order = found["row"].astype(int).to_numpy()
        assert sorted(order) == list(range(len(rows)))
        np.testing.assert_allclose(
            found["probability_yes"].astype(float),
            registry.wanted["probability_yes"].to_numpy()[order],
            rtol=0,
            atol=1e-12,
        )
        assert [int(part) for part in found["part"]] == order.tolist(), "and so are the keys"


SPEC: dict[str, Any] = {
    "numeric": [
        {"name": "dose", "fill": None, "low": None, "high": None, "seen": [1.0, 3.0]},
        {"name": "age", "fill": None, "low": 0.0, "high": 99.0},
    ],
    "categorical": [
        {"name": "ward", "values": ["a"], "nulls": True, "unseen_null": True},
        {"name": "site", "values": ["x"], "nulls": True},
    ],
    "tensor": [],
    "derived": {},
    "raw": [],
    "null_texts": [],
}


@pytest.mark.req("R1")
def test_numbers_beyond_train_and_nulls_that_train_never_had_are_counted() -> None:
    from training.serving import serving

    frame = pd.DataFrame(
        {
            "dose": [1.0, 3.0, 3.5, 0.2],
            "age": [5.0, 100.0, 6.0, 7.0],
            "ward": ["a", None, "b", "a"],
            "site": [None, "x", "x", "x"],
        }
    )
    found: dict[str, dict[str, Any]] = {}
    serving.inputs(SPEC, frame, unfamiliar=found)
    assert {name: (f["what"], f["rows"]) for name, f in found.items()} == {
        "dose": ("outside", 2),
        "age": ("clipped", 1),
        "ward": ("unknown", 2),
    }
    assert serving.in_words(found)[0] == (
        "column 'dose': 2 rows hold a number outside the range of the rows that the model was"
        " fitted to (first: 3.5)"
    )
    found.clear()
    serving.inputs(SPEC, frame.iloc[:1], unfamiliar=found)
    assert found == {}


@pytest.mark.req("R1")
def test_missing_columns_are_named_before_anything_else_is_refused() -> None:
    from training.serving import serving

    frame = pd.DataFrame({"dose": ["many"], "site": [None]})
    with pytest.raises(ValueError, match=r"^missing columns: 'age', 'ward'$"):
        serving.inputs(SPEC, frame)


@pytest.mark.req("R1")
def test_the_spec_names_the_range_of_a_column_that_is_not_clipped_alone(
    registry: Registry,
) -> None:
    from schemas.records import NumericStats
    from training.serving.export import _seen

    dose = NumericStats(name="dose", method="smooth", min=1.0, max=3.0)
    assert _seen(dose, None) == {"seen": [1.0, 3.0]} and _seen(dose, 0.5) == {}
    assert not any("seen" in c for c in registry.champion.spec["numeric"] if c["low"] is not None)
    assert not any("unseen_null" in c for c in registry.champion.spec["categorical"])
