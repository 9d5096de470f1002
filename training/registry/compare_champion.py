"""Compare a run with the champion on test rows that neither model learned from.

N rows, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from schemas.config import GROUPED, Declaration
from schemas.digest import verify
from schemas.errors import IntegrityError
from schemas.look_records import look_at
from schemas.records import (
    EvaluationReport,
    RunSpec,
    SplitArrays,
    Statistics,
    TableRef,
    TableSpec,
    TestTable,
)
from training.data.arrays.shards import load_arrays
from training.data.engine.batches import arrow_batches
from training.data.split.unseen import evaluated_keys, unseen_rows
from training.engine.token_scoring import document_facts
from training.evaluation.evaluate import given_targets
from training.evaluation.evaluate_text import read_documents, sums_of
from training.evaluation.row_ids import read_ids
from training.objectives.targets import Targets, targets_of
from training.registry.fresh_rows import Fresh
from training.registry.gate import compare
from training.registry.ladder import Comparison
from training.registry.registry import LoadedModel
from training.run.look_ledger import LEAST_SHARE
from training.serving.export import probability_columns
from training.serving.signature import intervals_of, thresholds_of
from training.serving.window_rules import given_windows, other_window

BATCH_ROWS = 16_384
CHARACTERS = "bits_per_character"  # the unit that all kinds of tokens share


class Rows(NamedTuple):
    """Labelled rows in the order of a table, in arrays made with a model's statistics."""

    spec: TableSpec
    statistics: Statistics
    table: TableRef
    arrays: SplitArrays


NEW_PARTS = "its thresholds or intervals are new, its program is the same"


class Challenger(NamedTuple):
    """The model that is compared: thresholds by label, and its predictions when needed.

    `is_champions_program`: its program is the champion's, to the bit. `coverages`: label to the
    share of rows that its intervals shall hold.
    """

    is_champions_program: bool
    thresholds: Mapping[str, float]
    coverages: Mapping[str, float]
    predictions: Callable[[], np.ndarray]


def challenge(
    declaration: Declaration,
    run: RunSpec,
    test: TestTable,
    evaluation: EvaluationReport,
    program_sha256: str,
    champion: LoadedModel,
    fresh: Callable[[np.ndarray], Fresh] | None = None,
) -> Comparison:
    """Compare challenger and champion on test rows outside the champion's train rows and groups.

    A problem of the champion does not stop the run: it is returned as the comparison's `problem`.

    Args:
        declaration: declaration of the challenger.
        run: the trained run.
        test: the split's test table.
        evaluation: evaluation of the challenger on the same rows.
        program_sha256: digest of the exported challenger.
        champion: fetched from the registry.
        fresh: chooses among these rows those of the comparison, where the windows of the split
            move on; called when both models have predicted.

    Raises:
        IntegrityError: a file of this run changed, or predictions and test rows do not belong
            together.
    """
    rows = Rows(run.spec, run.statistics, test, run.arrays.test)

    def evaluated() -> np.ndarray:
        found = _evaluated(run, evaluation)
        return (
            sums_of(found)
            if run.statistics.tokens is not None
            else _values(found, _columns(declaration, rows))
        )

    identical = _would_serve(champion) == (program_sha256, declaration.train.refit)
    declared = {held.label: held.declared for held in evaluation.coverage}
    ours = Challenger(identical, evaluation.thresholds, declared, evaluated)
    compared = _compared(declaration, rows, ours, champion, champion.trained_on, fresh)
    if compared.window is not None or compared.waits:
        facts = champion_facts(declaration, champion, test) | {"claim": None}
        return _with_facts(compared, facts, compared.looks)
    look = look_at(evaluation.looks, declaration.register_.metric or declaration.metric)
    known = champion_facts(declaration, champion, test)
    return _with_facts(compared, known, look.number if look else 1)


def _would_serve(champion: LoadedModel) -> tuple[str, str]:
    """Return the program that was judged, and the rows of its refit: they decide what is served.

    A refitted champion is another program than the estimate, which the next run makes again.
    """
    refit = (champion.evidence or {}).get("refit")
    if not refit:
        return champion.program_sha256, "none"
    return refit["estimate"]["program_sha256"], refit["rows"]


def challenge_version(
    declaration: Declaration,
    rows: Rows,
    challenger: LoadedModel,
    champion: LoadedModel,
    looks: int = 1,
) -> Comparison:
    """Compare two registered versions on rows outside both models' train rows and groups.

    Args:
        declaration: declaration of the challenger.
        rows: made with the challenger's statistics; rows that either model learned from are
            excluded here.
        challenger: fetched from the registry.
        champion: fetched from the registry.
        looks: models that were scored on these rows.

    Raises:
        IntegrityError: a file changed after it was written.
    """
    known = [model.trained_on for model in (challenger, champion) if model.trained_on is not None]
    seen = np.union1d(*known) if len(known) == 2 else None
    ours = Challenger(
        challenger.program_sha256 == champion.program_sha256,
        thresholds_of(challenger.spec),
        _coverages(challenger),
        lambda: predictions_of(challenger, declaration, rows),
    )
    compared = _compared(declaration, rows, ours, champion, seen)
    return _with_facts(compared, champion_facts(declaration, champion, rows.table), looks)


