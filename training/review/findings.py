"""Rules and their findings."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from training.review.program import Program
from training.review.trace import Event, traces

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One mistake. Lines and columns count from 1; `span` is the region that can cause it."""

    rule: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    message: str
    severity: Severity
    span: tuple[int, int]
    cell: int = 0
    allowed: str = ""


@dataclass(eq=False)
class Subject:
    """A file under review, and the results that several rules need."""

    program: Program

    @cached_property
    def traces(self) -> list[list[Event]]:
        """Return the events of the file in order of execution."""
        return (
            traces(self.program)
            if "torch" in self.program.modules_imported
            or not OTHER_LIBRARIES & self.program.modules_imported
            else []
        )

    @cached_property
    def trains(self) -> bool:
        """Return whether the file computes a gradient anywhere."""
        return any(e.kind == "backward" for trace in self.traces for e in trace)

    @cached_property
    def framework(self) -> bool:
        """Return whether a framework such as Lightning or a Trainer runs the loop.

        It then does there what a hand-written loop must do. A framework that only starts a
        function of the file on its workers does not count.
        """
        trainers = (
            name
            for name in self.program.aliases.values()
            if name.endswith("Trainer") and not name.startswith("ray.")
        )
        by_fabric = {
            "fabric",
            "Fabric",
        } & self.program.identifiers  # Fabric leaves the loop to its user
        return (bool(self.program.modules_imported & FRAMEWORKS) and not by_fabric) or any(trainers)


OTHER_LIBRARIES = {
    "tensorflow",
    "mxnet",
    "jax",
    "flax",
    "paddle",
    "mindspore",
}  # their loops have other rules
FRAMEWORKS = {
    "lightning",
    "pytorch_lightning",
    "lightning_fabric",
    "composer",
    "ignite",
    "fastai",
    "deepspeed",
    "catalyst",
    "skorch",
}
Place = tuple[ast.AST, str] | tuple[ast.AST, str, ast.AST]
Check = Callable[[Subject], Iterable[Place]]


@dataclass(frozen=True)
class Rule:
    """A mistake as its page describes it (`pages/BH101.md`): cause, remedy, bad and good code.

    `check` yields places: the node, a message, and sometimes the node whose lines can cause it.
    Severity `note` is reported only with `--strict`, since correct code does it too.
    """

    id: str
    name: str
    severity: Severity
    title: str
    why: str
    remedy: str
    bad: str
    good: str
    check: Check = field(compare=False, repr=False)

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield the mistakes of one file, each place once."""
        seen: set[tuple[int, int]] = set()
        for place in self.check(subject):
            node, message = place[0], place[1]
            around = place[2] if len(place) > 2 and isinstance(place[2], ast.AST) else node
            line, column = int(getattr(node, "lineno", 1)), int(getattr(node, "col_offset", 0)) + 1
            if (line, column) in seen:
                continue
            seen.add((line, column))
            end, last = (
                int(getattr(node, "end_lineno", None) or line),
                int(getattr(node, "end_col_offset", None) or column) + 1,
            )
            span = (
                int(getattr(around, "lineno", line)),
                int(getattr(around, "end_lineno", None) or end),
            )
            yield Finding(
                self.id, subject.program.path, line, column, end, last, message, self.severity, span
            )


PAGES = Path(__file__).parent / "pages"
PAGE = re.compile(
    r"# (BH\d{3}): (\S+)\n\nSeverity: (error|warning|note)\n\n\*\*(.+?)\.\*\*\n(.+?)\n\n\*\*What to"
    r" do:\*\*\n(.+?)\.\n\n```diff\n(.+)```\n",
    re.DOTALL,
)
RULES: dict[str, Rule] = {}


def read_rule(id: str, check: Check) -> Rule:
    """Read the page of a rule.

    Its `diff` block holds both programs. Lines that begin with `-` or a space are the wrong one;
    those with `+` or a space are the right one.

    Raises:
        ValueError: the page has another form.
    """
    page = PAGE.fullmatch((PAGES / f"{id}.md").read_text(encoding="utf-8"))
    if page is None or page[1] != id:
        raise ValueError(f"pages/{id}.md has not the form of a rule's page")
    lines = page[7].splitlines()
    bad, good = (
        "".join(f"{line[1:]}\n" for line in lines if not line.startswith(other)) for other in "+-"
    )
    severity: Severity = (
        "error" if page[3] == "error" else "warning" if page[3] == "warning" else "note"
    )
    return Rule(
        id,
        page[2],
        severity,
        page[4],
        page[5].replace("\n", " "),
        page[6].replace("\n", " "),
        bad,
        good,
        check,
    )


def rule(id: str) -> Callable[[Check], Check]:
    """Register a function as the check of the rule with this id."""

    def register(check: Check) -> Check:
        if id in RULES:
            raise ValueError(f"two rules are called {id}")
        RULES[id] = read_rule(id, check)
        return check

    return register
