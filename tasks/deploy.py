"""Register deployments: check everything first, then run `prefect deploy` in the project's root."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import os
import subprocess
import sys
import tempfile
import urllib.request
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound, ParameterTypeError
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.schema_tools import ValidationError, validate

from schemas.deployments import DeploymentsFile, DeploymentSpec, read_deployments
from schemas.errors import BulkheadError, ConfigError, LaunchError, first_few
from schemas.records import Record
from schemas.yaml_text import parse_yaml
from training.run.provenance import git_state, masked

ROOT = Path(__file__).resolve().parent.parent
FILE = "deployments/prefect.yaml"
PULL = "prefect.deployments.steps.set_working_directory"


class Deployed(Record):
    """One deployment as it is, or would be, registered.

    `schedule`: its cron expressions with time zones. `id`, `url`: None in a dry run.
    """

    name: str
    version: str
    entrypoint: str
    work_pool: str
    tags: tuple[str, ...]
    parameters: dict[str, Any]
    schedule: str
    id: str | None = None
    url: str | None = None


class Plan(NamedTuple):
    """Checked deployments that can be registered."""

    content: DeploymentsFile
    chosen: list[DeploymentSpec]
    flows: dict[str, Flow[..., Any]]
    version: str

    @property
    def deployments(self) -> list[Deployed]:
        """Deployments as they would be registered."""
        return [
            _described(spec, self.flows[spec.entrypoint].name, self.version) for spec in self.chosen
        ]


def plan_deployments(names: tuple[str, ...] = (), file: Path = ROOT / FILE) -> Plan:
    """Check everything that can be checked without a server.

    Args:
        names: deployments to check, each `FLOW/NAME`; empty: all.
        file: in Prefect's format.

    Raises:
        ConfigError: the file is wrong; the message lists every mistake.
    """
    with contextlib.chdir(ROOT):  # entrypoints and declarations are relative to the root
        content = load_file(file)
        flows = {spec.entrypoint: flow_of(spec) for spec in content.deployments}
        chosen = _chosen(content, flows, names)
        _check(chosen, flows)
    return Plan(content, chosen, flows, stamp())


def register_plan(plan: Plan) -> list[Deployed]:
    """Register the plan on the server of PREFECT_API_URL.

    Raises:
        LaunchError: the server lacks a work pool, or refused.
    """
    with get_client(sync_client=True) as client:
        for pool in sorted({spec.work_pool.name for spec in plan.chosen}):
            try:
                client.read_work_pool(pool)
            except ObjectNotFound:
                raise LaunchError(
                    f"the server has no work pool {pool!r}; make it first, e.g. prefect work-pool"
                    f" create {pool} --type process"
                ) from None
    _deploy(rendered(plan.content, plan.chosen, plan.version))
    return [_registered(made) for made in plan.deployments]


def load_file(file: Path) -> DeploymentsFile:
    """Return the deployments in a file.

    Raises:
        ConfigError: it cannot be read or is not valid.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        advice = (
            "; an installed package has none: copy deployments/prefect.yaml of the project and name"
            " it, bulkhead deploy --file FILE"
            if file == ROOT / FILE
            else ""
        )
        raise ConfigError(f"{file}: cannot be read ({error.strerror}){advice}") from error
    return read_deployments(parse_yaml(text, str(file), aliases=True), str(file))


def flow_of(spec: DeploymentSpec) -> Flow[..., Any]:
    """Return the flow at an entrypoint.

    Raises:
        ConfigError: the file or the flow does not exist.
    """
    try:
        return load_flow_from_entrypoint(spec.entrypoint)
    except Exception as error:  # any error of its import is the answer
        raise ConfigError(
            f"deployment {spec.name!r}: entrypoint {spec.entrypoint!r} is no flow: {error}"
        ) from error


def stamp() -> str:
    """Return the commit of this project, with `-dirty` if files differ; without a repository, the
    package's version.
    """
    found = git_state(ROOT)
    return (
        f"{found['sha'][:12]}{'-dirty' if found['dirty'] else ''}"
        if found["sha"]
        else f"bulkhead-{metadata.version('bulkhead')}"
    )


def rendered(content: DeploymentsFile, chosen: list[DeploymentSpec], version: str) -> str:
    """Return the YAML for Prefect: the chosen deployments with version, tag and this project's root
    as working folder.
    """
    deployments = [
        spec.model_dump(exclude_unset=True)
        | {
            "version": version,
            "tags": [*spec.tags, f"git:{version}"],
        }
        for spec in chosen
    ]
    pull = content.pull or [{PULL: {"directory": str(ROOT)}}]
    return yaml.safe_dump(
        {
            "name": content.name,
            "prefect-version": content.prefect_version,
            "pull": pull,
            "deployments": deployments,
        },
        sort_keys=False,
    )


