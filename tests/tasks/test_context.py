"""End of a run: its record, MLflow and the terminal get the cause and the next step."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from schemas.errors import NonFiniteError, ResumeError, TrackingError, TrainingError
from tasks import context
from tasks.context import RunContext, await_servers, reopened, tracked, tracking_address
from tasks.embedded import EmbeddedServer
from tests.training.mlflow_home import blank_database, declaration, uri
from tests.training.runs import make_run
from training.run.record import SPEC, is_held, read

__all__ = ["blank_database", "uri"]


def end_with(error: BaseException, trained: bool = True) -> tuple[RunContext, BaseException]:
    """End a run with an error; return the run and its outcome."""
    with pytest.raises(type(error)) as caught, tracked(declaration(), "train") as run:  # type: ignore[arg-type]
        if trained:
            (run.run_dir / "checkpoints" / "step-00000012").mkdir(parents=True)
            (run.run_dir / SPEC).write_text(make_run(run.run_dir).model_dump_json())
        if "dumped" in str(error):
            (run.run_dir / "dumps").mkdir()
        assert is_held(run.run_dir)
        raise error
    assert not is_held(run.run_dir)
    return run, caught.value


@pytest.mark.req("C6")
@pytest.mark.parametrize(
    ("error", "trained", "status", "hint"),
    [
        (
            TrainingError("a rank was killed"),
            True,
            "failed",
            "Go on from the last checkpoint (step 12): bulkhead resume {run.run_id}",
        ),
        (
            KeyboardInterrupt(),
            True,
            "killed",
            "Go on from the last checkpoint (step 12): bulkhead resume {run.run_id}",
        ),
        (
            OSError("disk full"),
            True,
            "failed",
            "Go on from the last checkpoint (step 12): bulkhead resume {run.run_id}",
        ),
        (NonFiniteError("scores of val-3 are nan"), True, "failed", ""),
        (
            NonFiniteError("loss is nan, dumped"),
            True,
            "failed",
            "See where it began: bulkhead replay {run.run_dir}",
        ),
        (
            TrainingError("too early"),
            False,
            "failed",
            "Go on from the beginning (no checkpoint yet): bulkhead resume {run.run_id}",
        ),
    ],
)
def test_the_command_that_goes_on_is_named_everywhere(
    uri: str,
    own_home: Path,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    trained: bool,
    status: str,
    hint: str,
) -> None:
    run, raised = end_with(error, trained)
    expected = hint.format(run=run)
    record, tags = read(run.run_dir), run.tracker.client.get_run(run.tracker.run_id).data.tags
    assert record.status == status and str(error) in record.cause
    cause = "stopped by SIGINT" if isinstance(error, KeyboardInterrupt) else str(error)
    assert tags["bulkhead.error"] == f"{type(error).__name__}: {cause}" and tags[
        "mlflow.note.content"
    ].endswith(expected)
    assert run.tracker.client.get_run(run.tracker.run_id).info.status == status.upper()
    shown = capsys.readouterr().err
    assert expected in shown and f"should it break off: bulkhead resume {run.run_id}" in shown
    if isinstance(error, TrainingError):
        assert str(raised) == "\n".join(filter(None, [str(error), expected]))


@pytest.mark.req("C5")
def test_a_run_is_reopened_as_itself_and_only_where_it_was_tracked(
    uri: str, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = end_with(TrainingError("a rank was killed"))
    with reopened(run.run_dir) as again:
        assert (again.run_id, again.run_dir, again.tracker.run_id) == (
            run.run_id,
            run.run_dir,
            run.tracker.run_id,
        )
        assert again.declaration.name == "clinic" and read(run.run_dir).status == "running"
        assert not (run.run_dir / "error.txt").exists()
        with pytest.raises(ResumeError, match="still going"), reopened(run.run_dir):
            raise AssertionError("two at work")
    assert read(run.run_dir).status == "finished"
    assert again.tracker.client.get_run(run.tracker.run_id).info.status == "FINISHED"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{own_home}/other.db")
    with reopened(run.run_dir) as elsewhere:
        assert elsewhere.tracker.uri == uri  # where its MLflow run is
    read(run.run_dir).model_copy(update={"tracking_uri": "https://***@tracking.example"}).write(
        run.run_dir
    )
    with (
        pytest.raises(
            ResumeError,
            match=(
                r"was tracked at https://\*\*\*@tracking.example, now the address is"
                r" sqlite:///.*other.db"
            ),
        ),
        reopened(run.run_dir),
    ):
        raise AssertionError("another server")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://ann:pw@tracking.example")
    assert tracking_address(run.run_dir, read(run.run_dir)) == "https://ann:pw@tracking.example"


@pytest.mark.req("C5")
def test_other_code_than_at_the_start_is_told(
    uri: str, own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = end_with(TrainingError("a rank was killed"))
    read(run.run_dir).model_copy(update={"commit": "0" * 40}).write(run.run_dir)
    with reopened(run.run_dir):
        pass
    assert f"the run was started at {'0' * 40}: its end may differ" in capsys.readouterr().err


@pytest.mark.req("S3")
def test_a_run_waits_for_a_server_that_is_away_but_not_for_ever(
    uri: str, own_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "AWAY_SECONDS", 0.3)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with tracked(declaration(), "train") as run:  # type: ignore[arg-type]
        await_servers(run)
        assert "waiting" not in capsys.readouterr().err
        monkeypatch.setattr(run.tracker, "uri", "http://127.0.0.1:9")
        began = time.monotonic()
        with pytest.raises(TrackingError, match="did not come back within 0 minutes"):
            await_servers(run)
        assert 0.3 <= time.monotonic() - began < 5
        assert capsys.readouterr().err.count("the run goes on when the server is back") == 1
        monkeypatch.setattr(run.tracker, "uri", uri)
        with (
            temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
            pytest.raises(TrackingError, match=r"Prefect at .* did not come back"),
        ):
            await_servers(run)
        assert "Prefect at http://127.0.0.1:9/api does not answer" in capsys.readouterr().err


def test_only_the_address_of_its_own_server_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = object.__new__(EmbeddedServer)  # no server is needed to compare addresses
    own.port = 4201
    for running in (None, own):
        monkeypatch.setattr(EmbeddedServer, "running", running)
        assert EmbeddedServer.is_own(None)
        assert not EmbeddedServer.is_own("http://127.0.0.1:9/api")
        assert EmbeddedServer.is_own("http://127.0.0.1:4201/api/") == (running is own)


@pytest.mark.req("S3")
def test_a_server_that_is_gone_for_good_is_waited_for_once_and_the_run_can_be_resumed(
    uri: str, own_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "AWAY_SECONDS", 0.3)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with (
        pytest.raises(TrackingError, match=r"(?s)did not come back.*bulkhead resume"),
        tracked(declaration(), "train") as run,
    ):  # type: ignore[arg-type]
        monkeypatch.setattr(run.tracker, "uri", "http://127.0.0.1:9")
        await_servers(run)
    assert capsys.readouterr().err.count("the run goes on when the server is back") == 1
    assert read(run.run_dir).status == "failed" and "did not come back" in read(run.run_dir).cause
