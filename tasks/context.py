"""Life cycle of a run: its directory, MLflow run, links and end.

The parent sets the status: FINISHED, FAILED with the cause as a tag, or KILLED after a
cancellation.
"""

from __future__ import annotations

import os
import secrets
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_link_artifact
from prefect.client.orchestration import get_client
from prefect.exceptions import MissingContextError, ObjectNotFound
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL
from prefect.states import Crashed

from schemas.allowed_imports import require_allowed
from schemas.config import Declaration
from schemas.digest import write_atomic
from schemas.errors import (
    BulkheadError,
    ConfigError,
    DataError,
    NonFiniteError,
    PreflightError,
    ResumeError,
    TrackingError,
)
from schemas.home import home
from schemas.records import Prepared, RunSpec, digest_of
from schemas.seal import write_sealed
from tasks.claim import running_servers
from tasks.embedded import EmbeddedServer
from tasks.live import publish
from tasks.say import phases, say
from tasks.stop import listening, reason, stopped, take
from tasks.turns import turn
from training.evaluation.yardstick_class import require_yardsticks
from training.launch.stop_signal import follow_parent
from training.run.provenance import dirty_diff, masked, provenance
from training.run.record import (
    DECLARED,
    PREPARED,
    RESUMED,
    SPEC,
    Kind,
    StartedRun,
    Status,
    held,
    newest_step,
    read,
    started_declaration,
)
from training.tracking.mlflow import Status as EndStatus
from training.tracking.mlflow import (
    Tracker,
    config_text,
    default_tracking_uri,
    probe,
    reopen_run,
    start_run,
)
from training.tracking.tensorboard import require_installed

ERROR, DUMPS = "error.txt", "dumps"
WORKER = "BULKHEAD_WORKER"  # process id of the Prefect worker that started this flow run
AWAY_SECONDS, LOOK_SECONDS = 600.0, 5.0
WORKER_GRACE_SECONDS = 25.0  # for the checkpoint, and for reports to MLflow and Prefect
MLFLOW_UI, PREFECT_UI = "http://127.0.0.1:5000", "http://127.0.0.1:4200"
ROOT = Path(__file__).resolve().parent.parent


class RunContext:
    """One run: id, directory, MLflow run, Prefect flow run and origin of its code."""

    def __init__(
        self,
        declaration: Declaration,
        run_id: str,
        run_dir: Path,
        tracker: Tracker,
        flow_run_id: str | None,
    ) -> None:
        self.declaration, self.run_id, self.run_dir, self.tracker, self.flow_run_id = (
            declaration,
            run_id,
            run_dir,
            tracker,
            flow_run_id,
        )
        self.ends_as: EndStatus = "FINISHED"  # a failed trial does not fail its search
        self.started = datetime.now(UTC)
        self.experiment_id: str = tracker.client.get_run(tracker.run_id).info.experiment_id
        self.provenance: dict[str, Any] = provenance(ROOT)

    @property
    def tracking_uri(self) -> str:
        """Address of the tracking server, credentials masked."""
        return masked(self.tracker.uri)

    @property
    def mlflow_url(self) -> str:
        """Address of the run in MLflow's UI: the tracking server's, this home's, or that of
        `bulkhead up`.
        """
        ours = running_servers()
        base = (
            self.tracker.uri
            if self.tracker.uri.startswith("http")
            else ours.mlflow
            if ours
            else MLFLOW_UI
        )
        run = f"#/experiments/{self.experiment_id}/runs/{self.tracker.run_id}"
        return f"{masked(base).rstrip('/')}/{run}"

    @property
    def prefect_url(self) -> str | None:
        """Address of the flow run in Prefect's UI."""
        api = PREFECT_API_URL.value()
        base = PREFECT_UI_URL.value() or (
            api.rstrip("/").removesuffix("/api") if api else PREFECT_UI
        )
        return (
            f"{str(base).rstrip('/')}/runs/flow-run/{self.flow_run_id}"
            if self.flow_run_id
            else None
        )

    @property
    def links(self) -> dict[str, str]:
        """Names to addresses, for the report."""
        found = {
            "MLflow tracking": self.tracking_uri,
            "MLflow run": self.mlflow_url,
            "Prefect flow run": self.prefect_url,
            "Run directory": str(self.run_dir),
        }
        return {name: address for name, address in found.items() if address}

    def spec(self, prepared: Prepared) -> RunSpec:
        """Return all inputs of the training program; written as `resolved.json`."""
        written = write_sealed(self.run_dir / PREPARED, prepared.model_dump_json(indent=1))
        spec = RunSpec(
            run_id=self.run_id,
            name=self.declaration.name,
            declaration=self.declaration.model_dump(mode="json", by_alias=True),
            spec=prepared.validated.spec,
            statistics=prepared.statistics,
            arrays=prepared.arrays,
            raw_rows=prepared.validated.raw_rows,
            prepared_sha256=written.sha256,
            init=prepared.init,
        )
        write_sealed(self.run_dir / SPEC, spec.model_dump_json(indent=1))
        return spec


