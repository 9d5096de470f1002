"""The command line: help, exit codes, refusals without a traceback, output for scripts."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
import yaml

from flows.cli.output import STORAGE, stated_errors

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = (
    "run",
    "prepare",
    "audit",
    "review",
    "train",
    "resume",
    "join",
    "replay",
    "evaluate",
    "predict",
    "explain",
    "verify",
    "reevaluate",
    "promote",
    "reproduce",
    "sample",
    "schema",
    "look",
    "init",
    "doctor",
    "up",
    "deploy",
)


def call(
    folder: Path, *arguments: str, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "BULKHEAD_HOME": str(folder / "home"),
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "200",
        "TERM": "dumb",
    }
    command = [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        timeout=120,
        check=False,
        preexec_fn=before,
    )


@pytest.mark.long
def test_every_command_explains_itself(tmp_path: Path) -> None:
    overview = call(tmp_path, "--help")
    assert overview.returncode == 0 and all(name in overview.stdout for name in COMMANDS)
    for name in COMMANDS:
        shown = call(tmp_path, name, "--help")
        assert shown.returncode == 0 and "Usage" in shown.stdout


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_the_one_that_is_installed(option: str, tmp_path: Path) -> None:
    told = call(tmp_path, option)
    assert told.returncode == 0 and told.stdout == f"bulkhead {version('bulkhead')}\n"


@pytest.mark.req("P1")
def test_a_bad_declaration_ends_with_2_before_anything_is_made(tmp_path: Path) -> None:
    tree = {
        "name": "x",
        "data": {"uri": "x.csv", "columns": {"y": "label", "*": "feature"}},
        "task": {"kind": "binary"},
        "split": {"kind": "random"},
        "trian": {},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    for command in ("run", "prepare", "train"):
        done = call(tmp_path, command, "run.yaml")
        assert done.returncode == 2
        assert (
            "trian: unknown key; did you mean 'train'?" in done.stderr
            and "Traceback" not in done.stderr
        )
    assert not (tmp_path / "home").exists()
    assert call(tmp_path, "run", "absent.yaml").returncode == 2
    assert call(tmp_path, "evaluate", "absent", "--side", "train").returncode == 2


@pytest.mark.req("S2")
@pytest.mark.parametrize("number", STORAGE)
def test_errors_of_storage_are_stated_with_their_remedy(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, stated_errors():
        raise OSError(number, os.strerror(number), "/data/table")
    assert ended.value.exit_code == 1
    told = capsys.readouterr().err
    assert told == f"\n✗ {STORAGE[number]} (/data/table): {os.strerror(number)}\n"
    with pytest.raises(OSError, match="/data/table"), stated_errors(debug=True):
        raise OSError(number, os.strerror(number), "/data/table")


@pytest.mark.req("S2")
def test_other_errors_of_the_system_end_in_a_sentence_and_keep_their_traceback_with_debug(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConnectionResetError), stated_errors(debug=True):
        raise ConnectionResetError(errno.ECONNRESET, "reset")
    with pytest.raises(typer.Exit), stated_errors():
        raise ConnectionResetError(errno.ECONNRESET, "reset")
    assert re.search(
        r"unexpected: ConnectionResetError at tests/test_cli.py:\d+: .*reset; please report it;"
        r" --debug shows the traceback",
        capsys.readouterr().err,
    )


@pytest.mark.req("S2")
def test_doctor_names_a_home_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("notes")
    done = call(tmp_path, "doctor")
    assert (
        done.returncode == 2
        and "let BULKHEAD_HOME name one" in done.stderr
        and "Traceback" not in done.stderr
    )


@pytest.mark.slow
@pytest.mark.req("S2")
def test_bad_data_end_with_1_and_the_remedy_and_leave_no_half_made_step(tmp_path: Path) -> None:
    pd.DataFrame({"id": [1, 1, 2, 3], "x": [0.1, 0.2, 0.3, 0.4], "y": [0, 1, 0, 1]}).to_parquet(
        tmp_path / "x.parquet"
    )
    tree = {
        "name": "x",
        "data": {"uri": "x.parquet", "columns": {"id": "id", "y": "label", "*": "feature"}},
        "task": {"kind": "binary"},
        "split": {"kind": "random"},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    done = call(tmp_path, "prepare", "run.yaml")
    assert done.returncode == 1
    assert (
        "SchemaError" in done.stderr
        and "id" in done.stderr
        and "Traceback" not in done.stderr
        and "leaked" not in done.stderr
    )
    assert list((tmp_path / "home" / "prepared").iterdir()) == []


def test_schema_and_doctor_print_json_and_init_drafts_a_file_once(tmp_path: Path) -> None:
    assert json.loads(call(tmp_path, "schema").stdout)["title"] == "Bulkhead declaration"
    findings = json.loads(call(tmp_path, "doctor", "--json").stdout)
    assert {"python", "packages", "torch", "home", "tracking", "prefect"} <= {
        f["what"] for f in findings
    }
    pd.DataFrame(
        {
            "visit_id": range(60),
            "ward": ["a", "b", "c"] * 20,
            "age": range(60),
            "readmitted": [0, 1] * 30,
        }
    ).to_csv(tmp_path / "v.csv", index=False)
    drafted = call(tmp_path, "init", "v.csv", "--output", "v.yaml")
    assert drafted.returncode == 0 and "readmitted: label" in (tmp_path / "v.yaml").read_text()
    printed = call(tmp_path, "init", "v.csv", "--output", "-")
    assert printed.stdout == (tmp_path / "v.yaml").read_text()
    assert not (tmp_path / "-").exists()
    again = call(tmp_path, "init", "v.csv", "--output", "v.yaml")
    assert again.returncode == 2 and "exists already" in again.stderr


@pytest.mark.long
def test_an_unknown_model_is_refused_by_name(tmp_path: Path) -> None:
    pd.DataFrame({"x": [1.0]}).to_parquet(tmp_path / "in.parquet")
    done = call(tmp_path, "predict", "models:/nothing@champion", "in.parquet", "out.parquet")
    assert done.returncode == 1 and "nothing" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.long
@pytest.mark.req("S2")
def test_a_full_disk_ends_with_1_and_the_remedy_and_leaves_no_half_made_step(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    table = {
        "id": np.arange(120_000),
        **{f"x{i}": rng.normal(size=120_000) for i in range(12)},
        "y": np.arange(120_000) % 2,
    }
    pd.DataFrame(table).to_parquet(tmp_path / "rows.parquet")
    tree = {
        "name": "t",
        "data": {"uri": "rows.parquet", "columns": {"id": "id", "y": "label", "*": "feature"}},
        "task": {"kind": "binary"},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree | {"split": {"kind": "random"}}))
    # a limit on file sizes fails as a full disk does; the typed table has 13 MB, Prefect's
    # database less than 9
    limit = 9 << 20
    done = call(
        tmp_path,
        "prepare",
        "run.yaml",
        before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 1
    assert (
        "✗ a file would be larger than its file system or this user's limit" in done.stderr
        and "BULKHEAD_HOME" in done.stderr
    )
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert [
        p.name
        for p in (tmp_path / "home" / "prepared").iterdir()
        if not p.name.startswith("source-")
    ] == []


@pytest.mark.req("S2")
@pytest.mark.parametrize(
    ("shell", "code", "words"),
    [
        ("{} schema > /dev/full", 1, "No space left"),
        ("{} schema | head -c 1 > /dev/null; exit ${{PIPESTATUS[0]}}", 1, ""),
        ("{} schema >&-", 0, ""),
        ("PYTHONIOENCODING=ascii {} prepare absent.yaml", 2, "absent.yaml: cannot be read"),
        ("PREFECT_API_URL=http://127.0.0.1:9/api {} promote models:/x/1", 1, "does not answer"),
    ],
)
def test_output_and_servers_that_fail_end_in_a_sentence(
    shell: str, code: int, words: str, tmp_path: Path
) -> None:
    command = shell.format(f"{sys.executable} -m flows.cli")
    environment = os.environ | {"BULKHEAD_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=120,
        check=False,
    )
    assert done.returncode == code and words in done.stderr, done.stderr
    assert (
        "Traceback" not in done.stderr
        and "unexpected" not in done.stderr
        and "ignored" not in done.stderr
    )


@pytest.mark.parametrize("debug", [False, True])
def test_a_mistake_of_ours_is_not_hidden(debug: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError if debug else typer.Exit) as ended, stated_errors(debug):
        raise KeyError("no such key")
    if not debug:
        assert ended.value.exit_code == 1
        assert (
            "unexpected: KeyError" in (said := capsys.readouterr().err)
            and "please report it; --debug shows the traceback" in said
        )
