"""Materialised arrays equal the tables row by row, are whole or absent, and refuse what was not
fitted.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from schemas.errors import DataError, IntegrityError
from schemas.records import ArraysRef, Statistics, TableSpec
from tests.training.data.sides import declaration_of, images, numbers, spec_of, split_of, validated
from training.data.arrays.shards import load_arrays, materialise
from training.data.fit.normalize import fit

FEW = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
REPOSITORY = Path(__file__).parents[3]
SPEC = spec_of(
    numeric=("a", "b"),
    categorical=("k",),
    tensor={"pic": (2, 3)},
    tensor_dtype={"pic": "uint8"},
    weight="w",
)


def side(rows: int, seed: int, unseen: bool = False) -> dict:
    rng = np.random.default_rng(seed)
    b = np.where(rng.random(rows) < 0.3, np.nan, rng.normal(size=rows))
    b[:2] = [np.nan, 1.0]
    k = [
        None,
        "new" if unseen else "red",
        *rng.choice(["red", "blue", "green"], max(rows - 2, 0)).tolist(),
    ][:rows]
    return {
        "a": numbers(rng.normal(7, 2, rows)),
        "b": numbers(b),
        "k": k,
        "pic": images(rng.integers(0, 255, (rows, 2, 3)).astype("uint8")),
        "w": rng.random(rows),
        "y": [i % 2 for i in range(rows)],
    }


def prepare(
    folder: Path, train: dict, val: dict, test: dict, spec: TableSpec = SPEC, **sections
) -> tuple[ArraysRef, Statistics]:
    declaration = declaration_of(**sections)
    split = split_of(folder / "split", train, val, test)
    statistics = fit(split.train, spec, declaration)
    return (
        materialise(split, validated(split, spec), statistics, declaration, folder / "arrays"),
        statistics,
    )


@pytest.mark.req("D7")
@FEW
@given(rows=st.integers(2, 400), seed=st.integers(0, 99))
def test_arrays_equal_the_tables_row_by_row(tmp_path, rows, seed):
    tables = {
        "train": side(300, seed),
        "val": side(rows, seed + 1, unseen=True),
        "test": side(rows + 1, seed + 2),
    }
    ref, statistics = prepare(tmp_path, **tables)
    colors = {
        None: 1,
        "new": 0,
        **{v: i + 2 for i, v in enumerate(statistics.categorical[0].values)},
    }
    for name, content in tables.items():
        arrays = load_arrays(ref.side(name), verify=True)
        assert set(arrays) == {"numeric", "categorical", "tensor_pic", "label", "weight"}
        a, b = (
            np.array(content[c].to_numpy(zero_copy_only=False)).astype("float32").astype("float64")
            for c in "ab"
        )
        stats_a, stats_b = statistics.numeric
        expected_b = (np.where(np.isnan(b), stats_b.fill, b) - stats_b.center) / stats_b.scale
        expected = np.stack(
            [(a - stats_a.center) / stats_a.scale, expected_b, np.isnan(b)], axis=1
        ).astype("float32")
        np.testing.assert_array_equal(arrays["numeric"], expected)
        assert arrays["categorical"][:, 0].tolist() == [colors[k] for k in content["k"]]
        np.testing.assert_array_equal(
            arrays["tensor_pic"].reshape(len(a), -1),
            np.stack(content["pic"].to_numpy(zero_copy_only=False)),
        )
        assert arrays["label"].tolist() == content["y"]
        np.testing.assert_array_equal(arrays["weight"], content["w"].astype("float32"))
        ids = pq.read_table(ref.side(name).ids.path)
        assert ids.column_names == ["__id", "__group", "__time", "label"]
        assert (
            ids["__id"].to_pylist() == [f"{name}{i:05d}" for i in range(len(a))]
            and ids["label"].to_pylist() == content["y"]
        )


@pytest.mark.req("D7")
def test_types_and_read_only(tmp_path):
    ref, statistics = prepare(tmp_path, side(50, 0), side(9, 1), side(8, 2))
    arrays = load_arrays(ref.val)
    assert {n: (a.dtype.name, a.shape) for n, a in arrays.items()} == {
        "numeric": ("float32", (9, statistics.num_numeric)),
        "categorical": ("int64", (9, 1)),
        "tensor_pic": ("uint8", (9, 2, 3)),
        "label": ("int64", (9,)),
        "weight": ("float32", (9,)),
    }
    assert all(isinstance(a, np.memmap) and a.flags.c_contiguous for a in arrays.values())
    with pytest.raises(ValueError, match="read-only"):
        arrays["label"][0] = 1
    assert Statistics.model_validate_json(Path(ref.statistics.path).read_text()) == statistics


@pytest.mark.req("D7")
def test_regression_label_is_scaled_and_ids_keep_it_as_given(tmp_path):
    sides = [{"a": np.arange(n) * 1.5, "y": np.arange(n) * 10 + 3} for n in (20, 5, 4)]
    ref, statistics = prepare(tmp_path, *sides, spec=spec_of(numeric=("a",)), task="regression")
    label = load_arrays(ref.test)["label"]
    assert label.dtype == np.float32
    np.testing.assert_allclose(
        label * statistics.target_scale + statistics.target_center, sides[2]["y"], rtol=1e-6
    )
    assert pq.read_table(ref.test.ids.path)["label"].to_pylist() == sides[2]["y"].tolist()


@pytest.mark.req("D7")
def test_digest_is_of_the_content_alone(tmp_path):
    first, _ = prepare(tmp_path / "one", side(50, 0), side(9, 1), side(8, 2))
    again, _ = prepare(tmp_path / "two", side(50, 0), side(9, 1), side(8, 2))
    other, _ = prepare(tmp_path / "three", side(50, 0), side(9, 1), side(8, 3))
    assert first.sha256 == again.sha256 != other.sha256
    assert first.train.arrays["numeric"].sha256 == other.train.arrays["numeric"].sha256


@pytest.mark.req("S1")
@pytest.mark.parametrize("name", ["../../odd /name", "a.b", "..", "ü%2F"])
def test_a_column_name_cannot_leave_the_folder(tmp_path, name):
    pictures = {
        n: {
            name: images(np.random.default_rng(n).integers(0, 9, (n, 2)).astype("uint8")),
            "y": [i % 2 for i in range(n)],
        }
        for n in (6, 4, 2)
    }
    spec = spec_of(tensor={name: (2,)}, tensor_dtype={name: "uint8"})
    ref, _ = prepare(tmp_path, *pictures.values(), spec=spec)
    assert set(load_arrays(ref.train, verify=True)) == {f"tensor_{name}", "label"}
    assert {p.parent for p in tmp_path.rglob("*.npy")} == {
        tmp_path / "arrays" / s for s in ("train", "val", "test")
    }


# ------------------------------------------------------------------------------------ planted
# faults


@pytest.mark.req("S2")
def test_nulls_that_train_lacks_are_refused_with_ids_and_filled_once_declared(tmp_path):
    train, val, test = (
        {"a": numbers(np.arange(n)), "y": [i % 2 for i in range(n)]} for n in (10, 8, 6)
    )
    test["a"] = numbers([None, 1, None, 3, 4, 5])
    spec = spec_of(numeric=("a",))
    with pytest.raises(
        DataError,
        match=(
            r"column 'a' has 2 nulls on the test side.*first ids: test00000, test00002; declare"
            r" nullable: true"
        ),
    ):
        prepare(tmp_path, train, val, test, spec)
    assert not (tmp_path / "arrays").exists() and [p.name for p in tmp_path.iterdir()] == ["split"]
    ref, statistics = prepare(tmp_path, train, val, test, spec, columns={"a": {"nullable": True}})
    column = statistics.numeric[0]
    assert load_arrays(ref.test)["numeric"][0, 0] == np.float32(
        (column.fill - column.center) / column.scale
    )


@pytest.mark.req("S2")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"y": [0, 1, 2, 0, 7]},
            r"val side: 2 rows have a class that train lacks: 2, 7; train has 0, 1",
        ),
        ({"a": [1.0, 2.0, 3.0, 1e300, 5.0]}, r"val side: values that are not finite in a"),
        ({"w": [1.0, 2.0, -3.0, 1.0, 1.0]}, r"val side: 1 weights are negative"),
        (
            {"w": numbers([1.0, None, 3.0, 1.0, 1.0])},
            r"val side: values that are not finite in weight",
        ),
        (
            {"pic": pa.array([[1] * 6] * 4 + [None], pa.list_(pa.uint8()))},
            r"val side: tensor column 'pic': expected a value in every row, got 1 nulls",
        ),
        (
            {"pic": pa.array([[1] * 6] * 4 + [[1]], pa.list_(pa.uint8()))},
            (
                r"val side: tensor column 'pic': expected 6 elements \[2, 3\] in every row, 1 rows"
                r" have others"
            ),
        ),
    ],
)
def test_planted_faults_name_side_and_column_and_leave_nothing_behind(tmp_path, change, message):
    clean, _ = prepare(
        tmp_path / "clean", side(50, 0), side(5, 1), side(8, 2), normalize={"clip": None}
    )
    assert clean.val.rows == 5
    with pytest.raises(DataError, match=message):
        prepare(
            tmp_path / "planted",
            side(50, 0),
            {**side(5, 1), **change},
            side(8, 2),
            normalize={"clip": None},
        )
    assert [p.name for p in (tmp_path / "planted").iterdir()] == ["split"]


@pytest.mark.req("D7")
def test_statistics_of_another_train_table_are_refused(tmp_path):
    _, other = prepare(tmp_path / "other", side(50, 9), side(5, 1), side(8, 2))
    split = split_of(tmp_path / "split", side(50, 0), side(5, 1), side(8, 2))
    with pytest.raises(IntegrityError, match="fitted on another train table"):
        materialise(split, validated(split, SPEC), other, declaration_of(), tmp_path / "arrays")


@pytest.mark.req("C3")
def test_damaged_arrays_are_noticed(tmp_path):
    ref, _ = prepare(tmp_path, side(50, 0), side(9, 1), side(8, 2))
    path = Path(ref.test.arrays["numeric"].path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    load_arrays(ref.test, verify=False)  # the format itself does not notice
    with pytest.raises(IntegrityError, match="changed after it was written"):
        load_arrays(ref.test)
    path.write_bytes(content[:-9])
    with pytest.raises(IntegrityError, match="cannot be read as an array"):
        load_arrays(ref.test, verify=False)
    np.save(path, np.zeros((3, 2), "float32"))
    with pytest.raises(IntegrityError, match="expected 8 rows, found 3"):
        load_arrays(ref.test, verify=False)


@pytest.mark.req("C3")
def test_an_existing_folder_is_replaced_whole(tmp_path):
    (tmp_path / "arrays" / "train").mkdir(parents=True)
    (tmp_path / "arrays" / "train" / "stale.npy").write_bytes(b"old")
    prepare(tmp_path, side(50, 0), side(9, 1), side(8, 2))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["arrays", "split"]
    assert not (tmp_path / "arrays" / "train" / "stale.npy").exists()


PEAK_OF_MATERIALISING = """
import sys, threading
from pathlib import Path
import numpy as np
from tests.training.data.sides import declaration_of, spec_of, split_of, validated
from training.data.fit.normalize import fit
from training.data.arrays.shards import materialise

