"""D5, S2: planted faults are refused in an interpreter that drops every `assert` (python -O)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import sys
from pathlib import Path
from schemas.digest import file_ref
from schemas.errors import BulkheadError
from schemas.records import TrainTable
from tests.training.data.chain import declared, split_of, validated_of, write_table
from training.data.leakage import check_leakage, check_overlap, require_passed
from training.data.split.ledger import opened

if __debug__:
    raise SystemExit("run with -O")
folder = Path(sys.argv[1])
BASE = {"id": list(range(40)), "who": [f"g{i // 2}" for i in range(40)], "at": [float(i) for i in range(40)],
        "side": ["train"] * 20 + ["val"] * 10 + ["test"] * 10, "x": [float(i) for i in range(40)], "y": [0, 1] * 20}
COLUMNS = {"id": "id", "who": "group", "at": "ignore", "side": "ignore", "x": "numeric", "y": "label"}

def run(name, change=(), columns=(), checks=False, **sections):
    path = write_table(folder / name / "t.parquet", {**BASE, **dict(change)})
    declaration = declared(path, {**COLUMNS, **dict(columns)}, **{"split": "group", **sections})
    validated, sides = split_of(declaration, folder / name / "out")
    require_passed(check_overlap(sides, validated, declaration))
    require_passed(check_leakage(sides, validated, declaration))
    return validated, sides, declaration

def swapped():
    validated, sides, declaration = run("swapped")
    moved = sides.model_copy(update={"train": TrainTable(file=sides.test.file, rows=sides.test.rows)})
    require_passed(check_overlap(moved, validated, declaration))

def damaged():
    run("damaged", split="stratified", columns={"who": "ignore"})
    part = next((folder / "damaged" / "out" / "ledger.parts").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-1])
    run("damaged", split="stratified", columns={"who": "ignore"})

predefined = {"split": "predefined", "columns": {"side": "split"}}
FAULTS = {
    "null group": lambda: run("a", {"who": [None] + BASE["who"][1:]}),
    "repeated id": lambda: run("b", {"id": [1, 1] + BASE["id"][2:]}),
    "infinite": lambda: run("c", {"x": [float("inf")] + BASE["x"][1:]}),
    "range": lambda: run("d", columns={"x": {"kind": "numeric", "max": 38}}),
    "one class": lambda: run("e", {"y": [1] * 40}),
    "empty side": lambda: run("f", {"who": ["g"] * 40}),
    "group on two sides": lambda: run("g", {"who": ["g0"] * 20 + BASE["who"][20:38] + ["g0", "g0"]}, **predefined),
    "time on two sides": lambda: run("h", {"at": [__import__("datetime").datetime(2024, 1, 1 + i % 25) for i in range(40)]},
                                     split="predefined", columns={"side": "split", "at": "time"}),
    "duplicate": lambda: run("i", {"x": BASE["x"][:39] + [0.0]}, **predefined),
    "swapped files": swapped,
    "damaged ledger": damaged,
}
run("clean")
for name, fault in FAULTS.items():
    try:
        fault()
        print(f"{name}: NOT REFUSED")
    except BulkheadError as error:
        print(f"{name}: {type(error).__name__}: {error}".replace(chr(10), " "))
"""  # noqa: E501
EXPECTED = {
    "null group": (
        r"SchemaError: column 'who': expected a value in each row \(role group\), but 1 row has"
        r" not, first ids: 0"
    ),
    "repeated id": r"SchemaError: column 'id': expected each value once .*first: '1'",
    "infinite": r"SchemaError: column 'x': expected finite numbers, but 1 row has not",
    "range": (
        r"SchemaError: column 'x': expected at most 38, but 1 row has not \(values 39\.0\), first"
        r" ids: 39"
    ),
    "one class": r"SchemaError: column 'y': expected at least two classes",
    "empty side": r"SplitError: split group: expected rows on every side",
    "group on two sides": r"LeakageError: 1 who value is in both train and test \(first: g0\)",
    "time on two sides": r"LeakageError: at: train ends at .*not before val begins",
    "duplicate": r"LeakageError: 1 of 10 test rows .*equals a train row",
    "swapped files": r"LeakageError: .*",
    "damaged ledger": r"IntegrityError: .*split ledger is damaged",
}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each fault led to, from one interpreter."""
    command = [sys.executable, "-O", "-c", SCRIPT, str(tmp_path_factory.mktemp("optimized"))]
    found = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert found.returncode == 0, found.stderr
    return dict(line.split(": ", 1) for line in found.stdout.splitlines())


@pytest.mark.req("D5")
@pytest.mark.req("S2")
@pytest.mark.parametrize("fault", EXPECTED)
def test_a_planted_fault_is_refused_without_asserts(lines: dict[str, str], fault: str) -> None:
    assert re.match(EXPECTED[fault], lines[fault]), lines[fault]
