"""Put the champion before the test rows of a run, as far as neither model learned from them.

N rows, C classes.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from schemas.config import GROUPED, Declaration, SplitName
from schemas.digest import verify
from schemas.errors import IntegrityError
from schemas.records import EvaluationReport, RunSpec, TableRef, TestTable
from training.data.batches import arrow_batches
from training.data.shards import load_arrays
from training.data.unseen import unseen_rows
from training.evaluate import given_targets, read_ids
from training.evaluate_text import read_documents, sums_of
from training.export import probability_columns
from training.gate import Comparison, compare
from training.registry import LoadedModel
from training.targets import Targets, targets_of
from training.token_scoring import document_facts

BATCH_ROWS = 16_384
CHARACTERS = "bits_per_character"  # the unit that tokens of every kind share


def challenge(declaration: Declaration, run: RunSpec, test: TestTable, evaluation: EvaluationReport, program_sha256: str, champion: LoadedModel) -> Comparison:
    """The champion beside the challenger on the test rows that it has not learned from, nor their groups.

    Nothing about the champion stops the run: what cannot be compared comes back as the comparison's `problem`.

    Args:
        declaration: of the challenger.
        run: what was trained.
        test: the split's test table.
        evaluation: of the challenger on the same rows.
        program_sha256: of the exported challenger.
        champion: fetched from the registry.

    Raises:
        IntegrityError: a file of this run changed, or predictions and test rows do not belong together.
    """
    version = champion.version or "unregistered"
    if champion.program_sha256 == program_sha256:
        return Comparison(version=version, identical=True)
    problem = _unlike(declaration, run, champion)
    if problem or champion.trained_on is None:
        return Comparison(version=version, problem=problem or "it does not say which rows it learned from")
    ids, found = _evaluated(run, evaluation)
    unseen = unseen_rows(test, champion.trained_on, by_group=_keeps_groups(declaration, run))
    try:
        theirs = _champion(champion, test, ids, _columns(declaration, run))
    except (KeyError, ValueError) as error:
        if isinstance(error, IntegrityError):
            raise
        return Comparison(version=version, rows=int(unseen.sum()), excluded_rows=int((~unseen).sum()), problem=f"it cannot score these rows: {error}")
    ours = sums_of(found) if run.statistics.tokens is not None else _values(found, _columns(declaration, run))
    return _compared(declaration, run, version, ours, theirs, unseen, found)


def challenge_version(declaration: Declaration, run: RunSpec, test: TestTable, challenger: LoadedModel, champion: LoadedModel) -> Comparison:
    """Two registered versions on the test rows of today's source that neither has learned from, nor their groups; as `challenge`.

    Args:
        declaration: of the challenger.
        run: today's rows with the challenger's statistics; nothing is trained on them.
        test: the split's test table of today.
        challenger: fetched from the registry.
        champion: alike.

    Raises:
        IntegrityError: a file changed after it was written.
    """
    version = champion.version or "unregistered"
    if champion.program_sha256 == challenger.program_sha256:
        return Comparison(version=version, identical=True)
    problem = _unlike(declaration, run, champion)
    if problem or champion.trained_on is None or challenger.trained_on is None:
        return Comparison(version=version, problem=problem or "one of them does not say which rows it learned from")
    seen = np.union1d(champion.trained_on, challenger.trained_on)
    unseen, given = unseen_rows(test, seen, by_group=_keeps_groups(declaration, run)), given_rows(run, "test")
    try:
        ours, theirs = (predictions_of(model, declaration, run, "test", test) for model in (challenger, champion))
    except (KeyError, ValueError) as error:
        if isinstance(error, IntegrityError):
            raise
        return Comparison(version=version, rows=int(unseen.sum()), excluded_rows=int((~unseen).sum()), problem=f"these rows cannot be scored: {error}")
    return _compared(declaration, run, version, ours, theirs, unseen, given)


def given_rows(run: RunSpec, side: SplitName) -> pd.DataFrame:
    """`__id`, `__group` and, of rows with labels, these as given, of a side in the order of its table."""
    arrays = run.arrays.side(side)
    return read_documents(arrays) if run.statistics.tokens is not None else read_ids(arrays, run.statistics)


def predictions_of(model: LoadedModel, declaration: Declaration, run: RunSpec, side: SplitName, table: TableRef) -> np.ndarray:
    """A registered model's predictions of a side's rows, in their order and in the form that metrics take.

    Raises:
        KeyError, ValueError: the model cannot score these rows.
        IntegrityError: rows of table and arrays are not in the same order.
    """
    return _champion(model, table, given_rows(run, side)["__id"].to_numpy(), _columns(declaration, run))


def facts_of(declaration: Declaration, run: RunSpec, side: SplitName, given: pd.DataFrame) -> tuple[np.ndarray, np.ndarray | None, Targets]:
    """Targets of a side's rows in the form that metrics take, their weights, and the labels where there are several.

    Args:
        declaration: the task.
        run: gives the side and the statistics of its labels.
        side: its name.
        given: the same rows with their labels as given.
    """
    if run.statistics.tokens is not None:
        return *document_facts(run.arrays.side(side)), ()
    arrays = load_arrays(run.arrays.side(side))
    return given_targets(declaration, run.statistics, arrays["label"], given), arrays.get("weight"), targets_of(declaration, run.statistics)


def _compared(
    declaration: Declaration, run: RunSpec, version: str, ours: np.ndarray, theirs: np.ndarray, unseen: np.ndarray, given: pd.DataFrame
) -> Comparison:
    target, weight, labels = facts_of(declaration, run, "test", given)
    group = given["__group"].to_numpy(dtype=object) if run.spec.grouped else None
    return compare(declaration, version, ours, theirs, target, unseen, group=group, weight=weight, labels=labels)


def _unlike(declaration: Declaration, run: RunSpec, champion: LoadedModel) -> str:
    """Why the two do not answer the same question; empty where they do."""
    if champion.spec["task"] != declaration.task.kind:
        return f"it predicts {champion.spec['task']}, not {declaration.task.kind}"
    if champion.spec["label"] != run.spec.label:
        return f"it predicts {champion.spec['label']!r}, not {run.spec.label!r}"
    if run.statistics.labels:
        known = {label["name"]: (label["kind"], set(map(repr, label["classes"]))) for label in champion.spec["labels"]}
        wanted = {label.name: (label.kind, set(map(repr, label.classes))) for label in run.statistics.labels}
        unlike = [name for name in wanted if known.get(name) != wanted[name]]
        return f"its label {unlike[0]!r} has other classes, or is none" if unlike else ""
    tokens = run.statistics.tokens
    if tokens is not None and champion.spec["text"]["tokenizer"] != tokens.tokenizer and (declaration.register_.metric or declaration.metric) != CHARACTERS:
        return f"its tokens are {champion.spec['text']['tokenizer']}, not {tokens.tokenizer}; set register.metric: {CHARACTERS} to compare the two"
    ours, theirs = list(run.statistics.classes), champion.spec["classes"]
    return "" if set(map(repr, ours)) == set(map(repr, theirs)) else f"its classes are {theirs}, those of this run {ours}"


def _keeps_groups(declaration: Declaration, run: RunSpec) -> bool:
    """Whether the split keeps a group on one side, so that a known group would give the champion an advantage."""
    return bool(run.spec.grouped) and declaration.split.kind in (*GROUPED, "predefined")


def _evaluated(run: RunSpec, evaluation: EvaluationReport) -> tuple[np.ndarray, pd.DataFrame]:
    """Ids of the test rows in the order of the arrays, and the challenger's predictions in that order."""
    found = pq.read_table(verify(evaluation.predictions)).to_pandas()
    ids = pq.read_table(verify(run.arrays.test.documents or run.arrays.test.ids), columns=["__id"]).column(0).to_pandas()
    if set(found["__id"]) != set(ids) or len(found) != len(ids):
        raise IntegrityError(f"{evaluation.predictions.path}: expected predictions of the {len(ids)} test rows, got {len(found)} of others; evaluate again")
    return ids.to_numpy(), found.set_index("__id").loc[ids]


