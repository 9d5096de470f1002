"""Predict raw rows without the project: the registered model is this file and its neighbours.

The files are `program_reader.py`, `program.pt2`, `spec.json` and, for derived features,
`expressions.zip` with the code that computes them. For a language model the zip contains its
tokenizer; the output frame has `tokens`, `loss` (nats per token), `accuracy`, and with parameter
`max_new_tokens` the text's `completion`. MLflow ships and runs this file with the model (models
from code), so it imports nothing of the project. Load it with
`mlflow.pyfunc.load_model("models:/NAME@champion")` and call `predict(frame)`.

Input: raw named columns in any order; extra ones are ignored. Output: a frame with `prediction` in
label units or as a class value, and for classes `probability_<class>`. The positive of two classes
is predicted if its probability is above the spec's `threshold` (absent: 0.5). For several labels:
`prediction_<label>` and, for classes, `probability_<label>` (of the positive class) or
`probability_<label>_<class>`. With parameter `intervals`, of a model that declared them:
`prediction_low` and `prediction_high`, or for each class `possible_<class>`, true if it is in the
set that holds the truth with the declared coverage (several labels: `prediction_<label>_low`,
`possible_<label>_<class>`). It never guesses: a missing column, a null where training had none, an
infinite number or text among numbers is refused with its column and rows. A model with windows
answers each row of a frame with what the frame has of its series before it, so a caller passes
these rows as well and takes the answers it wants. N rows, D numeric columns, C categorical columns
or classes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import math
import sys
import warnings
import zipimport
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

with warnings.catch_warnings():  # MLflow warns about its own type hints
    warnings.simplefilter("ignore")
    import mlflow.pyfunc
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import BAD_REQUEST

log = logging.getLogger("bulkhead.serving")
FORMAT = 1
READER = "program_reader.py"
MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
BYTECODE = "__pycache__"  # a file of this name in the model's folder prevents bytecode there
# the last is MLflow's, about the download
UNLISTED = (MANIFEST, SIGNATURE, BYTECODE, "registered_model_meta")
# limit memory; results do not depend on them beyond float64 rounding
ROWS_PER_CALL, VALUES_PER_CALL = (1024, 2**18)
UNKNOWN, NULL, FIRST = 0, 1, 2  # category codes: unknown, null, then the vocabulary
Program = Callable[[dict[str, torch.Tensor]], torch.Tensor]
Derive = Callable[..., pd.DataFrame]  # see `derive` of the expressions
# column to `what` (unknown or clipped), `rows` and the `first` such value
Unfamiliar = dict[str, dict[str, Any]]


class RequestRefused(MlflowException, ValueError):
    """A request with columns or values that the model cannot predict, described in one sentence.

    An endpoint answers 400 with the sentence alone. MLflow's server would put the rows of the
    request before it; rows must not appear in answers or logs.
    """

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence
        MlflowException.__init__(self, sentence, error_code=BAD_REQUEST)

    @property
    def message(self) -> str:
        """Sentence that describes the error."""
        return self._sentence

    @message.setter
    def message(self, text: str) -> None:
        """Ignore the new text."""


# ------------------------------------------------------------------------------------------ loading


def read_spec(path: str | Path) -> dict[str, Any]:
    """Return the columns, classes and program digest that the model was exported with.

    Raises:
        ValueError: this code does not understand the spec.
    """
    spec = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(spec, dict) or spec.get("format") != FORMAT:
        raise ValueError(
            f"{path}: expected a model spec of format {FORMAT}, got"
            f" {spec.get('format') if isinstance(spec, dict) else type(spec).__name__!r}"
        )
    earlier: dict[str, Any] = (
        {} if "expressions" in spec else {"derived": {}, "raw": [], "expressions": None}
    )  # they take derived features as columns
    # models of earlier versions have one label, and no code of derived features
    return {"labels": [], **spec, **earlier}


def changed_files(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """Return files of a model's folder that differ from its manifest, with the reason; empty if
    none.

    Args:
        folder: folder of the model, with `MLmodel`.
        files: from the manifest: name, relative to the folder, to SHA-256.
    """
    found = {
        p.relative_to(folder).as_posix(): p
        for p in sorted(folder.rglob("*"))
        if p.is_symlink() or not p.is_dir()
    }
    wrong = {
        name: "is none of the registered files"
        for name in found
        if name not in files and name not in UNLISTED
    }
    for name, expected in files.items():
        if name not in found or not found[name].is_file():
            wrong[name] = f"SHA-256 is no file, registered was {expected[:12]}"
        elif (digest := hashlib.sha256(found[name].read_bytes()).hexdigest()) != expected:
            wrong[name] = f"SHA-256 is {digest[:12]}, registered was {expected[:12]}"
    return wrong


def check_folder(folder: Path) -> None:
    """Check that the folder's files match its manifest; the signature says who wrote it.

    Raises:
        ValueError: there is no manifest, or a file is missing, changed, or not in it.
    """
    try:
        files = json.loads((folder / MANIFEST).read_bytes())["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder / MANIFEST}: expected the manifest of the model's files ({error}); fetch the"
            " model again"
        ) from error
    for name, problem in changed_files(folder, files).items():
        raise ValueError(
            f"{folder / name}: {problem}: the model was changed after it was registered; fetch it"
            " again"
        )


def load_program(path: str | Path, spec: dict[str, Any]) -> Program:
    """Load the exported program after its bytes match the spec; nothing is unpickled.

    Raises:
        ValueError: the program's SHA-256 differs from the spec's, or it contains something that is
            not allowed; nothing of it was run.
    """
    _verify(path, spec["program"]["sha256"], "program")
    program: Program = _reader().read_program(path)
    return program


def _reader() -> Any:
    """Return the program reader of the file next to this one: MLflow runs this file without a
    package.
    """
    path = Path(__file__).with_name(READER)
    name = f"bulkhead_program_reader_{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
    if name not in sys.modules:
        found = importlib.util.spec_from_file_location(name, path)
        if found is None or found.loader is None:
            raise ValueError(
                f"{path}: expected the code that reads programs; fetch the model again"
            )
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]


def load_expressions(path: str | Path, spec: dict[str, Any]) -> Derive | None:
    """Return the function that adds derived features to raw rows; None without such features.

    Its code is read only after its bytes match. The module's name contains the digest of its
    sources, so models of several versions never share code by accident.

    Raises:
        ValueError: the code's SHA-256 differs from the spec's; nothing of it was run.
    """
    if spec["expressions"] is None:
        return None
    derive: Derive = load_code(path, spec).derive
    return derive


def load_code(path: str | Path, spec: dict[str, Any]) -> Any:
    """Return the module that was exported with the model, run only after its bytes match.

    Raises:
        ValueError: the code's SHA-256 differs from the spec's; nothing of it was run.
    """
    _verify(path, spec["expressions"]["sha256"], "code that was shipped with the model")
    name = spec["expressions"]["module"]
    if name not in sys.modules:
        found = zipimport.zipimporter(str(path)).find_spec(name)
        if found is None or found.loader is None:
            raise ValueError(
                f"{path}: expected the module {name}, which is not in it; fetch or register the"
                " model again"
            )
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module  # its parts import each other by this name
        try:
            found.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _verify(path: str | Path, expected: str, what: str) -> None:
    found = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    if found != expected:
        raise ValueError(
            f"{path}: SHA-256 is {found[:12]}…, the spec says {expected[:12]}…: the {what} was"
            " changed after its export; fetch or register the model again"
        )


# ------------------------------------------------------------------------------------------ columns


def refuse(column: str, problem: str, bad: np.ndarray, index: pd.Index, remedy: str) -> None:
    """Refuse bad rows; name the column, how many rows, and the first five index labels.

    Raises:
        ValueError: `bad` [N] is true somewhere.
    """
    count = int(bad.sum())
    if count:
        labels = ", ".join(str(label) for label in index[bad][:5]) + (", …" if count > 5 else "")
        raise ValueError(f"column {column!r}: {problem} in {count} rows (index {labels}); {remedy}")


def missing(values: pd.Series, null_texts: tuple[str, ...]) -> np.ndarray:
    """Return a mask [N] of nulls: None, NaN, NA, or a text that training read as null."""
    nulls: np.ndarray = values.isna().to_numpy(dtype=bool)
    return (
        nulls | values.isin(null_texts).to_numpy(dtype=bool)
        if null_texts and values.dtype.kind == "O"
        else nulls
    )


def numbers(
    values: pd.Series, column: dict[str, Any], null_texts: tuple[str, ...] = ()
) -> np.ndarray:
    """Return one numeric column as float64 [N], null as NaN; text of a number becomes that number.

    Raises:
        ValueError: a value is not a number or infinite, or a column without filling has a null.
    """
    name, nulls = column["name"], missing(values, null_texts)
    result = np.full(len(values), np.nan)
    present = values[~nulls]
    if present.dtype.kind not in "biuf":
        typed = present.astype(object)
        present = (
            pd.Series(np.nan, present.index)
            if present.dtype.kind in "mM"
            else pd.to_numeric(typed, errors="coerce")
        )
        text = present.isna().to_numpy(dtype=bool)
        refuse(
            name,
            f"expected numbers, got {typed[text].iloc[0]!r}" if text.any() else "",
            text,
            present.index,
            "convert them to numbers, or to null",
        )
    result[~nulls] = present.to_numpy(dtype=np.float64)
    refuse(
        name,
        "infinite numbers",
        np.isinf(result),
        values.index,
        "pass finite numbers, or null where the value is unknown",
    )
    if column["fill"] is None:
        refuse(
            name,
            "nulls (NaN), which training never saw there,",
            np.isnan(result),
            values.index,
            "fill or leave out those rows",
        )
    return result


def spellings(value: Any) -> tuple[str, ...]:
    """Return the possible texts of a category in training, likeliest first; the vocabulary decides.

    Training casts categories to text. Whole numbers of any type have no point (3 and 3.0 are '3'),
    and true is 'true'. Other numbers are the shortest text that gives them back, in double or
    single precision.

    >>> spellings(3.0), spellings(True), spellings("a")
    (('3', '3.0'), ('true', '1'), ('a',))
    """
    if isinstance(value, bool | np.bool_):
        return ("true", "1") if value else ("false", "0")
    if isinstance(value, int | np.integer):
        number = int(value)
        return (
            str(number),
            repr(float(number)),
            *(("false", "true")[number : number + 1] if number in (0, 1) else ()),
        )
    if isinstance(value, float | np.floating | Decimal):
        real = float(value)
        with np.errstate(over="ignore"):
            single = np.float32(real)
        return (
            spellings(int(real))
            if real.is_integer()
            else (repr(real), str(single), repr(float(single)))
        )
    text = str(value)
    return (text, text.lower()) if text in ("True", "False", "TRUE", "FALSE") else (text,)


def codes(
    values: pd.Series, column: dict[str, Any], null_texts: tuple[str, ...] = ()
) -> np.ndarray:
    """Return one categorical column as int64 [N]: 0 for unknown, 1 for null, then the vocabulary.

    Raises:
        ValueError: a null, if neither training nor its evaluation had one; models of earlier
            versions accept it.
    """
    vocabulary = dict.fromkeys(null_texts, NULL) | {
        text: FIRST + position for position, text in enumerate(column["values"])
    }
    positions, distinct = pd.factorize(values)
    known = [
        next((vocabulary[text] for text in spellings(value) if text in vocabulary), UNKNOWN)
        for value in distinct
    ]
    found = np.asarray(np.array([*known, NULL], dtype=np.int64)[positions])  # position -1 is null
    if not column.get("nulls", True):
        remedy = (
            "pass a category or leave out those rows; pandas reads texts such as None and NA as"
            " nulls unless it is given keep_default_na=False"
        )
        refuse(
            column["name"],
            "nulls, which training never saw there,",
            found == NULL,
            values.index,
            remedy,
        )
    return found


def note(
    unfamiliar: Unfamiliar | None, name: str, what: str, rows: np.ndarray, values: pd.Series
) -> None:
    """Count the rows [N] of a column with unknown categories or numbers beyond the fitted range."""
    if unfamiliar is not None and rows.any():
        unfamiliar[name] = {
            "what": what,
            "rows": int(rows.sum()),
            "first": str(values[rows].iloc[0]),
        }


def in_words(unfamiliar: Unfamiliar) -> list[str]:
    """Return a sentence for each column."""
    meant = {
        "unknown": "a category that training did not know",
        "unread": "a value that training did not know, or a text of which it knew no word",
        "clipped": "a number outside the range that the model was fitted to, which is clipped",
        "outside": "a number outside the range of the rows that the model was fitted to",
    }
    return [
        f"column {name!r}: {found['rows']} row{' holds' if found['rows'] == 1 else 's hold'}"
        f" {meant[found['what']]} (first: {found['first']})"
        for name, found in unfamiliar.items()
    ]


def tensors(values: pd.Series, column: dict[str, Any]) -> np.ndarray:
    """Return one tensor column as an array [N, *shape] of its stored type.

    Cells are flat or shaped sequences.

    Raises:
        ValueError: a null, another number of elements, or elements that the stored type cannot
            store.
    """
    name, shape, dtype = column["name"], tuple(column["shape"]), np.dtype(column["dtype"])
    cells = [_dense(value) for value in values]
    wrong = np.array(
        [cell.size != math.prod(shape) or cell.dtype.kind not in "biuf" for cell in cells],
        dtype=bool,
    )
    refuse(
        name,
        f"expected {math.prod(shape)} numbers of shape {list(shape)}, got something else",
        wrong,
        values.index,
        "pass whole arrays or lists",
    )
    block = np.stack([cell.reshape(shape) for cell in cells]) if cells else np.empty((0, *shape))
    with np.errstate(invalid="ignore", over="ignore"):
        stored = block.astype(dtype)
    lost = ~np.isfinite(stored) if dtype.kind == "f" else stored != block
    refuse(
        name,
        f"elements that {dtype} cannot hold",
        lost.any(axis=tuple(range(1, lost.ndim))),
        values.index,
        "pass them as training had them",
    )
    return stored


def _dense(value: Any) -> np.ndarray:
    """Return a cell as one array; join nested sequences, as Parquet readers give them."""
    is_list = isinstance(value, list | tuple)
    array = np.array([_dense(part) for part in value]) if is_list else np.asarray(value)
    is_nested = array.dtype == object and array.ndim
    return np.stack([_dense(part) for part in array]) if is_nested else array


# --------------------------------------------------------------------------------------- prediction


def dates(spec: dict[str, Any], frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with dates from numbers in raw date columns (ms since 1970, as in JSON)."""
    read = {}
    for column in spec["raw"]:
        name, kind = column["name"], column["type"]
        if (
            kind.startswith(("TIMESTAMP", "DATE"))
            and name in frame.columns
            and frame[name].dtype.kind in "iuf"
        ):
            read[name] = pd.to_datetime(frame[name], unit="ms", utc="ZONE" in kind)
    return frame.assign(**read) if read else frame


