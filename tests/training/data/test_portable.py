"""What serving can compute is decided when the data are prepared, and tried on rows of the
source.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from schemas.errors import ConfigError
from schemas.load import load_declaration
from tests.training.data.chain import declared, read, validated_of, write_table, write_text
from training.data.serving_expressions import derive
from training.data.sources.source import fingerprint
from training.data.table.portable import portable, supported
from training.data.table.raw_rows import require_agreement
from training.data.table.validate import validate

TYPES = {
    "a": "BIGINT",
    "s": "VARCHAR",
    "d": "DATE",
    "l": "DOUBLE[]",
    "t": "TIME",
    "e": "ENUM('x', 'y')",
    "n": '"NULL"',
    "x": "DOUBLE",
    "f": "FLOAT",
}
EXAMPLES = Path(__file__).parents[3] / "examples"


# ------------------------------------------------------------------------------------------- trees


@pytest.mark.req("R1")
def test_a_tree_says_every_type_and_cast_and_is_plain_json() -> None:
    (tree,) = portable({"y": "A / 2 > 0.5"}, TYPES).values()
    half = {
        "op": "cast",
        "type": "DOUBLE",
        "args": [{"op": "constant", "type": "DECIMAL(2,1)", "value": 5}],
    }
    quotient = [
        {"op": "column", "type": "BIGINT", "name": "a"},
        {"op": "constant", "type": "INTEGER", "value": 2},
    ]
    divided = {
        "op": "/",
        "type": "DOUBLE",
        "args": [{"op": "cast", "type": "DOUBLE", "args": [arg]} for arg in quotient],
    }
    assert tree == {
        "sql": "A / 2 > 0.5",
        "columns": {"a": "BIGINT"},
        "root": {"op": ">", "type": "BOOLEAN", "args": [divided, half]},
    }
    assert json.loads(json.dumps(tree)) == tree


@pytest.mark.req("R1")
def test_constants_keep_their_value() -> None:
    wanted = {
        "12345678901234567890123": 12345678901234567890123,
        "-1.50": -150,
        "date '2020-01-01' + interval 1 day": [0, 1, 0],
        "interval '1 month 2 days 03:00:00.5'": [1, 2, 10_800_500_000],
        "1e400": "inf",
        "'it''s'": "it's",
        "cast(null as integer)": None,
    }
    for expression, value in wanted.items():
        (tree,) = portable({"y": expression}, TYPES).values()
        root = tree["root"]
        assert (root["args"][1] if root["op"] == "+" else root)["value"] == value, expression


REFUSED: dict[str, str] = {
    "regexp_matches(s, 'a+')": r"regexp_matches\(VARCHAR, VARCHAR\)",
    "length(md5(s))": r"md5\(VARCHAR\)",
    "strftime(d, '%H')": r"strftime\(DATE, VARCHAR\)",
    "l[1] + 1": r"column 'l' of type LIST",
    "date_part('hour', t)": r"column 't' of type TIME",
    "n is null": r"column 'n' of type NULL",
    "cast(concat(s, ':00') as time) is null": r"a cast from VARCHAR to TIME",
    "case when a > 1 then [1] end is null": r"list_value\(INTEGER\)",
    "date_trunc('decade', d)": r"date_trunc with date part 'decade'; the parts are year, quarter",
    "date_diff(s, d, d)": r"date_diff with an argument that is not one constant text",
    "strptime(s, '%U') > d": r"strptime with %U in a format; the directives are %Y, %y",
    "strptime(s, ['%Y', '%y']) > d": (
        r"strptime with an argument that is not one constant text|list_value\("
    ),
    "interval 1 hour * a": r"\*\(INTERVAL, BIGINT\)",
    "least(to_hours(a), to_hours(1)) > to_days(1)": r"least\(INTERVAL, INTERVAL\)",
    "a & 1": r"&\(BIGINT, BIGINT\)",
    "concat(f, '!')": (
        r"a cast of single precision to text, whose digits depend on the engine \(cast it to double"
        r" or decimal first\),"
    ),
}


@pytest.mark.req("S2")
@pytest.mark.parametrize("expression", REFUSED)
def test_what_serving_cannot_compute_is_named_with_what_it_can(expression: str) -> None:
    pattern = (
        rf"data.derive.y: .* has ({REFUSED[expression]}).*, which the registered model cannot"
        r" compute from raw rows; what it can: .*dayofyear.*strptime"
    )
    with pytest.raises(ConfigError, match=pattern):
        portable({"y": expression}, TYPES)
    assert portable({"y": expression, "z": "a + 1"}, TYPES, features=["z"]).keys() == {"z"}


@pytest.mark.req("S2")
def test_what_a_feature_is_made_of_must_be_portable_too() -> None:
    expressions = {"key": "md5(s)", "first": "substr(key, 1, 1)", "id": "concat(key, a)"}
    with pytest.raises(ConfigError, match=r"data.derive.key: 'md5\(s\)' has md5\(VARCHAR\)"):
        portable(expressions, TYPES, features=["first"])
    assert portable(expressions, TYPES, features=["a", "s"]) == {}
    with pytest.raises(
        ConfigError,
        match=r"data.derive.y: expected a function of the row's own columns, got function 'random'",
    ):
        portable({"y": "random()"}, TYPES)
    assert {"case", "between", "extract", "||", "strptime"} <= set(supported())


# -------------------------------------------------------------------------------------- validation

COLUMNS = {
    "id": "id",
    "y": "label",
    "sin": "numeric",
    "kind": "categorical",
    "half": "categorical",
    "late": "feature",
    "*": "ignore",
}
ROWS: dict[str, Any] = {
    "id": [1, 2, 3, 4],
    "y": [0, 1, 0, 1],
    "hr": [0, 6, None, 23],
    "day": [True, False, True, None],
    "seen": ["1/2/11"] * 4,
    "extra": [1, 2, 3, 4],
}
DERIVE = {
    "sin": "sin(hr / 24)",
    "kind": "concat(day, '-', hr)",
    "half": "hr / 4",
    "late": "hr > 20",
    "key": "md5(seen)",
}


@pytest.mark.req("R1")
def test_validation_keeps_trees_and_raw_rows_of_the_derived_features(tmp_path: Path) -> None:
    made = validated_of(
        declared(write_table(tmp_path / "t.parquet", ROWS), COLUMNS, data={"derive": DERIVE}),
        tmp_path / "out",
    )
    assert list(made.spec.derived) == ["sin", "kind", "half", "late"]
    assert made.spec.null_texts == ()
    assert made.raw_rows is not None
    raw, table = pq.read_table(made.raw_rows.path).to_pydict(), read(made.table)
    assert raw.keys() == {"__id", "hr", "day"}
    assert raw["__id"] == table["__id"]
    assert dict(zip(raw["__id"], raw["hr"], strict=True)) == {"1": 0, "2": 6, "3": None, "4": 23}
    assert table.keys() == {
        "__id",
        "__key",
        "__group",
        "__time",
        "y",
        "sin",
        "kind",
        "half",
        "late",
    }
    again = type(made).model_validate_json(made.model_dump_json())
    assert again == made


@pytest.mark.req("R1")
def test_without_derived_features_nothing_is_kept(tmp_path: Path) -> None:
    source = write_text(tmp_path / "t.csv", "id,y,a\n1,0,?\n2,1,3\n")
    data = {"derive": {"label": "y = 1"}, "csv": {"null_values": ["?"]}}
    made = validated_of(
        declared(source, {"id": "id", "label": "label", "y": "ignore", "a": "feature"}, data=data),
        tmp_path / "out",
    )
    assert (made.spec.derived, made.raw_rows, made.spec.null_texts) == ({}, None, ("?",))
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "row_places.parquet",
        "validated.parquet",
    ]


@pytest.mark.req("S2")
def test_a_feature_that_cannot_be_served_stops_validation(tmp_path: Path) -> None:
    declaration = declared(
        write_table(tmp_path / "t.parquet", ROWS),
        {**COLUMNS, "key": "feature"},
        data={"derive": DERIVE},
    )
    with pytest.raises(
        ConfigError,
        match=(
            r"data.derive.key: 'md5\(seen\)' has md5\(VARCHAR\), which the registered model cannot"
            r" compute"
        ),
    ):
        validated_of(declaration, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.req("R1")
@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("sin", "sin(hr / 25)"),
        ("kind", "concat(day, '_', hr)"),
        ("half", "hr / 5"),
        ("late", "hr > 30"),
    ],
)
def test_a_tree_that_gives_another_value_than_the_engine_is_found(
    tmp_path: Path, name: str, other: str
) -> None:
    made = validated_of(
        declared(write_table(tmp_path / "t.parquet", ROWS), COLUMNS, data={"derive": DERIVE}),
        tmp_path / "out",
    )
    raw, table = (
        pd.read_parquet(made.raw_rows.path),
        pd.read_parquet(made.table.file.path)[list(made.spec.derived)],
    )  # type: ignore[union-attr]
    require_agreement(raw, table, made.spec)
    wrong = made.spec.derived | portable({name: other}, {"hr": "BIGINT", "day": "BOOLEAN"})
    with pytest.raises(
        ConfigError,
        match=(
            rf"data.derive.{name}: serving computes .*, the engine .*, in row '\d' and \d more of"
            r" 4; rewrite the expression"
        ),
    ):
        require_agreement(raw, table, made.spec.model_copy(update={"derived": wrong}))
    strict = made.spec.derived | portable(
        {name: "1 // cast(hr is not null as integer)"}, {"hr": "BIGINT"}
    )
    with pytest.raises(
        ConfigError, match=r"serving refuses rows that the engine takes: .*division by zero"
    ):
        require_agreement(raw, table, made.spec.model_copy(update={"derived": strict}))


# --------------------------------------------------------------------------------------- real
# tables


@pytest.mark.req("R1")
@pytest.mark.parametrize("name", ["bike_hour", "beijing_air", "diabetes130"])
def test_the_features_of_each_example_are_served_from_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, real_data: Path, name: str
) -> None:
    """Rows as pandas reads them from the file, against the table that the engine derived."""
    monkeypatch.setenv("BULKHEAD_DATA", str(real_data))
    declaration = load_declaration(EXAMPLES / f"{name}.yaml", ["checks.constant_features=drop"])
    uri = str(declaration.data.uri).replace("beijing_air_*", "beijing_air_dongsi")
    if not Path(uri).is_file():
        pytest.skip(f"{uri} is not there; set BULKHEAD_DATA")
    nulls = list(declaration.data.csv.null_values)
    frame = pd.read_csv(uri, na_values=nulls, keep_default_na=False, nrows=4000)
    head = tmp_path / "head.csv"
    frame.to_csv(head, index=False, na_rep=nulls[-1])
    data = declaration.data.model_copy(update={"uri": str(head)})
    made = validate(
        fingerprint(data), declaration.model_copy(update={"data": data}), tmp_path / "out"
    )
    assert (
        set(made.spec.derived)
        == {n for n in declaration.data.derive if n in made.spec.features}
        != set()
    )
    ids = [*made.spec.id] if set(made.spec.id) <= set(frame.columns) else None
    key = frame[ids[0]].astype(str) if ids else frame["station"] + "-" + frame["No"].astype(str)
    table = pd.read_parquet(made.table.file.path).set_index("__id")
    found = derive(frame.set_index(key), made.spec.derived, null_texts=tuple(nulls)).loc[
        table.index
    ]
    require_agreement(
        found[list(frame.columns)].reset_index(names="__id"),
        table[list(made.spec.derived)].reset_index(drop=True),
        made.spec,
    )
    assert len(table) > 3000


@pytest.mark.req("R1")
def test_the_default_example_is_served_from_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tests.test_examples import load_generator

    monkeypatch.setenv("BULKHEAD_CLINIC", str(tmp_path / "visits.parquet"))
    load_generator().generate(tmp_path / "visits.parquet", patients=100)
    declaration = load_declaration(EXAMPLES / "clinic_visits.yaml")
    made = validate(fingerprint(declaration.data), declaration, tmp_path / "out")
    frame, table = (
        pd.read_parquet(tmp_path / "visits.parquet"),
        pd.read_parquet(made.table.file.path),
    )
    assert {"season_sin", "season_cos"} <= made.spec.derived.keys()
    raw = (
        frame.set_index(frame["visit_id"].astype(str))
        .loc[table["__id"]]
        .reset_index(drop=True)
        .assign(__id=table["__id"])
    )
    require_agreement(raw, table[list(made.spec.derived)], made.spec)
