"""Text of a file or notebook, and the comments that allow a finding with a reason."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import re
import tokenize
import warnings
from pathlib import Path

from training.review.findings import Finding, Severity
from training.review.retired import RETIRED
from training.review.rules import KNOWN
from training.review.syntax import parsed

ALLOW = re.compile(
    r"#\s*bulkhead:\s*allow\s*(?:\[(?P<rules>[^\]]*)\])?\s*(?P<reason>.*)", re.IGNORECASE
)
UNREADABLE, NO_REASON, ALLOWS_NOTHING, RULE_FAILED, ALLOWS_RETIRED = (
    "BH001",
    "BH002",
    "BH003",
    "BH004",
    "BH005",
)
ABOUT_FILES = {
    UNREADABLE: (
        "unreadable",
        "a file cannot be opened, decoded or parsed, so that nothing in it was reviewed",
    ),
    NO_REASON: (
        "allowed-without-reason",
        "a comment that allows a finding names no rule, or gives no reason",
    ),
    ALLOWS_NOTHING: ("allows-nothing", "a comment allows a finding that is not there"),
    RULE_FAILED: (
        "rule-failed",
        (
            "a rule ended with an error of its own, so that its mistake was not looked for; the"
            " other rules were applied"
        ),
    ),
    ALLOWS_RETIRED: ("allows-retired", "a comment allows a finding of a rule that was removed"),
}
WHOLE_FILE = (1, 1 << 30)  # lines whose change can cause a finding
SHORTEST_REASON = 10  # letters, as for an allowance in a declaration


class Unreadable(Exception):
    """A file that is not Python; carries the finding that says so."""

    def __init__(self, path: str, line: int, column: int, message: str, cell: int = 0) -> None:
        super().__init__(message)
        self.finding = Finding(
            UNREADABLE,
            path,
            max(line, 1),
            max(column, 1),
            max(line, 1),
            max(column, 1),
            message,
            "error",
            WHOLE_FILE,
            cell,
        )


@dataclasses.dataclass(frozen=True)
class Source:
    """Text of a file. For a notebook: its code cells in order; `cells` holds their first lines."""

    path: str
    text: str
    cells: tuple[tuple[int, int], ...] = ()

    def parse(self) -> ast.Module:
        """Return the syntax tree.

        Raises:
            Unreadable: the text is not Python of this version.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return parsed(self.text)
        except (
            SyntaxError,
            ValueError,
            RecursionError,
            MemoryError,
            SystemError,
        ) as error:  # SystemError: deep nesting in Python 3.11
            line, column = (
                (error.lineno or 1, error.offset or 1) if isinstance(error, SyntaxError) else (1, 1)
            )
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            cell, line = self.place(line)
            raise Unreadable(
                self.path, line, column, f"cannot be parsed: {reason}", cell
            ) from error

    def place(self, line: int) -> tuple[int, int]:
        """Return the cell and the line in it; for a plain file, cell 0 and the line."""
        for number, first in reversed(self.cells):
            if first <= line:
                return number, line - first + 1
        return 0, line

    def placed(self, finding: Finding) -> Finding:
        """Return the finding at its place in the notebook."""
        if not self.cells:
            return finding
        cell, line = self.place(finding.line)
        return dataclasses.replace(
            finding,
            cell=cell,
            line=line,
            end_line=line + finding.end_line - finding.line,
            span=(line, line),
        )


def read_source(path: Path, name: str) -> Source:
    """Read the text of a `.py` or `.ipynb` file.

    Raises:
        Unreadable: it cannot be opened or decoded, or is not a notebook.
    """
    try:
        raw = path.read_bytes()
        if path.suffix == ".ipynb":
            return _notebook(name, raw)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        return Source(name, io.TextIOWrapper(io.BytesIO(raw), encoding, newline=None).read())
    except (OSError, SyntaxError, UnicodeError, LookupError) as error:
        raise Unreadable(
            name,
            1,
            1,
            f"cannot be read: {error}; save it as UTF-8 or declare its encoding in the first line",
        ) from error


