"""The arrows of the design: allowed imports, proven in fresh interpreters and on the source."""

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
# Packages within training/: what each imports of the others. training.data's own modules, and
# formatting and uncollected at the top, may be imported by all.
INNER: dict[str, set[str]] = {
    "boosting": {"checkpoint", "data.arrays", "engine", "launch", "models", "objectives", "run"},
    "checkpoint": {"distributed", "optim", "run"},
    "data.arrays": {"data.engine", "data.fit", "data.serving_expressions", "data.serving_text"},
    "data.dependence": set(),
    "data.draft": {
        "data.arrays",
        "data.dependence",
        "data.engine",
        "data.fit",
        "data.serving_expressions",
        "data.sources",
        "data.split",
        "data.table",
    },
    "data.engine": set(),
    "data.fit": {"data.engine", "data.serving_expressions", "data.serving_text"},
    "data.leakage": {
        "data.dependence",
        "data.draft",
        "data.engine",
        "data.sources",
        "data.split",
        "data.table",
    },
    "data.look": {"data.dependence", "data.draft", "data.engine", "data.sources", "data.table"},
    "data.serving_expressions": set(),
    "data.serving_text": set(),
    "data.sources": {"data.engine", "data.serving_expressions"},
    "data.split": {"data.engine", "data.fit", "data.table"},
    "data.table": {"data.engine", "data.serving_expressions", "data.sources"},
    "distributed": set(),
    "engine": {
        "checkpoint",
        "data.arrays",
        "data.engine",
        "distributed",
        "launch",
        "models",
        "objectives",
        "optim",
        "run",
    },
    "evaluation": {
        "boosting",
        "checkpoint",
        "data.arrays",
        "data.leakage",
        "data.serving_text",
        "engine",
        "models",
        "objectives",
        "run",
        "serving",
    },
    "launch": {"distributed"},
    "models": {"data.arrays", "objectives"},
    "objectives": {"data.arrays"},
    "optim": set(),
    "preflight": {
        "boosting",
        "data.arrays",
        "data.engine",
        "data.fit",
        "data.leakage",
        "data.serving_text",
        "data.split",
        "distributed",
        "engine",
        "models",
        "objectives",
        "optim",
        "review",
        "serving",
    },
    "registry": {
        "checkpoint",
        "data.arrays",
        "data.engine",
        "data.leakage",
        "data.serving_expressions",
        "data.serving_text",
        "data.sources",
        "data.split",
        "engine",
        "evaluation",
        "models",
        "objectives",
        "run",
        "serving",
        "tracking",
    },
    "replay": {"checkpoint", "distributed", "engine", "models", "objectives"},
    "report": {
        "checkpoint",
        "data.dependence",
        "data.leakage",
        "engine",
        "evaluation",
        "registry",
        "run",
        "tracking",
    },
    "review": {"data.leakage"},
    "run": {"distributed"},
    "search": set(),
    "serving": {
        "data.arrays",
        "data.engine",
        "data.serving_expressions",
        "data.serving_text",
        "engine",
        "models",
        "objectives",
        "run",
    },
    "tracking": {"run"},
    "watch": {"distributed", "review"},
}
LATE_CIRCLES = {  # closed by an import within a function; a list that may only shrink
    frozenset({"schemas.config", "schemas.token_config"}),
    frozenset({"training.objectives.label_losses", "training.objectives.losses"}),
    frozenset({"training.objectives.label_metrics", "training.objectives.metrics"}),
    frozenset({"training.watch.main", "training.watch.spawned"}),
    frozenset({"training.data.table.spark_validate", "training.data.table.validate"}),
}
OURS = {"schemas", "training", "tasks", "flows"}
MLFLOW_FILES = {
    "training/tracking/mlflow.py",
    "training/registry/registry.py",
    "training/serving/serving.py",
    "training/serving/signature.py",
    "training/registry/score_file.py",
    "training/registry/verify.py",
    "training/registry/promotion.py",
    "training/registry/version_record.py",
    "training/registry/reproduce.py",
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
            # goes with the model under another name, so its parts import each other relatively
            if path.relative_to(ROOT).as_posix().startswith(SHIPPED):
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
        if relative.startswith(SHIPPED) or relative == "training/serving/serving.py"
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


def package(module: str) -> str | None:
    """Return the package within training/ that a module lies in."""
    parts = module.split(".")
    if parts[0] != "training" or len(parts) < 2:
        return None
    inner = ".".join(parts[1:3])
    return inner if inner in INNER else parts[1] if parts[1] in INNER else None


def strongly_connected(arrows: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the sets of nodes that reach each other along the arrows, of two nodes and more."""
    reached = {node: {node} for node in arrows}
    for _ in arrows:
        grown = {n: found.union(*(arrows[m] for m in found)) for n, found in reached.items()}
        if grown == reached:
            break
        reached = grown
    circles = {frozenset(m for m in reached[n] if n in reached[m]) for n in arrows}
    return {circle for circle in circles if len(circle) > 1}


def modules_of(name: str, modules: set[str]) -> str | None:
    """Return the module that an imported name is or lies in."""
    return name if name in modules else name.rpartition(".")[0] if "." in name else None


def test_packages_of_training_import_each_other_one_way() -> None:
    found: dict[str, set[str]] = {name: set() for name in INNER}
    for path in sorted((ROOT / "training").rglob("*.py")):
        own = package(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if own is not None:
            found[own] |= {p for name in imports(path) if (p := package(name)) not in (None, own)}
    assert found == INNER
    assert strongly_connected(INNER) == set()
    planted = INNER | {"data.engine": INNER["data.engine"] | {"data.split"}}
    assert any("data.split" in circle for circle in strongly_connected(planted))


def test_modules_import_each_other_one_way() -> None:
    names = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in SOURCES}
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    arrows = {
        name: {m for n in imports(path) if (m := modules_of(n, set(names))) in names} - {name}
        for name, path in names.items()
    }
    packages = {name for name, path in names.items() if path.name == "__init__.py"}
    arrows = {name: targets - packages for name, targets in arrows.items()}
    assert strongly_connected(arrows) == LATE_CIRCLES


def test_the_top_of_training_has_few_modules() -> None:
    assert len(list((ROOT / "training").glob("*.py"))) <= 10


def test_tasks_never_import_each_other_except_what_they_share() -> None:
    shared = {
        "tasks.say",
        "tasks.live",
        "tasks.looks",
        "tasks.store",
        "tasks.context",
        "tasks.turns",
        "tasks.claim",
        "tasks.guarded",
        "tasks.stop",
        "tasks.family",
        "tasks.launch",
        "tasks.ranks",
        "tasks.programs",
        "tasks.child_runs",
        "tasks.early",
        "tasks.embedded",
        "tasks.trials",
        "tasks.shared_server",
        "tasks.poison",
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
        ("training.search.study", ("optuna", "torch", "prefect", "mlflow")),
        ("training.data.split.split", ("torch", "prefect", "mlflow")),
        ("training.data.arrays.shards", ("torch", "prefect", "mlflow")),
        ("training.data.leakage", ("torch", "prefect", "mlflow")),
        ("training", ("prefect", "mlflow", "torch")),
        (
            "training.engine.trainer",
            ("prefect", "mlflow", "pandas", "sklearn", "matplotlib"),
        ),  # code that a rank does not use delays no run
        (
            "training.main",
            ("prefect", "mlflow", "torch", "sklearn"),
        ),  # it follows its parent before the long loading
        ("flows.cli", ("torch", "prefect", "mlflow")),
        ("tasks.embedded", ("prefect", "uvicorn")),
        pytest.param(
            "flows.pipeline",
            ("prefect.server", "matplotlib", "torch", "training.report.page"),
            marks=pytest.mark.long,
        ),  # what follows training is imported while the ranks train
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
    """A list written by hand misses one; then only editable installations work."""
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