def _with_facts(compared: Comparison, facts: dict[str, Any], looks: int) -> Comparison:
    stale = compared.stale or facts["stale"]
    return compared.model_copy(update=facts | {"stale": stale, "looks": looks})


def _coverages(model: LoadedModel) -> dict[str, float]:
    return {label: found["coverage"] for label, found in intervals_of(model.spec).items()}


def champion_facts(
    declaration: Declaration, champion: LoadedModel, table: TableRef
) -> dict[str, Any]:
    """Return `claim` and `stale` of a comparison: the champion's claim, and why it is too old.

    There is no claim if it rests on other rows than today's: then the champion's score today is as
    honest as a first one.
    """
    evidence = champion.evidence or {}
    metric = declaration.register_.metric or declaration.metric
    claim = (evidence.get("gate") or {}).get("claim") or {}
    value = claim.get("value") if claim.get("metric") == metric else None
    if value is None:
        value = (evidence.get("metrics") or {}).get(metric, {}).get("value")
    if champion.tested_on is not None:
        shared = np.isin(evaluated_keys(table), champion.tested_on)
        value = value if shared.size and shared.mean() >= LEAST_SHARE else None
    return {"claim": value, "stale": _why_stale(declaration, champion, evidence.get("created"))}


def _why_stale(declaration: Declaration, champion: LoadedModel, created: str | None) -> str:
    limit = declaration.register_.stale_seconds
    if limit is None or created is None:
        return ""
    age = datetime.now(UTC) - datetime.fromisoformat(created)
    if age.total_seconds() < limit:
        return ""
    return (
        f"version {champion.version} is of {created[:10]}, older than register.stale_after"
        f" ({declaration.register_.stale_after})"
    )


def _compared(
    declaration: Declaration,
    rows: Rows,
    ours: Challenger,
    champion: LoadedModel,
    seen: np.ndarray | None,
    fresh: Callable[[np.ndarray], Fresh] | None = None,
) -> Comparison:
    version = champion.version or "unregistered"
    thresholds = ours.thresholds, thresholds_of(champion.spec)
    same = thresholds[0] == thresholds[1] and ours.coverages == _coverages(champion)
    if ours.is_champions_program and same:
        return Comparison(version=version, identical=True)
    problem = unlike(declaration, rows.spec, rows.statistics, champion)
    if problem or seen is None:
        return Comparison(
            version=version, problem=problem or "it does not say which rows it learned from"
        )
    unseen = unseen_rows(rows.table, seen, by_group=keeps_groups(declaration, rows.spec))
    challenger = ours.predictions()
    try:
        theirs = predictions_of(champion, declaration, rows)
    except (KeyError, ValueError) as error:
        if isinstance(error, IntegrityError):
            raise
        return Comparison(
            version=version,
            rows=int(unseen.sum()),
            excluded_rows=int((~unseen).sum()),
            problem=f"it cannot score these rows: {error}",
        )
    # no luck of another model: what was declared anew is served
    stale = {"stale": NEW_PARTS} if ours.is_champions_program else {}
    chosen = Fresh(unseen, None) if fresh is None or stale else fresh(unseen)
    if chosen.waits:
        counts = {"rows": int(chosen.mask.sum()), "excluded_rows": int((~chosen.mask).sum())}
        return Comparison(version=version, waits=chosen.waits, **counts)
    facts = facts_of(declaration, rows)
    found = compare(
        *(declaration, version, challenger, theirs, facts.target, chosen.mask),
        group=facts.group,
        weight=facts.weight,
        labels=facts.labels,
        thresholds=thresholds,
    )
    return found.model_copy(update={"window": chosen.window, "looks": chosen.looks} | stale)


class Facts(NamedTuple):
    """Facts of rows besides predictions, as metrics need them: targets, weights, groups, labels."""

    target: np.ndarray
    weight: np.ndarray | None
    group: np.ndarray | None
    labels: Targets


def facts_of(declaration: Declaration, rows: Rows) -> Facts:
    """Return targets, weights, groups and labels of rows, in their order."""
    given = _given(rows)
    group = given["__group"].to_numpy(dtype=object) if rows.spec.grouped else None
    if rows.statistics.tokens is not None:
        return Facts(*document_facts(rows.arrays), group, ())
    arrays = load_arrays(rows.arrays)
    target = given_targets(declaration, rows.statistics, arrays["label"], given)
    return Facts(target, arrays.get("weight"), group, targets_of(declaration, rows.statistics))


def _given(rows: Rows) -> pd.DataFrame:
    """Return `__id`, `__group` and, unless rows are texts, the labels as given."""
    return (
        read_documents(rows.arrays)
        if rows.statistics.tokens is not None
        else read_ids(rows.arrays, rows.statistics)
    )