def _champion(champion: LoadedModel, test: TableRef, ids: np.ndarray, wanted: list[str]) -> np.ndarray:
    """A registered model's predictions of a table's rows; their order is checked against the ids."""
    columns = [c["name"] for kind in ("numeric", "categorical", "tensor", "raw") for c in champion.spec[kind]]
    columns += [champion.spec["text"]["name"]] if "text" in champion.spec else []
    parts, seen = [], []
    present = set(pq.read_schema(verify(test.file)).names)
    for batch in arrow_batches(test.file.file, BATCH_ROWS, ["__id", *(c for c in dict.fromkeys(columns) if c in present)]):
        frame = batch.to_pandas()
        seen.append(frame.pop("__id").to_numpy())
        parts.append(champion.predict(frame))
    if not np.array_equal(np.concatenate(seen), ids):
        raise IntegrityError(f"{test.file.path}: its rows are not in the order of the arrays; prepare the data again")
    found = pd.concat(parts)
    return sums_of(found) if "text" in champion.spec else _values(found, wanted)


def _columns(declaration: Declaration, run: RunSpec) -> list[str]:
    """Columns of predictions that the comparison needs: probabilities in the order of this run's classes, or values; of several labels, of each."""
    labels = targets_of(declaration, run.statistics)
    several = [name for t in labels for name in (t.probability_columns or [t.prediction_column])]
    return several or probability_columns(run.statistics.classes) or ["prediction"]


def _values(frame: pd.DataFrame, columns: list[str]) -> np.ndarray:
    """Probabilities [N, C], values [N], or the columns of several labels [N, K]."""
    return np.asarray(frame["prediction"] if columns == ["prediction"] else frame[columns], dtype=np.float64)
