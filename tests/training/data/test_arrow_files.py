"""Arrow files, streams and Feather, told apart by their bytes; and types that other writers
choose.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from schemas.errors import SchemaError, SourceError
from tests.training.data.chain import declared, read, validated_of
from tests.training.data.test_source import config, table_of

pytestmark = pytest.mark.req("D1")
TABLE = pa.table(
    {"a": [1, 2, None], "b": pa.array(["x", None, "x"]).dictionary_encode(), "y": [0, 1, 0]}
)


def write_stream(path: Path, table: pa.Table = TABLE, codec: str | None = None) -> Path:
    with (
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_stream(
            file, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)
        ) as out,
    ):
        for start in range(0, len(table), 2):
            out.write_table(table.slice(start, 2))
    return path


def write_file(path: Path, table: pa.Table = TABLE) -> Path:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)
    return path


@pytest.mark.parametrize("name", ["t.arrow", "t.feather"])
@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
def test_a_stream_is_read_whatever_its_name(tmp_path: Path, name: str, codec: str | None) -> None:
    types, found = table_of(config(write_stream(tmp_path / name, codec=codec)))
    assert types == {"a": "BIGINT", "b": "VARCHAR", "y": "BIGINT"} and found == [
        (1, "x", 0),
        (2, None, 1),
        (None, "x", 0),
    ]


def test_streams_and_files_are_one_table(tmp_path: Path) -> None:
    write_stream(tmp_path / "1.arrow")
    write_file(tmp_path / "2.arrow", TABLE.select(["y", "b", "a"]))
    assert sorted(table_of(config(tmp_path))[1], key=str) == sorted(
        [(1, "x", 0), (2, None, 1), (None, "x", 0)] * 2, key=str
    )


def test_feather_of_version_1_is_read(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning):
        feather.write_feather(
            pa.table({"a": [1, 2], "y": ["u", None]}), tmp_path / "t.feather", version=1
        )
    assert table_of(config(tmp_path / "t.feather"))[1] == [(1, "u"), (2, None)]


def test_a_stream_that_is_cut_is_refused(tmp_path: Path) -> None:
    whole = write_stream(tmp_path / "t.arrow").read_bytes()
    for length in (len(whole) - 8, len(whole) - 100, len(whole) // 2, 12):
        (tmp_path / "cut.arrow").write_bytes(whole[:length])
        with pytest.raises(SourceError, match=r"cut\.arrow: cannot be read as arrow"):
            table_of(config(tmp_path / "cut.arrow"))
    (tmp_path / "cut.arrow").write_bytes(b"a,y\n1,0\n")
    with pytest.raises(SourceError, match="neither a file nor a stream"):
        table_of(config(tmp_path / "cut.arrow"))


# -------------------------------------------------------------------------------------------- types

MOMENT = dt.datetime(2024, 3, 31, 1, 30, tzinfo=dt.UTC)


@pytest.mark.parametrize("suffix", ["parquet", "feather"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_a_timestamp_of_any_unit_and_zone_is_the_same_moment(
    tmp_path: Path, suffix: str, unit: str, zone: str | None
) -> None:
    moments = [MOMENT + dt.timedelta(hours=i) for i in range(4)]
    seen = (
        pa.array(moments, pa.timestamp("us", "UTC"))
        .cast(pa.timestamp(unit, "UTC"))
        .cast(pa.timestamp(unit, zone))
    )
    table = pa.table({"seen": seen, "a": [0.5, 1.0, 1.5, 2.0], "y": [0, 1, 0, 1]})
    path = tmp_path / f"t.{suffix}"
    pq.write_table(table, path) if suffix == "parquet" else feather.write_feather(table, path)
    derive = {
        "hr": "hour(seen)",
        "since": "epoch(seen)",
        "late": "cast(seen as timestamp) > timestamp '2024-03-31 02:00:00'",
    }
    data = {"derive": derive, "filter": "seen < timestamp '2024-03-31 04:00:00'"}
    declaration = declared(
        path, {"seen": "time", "y": "label", "*": "feature"}, split="time", data=data
    )
    found = read(validated_of(declaration, tmp_path / "out").table)
    rows = sorted(zip(found["__time"], found["hr"], found["since"], found["late"], strict=True))
    wanted = [m for m in moments if m.hour < 4]
    assert rows == [
        (m.timestamp(), float(m.hour), m.timestamp(), "true" if m.hour > 1 else "false")
        for m in wanted
    ]


def test_lists_and_dictionaries_of_zoned_nanoseconds_open(tmp_path: Path) -> None:
    stamps = pa.array([1_000, None], pa.timestamp("ns", "UTC"))
    pq.write_table(
        pa.table(
            {
                "d": stamps.dictionary_encode(),
                "l": pa.array([[5_000], None], pa.list_(stamps.type)),
                "y": [0, 1],
            }
        ),
        tmp_path / "t.parquet",
    )
    types, _ = table_of(config(tmp_path / "t.parquet"))
    assert types == {
        "d": "TIMESTAMP WITH TIME ZONE",
        "l": "TIMESTAMP WITH TIME ZONE[]",
        "y": "BIGINT",
    }


@pytest.mark.parametrize("suffix", ["parquet", "feather"])
@pytest.mark.parametrize(
    ("values", "kind", "numbers"),
    [
        (np.array([1.5, 2.5], np.float16), pa.float16(), [1.5, 2.5]),
        ([Decimal(1), Decimal(3)], pa.decimal256(50, 0), [1.0, 3.0]),
        ([1, 2**63 + 2048], pa.uint64(), [1.0, float(2**63 + 2048)]),
        (["u", "v"], pa.large_string(), ["u", "v"]),
        (["u", "v"], pa.string_view(), ["u", "v"]),
    ],
)
def test_other_types_are_read(
    tmp_path: Path, suffix: str, values: Any, kind: pa.DataType, numbers: list[Any]
) -> None:
    table, path = pa.table({"a": pa.array(values, kind), "y": [0, 1]}), tmp_path / f"t.{suffix}"
    pq.write_table(table, path) if suffix == "parquet" else write_file(path, table)
    found = read(
        validated_of(declared(path, {"y": "label", "*": "feature"}), tmp_path / "out").table
    )
    assert sorted(found["a"]) == numbers


@pytest.mark.parametrize(
    "kind",
    [
        pa.time64("ns"),
        pa.time32("s"),
        pa.date32(),
        pa.date64(),
        pa.timestamp("ns", "UTC"),
        pa.binary(),
    ],
)
def test_types_that_are_no_feature_are_refused_by_name(tmp_path: Path, kind: pa.DataType) -> None:
    values = (
        pa.array([b"a", b"b"])
        if kind == pa.binary()
        else pa.array([0, 86_400_000], pa.int64() if kind.bit_width == 64 else pa.int32()).cast(
            kind
        )
    )
    pq.write_table(pa.table({"odd": values, "a": [0.5, 1.5], "y": [0, 1]}), tmp_path / "t.parquet")
    with pytest.raises(SchemaError, match="column 'odd'"):
        validated_of(
            declared(tmp_path / "t.parquet", {"y": "label", "*": "feature"}), tmp_path / "out"
        )


# ----------------------------------------------------------------------------------------- decimals


@pytest.mark.parametrize("role", ["id", "group"])
def test_a_whole_decimal_is_the_key_that_the_integer_is(tmp_path: Path, role: str) -> None:
    numbers, keys = [17, -3, 10**18, 0], []
    for name, kind in (
        ("int", pa.int64()),
        ("small", pa.decimal128(19, 0)),
        ("wide", pa.decimal128(38, 0)),
    ):
        pq.write_table(
            pa.table(
                {
                    "k": pa.array(numbers, pa.int64()).cast(kind),
                    "a": [0.5, 1.5, 2.5, 3.5],
                    "y": [0, 1, 0, 1],
                }
            ),
            tmp_path / f"{name}.parquet",
        )
        found = read(
            validated_of(
                declared(tmp_path / f"{name}.parquet", {"k": role, "y": "label", "*": "feature"}),
                tmp_path / name,
            ).table
        )
        keys.append(sorted(found["__id" if role == "id" else "__group"]))
    assert keys[0] == keys[1] == keys[2] == sorted(map(str, numbers))


def test_a_decimal_beyond_64_bits_is_an_id_and_one_with_a_fraction_is_none(tmp_path: Path) -> None:
    big = [Decimal(10**37 + i) for i in range(3)]
    pq.write_table(
        pa.table({"k": pa.array(big, pa.decimal128(38, 0)), "a": [0.5, 1.5, 2.5], "y": [0, 1, 0]}),
        tmp_path / "t.parquet",
    )
    found = read(
        validated_of(
            declared(tmp_path / "t.parquet", {"k": "id", "y": "label", "*": "feature"}),
            tmp_path / "out",
        ).table
    )
    assert sorted(found["__id"]) == [str(10**37 + i) for i in range(3)]
    pq.write_table(
        pa.table(
            {
                "k": pa.array([Decimal("1.0"), Decimal("2.0")], pa.decimal128(10, 1)),
                "a": [0.5, 1.5],
                "y": [0, 1],
            }
        ),
        tmp_path / "f.parquet",
    )
    with pytest.raises(SchemaError, match="do not compare reliably"):
        validated_of(
            declared(tmp_path / "f.parquet", {"k": "id", "y": "label", "*": "feature"}),
            tmp_path / "out2",
        )