def unlike(
    declaration: Declaration, spec: TableSpec, statistics: Statistics, champion: LoadedModel
) -> str:
    """Return why the two models cannot be compared; empty if they can."""
    if champion.spec["task"] != declaration.task.kind:
        return f"it predicts {champion.spec['task']}, not {declaration.task.kind}"
    if other := other_window(champion.spec.get("windows", []), spec):
        return f"it reads another window {other!r}"
    if champion.spec["label"] != spec.label:
        return f"it predicts {champion.spec['label']!r}, not {spec.label!r}"
    if statistics.labels:
        known = {
            label["name"]: (label["kind"], set(map(repr, label["classes"])))
            for label in champion.spec["labels"]
        }
        wanted = {
            label.name: (label.kind, set(map(repr, label.classes))) for label in statistics.labels
        }
        unlike = [name for name in wanted if known.get(name) != wanted[name]]
        return f"its label {unlike[0]!r} has other classes, or is none" if unlike else ""
    tokens = statistics.tokens
    if (
        tokens is not None
        and champion.spec["text"]["tokenizer"] != tokens.tokenizer
        and (declaration.register_.metric or declaration.metric) != CHARACTERS
    ):
        return (
            f"its tokens are {champion.spec['text']['tokenizer']}, not {tokens.tokenizer}; set"
            f" register.metric: {CHARACTERS} to compare the two"
        )
    ours, theirs = list(statistics.classes), champion.spec["classes"]
    return (
        ""
        if set(map(repr, ours)) == set(map(repr, theirs))
        else f"its classes are {theirs}, those of this run {ours}"
    )


def keeps_groups(declaration: Declaration, spec: TableSpec) -> bool:
    """Return True if the split keeps groups whole, so that a known group would be an advantage."""
    return bool(spec.grouped) and declaration.split.kind in (*GROUPED, "predefined")


def _evaluated(run: RunSpec, evaluation: EvaluationReport) -> pd.DataFrame:
    """Return the challenger's predictions of the test rows, in the order of the arrays."""
    found = pq.read_table(verify(evaluation.predictions)).to_pandas()
    ids = (
        pq.read_table(verify(run.arrays.test.documents or run.arrays.test.ids), columns=["__id"])
        .column(0)
        .to_pandas()
    )
    if set(found["__id"]) != set(ids) or len(found) != len(ids):
        raise IntegrityError(
            f"{evaluation.predictions.path}: expected predictions of the {len(ids)} test rows, got"
            f" {len(found)} of others; evaluate again"
        )
    return found.set_index("__id").loc[ids]


def predictions_of(model: LoadedModel, declaration: Declaration, rows: Rows) -> np.ndarray:
    """Return a registered model's predictions of rows in the form that metrics need.

    The order of the table is checked against the arrays.

    Raises:
        KeyError: the model lacks a prediction that this task compares.
        ValueError: the model refuses the rows.
        IntegrityError: table and arrays contain other rows, or in another order.
    """
    columns = [
        c["name"]
        for kind in ("numeric", "categorical", "tensor", "bags", "raw")
        for c in model.spec.get(kind, [])
    ]
    columns += [model.spec["text"]["name"]] if "text" in model.spec else []
    parts, seen, start = [], list[np.ndarray](), 0
    present = set(pq.read_schema(verify(rows.table.file)).names)
    windows = given_windows(rows.statistics, rows.arrays) if model.spec.get("windows") else {}
    for batch in arrow_batches(
        rows.table.file.file,
        BATCH_ROWS,
        ["__id", *(c for c in dict.fromkeys(columns) if c in present)],
    ):
        frame = batch.to_pandas()
        seen.append(frame.pop("__id").to_numpy())
        part = {name: list(found[start : start + len(frame)]) for name, found in windows.items()}
        frame, start = frame.assign(**part), start + len(frame)
        parts.append(model.predict(frame))
    if not np.array_equal(np.concatenate(seen), _given(rows)["__id"].to_numpy(dtype=object)):
        raise IntegrityError(
            f"{rows.table.file.path}: its rows are not in the order of the arrays; prepare the data"
            " again"
        )
    found = pd.concat(parts)
    return sums_of(found) if "text" in model.spec else _values(found, _columns(declaration, rows))


def _columns(declaration: Declaration, rows: Rows) -> list[str]:
    """Return the prediction columns to compare, for each label.

    These are probabilities in class order, or values.
    """
    labels = targets_of(declaration, rows.statistics)
    several = [name for t in labels for name in t.probability_columns or [t.prediction_column]]
    return several or probability_columns(rows.statistics.classes) or ["prediction"]


def _values(frame: pd.DataFrame, columns: list[str]) -> np.ndarray:
    """Return probabilities [N, C], values [N], or the columns of several labels [N, K]."""
    return np.asarray(
        frame["prediction"] if columns == ["prediction"] else frame[columns], dtype=np.float64
    )
