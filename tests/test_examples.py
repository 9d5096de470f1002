"""Every example declares its data correctly, and the generated one matches its documentation."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from schemas.config import Declaration
from schemas.load import load_declaration
from schemas.records import ArraysRef, digest_of
from training.data.arrays.shards import load_arrays, materialise
from training.data.fit.normalize import fit
from training.data.leakage import check_leakage, check_overlap, require_passed
from training.data.sources.source import fingerprint
from training.data.split.split import split
from training.data.table.validate import validate

REPOSITORY = Path(__file__).parents[1]
EXAMPLES = REPOSITORY / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
QUICK = {"titanic", "smiles_hiv", "shakespeare"}


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("clinic_visits", EXAMPLES / "clinic_visits.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def clinic(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("clinic") / "visits.parquet"
    load_generator().generate(path)
    return path


def prepare(declaration: Declaration, folder: Path) -> ArraysRef:
    """Run the whole data path, checks included."""
    validated = validate(fingerprint(declaration.data), declaration, folder)
    sides = split(validated, declaration, folder / "split", folder / "ledger.jsonl")
    require_passed(check_overlap(sides, validated, declaration))
    require_passed(check_leakage(sides, validated, declaration))
    return materialise(
        sides,
        validated,
        fit(sides.train, validated.spec, declaration),
        declaration,
        folder / "arrays",
    )


@pytest.mark.req("P1")
@pytest.mark.parametrize("name", NAMES)
def test_each_declaration_loads_and_reads_from_where_it_is_told(monkeypatch, tmp_path, name):
    monkeypatch.setenv("BULKHEAD_DATA", str(tmp_path))
    monkeypatch.setenv("BULKHEAD_CLINIC", str(tmp_path / "visits.parquet"))
    declaration = load_declaration(EXAMPLES / f"{name}.yaml")
    assert str(declaration.data.uri).startswith(str(tmp_path))
    monkeypatch.delenv("BULKHEAD_DATA")
    monkeypatch.delenv("BULKHEAD_CLINIC")
    default = load_declaration(EXAMPLES / f"{name}.yaml").data.uri
    assert default.startswith(
        (str(REPOSITORY.parent / "shared" / "data"), str(REPOSITORY / ".bulkhead"))
    )
    assert len((EXAMPLES / f"{name}.yaml").read_text().splitlines()) <= 40


@pytest.mark.req("D1")
@pytest.mark.parametrize(
    "name",
    [
        n if n in QUICK else pytest.param(n, marks=pytest.mark.long)
        for n in NAMES
        if n != "clinic_visits"
    ],
)
def test_each_real_table_goes_through_the_whole_data_path(monkeypatch, tmp_path, real_data, name):
    monkeypatch.setenv("BULKHEAD_DATA", str(real_data))
    declaration = load_declaration(EXAMPLES / f"{name}.yaml")
    if not any(real_data.glob(Path(declaration.data.uri).name)):
        pytest.skip(f"{declaration.data.uri} is not there; set BULKHEAD_DATA")
    arrays = prepare(declaration, tmp_path)
    assert min(arrays.side(side).rows for side in ("train", "val", "test")) >= 100
    for side in ("train", "val", "test"):
        found = load_arrays(arrays.side(side), verify=True)
        label = found.pop("label")
        assert all(np.isfinite(array).all() for array in found.values())
        # NaN: one of several labels, unknown
        assert (np.isfinite(label) | (np.isnan(label) & declaration.task.has_several)).all()


# clinic visits


@pytest.mark.req("D3")
def test_the_default_example_goes_through_the_whole_data_path(monkeypatch, tmp_path, clinic):
    monkeypatch.setenv("BULKHEAD_CLINIC", str(clinic))
    arrays = prepare(load_declaration(EXAMPLES / "clinic_visits.yaml"), tmp_path)
    test = load_arrays(arrays.test)
    assert arrays.test.rows >= 1000 and test["label"].sum() >= 100
    assert arrays.train.rows >= 7000 and arrays.val.rows >= 700


@pytest.mark.req("T12")
def test_equal_arguments_give_equal_bytes(tmp_path):
    module = load_generator()
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        module.generate(tmp_path / name, patients=50, seed=seed)
    digests = [hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in "abc"]
    assert digests[0] == digests[1] != digests[2]


def test_visits_are_as_documented(clinic):
    table = pq.read_table(clinic)
    admitted = table["admitted_30d"].to_numpy()
    assert 25_000 <= len(table) <= 32_000 and 0.10 <= admitted.mean() <= 0.14
    assert pc.count_distinct(table["patient_id"]).as_py() == 4000 and pc.count_distinct(
        table["visit_id"]
    ).as_py() == len(table)
    frame = table.to_pandas().sort_values(["patient_id", "visit_date"])
    gaps = frame.groupby("patient_id")["visit_date"].diff().dropna().dt.days
    assert gaps.min() >= 30, "an earlier outcome must be known at the next visit"
    earlier = frame.groupby("patient_id")["admitted_30d"].transform(
        lambda s: s.shift(fill_value=0).cumsum()
    )
    assert (frame["previous_admissions"] == earlier).all()
    assert (frame["days_since_last_visit"].isna() == (frame["visit_number"] == 1)).all()
    ordered = frame["crp"].notna()
    assert (
        frame.loc[ordered, "admitted_30d"].mean() > 1.3 * frame.loc[~ordered, "admitted_30d"].mean()
    ), "missing not at random"
    assert frame["visit_date"].min().year == 2018 and frame["visit_date"].max().year == 2023


def test_the_command_line_prints_the_documented_truth(tmp_path):
    command = [
        sys.executable,
        str(EXAMPLES / "clinic_visits.py"),
        str(tmp_path / "new" / "v.parquet"),
        "--truth",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.rsplit(": ", 1)[1].strip()
    assert printed in load_generator().__doc__, (
        f"the documentation states another bound than {printed}"
    )


def test_no_digest_depends_on_the_place(monkeypatch, tmp_path, clinic):
    monkeypatch.setenv("BULKHEAD_CLINIC", str(clinic))
    declaration = load_declaration(EXAMPLES / "clinic_visits.yaml")
    digests = {
        digest_of(prepare(declaration, tmp_path / place).sha256) for place in ("here", "there")
    }
    assert len(digests) == 1
