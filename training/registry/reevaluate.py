"""Evaluate the champion again on new rows: performance, drift of rows and predictions, calibration.

Today's source has three kinds of rows: learned rows (features are compared with these), test rows
(predictions are compared with these: on learned rows they would be better than on new ones), and
new rows. The rules:

- `performance`: d = the declared metric now minus at registration, with the sign that more is
  better. Fail if d is below -`register.tolerance` by more than both intervals allow (the root of
  the sum of their squared half-widths, as the rows differ and both are uncertain). Warn if it is
  by more than the interval at registration.
- `threshold`: fail if a bound of `register.thresholds` is not kept.
- `drift`, `prediction drift`: warn if a column differs beyond chance, corrected for the number of
  columns, and by a PSI of 0.1 or more.
- `calibration`: warn if the mean of label minus prediction has another interval than on the test
  rows.

Drift alone never fails: rows may change and the model still be right. A check that cannot be
decided is `unknown`, never passed: without earlier rows, or with fewer than 30 new rows (for drift:
groups of rows, old or new). N rows, K columns of predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.config import SPLITS, Declaration
from schemas.digest import file_ref, replacing, verify
from schemas.errors import RegistryError
from schemas.records import (
    CheckReport,
    CheckResult,
    Interval,
    SplitTables,
    Statistics,
    TableRef,
    TableSpec,
)
from schemas.registry_records import Drift, Reevaluation
from training.data.arrays.shards import materialise_rows
from training.data.leakage.drift import (
    FEWEST_ROWS,
    LARGE,
    LEVEL,
    MIN_ROWS,
    MODERATE,
    find_drift,
    one_of_each,
)
from training.data.split.histories import chosen_windows
from training.data.split.unseen import rows_among, unseen_rows
from training.evaluation.by_group import MIN_CLUSTERS, clusters_of
from training.objectives.bootstrap import intervals, resample_counts, units_of
from training.objectives.targets import Targets, decided
from training.registry.compare_champion import (
    Facts,
    Rows,
    facts_of,
    keeps_groups,
    predictions_of,
    unlike,
)
from training.registry.gate import keeps
from training.registry.registry import LoadedModel
from training.serving.signature import thresholds_of

MOST_ROWS = 50_000  # of each kind, for drift and calibration
RESAMPLES = 500
MOST_NAMES = 5


@dataclass(frozen=True)
class Kind:
    """Rows of one kind with their predictions; at most `MOST_ROWS` learned and tested ones."""

    frame: pd.DataFrame
    facts: Facts
    predictions: np.ndarray


def reevaluate(
    declaration: Declaration,
    model: LoadedModel,
    registered: dict[str, Interval],
    statistics: Statistics,
    spec: TableSpec,
    split: SplitTables,
    folder: Path,
    count_look: Callable[[TableRef], None] = lambda _: None,
) -> Reevaluation:
    """Evaluate a registered version on rows that it neither learned from nor was tested on.

    Args:
        declaration: today's declaration; gives metric, thresholds and tolerance.
        model: the version.
        registered: its test metrics at registration.
        statistics: statistics of the version.
        spec: columns and their meaning.
        split: today's splits.
        folder: for temporary files.
        count_look: gets the new rows before they are scored.

    Raises:
        RegistryError: the model predicts something else, or has no record of the rows it learned
            from.
        DataError: the model cannot score the new rows: other classes, or nulls where there were
            none.
    """
    counts, tables = divide(model, declaration, spec, split, folder)
    if problem := unlike(declaration, spec, statistics, model):
        raise RegistryError(f"{model.uri} cannot be held against {declaration.name!r}: {problem}")
    if tables["new"].rows:
        count_look(tables["new"])
    kinds = {
        name: _kind(declaration, model, _rows(spec, statistics, table, folder / f"{name}-arrays"))
        for name, table in tables.items()
        if table.rows
    }
    metrics = (
        _metrics(declaration, kinds["new"], thresholds_of(model.spec)) if "new" in kinds else {}
    )
    features = _drift(kinds, "learned", spec.features)
    predicted = _drift(kinds, "tested", _predicted(kinds))
    results = [_enough(counts["new"])]
    if metrics:
        judged = [
            _performance(declaration, registered, metrics),
            *(
                keeps(name, bounds, metrics)
                for name, bounds in declaration.register_.thresholds.items()
            ),
        ]
        few = [
            _unknown_of_few(result, kinds["new"])
            for result in (*judged, *_calibration(kinds, spec))
        ]
        drift = [
            _judge_drift("drift", "feature", features, _fewest(kinds, "learned")),
            _judge_drift("prediction drift", "prediction", predicted, _fewest(kinds, "tested")),
        ]
        results += [*few[: len(judged)], *drift, *few[len(judged) :]]
    return Reevaluation(
        name=model.name,
        version=str(model.version),
        uri=f"models:/{model.name}/{model.version}",
        metric=declaration.register_.metric or declaration.metric,
        rows=counts["new"],
        learned=counts["learned"],
        tested=counts["tested"],
        metrics=metrics,
        registered=registered,
        checks=CheckReport(results=tuple(results)),
        features=features,
        predictions=predicted,
    )


def divide(
    model: LoadedModel, declaration: Declaration, spec: TableSpec, split: SplitTables, folder: Path
) -> tuple[dict[str, int], dict[str, TableRef]]:
    """Return the numbers of learned, tested and new rows, and these rows as tables.

    If the split keeps groups whole, rows of a group that the model learned from are in none of
    them.

    Raises:
        RegistryError: the model has no record of the rows it learned from.
    """
    if model.trained_on is None:
        raise RegistryError(
            f"{model.uri} does not say which rows it learned from; register it again through the"
            " pipeline"
        )
    masks: dict[str, list[np.ndarray]] = {"learned": [], "tested": [], "new": []}
    for side in SPLITS:
        table = split.side(side)
        learned = rows_among(table, model.trained_on)
        tested = (
            rows_among(table, model.tested_on) & ~learned
            if model.tested_on is not None
            else np.zeros(table.rows, dtype=bool)
        )
        unseen = unseen_rows(table, model.trained_on, by_group=keeps_groups(declaration, spec))
        for kind, mask in zip(masks, (learned, tested, unseen & ~tested), strict=True):
            masks[kind].append(mask)
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        kind: _chosen(
            split, found, folder / f"{kind}.parquet", None if kind == "new" else MOST_ROWS
        )
        for kind, found in masks.items()
    }
    return {kind: int(sum(mask.sum() for mask in found)) for kind, found in masks.items()}, tables


def _chosen(split: SplitTables, masks: list[np.ndarray], path: Path, limit: int | None) -> TableRef:
    """Return the marked rows of the three splits as one table; splits are in hash order, so that
    the first rows are a random sample.
    """
    total = max(1, sum(int(mask.sum()) for mask in masks))
    shares = [None if limit is None else -(-limit * int(mask.sum()) // total) for mask in masks]
    kept = [np.flatnonzero(mask)[:share] for mask, share in zip(masks, shares, strict=True)]
    schema = pq.read_schema(split.train.file.file).remove_metadata()
    with replacing(path) as file, pq.ParquetWriter(file, schema) as writer:
        for side, rows in zip(SPLITS, kept, strict=True):
            start = 0
            with pq.ParquetFile(verify(split.side(side).file)) as source:
                for batch in source.iter_batches():
                    own = rows[(rows >= start) & (rows < start + len(batch))] - start
                    start += len(batch)
                    table = pa.Table.from_batches([batch.take(pa.array(own))])
                    writer.write_table(table.replace_schema_metadata(None))
    windows = chosen_windows([split.side(side) for side in SPLITS], kept, path)
    return TableRef(file=file_ref(path), rows=sum(map(len, kept)), histories=windows)


def _rows(spec: TableSpec, statistics: Statistics, table: TableRef, folder: Path) -> Rows:
    return Rows(spec, statistics, table, materialise_rows(table, spec, statistics, folder))


def _kind(declaration: Declaration, model: LoadedModel, rows: Rows) -> Kind:
    apart = {*rows.spec.tensor, *rows.spec.bags}  # without a distribution of few values
    columns = ["__id", "__group", *(c for c in rows.spec.features if c not in apart)]
    frame = pq.read_table(rows.table.file.file, columns=columns).to_pandas()
    predictions = predictions_of(model, declaration, rows)
    for position, values in enumerate(predictions.reshape(len(frame), -1).T):
        frame[f"prediction {position}"] = values
    return Kind(frame, facts_of(declaration, rows), predictions)


def _metrics(
    declaration: Declaration, kind: Kind, thresholds: dict[str, float]
) -> dict[str, Interval]:
    settings, facts = declaration.evaluate, kind.facts
    return intervals(
        declaration,
        kind.predictions,
        facts.target,
        clusters_of(facts.group)[0],
        facts.weight,
        settings.bootstrap,
        settings.confidence,
        declaration.train.seed,
        *decided(facts.labels, thresholds),
    )


def _enough(rows: int) -> CheckResult:
    few = rows < MIN_ROWS
    return CheckResult(
        name="new rows",
        verdict="unknown" if few else "pass",
        summary=(
            f"only {rows} new row{'' if rows == 1 else 's'}: nothing can be said of them"
            if few
            else f"{rows:,} new rows, which it has neither learned from nor was tested on"
        ),
        figures={"rows": rows},
        remedy="look again when there are more" if few else "",
    )


def _fewest(kinds: dict[str, Kind], earlier: str) -> int:
    """Return the smaller number of rows for drift, one per group: earlier or new ones."""
    return (
        min(
            (
                len(one_of_each(kinds[kind].frame, "__group"))
                for kind in (earlier, "new")
                if kind in kinds
            ),
            default=0,
        )
        if earlier in kinds
        else 0
    )


def _unknown_of_few(result: CheckResult, new: Kind) -> CheckResult:
    """Return the result, or unknown if new rows are too few for it.

    With few groups a finding stays, as intervals are over groups; a pass becomes unknown.
    """
    # a group, or a row without one
    units = int(units_of(new.facts.group, len(new.frame)).max()) + 1
    is_finding = (
        result.verdict in ("fail", "warn") and units >= MIN_CLUSTERS and len(new.frame) >= MIN_ROWS
    )
    if units >= MIN_ROWS or is_finding:
        return result
    few = (
        f"unknown: {units} independent new row{'' if units == 1 else 's'} (groups count once),"
        f" {MIN_ROWS} are needed; {result.summary}"
    )
    return result.model_copy(
        update={
            "verdict": "unknown",
            "summary": few,
            "remedy": "look again when there are more rows",
        }
    )


def _performance(
    declaration: Declaration, registered: dict[str, Interval], now: dict[str, Interval]
) -> CheckResult:
    """Check performance; the module docstring gives the rule."""
    name = declaration.register_.metric or declaration.metric
    then, found, sign = (
        registered.get(name, Interval(value=None)),
        now[name],
        1.0 if declaration.metrics[name] else -1.0,
    )
    if then.value is None or found.value is None:
        return CheckResult(
            name="performance",
            verdict="unknown",
            summary=f"{name} is not defined on the new rows, or was not on the test rows",
        )
    tolerance = declaration.register_.tolerance
    gap = sign * (found.value - then.value)  # below 0: worse
    failed = gap + math.hypot(_half(found), _half(then)) < -tolerance
    warned = gap + _half(then) < -tolerance
    words = "is worse" if failed else "may be worse" if warned else "is as good"
    return CheckResult(
        name="performance",
        verdict="fail" if failed else "warn" if warned else "pass",
        summary=f"{name} {words}: {_shown(found)} on new rows, {_shown(then)} at registration",
        figures={"now": found.value, "then": then.value, "tolerance": tolerance},
        remedy=(
            "train again on the rows that came since: bulkhead run FILE" if failed or warned else ""
        ),
    )


def _half(found: Interval) -> float:
    """Return half the width of an interval; 0 without one."""
    return 0.0 if found.low is None or found.high is None else (found.high - found.low) / 2


def _shown(found: Interval) -> str:
    bounds = (
        "" if found.low is None or found.high is None else f" [{found.low:.4f}, {found.high:.4f}]"
    )
    return f"{found.value:.4f}{bounds}"


def _predicted(kinds: dict[str, Kind]) -> list[str]:
    return (
        [c for c in kinds["new"].frame.columns if c.startswith("prediction ")]
        if "new" in kinds
        else []
    )


def _drift(
    kinds: dict[str, Kind], earlier: str, columns: tuple[str, ...] | list[str]
) -> tuple[Drift, ...]:
    if "new" not in kinds or earlier not in kinds:
        return ()
    before, now = (one_of_each(kinds[kind].frame, "__group") for kind in (earlier, "new"))
    return find_drift(before, now, [c for c in columns if c in before.columns])


def has_drifted(found: Drift) -> bool:
    """Return True if a column differs beyond chance and by a relevant amount."""
    return found.adjusted < LEVEL and found.psi >= MODERATE


def _judge_drift(name: str, what: str, found: tuple[Drift, ...], fewest: int) -> CheckResult:
    """Warn about differences; unknown if rows are too few to show one."""
    moved = [d for d in found if has_drifted(d)]
    shown = ", ".join(
        f"{d.column} (PSI {d.psi:.2f}{', large' if d.psi >= LARGE else ''})"
        for d in moved[:MOST_NAMES]
    )
    columns = f"{what} column{'' if len(found) == 1 else 's'}"
    if moved:
        summary = (
            f"{len(moved)} of {len(found)} {columns} differ from earlier rows:"
            f" {shown}{', …' if len(moved) > MOST_NAMES else ''}"
        )
    elif not found:
        summary = (
            f"unknown: {fewest} rows to compare {what} columns with or of, one of each group, and"
            f" {FEWEST_ROWS} are needed"
        )
    elif fewest < MIN_ROWS:
        summary = (
            f"unknown: no large difference in {len(found)} {columns}, but {fewest} rows, one of"
            " each group, do not show a small one"
        )
    else:
        summary = f"no {what} column of {len(found)} differs from earlier rows"
    return CheckResult(
        name=name,
        verdict="warn" if moved else "unknown" if fewest < MIN_ROWS or not found else "pass",
        summary=summary,
        columns=tuple(d.column for d in moved),
        evidence=tuple(d.model_dump() for d in moved[:10]),
        remedy=(
            "see whether the source measures something else now; train again where it does not"
            if moved
            else ""
        ),
    )


def _calibration(kinds: dict[str, Kind], spec: TableSpec) -> list[CheckResult]:
    """Compute the mean of label minus prediction of each class or value, by group; none for texts.

    The intervals are corrected for their number.
    """
    if "tested" not in kinds or spec.text is not None:
        return []
    then, found = (_gaps(kinds[kind]) for kind in ("tested", "new"))
    apart = [
        i for i, (a, b) in enumerate(zip(then, found, strict=True)) if a[1] > b[2] or b[1] > a[2]
    ]
    shown = "; ".join(
        f"{found[i][0]:+.4f} [{found[i][1]:+.4f}, {found[i][2]:+.4f}], was {then[i][0]:+.4f}"
        for i in apart[:MOST_NAMES] or [len(found) - 1]
    )
    result = CheckResult(
        name="calibration",
        verdict="warn" if apart else "pass",
        summary=(
            f"label minus prediction {'differs from' if apart else 'is as on'} the test rows:"
            f" {shown}"
        ),
        figures={"now": found[-1][0], "then": then[-1][0]},
        remedy=(
            "thresholds on probabilities do not mean what they meant; train again" if apart else ""
        ),
    )
    return [result]


def _gaps(kind: Kind) -> list[tuple[float, float, float]]:
    """Return mean and interval of label minus prediction, for each column of predictions."""
    residuals = _residuals(kind.facts, kind.predictions)
    units = units_of(clusters_of(kind.facts.group)[0], len(residuals))
    weight = np.ones(len(residuals)) if kind.facts.weight is None else kind.facts.weight
    known = ~np.isnan(residuals)
    # [units, K]: sums over each unit's rows, so that a resample is one product
    sums, sizes = (
        np.stack(
            [
                np.bincount(units, values[:, i], minlength=units.max() + 1)
                for i in range(values.shape[1])
            ],
            axis=1,
        )
        for values in (np.where(known, residuals, 0.0) * weight[:, None], known * weight[:, None])
    )
    draws = np.stack(
        [
            (counts @ sums) / np.maximum(counts @ sizes, 1e-12)
            for counts in resample_counts(len(sums), RESAMPLES, 0)
        ]
    )
    tail = LEVEL / 2 / residuals.shape[1]
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
    mean = sums.sum(0) / np.maximum(sizes.sum(0), 1e-12)
    return [(float(m), float(a), float(b)) for m, a, b in zip(mean, low, high, strict=True)]


def _residuals(facts: Facts, predictions: np.ndarray) -> np.ndarray:
    """Return label minus prediction [N, K], NaN where a label is unknown; a class label is 1 or 0,
    its prediction a probability.
    """
    if facts.labels:
        return _of_several(facts.labels, facts.target, predictions)
    if predictions.ndim == 1:
        return np.asarray(facts.target - predictions)[:, None]
    return np.asarray(np.eye(predictions.shape[1])[facts.target] - predictions)


def _of_several(labels: Targets, target: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    parts = []
    for i, label in enumerate(labels):
        own, unknown = predictions[:, label.columns], np.isnan(target[:, i])
        classes = (
            np.eye(own.shape[1])[np.where(unknown, 0, target[:, i]).astype(np.int64)]
            if label.kind == "multiclass"
            else None
        )
        truth = target[:, i : i + 1] if classes is None else classes
        parts.append(np.where(unknown[:, None], np.nan, truth - own))
    return np.concatenate(parts, axis=1)
