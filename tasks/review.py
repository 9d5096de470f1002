"""Review code from the command line: files, changes, and a program while it runs."""

from __future__ import annotations

import difflib
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from schemas.errors import ConfigError, first_few
from training.review.command import (
    Reviewed,
    choose,
    relative,
    review_changes,
    review_paths,
    revision_and_paths,
    rule_ids_in,
)
from training.review.engine import review_file
from training.review.findings import Finding, Rule
from training.review.formats import explain
from training.review.parts import taken_in_parts
from training.review.retired import RETIRED
from training.review.rules import KNOWN
from training.watch.launch import run_watched, starts_ranks

__all__ = [
    "Ran",
    "Reviewed",
    "choose",
    "chooses",
    "explanation",
    "review_changes",
    "review_paths",
    "review_run",
    "revision_and_paths",
    "rule_ids",
    "rule_ids_in",
    "trains",
]


class Ran(NamedTuple):
    """Outcome of a program that was run under watch."""

    steps: int
    complete: bool
    error: str
    seconds: float
    unseen: tuple[str, ...] = ()
    backwards: int = 0

    def told(self) -> str:
        """Describe the outcome in a line, and what the watch could not observe in another."""
        ended = (
            f"ended with {self.error}"
            if self.error
            else "came to its end"
            if self.complete
            else "was ended when its time was up"
        )
        made = f"{self.steps} optimizer steps" + (
            f", {self.backwards} backward passes" if self.backwards and not self.steps else ""
        )
        line = f"{'✗' if self.error else '✓'} ran for {self.seconds:.0f} s: {made}, {ended}"
        return line + (
            "\n⚠ not looked at, because the watch itself failed there:"
            f" {first_few(list(self.unseen))}"
            if self.unseen
            else ""
        )


def review_run(
    program: Path,
    arguments: Sequence[str],
    seconds: float,
    ranks: int | None,
    rules: Sequence[Rule],
    strict: Callable[[str], bool],
) -> Reviewed:
    """Run a program under watch in its own process; add the observations to the findings in its
    files.

    Args:
        program: a Python file; its output goes to standard error.
        arguments: its command line.
        seconds: end it at the next optimizer step after this time.
        ranks: processes in one group; None: two if it makes a group that works on a CPU, else one.
        rules: rules that read the code.
        strict: selects the rules that get the observations.

    Raises:
        ConfigError: it is not a Python file, makes no group for several ranks, or ended without an
            error before any training was observed.
    """
    if not program.exists():
        raise ConfigError(
            f"{program} does not exist (looked for in {Path.cwd()}); --run takes one Python file,"
            " the program that trains"
        )
    if program.suffix != ".py" or not program.is_file():
        raise ConfigError(f"{program}: --run takes one Python file, the program that trains")
    text = program.read_text(encoding="utf-8", errors="replace")
    if ranks is None:
        ranks = (
            2 if "init_process_group(" in text and "gloo" in text and not starts_ranks(text) else 1
        )
    if ranks > 1 and "init_process_group" not in text:
        raise ConfigError(
            f"{program} makes no process group (torch.distributed.init_process_group); run it"
            " without --ranks"
        )
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        told = run_watched(program, list(arguments), seconds, ranks, Path(folder))
    ran = Ran(
        told["steps"],
        told["complete"],
        told["error"],
        time.monotonic() - started,
        tuple(told["failures"]),
        told["backwards"],
    )
    if not ran.steps and not ran.backwards and not ran.error:
        raise ConfigError(
            f"{program} ended without a backward pass or an optimizer step of this process, so that"
            " nothing was seen; give --args what makes it train"
        )
    seen = defaultdict(list)
    for found in told["found"]:
        if (
            found["rule"] == "BH803"
            and Path(found["path"]).resolve() == program.resolve()
            and taken_in_parts(text, found["line"])
        ):
            continue  # rows of both splits are scored at once, and each split by itself
        if found["rule"] in KNOWN and strict(found["rule"]):
            line, message = found["line"], f"seen while it ran: {found['message']}"
            severity = KNOWN[found["rule"]].severity
            seen[Path(found["path"]).resolve()].append(
                Finding(
                    found["rule"],
                    relative(found["path"]),
                    line,
                    1,
                    line,
                    1,
                    message,
                    severity,
                    (line, line),
                )
            )
    # reading cannot know this: the number of batches was a multiple of the window
    if told["even_windows"]:
        rules = [r for r in rules if r.id != "BH122"]
    files = {program.resolve(): str(program)} | {
        path: relative(str(path)) for path in seen if path != program.resolve()
    }
    findings = [
        f
        for path, name in files.items()
        for f in review_file(path, rules, name, [replace(s, path=name) for s in seen[path]])
    ]
    return Reviewed(findings, len(files), ran.told(), ran._asdict())


def trains(path: Path) -> bool:
    """Return True if a file looks like a program that trains."""
    text = (
        path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".py" and path.is_file()
        else ""
    )
    return ".backward(" in text and ".step(" in text and "import torch" in text


def chooses(select: Sequence[str], ignore: Sequence[str]) -> Callable[[str], bool]:
    """Return a predicate of rule ids: does the rule get the observations of a program."""
    return lambda id: (
        (not select or id.startswith(tuple(select))) and not id.startswith(tuple(ignore) or ("-",))
    )


def explanation(id: str) -> str:
    """Return the page of a rule, by its id or name; for `all`, a line for each rule.

    Raises:
        ConfigError: there is no such rule.
    """
    if id == "all":
        return "\n".join(
            f"{rule.id} {rule.severity:<7} {rule.name}: {rule.title}" for rule in KNOWN.values()
        )
    if id.upper() in RETIRED:
        raise ConfigError(f"{id.upper()}: this rule was removed; its id is given to no other")
    rule = KNOWN.get(id.upper()) or next((r for r in KNOWN.values() if r.name == id), None)
    if rule is None:
        close = difflib.get_close_matches(id, [r.name for r in KNOWN.values()], n=1)
        meant = f" did you mean {close[0]}?" if close else ""
        raise ConfigError(f"{id}: no such rule;{meant} --explain all lists them by id and name")
    return explain(rule)


def rule_ids() -> list[tuple[str, str]]:
    """Return ids and titles of all rules, for completion."""
    return [(rule.id, rule.title) for rule in KNOWN.values()]
