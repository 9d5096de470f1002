"""The drafted declaration loads as it is, finds what was planted, and gives its reasons."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings

from schemas.config import SPLITS, Declaration
from schemas.errors import ConfigError, SourceError
from schemas.load import load_declaration
from training.data.draft.draft import draft
from training.data.sources.source import fingerprint
from training.data.split.split import split
from training.data.table.reserved import RESERVED
from training.data.table.validate import validate

pytestmark = pytest.mark.req("P1")
FEW = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def load(folder: Path, text: str) -> Declaration:
    (folder / "draft.yaml").write_text(text, encoding="utf-8")
    return load_declaration(folder / "draft.yaml")


def roles(declaration: Declaration) -> dict[str, str]:
    return {
        n: c.kind if c.role == "feature" else c.role for n, c in declaration.data.columns.items()
    }


def reason(text: str, column: str) -> str:
    return next(
        line.split("  # ")[1] for line in text.splitlines() if line.startswith(f"    {column}: ")
    )


def planted(rows: int = 600) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    outcome = rng.integers(0, 2, rows)
    return {
        "visit_id": np.arange(rows) * 7,
        "patient_id": [f"p{i}" for i in rng.integers(0, 90, rows)],
        "seen_on": [
            datetime.date(2020, 1, 1) + datetime.timedelta(days=int(d))
            for d in rng.integers(0, 900, rows)
        ],
        "age": rng.normal(50, 10, rows).round(1),
        "ward_type": rng.integers(0, 6, rows),
        "sex": rng.choice(["f", "m"], rows),
        "flat": np.ones(rows),
        "rarely": [float(i) if i % 50 == 0 else None for i in range(rows)],
        "verdict": np.where(outcome == 1, "back", "away"),
        "note": [f"free text {i} {i * 3}" for i in rng.integers(0, 10**9, rows)],
        "weekly": rng.integers(0, 900, rows),
        "outcome": outcome,
    }


def test_roles_are_guessed_and_explained(tmp_path):
    pq.write_table(pa.table(planted(2000)), tmp_path / "Clinic Visits.parquet")
    text = draft(str(tmp_path / "Clinic Visits.parquet"))
    declaration = load(tmp_path, text)
    assert roles(declaration) == {
        "visit_id": "id",
        "patient_id": "group",
        "seen_on": "time",
        "age": "numeric",
        "ward_type": "categorical",
        "sex": "categorical",
        "flat": "ignore",
        "rarely": "ignore",
        "verdict": "ignore",
        "note": "text",
        "weekly": "numeric",
        "outcome": "label",
    }
    assert (declaration.name, declaration.task.kind, declaration.split.kind) == (
        "clinic-visits",
        "binary",
        "group_time",
    )
    assert (
        reason(text, "verdict")
        == "suspicious: each of its values has one value of the label: the label under another name"
    )
    assert reason(text, "flat") == "constant" and reason(text, "rarely") == "98% null"
    assert "90 values for 2000 rows" in reason(text, "patient_id")
    assert all("  # " in line for line in text.splitlines()[3:] if not line.endswith(":"))
    validate(fingerprint(declaration.data), declaration, tmp_path / "out")


def test_csv_with_its_own_delimiter_nulls_and_dates(tmp_path):
    rng = np.random.default_rng(1)
    parts = rng.integers(0, 50, (300, 2))
    lines = [
        f"{m}/{d}/21;{'?' if m == 3 else m * 1.5};{a};{b};{a + b}"
        for m, d, a, b in zip(
            rng.integers(1, 13, 300), rng.integers(1, 29, 300), *parts.T, strict=True
        )
    ]
    (tmp_path / "sales.csv").write_text("day;load;walk_in;booked;total\n" + "\n".join(lines) + "\n")
    text = draft(str(tmp_path / "sales.csv"), label="total", name="sales")
    declaration = load(tmp_path, text)
    assert declaration.data.csv.delimiter == ";" and declaration.data.csv.null_values == ("", "?")
    assert roles(declaration) == {
        "day": "ignore",
        "load": "numeric",
        "walk_in": "ignore",
        "booked": "ignore",
        "total": "label",
        "row_time": "time",
    }
    assert reason(text, "walk_in") == "suspicious: walk_in + booked is the label in every row"
    assert (declaration.task.kind, declaration.split.kind) == ("regression", "time")
    validate(fingerprint(declaration.data), declaration, tmp_path / "out")


def test_quote_marks_inside_texts_turn_quoting_off(tmp_path):
    (tmp_path / "screens.csv").write_text(
        "size,price,y\n"
        + "".join(f'"so called" size {i % 7},{i * 2.5},{i % 2}\n' for i in range(40))
    )
    declaration = load(tmp_path, draft(str(tmp_path / "screens.csv")))
    assert declaration.data.csv.quote == ""
    validate(fingerprint(declaration.data), declaration, tmp_path / "out")


def test_pictures_and_predefined_sides(tmp_path):
    rng = np.random.default_rng(2)
    pictures = pa.FixedSizeListArray.from_arrays(
        pa.array(rng.integers(0, 255, 90 * 64).astype("uint8")), 64
    )
    sides = ["train"] * 60 + ["test"] * 30
    pq.write_table(
        pa.table(
            {
                "picture": pictures,
                "digit": rng.integers(0, 9, 90),
                "side": sides,
                "device": [f"d{i % 15}" for i in range(90)],
            }
        ),
        tmp_path / "p.parquet",
    )
    declaration = load(tmp_path, draft(str(tmp_path / "p.parquet"), label="digit"))
    assert declaration.data.columns["picture"].shape == (8, 8) and declaration.model.kind == "cnn"
    assert declaration.split.kind == "predefined" and declaration.split.carve_val == 0.2
    assert declaration.data.columns["device"].role == "group"


@FEW
@given(
    names=st.lists(
        st.text(
            st.characters(exclude_categories=("Cs",), exclude_characters="\x00"),
            min_size=1,
            max_size=12,
        ),
        min_size=2,
        max_size=6,
        unique_by=str.lower,
    )
)
@example(names=["0", "__SIDE"])
def test_any_column_names_give_a_draft_that_loads(tmp_path, names):
    rng = np.random.default_rng(3)
    table = {name: rng.normal(size=50) for name in names} | {"the label": rng.integers(0, 2, 50)}
    features = [n for n in names if n.lower() not in RESERVED]
    if len({n.lower() for n in table}) < len(table) or not features:
        return
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    declaration = load(tmp_path, draft(str(tmp_path / "t.parquet"), label="the label"))
    assert set(declaration.data.columns) == set(table)


@pytest.mark.parametrize(
    "name", ["no", "Yes", "null", "a: b", "#x", "- y", 'say "hi"', "line\nbreak", "*", "{a}", "ü"]
)
def test_names_that_yaml_would_misread(tmp_path, name):
    pq.write_table(
        pa.table(
            {
                name: np.arange(50) % 7 * 1.5,
                "other": np.arange(50) % 5 * 0.5,
                "label": np.arange(50) % 2,
            }
        ),
        tmp_path / "t.parquet",
    )
    assert set(load(tmp_path, draft(str(tmp_path / "t.parquet"))).data.columns) == {
        name,
        "other",
        "label",
    }


def test_wide_tables_list_only_what_needs_a_word(tmp_path):
    columns = {f"gene{i}": np.random.default_rng(i).normal(size=60) for i in range(120)}
    pq.write_table(
        pa.table({**columns, "flat": np.zeros(60), "label": np.arange(60) % 3}),
        tmp_path / "wide.parquet",
    )
    declaration = load(tmp_path, draft(str(tmp_path / "wide.parquet")))
    assert roles(declaration) == {"flat": "ignore", "label": "label", "*": "auto"}


def test_molecules_are_grouped_by_scaffold(tmp_path):
    table = {
        "smiles": ["C" * (i + 1) for i in range(40)],
        "size": [float(i) for i in range(40)],
        "y": [0, 1] * 20,
    }
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    declaration = load(tmp_path, draft(str(tmp_path / "t.parquet"), label="y"))
    assert (
        declaration.data.group_by.scaffold == "smiles"
        and declaration.split.kind == "stratified_group"
    )
    pq.write_table(
        pa.table({**table, "patient_id": [f"p{i % 20}" for i in range(40)]}), tmp_path / "g.parquet"
    )
    assert load(tmp_path, draft(str(tmp_path / "g.parquet"), label="y")).data.group_by is None


def test_what_cannot_be_drafted_is_said(tmp_path):
    pq.write_table(pa.table(planted()), tmp_path / "t.parquet")
    with pytest.raises(
        ConfigError, match="label 'outcme': no such column; did you mean one of outcome"
    ):
        draft(str(tmp_path / "t.parquet"), label="outcme")
    pq.write_table(pa.table({"a": [1.0, 2.0], "y": [1, 1]}), tmp_path / "one.parquet")
    with pytest.raises(ConfigError, match="label 'y': expected at least two values"):
        draft(str(tmp_path / "one.parquet"))
    pq.write_table(
        pa.table({"a": pa.array([], pa.float64()), "y": pa.array([], pa.int64())}),
        tmp_path / "none.parquet",
    )
    with pytest.raises(ConfigError, match="expected rows and at least two columns"):
        draft(str(tmp_path / "none.parquet"))
    with pytest.raises(SourceError, match="no such file"):
        draft(str(tmp_path / "gone.parquet"))


@pytest.mark.parametrize(
    ("file", "label", "expected"),
    [
        ("titanic.csv", None, {"survived": "label", "alive": "ignore", "deck": "categorical"}),
        (
            "bike_hour.csv",
            "cnt",
            {
                "instant": "id",
                "casual": "ignore",
                "registered": "ignore",
                "row_time": "time",
                "cnt": "label",
            },
        ),
        (
            "wisdm_v11.csv.gz",
            None,
            {"user": "group", "class": "label", "XAVG": "ignore", "UNIQUE_ID": "ignore"},
        ),
        (
            "cmapss_fd001.parquet",
            "rul",
            {"unit": "group", "split": "split", "setting_3": "ignore", "cycle": "numeric"},
        ),
    ],
)
def test_real_tables_validate_as_drafted(tmp_path, real_data, file, label, expected):
    if not (real_data / file).exists():
        pytest.skip(f"{real_data / file} is not there")
    declaration = load(tmp_path, draft(str(real_data / file), label=label))
    found = roles(declaration)
    assert {n: found[n] for n in expected} == expected
    assert validate(fingerprint(declaration.data), declaration, tmp_path / "out").table.rows > 800


def test_diabetes_is_drafted(tmp_path, real_data):
    text = draft(str(real_data / "diabetes130.csv.gz"))
    declaration = load(tmp_path, text)
    found = roles(declaration)
    assert (
        found["encounter_id"],
        found["patient_nbr"],
        found["readmitted"],
        found["examide"],
        found["weight"],
    ) == ("id", "group", "label", "ignore", "ignore")
    assert declaration.data.csv.null_values == ("", "?") and declaration.split.kind == "group"
    assert found["admission_type_id"] == "categorical"


@pytest.mark.parametrize(
    ("values", "positive", "why"),
    [
        (["yes"] * 54 + ["no"] * 46, '"yes"', "'yes', by its meaning, is positive (54.0%"),
        (["Y"] * 80 + ["N"] * 20, '"Y"', "by its meaning"),
        ([1] * 70 + [0] * 30, "1", "1, by its meaning"),
        ([True] * 70 + [False] * 30, "true", "True, by its meaning"),
        (["late"] * 60 + ["no"] * 40, '"late"', "by its meaning"),
        (["ill"] * 20 + ["well"] * 80, '"ill"', "the rarer one is positive (20.0%"),
    ],
)
def test_the_positive_class_is_the_one_that_means_yes(
    tmp_path: Path, values: list[object], positive: str, why: str
) -> None:
    x = np.random.default_rng(0).normal(size=100)
    pq.write_table(
        pa.table({"id": list(range(100)), "x": x, "outcome": values}), tmp_path / "t.parquet"
    )
    text = draft(str(tmp_path / "t.parquet"), "outcome")
    assert f"positive: {positive}}}" in text and why in text


def test_numbers_that_never_repeat_are_features_of_a_regression(tmp_path):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 4))
    table = {f"x{i}": x[:, i] for i in range(4)} | {
        "ward": rng.choice(list("abc"), 400),
        "price": x @ [1, 2, -1, 0.5] + rng.normal(size=400),
    }
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    declaration = load(tmp_path, draft(str(tmp_path / "t.parquet")))
    assert roles(declaration) == {
        **{f"x{i}": "numeric" for i in range(4)},
        "ward": "categorical",
        "price": "label",
    }
    assert declaration.task.kind == "regression"


@pytest.mark.parametrize("twice", [False, True], ids=["all different", "each row twice"])
def test_copies_of_a_number_on_another_scale_are_found(tmp_path, twice):
    rng = np.random.default_rng(2)
    price = rng.lognormal(3, 1, 300)
    table = {
        "age": rng.normal(size=300),
        "cents": price * 100 + 7,
        "log_price": np.log(price),
        "inverse": -(price**3),
        "price": price,
    }
    table = {name: np.tile(values, 2 if twice else 1) for name, values in table.items()}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    text = draft(str(tmp_path / "t.parquet"), label="price")
    assert roles(load(tmp_path, text)) == {
        "age": "numeric",
        "cents": "ignore",
        "log_price": "ignore",
        "inverse": "ignore",
        "price": "label",
    }
    assert "suspicious: it rises or falls with the label in every row" in reason(text, "log_price")


@pytest.mark.parametrize(
    ("values", "kind", "positive"),
    [
        ([0, 1, 1], pa.decimal128(38, 0), 1),
        ([0, 1, 1], pa.decimal128(10, 2), 1),
        ([2, 5, 5], pa.decimal128(10, 0), 2),
        ([0, 1, 1], pa.float64(), 1),
        ([True, False, False], pa.bool_(), True),
        (["no", "yes", "yes"], pa.string(), "yes"),
    ],
)
def test_the_positive_value_is_written_as_the_label_has_it(tmp_path, values, kind, positive):
    rng = np.random.default_rng(0)
    label = pa.array((values * 20)[:60])
    label = (
        label.cast(pa.int32()).cast(pa.decimal128(38, 0)).cast(kind)
        if pa.types.is_decimal(kind)
        else label.cast(kind)
    )
    pq.write_table(
        pa.table(
            {
                "id": pa.array(range(60)).cast(pa.decimal128(38, 0)),
                "a": rng.normal(size=60),
                "y": label,
            }
        ),
        tmp_path / "t.parquet",
    )
    declaration = load(tmp_path, draft(str(tmp_path / "t.parquet")))
    assert (
        roles(declaration) == {"id": "id", "a": "numeric", "y": "label"}
        and declaration.task.positive == positive
    )
    assert validate(fingerprint(declaration.data), declaration, tmp_path / "out").table.rows == 60


def test_a_label_of_dates_is_refused_by_name(tmp_path):
    pq.write_table(
        pa.table({"a": [1.0, 2.5, 3.0], "day": [datetime.date(2024, 1, d) for d in (1, 2, 1)]}),
        tmp_path / "t.parquet",
    )
    with pytest.raises(
        ConfigError, match="label 'day': expected numbers, text or true/false, got dates"
    ):
        draft(str(tmp_path / "t.parquet"), label="day")


@pytest.mark.parametrize(("hours", "embargo"), [(1, "1h"), (24, "1d"), (24 * 30, "1d")])
def test_the_embargo_leaves_rows_on_every_side_however_short_the_times_are(
    tmp_path: Path, hours: int, embargo: str
) -> None:
    moments = [
        datetime.datetime(2024, 3, 30, 20) + datetime.timedelta(hours=hours * i) for i in range(60)
    ]
    table = {
        "id": list(range(60)),
        "a": [i % 7 / 2 for i in range(60)],
        "y": [i % 2 for i in range(60)],
        "seen": moments,
    }
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    text = draft(str(tmp_path / "t.parquet"))
    assert f"split: {{kind: time, embargo: {embargo}}}" in text
    declaration = load(tmp_path, text)
    sides = split(
        validate(fingerprint(declaration.data), declaration, tmp_path / "out"),
        declaration,
        tmp_path / "split",
        tmp_path / "ledger",
    )
    assert min(sides.side(side).rows for side in SPLITS) > 0
