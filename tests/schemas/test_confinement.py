"""A worker's flow run uses only what its operator named; a person's own run is not confined;
secrets do not expand.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from schemas.confinement import (
    require_host,
    require_readable,
    require_registered,
    require_source,
    require_spark,
    require_store,
    require_writable,
)
from schemas.errors import ConfigError
from schemas.load import load_declaration
from schemas.variables import expand, is_secret, without_secrets
from training.data.sources.source import fingerprint
from training.run.provenance import masked

SECRETS = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "AWS_SESSION_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
    "PREFECT_API_AUTH_STRING",
    "PREFECT_API_KEY",
    "BULKHEAD_HTTP_AUTHORIZATION",
    "BULKHEAD_POSTGRES",
    "GITHUB_PAT",
    "PREFECT_SERVER_DATABASE_CONNECTION_URL",
    "MYSQL_PWD",
)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run a worker's flow run in `project`, with its home there and data next to it."""
    project = tmp_path / "project"
    (project / ".bulkhead" / "data").mkdir(parents=True)
    (project / ".bulkhead" / "keys").mkdir()
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("BULKHEAD_HOME", str(project / ".bulkhead"))
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0a1b")
    for name in (
        "BULKHEAD_DATA",
        "BULKHEAD_DATA_ROOTS",
        "BULKHEAD_HTTP_HOSTS",
        "MLFLOW_TRACKING_URI",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
    ):
        monkeypatch.delenv(name, raising=False)
    for file in (
        project / "x.csv",
        project / ".env",
        project / ".bulkhead" / "data" / "x.csv",
        project / ".bulkhead" / "keys" / "k.csv",
        tmp_path / "data" / "x.csv",
    ):
        file.write_text("a,y\n1,0\n")
    return tmp_path


def test_files_outside_the_roots_are_refused_however_they_are_named(worker: Path) -> None:
    os.symlink("/etc", worker / "project" / "link")
    os.symlink("/etc/passwd", worker / "project" / "link.csv")
    for path in (
        "/etc/passwd",
        "../data/x.csv",
        "link/passwd",
        "link.csv",
        "link/*.csv",
        "/etc/*",
        "/",
        "/**/*.csv",
        ".env",
        ".bulkhead/keys/k.csv",
        "a\0b",
    ):
        with pytest.raises(ConfigError, match=r"data\.uri: "):
            require_source(path)
    for path in (
        "x.csv",
        "*.csv",
        "sub/../x.csv",
        ".bulkhead/data/x.csv",
        str(worker / "project" / "none.csv"),
    ):
        require_source(path)


