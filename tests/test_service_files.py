"""Service files: what cannot run here is checked against the programs that will read it."""

from __future__ import annotations

import configparser
import copy
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.load import declare
from tests.distributed.launch import free_port

ROOT = Path(__file__).resolve().parent.parent
SERVICES = ROOT / "deployments"
COMPOSE = yaml.safe_load((SERVICES / "compose" / "compose.yaml").read_text())
POOL = json.loads((SERVICES / "kubernetes" / "work-pool.json").read_text())
MANIFESTS = list(yaml.safe_load_all((SERVICES / "kubernetes" / "training-job.yaml").read_text()))
ANY_SCORE = "register.allow_behind=[linear, boosting]"
SMALL = [
    "model.kind=mlp",
    "evaluate.bootstrap=60",
    "checks.min_rows=20",
    "register.thresholds={}",
    "train.patience=1000",
]
TREE = {
    "name": "clinic-visits",
    "data": {"uri": "x.parquet", "columns": {"y": "label", "*": "feature"}},
    "task": {"kind": "binary"},
    "split": {"kind": "random"},
}
OURS = {
    "BULKHEAD_HOME",
    "BULKHEAD_POSTGRES",
    "BULKHEAD_DATA",
    "BULKHEAD_DATA_ROOTS",
    "BULKHEAD_HTTP_HOSTS",
    "BULKHEAD_EXPAND",
} | {
    "BULKHEAD_GUARD_PORT",
    "BULKHEAD_GUARD_LOGIN",
    "BULKHEAD_GUARD_HOSTS",
    "BULKHEAD_COMMIT",
    "BULKHEAD_CLINIC",
}


def known_variables() -> set[str]:
    """Return every variable that Prefect, MLflow or this project reads."""
    import mlflow.environment_variables as variables

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of loading MLflow's commands
        from mlflow.cli import server
    from prefect.settings.legacy import _get_settings_fields
    from prefect.settings.models.root import Settings

    prefect = set(_get_settings_fields(Settings))
    mlflow = {
        v.name for v in vars(variables).values() if hasattr(v, "name") and hasattr(v, "get_raw")
    } | {p.envvar for p in server.params if p.envvar}
    return prefect | mlflow | OURS | {"MLFLOW_FLASK_SERVER_SECRET_KEY"}


def named_variables(text: str) -> set[str]:
    return set(re.findall(r"\b(?:PREFECT|MLFLOW|BULKHEAD)_[A-Z_]+[A-Z]\b", text)) - {
        "PREFECT_AUTH",
        "MLFLOW_PASSWORD",
    }


@pytest.mark.req("S1")
def test_every_variable_that_a_service_file_names_is_read_by_somebody() -> None:
    known, found = known_variables(), set[str]()
    for path in [*SERVICES.rglob("*"), ROOT / "docs" / "scheduling.md"]:
        if path.is_file():
            found |= named_variables(path.read_text())
            assert named_variables(path.read_text()) <= known, path
    assert {
        "PREFECT_SERVER_API_AUTH_STRING",
        "PREFECT_API_AUTH_STRING",
        "MLFLOW_TRACKING_PASSWORD",
        "BULKHEAD_POSTGRES",
    } <= found
    assert not named_variables("PREFECT_SERVER_API_AUTH_STRIGN=x") <= known  # a planted one


