"""The programs whose findings are recorded, each under a key that outlives others, and what
`bulkhead review` finds in them.

A wording and a program under watch are known by the SHA-256 of their text; a file of the zoo, and a
mistake planted in one, by its name. Files are reviewed as `ast.unparse` writes them, so that
neither the width of lines nor the formatter moves a finding.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.golden.pinned import ROOT, bulkhead

ZOO = ROOT / "tests" / "zoo"
FOLDERS = ("faulty", "scripts", "sound")


def digest(text: str) -> str:
    """The first letters of the SHA-256 of a program's text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def canonical(text: str) -> str:
    """The program without comments and formatting."""
    return ast.unparse(ast.parse(text)) + "\n"


def programs() -> dict[str, str]:
    """Every program that is in the tree now, by its key."""
    return dict([*_files(), *_mutations(), *_wordings(), *_watched()])


def _files() -> Iterator[tuple[str, str]]:
    for path in sorted(path for folder in FOLDERS for path in (ZOO / folder).glob("*.py")):
        yield f"{path.parent.name}/{path.stem}", canonical(path.read_text(encoding="utf-8"))


def _mutations() -> Iterator[tuple[str, str]]:
    from tests.zoo.mutations import MUTATIONS

    for mutation in MUTATIONS:
        yield f"{mutation.program} with {mutation.rule}", canonical(mutation.text)


def _wordings() -> Iterator[tuple[str, str]]:
    """Programs of the text files, each below a heading `### rules name`."""
    for path in sorted(ZOO.glob("*.txt")):
        for part in path.read_text(encoding="utf-8").split("### ")[1:]:
            head, _, code = part.partition("\n")
            yield f"{head.split()[-1]} {digest(code)}", code


def _watched() -> Iterator[tuple[str, str]]:
    from tests.training.watch.programs import BASES, PLANTED, SOUND

    for name, text in (SOUND | BASES).items():
        yield f"watched {name} {digest(text)}", text
    for planted in PLANTED:
        text = BASES[planted.base].replace(planted.old, planted.new)
        yield f"watched {planted.base} with {planted.rule} {digest(text)}", text


def findings(texts: dict[str, str], folder: Path) -> dict[str, list[str]]:
    """What the command finds in each program: `rule:line`, sorted.

    Raises:
        RuntimeError: the command did not end as it does where something, or nothing, is found.
    """
    names = {f"program_{hashlib.sha256(key.encode()).hexdigest()[:16]}.py": key for key in texts}
    folder.mkdir(parents=True)
    for name, key in names.items():
        (folder / name).write_text(texts[key], encoding="utf-8")
    done = bulkhead("review", str(folder), "--json", folder=ROOT)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"bulkhead review ended with {done.returncode}:\n{done.stderr[-3000:]}")
    found: dict[str, list[str]] = {key: [] for key in texts}
    report = json.loads(done.stdout)
    if report["files"] != len(texts):
        raise RuntimeError(f"{report['files']} files were reviewed, expected {len(texts)}")
    for entry in (*report["findings"], *report["allowed"]):
        found[names[Path(entry["path"]).name]].append(f"{entry['rule']}:{entry['line']}")
    return {key: sorted(entries) for key, entries in found.items()}


def rules() -> dict[str, str]:
    """Name of each rule that the command explains, by its id."""
    lines = bulkhead("review", "--explain", "all", folder=ROOT).stdout.splitlines()
    return {line.split()[0]: line.split()[2].removesuffix(":") for line in lines}


def changes(recorded: dict[str, list[str]], found: dict[str, list[str]]) -> list[str]:
    """A line for each finding that came or went, of programs that are on both sides."""
    lines = []
    for key in sorted(recorded.keys() & found.keys()):
        came, gone = (
            sorted(set(found[key]) - set(recorded[key])),
            sorted(set(recorded[key]) - set(found[key])),
        )
        lines += [f"{key}: new finding {entry}" for entry in came] + [
            f"{key}: {entry} is no longer found" for entry in gone
        ]
    return lines


if __name__ == "__main__":  # the findings of this tree as JSON, to compare two trees by hand
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        json.dump(findings(programs(), Path(scratch) / "programs"), sys.stdout, indent=0)
