"""Folders named `key=value`: their keys are columns, in every format, or the source is refused by
name.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from schemas.errors import SourceError
from tests.training.data.chain import declared, read, validated_of, write_text
from tests.training.data.test_source import config, table_of
from training.data.draft.draft import draft
from training.data.engine.engine import connect, rows
from training.data.sources.partitions import remote_keys
from training.data.sources.source import fingerprint, relation_sql
from training.data.table.columns import resolve
from training.data.table.spark_validate import Plan, type_group
from training.data.table.validate import column_types, served

pytestmark = pytest.mark.req("D1")
FRAME = {
    "id": [1, 2, 3, 4],
    "region": ["a b", "ü/x", None, "a b"],
    "year": [2023, 2024, 2024, 2024],
    "y": [0, 1, 0, 1],
}
EXPECTED = [("a b", 2023, 1, 0), ("a b", 2024, 4, 1), ("ü/x", 2024, 2, 1), (None, 2024, 3, 0)]


def partitioned(
    folder: Path, kind: str, frame: dict[str, Any] = FRAME, by: tuple[str, ...] = ("region", "year")
) -> Path:
    """The frame as pyarrow writes it to folders of the keys."""
    table = pa.table(frame)
    keys = ds.partitioning(pa.schema([table.schema.field(k) for k in by]), flavor="hive")
    format = {"parquet": "parquet", "csv": "csv", "feather": "feather"}[kind]
    ds.write_dataset(table, folder, format=format, partitioning=keys)
    return folder


@pytest.mark.parametrize("kind", ["parquet", "csv", "feather"])
@pytest.mark.parametrize("uri", ["{0}", "{0}/*/*/*.*", "{0}/**/*.{1}"])
def test_keys_are_columns_in_every_format(tmp_path: Path, kind: str, uri: str) -> None:
    folder = partitioned(tmp_path / "t", kind)
    types, found = table_of(config(uri.format(folder, kind)))
    assert list(types.items()) == [
        ("region", "VARCHAR"),
        ("year", "BIGINT"),
        ("id", "BIGINT"),
        ("y", "BIGINT"),
    ]
    assert sorted(found, key=str) == sorted(EXPECTED, key=str)


def test_pandas_and_the_engine_write_folders_that_are_read(tmp_path: Path) -> None:
    pd.DataFrame(FRAME).to_parquet(tmp_path / "pandas", partition_cols=["region", "year"])
    connection = connect()
    connection.register("given", pa.table(FRAME))
    connection.execute(
        f"copy given to '{tmp_path}/engine' (format parquet, partition_by (region, year))"
    )
    for name in ("pandas", "engine"):
        assert sorted(table_of(config(tmp_path / name))[1], key=str) == sorted(EXPECTED, key=str)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (("1", "12"), "BIGINT"),
        (("01", "12"), "VARCHAR"),
        (("0.5", "2"), "DOUBLE"),
        (("2024-01-31", "2024-02-01"), "DATE"),
        (("true", "false"), "BOOLEAN"),
        (("2024-01-31 10%3A00%3A00", "2024-02-01 10%3A00%3A00"), "TIMESTAMP"),
        (("1", "__HIVE_DEFAULT_PARTITION__"), "BIGINT"),
    ],
)
def test_keys_are_typed_as_text_is(tmp_path: Path, values: tuple[str, ...], kind: str) -> None:
    for number, value in enumerate(values):
        write_text(tmp_path / f"k={value}" / "x.csv", f"a,y\n{number},0\n")
    assert table_of(config(tmp_path))[0]["k"] == kind


def test_one_part_and_a_list_of_parts_keep_their_keys(tmp_path: Path) -> None:
    folder = partitioned(tmp_path / "v=1" / "raw", "parquet")
    one = folder / "region=a%20b"
    assert table_of(config(one))[1] == EXPECTED[:2]
    assert table_of(config(tuple(str(p) for p in one.iterdir())))[1] == EXPECTED[:2]
    assert table_of(config(next(one.glob("*/*.parquet"))))[0].keys() == {
        "region",
        "year",
        "id",
        "y",
    }


def test_a_column_of_the_files_counts_before_a_key(tmp_path: Path) -> None:
    for number, name in enumerate("ns"):
        (tmp_path / f"Region={name}").mkdir()
        pq.write_table(
            pa.table({"region": [f"own {name}"], "a": [number]}),
            tmp_path / f"Region={name}" / "x.parquet",
        )
    types, found = table_of(config(tmp_path))
    assert list(types) == ["region", "a"] and found == [("own n", 0), ("own s", 1)]


def test_a_file_under_another_key_is_another_source(tmp_path: Path) -> None:
    first = partitioned(tmp_path / "t", "parquet")
    before = fingerprint(config(first)).sha256
    shutil.move(first / "region=a%20b" / "year=2023", first / "region=a%20b" / "year=2022")
    assert fingerprint(config(first)).sha256 != before


def test_differing_keys_are_refused(tmp_path: Path) -> None:
    write_text(tmp_path / "r=1" / "x.csv", "a,y\n1,0\n")
    write_text(tmp_path / "x.csv", "a,y\n2,1\n")
    with pytest.raises(
        SourceError, match=r"expected folders named r=… as of .*, got none with a key"
    ):
        fingerprint(config(tmp_path))
    write_text(tmp_path / "twice" / "r=1" / "r=2" / "x.csv", "a,y\n2,1\n")
    with pytest.raises(SourceError, match="name the key 'r' twice"):
        fingerprint(config(tmp_path / "twice"))
    for name in ("k=1", "k=2"):
        (tmp_path / "linked" / name).mkdir(parents=True)
        (tmp_path / "linked" / name / "x.csv").symlink_to(tmp_path / "x.csv")
    with pytest.raises(SourceError, match="under folders of different keys"):
        fingerprint(config(tmp_path / "linked"))


def test_folders_above_that_are_no_parts_are_no_keys(tmp_path: Path) -> None:
    write_text(tmp_path / "run=3" / "data" / "x.csv", "a,y\n1,0\n")
    source = fingerprint(config(tmp_path / "run=3" / "data"))
    assert not source.partitions and list(table_of(config(tmp_path / "run=3" / "data"))[0]) == [
        "a",
        "y",
    ]


def test_a_key_may_be_the_label_or_a_feature(tmp_path: Path) -> None:
    frame = {
        "id": list(range(40)),
        "a": [i % 7 / 2 for i in range(40)],
        "y": ["yes" if i % 3 else "no" for i in range(40)],
    }
    folder = partitioned(tmp_path / "t", "parquet", frame, ("y",))
    made = validated_of(
        declared(folder, {"id": "id", "y": "label", "*": "feature"}), tmp_path / "out"
    )
    found = read(made.table)
    assert dict(zip(found["__id"], found["y"], strict=True)) == dict(
        zip(map(str, frame["id"]), frame["y"], strict=True)
    )
    assert '"y": label  # by its name' in draft(str(folder))


def test_an_executor_of_spark_puts_the_keys_to_its_rows(tmp_path: Path) -> None:
    """`type_group` runs in an executor; here it is called as that calls it."""
    folder = partitioned(tmp_path / "t", "parquet", FRAME | {"region": ["n", "s", "n", "s"]})
    declaration = declared(folder, {"id": "id", "y": "label", "*": "feature"})
    source, connection = fingerprint(declaration.data), connect()
    types = column_types(connection, relation_sql(source, declaration.data, connection))
    plan = Plan(
        [(f.path, 0) for f in source.files],
        types,
        source,
        served(resolve(types, declaration), types, source, declaration, {}),
        declaration,
        str(tmp_path),
    )
    told = [type_group(plan, number) for number in range(len(plan.groups))]
    assert [t["typed"] for t in told] and sum(t["typed"] for t in told) == 4
    found = rows(
        connection, f"select __id, region, year from '{tmp_path}/typed-*.parquet' order by 1"
    )
    assert found == [("1", "n", 2023.0), ("2", "s", 2024.0), ("3", "n", 2024.0), ("4", "s", 2024.0)]


def test_keys_of_remote_files() -> None:
    assert remote_keys("s3://bucket/t/region=a%20b/sub/x.parquet") == {"region": "a b"}
    assert remote_keys("https://host/t/region=n/x.parquet?v=2") == {"region": "n"}
    assert remote_keys("https://host/v=1/t/x.parquet") == {}