def _chosen(
    content: DeploymentsFile, flows: dict[str, Flow[..., Any]], names: tuple[str, ...]
) -> list[DeploymentSpec]:
    by_name: dict[str, DeploymentSpec] = {}
    for spec in content.deployments:
        name = f"{flows[spec.entrypoint].name}/{spec.name}"
        if name in by_name:
            raise ConfigError(
                f"deployment {name!r} is there twice; the second would replace the first: give one"
                " another name"
            )
        by_name[name] = spec
    for name in names:
        if name not in by_name:
            close = difflib.get_close_matches(name, by_name, n=1)
            raise ConfigError(
                f"--name {name!r}: no such deployment; "
                + (f"did you mean {close[0]!r}?" if close else f"known: {', '.join(by_name)}")
            )
    return [by_name[name] for name in names or by_name]


def _check(chosen: list[DeploymentSpec], flows: dict[str, Flow[..., Any]]) -> None:
    """Check parameters and schedules of all deployments; report every mistake."""
    wrong: list[str] = []
    for spec in chosen:
        flow, where = flows[spec.entrypoint], f"{flows[spec.entrypoint].name}/{spec.name}"
        wrong += _wrong_parameters(flow, spec.parameters, where)
        for schedule in spec.schedules:
            wrong += (
                _wrong_parameters(
                    flow,
                    spec.parameters | schedule.parameters,
                    f"{where}, schedule {schedule.cron!r}",
                )
                if schedule.parameters
                else []
            )
            try:
                CronSchedule(cron=schedule.cron, timezone=schedule.timezone)
            except ValueError as error:
                wrong.append(f"{where}: cron {schedule.cron!r}: {str(error).splitlines()[-1]}")
        for trigger in spec.triggers:
            wrong += _unknown(flow, trigger.parameters, f"{where}, trigger")
    if wrong:
        raise ConfigError("nothing was registered:\n  " + "\n  ".join(wrong))


def _unknown(flow: Flow[..., Any], parameters: dict[str, Any], where: str) -> list[str]:
    known = list(inspect.signature(flow.fn).parameters)
    found = []
    for name in parameters.keys() - set(known):
        close = difflib.get_close_matches(name, known, n=1)
        found.append(
            f"{where}: the flow has no parameter {name!r}; "
            + (f"did you mean {close[0]!r}?" if close else f"it has: {', '.join(known)}")
        )
    return found


def _wrong_parameters(flow: Flow[..., Any], parameters: dict[str, Any], where: str) -> list[str]:
    """Return the parameters that the flow would refuse.

    Those that the user fills in may be absent.
    """
    found = _unknown(flow, parameters, where)
    if found:
        return found
    schema = flow.parameters.model_dump()
    try:
        validate(parameters, schema, raise_on_error=True, ignore_required=True)
        if set(schema.get("required", ())) <= parameters.keys():
            flow.validate_parameters(parameters)
    except (ValidationError, ParameterTypeError, BulkheadError) as error:
        return [f"{where}: {error}"]
    return []


def require_server() -> None:
    """Refuse to continue if the server of PREFECT_API_URL does not answer.

    Raises:
        LaunchError: with its address, credentials masked.
    """
    address = os.environ["PREFECT_API_URL"]
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=10):  # noqa: S310 - the user's own setting
            return
    except (OSError, ValueError) as error:
        raise LaunchError(
            f"Prefect's server at {masked(address)} does not answer ({error}); start it with"
            " `bulkhead up`, or set PREFECT_API_URL"
        ) from None


def _deploy(text: str) -> None:
    """Pass the rendered file to `prefect deploy`.

    Raises:
        LaunchError: it refused; the message gives its output.
    """
    with tempfile.TemporaryDirectory(prefix="bulkhead-deploy-") as folder:
        file = Path(folder) / "prefect.yaml"
        file.write_text(text, encoding="utf-8")
        command = [
            str(Path(sys.executable).parent / "prefect"),
            "--no-prompt",
            "deploy",
            "--all",
            "--prefect-file",
            str(file),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL, check=False
        )
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise LaunchError(
            f"`prefect deploy` ended with {done.returncode}; some deployments may be registered:"
            f" {first_few(said[-8:], limit=8)}"
        )


def _described(spec: DeploymentSpec, flow: str, version: str) -> Deployed:
    return Deployed(
        name=f"{flow}/{spec.name}",
        version=version,
        entrypoint=spec.entrypoint,
        work_pool=spec.work_pool.name,
        tags=(*spec.tags, f"git:{version}"),
        parameters=spec.parameters,
        schedule="; ".join(
            f"{s.cron} {s.timezone}" + ("" if s.active else " (paused)") for s in spec.schedules
        ),
    )


def _registered(made: Deployed) -> Deployed:
    """Add id and address, after checking that the server has this version."""
    with get_client(sync_client=True) as client:
        found = client.read_deployment_by_name(made.name)
    if found.version != made.version:
        raise LaunchError(
            f"deployment {made.name}: expected version {made.version} on the server, found"
            f" {found.version!r}; run `bulkhead deploy` again"
        )
    address = os.environ["PREFECT_API_URL"].removesuffix("/api")
    return made.model_copy(
        update={"id": str(found.id), "url": f"{masked(address)}/deployments/deployment/{found.id}"}
    )