def inputs(
    spec: dict[str, Any],
    frame: pd.DataFrame,
    derive: Derive | None = None,
    unfamiliar: Unfamiliar | None = None,
) -> dict[str, torch.Tensor]:
    """Return the program's inputs from raw named columns.

    These are `numeric` float64 [N, D], `categorical` int64 [N, C], `tensor_<column>` (also of
    windows), and `bag_<column>` int32 [N, L] of a text or set.

    Args:
        spec: spec of the model.
        frame: raw rows; a derived feature in it is used as given.
        derive: from `load_expressions`.
        unfamiliar: gets the columns with unknown categories and clipped numbers.

    Raises:
        ValueError: a column is missing or given twice, or a value is refused.
    """
    bags, windows = spec.get("bags", []), spec.get("windows", [])
    columns = [*spec["numeric"], *spec["categorical"], *spec["tensor"], *bags]
    history = [n for w in windows if w["name"] not in frame.columns for n in w["columns"]]
    names = dict.fromkeys([*(c["name"] for c in columns), *history])
    absent = [name for name in names if name not in frame.columns]
    derived = [name for name in absent if derive is not None and name in spec["derived"]]
    if strangers := [repr(name) for name in absent if name not in derived]:
        raise ValueError(f"missing columns: {', '.join(strangers)}")
    taken = [n for n in names if n not in derived]
    taken += [c["name"] for c in spec["raw"] if derived and c["name"] in frame.columns]
    repeated = [name for name in dict.fromkeys(taken) if isinstance(frame[name], pd.DataFrame)]
    if repeated:
        raise ValueError(f"columns given twice: {', '.join(map(repr, repeated))}; keep one of each")
    kinds = ("spellings", "bags", "windows")
    nulls, how = tuple(spec["null_texts"]), {n: spec[n] for n in kinds if n in spec}
    if derive is not None and (derived or how):
        frame = derive(dates(spec, frame), spec["derived"], derived, nulls, **how)
    blocks = {}
    for c in (*spec["tensor"], *windows):
        blocks[f"tensor_{c['name']}"] = tensors(frame[c.get("values", c["name"])], c)
    for c in bags:
        blocks[f"bag_{c['name']}"] = tensors(frame[c["codes"]], c)
        note(unfamiliar, c["name"], "unread", frame[c["unread"]].to_numpy(), frame[c["name"]])
    if spec["numeric"]:
        blocks["numeric"] = np.stack(
            [numbers(frame[c["name"]], c, nulls) for c in spec["numeric"]], axis=1
        )
    if spec["categorical"]:
        blocks["categorical"] = np.stack(
            [codes(frame[c["name"]], c, nulls) for c in spec["categorical"]], axis=1
        )
    for position, c in enumerate(spec["numeric"]):
        given, cells = blocks["numeric"][:, position], frame[c["name"]]
        seen = c.get("seen", (None, None))  # of a column that is not clipped
        for what, low, high in (("clipped", c.get("low"), c.get("high")), ("outside", *seen)):
            if low is not None:
                note(unfamiliar, c["name"], what, (given < low) | (given > high), cells)
    for position, c in enumerate(spec["categorical"]):
        given, cells = blocks["categorical"][:, position], frame[c["name"]]
        strange = (given == UNKNOWN) | (c.get("unseen_null", False) & (given == NULL))
        note(unfamiliar, c["name"], "unknown", strange, cells)
    # in the order of their names, as the program was exported
    ordered = sorted(blocks.items())
    return {name: torch.from_numpy(np.ascontiguousarray(block)) for name, block in ordered}