@contextmanager
def tracked(declaration: Declaration, kind: Kind) -> Iterator[RunContext]:
    """Open a run when it is its model's turn; always report its end to MLflow.

    Args:
        declaration: declaration of the run.
        kind: name of the flow, stored as a tag.

    Raises:
        ConfigError: TensorBoard is declared and not installed, the model's package is not allowed,
            or a yardstick cannot be used.
        TrackingError: the tracking server could not be reached at the start, or lacks part of a
            finished run.
    """
    require_installed(declaration.tracking)
    require_allowed(declaration.model)
    if kind != "reevaluate":  # which compares the model with itself
        require_yardsticks(declaration)
    registers = kind == "pipeline" and declaration.register_.enabled
    with (
        listening(),
        turn(declaration.name, registers) if kind != "reevaluate" else nullcontext(),
        _opened(declaration, kind) as run,
    ):
        yield run


@contextmanager
def _opened(declaration: Declaration, kind: Kind) -> Iterator[RunContext]:
    run_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    run_dir = home() / "runs" / declaration.name / run_id
    tags = {
        "bulkhead.flow": kind,
        "bulkhead.run_dir": str(run_dir),
        "bulkhead.config_sha256": digest_of(declaration),
    }
    tracker = start_run(declaration, flow_run_id=_flow_run_id(), tags=tags, name=run_id)
    run_dir.mkdir(parents=True)
    with held(run_dir):
        _follow_worker()
        run = RunContext(declaration, run_id, run_dir, tracker, _flow_run_id())
        text = declaration.model_dump_json(by_alias=True, indent=1)
        # before the record: a run with a record can be resumed
        declared = write_sealed(run_dir / DECLARED, text)
        StartedRun(
            run_id=run_id,
            name=declaration.name,
            kind=kind,
            tracking_uri=run.tracking_uri,
            mlflow_run_id=tracker.run_id,
            flow_run_ids=tuple(filter(None, [run.flow_run_id])),
            commit=run.provenance["git"]["sha"],
            created=run.started.isoformat(),
            declaration_sha256=declared.sha256,
        ).write(run_dir)
        write_atomic(run_dir / "config.yaml", config_text(declaration))
        tracker.log_provenance(run.provenance, dirty_diff(ROOT))
        _link(run)
        again = (
            f"should it break off: {resume_command(run)}"
            if kind in RESUMED
            else "should it break off, start it again: prepared data are reused"
        )
        say("run", f"{run_id}; {again}", "info")
        with _ending(run):
            yield run


