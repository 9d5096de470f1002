"""What the command line says and answers: help of every command, the JSON schema, exit codes of bad
input.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.golden.pinned import ROOT, bulkhead, calls, environment
from tests.zoo.bad_inputs import DATA, DECLARATIONS, Spoil, write

HELP = Path(__file__).parent / "help"
SCHEMA = Path(__file__).parent / "schema.txt"
# not Prefect, which reads its settings when it is imported
LOADED = ("flows.cli", "schemas.load", "mlflow.pyfunc", "torch")
NEED_MLFLOW = {
    "a folder that is no model",
    "the whole machine as a model",
    "predictions where none can be written",
    "a run of 5,000 letters",
    "resume of nothing",
    "replay of nothing",
    "evaluation of nothing",
    "verification of no address",
    "prediction with no address",
}  # before they are refused: seconds each
NAME = re.compile(r"^│ ([a-z]+)\s")


def command(folder: Path, arguments: list[str], variables: dict[str, str]) -> dict[str, Any]:
    """A call of the installed command, for `calls`."""
    return {
        "program": "flows.cli:main",
        "arguments": arguments,
        "folder": str(folder),
        "variables": variables,
    }


def help_texts(scratch: Path) -> dict[str, str]:
    """Help of the command itself, under `bulkhead`, and of each of its commands; spaces at the ends
    of lines are left out.
    """
    home = environment(BULKHEAD_HOME=str(scratch / "home"))
    (overview,) = calls([command(ROOT, ["--help"], home)], ["flows.cli"], scratch)
    _, _, listed = overview["stdout"].partition("Commands ─")
    names = [found.group(1) for line in listed.splitlines() if (found := NAME.match(line))]
    each = calls([command(ROOT, [name, "--help"], home) for name in names], ["flows.cli"], scratch)
    shown = {"bulkhead": overview, **dict(zip(names, each, strict=True))}
    wrong = {
        name: found["code"]
        for name, found in shown.items()
        if found["code"] or "Usage" not in found["stdout"]
    }
    if wrong or not names:
        raise RuntimeError(f"no help, by exit code: {wrong or overview}")
    return {
        name: "\n".join(line.rstrip() for line in found["stdout"].splitlines()).strip("\n") + "\n"
        for name, found in shown.items()
    }


def schema_lines(folder: Path) -> list[str]:
    """The JSON schema with a line for each definition, and for each of its properties, in the order
    in which they are printed.
    """
    done = bulkhead("schema", folder=ROOT, BULKHEAD_HOME=str(folder / "home"))
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    schema = json.loads(done.stdout)
    lines = []
    for name, definition in [
        *schema.get("$defs", {}).items(),
        ("(declaration)", {key: value for key, value in schema.items() if key != "$defs"}),
    ]:
        properties = definition.get("properties", {})
        lines.append(
            f"{name} {_compact({k: v for k, v in definition.items() if k != 'properties'})}"
        )
        lines += [f"{name}.{key} {_compact(value)}" for key, value in properties.items()]
    return lines


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ------------------------------------------------------------------------------------------- bad
# input


def spoilt(folder: Path, spoil: Spoil) -> dict[str, Any]:
    """A call of the command on a sound case that was spoilt."""
    folder.mkdir(parents=True)
    write(folder)
    with patch.dict(os.environ, environment(BULKHEAD_HOME=str(folder / "home")), clear=True):
        arguments = spoil(folder) or ["prepare", "run.yaml"]
        return command(folder, arguments, dict(os.environ))


def declaration_codes(scratch: Path, names: Iterable[str] = DECLARATIONS) -> dict[str, int]:
    """Exit code of bad declarations or commands."""
    wanted = list(names)
    given = [
        spoilt(scratch / "cases" / str(number), DECLARATIONS[name][0])
        for number, name in enumerate(wanted)
    ]
    loaded = LOADED if NEED_MLFLOW & set(wanted) else LOADED[:2]
    return {
        name: found["code"]
        for name, found in zip(wanted, calls(given, loaded, scratch), strict=True)
    }


def data_codes(scratch: Path) -> dict[str, int]:
    """Exit code of each table or address of which nothing good can come, in this process beside one
    server of Prefect; minutes.
    """
    from prefect.testing.utilities import prefect_test_harness
    from typer.testing import CliRunner

    from flows.cli import app

    found = {}
    with prefect_test_harness(server_startup_timeout=180):
        for number, (name, (spoil, _)) in enumerate(DATA.items()):
            folder = scratch / "cases" / str(number)
            folder.mkdir(parents=True)
            write(folder)
            with (
                contextlib.chdir(folder),
                patch.dict(os.environ, {"BULKHEAD_HOME": str(folder / "home")}),
            ):
                found[name] = (
                    CliRunner().invoke(app, spoil(folder) or ["prepare", "run.yaml"]).exit_code
                )
    return found