def systemd_findings(unit: str, folder: Path) -> str:
    """Return systemd's findings on the unit, with programs of this environment."""
    own = unit.replace("/opt/bulkhead/.venv/bin/bulkhead", str(Path(sys.executable))).replace(
        "/opt/bulkhead\n", f"{ROOT}\n"
    )
    (folder / "bulkhead.service").write_text(own)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(folder / "bulkhead.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    return "\n".join(line for line in done.stderr.splitlines() if "bulkhead.service" in line)


@pytest.mark.req("P4")
def test_systemd_takes_the_unit_and_notices_a_misspelt_key(tmp_path: Path) -> None:
    text = (SERVICES / "systemd" / "bulkhead.service").read_text()
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    assert (
        unit["Service"]["ExecStart"].endswith("bulkhead up")
        and unit["Service"]["KillMode"] == "mixed"
    )
    # runs, worker, MLflow, Prefect
    assert int(unit["Service"]["TimeoutStopSec"]) > 30 + 10 + 10 + 10
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is absent")
    assert systemd_findings(text, tmp_path) == ""
    assert "KilMode" in systemd_findings(text.replace("KillMode", "KilMode"), tmp_path)


def compose_findings(tree: dict[str, Any]) -> list[str]:
    """Return what compose would refuse, start in a wrong order, or open to the network."""
    wrong, services = [], tree["services"]
    for name, service in services.items():
        known = (
            "image build restart init command environment volumes ports depends_on healthcheck"
            " stop_grace_period shm_size read_only tmpfs cap_drop cap_add security_opt"
        )
        wrong += [f"{name}: unknown key {key}" for key in service.keys() - set(known.split())]
        for other, condition in service.get("depends_on", {}).items():
            if other not in services:
                wrong.append(f"{name}: depends on {other}, which is not there")
            elif condition["condition"] == "service_healthy" and "test" not in services[other].get(
                "healthcheck", {}
            ):
                wrong.append(f"{name}: waits for the health of {other}, which has no check")
        wrong += [
            f"{name}: {port} is open to the network"
            for port in service.get("ports", ())
            if not port.startswith("127.0.0.1:")
        ]
        wrong += (
            [f"{name}: keeps the capabilities of root"]
            if service.get("cap_drop") != ["ALL"]
            else []
        )
        wrong += (
            [f"{name}: may gain rights"]
            if service.get("security_opt") != ["no-new-privileges:true"]
            else []
        )
        if service.get("restart") != "no" and "test" not in service.get("healthcheck", {}):
            wrong.append(f"{name}: nothing looks whether it is healthy")
        for volume in service.get("volumes", ()):
            source = re.sub(r"\$\{[^}]*\}", "./set", volume).split(":")[0]
            if not source.startswith((".", "/")) and source not in tree["volumes"]:
                wrong.append(f"{name}: volume {source} is not declared")
    return wrong


@pytest.mark.req("P4")
def test_the_containers_depend_on_what_is_there_and_listen_on_loopback() -> None:
    assert compose_findings(COMPOSE) == []
    assert (SERVICES / "compose" / "schemas.sql").is_file() and (
        SERVICES / "compose" / "Dockerfile"
    ).is_file()
    wanted = set(re.findall(r"\$\{(\w+)[}:]", (SERVICES / "compose" / "compose.yaml").read_text()))
    assert wanted == set(
        re.findall(r"^(\w+)=", (SERVICES / "compose" / ".env.example").read_text(), re.MULTILINE)
    )
    for path, value, message in (
        (("worker", "depends_on", "deploi"), {"condition": "service_started"}, "depends on deploi"),
        (("worker", "helthcheck"), {}, "unknown key helthcheck"),
        (("prefect", "ports"), ["4200:4200"], "is open to the network"),
        (("mlflow", "volumes"), ["hom:/x"], "volume hom is not declared"),
        (("postgres", "healthcheck"), {}, "which has no check"),
        (
            ("worker", "healthcheck"),
            {"disable": True},
            "worker: nothing looks whether it is healthy",
        ),
        (("mlflow", "cap_drop"), [], "mlflow: keeps the capabilities of root"),
        (("deploy", "security_opt"), [], "deploy: may gain rights"),
    ):
        planted = copy.deepcopy(COMPOSE)
        node = planted["services"]
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value
        assert any(message in finding for finding in compose_findings(planted)), message


def templates(value: Any) -> Iterator[str]:
    """Return the names in the placeholders of a job template, at any depth."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from templates(item)
    elif isinstance(value, str):
        yield from re.findall(r"\{\{\s*(\w+)\s*\}\}", value)


@pytest.mark.req("P4")
def test_the_work_pool_fills_every_placeholder_and_makes_a_job() -> None:
    from prefect.utilities.templating import apply_values

    properties = POOL["variables"]["properties"]
    assert set(templates(POOL["job_configuration"])) == set(properties) and all(
        p.get("title") for p in properties.values()
    )
    defaults = {
        name: found["default"] for name, found in properties.items() if "default" in found
    } | {
        "env": {"A": "b"},
        "labels": {},
        "name": "n",
    }
    job = apply_values(POOL["job_configuration"], defaults)["job_manifest"]
    pod = job["spec"]["template"]["spec"]
    assert (
        job["kind"] == "Job"
        and job["spec"]["backoffLimit"] == 0
        and pod["restartPolicy"] == "Never"
    )
    assert (
        pod["terminationGracePeriodSeconds"] > 30
        and pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 0
    )
    assert unmounted(pod) == []
    assert POOL["job_configuration"]["command"] is None and "args" not in pod["containers"][0], (
        "Prefect's worker fills in its own command, and no job chooses one"
    )
    assert all(
        c["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        for c in (*pod["containers"], *MANIFESTS[1]["spec"]["template"]["spec"]["containers"])
    )


def unmounted(pod: dict[str, Any]) -> list[str]:
    """Return the mounts of volumes that the pod lacks."""
    volumes = {volume["name"] for volume in pod["volumes"]}
    return [
        mount["name"]
        for container in pod["containers"]
        for mount in container["volumeMounts"]
        if mount["name"] not in volumes
    ]


@pytest.mark.req("T1")
def test_the_training_job_is_one_run_whose_pods_find_the_first(tmp_path: Path) -> None:
    service, job = MANIFESTS
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    variables = {item["name"]: item.get("value", "job-7") for item in pod["containers"][0]["env"]}
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec[
        "parallelism"
    ] == int(variables["NODES"])
    assert (
        variables["RENDEZVOUS"].split(":")[0] == f"{job['metadata']['name']}-0.{pod['subdomain']}"
        and pod["subdomain"] == service["metadata"]["name"]
    )
    assert (
        service["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()
        and service["spec"]["clusterIP"] == "None"
    )
    assert int(variables["RANKS"]) % int(variables["NODES"]) == 0 and unmounted(pod) == []
    assert unmounted({**pod, "volumes": pod["volumes"][:1]}) == ["shared-memory"]
    said = {index: spoken(pod["containers"][0], variables, index, tmp_path) for index in ("0", "1")}
    assert (
        said["0"]
        == "run examples/clinic_visits.yaml name=clinic-visits train.nodes=2 train.ranks=8"
        " train.threads=4 train.rendezvous=bulkhead-training-0.bulkhead-training:29400"
        " tracking.tags.job=job-7"
    )
    assert said["1"] == f"join {tmp_path}/runs/clinic-visits/new --wait 3600"


def spoken(container: dict[str, Any], variables: dict[str, str], index: str, folder: Path) -> str:
    """Return the arguments that the pod of an index passes to bulkhead, recorded by a fake program.

    There are the run of another job, and the job's own run, which began before this pod.
    """
    bin_folder = folder / f"bin-{index}"
    bin_folder.mkdir()
    (bin_folder / "bulkhead").write_text('#!/bin/sh\necho "$@"\n')
    (bin_folder / "bulkhead").chmod(0o755)
    for run, job in (("old", "job-6"), ("new", "job-7")):
        made = folder / "runs" / "clinic-visits" / run
        made.mkdir(parents=True, exist_ok=True)
        declared = declare({**TREE, "tracking": {"tags": {"job": job}}})
        (made / "declaration.json").write_text(declared.model_dump_json(by_alias=True, indent=1))
        (made / "run.json").touch()
    (script,) = container["args"]
    environment = {
        **variables,
        "JOB_COMPLETION_INDEX": index,
        "BULKHEAD_HOME": str(folder),
        "PATH": f"{bin_folder}:/usr/bin:/bin",
    }
    done = subprocess.run(
        [*container["command"], script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.req("S1")
def test_an_image_holds_no_secrets_no_data_and_no_history() -> None:
    left_out = set((ROOT / ".dockerignore").read_text().split())
    data = re.search(
        r"^BULKHEAD_DATA=\./(.+)$",
        (SERVICES / "compose" / ".env.example").read_text(),
        re.MULTILINE,
    )
    assert data is not None
    assert {".git", ".venv", ".bulkhead", "**/.env", f"deployments/compose/{data[1]}"} <= left_out
    assert {".env", f"deployments/compose/{data[1]}/"} <= set(
        (ROOT / ".gitignore").read_text().split()
    )
    text = (SERVICES / "compose" / "Dockerfile").read_text()
    assert (
        text.index("USER bulkhead") > text.index("pip install")
        and "BULKHEAD_COMMIT=${GIT_SHA}" in text
    )


@pytest.mark.req("P4")
def test_the_commands_of_the_services_are_commands_with_these_options() -> None:
    """Each command line is one that its program takes, as a plain process."""
    unit = (SERVICES / "systemd" / "bulkhead.service").read_text()
    lines = [
        service["command"]
        for name, service in COMPOSE["services"].items()
        if name in ("deploy", "worker")
    ]
    lines += [
        re.sub(r"^-?/\S*/bulkhead", "bulkhead", line).split()
        for line in re.findall(r"^Exec\w+=(.+)$", unit, re.MULTILINE)
    ]
    assert len(lines) == 4
    for line in lines:
        assert line[0] == "bulkhead"
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *line[1:], "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (line, done.stderr)
    assert (
        subprocess.run(
            [sys.executable, "-m", "flows.cli", "deploy", "--wiat", "3", "--help"],
            cwd=ROOT,
            capture_output=True,
            check=False,
        ).returncode
        == 2
    )


@pytest.mark.req("P4")
def test_every_picture_of_the_page_on_scheduling_is_there() -> None:
    for page in (ROOT / "docs" / "scheduling.md",):
        for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text()):
            assert (page.parent / picture).is_file(), picture


SRUN = """#!/usr/bin/env python3
# As Slurm does: the command once on each machine, all ended as soon as one fails.
import os, subprocess, sys, time
command = sys.argv[1:]
assert command.pop(0) == "--kill-on-bad-exit=1"
tasks = [subprocess.Popen(command, env=os.environ | {"SLURM_PROCID": str(n)}) for n in range(int(os.environ["SLURM_JOB_NUM_NODES"]))]
while any(task.poll() is None for task in tasks) and not any(task.poll() for task in tasks):
    time.sleep(0.2)
for task in tasks:
    task.terminate()
sys.exit(max(task.wait() for task in tasks))
"""  # noqa: E501


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_slurm_job_trains_one_run_on_two_machines(tmp_path: Path) -> None:
    programs, home, data = tmp_path / "bin", tmp_path / "home", tmp_path / "clinic.parquet"
    programs.mkdir()
    stands_in = {
        "srun": SRUN,
        "scontrol": "#!/bin/sh\necho 127.0.0.2\necho other\n",
        "bulkhead": f'#!/bin/sh\nexec {sys.executable} -m flows.cli "$@"\n',
    }
    for name, text in stands_in.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    subprocess.run(
        [
            sys.executable,
            str(ROOT / "examples" / "clinic_visits.py"),
            str(data),
            "--patients",
            "400",
        ],
        check=True,
        capture_output=True,
    )
    job = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_PER_TASK": "1",
        "PORT": str(free_port()),
    }
    job |= {
        "DECLARATION": "examples/clinic_visits.yaml",
        "MODEL": "small",
        "BULKHEAD_HOME": str(home),
        "BULKHEAD_CLINIC": str(data),
    }
    job |= {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    foreign = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "PREFECT_TEST_MODE")
    environment = {name: value for name, value in (os.environ | job).items() if name not in foreign}
    done = subprocess.run(
        ["bash", str(SERVICES / "slurm" / "train.sbatch"), *SMALL, "train.epochs=3", ANY_SCORE],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    (run,) = home.glob("runs/small/*/run.json")
    assert (
        json.loads(run.read_text())["status"] == "finished"
        and (run.parent / "train-node-1.log").stat().st_size
    )
    assert "machine 1 of 2" in done.stderr and not list(home.glob("slurm-*"))
