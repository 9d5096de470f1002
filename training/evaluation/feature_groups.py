"""Columns that go together: what is shuffled as one when importance is measured.

Shuffling one of two columns that say the same leaves the other to the model, so both would look
unimportant. Columns are joined where their association on the sampled rows is at least `TOGETHER`:
rank correlation of numbers, correlation ratio of ranks of a number and a category, Cramér's V of
categories (corrected for chance). Parts of one date, and features derived from the same raw
columns, are one column from the start. Labels are never read. N rows, D columns.

Source: Cramér's V as corrected by Bergsma 2013; average linkage as in Sokal and Michener 1958.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from scipy.stats import rankdata

from schemas.records import RunSpec

TOGETHER = 0.7
MOST_COLUMNS = 200  # whose associations are computed
Arrays = Mapping[str, np.ndarray]


class Feature(NamedTuple):
    """A column of the user, and where its values lie: name of an array, place in it or None."""

    name: str
    places: tuple[tuple[str, int | None], ...]


def features_of(run: RunSpec) -> list[Feature]:
    """Return the features of a model in its order, parts of one source as one."""
    statistics, places = run.statistics, dict[str, list[tuple[str, int | None]]]()
    indicator = len(statistics.numeric)
    for i, number in enumerate(statistics.numeric):
        own: list[tuple[str, int | None]] = [("numeric", i)]
        if number.indicator:
            own.append(("numeric", indicator))
            indicator += 1
        places.setdefault(_source(run, number.name), []).extend(own)
    for i, category in enumerate(statistics.categorical):
        places.setdefault(_source(run, category.name), []).append(("categorical", i))
    for tensor in statistics.tensor:
        places.setdefault(tensor.column, []).append((tensor.key, None))
    for bag in statistics.bags:
        places[bag.name] = [(bag.key, None)]
    return [Feature(name, tuple(found)) for name, found in places.items()]


def _source(run: RunSpec, name: str) -> str:
    """Return the name under which a feature is shuffled: its date's, or of those derived alike."""
    if name in run.spec.dates:
        return run.spec.dates[name]
    derived = run.spec.derived
    if name not in derived:
        return name
    read = set(derived[name]["columns"])
    alike = [n for n in derived if set(derived[n]["columns"]) == read and n in run.spec.features]
    return " + ".join(alike) if read and len(alike) > 1 else name


def group_features(features: Sequence[Feature], arrays: Arrays) -> list[list[Feature]]:
    """Return groups of features that go together, in the order of their first feature.

    Args:
        features: at most `MOST_COLUMNS` are compared; the others, and tensors and texts, are alone.
        arrays: the sampled rows.
    """
    flat = [f for f in features if all(place is not None for _, place in f.places)][:MOST_COLUMNS]
    alone = [[f] for f in features if f not in flat]
    if len(flat) < 2:
        return [[f] for f in features]
    near = association([_first(f, arrays) for f in flat])
    distances = squareform(np.clip(1 - near, 0, 1), checks=False)
    labels = fcluster(linkage(distances, "average"), 1 - TOGETHER, "distance")
    clusters = [
        [f for f, k in zip(flat, labels, strict=True) if k == label]
        for label in dict.fromkeys(labels)
    ]
    order = {f.name: i for i, f in enumerate(features)}
    return sorted([*clusters, *alone], key=lambda group: order[group[0].name])


def _first(feature: Feature, arrays: Arrays) -> tuple[np.ndarray, bool]:
    """Return the values of a feature's first column [N], and whether they are codes."""
    name, place = feature.places[0]
    return arrays[name][:, place], name == "categorical"


def association(columns: Sequence[tuple[np.ndarray, bool]]) -> np.ndarray:
    """Return the association of each pair of columns, 0 to 1, [D, D].

    Args:
        columns: values [N], and True if they are codes of categories.
    """
    rows = len(columns[0][0])
    found = np.eye(len(columns))
    numbers = [i for i, (_, coded) in enumerate(columns) if not coded]
    codes = [i for i, (_, coded) in enumerate(columns) if coded]
    ranks = {i: _standard(rankdata(columns[i][0])) for i in numbers}
    hot = {i: np.unique(columns[i][0], return_inverse=True)[1] for i in codes}
    if numbers:
        block = np.stack([ranks[i] for i in numbers])
        found[np.ix_(numbers, numbers)] = np.abs(block @ block.T) / rows
    for i in codes:
        counts = np.bincount(hot[i])
        for j in numbers:
            means = np.bincount(hot[i], weights=ranks[j]) / counts
            found[i, j] = found[j, i] = np.sqrt(
                _unbiased(float(counts @ means**2) / rows, counts, rows)
            )
        for j in codes:
            if j < i:
                found[i, j] = found[j, i] = _cramer(hot[i], hot[j])
    np.fill_diagonal(found, 1.0)
    return np.clip(found, 0, 1)


def _standard(values: np.ndarray) -> np.ndarray:
    spread = values.std()
    return (values - values.mean()) / spread if spread > 0 else np.zeros(len(values))


def _unbiased(explained: float, counts: np.ndarray, rows: int) -> float:
    """Return the explained share less what as many categories explain by chance."""
    spare = rows - len(counts)
    return max(0.0, 1 - (1 - explained) * (rows - 1) / spare) if spare > 0 else 0.0


def _cramer(one: np.ndarray, other: np.ndarray) -> float:
    rows, (r, k) = len(one), (one.max() + 1, other.max() + 1)
    if min(r, k) < 2:
        return 0.0
    table = np.bincount(one * k + other, minlength=r * k).reshape(r, k)
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / rows
    phi = float(((table - expected) ** 2 / expected).sum() / rows)
    phi = max(0.0, phi - (r - 1) * (k - 1) / (rows - 1))
    low = min(r - (r - 1) ** 2 / (rows - 1), k - (k - 1) ** 2 / (rows - 1)) - 1
    return float(np.sqrt(phi / low)) if low > 0 else 0.0
