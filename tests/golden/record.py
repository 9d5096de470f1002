"""Record today's tree as what must stay equal.

    python -m tests.golden.record weights run help schema codes review      (or: all)

The tests of this folder then compare with what was recorded.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.golden import command_line, corpus, runs, whole_run

FILE = Path(__file__).with_name("golden.json")
FINDINGS = Path(__file__).with_name("findings.txt")
WARNING = (
    "This gives up the promise that what is recorded stays equal: whatever the tree does now counts"
    " as right from then on. Do it only for a change that is meant, for the part that it changes,"
    " say why in the commit, and read the difference in git before it is committed."
)


def load() -> dict[str, Any]:
    """What was recorded, but for help, schema and findings, which have files of their own."""
    return dict(json.loads(FILE.read_text(encoding="utf-8"))) if FILE.exists() else {}


def load_findings() -> dict[str, list[str]]:
    """The recorded findings by program: a line each, `key: rule:line, …`."""
    pairs = (
        line.split(": ", 1) if ": " in line else (line.removesuffix(":"), "")
        for line in FINDINGS.read_text(encoding="utf-8").splitlines()
    )
    return {key: entries.split(", ") if entries else [] for key, entries in pairs}


def write_findings(found: dict[str, list[str]]) -> None:
    """Write findings as `load_findings` reads them."""
    FINDINGS.write_text(
        "".join(
            f"{key}: {', '.join(entries)}".rstrip() + "\n" for key, entries in sorted(found.items())
        ),
        encoding="utf-8",
    )


def differences(recorded: Any, found: Any, place: str) -> list[str]:
    """A line for each place where two JSON-able values differ, with both of them."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        return [
            line
            for name in sorted({*recorded, *found})
            for line in differences(recorded.get(name), found.get(name), f"{place}: {name}")
        ]
    if isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
        return [
            line
            for number, pair in enumerate(zip(recorded, found, strict=True))
            for line in differences(*pair, f"{place}[{number}]")
        ]
    if isinstance(recorded, list) and isinstance(found, list):
        return [f"{place}: {entry} is gone" for entry in recorded if entry not in found] + [
            f"{place}: {entry} is new" for entry in found if entry not in recorded
        ]
    return (
        []
        if recorded == found and type(recorded) is type(found)
        else [f"{place}: recorded {recorded!r}, found {found!r}"]
    )


def _store(**parts: Any) -> None:
    FILE.write_text(
        json.dumps(load() | parts, indent=1, sort_keys=True, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )


def _weights(folder: Path) -> None:
    _store(weights=runs.train(folder, list(runs.CASES)))


def _run(folder: Path) -> None:
    _store(run=whole_run.run(folder))


def _help(folder: Path) -> None:
    for path in command_line.HELP.glob("*.txt"):
        path.unlink()
    command_line.HELP.mkdir(exist_ok=True)
    for name, text in command_line.help_texts(folder).items():
        (command_line.HELP / f"{name}.txt").write_text(text, encoding="utf-8")


def _schema(folder: Path) -> None:
    command_line.SCHEMA.write_text(
        "\n".join(command_line.schema_lines(folder)) + "\n", encoding="utf-8"
    )


def _codes(folder: Path) -> None:
    _store(
        codes=command_line.declaration_codes(folder / "declarations")
        | command_line.data_codes(folder / "data")
    )


def _review(folder: Path) -> None:
    write_findings(corpus.findings(corpus.programs(), folder / "programs"))
    _store(rules=corpus.rules())


PARTS: dict[str, Callable[[Path], None]] = {
    "weights": _weights,
    "run": _run,
    "help": _help,
    "schema": _schema,
    "codes": _codes,
    "review": _review,
}


def main() -> None:
    """Record the parts that are named."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden.record",
        description=f"Record today's tree as what must stay equal. {WARNING}",
    )
    parser.add_argument(
        "parts",
        nargs="+",
        choices=[*PARTS, "all"],
        help="what to record again; codes takes minutes",
    )
    wanted = parser.parse_args().parts
    for name in PARTS if "all" in wanted else wanted:
        with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
            PARTS[name](Path(scratch) / name)
        print(f"recorded: {name}")


if __name__ == "__main__":
    main()
