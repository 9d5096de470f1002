"""MLflow record of a run: one run, written by one process, never stopped by a missing server.

`start_run` must reach the server, so problems appear in the first minute. After that nothing here
raises during training: rejected data is stored and sent again at the next call and at the end.
Metrics are not stored: `metrics.jsonl` is their buffer, and a step that the server already has is
not sent twice.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import yaml
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, Experiment, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from pydantic import BaseModel

from schemas.config import Declaration
from schemas.confinement import require_store
from schemas.errors import TrackingError
from schemas.home import home
from schemas.variables import expand
from training.run.provenance import masked
from training.tracking.metric_lines import metric_batches

log = logging.getLogger(__name__)
# setting up a database logs a hundred lines, and we report errors ourselves
for _noisy in ("alembic", "mlflow.store.db.utils"):
    logging.getLogger(_noisy).setLevel(logging.CRITICAL)

Status = Literal["FINISHED", "FAILED", "KILLED"]
FLOW_TAG = "bulkhead.flow_run_id"
MAX_METRICS, MAX_PARAMS = 1000, 100  # limits of MLflow per request
MAX_PARAM_LENGTH = 6000
MAX_TAG_LENGTH = 8000
DIGEST_LENGTH = 32  # of 36 characters that MLflow keeps; the whole SHA-256 is logged as a tag
# between two attempts at a missing server, so that waiting does not fill the run
RETRY_SECONDS = 30.0
# MLflow's defaults wait for minutes and print addresses with passwords; the user's settings stay
SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
for _variable, _value in SETTINGS.items():
    os.environ.setdefault(_variable, _value)
SQLITE = "sqlite:///"


# ------------------------------------------------------------------------------------------- where


def default_tracking_uri(declaration: Declaration | None) -> str:
    """Return the declared address, else MLFLOW_TRACKING_URI, else a SQLite file in the Bulkhead
    home.

    Paths are made absolute.
    """
    declared = declaration.tracking.uri if declaration else None
    uri = (
        expand(declared, secrets=True)
        if declared
        else os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{home() / 'mlflow.db'}"
    )
    if uri.startswith(SQLITE):
        uri = SQLITE + str(Path(uri.removeprefix(SQLITE)).absolute())
    elif not re.match(r"[\w+.-]+:", uri):
        uri = Path(uri).absolute().as_uri()
    if declared:
        require_store(uri)
    return uri


def probe(uri: str) -> str:
    """Return why the server at an address cannot be used, credentials masked; empty if it can."""
    try:
        with _alone(uri):
            MlflowClient(tracking_uri=uri, registry_uri=uri).search_experiments(max_results=1)
    except Exception as error:  # any error is the answer
        return masked(_first_line(error))
    return ""


@contextmanager
def reached(uri: str, doing: str) -> Iterator[None]:
    """Turn any error of a server into a `TrackingError` that names the (masked) address.

    Raises:
        TrackingError: the server cannot be reached, or refuses.
    """
    try:
        yield
    except TrackingError:
        raise
    except Exception as error:
        raise TrackingError(
            f"MLflow at {masked(uri)} could not be used while {doing}:"
            f" {masked(_first_line(error))}; start the server, or set tracking.uri (unset, a local"
            " file is used)"
        ) from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:500]


@contextmanager
def _alone(uri: str) -> Iterator[None]:
    """Lock while a SQLite database may be created: two runs that start at once would both set it
    up.
    """
    if not uri.startswith(SQLITE):
        yield
        return
    database = Path(uri.removeprefix(SQLITE))
    database.parent.mkdir(parents=True, exist_ok=True)
    with open(database.with_name(f".{database.name}.lock"), "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _experiment(client: MlflowClient, name: str, uri: str) -> str:
    """Return the id of the experiment; create it when absent, next to a local database."""
    found: Experiment | None = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage == "deleted":
        raise TrackingError(
            f"experiment {name!r} was deleted; restore it (mlflow experiments restore -x"
            f" {found.experiment_id}) or set tracking.experiment to another name"
        )
    if found is not None:
        return str(found.experiment_id)
    location = (
        (Path(uri.removeprefix(SQLITE)).parent / "mlartifacts").as_uri()
        if uri.startswith(SQLITE)
        else None
    )
    try:
        return str(client.create_experiment(name, artifact_location=location))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        return str(client.get_experiment_by_name(name).experiment_id)


def start_run(
    declaration: Declaration,
    uri: str | None = None,
    flow_run_id: str | None = None,
    tags: Mapping[str, str] | None = None,
    name: str | None = None,
) -> Tracker:
    """Start a new run, or continue the run that the same flow run started before (after a retry).

    Args:
        declaration: logged as parameters and complete as `config.yaml`, with credentials masked.
        uri: address of the server; default: `default_tracking_uri`.
        flow_run_id: Prefect's id; stored as a tag that finds a killed run.
        tags: added to those of `tracking.tags`.
        name: name of the run; default: one that MLflow creates.

    Raises:
        TrackingError: the server cannot be reached or refuses.
    """
    address = uri or default_tracking_uri(declaration)
    with reached(address, "starting a run"), _alone(address):
        client = MlflowClient(tracking_uri=address, registry_uri=address)
        experiment = _experiment(
            client, declaration.tracking.experiment or declaration.name, address
        )
        tracker = Tracker(
            address,
            _earlier(client, experiment, flow_run_id)
            or client.create_run(experiment, run_name=name).info.run_id,
        )
        client.update_run(tracker.run_id, status="RUNNING")
    tracker.set_tags(
        {
            **declaration.tracking.tags,
            **(tags or {}),
            **({FLOW_TAG: flow_run_id} if flow_run_id else {}),
        }
    )
    tracker.log_declaration(declaration)
    return tracker


def reopen_run(uri: str, run_id: str, flow_run_id: str | None = None) -> Tracker:
    """Reopen a run that ended or was killed, so that its metrics have one history.

    Raises:
        TrackingError: the server cannot be reached, refuses, or the run was deleted.
    """
    with reached(uri, f"going on with run {run_id}"):
        tracker = Tracker(uri, run_id)
        found = tracker.client.get_run(run_id)
        if found.info.lifecycle_stage == "deleted":
            raise TrackingError(
                f"MLflow run {run_id} was deleted; restore it (mlflow runs restore --run-id"
                f" {run_id}), or start again"
            )
        tracker.client.update_run(run_id, status="RUNNING")
        for tag in {"bulkhead.error", "mlflow.note.content"} & found.data.tags.keys():
            tracker.client.delete_tag(run_id, tag)
    tracker.set_tags({FLOW_TAG: flow_run_id} if flow_run_id else {})
    return tracker


def _earlier(client: MlflowClient, experiment: str, flow_run_id: str | None) -> str | None:
    """Return the id of the run that a flow run has already started."""
    if flow_run_id is None:
        return None
    found = client.search_runs(
        [experiment],
        filter_string=f"tags.`{FLOW_TAG}` = '{re.sub('[^-0-9A-Za-z]', '', flow_run_id)}'",
        max_results=1,
    )
    return str(found[0].info.run_id) if found else None


# --------------------------------------------------------------------------------------- parameters


def flatten(section: BaseModel, prefix: str = "") -> dict[str, str]:
    """Return each value of the declaration by its dotted path; mappings of a user as JSON. Masked.

    >>> from schemas.config import TrackingConfig
    >>> flatten(TrackingConfig(uri="http://ann:pw@host"))["uri"]
    'http://***@host'
    """
    found: dict[str, str] = {}
    for field, info in type(section).model_fields.items():
        value, path = getattr(section, field), prefix + (info.alias or field)
        if isinstance(value, BaseModel):
            found |= flatten(value, f"{path}.")
        elif dumped := section.model_dump(mode="json", include={field}, by_alias=False):
            plain = dumped[field]
            found[path] = masked(
                plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
            )[:MAX_PARAM_LENGTH]
    return found


def config_text(declaration: Declaration) -> str:
    """Return the whole declaration as YAML, credentials masked."""
    return masked(
        yaml.safe_dump(
            declaration.model_dump(mode="json", by_alias=True), sort_keys=False, allow_unicode=True
        )
    )


# --------------------------------------------------------------------------------------------- run


class Tracker:
    """One MLflow run. After construction only `finish` raises because of the server.

    Args:
        uri: absolute address of the server; shown only masked.
        run_id: id of an existing run; another tracker can be created for it at any time.
    """

    def __init__(self, uri: str, run_id: str) -> None:
        self.uri, self.run_id = uri, run_id
        self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        self._pending: deque[tuple[str, Callable[[], object]]] = deque()
        self._refused: list[str] = []
        self._behind: dict[Path, int] = {}
        self._inodes: dict[Path, int] = {}
        self._steps: dict[str, int] | None = None
        self._retry_at = 0.0

    def __repr__(self) -> str:
        return f"Tracker({masked(self.uri)!r}, run_id={self.run_id!r})"

    # ---- numbers

    def forward_metrics(self, path: Path, offset: int = 0) -> int:
        """Send complete lines of `metrics.jsonl` from a byte offset; return the next offset.

        An incomplete line is left. A file that was rewritten (a resumed run drops lines of steps
        that it repeats) is read from its start. Steps of a metric that the server has are not sent
        again. Values of steps go under `step/`, so that a chart of `train/loss` next to `val/loss`
        shows evaluations only.
        """
        self._flush()
        if time.monotonic() < self._retry_at:
            self._behind[path] = offset
            return offset
        try:
            offset = self._start_of(path, offset)
            if self._steps is None:
                self._steps = self._steps_on_server()
            for metrics, end in metric_batches(path, offset, MAX_METRICS):
                new = [Metric(*m) for m in metrics if m.step > self._steps.get(m.key, -1)]
                if new:
                    self.client.log_batch(self.run_id, metrics=new)
                self._steps |= {m.key: m.step for m in new}
                offset = end
            self._behind.pop(path, None)
        except Exception as error:  # training continues after any server or network error
            # the server may have all of them: ask again before sending again
            self._behind[path], self._steps = (offset, None)
            self._warn("metrics", error)
        return offset

    def log_metrics(self, values: Mapping[str, float | None], step: int = 0) -> None:
        """Send figures at once, e.g. `test/auroc`, except None and those that the server has.

        A resumed run measures again.
        """
        metrics = [
            Metric(key, float(value), _milliseconds(), step)
            for key, value in values.items()
            if value is not None
        ]
        for part in _parts(metrics, MAX_METRICS):
            self._send("metrics", partial(self._log_new, part))

    def _log_new(self, metrics: list[Metric]) -> None:
        """Send figures whose value the server does not have at their step."""
        keys = self.client.get_run(self.run_id).data.metrics.keys() & {m.key for m in metrics}
        held = {
            (m.key, m.step, repr(m.value))
            for key in keys
            for m in self.client.get_metric_history(self.run_id, key)
        }  # texts: NaN equals itself
        if new := [m for m in metrics if (m.key, m.step, repr(m.value)) not in held]:
            self.client.log_batch(self.run_id, metrics=new)

    # ---- words

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run, credentials masked."""
        found = [RunTag(key, masked(str(value))[:MAX_TAG_LENGTH]) for key, value in tags.items()]
        for part in _parts(found, MAX_PARAMS):
            self._send("tags", partial(self.client.log_batch, self.run_id, tags=part))

    def log_declaration(self, declaration: Declaration) -> None:
        """Log parameters for comparing runs in the UI, and all of it as `config.yaml`."""
        params = [Param(key, value) for key, value in flatten(declaration).items()]
        for part in _parts(params, MAX_PARAMS):
            self._send("parameters", partial(self.client.log_batch, self.run_id, params=part))
        self.log_text("config.yaml", config_text(declaration))

    def log_provenance(self, found: dict[str, Any], diff: str = "") -> None:
        """Log `provenance.json`, tags of the commit, and uncommitted changes as `dirty.diff`."""
        git = found.get("git", {})
        commit = {
            "mlflow.source.git.commit": git.get("sha"),
            "mlflow.source.git.branch": git.get("branch"),
            "bulkhead.git_dirty": git.get("dirty"),
        }
        self.set_tags(
            {
                key: str(value).lower() if isinstance(value, bool) else value
                for key, value in commit.items()
                if value is not None
            }
        )
        self.log_json("provenance.json", found)
        if diff:
            self.log_text("dirty.diff", diff)

    def log_dataset(self, name: str, uri: str, sha256: str, rows: int, context: str) -> None:
        """Log a data set by our own digest: MLflow's depends on row order and samples rows.

        Args:
            name: its name, e.g. `source` or `train`.
            uri: its address; credentials are masked.
            sha256: digest of its bytes.
            rows: number of rows; -1 for unknown.
            context: `source`, `training`, `validation` or `testing`.
        """
        place, profile = (
            json.dumps({"uri": masked(uri)}),
            json.dumps({"num_rows": rows, "sha256": sha256}),
        )
        entity = Dataset(
            name=name,
            digest=sha256[:DIGEST_LENGTH],
            source_type="uri",
            source=place,
            profile=profile,
        )
        found = DatasetInput(
            entity, [InputTag("mlflow.data.context", context), InputTag("sha256", sha256)]
        )
        self._send(
            f"data set {name}", lambda: self.client.log_inputs(self.run_id, datasets=[found])
        )

    # ---- files

    def log_record(self, path: str, record: BaseModel) -> None:
        """Log a record as a JSON artifact."""
        self.log_json(path, record.model_dump(mode="json"))

    def log_json(self, path: str, value: Any) -> None:
        """Log a JSON-able value as an artifact at a path such as `evaluation/test.json`."""
        self.log_text(path, json.dumps(value, indent=1, ensure_ascii=False))

    def log_text(self, path: str, text: str) -> None:
        """Log a text as an artifact."""
        self._send(path, lambda: self.client.log_text(self.run_id, text, path))

    def log_artifact(self, file: Path, folder: str | None = None) -> None:
        """Log a file as an artifact, with its content when the server accepts it."""
        self._send(file.name, lambda: self.client.log_artifact(self.run_id, str(file), folder))

    def log_folder(self, folder: Path, path: str | None = None) -> None:
        """Log a folder of files as artifacts."""
        self._send(folder.name, lambda: self.client.log_artifacts(self.run_id, str(folder), path))

    # ---- the end

    def finish(self, status: Status) -> None:
        """Send the rest and end the run.

        Raises:
            TrackingError: something was still not accepted; all of it is in the run directory.
        """
        self._retry_at = 0.0
        for path, offset in list(self._behind.items()):
            self.forward_metrics(path, offset)
        self._send("status", lambda: self.client.set_terminated(self.run_id, status))
        left = [
            *self._refused,
            *(what for what, _ in self._pending),
            *(str(path) for path in self._behind),
        ]
        if left:
            raise TrackingError(
                f"MLflow at {masked(self.uri)} did not take {len(left)} parts of run {self.run_id}:"
                f" {'; '.join(left[:5])}{'; …' if len(left) > 5 else ''}; training itself is"
                " complete and its files lie in the run directory: start the server and run again"
            )

    # ---- sending

    def _send(self, what: str, action: Callable[[], object]) -> None:
        self._pending.append((what, action))
        self._flush()

    def _flush(self) -> None:
        """Send pending data in order; pause if the server is missing.

        Requests that it refuses for good are set aside.
        """
        while self._pending and time.monotonic() >= self._retry_at:
            what, action = self._pending[0]
            try:
                action()
            except Exception as error:  # training continues after any server or network error
                self._warn(what, error)
                if not _is_refusal(error):
                    return
                self._refused.append(f"{what} ({masked(_first_line(error))})")
            self._pending.popleft()

    def _warn(self, what: str, error: Exception) -> None:
        self._retry_at = 0.0 if _is_refusal(error) else time.monotonic() + RETRY_SECONDS
        log.warning("MLflow did not take %s: %s", what, masked(_first_line(error)))

    def _start_of(self, path: Path, offset: int) -> int:
        """Return the offset, or 0 if the file at the path is another one than before."""
        status = path.stat()
        same = (
            self._inodes.setdefault(path, status.st_ino) == status.st_ino
            and offset <= status.st_size
        )
        self._inodes[path] = status.st_ino
        return offset if same else 0

    def _steps_on_server(self) -> dict[str, int]:
        """Return the last step of each metric that the server has of this run."""
        keys = self.client.get_run(self.run_id).data.metrics
        return {
            key: max(m.step for m in self.client.get_metric_history(self.run_id, key))
            for key in keys
        }


def _is_refusal(error: Exception) -> bool:
    """Return True if sending the same again can never help."""
    if isinstance(error, MlflowException):
        return error.error_code in (
            "INVALID_PARAMETER_VALUE",
            "BAD_REQUEST",
            "RESOURCE_DOES_NOT_EXIST",
            "RESOURCE_ALREADY_EXISTS",
        )
    return isinstance(error, FileNotFoundError | TypeError)


def _parts(items: list[Any], size: int) -> Iterable[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000