def _notebook(name: str, raw: bytes) -> Source:
    try:
        cells = json.loads(raw)["cells"]
        code = [
            (i, "".join(c["source"]))
            for i, c in enumerate(cells, start=1)
            if c["cell_type"] == "code"
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unreadable(name, 1, 1, f"is no notebook of format 4: {error!r}") from error
    text, firsts, line = [], [], 1
    for number, cell in code:
        if cell.lstrip().startswith("%%"):
            continue
        firsts.append((number, line))
        text += [_without_magic(part) for part in cell.splitlines()]
        line += len(cell.splitlines())
    return Source(name, "\n".join(text) + "\n", tuple(firsts))


def _without_magic(line: str) -> str:
    """Return a line of a cell without IPython syntax, with the same indentation."""
    bare = line.lstrip()
    if bare.startswith(("%", "!", "?")) or (bare.endswith("?") and not bare.startswith("#")):
        return line[: len(line) - len(bare)] + "pass"
    return line


@dataclasses.dataclass
class _Allowance:
    rules: tuple[str, ...]
    reason: str
    line: int
    covers: tuple[int, int]
    used: set[str] = dataclasses.field(default_factory=set)


class Allowances:
    """The comments of one source that allow findings."""

    def __init__(self, source: Source, entries: list[_Allowance]) -> None:
        self.source = source
        self.entries = entries

    def judge(self, found: list[Finding], ran: set[str]) -> list[Finding]:
        """Return all findings, allowed ones with their reasons, and findings about the comments.

        Args:
            found: findings of the rules.
            ran: ids of the rules that ran; a comment for another rule is not unused.
        """
        judged = [self._allowed(f) for f in found]
        for entry in self.entries:
            cell, line = self.source.place(entry.line)
            for rule, message in self._wrong(entry, ran):
                severity: Severity = "note" if rule == ALLOWS_RETIRED else "warning"
                judged.append(
                    Finding(
                        rule,
                        self.source.path,
                        line,
                        1,
                        line,
                        1,
                        message,
                        severity,
                        (line, line),
                        cell,
                    )
                )
        return judged

    def _allowed(self, finding: Finding) -> Finding:
        for entry in self.entries:
            first, last = (self.source.place(n) for n in entry.covers)
            if (
                finding.rule in entry.rules
                and first <= (finding.cell, finding.end_line)
                and (finding.cell, finding.line) <= last
            ):
                entry.used.add(finding.rule)
                if len(entry.reason) >= SHORTEST_REASON:
                    return dataclasses.replace(finding, allowed=entry.reason)
        return finding

    def _wrong(self, entry: _Allowance, ran: set[str]) -> list[tuple[str, str]]:
        if not entry.rules:
            return [(NO_REASON, "names no rule; write # bulkhead: allow[BH101] and why")]
        wrong = [
            (ALLOWS_RETIRED, f"allows {rule}, a rule that was removed; remove the comment")
            for rule in entry.rules
            if rule in RETIRED
        ]
        wrong += [
            (ALLOWS_NOTHING, f"allows {rule}, which is no rule")
            for rule in entry.rules
            if rule not in KNOWN.keys() | RETIRED
        ]
        wrong += [
            (ALLOWS_NOTHING, f"allows {rule}, which finds nothing here; remove the comment")
            for rule in entry.rules
            if rule in ran - entry.used
        ]
        if len(entry.reason) < SHORTEST_REASON:
            wrong.append(
                (
                    NO_REASON,
                    f"gives no reason of {SHORTEST_REASON} letters or more, so nothing is allowed",
                )
            )
        return wrong


def allowances_of(source: Source) -> Allowances:
    """Read the allowing comments.

    At the end of a line a comment applies to that statement; on its own line, to the next one.
    """
    if "bulkhead" not in source.text:
        return Allowances(source, [])
    entries: list[_Allowance] = []
    logical: list[tuple[int, int]] = []
    comments: list[tuple[int, bool, re.Match[str]]] = []
    start = 0
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            match = ALLOW.match(token.string)
            if match:
                comments.append((token.start[0], not token.line[: token.start[1]].strip(), match))
        elif token.type == tokenize.NEWLINE:
            logical.append((start, token.end[0]))
            start = 0
        elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
            start = start or token.start[0]
    for line, alone, match in comments:
        covers = next(
            (
                (a, b)
                for a, b in logical
                if (a > line if alone and not a <= line <= b else a <= line <= b)
            ),
            (line, line),
        )
        rules = tuple(r.strip().upper() for r in (match["rules"] or "").split(",") if r.strip())
        entries.append(_Allowance(rules, match["reason"].strip(" :-–—"), line, covers))
    return Allowances(source, entries)
