"""Schema of `deployments/prefect.yaml`: the keys of Prefect's format that this project uses."""

from __future__ import annotations

import difflib
import re
import types
import typing
import zoneinfo
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from schemas.errors import ConfigError
from schemas.section import Section

Parameters = dict[str, Any]
# IANA zones whose names are like those of a place
FIXED = {"EST": "America/New_York", "MST": "America/Denver"}


def _known_zone(name: str) -> str:
    if name in FIXED:
        raise ValueError(
            f"{name!r} has no daylight saving time, so that runs move by an hour in summer;"
            f" expected a place such as {FIXED[name]!r}"
        )
    if name not in zoneinfo.available_timezones():
        close = difflib.get_close_matches(name, zoneinfo.available_timezones(), n=1)
        raise ValueError(
            f"{name!r} is no time zone of the IANA database"
            + (f"; did you mean {close[0]!r}?" if close else ", e.g. Europe/Berlin or UTC")
        )
    return name


class ConcurrencySpec(Section):
    """How many runs of a deployment may be at work, and what becomes of one too many."""

    limit: int = Field(1, ge=1)
    collision_strategy: Literal["ENQUEUE", "CANCEL_NEW"] = "ENQUEUE"
    grace_period_seconds: int = Field(90, ge=60, le=86400)


class WorkPoolSpec(Section):
    """Who starts the runs, and what the pool's job template is given."""

    name: str
    work_queue_name: str | None = None
    job_variables: dict[str, Any] = {}


class ScheduleSpec(Section):
    """When a run is started; the time zone is asked for because without one the hour moves with the
    seasons.
    """

    cron: str
    timezone: Annotated[str, AfterValidator(_known_zone)]
    active: bool = True
    slug: str | None = None
    day_or: bool = True
    parameters: Parameters = {}


class TriggerSpec(Section):
    """An event that starts a run; parameters may be templates of it."""

    name: str | None = None
    description: str | None = None
    enabled: bool = True
    type: Literal["event"] = "event"
    match: dict[str, Any] = {}
    match_related: dict[str, Any] = {}
    expect: list[str] = []
    after: list[str] = []
    for_each: list[str] = []
    posture: Literal["Reactive", "Proactive"] = "Reactive"
    threshold: int = Field(1, ge=1)
    within: int = Field(0, ge=0)
    schedule_after: int = Field(0, ge=0)
    parameters: Parameters = {}


class DeploymentSpec(Section):
    """One deployment of a flow."""

    name: str = Field(pattern=r"^[\w.-]+$")
    description: str
    entrypoint: str
    tags: list[str] = []
    parameters: Parameters = {}
    work_pool: WorkPoolSpec
    concurrency_limit: ConcurrencySpec | None = None
    schedules: list[ScheduleSpec] = []
    triggers: list[TriggerSpec] = []
    paused: bool = False

    @model_validator(mode="after")
    def _flow_of_ours(self) -> DeploymentSpec:
        if not re.fullmatch(r"flows/\w+\.py:\w+", self.entrypoint):
            raise ValueError(
                f"entrypoint {self.entrypoint!r}: expected a flow of this project,"
                " flows/FILE.py:FLOW"
            )
        return self


class DeploymentsFile(Section):
    """The file; `definitions` is there for YAML anchors and is checked where they are used."""

    name: str
    prefect_version: str = Field(alias="prefect-version")
    definitions: dict[str, Any] = {}
    pull: list[dict[str, Any]] | None = None
    deployments: list[DeploymentSpec]


def read_deployments(tree: Any, where: str) -> DeploymentsFile:
    """Return the deployments of a parsed YAML file.

    Raises:
        ConfigError: one line for each mistake, with the path of the key and the closest valid key.
    """
    try:
        return DeploymentsFile.model_validate(tree)
    except ValidationError as error:
        lines = [_line(tree, dict(item)) for item in error.errors()]
        raise ConfigError(
            f"{where} is not valid, so nothing was registered:\n  " + "\n  ".join(lines)
        ) from error


def _line(tree: Any, item: dict[str, Any]) -> str:
    path, message = item["loc"], item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        known = list(_fields(path[:-1]))
        close = difflib.get_close_matches(str(path[-1]), known, n=1)
        message = "unknown key" + (
            f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(known)}"
        )
    elif item["type"] == "missing":
        message = "required, but not given"
    elif item["type"] != "value_error":
        message += f"; got {item['input']!r}"
    return f"{_where(tree, path)}: {message}"


def _where(tree: Any, path: tuple[Any, ...]) -> str:
    """Format a location as `deployments[0] (nightly).schedules[0].cron`."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")
    if path[:1] == ("deployments",) and len(path) > 1:
        named = tree["deployments"][path[1]]
        prefix = f"deployments[{path[1]}]"
        text = text.replace(
            prefix, f"{prefix} ({named.get('name', '?')})" if isinstance(named, dict) else prefix, 1
        )
    return text or "the file"


def _fields(path: tuple[Any, ...]) -> Iterator[str]:
    """Return the keys of the section at a path."""
    model: type[BaseModel] = DeploymentsFile
    for key in path:
        field = next((f for name, f in model.model_fields.items() if key in (name, f.alias)), None)
        model = next(_models(field.annotation), model) if field else model
    for name, field in model.model_fields.items():
        yield field.alias or name


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Return the models in an annotation such as `list[Spec]` or `Spec | None`."""
    if (
        isinstance(annotation, type)
        and not isinstance(annotation, types.GenericAlias)
        and issubclass(annotation, BaseModel)
    ):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _models(inner)