@contextmanager
def reopened(run_dir: Path) -> Iterator[RunContext]:
    """Reopen an interrupted, killed or failed run: same id, directory, MLflow run and declaration.

    Raises:
        ResumeError: another process works on it or has ended it, or its tracking address contains a
            password and has changed.
        TrackingError: the tracking server could not be reached, or lacks the run or part of it.
    """
    before, declaration = read(run_dir), started_declaration(run_dir)
    registers = before.kind == "pipeline" and declaration.register_.enabled
    with listening(), turn(declaration.name, registers), held(run_dir):
        _follow_worker()
        started = read(run_dir)
        if started.status == "finished" != before.status:
            raise ResumeError(
                f"{run_dir}: another process brought the run to its end meanwhile: nothing to do"
            )
        require_installed(declaration.tracking)
        tracker = reopen_run(
            tracking_address(run_dir, started), started.mlflow_run_id, _flow_run_id()
        )
        run = RunContext(declaration, started.run_id, run_dir, tracker, _flow_run_id())
        (run_dir / ERROR).unlink(missing_ok=True)
        if started.flow_run_ids:
            _mark_crashed(started.flow_run_ids[-1], run)
        ids = (*started.flow_run_ids, *filter(None, [run.flow_run_id]))
        started.model_copy(update={"status": "running", "cause": "", "flow_run_ids": ids}).write(
            run_dir
        )
        _link(run)
        step = newest_step(run_dir)
        place = (
            f"from the newest checkpoint that verifies (step {step})"
            if step
            else "with the trials that are left"
            if started.kind == "search"
            else "from its beginning"
        )
        say("resume", f"{run.run_id}, {place}", "info")
        commit = run.provenance["git"]["sha"]
        if commit != started.commit:
            say(
                "resume",
                f"the code is at {commit}, the run was started at {started.commit}: its end may"
                " differ from that of an undisturbed run",
                "warn",
            )
        with _ending(run):
            yield run


def _mark_crashed(flow_run_id: str, run: RunContext) -> None:
    """End a flow run that was killed.

    Otherwise Prefect shows it as running and counts it against limits.
    """
    with get_client(sync_client=True) as client:
        try:
            state = client.read_flow_run(UUID(flow_run_id)).state
        except ObjectNotFound:  # it belongs to another server
            return
        if state is not None and state.is_running():
            client.set_flow_run_state(
                UUID(flow_run_id),
                Crashed(message=f"killed; the run was resumed by flow run {run.flow_run_id}"),
                force=True,
            )


def tracking_address(run_dir: Path, started: StartedRun) -> str:
    """Return the tracking address of a run's start; its MLflow run exists only there.

    Raises:
        ResumeError: the recorded address has its password masked, and the current one is different.
    """
    if "***" not in started.tracking_uri:
        return started.tracking_uri
    uri = default_tracking_uri(started_declaration(run_dir))
    if masked(uri) != started.tracking_uri:
        raise ResumeError(
            f"{run_dir}: the run was tracked at {started.tracking_uri}, now the address is"
            f" {masked(uri)}; set MLFLOW_TRACKING_URI as then"
        )
    return uri


def resume_command(run: RunContext | StartedRun) -> str:
    """Return the command that continues the run."""
    return f"bulkhead resume {run.run_id}"


def _follow_worker() -> None:
    """End a flow run with a checkpoint when its worker is gone: nobody could cancel it any more."""
    if os.environ.get("PREFECT__FLOW_RUN_ID") and os.getppid() > 1:
        os.environ[WORKER] = str(os.getppid())
        follow_parent(WORKER, WORKER_GRACE_SECONDS)


def _flow_run_id() -> str | None:
    return str(flow_run.id) if flow_run.id else None


@contextmanager
def _ending(run: RunContext) -> Iterator[None]:
    """Report the end of the run to `run.json` and MLflow, and how to continue to the user."""
    try:
        with phases(read(run.run_dir).kind):
            yield
    except BaseException as raised:
        take()
        error = stopped(raised)
        hint = _hint(run, error)
        _failed(run, error, hint)
        if hint and isinstance(error, BulkheadError):
            # Prefect shows only the message of a failed run
            raise type(error)(f"{error}\n{hint}") from error
        if error is not raised:
            raise error from raised
        raise
    try:
        await_servers(run)
        run.tracker.finish("FINISHED")
    except TrackingError as away:
        _record_end(run, "failed", str(away))
        raise TrackingError(f"{away}\nSend the rest: {resume_command(run)}") from away
    _record_end(run, "finished")


def _hint(run: RunContext, error: BaseException) -> str:
    """Describe how to continue the run; empty if the same error would happen again."""
    if isinstance(error, NonFiniteError) and (run.run_dir / DUMPS).is_dir():
        return f"See where it began: bulkhead replay {run.run_dir}"
    if isinstance(error, ConfigError | DataError | PreflightError | NonFiniteError):
        return ""
    return resume_hint(read(run.run_dir), run.run_dir)


