"""D9, D4: the same declaration on local Spark and on DuckDB gives the same bytes: table, sides,
statistics, arrays, verdicts, refusals.

Run with `make test-spark`; needs Java and the extra `spark`. Two Python workers stand for two
executors.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from schemas.config import SPLITS, Declaration, SparkConfig
from schemas.errors import BulkheadError, ConfigError, DataError
from schemas.load import declare, load_declaration
from tests.training.data.chain import declared
from training.data.arrays.shards import materialise
from training.data.engine.engine import connect, row, rows
from training.data.engine.spark_engine import SparkConnection, connect_spark, opened_spark
from training.data.fit.normalize import fit
from training.data.leakage import check_leakage, check_overlap
from training.data.sources.source import fingerprint
from training.data.split.hash_sides import hash_sql
from training.data.split.split import split
from training.data.table.validate import validate

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]
EXAMPLES = Path(__file__).parents[3] / "examples"
CONF = {
    "spark.sql.shuffle.partitions": 3,
    "spark.sql.codegen.wholeStage": False,
    "spark.default.parallelism": 2,
}
SPARK = {"master": "local[2]", "conf": CONF}


@pytest.fixture(autouse=True, scope="module")
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BULKHEAD_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def spark(own_home: None) -> Iterator[SparkConnection]:
    connection = connect_spark(SparkConfig(**SPARK))
    yield connection
    connection.close()


def on(engine: str, declaration: Declaration) -> Declaration:
    """The same declaration on an engine."""
    tree = declaration.model_dump(mode="json", by_alias=True, exclude_unset=True)
    tree["data"] |= {"engine": engine, "spark": SPARK} if engine == "spark" else {"engine": engine}
    return declare(tree)


def prepared(declaration: Declaration, folder: Path, ledger: Path) -> dict[str, Any]:
    """Everything that preparation makes, as digests and records without paths."""
    validated = validate(fingerprint(declaration.data), declaration, folder)
    sides = split(validated, declaration, folder / "split", ledger)
    statistics = fit(sides.train, validated.spec, declaration)
    arrays = materialise(sides, validated, statistics, declaration, folder / "arrays")
    checks = [
        *check_overlap(sides, validated, declaration).results,
        *check_leakage(sides, validated, declaration).results,
    ]
    return {
        "rows": (
            validated.table.rows,
            validated.filtered_rows,
            validated.unlabelled_rows,
            validated.ignored_labels,
        ),
        "spec": validated.spec,
        "table": validated.table.file.sha256,
        "raw rows": validated.raw_rows and validated.raw_rows.sha256,
        "sides": {s: sides.side(s).file.sha256 for s in SPLITS},
        "excluded": sides.excluded,
        "summary": sides.summary,
        "plan": sides.plan,
        "statistics": statistics,
        "arrays": arrays.sha256,
        "verdicts": [(r.name, r.verdict, r.summary) for r in checks],
    }


def require_equal(declaration: Declaration, folder: Path) -> dict[str, Any]:
    found = {
        engine: prepared(on(engine, declaration), folder / engine, folder / engine / "ledger")
        for engine in ("duckdb", "spark")
    }
    for part, wanted in found["duckdb"].items():
        assert found["spark"][part] == wanted, part
    return found["duckdb"]


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = importlib.util.spec_from_file_location("clinic_visits", EXAMPLES / "clinic_visits.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path = tmp_path_factory.mktemp("clinic") / "visits.parquet"
    module.generate(path, patients=1200)
    pq.write_table(pq.read_table(path), path, row_group_size=2_500)
    return path


@pytest.fixture
def example(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> Declaration:
    monkeypatch.setenv("BULKHEAD_CLINIC", str(clinic))
    return load_declaration(EXAMPLES / "clinic_visits.yaml")


def test_clinic_visits_by_group_and_time(example: Declaration, tmp_path: Path) -> None:
    found = require_equal(example, tmp_path)
    assert found["plan"]["cuts_from"].startswith("shares of rows") and found["raw rows"] is not None


def test_clinic_visits_by_windows_that_roll_on(
    example: Declaration, clinic: Path, tmp_path: Path
) -> None:
    """A part of the rows first, then all of them, so that the cuts move on."""
    way = {"kind": "group_time", "roll": "7d", "test": "60d", "val": "30d", "embargo": "1d"}
    tree = example.model_dump(mode="json", by_alias=True, exclude_unset=True) | {"split": way}
    tree["data"]["uri"] = str(tmp_path / "visits.parquet")
    whole, declaration = pq.read_table(clinic), declare(tree)
    for count in (whole.num_rows // 2, whole.num_rows):
        part = whole.sort_by("visit_date").slice(0, count)
        pq.write_table(part, tmp_path / "visits.parquet", row_group_size=2_500)
        found = {
            engine: prepared(
                on(engine, declaration), tmp_path / engine / str(count), tmp_path / f"{engine}-book"
            )
            for engine in ("duckdb", "spark")
        }
        assert found["spark"]["sides"] == found["duckdb"]["sides"]
        assert found["spark"]["plan"] == found["duckdb"]["plan"]


@pytest.mark.parametrize("way", [{"kind": "stratified_group"}, {"kind": "group", "balance": True}])
def test_clinic_visits_by_frozen_groups_also_when_rows_arrive(
    clinic: Path, tmp_path: Path, way: dict[str, Any]
) -> None:
    columns = {
        "visit_id": "id",
        "patient_id": "group",
        "visit_date": "ignore",
        "admitted_30d": "label",
        "*": "feature",
    }
    whole = pq.read_table(clinic)
    for number, table in enumerate([whole.slice(0, 5_000), whole]):
        pq.write_table(table, tmp_path / "t.parquet", row_group_size=2_000)
        declaration = declared(
            tmp_path / "t.parquet",
            columns,
            split={**way, "seed": 7},
            normalize={"scale": "robust"},
        )
        ledgers = [tmp_path / engine / "ledger" for engine in ("duckdb", "spark")]
        found = [
            prepared(on(e, declaration), tmp_path / e / str(number), ledger)
            for e, ledger in zip(("duckdb", "spark"), ledgers, strict=True)
        ]
        assert found[0] == found[1]
        assert [p.read_bytes() for p in ledgers[:1]] == [p.read_bytes() for p in ledgers[1:]], (
            "the ledgers freeze the same decisions"
        )


def traps(rows: int, first: int = 0) -> pa.Table:
    """Rows with every type and value on which two engines like to differ."""
    draw = random.Random(first)
    days = [
        dt.datetime(2024, 1, 1) + dt.timedelta(microseconds=draw.randrange(10**13))
        for _ in range(rows)
    ]

    def some(value: Any) -> Any:
        return None if draw.random() < 0.1 else value

    names = [
        "Zoë",
        "Zoe\u0308",
        "ÅNGSTRÖM",
        "emoji 🧪",
        "quote ' and \" and ` and \\",
        "tab\t",
        "",
        " pad ",
        "ǆ",
        "１２",
        "1.0",
        "NULL",
    ]
    return pa.table(
        {
            "id": pa.array([f"{names[i % 12]}|{first + i}%" for i in range(rows)]),
            "part": pa.array([i % 5 for i in range(rows)], pa.int8()),
            "who": pa.array([draw.randrange(rows // 4) for _ in range(rows)], pa.uint32()),
            "seen_at": pa.array(
                [d.replace(tzinfo=dt.UTC) for d in days], pa.timestamp("us", tz="America/New_York")
            ),
            "y": pa.array([some(draw.choice(["no", "yes", "no", "unsure"])) for _ in range(rows)]),
            "plain": pa.array([some(draw.gauss(0, 1)) for _ in range(rows)]),
            "special": pa.array(
                [
                    some(draw.choice([0.0, -0.0, float("nan"), 1e60, 5e-324, 0.1, 1 / 3]))
                    for _ in range(rows)
                ]
            ),
            "single": pa.array([some(draw.gauss(0, 1e6)) for _ in range(rows)], pa.float32()),
            "money": pa.array(
                [some(Decimal(draw.randrange(10**7)).scaleb(-2)) for _ in range(rows)],
                pa.decimal128(12, 2),
            ),
            "big": pa.array([some(draw.randrange(2**63, 2**64)) for _ in range(rows)], pa.uint64()),
            "flag": pa.array([some(draw.random() < 0.5) for _ in range(rows)]),
            "a`b \"c\" 'd'": pa.array([some(draw.choice(names)) for _ in range(rows)]),
            "dot.ted": pa.array([some(draw.choice(names)) for _ in range(rows)]),
            "code": pa.array([some(draw.choice([1.0, 2.5, 1e20, -0.0])) for _ in range(rows)]),
            "coded": pa.array([some(draw.choice(names)) for _ in range(rows)]).dictionary_encode(),
            "nano": (
                pa.array([d.replace(tzinfo=None) for d in days], pa.timestamp("us")).cast(
                    pa.timestamp("ns")
                )
            ),
            "day": pa.array([some(d.date()) for d in days]),
        }
    )


TRAPS = {
    "id": "id",
    "part": "id",
    "who": "group",
    "seen_at": "time",
    "y": "label",
    "code": "categorical",
    "nano": "ignore",
    "day": "ignore",
    "*": "feature",
}
DERIVED = {
    "hour_of": "hour(nano) + minute(seen_at) / 60",
    "month_of": "concat(month(day), '/', upper(coded))",
    "root": "sqrt(abs(plain)) * 0.1",
}


@pytest.mark.parametrize(
    "way",
    [{"kind": "stratified"}, {"kind": "time", "embargo": "6h"}, {"kind": "random", "seed": 11}],
)
def test_rows_full_of_traps(tmp_path: Path, way: dict[str, Any]) -> None:
    (tmp_path / "traps").mkdir()
    for number in range(2):
        pq.write_table(
            traps(900, 10_000 * number),
            tmp_path / "traps" / f"{number}.parquet",
            row_group_size=400,
        )
    data = {"derive": DERIVED, "filter": "plain is null or plain > -2", "null_labels": "drop"}
    rest = {
        "normalize": {
            "scale": "quantile",
            "columns": {"money": {"scale": "robust", "impute": "mean"}},
        },
        "checks": {"constant_features": "drop"},
    }
    declaration = declared(
        tmp_path / "traps",
        TRAPS,
        split=way,
        data=data,
        task={"kind": "binary", "ignore": ["unsure"]},
        **rest,
    )
    found = require_equal(declaration, tmp_path)
    assert found["rows"][1] and found["rows"][2] and found["rows"][3]["y"], (
        "rows are left out for every reason"
    )


def trial_over_connect(folder: Path) -> None:
    """Run in a process of its own: a session of this process and one of a server do not go
    together.
    """
    SPARK.clear()
    SPARK.update(
        {
            "remote": "local[2]",
            "conf": {k: v for k, v in CONF.items() if k.startswith("spark.sql.")},
        }
    )  # pyspark starts a server here and talks to it
    pq.write_table(traps(300), folder / "t.parquet", row_group_size=200)
    data = {"null_labels": "drop", "derive": DERIVED}
    split = {"kind": "stratified_group"}
    require_equal(
        declared(
            folder / "t.parquet",
            TRAPS,
            split=split,
            data=data,
            task="multiclass",
            checks={"constant_features": "drop"},
        ),
        folder,
    )


def test_a_spark_connect_server_gives_the_same(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from tests.training.data.test_spark import trial_over_connect;"
        " trial_over_connect(pathlib.Path(sys.argv[1]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert run.returncode == 0, run.stderr[-3000:]


def test_a_number_as_label_stratified_in_bins(tmp_path: Path) -> None:
    draw = random.Random(5)
    size = 800
    columns = {
        "id": list(range(size)),
        "y": [draw.gauss(0, 3) for _ in range(size)],
        "x": [draw.random() for _ in range(size)],
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=300)
    weighted = declared(
        tmp_path / "t.parquet",
        {"id": "id", "y": "label", "x": "numeric"},
        task="regression",
        split={"kind": "stratified", "bins": 7},
    )
    require_equal(weighted, tmp_path)


FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "repeated id": ({"id": [1, 1, *list(range(2, 60))]}, {}),
    "null id": ({"id": [None, *list(range(1, 60))]}, {}),
    "null label": ({"y": [None, 1] * 30}, {}),
    "one class": ({"y": [1] * 60}, {}),
    "three classes": ({"y": [0, 1, 2] * 20}, {}),
    "too large": ({}, {"x": {"max": 10, "role": "feature"}}),
    "not allowed": ({}, {"c": {"allowed": ["a"], "role": "feature"}}),
    "not numeric": ({"c": ["12", "n/a"] * 30}, {"c": "numeric"}),
    "markers among numbers": ({"c": [str(i) for i in range(58)] + ["?", "NA"]}, {}),
    "infinite": ({"x": [float("inf")] + [1.0] * 59}, {}),
    "empty feature": ({"x": pa.nulls(60, pa.float64())}, {}),
    "failing expression": ({"c": ["12"] * 59 + ["x"]}, {"derive": {"n": "cast(c as integer)"}}),
    "nothing left": ({}, {"filter": "x > 1000"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_refused_in_the_same_words(tmp_path: Path, fault: str) -> None:
    changed, declares = FAULTS[fault]
    data = {k: declares[k] for k in ("derive", "filter") if k in declares}
    columns = {
        "id": "id",
        "y": "label",
        **{k: v for k, v in declares.items() if k not in data},
        "*": "feature",
    }
    table = pa.table(
        {
            "id": list(range(60)),
            "y": [0, 1] * 30,
            "x": [float(i) for i in range(60)],
            "c": ["a", "b"] * 30,
            **changed,
        }
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=25)
    messages = []
    for engine in ("duckdb", "spark"):
        declaration = on(
            engine,
            declared(
                tmp_path / "t.parquet", columns, data=data, checks={"constant_features": "fail"}
            ),
        )
        with pytest.raises(BulkheadError) as caught:
            validate(fingerprint(declaration.data), declaration, tmp_path / engine)
        messages.append((type(caught.value), str(caught.value)))
        assert not (tmp_path / engine).exists() or not list((tmp_path / engine).iterdir()), (
            "nothing half-written stays"
        )
    assert messages[0] == messages[1]


def test_hashes_and_texts_are_those_of_duckdb(spark: SparkConnection) -> None:
    keys = ["", "a", "Zoë", "🧪", "it's", "back\\slash", "x" * 1000, "0", "１２"]
    wanted = []
    with connect() as engine:
        for connection in (engine, spark):
            connection.register("keys", pa.table({"k": keys}))
            wanted.append(
                rows(
                    connection,
                    f"select k, {hash_sql('k', 3)}, md5(k), length(k) from keys order by k",
                )
            )
    assert wanted[0] == wanted[1]


def test_sums_are_exact_integers_on_both(spark: SparkConnection) -> None:
    draw = random.Random(1)
    values = pa.table({"x": [draw.uniform(-1, 1) for _ in range(5000)] + [1.0, -1.0, 0.1, None]})
    found = []
    with connect() as engine:
        from training.data.fit.moments import column_moments, column_quantiles

        for connection in (engine, spark):
            connection.register("moments_of", values)
            moments = column_moments(connection, "moments_of", ["x"])
            found.append(
                (
                    moments,
                    column_quantiles(
                        connection,
                        "moments_of",
                        {"x": (0.1, 0.5, 0.999)},
                        {"x": moments["x"].present},
                    ),
                )
            )
    assert found[0] == found[1]


def test_scratch_files_are_gone_and_the_folder_is_looked_at(
    spark: SparkConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = connect_spark(SparkConfig(**SPARK))
    other.execute("create temp table t as select 1 as x")
    assert row(other, "select x from t") == (1,)
    other.close()
    assert not other.scratch.exists()
    from training.data.engine import spark_engine

    # a folder of this process alone, as one that is not shared is
    monkeypatch.setattr(
        spark_engine,
        "_look",
        lambda path: (
            lambda _: {
                "host": "worker-7",
                "sign": "",
                "versions": spark_engine._versions(),
            }
        ),
    )
    with pytest.raises(
        ConfigError,
        match=(
            r"needs a folder that driver and executors share: worker-7 did not see .*set"
            r" BULKHEAD_HOME to a shared folder"
        ),
    ):
        connect_spark(SparkConfig(**SPARK))
    versions = {**spark_engine._versions(), "duckdb": "0.9"}
    monkeypatch.setattr(
        spark_engine,
        "_look",
        lambda path: (
            lambda _: {
                "host": "worker-7",
                "sign": Path(path).read_text(),
                "versions": versions,
            }
        ),
    )
    with pytest.raises(ConfigError, match=r"worker-7 has duckdb 0\.9, not .*; install them alike"):
        connect_spark(SparkConfig(**SPARK))


def test_a_job_that_fails_is_told_in_one_line() -> None:
    def broken(number: int) -> dict[str, Any]:
        raise ZeroDivisionError(f"in part {number}")

    with (
        pytest.raises(
            DataError,
            match=(
                r"^data\.engine: spark: a job failed: ZeroDivisionError: in part \d; look into the"
                r" logs[^\n]*$"
            ),
        ),
        opened_spark(SparkConfig(**SPARK)) as found,
    ):
        found.on_executors(2, broken)
    assert not found.scratch.exists()


def test_a_file_that_executors_do_not_see_is_refused(tmp_path: Path) -> None:
    from training.data.table.spark_validate import _plan, type_group

    pq.write_table(pa.table({"id": [1, 2], "y": [0, 1], "x": [0.5, 1.5]}), tmp_path / "t.parquet")
    declaration = on(
        "spark", declared(tmp_path / "t.parquet", {"id": "id", "y": "label", "x": "numeric"})
    )
    plan = _plan(fingerprint(declaration.data), declaration, tmp_path)
    shutil.move(tmp_path / "t.parquet", tmp_path / "elsewhere.parquet")
    assert "put it on a folder that driver and executors share" in type_group(plan, 0)["message"]


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("cmapss_fd001", "cmapss_fd001.parquet"),
        ("bike_hour", "bike_hour.csv"),
        ("diabetes130", "diabetes130.csv.gz"),
    ],
)
def test_real_tables(real_data: Path, tmp_path: Path, name: str, table: str) -> None:
    parquet = real_data / table
    if parquet.suffix != ".parquet":  # which is all that this engine reads
        parquet = tmp_path / f"{name}.parquet"
        texts = csv.ConvertOptions(null_values=["", "?"], strings_can_be_null=True)
        pq.write_table(
            csv.read_csv(real_data / table, convert_options=texts), parquet, row_group_size=20_000
        )
    found = require_equal(
        load_declaration(EXAMPLES / f"{name}.yaml", [f"data.uri={parquet}"]), tmp_path
    )
    assert found["rows"][0] > 15_000
