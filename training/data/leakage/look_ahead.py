"""Features that contain the label's future: windows that extend past the time of prediction.

Shapes: T rows in order of entity and time, C numeric features.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from schemas.config import ChecksConfig
from schemas.records import CheckResult
from training.data.engine.engine import count_distinct, ident, literal, row
from training.data.leakage.label_sql import LabelNumber, label_numbers
from training.data.leakage.sampled import Codes, Flags, Floats, numbers
from training.data.leakage.sides import Sides

ROWS = 40_000
EVIDENCE_ROWS = 5
WINDOWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 24, 30, 48)
FEWEST_ROWS = 300
LEAST_LENGTH = 10  # rows of a series, on average
MOST_REPEATED = 0.05  # share of rows at a time that their entity already has
LEAST_EXPLAINED = 0.3  # of the next values' surprise; below it a warning would be pointless
LEAST_CERTAIN = 0.9  # of the surprise: no column that is known in time holds nearly all of it
FINE_VALUES = 100  # calendars legitimately know the future, and have few values
# share of the next values' variance that the present does not explain; a countdown has none
LEAST_SURPRISE = 1e-3


class LookAhead(NamedTuple):
    """Share of the label's next values that a feature explains beyond its present and last ones.

    It also has the reverse; shares lie in 0 to 1.
    """

    column: str
    label: str
    window: int
    future: float
    past: float
    rows: int
    fine: bool = True
    shown: tuple[dict[str, Any], ...] = ()  # rows with the feature next to the label's next values


def find_look_ahead(sides: Sides) -> list[LookAhead]:
    """Return the window of each feature that is furthest ahead of its past.

    The result is empty without time, or if times repeat within every entity.
    """
    if sides.spec.time is None or not sides.spec.numeric:
        return []
    found: dict[str, LookAhead] = {}
    for label in label_numbers(sides, with_places=True):
        for item in _of_label(sides, label):
            if (
                item.column not in found
                or item.future - item.past > found[item.column].future - found[item.column].past
            ):
                found[item.column] = item
    return sorted(found.values(), key=lambda f: (f.past - f.future, f.column))


def _of_label(sides: Sides, label: LabelNumber) -> list[LookAhead]:
    series = next(
        (
            found
            for entity in _entities(sides)
            if (found := _in_order(sides, label, entity)) is not None
        ),
        None,
    )
    if series is None:
        return []
    table, entity = series
    columns = {n: numbers(table[n]) for n in sides.spec.numeric}
    varied = {
        n: np.nan_to_num(v - np.nanmean(v))
        for n, v in columns.items()
        if len(np.unique(v[~np.isnan(v)])) > 1
    }
    if not varied:
        return []
    features, target = np.stack(list(varied.values()), axis=1), numbers(table["target"])
    is_fine = {n: len(np.unique(v)) >= FINE_VALUES for n, v in varied.items()}
    items = [
        item._replace(fine=is_fine[item.column])
        for window in WINDOWS
        for item in _of_window(list(varied), features, target, entity, window, label.name)
    ]
    return [
        item._replace(shown=_shown(table, item, entity)) if item.future >= LEAST_EXPLAINED else item
        for item in items
    ]


def _shown(table: pa.Table, item: LookAhead, entity: Codes) -> tuple[dict[str, Any], ...]:
    """Return some rows: the feature next to the label's past and future values."""
    target = numbers(table["target"])
    past, future, whole = _windows(target, entity, item.window)
    places = np.flatnonzero(whole)[:: max(1, int(whole.sum()) // EVIDENCE_ROWS)][:EVIDENCE_ROWS]
    ids, values = table["__id"].take(places).to_pylist(), numbers(table[item.column])
    return tuple(
        {
            "id": i,
            item.column: float(values[p]),
            f"{item.label} before": float(past[p]),
            item.label: float(target[p]),
            f"{item.label} after": float(future[p]),
        }
        for i, p in zip(ids, places, strict=True)
    )


def _entities(sides: Sides) -> Iterator[str]:
    """Return SQL of the entities of a series.

    It is the declared group, or the whole table; else a category with a value for every row of a
    time.
    """
    train = sides.relations["train"]
    yield "__group" if sides.spec.group else "''"
    names = sides.spec.categorical
    if not names:
        return
    crowd, total = row(
        sides.connection,
        f"select max(n), sum(n) from (select count(*) as n from {train} where __time is not null"
        " group by __time)",
    )
    counts = [count_distinct(sides.connection, ident(n), train) for n in names]
    yield from (
        ident(n)
        for n, count in zip(names, counts, strict=True)
        if crowd <= count and count * LEAST_LENGTH <= total
    )


def _in_order(sides: Sides, label: LabelNumber, by: str) -> tuple[pa.Table, Codes] | None:
    """Return rows of train and their entities [T] in order.

    Return None if entities have one row each, or several at one time.
    """
    table = _series(sides, label, by)
    entity = np.asarray(
        table["entity"].combine_chunks().dictionary_encode().indices.to_numpy(), dtype=np.int64
    )
    time, same = numbers(table["__time"]), entity[1:] == entity[:-1]
    return (
        None
        if not same.any() or (time[1:] == time[:-1])[same].mean() > MOST_REPEATED
        else (table, entity)
    )


def _series(sides: Sides, label: LabelNumber, by: str) -> pa.Table:
    """Return whole entities of train, up to this many rows.

    Entities whose names have the lowest hashes come first. Of one long series, return its
    beginning.
    """
    train, entity = sides.relations["train"], f"coalesce({by}, '')"
    known = (
        f"{label.sql} is not null and __time is not null and"
        f" {_low_hashes(sides, entity, f'{label.sql} is not null and __time is not null')}"
    )
    sizes = f"select {entity} as g, count(*) as n from {train} where {known} group by 1"
    ordered = f"select g, sum(n) over (order by md5(g), g) - n as before from ({sizes})"
    listed = ", ".join(ident(n) for n in sides.spec.numeric)
    kept = f"{known} and {entity} in (select g from ({ordered}) where before < {literal(ROWS)})"
    sql = (
        f"select {entity} as entity, __time, {label.sql} as target, __id, {listed} from {train}"
        f" where {kept} order by entity, __time, __id limit {ROWS}"
    )
    return sides.connection.sql(sql).to_arrow_table()


def _low_hashes(sides: Sides, entity: str, known: str) -> str:
    """Return an SQL condition for the entities whose names hash lowest, with at least `ROWS` rows.

    The others need no sort.
    """
    share = 2 * ROWS / max(1, sides.num_rows["train"])
    while share < 1:
        low = f"substr(md5({entity}), 1, 8) < {literal(f'{int(share * 2**32):08x}')}"
        if (
            row(
                sides.connection,
                f"select count(*) from {sides.relations['train']} where {known} and {low}",
            )[0]
            >= ROWS
        ):
            return low
        share *= 8
    return "true"


def _of_window(
    names: list[str], features: Floats, target: Floats, entity: Codes, window: int, label: str
) -> list[LookAhead]:
    past, future, whole = _windows(target, entity, window)
    if whole.sum() < FEWEST_ROWS:
        return []
    inputs, now = features[whole], target[whole]
    ahead = _partial(inputs, future[whole], [now, past[whole]])
    behind = _partial(inputs, past[whole], [now, future[whole]])
    return [
        LookAhead(n, label, window, float(a), float(b), int(whole.sum()))
        for n, a, b in zip(names, ahead, behind, strict=True)
    ]


def _windows(target: Floats, entity: Codes, window: int) -> tuple[Floats, Floats, Flags]:
    """Return means [T] of the last and of the next values of the same entity, without the present.

    Also return where both windows are complete.
    """
    total, rows = np.concatenate([[0.0], np.cumsum(target)]), len(target)
    place = np.arange(rows)
    whole = (place >= window) & (place + window < rows)
    before, after = np.clip(place - window, 0, None), np.clip(place + window, None, rows - 1)
    whole &= (entity[before] == entity) & (entity[after] == entity)
    return (
        (total[place] - total[before]) / window,
        (total[after + 1] - total[place + 1]) / window,
        whole,
    )


def _partial(features: Floats, target: Floats, given: list[Floats]) -> Floats:
    """Return the share [C] of the rest of the target that each feature explains.

    The rest is what remains after `given` is regressed out; features are treated alike.
    """
    base = np.stack([np.ones(len(target)), *given], axis=1)
    base = base / (np.sqrt((base**2).mean(axis=0)) + 1e-300)
    basis, _ = np.linalg.qr(base)
    left = target - basis @ (basis.T @ target)
    if left.var() <= LEAST_SURPRISE * target.var():
        return np.zeros(features.shape[1])
    rest = features - basis @ (basis.T @ features)
    spread = (rest**2).sum(axis=0)
    enough = spread > 1e-9 * (features**2).sum(axis=0)
    return np.where(
        enough, (rest.T @ left) ** 2 / np.where(enough, spread, 1.0) / (left**2).sum(), 0.0
    )


def judge_look_ahead(
    found: list[LookAhead], sides: Sides, checks: ChecksConfig
) -> list[CheckResult]:
    """Fail for a column that holds nearly all of the next values' surprise.

    Warn for one that holds clearly more of it than of the last ones'.
    """
    results = []
    for f in found:
        certain = f.future >= LEAST_CERTAIN
        if not certain and (
            not f.fine or f.future < LEAST_EXPLAINED or f.future - f.past < checks.look_ahead_gain
        ):
            continue
        results.append(
            CheckResult(
                name="look_ahead",
                verdict="fail" if certain else "warn",
                summary=(
                    f"column {f.column!r} predicts {f.future:.0%} of what is new in the next"
                    f" {f.window} values of {f.label!r}, and {f.past:.0%} of what was in the last"
                    f" {f.window}"
                ),
                figures={
                    "future": round(f.future, 4),
                    "past": round(f.past, 4),
                    "window": f.window,
                    "rows": f.rows,
                    "threshold": checks.look_ahead_gain,
                },
                evidence=f.shown,
                columns=(f.column,),
                remedy=(
                    "compute it from rows before the prediction alone (end the window at the last"
                    " known label), or declare role ignore for it"
                ),
            )
        )
    figures: dict[str, float | int | str | None] = {
        "columns": len(found),
        "threshold": checks.look_ahead_gain,
    }
    text = (
        "no column knows the label's next values"
        if found
        else "not decided: entities have too few rows in time order, or moments repeat"
    )
    return results or [
        CheckResult(name="look_ahead", verdict="pass", summary=text, figures=figures)
    ]


def look_ahead_results(sides: Sides) -> list[CheckResult]:
    """Return the results if a time is declared."""
    if sides.spec.time is None or sides.spec.text is not None:
        return []
    if not row(sides.connection, f"select count(*) from {sides.relations['train']}")[0]:
        return []
    return judge_look_ahead(find_look_ahead(sides), sides, sides.declaration.checks)