def test_the_matches_of_a_glob_are_held_against_the_roots_too(worker: Path) -> None:
    (worker / "project" / "parts").mkdir()
    os.symlink(worker / "data" / "x.csv", worker / "project" / "parts" / "x.csv")
    tree = {
        "name": "n",
        "data": {"uri": "parts/*.csv", "columns": {"y": "label", "*": "feature"}},
        "task": {"kind": "binary"},
        "split": {"kind": "random"},
    }
    (worker / "project" / "run.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError, match=r"may read only under .*BULKHEAD_DATA_ROOTS"):
        fingerprint(load_declaration("run.yaml").data)


def test_the_operator_names_other_roots_and_hosts(
    worker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BULKHEAD_DATA", str(worker))
    # also under a root that contains the home
    with pytest.raises(ConfigError, match="keys excepted"):
        require_readable(".bulkhead/keys/k.csv", "data.uri")
    monkeypatch.setenv("BULKHEAD_DATA", str(worker / "data"))
    require_readable(worker / "data" / "x.csv", "data.uri")
    monkeypatch.setenv("BULKHEAD_DATA_ROOTS", os.pathsep.join([str(worker / "data"), "/"]))
    require_readable(worker / "data" / "x.csv", "data.uri")
    # the project is no longer a default, and / is no root
    with pytest.raises(ConfigError, match="may read only under"):
        require_readable("x.csv", "data.uri")
    with pytest.raises(ConfigError, match=r"BULKHEAD_HTTP_HOSTS lists \(none\), got host"):
        require_host("https://host/x.csv", "data.uri")
    monkeypatch.setenv("BULKHEAD_HTTP_HOSTS", "Host, other:8080, s3://bucket")
    for address in (
        "https://host/x.csv",
        "http://HOST:81/x.csv",
        "http://other:8080/x",
        "s3://bucket/key.parquet",
    ):
        require_source(address)
    for address in (
        "http://other/x",
        "http://host.evil/x",
        "http://host@evil/x",
        "s3://bucket2/k",
        "http://169.254.169.254/latest",
        "file:///etc/passwd",
    ):
        with pytest.raises(ConfigError, match="may call only hosts"):
            require_source(address)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://other:8080")
    require_source("s3://bucket2/k")


def test_outputs_models_servers_and_sparks_elsewhere_are_refused(
    worker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, message in (
        ("/tmp/x.html", "may write only under"),
        ("flows/pipeline.py", r"ends in \.html"),
        ("../x.html", "may write only"),
    ):
        with pytest.raises(ConfigError, match=message):
            require_writable(path, "html", (".html",))
    require_writable("reports/x.html", "html", (".html",))
    for uri in (
        "http://evil/",
        "sqlite:////etc/x.db",
        "file:///root/mlruns",
        "file:/etc",
        "databricks",
    ):
        with pytest.raises(ConfigError, match=r"tracking\.uri: "):
            require_store(uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    require_store("http://mlflow:5000")
    for model in ("/etc", "runs:/x/model", "http://evil/model", "models:/a/b/c"):
        with pytest.raises(ConfigError, match="expected a registered version"):
            require_registered(model)
    require_registered("models:/clinic-visits@champion")
    with pytest.raises(ConfigError, match=r"data\.spark\.conf: spark\.driver\.extraJavaOptions"):
        require_spark("local[*]", None, {"spark.driver.extraJavaOptions": "-agentpath:/x"})
    with pytest.raises(ConfigError, match=r"data\.spark\.remote"):
        require_spark("local[*]", "sc://evil:15002", {})
    require_spark("local[4]", None, {"spark.executor.memory": "8g"})


def test_a_declaration_elsewhere_is_not_read(worker: Path) -> None:
    with pytest.raises(ConfigError, match="declaration: /etc/passwd: a flow run"):
        load_declaration("/etc/passwd")


def test_a_run_of_ones_own_is_not_confined(worker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT__FLOW_RUN_ID")
    require_source("/etc/passwd")
    require_source("https://host/x.csv")
    require_writable("/tmp/x.txt", "html", (".html",))
    require_store("http://anywhere/")
    require_registered("/tmp/model")


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_do_not_expand_into_addresses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_secret(name)
    monkeypatch.setenv(name, "hush")
    monkeypatch.setenv("BULKHEAD_EXPAND", name)
    for text in (f"http://host/${{{name}}}/x", f"${{{name}:-x}}"):
        with pytest.raises(ConfigError, match="says that it is a secret") as refused:
            expand(text)
        assert "hush" not in str(refused.value)


def test_only_named_variables_expand(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BULKHEAD_DATA", "MONKEY_FOLDER", "HOSTNAME"):
        monkeypatch.setenv(name, "/d")
    assert expand("${BULKHEAD_DATA}/x") == "/d/x" and expand("${BULKHEAD_ABSENT:-y}/x") == "y/x"
    with pytest.raises(ConfigError, match=r"HOSTNAME.*BULKHEAD_EXPAND=HOSTNAME"):
        expand("${HOSTNAME}")
    monkeypatch.setenv("BULKHEAD_EXPAND", "HOSTNAME, MONKEY_FOLDER")
    assert expand("${HOSTNAME}${MONKEY_FOLDER}") == "/d/d" and not is_secret("MONKEY_FOLDER")


def test_a_secret_that_the_operator_allows_for_the_tracking_server_is_masked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STORE_PASSWORD", "hush-hush")
    with pytest.raises(ConfigError, match="name it in BULKHEAD_EXPAND"):
        expand("https://host/${STORE_PASSWORD}", secrets=True)
    monkeypatch.setenv("BULKHEAD_EXPAND", "STORE_PASSWORD")
    uri = expand("https://host/${STORE_PASSWORD}", secrets=True)
    assert (
        uri == "https://host/hush-hush"
        and masked(uri) == without_secrets(uri) == "https://host/***"
    )
