"""Runs are found by any of their names, never worked on twice, and listed only where there is
something to go on from.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ResumeError
from schemas.home import home
from schemas.seal import seal_path, write_sealed
from tasks.resume import unfinished, unfinished_runs
from tests.distributed.launch import ROOT, environment
from tests.training.runs import make_run
from training.run.record import (
    DECLARED,
    RECORD,
    StartedRun,
    Status,
    all_runs,
    find,
    held,
    is_held,
    newest_step,
    read,
    read_part,
    settle,
    started_declaration,
)

HOLDER = (
    "import sys, time\nfrom pathlib import Path\nfrom training.run.record import held\nwith"
    " held(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
)


def started(
    run_id: str, status: Status = "running", declared: bool = True, kind: Any = "train"
) -> Path:
    """A run of this home as a killed launcher leaves it."""
    run_dir = home() / "runs" / "tiny" / run_id
    run_dir.mkdir(parents=True)
    record = StartedRun(
        run_id=run_id,
        name="tiny",
        kind=kind,
        tracking_uri="sqlite:///x.db",
        mlflow_run_id=f"mlflow-{run_id}",
        created=run_id,
        status=status,
    )
    record.write(run_dir)
    if declared:
        (run_dir / DECLARED).write_text(json.dumps(make_run(run_dir).declaration))
    return run_dir


@pytest.mark.req("C5")
def test_a_run_is_found_by_directory_run_id_and_mlflow_run_id(own_home: Path) -> None:
    run_dir = started("a")
    started("b")
    assert find(str(run_dir)) == find("a") == find("mlflow-a") == run_dir
    with pytest.raises(
        ResumeError,
        match=(
            r"'c': no run of .* has this directory, id or MLflow run id; runs that can be resumed:"
            r" b, a"
        ),
    ):
        find("c")
    with pytest.raises(ResumeError, match=r"expected the directory of a run, with its run.json"):
        find(str(own_home))


@pytest.mark.req("C5")
def test_only_what_can_be_continued_is_listed_newest_first(own_home: Path) -> None:
    killed, _, _, failed = (
        started("1"),
        started("2", "finished"),
        started("3", declared=False),
        started("4", "failed"),
    )
    (killed / "checkpoints" / "step-00000040").mkdir(parents=True)
    (killed / "checkpoints" / "step-00000044.damaged").mkdir()
    (home() / "runs" / "tiny" / "5").mkdir()
    (home() / "runs" / "tiny" / "5" / "run.json").write_text("{")
    assert len(all_runs()) == 4
    rows = [run.row for run in unfinished_runs()]
    assert [(r["run_id"], r["state"], r["checkpoint_step"]) for r in rows] == [
        ("4", "failed", 0),
        ("1", "killed", 40),
    ]
    assert newest_step(failed) == 0
    with held(killed):
        assert [run.started.run_id for run in unfinished_runs()] == ["4"]


@pytest.mark.req("C7")
def test_a_run_has_one_process_at_work_and_a_killed_one_frees_it(own_home: Path) -> None:
    run_dir = started("1")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run_dir)],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout and holder.stdout.readline() == "held\n"
    with holder:
        assert is_held(run_dir)
        with pytest.raises(ResumeError, match=rf"the run is still going \(process {holder.pid}\)"):
            unfinished("1")
        with pytest.raises(ResumeError, match="the run is still going"), held(run_dir):
            raise AssertionError("two at work")
        holder.kill()
    with held(run_dir):
        assert is_held(run_dir)
    assert not is_held(run_dir)


@pytest.mark.req("C5")
def test_a_finished_run_is_left_alone_and_one_whose_declaration_is_gone_is_refused(
    own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started("1", "finished")
    assert unfinished("1") is None
    assert "1 is finished: nothing to do" in capsys.readouterr().err
    early = started("2", declared=False)
    with pytest.raises(
        ResumeError, match=r"nothing to go on from: .*start again with `bulkhead run FILE`"
    ):
        unfinished("2")
    started("4", kind="crossvalidate")
    with pytest.raises(ResumeError, match="a run of the flow crossvalidate is not gone on with"):
        unfinished("4")
    assert [run.started.run_id for run in unfinished_runs()] == []
    again = started("3")
    found = unfinished("3")
    assert (
        found is not None
        and found.run_dir == again
        and found.kind == "train"
        and started_declaration(again).name == "tiny"
    )
    assert read(early).status == "running"


@pytest.mark.req("C5")
def test_a_killed_run_is_recorded_as_killed_and_one_at_work_or_ended_is_left_alone(
    own_home: Path,
) -> None:
    killed, working, ended = started("1"), started("2"), started("3", "finished")
    with held(working):
        for run_dir in (killed, working, ended):
            settle(run_dir, "kill -9")
    assert [(read(d).status, read(d).cause) for d in (killed, working, ended)] == [
        ("killed", "kill -9"),
        ("running", ""),
        ("finished", ""),
    ]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.req("S2")
def test_a_record_of_a_run_that_was_changed_is_refused_by_name(own_home: Path) -> None:
    run_dir = started("1")
    sealed_declaration(run_dir)
    assert unfinished("1") is not None
    edit(run_dir / DECLARED, '"name": "tiny"', '"name": "tidy"')
    with pytest.raises(
        ResumeError, match=r"nothing to go on from: .*declaration\.json does not match its digest"
    ):
        unfinished("1")
    # somebody replaced both, but the record of the run names the declaration, too
    sealed_declaration(run_dir, record=False)
    with pytest.raises(
        ResumeError, match=r"declaration\.json: is not the declaration that run\.json names"
    ):
        unfinished("1")
    edit(run_dir / RECORD, '"running"', '"finished"')
    with pytest.raises(
        ResumeError,
        match=r"the record of a run cannot be believed: .*run\.json does not match its digest",
    ):
        unfinished("1")
    (run_dir / RECORD).unlink()
    with pytest.raises(
        ResumeError,
        match=(
            r"the record of a run cannot be believed: .*run\.json: expected a record, found no file"
        ),
    ):
        unfinished("1")


def sealed_declaration(run_dir: Path, record: bool = True) -> None:
    """Seal the declaration as it is; and have the record of the run name it."""
    written = write_sealed(run_dir / DECLARED, (run_dir / DECLARED).read_bytes())
    if record:
        read(run_dir).model_copy(update={"declaration_sha256": written.sha256}).write(run_dir)


@pytest.mark.req("S2")
def test_a_run_of_an_earlier_version_goes_on_without_seals(own_home: Path) -> None:
    run_dir = started("1")
    seal_path(run_dir / RECORD).unlink()
    assert unfinished("1") is not None and read_part(run_dir, RECORD, StartedRun).run_id == "1"
