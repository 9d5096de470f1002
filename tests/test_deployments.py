"""Deployments: the file can be registered, and every mistake in it is refused by name first."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.exceptions import ParameterTypeError
from pydantic import TypeAdapter

from flows.deploy import deploy
from schemas.deployments import read_deployments
from schemas.errors import ConfigError, LaunchError, ResumeError
from schemas.parameters import ModelName, ModelUri, Target
from tasks.deploy import load_file, rendered, stamp

ROOT = Path(__file__).resolve().parent.parent
DEPLOYMENTS = yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text())["deployments"]


@pytest.mark.req("P3")
@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d["entrypoint"])
def test_the_entrypoint_is_a_flow_that_takes_the_parameters(deployment: dict[str, object]) -> None:
    path, _, name = str(deployment["entrypoint"]).partition(":")
    assert (ROOT / path).is_file()
    flow = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert isinstance(flow, Flow)
    parameters = deployment.get("parameters", {})
    assert isinstance(parameters, dict)
    assert set(parameters) <= set(inspect.signature(flow.fn).parameters)
    assert flow.description


@pytest.mark.req("P2")
def test_every_task_has_a_name_a_description_and_tags() -> None:
    from prefect import Task

    found = []
    for file in sorted((ROOT / "tasks").glob("*.py")):
        module = importlib.import_module(f"tasks.{file.stem}") if file.stem != "__init__" else None
        for value in vars(module).values() if module else ():
            task = getattr(value, "task", value)
            if isinstance(task, Task):
                found.append(task)
                assert (
                    task.description
                    and task.tags
                    and task.name == task.name.lower().replace("_", " ")
                ), task.name
    assert len(found) >= 12


@pytest.mark.req("P4")
def test_every_deployment_passes_with_its_commit_and_its_schedule_in_a_time_zone() -> None:
    made = {found.name: found for found in deploy(dry_run=True)}
    assert {
        "pipeline/nightly",
        "pipeline/manual",
        "prepare/manual",
        "evaluate/manual",
        "resume/manual",
        "audit/manual",
        "crossvalidate/manual",
    } <= set(made)
    nightly = made["pipeline/nightly"]
    assert nightly.schedule == "0 3 * * * Europe/Berlin" and nightly.id is None
    assert nightly.version == stamp() and f"git:{stamp()}" in nightly.tags
    content = load_file(ROOT / "deployments" / "prefect.yaml")
    spec = next(s for s in content.deployments if s.name == "nightly")
    assert (
        spec.concurrency_limit is not None
        and spec.concurrency_limit.limit == 1
        and spec.concurrency_limit.collision_strategy == "CANCEL_NEW"
    )
    given = yaml.safe_load(rendered(content, [spec], "abc"))
    assert (
        given["deployments"][0]["version"] == "abc" and "git:abc" in given["deployments"][0]["tags"]
    )
    assert given["pull"] == [
        {"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}
    ]
    assert read_deployments({**given, "deployments": []}, "again").name == content.name
    assert [d.name for d in deploy(("resume/manual",), dry_run=True)] == ["resume/manual"]


def planted(folder: Path, **changes: object) -> Path:
    """Write the file with one changed deployment; a value of None removes a key."""
    tree = yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text())
    tree["deployments"] = [
        {k: v for k, v in (tree["deployments"][0] | changes).items() if v is not None}
    ]
    (folder / "prefect.yaml").write_text(yaml.safe_dump(tree))
    return folder / "prefect.yaml"


NIGHT = {"cron": "0 3 * * *", "timezone": "Europe/Berlin"}
FAULTS: list[tuple[dict[str, object], str]] = [
    (
        {"parameter": {}},
        r"deployments\[0\] \(nightly\).parameter: unknown key; did you mean 'parameters'\?",
    ),
    (
        {"work_pool": {"name": "bulkhead", "job_variabels": {}}},
        r"work_pool.job_variabels: unknown key; did you mean 'job_variables'\?",
    ),
    (
        {"concurrency_limit": {"limit": 1, "colision_strategy": "ENQUEUE"}},
        r"concurrency_limit.colision_strategy: unknown key; did you mean 'collision_strategy'\?",
    ),
    (
        {"concurrency_limit": {"limit": 1, "grace_period_seconds": 10}},
        r"grace_period_seconds: Input should be greater than or equal to 60; got 10",
    ),
    (
        {"schedules": [NIGHT | {"timezon": "UTC"}]},
        r"schedules\[0\].timezon: unknown key; did you mean 'timezone'\?",
    ),
    ({"schedules": [{"cron": "0 3 * * *"}]}, r"schedules\[0\].timezone: required, but not given"),
    (
        {"schedules": [NIGHT | {"timezone": "EST"}]},
        r"'EST' has no daylight saving time, .*; expected a place such as 'America/New_York'",
    ),
    (
        {"schedules": [NIGHT | {"timezone": "Europe/Berln"}]},
        r"'Europe/Berln' is no time zone of the IANA database; did you mean 'Europe/Berlin'\?",
    ),
    ({"schedules": [NIGHT | {"cron": "0 25 * * *"}]}, r"pipeline/nightly: cron '0 25 \* \* \*'"),
    (
        {"triggers": [{"expects": ["x"]}]},
        r"triggers\[0\].expects: unknown key; did you mean 'expect'\?",
    ),
    (
        {"triggers": [{"expect": ["x"], "parameters": {"config": "{{ event.id }}"}}]},
        r"trigger: the flow has no parameter 'config'; did you mean 'config_path'\?",
    ),
    (
        {"entrypoint": "examples/clinic_visits.py:main"},
        (
            r"entrypoint 'examples/clinic_visits.py:main': expected a flow of this project,"
            r" flows/FILE.py:FLOW"
        ),
    ),
    (
        {"entrypoint": "flows/pipeline.py:pipelines"},
        r"entrypoint 'flows/pipeline.py:pipelines' is no flow",
    ),
    (
        {"parameters": {"config_pth": "x"}},
        r"pipeline/nightly: the flow has no parameter 'config_pth'; did you mean 'config_path'\?",
    ),
    (
        {"parameters": {"config_path": "examples/absent.yaml"}},
        r"examples/absent.yaml: cannot be read",
    ),
    (
        {"parameters": {"config_path": "examples/titanic.yaml", "epochs": "five"}},
        r"pipeline/nightly: .*'five' is not",
    ),
    (
        {"parameters": {"config_path": "examples/titanic.yaml", "overrides": ["train.epocs=1"]}},
        r"train.epocs: unknown key; did you mean 'epochs'\?",
    ),
    (
        {"schedules": [NIGHT | {"parameters": {"config_path": "examples/absent.yaml"}}]},
        r"schedule '0 3 \* \* \*': .*absent.yaml: cannot be read",
    ),
    ({"work_pool": None}, r"work_pool: required, but not given"),
]


@pytest.mark.req("P4")
@pytest.mark.parametrize(
    ("change", "message"), FAULTS, ids=lambda v: next(iter(v)) if isinstance(v, dict) else ""
)
def test_a_mistake_is_refused_by_name_before_anything_is_registered(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        deploy(dry_run=True, file=planted(tmp_path, **change))


@pytest.mark.req("P4")
def test_unknown_names_twins_and_unknown_keys_of_the_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match="--name 'pipeline/nightli': no such deployment; did you mean 'pipeline/nightly'",
    ):
        deploy(("pipeline/nightli",), dry_run=True)
    file = planted(tmp_path)
    tree = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(tree | {"deployments": tree["deployments"] * 2}))
    with pytest.raises(ConfigError, match="deployment 'pipeline/nightly' is there twice"):
        deploy(dry_run=True, file=file)
    file.write_text(yaml.safe_dump(tree | {"deployment": []}))
    with pytest.raises(ConfigError, match="deployment: unknown key; did you mean 'deployments'"):
        deploy(dry_run=True, file=file)
    with pytest.raises(ConfigError, match=r"absent.yaml: cannot be read"):
        deploy(dry_run=True, file=tmp_path / "absent.yaml")


@pytest.mark.req("P4")
def test_a_server_that_does_not_answer_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://ann:secret@127.0.0.1:9/api")
    with pytest.raises(
        LaunchError, match=r"does not answer .*start it with `bulkhead up`"
    ) as caught:
        deploy(file=planted(tmp_path))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("entrypoint", sorted({str(d["entrypoint"]) for d in DEPLOYMENTS}))
def test_every_field_of_every_form_says_what_to_fill_in(entrypoint: str) -> None:
    path, _, function = entrypoint.partition(":")
    fields = getattr(
        importlib.import_module(path.removesuffix(".py").replace("/", ".")), function
    ).parameters.model_dump()["properties"]
    for name, field in fields.items():
        assert field["title"] != name and len(field["description"]) > 15, name


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (
            ModelUri,
            ["models:/clinic-visits/3", "models:/clinic-visits@champion"],
            ["clinic-visits", "models:/clinic-visits", "runs:/1/model"],
        ),
        (Target, ["out.parquet", "a/b.csv.gz"], ["out.xlsx", "out"]),
        (ModelName, ["clinic-visits"], ["models:/clinic-visits", ""]),
    ],
)
def test_the_server_refuses_what_cannot_be_meant(
    kind: Any, good: list[str], bad: list[str]
) -> None:
    pattern = TypeAdapter(kind).json_schema()["pattern"]
    assert all(re.search(pattern, text) for text in good) and not any(
        re.search(pattern, text) for text in bad
    )


@pytest.mark.req("P4")
def test_a_form_names_every_field_and_refuses_a_wrong_value_with_a_reason() -> None:
    from flows.pipeline import pipeline
    from flows.resume import resume

    fields = pipeline.parameters.model_dump()["properties"]
    assert [field["title"] for field in fields.values()] == [
        "Declaration",
        "Epochs",
        "Model",
        "Registration",
        "Other values",
    ]
    assert all(field["description"] and "anyOf" not in field for field in fields.values())
    assert (
        all("default" in field for name, field in fields.items() if name != "config_path")
        and fields["model"]["enum"][0] == "as declared"
    )
    good = {"config_path": "examples/titanic.yaml"}
    assert pipeline.validate_parameters(good | {"overrides": ["train.epochs=3"]})["overrides"] == [
        "train.epochs=3"
    ]
    for wrong, message in (
        ({"config_path": "absent.yaml"}, "config_path: .*absent.yaml: cannot be read"),
        ({"overrides": ["train.epocs=3"]}, "did you mean 'epochs'"),
        ({"overrides": ["lr"]}, "overrides.0: String should match pattern"),
        ({"model": "bert"}, "model: Input should be 'as declared'"),
        ({"model": "causal_transformer"}, "(?s)overrides: .*causal_transformer"),
        ({"epochs": -1}, "epochs: Input should be greater than or equal to 0"),
    ):
        with pytest.raises(ParameterTypeError, match=message):
            pipeline.validate_parameters(good | wrong)
    with pytest.raises(ResumeError, match="'nothing': no run of"):
        resume.validate_parameters({"run": "nothing"})


@pytest.mark.req("P3")
def test_a_file_elsewhere_is_taken_and_one_that_an_installed_package_lacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "mine.yaml"
    other.write_text((ROOT / "deployments" / "prefect.yaml").read_text())
    assert {found.name for found in deploy(dry_run=True, file=other)} == {
        found.name for found in deploy(dry_run=True)
    }
    monkeypatch.setattr("tasks.deploy.ROOT", tmp_path)
    with pytest.raises(
        ConfigError,
        match=(
            r"deployments/prefect.yaml: cannot be read .* an installed package has none: copy .*"
            r" --file FILE"
        ),
    ):
        load_file(tmp_path / "deployments" / "prefect.yaml")


@pytest.mark.req("R4")
def test_the_scores_of_a_promotion_lie_in_the_home_wherever_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from schemas.variables import expand

    (entry,) = (d for d in DEPLOYMENTS if d["name"] == "on-promotion")
    monkeypatch.setenv("BULKHEAD_HOME", "/srv/bulkhead")
    for parameters in (entry["parameters"], entry["triggers"][0]["parameters"]):
        assert expand(parameters["source"]) == "/srv/bulkhead/data/clinic_visits.parquet"
        assert expand(parameters["target"]).startswith("/srv/bulkhead/scores/")
    monkeypatch.delenv("BULKHEAD_HOME")
    assert expand(entry["parameters"]["source"]) == ".bulkhead/data/clinic_visits.parquet"
