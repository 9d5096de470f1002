"""Hold files and functions to their limits; the lists of exceptions in limits.json only shrink.

python -m tests.test_limits      # write limits.json again, after something became shorter
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = Path(__file__).with_name("limits.json")
FILE_LINES, FUNCTION_LINES = 400, 50
PRODUCT = ("flows", "tasks", "schemas", "training")


def sources() -> dict[str, str]:
    """Return the text of each file of the product by its path."""
    paths = sorted(path for name in PRODUCT for path in (ROOT / name).rglob("*.py"))
    return {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in paths}


def long_files(texts: dict[str, str]) -> dict[str, int]:
    """Return the lines of each file above the limit."""
    sizes = {path: len(text.splitlines()) for path, text in texts.items()}
    return {path: lines for path, lines in sizes.items() if lines > FILE_LINES}


def long_functions(texts: dict[str, str]) -> dict[str, int]:
    """Return the lines of each function above the limit, as path:name."""
    found: dict[str, int] = {}
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    key = f"{path}:{node.name}"
                    found[key] = max(lines, found.get(key, 0))
    return found


def repeated_names(texts: dict[str, str]) -> dict[str, int]:
    """Return how often a file name occurs within training/, where it is more than once."""
    names = (Path(path).name for path in texts if path.startswith("training/"))
    counted = Counter(name for name in names if not name.startswith("__"))
    return {name: times for name, times in sorted(counted.items()) if times > 1}


def measured() -> dict[str, dict[str, int]]:
    """Return what lies above the limits now."""
    texts = sources()
    return {
        "files": long_files(texts),
        "functions": long_functions(texts),
        "names": repeated_names(texts),
    }


def worse(now: dict[str, int], allowed: dict[str, int]) -> list[str]:
    """Return what is above its limit and not excepted, or above its exception."""
    return [f"{key}: {size}" for key, size in now.items() if size > allowed.get(key, 0)]


def test_nothing_grows_above_its_limit() -> None:
    allowed = json.loads(LIMITS.read_text())
    for kind, now in measured().items():
        assert worse(now, allowed[kind]) == [], f"{kind}: make it shorter; the list only shrinks"


def test_an_exception_that_is_not_needed_leaves_the_list() -> None:
    now, allowed = measured(), json.loads(LIMITS.read_text())
    for kind, listed in allowed.items():
        gone = {key for key in listed if listed[key] != now[kind].get(key)}
        assert gone == set(), f"{kind}: shorter now; run python -m tests.test_limits"


def test_a_long_file_and_function_and_a_repeated_name_are_found() -> None:
    body = "".join(f"    x = {n}\n" for n in range(FILE_LINES))
    planted = {"training/a/one.py": f"def f():\n{body}", "training/b/one.py": "x = 1\n"}
    assert long_files(planted) == {"training/a/one.py": 401}
    assert long_functions(planted) == {"training/a/one.py:f": 401}
    assert repeated_names(planted) == {"one.py": 2}
    assert worse({"a": 401}, {}) == ["a: 401"] and worse({"a": 401}, {"a": 401}) == []


if __name__ == "__main__":
    LIMITS.write_text(json.dumps(measured(), indent=1) + "\n")
