"""Tracking: everything arrives once, nothing secret, and a database that is away stops nothing."""

from __future__ import annotations

import json
import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import TrackingError
from tests.training.mlflow_home import blank_database, declaration, uri
from training.run.provenance import provenance
from training.tracking import mlflow as tracking
from training.tracking.mlflow import (
    Tracker,
    default_tracking_uri,
    flatten,
    probe,
    reopen_run,
    start_run,
)

__all__ = ["blank_database", "uri"]


def line(kind: str, step: int, **values: Any) -> str:
    return (
        json.dumps(
            {
                "kind": kind,
                "step": step,
                "epoch": 1 + step // 10,
                "time": 1.7e9 + step,
                "values": values,
            }
        )
        + "\n"
    )


def history(tracker: Tracker, key: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in tracker.client.get_metric_history(tracker.run_id, key)]


# ------------------------------------------------------------------------------------------ start


@pytest.mark.req("P6")
def test_a_run_holds_the_whole_declaration_its_tags_and_its_end(uri: str, own_home: Path) -> None:
    tracker = start_run(
        declaration(tracking={"tags": {"team": "ward 3"}}), tags={"why": "test"}, name="first"
    )  # type: ignore[arg-type]
    tracker.log_metrics({"test/auroc": 0.75, "test/f1": None})
    tracker.log_json("evaluation/test.json", {"rows": 3})
    tracker.finish("FINISHED")
    run = tracker.client.get_run(tracker.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")
    assert run.data.params["train.batch_size"] == "256"
    assert json.loads(run.data.params["data.columns"])["x*"]["role"] == "feature"
    assert run.data.params["register.require_skill"] == "true"
    assert {"team": "ward 3", "why": "test"}.items() <= run.data.tags.items()
    assert run.data.metrics == {"test/auroc": 0.75}
    folder = own_home / "mlartifacts" / tracker.run_id / "artifacts"
    assert json.loads((folder / "evaluation" / "test.json").read_text()) == {"rows": 3}
    assert "name: clinic" in (folder / "config.yaml").read_text()


@pytest.mark.req("P6")
def test_the_default_address_is_absolute_and_declared_ones_come_first(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert default_tracking_uri(None) == f"sqlite:///{own_home}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server:5000")
    assert default_tracking_uri(None) == "http://server:5000"
    monkeypatch.setenv("BULKHEAD_PLACE", "sub")
    for declared, wanted in [
        ("sqlite:///own.db", f"sqlite:///{tmp_path}/own.db"),
        ("${BULKHEAD_PLACE}/runs", f"file://{tmp_path}/sub/runs"),
        ("https://h/", "https://h/"),
    ]:
        assert default_tracking_uri(declaration(tracking={"uri": declared})) == wanted  # type: ignore[arg-type]


@pytest.mark.req("P6")
def test_a_retried_flow_run_goes_on_writing_to_its_run(uri: str) -> None:
    first = start_run(declaration(), flow_run_id="0a1b-2c")  # type: ignore[arg-type]
    first.finish("FAILED")
    again = start_run(declaration(), flow_run_id="0a1b-2c")  # type: ignore[arg-type]
    other = start_run(declaration(), flow_run_id="ffff-2c")  # type: ignore[arg-type]
    assert again.run_id == first.run_id != other.run_id
    assert again.client.get_run(again.run_id).info.status == "RUNNING"


@pytest.mark.req("C5")
def test_a_resumed_run_has_one_gapless_history(uri: str, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(line("step", s, **{"train/loss": s / 8}) for s in (1, 2, 3)))
    first = start_run(declaration(), flow_run_id="a")  # type: ignore[arg-type]
    first.forward_metrics(metrics)
    first.set_tags({"bulkhead.error": "KeyboardInterrupt", "mlflow.note.content": "stopped"})
    first.finish("KILLED")
    # resumed from step 1: lines 2 and 3 were dropped and made again
    metrics.write_text("".join(line("step", s, **{"train/loss": s / 8}) for s in (1, 2, 3, 4, 5)))
    again = reopen_run(uri, first.run_id, flow_run_id="b")
    found = again.client.get_run(first.run_id)
    assert found.info.status == "RUNNING" and found.data.tags["bulkhead.flow_run_id"] == "b"
    assert not {"bulkhead.error", "mlflow.note.content"} & found.data.tags.keys()
    again.forward_metrics(metrics)
    again.finish("FINISHED")
    assert history(again, "step/loss") == [(s, s / 8) for s in (1, 2, 3, 4, 5)]
    assert again.client.get_run(first.run_id).info.status == "FINISHED"
    again.client.delete_run(first.run_id)
    with pytest.raises(TrackingError, match="was deleted; restore it"):
        reopen_run(uri, first.run_id)


@pytest.mark.req("S1")
def test_credentials_reach_neither_server_nor_messages(
    uri: str, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = declaration(
        data={
            "uri": "s3://key:hunter2@bucket/x?token=hunter3",
            "columns": {"y": "label", "x": "feature"},
        },
        tracking={"uri": "http://ann:hunter4@127.0.0.1:9"},
    )
    tracker = start_run(secret, uri=uri, tags={"from": "http://ann:hunter5@host"})  # type: ignore[arg-type]
    tracker.log_dataset("source", "s3://key:hunter6@bucket", "ab" * 32, 3, "source")
    assert "hunter" not in str(tracker.client.get_run(tracker.run_id).to_dictionary())
    assert not [
        p
        for p in (own_home / "mlartifacts").rglob("*")
        if p.is_file() and "hunter" in p.read_text()
    ]
    assert flatten(secret)["data.uri"] == "s3://***@bucket/x?token=***"  # type: ignore[arg-type]
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(
        TrackingError,
        match=(
            r"MLflow at http://\*\*\*@127.0.0.1:9 could not be used while starting a run: .*start"
            r" the server"
        ),
    ) as caught:
        start_run(secret)  # type: ignore[arg-type]
    assert "hunter" not in str(caught.value)
    assert "hunter" not in repr(Tracker("http://ann:hunter7@host", "1"))


@pytest.mark.req("S2")
def test_probe_says_what_is_wrong_with_an_address(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert probe(uri) == ""
    assert "Connection refused" in probe("http://127.0.0.1:9")


@pytest.mark.req("P6")
def test_a_deleted_experiment_is_refused_with_the_way_back(uri: str) -> None:
    tracker = start_run(declaration())  # type: ignore[arg-type]
    tracker.client.delete_experiment(tracker.client.get_run(tracker.run_id).info.experiment_id)
    with pytest.raises(
        TrackingError,
        match=r"experiment 'clinic' was deleted; restore it \(mlflow experiments restore",
    ):
        start_run(declaration())  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------- metrics


@pytest.mark.req("P6")
def test_metrics_arrive_while_the_file_grows_and_half_a_line_waits(
    uri: str, tmp_path: Path
) -> None:
    tracker, path = start_run(declaration()), tmp_path / "metrics.jsonl"  # type: ignore[arg-type]
    first, second = (
        line("step", 1, **{"train/loss": 0.9, "lr": 0.1}),
        line("evaluation", 2, **{"train/loss": 0.8, "val/auroc": None, "best": 1}),
    )
    path.write_text(first + second[:30])
    offset = tracker.forward_metrics(path)
    assert offset == len(first)
    assert history(tracker, "train/loss") == []
    path.write_text(
        first
        + second
        + '{"kind": "event", "step": 2, "epoch": 1, "time": 1, "message": "early stop"}\nnot json\n'
    )
    assert tracker.forward_metrics(path, offset) == path.stat().st_size
    assert history(tracker, "step/loss") == [(1, 0.9)]
    assert history(tracker, "train/loss") == [(2, 0.8)]
    assert tracker.client.get_run(tracker.run_id).data.metrics == {
        "step/loss": 0.9,
        "step/lr": 0.1,
        "train/loss": 0.8,
        "best": 1.0,
        "epoch": 1.0,
    }


@pytest.mark.req("P6")
def test_a_replay_after_a_resume_doubles_nothing(uri: str, tmp_path: Path) -> None:
    """Steps 1 to 60 sent; the run resumes at 40 and rewrites the file; a new process sends it from
    its start.
    """
    path, whole = (
        tmp_path / "metrics.jsonl",
        [line("step", s, **{"train/loss": 1 / s}) for s in range(1, 91)],
    )
    tracker = start_run(declaration())  # type: ignore[arg-type]
    path.write_text("".join(whole[:60]))
    offset = tracker.forward_metrics(path)
    rewritten = tmp_path / "rewritten"
    rewritten.write_text("".join(whole[:40]) + line("event", 40) + "".join(whole[40:70]))
    rewritten.replace(path)
    offset = tracker.forward_metrics(path, offset)
    assert history(tracker, "step/loss") == [(s, 1 / s) for s in range(1, 71)]
    with path.open("a") as file:
        file.writelines(whole[70:])
    again = Tracker(uri, tracker.run_id)
    assert again.forward_metrics(path, 0) == path.stat().st_size
    assert history(again, "step/loss") == [(s, 1 / s) for s in range(1, 91)]


@pytest.mark.req("P6")
def test_figures_that_a_resumed_run_measures_again_are_there_once(uri: str) -> None:
    """A kill after the evaluation: the run that goes on measures test rows and baselines again."""
    tracker = start_run(declaration())  # type: ignore[arg-type]
    figures = {
        "test/auroc": 0.75,
        "test/log_loss": float("nan"),
        "baseline/linear/auroc": 0.7,
        "test/none": None,
    }
    tracker.log_metrics(figures)
    again = reopen_run(uri, tracker.run_id)
    again.log_metrics(figures)
    again.log_metrics({"test/auroc": 0.75}, step=1)
    again.log_metrics({"baseline/linear/auroc": 0.8})
    assert (
        history(again, "test/auroc") == [(0, 0.75), (1, 0.75)]
        and len(history(again, "test/log_loss")) == 1
    )
    assert history(again, "baseline/linear/auroc") == [(0, 0.7), (0, 0.8)], "another value is told"


@pytest.mark.req("P6")
def test_many_lines_go_in_requests_of_at_most_a_thousand(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker, path = start_run(declaration()), tmp_path / "metrics.jsonl"  # type: ignore[arg-type]
    path.write_text(
        "".join(
            line("step", s, **{"train/loss": 1.0, "lr": 0.1, "grad_norm": float("nan")})
            for s in range(1, 801)
        )
    )
    sizes: list[int] = []
    send = tracker.client.log_batch
    monkeypatch.setattr(
        tracker.client,
        "log_batch",
        lambda run_id, metrics: (sizes.append(len(metrics)), send(run_id, metrics)),
    )
    assert tracker.forward_metrics(path) == path.stat().st_size
    assert sum(sizes) == 2400
    assert max(sizes) <= 1000
    assert len(history(tracker, "step/grad_norm")) == 800


# ------------------------------------------------------------------------------------------- away


class Outage:
    """Makes a database useless at once, and whole again."""

    def __init__(self, home: Path) -> None:
        self.path = home / "mlflow.db"

    def __enter__(self) -> None:
        self._run("alter table runs rename to runs_gone")

    def __exit__(self, *_: object) -> None:
        self._run("alter table runs_gone rename to runs")

    def _run(self, sql: str) -> None:
        with sqlite3.connect(self.path) as connection:
            connection.execute(sql)
        connection.close()


@pytest.mark.req("S3")
def test_while_the_server_is_away_nothing_raises_and_later_everything_arrives(
    uri: str,
    own_home: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracking, "RETRY_SECONDS", 0.0)
    tracker, path, note = (
        start_run(declaration()),
        tmp_path / "metrics.jsonl",
        tmp_path / "note.txt",
    )  # type: ignore[arg-type]
    path.write_text(line("step", 1, **{"train/loss": 0.9}))
    note.write_text("kept")
    with Outage(own_home), caplog.at_level(logging.WARNING, "training.tracking.mlflow"):
        assert tracker.forward_metrics(path) == 0
        tracker.set_tags({"said": "while away"})
        tracker.log_text("later.txt", "text")
        tracker.log_artifact(note, "files")
        tracker.log_metrics({"test/auroc": 0.7})
    assert "MLflow did not take metrics" in caplog.text
    tracker.finish("FINISHED")
    run = tracker.client.get_run(tracker.run_id)
    assert (run.info.status, run.data.tags["said"]) == ("FINISHED", "while away")
    assert run.data.metrics == {"step/loss": 0.9, "test/auroc": 0.7}
    folder = own_home / "mlartifacts" / tracker.run_id / "artifacts"
    assert ((folder / "later.txt").read_text(), (folder / "files" / "note.txt").read_text()) == (
        "text",
        "kept",
    )


@pytest.mark.req("S3")
def test_a_server_that_stays_away_is_said_at_the_end_and_a_later_process_brings_the_rest(
    uri: str, own_home: Path, tmp_path: Path
) -> None:
    tracker, path = start_run(declaration()), tmp_path / "metrics.jsonl"  # type: ignore[arg-type]
    path.write_text(line("evaluation", 5, **{"val/loss": 0.5}))
    with Outage(own_home):
        tracker.forward_metrics(path)
        with pytest.raises(
            TrackingError,
            match=(
                rf"did not take 2 parts of run {tracker.run_id}: status; .*metrics.jsonl.*files lie"
                r" in the run directory"
            ),
        ):
            tracker.finish("FINISHED")
    later = Tracker(uri, tracker.run_id)
    later.forward_metrics(path)
    later.finish("FINISHED")
    assert history(later, "val/loss") == [(5, 0.5)]


@pytest.mark.req("S3")
def test_a_server_that_is_away_is_not_asked_again_at_every_call(
    uri: str, own_home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker, path = start_run(declaration()), tmp_path / "metrics.jsonl"  # type: ignore[arg-type]
    path.write_text(line("step", 1, **{"train/loss": 0.9}))
    with Outage(own_home), caplog.at_level(logging.WARNING, "training.tracking.mlflow"):
        for _ in range(20):
            tracker.forward_metrics(path)
            tracker.set_tags({"a": "b"})
    assert caplog.text.count("MLflow did not take") == 1


@pytest.mark.req("S3")
def test_what_the_server_refuses_for_good_does_not_hold_up_the_rest(
    uri: str, tmp_path: Path
) -> None:
    tracker = start_run(declaration())  # type: ignore[arg-type]
    tracker.set_tags({"x" * 999: "key too long"})
    tracker.log_artifact(tmp_path / "absent.txt")
    tracker.set_tags({"after": "arrives"})
    assert tracker.client.get_run(tracker.run_id).data.tags["after"] == "arrives"
    with pytest.raises(
        TrackingError, match=r"did not take 2 parts of run .*: tags \(.*\); absent.txt \("
    ):
        tracker.finish("FINISHED")


# ------------------------------------------------------------------------------- data, provenance


@pytest.mark.req("P6")
def test_data_sets_carry_our_own_digest(uri: str) -> None:
    tracker = start_run(declaration())  # type: ignore[arg-type]
    tracker.log_dataset("train", "/data/train.parquet", "0123456789abcdef" * 4, 42, "training")
    (found,) = tracker.client.get_run(tracker.run_id).inputs.dataset_inputs
    assert found.dataset.digest == ("0123456789abcdef" * 4)[:32]
    assert json.loads(found.dataset.profile) == {"num_rows": 42, "sha256": "0123456789abcdef" * 4}
    assert {t.key: t.value for t in found.tags} == {
        "mlflow.data.context": "training",
        "sha256": "0123456789abcdef" * 4,
    }


@pytest.mark.req("P6")
def test_the_commit_is_a_tag_and_the_diff_a_file(uri: str, own_home: Path) -> None:
    tracker = start_run(declaration())  # type: ignore[arg-type]
    found = provenance(None) | {"git": {"sha": "abc123", "branch": None, "dirty": True}}
    tracker.log_provenance(found, "+changed")
    tags = tracker.client.get_run(tracker.run_id).data.tags
    assert (tags["mlflow.source.git.commit"], tags["bulkhead.git_dirty"]) == ("abc123", "true")
    folder = own_home / "mlartifacts" / tracker.run_id / "artifacts"
    assert (folder / "dirty.diff").read_text() == "+changed"
    assert json.loads((folder / "provenance.json").read_text())["git"]["sha"] == "abc123"
