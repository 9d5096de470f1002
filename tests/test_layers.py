"""The arrows of the design: who may import whom, proven in fresh interpreters and on the source."""

from __future__ import annotations

import ast
import fnmatch
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {
    "schemas": {"schemas"},
    "training/data": {"training.data", "schemas"},
    "training": {"training", "schemas"},
    "tasks": {"tasks", "training", "schemas"},
    "flows": {"flows", "tasks", "schemas"},
}
OURS = {"schemas", "training", "tasks", "flows"}
MLFLOW_FILES = {
    "training/tracking.py",
    "training/registry.py",
    "training/serving.py",
    "training/signature.py",
    "training/score_file.py",
    "training/verify.py",
    "training/promotion.py",
    "training/recorded.py",
    "training/reproduce.py",
}


SHIPPED = ("training/data/serving_expressions/", "training/data/serving_text/")


def layer(path: Path) -> str:
    relative = path.relative_to(ROOT).as_posix()
    return next(name for name in ("training/data", *ALLOWED) if relative.startswith(name + "/"))


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if (
                path.relative_to(ROOT).as_posix().startswith(SHIPPED)
            ):  # goes with the model under another name, so its parts know each other by place
                assert node.level <= 1 and (
                    node.level == 1 or str(node.module).split(".")[0] not in OURS
                ), f"{path}: reaches out of its package"
                continue
            assert not node.level, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


SOURCES = sorted(p for name in OURS for p in (ROOT / name).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_file_imports_its_own_layer_and_those_below(path: Path) -> None:
    relative = path.relative_to(ROOT).as_posix()
    allowed = (
        set[str]()
        if relative.startswith(SHIPPED) or relative == "training/serving.py"
        else ALLOWED[layer(path)]
    )
    for name in imports(path):
        if name.split(".")[0] in OURS:
            assert any(name == a or name.startswith(a + ".") for a in allowed), (
                f"{relative} imports {name}"
            )
        if relative.startswith(("training/", "schemas/")):
            assert not name.startswith("prefect"), f"{relative} imports {name}"
            assert not name.startswith("mlflow") or relative in MLFLOW_FILES, (
                f"{relative} imports {name}"
            )


def test_tasks_never_import_each_other_except_what_they_share() -> None:
    shared = {
        "tasks.say",
        "tasks.live",
        "tasks.store",
        "tasks.context",
        "tasks.turns",
        "tasks.claim",
        "tasks.guarded",
        "tasks.stop",
        "tasks.family",
        "tasks.ranks",
    }
    for path in sorted((ROOT / "tasks").glob("*.py")):
        for name in imports(path):
            if name.startswith("tasks."):
                assert ".".join(name.split(".")[:2]) in shared, f"{path.name} imports {name}"


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("schemas.config", ("torch", "prefect", "mlflow", "duckdb", "training")),
        ("schemas.records", ("torch", "prefect", "mlflow", "duckdb", "training")),
        ("training.data.split", ("torch", "prefect", "mlflow")),
        ("training.data.shards", ("torch", "prefect", "mlflow")),
        ("training.data.leakage", ("torch", "prefect", "mlflow")),
        ("training", ("prefect", "mlflow", "torch")),
        (
            "training.loop",
            ("prefect", "mlflow", "pandas", "sklearn", "matplotlib"),
        ),  # what a rank has no use for makes no run start later
        (
            "training.main",
            ("prefect", "mlflow", "torch", "sklearn"),
        ),  # it follows its parent before the long loading
        ("flows.cli", ("torch", "prefect", "mlflow")),
    ],
)
def test_a_fresh_interpreter_loads_only_what_the_layer_may(
    module: str, absent: tuple[str, ...]
) -> None:
    code = f"import sys, {module}; print([m for m in {absent!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_an_installation_holds_every_package() -> None:
    """A list that is kept by hand forgets one; only editable installations work then."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "packages"
    ]["find"]["include"]
    folders = {
        path.parent.relative_to(ROOT) for name in OURS for path in (ROOT / name).rglob("*.py")
    }
    assert [str(f) for f in folders if not (ROOT / f / "__init__.py").is_file()] == []
    assert [
        str(f)
        for f in folders
        if not any(fnmatch.fnmatch(".".join(f.parts), pattern) for pattern in patterns)
    ] == []
    assert not any(
        fnmatch.fnmatch(name, pattern) for name in ("tests", "benchmarks") for pattern in patterns
    )
