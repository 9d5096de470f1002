"""The ledger of looks counts each model on held-out rows once, through growth, kills and rivals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import IntegrityError
from training.run.look_ledger import (
    LEAST_SHARE,
    SKETCH,
    RowSet,
    Scope,
    record_look,
    row_set,
    share_seen,
)

SCOPE = Scope("clinic", "s" * 64)


def keys(count: int, seed: int = 0) -> np.ndarray:
    """Sorted hashes like those of ids."""
    draw = np.random.default_rng(seed)
    return np.unique(draw.integers(0, 2**64, count, dtype=np.uint64, endpoint=False))


def look(path: Path, model: str, rows: RowSet, scope: Scope = SCOPE, metric: str = "auroc") -> int:
    return record_look(path, scope, rows, (metric,), model, "test")[metric]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledgers" / "looks.jsonl"


@pytest.mark.req("R2")
def test_each_model_is_a_look_and_the_same_one_again_is_none(path: Path) -> None:
    rows = row_set(keys(500))
    assert [look(path, m, rows) for m in "aabcab"] == [1, 1, 2, 3, 3, 3]
    assert len(path.read_text().splitlines()) == 3
    before = path.read_bytes()
    assert look(path, "b", rows) == 3 and path.read_bytes() == before
    assert look(path, "a", rows, metric="log_loss") == 1
    assert record_look(path, SCOPE, rows, ("auroc", "log_loss"), "d", "test") == {
        "auroc": 4,
        "log_loss": 2,
    }


@pytest.mark.req("R2")
def test_another_name_for_the_same_source_goes_on_and_another_table_begins(path: Path) -> None:
    rows = row_set(keys(500))
    assert look(path, "a", rows) == 1
    assert look(path, "b", rows, Scope("renamed", SCOPE.source)) == 2
    assert look(path, "c", rows, Scope("clinic", "moved")) == 2  # the same name: a, c
    assert look(path, "d", rows, Scope("other", "other")) == 1  # ids 1, 2, 3 of another table
    assert look(path, "e", row_set(keys(500, seed=1))) == 1


@pytest.mark.req("R2")
def test_rows_that_grow_share_their_looks_until_hardly_any_are_left(path: Path) -> None:
    every = keys(12_000)
    draw = np.random.default_rng(1).permutation(len(every))
    grown = [row_set(np.sort(every[draw[:count]])) for count in (500, 600, 1200, 3000, 12_000)]
    assert [look(path, str(n), rows) for n, rows in enumerate(grown)] == [1, 2, 3, 4, 2]
    # of 12,000 rows, 500 are fewer than a tenth; a model that is scored again is one model
    assert look(path, "0", grown[4]) == 3 and look(path, "0", grown[4]) == 3
    assert path.stat().st_size < 5 * 4000


@given(st.integers(1, 3000), st.integers(1, 3000), st.floats(0, 1))
def test_the_share_of_common_rows_is_known_up_to_the_size_of_the_sketch(
    today: int, before: int, common: float
) -> None:
    every = np.random.default_rng(2).permutation(keys(7000))
    shared = int(common * min(today, before))
    now = np.sort(every[:today])
    then = np.sort(every[today - shared : today - shared + before])
    found, true = share_seen(row_set(now), row_set(then)), shared / today
    known = today * min(1.0, SKETCH / max(today, before))  # of today's rows, on the average
    assert found == pytest.approx(true, abs=5 * np.sqrt(0.25 / max(1.0, known - 5 * known**0.5)))
    if max(today, before) <= SKETCH:
        assert found == pytest.approx(true)


def test_a_set_of_rows_is_its_digest_whatever_was_sketched() -> None:
    one, two = row_set(keys(500)), row_set(keys(500))
    assert one.sha256 == two.sha256 and share_seen(one, two) == 1.0
    assert one.sha256 != row_set(keys(501)).sha256 and len(one.sketch) == SKETCH
    assert share_seen(one, row_set(keys(500, seed=3))) < LEAST_SHARE


@pytest.mark.req("O4")
def test_a_ledger_that_was_changed_is_refused(path: Path) -> None:
    rows = row_set(keys(50))
    look(path, "a", rows)
    path.write_text(path.read_text().replace("auroc", "rmse"))
    with pytest.raises(IntegrityError, match=r"the ledger of looks is damaged: .* from a backup"):
        look(path, "b", rows)
    path.unlink()
    with pytest.raises(IntegrityError, match="expected a record, found no file"):
        look(path, "b", rows)


PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from training.run.look_ledger import Scope, record_look, row_set

rows = row_set(np.arange(1000, dtype=np.uint64))
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    record_look(Path(sys.argv[1]), Scope("m", "s"), rows, ("auroc",), f"{sys.argv[2]}{number}", "t")
"""


def program(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    made = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), name, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert made.stdout is not None and made.stdout.readline() == "ready\n"
    return made


def go(running: subprocess.Popen[str]) -> None:
    assert running.stdin is not None
    running.stdin.write("\n")
    running.stdin.flush()


@pytest.mark.req("O4")
def test_two_runs_at_once_both_count(path: Path) -> None:
    both = [program(path, name, 4) for name in "ab"]
    for running in both:
        go(running)
    assert [running.wait(60) for running in both] == [0, 0]
    rows = row_set(np.arange(1000, dtype=np.uint64))
    assert look(path, "c", rows, Scope("m", "s")) == 9


@pytest.mark.long
@pytest.mark.req("O4")
@pytest.mark.parametrize("seconds", [0.05, 0.15, 0.3, 0.5])
def test_a_kill_leaves_a_whole_ledger(path: Path, seconds: float) -> None:
    rows = row_set(np.arange(1000, dtype=np.uint64))
    look(path, "c", rows, Scope("m", "s"))
    killed = program(path, "k", 100_000)
    go(killed)
    time.sleep(seconds)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait(60)
    written = [json.loads(line)["model"] for line in path.read_text().splitlines()]
    assert written == ["c", *(f"k{n}" for n in range(len(written) - 1))]
    assert look(path, "d", rows, Scope("m", "s")) == len(written) + 1


@pytest.mark.req("O4")
def test_a_look_at_rows_that_grew_is_cheap(path: Path) -> None:
    every = keys(60_000)
    sets = [row_set(every[: 20_000 + 100 * night]) for night in (*range(12), 365)]
    for night, rows in enumerate(sets[:-1]):
        look(path, f"n{night}", rows)
    started = time.perf_counter()
    assert look(path, "last", sets[-1]) > 1
    assert time.perf_counter() - started < 0.2
    assert path.stat().st_size < 13 * 4000