def await_servers(run: RunContext) -> None:
    """Wait at most ten minutes for a missing server, so that hours of training are not lost.

    The steps after training need both servers. Prefect asks its server for a slot for each task
    with tags, and fails the task without an answer.

    Raises:
        TrackingError: a server is still missing; the run ends, and `bulkhead resume` continues it
            here.
    """
    why = probe(run.tracker.uri) or _prefect_is_away()
    if not why:
        return
    say(
        "servers",
        f"{why}; the run goes on when the server is back (waiting {AWAY_SECONDS / 60:.0f} minutes"
        " at most)",
        "warn",
    )
    deadline = time.monotonic() + AWAY_SECONDS
    while time.monotonic() < deadline:
        time.sleep(min(LOOK_SECONDS, AWAY_SECONDS))
        why = probe(run.tracker.uri) or _prefect_is_away()
        if not why:
            return
    raise TrackingError(f"{why}, and did not come back within {AWAY_SECONDS / 60:.0f} minutes")


def _prefect_is_away() -> str:
    """Return why Prefect's server does not answer; empty if it does, or if it is the run's own."""
    address = PREFECT_API_URL.value()
    if address is None or EmbeddedServer.is_own(address):
        return ""
    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/health", timeout=10):  # noqa: S310 - the user's own setting
            return ""
    except (OSError, HTTPException) as error:
        return f"Prefect at {masked(address)} does not answer ({error})"


def resume_hint(started: StartedRun, run_dir: Path) -> str:
    """Describe to a person how to continue an interrupted run."""
    if started.kind not in RESUMED:
        return "Start it again: prepared data are reused"
    if started.kind == "search":
        return f"Go on with the trials that are left: {resume_command(started)}"
    step = newest_step(run_dir)
    place = (
        f"Go on from the last checkpoint (step {step:,})"
        if step
        else "Go on from the beginning (no checkpoint yet)"
    )
    return f"{place}: {resume_command(started)}"


def _record_end(run: RunContext, status: Status, cause: str = "") -> None:
    read(run.run_dir).model_copy(update={"status": status, "cause": masked(cause)}).write(
        run.run_dir
    )


def _failed(run: RunContext, error: BaseException, hint: str) -> None:
    """Record the cause and the outputs of the run, then end it; never hide the original error."""
    cause = (
        f"{type(error).__name__}: {str(error) or f'stopped by {reason()}'}"
        if reason()
        else f"{type(error).__name__}: {error}"
    )
    killed = not isinstance(error, Exception)
    write_atomic(run.run_dir / ERROR, f"{cause}\n{hint}\n")
    _record_end(run, "killed" if killed else "failed", cause)
    run.tracker.set_tags({"bulkhead.error": cause, "mlflow.note.content": f"{cause}\n\n{hint}"})
    for name in (ERROR, "train.log", "metrics.jsonl"):
        if (run.run_dir / name).is_file():
            run.tracker.log_artifact(run.run_dir / name)
    if (run.run_dir / DUMPS).is_dir():
        run.tracker.log_folder(run.run_dir / DUMPS, DUMPS)
    try:
        run.tracker.finish("KILLED" if killed else "FAILED")
    except TrackingError as away:
        say("tracking", str(away), "warn")
    if isinstance(error, BulkheadError):
        say("failed", cause.splitlines()[0], "fail")
    if hint:
        say("", hint, "info")


def _link(run: RunContext) -> None:
    """Link Prefect and MLflow to each other."""
    if run.prefect_url is None:
        return
    run.tracker.set_tags({"bulkhead.prefect_url": run.prefect_url})
    text = f"MLflow run {run.tracker.run_id}"
    link = {"key": "mlflow-run", "link": run.mlflow_url, "link_text": text}
    link["description"] = "Configuration, metrics, checks, report, model."
    publish(create_link_artifact, **link)
    with suppress(MissingContextError):
        get_run_logger().info("%s at %s", text, run.mlflow_url)
