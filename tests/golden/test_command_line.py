"""Help, JSON schema and exit codes are those that were recorded."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.golden.command_line import (
    HELP,
    NEED_MLFLOW,
    SCHEMA,
    data_codes,
    declaration_codes,
    help_texts,
    schema_lines,
)
from tests.golden.record import differences, load
from tests.zoo.bad_inputs import DATA, DECLARATIONS

COMMANDS = sorted(path.stem for path in HELP.glob("*.txt"))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return help_texts(tmp_path_factory.mktemp("help"))


def changed(recorded: list[str], found: list[str]) -> list[str]:
    """Lines of a diff, without what is equal."""
    return list(difflib.unified_diff(recorded, found, "recorded", "found", n=0, lineterm=""))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_is_the_recorded_one(shown: dict[str, str], name: str) -> None:
    recorded = (HELP / f"{name}.txt").read_text(encoding="utf-8")
    assert changed(recorded.splitlines(), shown[name].splitlines()) == [], (
        "if it is meant: python -m tests.golden.record help"
    )


def test_every_command_is_recorded(shown: dict[str, str]) -> None:
    assert sorted(shown) == COMMANDS and {"bulkhead", "run", "review", "verify"} <= set(COMMANDS)


def test_the_json_schema_is_the_recorded_one(tmp_path: Path) -> None:
    recorded = SCHEMA.read_text(encoding="utf-8").splitlines()
    assert len(recorded) > 300
    assert changed(recorded, schema_lines(tmp_path)) == [], (
        "if it is meant: python -m tests.golden.record schema"
    )


def test_a_default_and_an_option_that_differ_are_noticed() -> None:
    recorded = SCHEMA.read_text(encoding="utf-8").splitlines()
    found = [
        (
            line.replace('"default":30', '"default":31')
            if line.startswith("TrainConfig.epochs ")
            else line
        )
        for line in recorded
    ]
    lines = changed(recorded, found)
    assert [line[:20] for line in lines[3:]] == ["-TrainConfig.epochs ", "+TrainConfig.epochs "]
    text = (HELP / "run.txt").read_text(encoding="utf-8")
    assert "--json" in text and changed(
        text.splitlines(), text.replace("--json", "--Json").splitlines()
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "names",
    [
        sorted(DECLARATIONS.keys() - NEED_MLFLOW),
        pytest.param(sorted(NEED_MLFLOW), marks=pytest.mark.long),
    ],
    ids=["quick", "more"],
)
def test_bad_declarations_and_commands_end_with_the_recorded_code(
    tmp_path: Path, names: list[str]
) -> None:
    assert (
        differences(
            {name: load()["codes"][name] for name in names},
            declaration_codes(tmp_path, names),
            "exit code",
        )
        == []
    )


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_bad_data_end_with_the_recorded_code(tmp_path: Path) -> None:
    assert (
        differences(
            {name: load()["codes"][name] for name in DATA}, data_codes(tmp_path), "exit code"
        )
        == []
    )


def test_both_codes_of_a_refusal_are_recorded_and_another_one_is_named() -> None:
    recorded = load()["codes"]
    assert set(recorded.values()) == {1, 2} and len(recorded) >= 120
    name = next(name for name, code in recorded.items() if code == 2)
    assert differences(recorded, recorded | {name: 1}, "exit code") == [
        f"exit code: {name}: recorded 2, found 1"
    ]
