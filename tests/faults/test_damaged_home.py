"""Damage of each file of a home, in one process; short form of `python -m
tests.faults.damaged_home`.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prefect.states import State

from schemas.config import Declaration
from schemas.digest import verify
from schemas.errors import BulkheadError
from schemas.load import load_declaration
from schemas.records import Prepared, SplitTables
from schemas.seal import write_sealed
from tasks.prepared import bind
from tasks.source import validate_table
from tasks.split import leakage_checks, ledger_path, split_rows
from tasks.statistics import fit_statistics, materialise_arrays
from tests.faults.damaged_home import KINDS, ROOT, SMALL, files_of, harm, run
from tests.training.runs import make_run
from training.data.arrays.shards import load_arrays
from training.data.sources.source import fingerprint
from training.distributed.parallel import Parallel
from training.engine.trainer import train
from training.launch.stop_signal import StopSignal
from training.main import read_spec
from training.run.result_files import read_run


def made(step: Any, *arguments: Any) -> Any:
    """Return the result of a preparation step, without Prefect's server."""
    found = step.task.fn(*arguments)
    return found.data if isinstance(found, State) else found


def prepare(declaration: Declaration) -> Prepared:
    """Run the stored steps of a preparation."""
    source = fingerprint(declaration.data)
    validated = made(validate_table, source, declaration)
    split: SplitTables = made(split_rows, validated, declaration)
    leakage = made(leakage_checks, split, validated, declaration)
    statistics = made(fit_statistics, split.train, validated, declaration)
    arrays = made(materialise_arrays, split, validated, statistics, declaration)
    return bind(
        source, validated, split, (leakage,), statistics, arrays, datetime.now(UTC)
    ).model_copy(update={"cached": False})


def one_of_each_kind(home: Path) -> list[Path]:
    """Return one file of a home for each step and name."""
    found: dict[tuple[str, str], Path] = {}
    for path in files_of(home):
        found.setdefault((path.relative_to(home).parts[1].partition("-")[0], path.name), path)
    return list(found.values())


@pytest.mark.long
@pytest.mark.req("S2")
def test_each_file_of_a_preparation(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BULKHEAD_CLINIC", str(tmp_path / "clinic.parquet"))
    monkeypatch.chdir(ROOT)
    visits = [
        sys.executable,
        "examples/clinic_visits.py",
        str(tmp_path / "clinic.parquet"),
        "--patients",
        "400",
    ]
    subprocess.run(visits, check=True, capture_output=True)
    declaration = load_declaration(ROOT / "tests" / "clinic_visits.yaml", SMALL)
    expected, dice, wrong = prepare(declaration), random.Random(0), list[str]()
    shutil.copytree(own_home, tmp_path / "pristine")
    files = one_of_each_kind(own_home)
    assert len(files) >= 20 and {
        "record.json",
        "record.json.sha256",
        "ledger.jsonl",
        "small",
        "numeric.npy",
    } <= {path.name for path in files}
    for path in files:
        for kind in KINDS:
            harm(path, kind, dice)
            try:
                same = prepare(declaration) == expected
                wrong += [] if same else [f"{kind} of {path}: another preparation"]
            except BulkheadError as error:
                wrong += [] if path.name in str(error) else [f"{kind} of {path}: {error}"]
            shutil.rmtree(own_home)
            shutil.copytree(tmp_path / "pristine", own_home)
    assert wrong == []
    assert ledger_path(declaration).is_file()


def finished(run_dir: Path) -> tuple[str, dict[str, bytes]]:
    """Return the final weights of a training and the scored test rows; resume unfinished work."""
    train(read_spec(run_dir / "resolved.json"), run_dir, Parallel(), StopSignal())
    spec, report = read_run(run_dir)
    verify(report.best_checkpoint)
    return report.model_sha256, {
        name: array.tobytes() for name, array in load_arrays(spec.arrays.test).items()
    }


@pytest.mark.req("S2")
def test_each_file_of_a_training(tmp_path: Path) -> None:
    run_dir, pristine = tmp_path / "run", tmp_path / "pristine"
    sections: dict[str, Any] = {
        "model": {"kind": "mlp", "hidden": [8]},
        "train": {"epochs": 2, "batch_size": 16, "threads": 1},
    }
    spec = make_run(run_dir, rows=(80, 40), **sections)
    write_sealed(run_dir / "resolved.json", spec.model_dump_json())
    expected, dice, wrong = finished(run_dir), random.Random(0), list[str]()
    shutil.copytree(run_dir, pristine)
    files = {(path.parent.name.rstrip("0123456789"), path.name): path for path in files_of(run_dir)}
    assert {
        "resolved.json",
        "result.json",
        "result.json.sha256",
        "model.pt",
        "manifest.json",
        "metrics.jsonl",
    } <= {name for _, name in files}
    for path in files.values():
        for kind in KINDS:
            harm(path, kind, dice)
            try:
                same = finished(run_dir) == expected
                wrong += [] if same else [f"{kind} of {path}: another model"]
            except BulkheadError as error:
                wrong += (
                    []
                    if path.name.removesuffix(".sha256") in str(error)
                    else [f"{kind} of {path}: {error}"]
                )
            shutil.rmtree(run_dir)
            shutil.copytree(pristine, run_dir)
    assert wrong == []


@pytest.mark.req("S2")
def test_a_record_that_was_edited_and_sealed_again_is_missed_by_what_names_it(
    tmp_path: Path,
) -> None:
    spec = make_run(tmp_path, rows=(80, 40), train={"epochs": 1, "batch_size": 16, "threads": 1})
    prepared = write_sealed(tmp_path / "prepared.json", json.dumps({"key": "a"}))
    write_sealed(
        tmp_path / "resolved.json",
        spec.model_copy(update={"prepared_sha256": prepared.sha256}).model_dump_json(),
    )
    train(read_spec(tmp_path / "resolved.json"), tmp_path, Parallel(), StopSignal())
    read_run(tmp_path)
    write_sealed(tmp_path / "prepared.json", json.dumps({"key": "b"}))
    with pytest.raises(
        BulkheadError, match=r"prepared\.json: is not the record that resolved\.json was made from"
    ):
        read_run(tmp_path)


@pytest.mark.long
@pytest.mark.req("S2")
@pytest.mark.timeout(7200)
def test_a_sample_of_all_files_through_the_command_line(tmp_path: Path) -> None:
    assert [one for one in run(tmp_path, every=20, seed=2) if one.failure] == []