def run(program: Program, batch: dict[str, torch.Tensor]) -> np.ndarray:
    """Run the program on all rows in calls of limited size; return float64 [N] or [N, C]."""
    rows = len(next(iter(batch.values())))
    step = max(
        1, min(ROWS_PER_CALL, VALUES_PER_CALL // sum(block[0].numel() for block in batch.values()))
    )
    with torch.inference_mode():
        parts = [
            program({name: block[start : start + step] for name, block in batch.items()})
            for start in range(0, rows, step)
        ]
    return np.asarray(torch.cat(parts).numpy())


def predict(
    spec: dict[str, Any],
    program: Program,
    frame: pd.DataFrame,
    derive: Derive | None = None,
    unfamiliar: Unfamiliar | None = None,
    intervals: bool = False,
) -> pd.DataFrame:
    """Return a row of predictions for each row of the frame, with its index.

    Raises:
        ValueError: see `inputs`; or `intervals` are asked of a model that has none.
    """
    if intervals and not interval_columns(spec):
        raise ValueError(
            "this model has no intervals; declare evaluate.intervals, e.g. 0.9, and train it again"
        )
    found = _predicted(spec, program, inputs(spec, frame, derive, unfamiliar), frame.index)
    if not intervals:
        return found
    bounds = [
        bounds_of(label, found) for label in labels_of(spec) if label.get("interval") is not None
    ]
    return pd.concat([found, *bounds], axis=1)


def labels_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each label with the names of its columns; a single one like one of several."""
    single = {
        "kind": spec["task"],
        "prediction": "prediction",
        "probabilities": spec.get("probability_columns", []),
        "possible": [f"possible_{value}" for value in spec["classes"]],
    }
    several = [
        {**label, "possible": [f"possible_{label['name']}_{value}" for value in label["classes"]]}
        for label in spec["labels"]
    ]
    return several or [{**spec, **single}]


def interval_columns(spec: dict[str, Any]) -> list[str]:
    """Return the names of the columns that parameter `intervals` adds, in their order."""
    if "text" in spec:
        return []
    return [
        name
        for label in labels_of(spec)
        if label.get("interval") is not None
        for name in (
            label["possible"] or [f"{label['prediction']}_low", f"{label['prediction']}_high"]
        )
    ]


def bounds_of(label: dict[str, Any], found: pd.DataFrame) -> pd.DataFrame:
    """Return the bounds of one label's values, or which of its classes are possible.

    Without a margin (validation had too few rows or groups) there are no bounds.

    Args:
        label: of `labels_of`, with its `interval`.
        found: predictions and probabilities.
    """
    margin, scale = label["interval"]["margin"], label["interval"]["scale"]
    if label["possible"]:
        chance = found[label["probabilities"]].to_numpy()
        if chance.shape[1] == 1:  # of several labels a binary one has that of its positive class
            chance = np.concatenate([1 - chance, chance], axis=1)
        held = np.ones(chance.shape, dtype=bool) if margin is None else 1 - chance <= margin
        held[np.arange(len(held)), chance.argmax(axis=1)] = True
        return pd.DataFrame(held, columns=label["possible"], index=found.index)
    value = found[label["prediction"]].to_numpy(dtype=np.float64)
    width = np.inf if margin is None else margin
    if scale == "value":
        ends = {"low": value - width, "high": value + width}
    else:
        to, back = (np.log, np.exp) if scale == "log" else (np.log1p, np.expm1)
        ends = {"low": back(to(value) - width), "high": back(to(value) + width)}
    return pd.DataFrame(
        {f"{label['prediction']}_{end}": bound for end, bound in ends.items()}, index=found.index
    )


def _predicted(
    spec: dict[str, Any], program: Program, batch: dict[str, torch.Tensor], index: pd.Index
) -> pd.DataFrame:
    if spec["labels"]:
        width = sum(max(1, len(label["probabilities"])) for label in spec["labels"])
        return pd.DataFrame(
            several(spec, run(program, batch) if len(index) else np.empty((0, width))),
            index=index,
        )
    if spec["task"] == "regression":
        value = run(program, batch) if len(index) else np.empty(0)
        return pd.DataFrame({"prediction": value}, index=index)
    found = run(program, batch) if len(index) else np.empty((0, len(spec["classes"])))
    chosen = found[:, 1] > spec["threshold"] if "threshold" in spec else found.argmax(axis=1)
    label = pd.array(spec["classes"]).take(chosen.astype(np.int64))
    columns = {
        name: found[:, position] for position, name in enumerate(spec["probability_columns"])
    }
    return pd.DataFrame({"prediction": label.astype(spec["class_dtype"]), **columns}, index=index)


def several(spec: dict[str, Any], found: np.ndarray) -> dict[str, Any]:
    """Return the program's results [N, K] on several labels as named columns.

    Each label has its class or value, then its probabilities.
    """
    columns: dict[str, Any] = {}
    start = 0
    for label in spec["labels"]:
        own = found[:, start : start + max(1, len(label["probabilities"]))]
        start += own.shape[1]
        if label["kind"] == "regression":
            columns[label["prediction"]] = own[:, 0]
            continue
        chosen = (
            own.argmax(axis=1)
            if label["kind"] == "multiclass"
            else (own[:, 0] > label.get("threshold", 0.5)).astype(np.int64)
        )
        columns[label["prediction"]] = (
            pd.array(label["classes"]).take(chosen).astype(label["class_dtype"])
        )
        columns |= {name: own[:, position] for position, name in enumerate(label["probabilities"])}
    return columns


def output_columns(spec: dict[str, Any]) -> list[str]:
    """Return the names of the predicted columns, in their order."""
    if spec["labels"]:
        return [
            name
            for label in spec["labels"]
            for name in (label["prediction"], *label["probabilities"])
        ]
    return ["prediction", *spec["probability_columns"]]


def logits_of(program: Program) -> Callable[[np.ndarray], np.ndarray]:
    """Return the program as a function of NumPy arrays: int64 [N, T] → logits float64 [N, T, V]."""

    def logits(tokens: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return np.asarray(program({"tokens": torch.from_numpy(tokens)}).numpy())

    return logits


class RawRows(mlflow.pyfunc.PythonModel):
    """The program with its column handling, as MLflow loads it."""

    def load_context(self, context: Any) -> None:
        """Verify the folder's files, then load the program and the code of the derived features.

        Raises:
            ValueError: the spec is of another format, or a file was changed after its export or
                registration.
        """
        check_folder(Path(context.artifacts["spec"]).parents[1])
        self.load(context.artifacts)

    def load(self, files: Mapping[str, str | Path], code: Any = None) -> None:
        """Load the program, and the code of the derived features or tokens.

        Args:
            files: paths of the spec, the program and, if the spec names it, the code.
            code: module to run instead of the one shipped with the model.

        Raises:
            ValueError: see `load_program`.
        """
        self.spec = read_spec(files["spec"])
        self.program = load_program(files["program"], self.spec)
        if self.spec["expressions"] is None:
            code = None
        elif code is None:
            code = load_code(files["expressions"], self.spec)
        is_text = self.spec["task"] == "causal_lm"
        self.text = code if is_text else None
        self.derive: Derive | None = None if is_text or code is None else code.derive

    def predict(
        self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Predict a frame of raw rows; see the module docstring.

        `params`: `intervals`, or how a language model completes texts.

        Unknown categories and numbers out of range are one line of the log for each call.

        Raises:
            RequestRefused: a column is missing, or a value is refused, with column and rows; a
                ValueError and an MlflowException.
        """
        unfamiliar: Unfamiliar = {}
        try:
            found = self.predict_counting(pd.DataFrame(model_input), params, unfamiliar)
        except ValueError as error:
            raise RequestRefused(str(error)) from error
        if unfamiliar:
            log.warning("%s", "; ".join(in_words(unfamiliar)))
        return found

    def predict_counting(
        self, frame: pd.DataFrame, params: dict[str, Any] | None, unfamiliar: Unfamiliar
    ) -> pd.DataFrame:
        """Predict like `predict`; `unfamiliar` gets what it would log.

        Raises:
            ValueError: see `inputs`.
        """
        if self.text is not None:
            found: pd.DataFrame = self.text.predict(
                self.spec["text"], logits_of(self.program), frame, params
            )
            return found
        intervals = bool((params or {}).get("intervals", False))
        return predict(self.spec, self.program, frame, self.derive, unfamiliar, intervals)


mlflow.models.set_model(RawRows())
