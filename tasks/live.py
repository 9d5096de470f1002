"""Live progress in Prefect's UI: bars, a table of evaluations; artifacts never fail a run."""

from __future__ import annotations

import contextvars
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from prefect.artifacts import create_progress_artifact, create_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.context import FlowRunContext, TaskRunContext
from prefect.events import emit_event

from schemas.registry_records import Outcome

UPDATE_SECONDS = 2.0
CLOSE_SECONDS = 5.0  # longest wait of a step's end for its last update
log = logging.getLogger(__name__)


def publish(create: Callable[..., object], **fields: Any) -> None:
    """Create an artifact of the run; warn if Prefect fails; do nothing outside a run."""
    if not _in_a_run():
        return
    try:
        create(**fields)
    except Exception as error:  # the run matters more than its display
        log.warning("Prefect did not take the artifact %s: %s", fields.get("key"), error)


def announce_outcome(outcome: Outcome, name: str, payload: dict[str, Any]) -> None:
    """Send the event `bulkhead.model.<outcome>`; log an event that cannot be sent."""
    event = f"bulkhead.model.{outcome.replace(' ', '-')}"
    try:
        resource = {"prefect.resource.id": f"bulkhead.model.{name}", "prefect.resource.name": name}
        emit_event(event, resource=resource, payload={"name": name, "outcome": outcome, **payload})
    except Exception as error:  # the outcome does not change
        log.warning("%s could not be sent: %s", event, error)


class Live:
    """An artifact that shows its newest value, updated by its own thread.

    A missing server does not delay the run.

    Args:
        create: makes the artifact from `key`, `description` and its value.
        field: name of the value for `create`.
        key: letters, digits and dashes.
    """

    def __init__(self, create: Callable[..., Any], field: str, key: str) -> None:
        self._create, self._field, self._key = create, field, key
        self._id: UUID | None = None
        self._newest: tuple[Any, str] | None = None
        self._changed, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, value: Any, description: str) -> None:
        """Show a new value; a value that is replaced within two seconds is never sent."""
        self._newest = (value, description)
        self._changed.set()
        if self._thread is None and _in_a_run():
            context = contextvars.copy_context()
            self._thread = threading.Thread(
                target=context.run, args=(self._follow,), name=f"live-{self._key}", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Send the last value if the server answers soon."""
        self._closing.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _follow(self) -> None:
        while not self._closing.is_set():
            self._changed.wait()
            self._changed.clear()
            self._send()
            self._closing.wait(UPDATE_SECONDS)
        self._send()

    def _send(self) -> None:
        newest, self._newest = self._newest, None
        if newest is None:
            return
        value, description = newest
        try:
            if self._id is None:
                made = self._create(
                    **{self._field: value}, key=self._key, description=description, _sync=True
                )
                self._id = made if isinstance(made, UUID) else None
                return
            with get_client(sync_client=True) as client:
                data = value if isinstance(value, float) else json.dumps(value)
                client.update_artifact(self._id, ArtifactUpdate(data=data, description=description))
        except Exception as error:  # the next value tries again
            log.debug("Prefect did not take the artifact %s: %s", self._key, error)


@contextmanager
def progress(key: str) -> Iterator[Callable[[float, str], None]]:
    """Yield a function that sets a bar in Prefect's UI: the fraction done (0 to 1) and a text."""
    live = Live(create_progress_artifact, "progress", key)
    try:
        yield lambda done, text: live.show(round(100.0 * done, 1), text)
    finally:
        live.close()


@contextmanager
def table(key: str, description: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that appends a row to a table in Prefect's UI."""
    live, rows = Live(create_table_artifact, "table", key), list[dict[str, Any]]()

    def append(row: dict[str, Any]) -> None:
        rows.append(row)
        live.show(list(rows), description)

    try:
        yield append
    finally:
        live.close()


def _in_a_run() -> bool:
    return FlowRunContext.get() is not None or TaskRunContext.get() is not None