rows, folder, names = int(sys.argv[1]), Path(sys.argv[2]), [f"x{i}" for i in range(24)]

def side(n):
    return {**{c: np.random.default_rng(i).normal(size=n) for i, c in enumerate(names)}, "y": np.arange(n) % 2}

def anonymous_mb():
    line = next(l for l in open("/proc/self/status") if l.startswith("RssAnon"))
    return int(line.split()[1]) / 1000

def watch():
    while not done.wait(0.002):
        peaks.append(anonymous_mb())

split, spec, declaration = split_of(folder, side(rows), side(100), side(100), row_group=50_000), spec_of(numeric=tuple(names)), declaration_of()
statistics = fit(split.train, spec, declaration)
start, peaks, done = anonymous_mb(), [0.0], threading.Event()
thread = threading.Thread(target=watch)
thread.start()
materialise(split, validated(split, spec), statistics, declaration, folder / "arrays")
done.set()
thread.join()
print(max(peaks) - start)
"""  # noqa: E501


@pytest.mark.long
@pytest.mark.req("D9")
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="needs Linux's /proc to read the memory of a process",
)
def test_memory_does_not_grow_with_the_rows(tmp_path):
    """Sixteen times the rows, 288 MB more as float64: the private memory of materialising stays
    within 90 MB of before.
    """
    peaks = []
    for rows in (100_000, 1_600_000):
        command = [
            sys.executable,
            "-c",
            PEAK_OF_MATERIALISING,
            str(rows),
            str(tmp_path / str(rows)),
        ]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        peaks.append(float(done.stdout))
    assert peaks[1] < peaks[0] + 90, peaks
