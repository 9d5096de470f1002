"""Raw columns that replace derived features in the registered model, and the code that computes
these.

The code is `training.data.serving_expressions` in a zip named by its digest. Models of several
versions can therefore run in one process, each with its own code.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import zipfile
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd

from schemas.digest import verify, write_atomic
from schemas.load import declare
from schemas.records import FileRef, RunSpec, Statistics, TableSpec
from training.data import serving_expressions
from training.data.serving_expressions import raw_columns
from training.data.serving_expressions.vectors import WHOLE, family
from training.serving import serving

EXPRESSIONS = "expressions.zip"
ATTEMPTS = 400
MOMENT = datetime(2020, 6, 15, 12)
PLAIN: dict[str, Any] = {"n": 1, "b": True, "d": "2020-06-15", "s": "2020-06-15 12:00:00"}


def served_trees(spec: TableSpec, statistics: Statistics) -> tuple[dict[str, Any], list[str]]:
    """Return trees of the model's derived features and their inputs, and these features' names."""
    kinds = (statistics.numeric, statistics.categorical, statistics.bags)
    features = [s.name for kind in kinds for s in kind]
    windows = [spec.windows[s.name] for s in statistics.tensor if s.window]
    features = list(dict.fromkeys([*features, *(name for w in windows for name in w.types)]))
    kept = [name for name in features if name in spec.derived]
    needed = set(kept)
    for name in reversed(spec.derived):
        needed |= (
            spec.derived[name]["columns"].keys() & spec.derived.keys() if name in needed else set()
        )
    return {name: tree for name, tree in spec.derived.items() if name in needed}, kept


def describe(run: RunSpec, expressions: FileRef | None) -> dict[str, Any]:
    """Describe how derived features are computed from raw columns, for the model's spec.

    Returns:
        `derived`: trees; `raw`: for each column that derived features read, its name, its type in
        training and a made-up value (null if none was found from which all features can be
        computed); `expressions`: the code's file, digest and module; `spellings`, if there are any:
        the spelling of columns whose texts are numbers.
    """
    trees, kept = served_trees(run.spec, run.statistics)
    how = spellings(run)
    types = {name: kind for tree in trees.values() for name, kind in tree["columns"].items()}
    names = list(raw_columns(trees, kept))
    example = _example(trees, {name: types[name] for name in names}, kept, run.statistics)
    return {
        "derived": trees,
        "raw": [
            {"name": name, "type": types[name], "example": example.get(name)} for name in names
        ],
        "expressions": None if expressions is None else describe_code(expressions, code()[0]),
        **({"spellings": how} if how else {}),
    }


def spellings(run: RunSpec) -> dict[str, Any]:
    """Return the declared spelling of each raw column of the model that has one."""
    data = declare(run.declaration).data
    trees, kept = served_trees(run.spec, run.statistics)
    plain = [s.name for s in run.statistics.numeric if s.name not in trees]
    found = {name: data.column(name) for name in (*plain, *raw_columns(trees, kept))}
    return {
        name: column.written.model_dump(mode="json")
        for name, column in found.items()
        if column is not None and column.written is not None
    }


def describe_code(file: FileRef, module: str) -> dict[str, Any]:
    """Describe the code that is shipped with the model, for its spec."""
    return {
        "file": Path(file.path).name,
        "sha256": file.sha256,
        "num_bytes": file.num_bytes,
        "module": module,
    }


# --------------------------------------------------------------------------------------------- code


def code(package: ModuleType = serving_expressions) -> tuple[str, bytes]:
    """Return module name and bytes of the zip; both depend on the package's sources alone."""
    sources = {
        path.name: path.read_bytes()
        for path in sorted(Path(str(package.__file__)).parent.glob("*.py"))
    }
    name = (
        f"bulkhead_{package.__name__.rpartition('_')[2]}_"
        + hashlib.sha256(
            b"\0".join(part for item in sources.items() for part in (item[0].encode(), item[1]))
        ).hexdigest()[:12]
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for file, content in sources.items():
            archive.writestr(
                zipfile.ZipInfo(f"{name}/{file}", date_time=(1980, 1, 1, 0, 0, 0)), content
            )
    return name, packed.getvalue()


def write_code(run: RunSpec, folder: Path) -> FileRef | None:
    """Write the zip in a folder; if no column needs it, return None and remove an old zip."""
    others = run.statistics.bags or any(s.window for s in run.statistics.tensor)
    if served_trees(run.spec, run.statistics)[1] or spellings(run) or others:
        return write_atomic(folder / EXPRESSIONS, code()[1])
    (folder / EXPRESSIONS).unlink(missing_ok=True)
    return None


# --------------------------------------------------------------------------------------------- rows


def as_raw(run: RunSpec, frame: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """Return rows of a split's table as in the source, if kept, and their positions in the frame.

    Args:
        run: names the file of raw rows.
        frame: rows of a split's table.

    Returns:
        The kept rows, with raw columns in place of derived features; all rows unchanged if no
        feature is derived or none was kept.

    Raises:
        IntegrityError: the file of raw rows was changed.
    """
    trees, kept = served_trees(run.spec, run.statistics)
    if not kept or run.raw_rows is None:
        return frame, np.arange(len(frame))
    raw = pd.read_parquet(verify(run.raw_rows)).set_index("__id")
    rows = np.flatnonzero(frame["__id"].isin(raw.index))
    if not len(rows):
        return frame, np.arange(len(frame))
    own = frame.iloc[rows].drop(
        columns=[name for name in frame.columns if name in {*trees, *raw.columns}]
    )
    return own.join(raw, on="__id"), rows


# ------------------------------------------------------------------------------------------ example


def _example(
    trees: Mapping[str, Any], types: Mapping[str, str], features: list[str], statistics: Statistics
) -> dict[str, Any]:
    """Return made-up raw values from which every derived feature can be computed; else nothing."""
    known = _typical(types, statistics)
    fills = [{"name": s.name, "fill": s.fill} for s in statistics.numeric if s.name in features]
    choices = [
        [known[name]] if name in known else list(_candidates(name, kind, trees))
        for name, kind in types.items()
    ]
    for values in itertools.islice(itertools.product(*choices), ATTEMPTS):
        example = dict(zip(types, values, strict=True))
        try:
            found = serving_expressions.derive(pd.DataFrame([example]), trees, features)
            for column in fills:
                serving.numbers(found[column["name"]], column)
        except ValueError:
            continue
        return example
    return {}


def _typical(types: Mapping[str, str], statistics: Statistics) -> dict[str, Any]:
    """Return train mean or most frequent category of the raw columns that are also features."""
    means = {s.name: s.mean or 0.0 for s in statistics.numeric if s.name in types}
    typical: dict[str, Any] = {
        s.name: s.values[0] for s in statistics.categorical if s.name in types and s.values
    }
    for name, mean in means.items():
        typical[name] = (
            round(mean)
            if types[name] in WHOLE
            else mean >= 0.5
            if types[name] == "BOOLEAN"
            else mean
        )
    return typical


def _candidates(name: str, kind: str, trees: Mapping[str, Any]) -> Iterator[Any]:
    """Return made-up values for a raw column: a plain one of its type.

    For text, also values that formats and comparisons expect.
    """
    if family(kind) in PLAIN:
        yield PLAIN[family(kind)]
        return
    constants = [
        c for tree in trees.values() if name in tree["columns"] for c in _texts(tree["root"])
    ]
    yield from (MOMENT.strftime(text.replace("%-", "%")) for text in constants if "%" in text)
    yield from ("1", "1" * 10, "2020-06-15", "2020-06-15 12:00:00", *constants)


def _texts(node: Mapping[str, Any]) -> Iterator[str]:
    if node["op"] == "constant" and isinstance(node["value"], str) and node["type"] == "VARCHAR":
        yield node["value"]
    for arg in node.get("args", ()):
        yield from _texts(arg)
