"""Features that contain the label's future: windows that extend past the time of prediction.

Shapes: T rows in order of entity and time, C numeric features.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from schemas.config import ChecksConfig
from schemas.records import CheckResult
from training.data.engine.engine import row
from training.data.leakage.entity_series import Series, series_of
from training.data.leakage.label_sql import LabelNumber, label_numbers
from training.data.leakage.sampled import Flags, Floats
from training.data.leakage.sides import Sides

EVIDENCE_ROWS = 5
WINDOWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 24, 30, 48)
FEWEST_ROWS = 300
LEAST_EXPLAINED = 0.3  # of the next values' surprise; below it a warning would be pointless
LEAST_CERTAIN = 0.9  # of the surprise: no column that is known in time holds nearly all of it
LEAST_UNEVEN = 0.5  # from here on a window of even length is tried
FINE_VALUES = 100  # calendars legitimately know the future, and have few values
# share of the next values' variance that the present does not explain; a countdown has none
LEAST_SURPRISE = 1e-3
BLOCK_COLUMNS = 256  # of a product


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
    by: str = ""  # the undeclared column whose values have a series each
    shown: tuple[dict[str, Any], ...] = ()  # rows with the feature next to the label's next values


def find_look_ahead(sides: Sides) -> list[LookAhead]:
    """Return the window of each feature that is furthest ahead of its past.

    The result is empty without time, or if times repeat within every entity.
    """
    if sides.spec.time is None or not sides.spec.numeric:
        return []
    found = _best(
        item for label in label_numbers(sides, with_places=True) for item in _of_label(sides, label)
    )
    return sorted(found.values(), key=lambda f: (f.past - f.future, f.column))


def _best(items: Iterable[LookAhead]) -> dict[str, LookAhead]:
    """Return the strongest finding of each column.

    One that holds nearly all of the next values comes before one that is only ahead of its past:
    a centred window knows both alike.
    """
    found: dict[str, LookAhead] = {}
    for item in items:
        if item.column not in found or _strength(item) > _strength(found[item.column]):
            found[item.column] = item
    return found


def _strength(item: LookAhead) -> tuple[bool, float]:
    return item.future >= LEAST_CERTAIN, item.future - item.past


def _of_label(sides: Sides, label: LabelNumber) -> list[LookAhead]:
    """Return the findings of each column, for each entity whose rows have an order."""
    return [item for series in series_of(sides, label) for item in _of_series(sides, label, series)]


def _of_series(sides: Sides, label: LabelNumber, series: Series) -> list[LookAhead]:
    names = [n for n in sides.spec.numeric if n != series.by]
    values = series.features(names)
    high, low = np.nanmax(values, axis=1, initial=-np.inf), np.nanmin(values, 1, initial=np.inf)
    varied = np.flatnonzero(high > low)
    values = values[varied]
    values -= np.nanmean(values, axis=1, keepdims=True)
    np.nan_to_num(values, copy=False)
    windows = _of_windows(values, series) if len(varied) else []
    if not windows:
        return []
    ahead, behind = np.stack([w.ahead for w in windows]), np.stack([w.behind for w in windows])
    certain = ahead >= LEAST_CERTAIN
    if series.is_guess:  # of which only nearly all of the next values is a finding
        ahead, behind = np.where(certain, ahead, 0.0), np.where(certain, behind, 0.0)
    # as `_best`: nearly all of the next values comes before the largest gain
    gain = np.where(certain.any(axis=0) & ~certain, -np.inf, ahead - behind)
    ordered = np.sort(values, axis=1)
    fine = (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1) + 1 >= FINE_VALUES
    items = [
        LookAhead(
            names[varied[i]],
            label.name,
            windows[w].window,
            float(ahead[w, i]),
            float(behind[w, i]),
            windows[w].rows,
            bool(fine[i]),
            series.by,
        )
        for i, w in enumerate(gain.argmax(axis=0))
    ]
    return [
        item._replace(shown=_shown(series, item)) if item.future >= LEAST_EXPLAINED else item
        for item in items
    ]


def _shown(series: Series, item: LookAhead) -> tuple[dict[str, Any], ...]:
    """Return some rows: the feature next to the label's past and future values."""
    table, target = series.table, series.target
    past, future, whole = _windows(target, series, item.window)
    places = np.flatnonzero(whole)[:: max(1, int(whole.sum()) // EVIDENCE_ROWS)][:EVIDENCE_ROWS]
    ids, values = table["__id"].take(places).to_pylist(), series.features([item.column])[0]
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


class _Window(NamedTuple):
    """Shares [C] of the next and of the last values that features explain, and rows used."""

    window: int
    rows: int
    ahead: Floats
    behind: Floats


def _of_windows(features: Floats, series: Series) -> list[_Window]:
    """Return the windows that enough rows have on both sides; features [C, T] are centred."""
    target, given, rests = series.target, [], list[_Rest]()
    for window in WINDOWS:
        past, future, whole = _windows(target, series, window)
        if whole.sum() >= FEWEST_ROWS:
            given.append((window, past, future, whole))
            rests += [_rest(future, [target, past], whole), _rest(past, [target, future], whole)]
    shares, found = _explained(features, rests), []
    for place, (window, past, future, whole) in enumerate(given):
        ahead, behind = shares[2 * place], shares[2 * place + 1]
        if ((ahead >= LEAST_UNEVEN) & (ahead < LEAST_CERTAIN)).any():
            # a window of even length that is centred reaches one row further back than ahead
            earlier, _, reached = _windows(target, series, window + 1)
            rest = _rest(future, [target, past, earlier], whole & reached)
            uneven = _explained(features, [rest])[0]
            ahead = np.where(uneven >= LEAST_CERTAIN, uneven, ahead)
        found.append(_Window(window, int(whole.sum()), ahead, behind))
    return found


def _windows(target: Floats, series: Series, window: int) -> tuple[Floats, Floats, Flags]:
    """Return means [T] of the last and of the next values of the same entity, without the present.

    Also return where both windows are complete, and no time repeats in them.
    """
    total, rows = np.concatenate([[0.0], np.cumsum(target)]), len(target)
    place = np.arange(rows)
    whole = (place >= window) & (place + window < rows)
    before, after = np.clip(place - window, 0, None), np.clip(place + window, None, rows - 1)
    entity, repeats = series.entity, series.repeats
    whole &= (entity[before] == entity) & (entity[after] == entity)
    whole &= repeats[before] == repeats[after]
    return (
        (total[place] - total[before]) / window,
        (total[after + 1] - total[place + 1]) / window,
        whole,
    )


class _Rest(NamedTuple):
    """What remains of a target after others are regressed out, and where [T] it was computed.

    `columns` [T, K] are an orthonormal basis of the others and last the rest, 0 elsewhere; None if
    hardly anything remains.
    """

    columns: Floats | None
    where: Flags


def _rest(target: Floats, given: list[Floats], where: Flags) -> _Rest:
    """Regress `given` out of the target in some rows."""
    rows = target[where]
    base = np.stack([np.ones(len(rows)), *(g[where] for g in given)], axis=1)
    base = base / (np.sqrt((base**2).mean(axis=0)) + 1e-300)
    basis, _ = np.linalg.qr(base)
    left = rows - basis @ (basis.T @ rows)
    if left.var() <= LEAST_SURPRISE * rows.var():
        return _Rest(None, where)
    columns = np.zeros((len(target), basis.shape[1] + 1))
    columns[where] = np.column_stack([basis, left])
    return _Rest(columns, where)


def _explained(features: Floats, rests: list[_Rest]) -> list[Floats]:
    """Return the share [C] of each rest that each feature explains; features are treated alike.

    The rest of a feature need not be computed: its product with the rest of the target is that of
    the feature, and its square is the feature's without the part in the basis.
    """
    shares = [np.zeros(len(features)) for _ in rests]
    known = [(place, r.columns, r.where) for place, r in enumerate(rests) if r.columns is not None]
    if not known:
        return shares
    columns = np.concatenate([c for _, c, _ in known], axis=1)
    where = np.stack([w for _, _, w in known], axis=1).astype(np.float64)
    for start in range(0, len(features), BLOCK_COLUMNS):
        block = features[start : start + BLOCK_COLUMNS]
        products, totals, end = block @ columns, block**2 @ where, 0
        for number, (place, rest, _) in enumerate(known):
            begin, end = end, end + rest.shape[1]
            spread = totals[:, number] - (products[:, begin : end - 1] ** 2).sum(axis=1)
            enough = spread > 1e-9 * totals[:, number]
            size = (rest[:, -1] ** 2).sum()
            share = products[:, end - 1] ** 2 / np.where(enough, spread, 1.0) / size
            shares[place][start : start + len(block)] = np.where(enough, share, 0.0)
    return shares


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
                    f" {f.window}" + (f" (rows of one {f.by!r} in order of time)" if f.by else "")
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
