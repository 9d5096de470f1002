"""Random tables of many shapes, as strangers bring them: keys, dates, codes, gaps, odd names."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

NAMES = {
    "small": ["ward_type", "school", "month", "visits", "batch"],
    "count": ["claims", "no", "store", "family"],
    "text": ["town", "code", "hospital", "Patient ID", "who", "select", "at"],
    "epoch": ["ts", "stamp", "seen_at"],
    "date": ["when", "day", "birth_date", "shipped"],
    "text_date": ["when", "date"],
    "normal": ["a", "x", "null", "NO2"],
    "big": ["record", "n"],
    "bool": ["flag", "y n"],
    "free": ["note"],
}
PEOPLE = (
    *("pid", "MRN", "Patient ID", "subject#", "case.id", "CaseID", "participant-no", "who"),
    *("hospital", "site", "id_", "user_id", "zone"),
)
ROWS = (12, 20, 35, 60, 150, 400, 900)


def column(rng: np.random.Generator, n: int, kind: str) -> Any:
    """Return n values of a kind of column."""
    below = lambda k: rng.integers(0, k, n)  # noqa: E731
    day = datetime.datetime(2020, 1, 1)
    makers: dict[str, Callable[[], Any]] = {
        "normal": lambda: rng.normal(size=n),
        "log_normal": lambda: rng.lognormal(3, 2, n),
        "small": lambda: below(int(rng.integers(1, 12))),
        "count": lambda: rng.poisson(3, n),
        "bool": lambda: below(2).astype(bool),
        "rare": lambda: (rng.random(n) < 3 / n).astype(int),
        "constant": lambda: np.ones(n),
        "text": lambda: np.array([f"v{i}" for i in below(int(rng.integers(2, 300)))]),
        "zipf": lambda: np.array([f"z{i}" for i in rng.zipf(1.5, n)]),
        "free": lambda: np.array([f"free text {i} x" for i in below(10**9)]),
        "nulls": lambda: np.where(rng.random(n) < 0.3, np.nan, rng.normal(size=n)),
        "sparse": lambda: np.where(rng.random(n) < 0.98, np.nan, rng.normal(size=n)),
        "all_null": lambda: np.full(n, np.nan),
        "big": lambda: 2**53 + 2 * np.arange(n),
        "date": lambda: [
            (day + datetime.timedelta(days=int(d))).date() for d in below(int(rng.integers(1, 800)))
        ],
        "text_date": lambda: [
            (day + datetime.timedelta(hours=int(h))).strftime("%d.%m.%Y %H:%M") for h in below(9000)
        ],
        "epoch": lambda: 1_600_000_000 + below(10**7),
        "instant": lambda: (
            pd.Timestamp("2021-03-01") + pd.to_timedelta(np.sort(below(10**6)), "min")
        ),
    }
    if kind == "any":
        kind = str(rng.choice(sorted(makers)))
    return kind, makers[kind]()


def label(rng: np.random.Generator, signal: np.ndarray) -> Any:
    """Return a label of one of several kinds that follows a signal."""
    makers: list[Callable[[], Any]] = [
        lambda: (signal > 0).astype(int),
        lambda: signal > 1.2,
        lambda: np.where(signal > 0.3, "yes", "no"),
        lambda: np.digitize(signal, [-1, 0, 1]),
        lambda: signal * 3 + 1,
        lambda: rng.poisson(np.exp(signal)),
        lambda: np.where(rng.random(len(signal)) < 0.2, np.nan, (signal > 0) * 1.0),
        lambda: np.array(["Yes", "yes", "No", "NO "])[np.digitize(signal, [-1, 0, 1])],
    ]
    return makers[int(rng.integers(0, len(makers)))]()


def stranger_table(seed: int) -> pd.DataFrame:
    """Return the table of a seed: a key or none, people or none, some columns, and a label."""
    rng = np.random.default_rng(seed)
    n = int(rng.choice(ROWS))
    made: dict[str, Any] = {}
    if rng.random() < 0.4:
        counted = np.arange(n) * int(rng.choice([1, 7])) + 3
        made[str(rng.choice(["id", "key", "visit", "row", "uid"]))] = (
            counted if rng.random() < 0.7 else rng.permutation(n)
        )
    if rng.random() < 0.45:
        people = int(rng.choice([2, 4, 8, 12, 17, 40, max(n // 6, 3)]))
        who = rng.integers(0, people, n)
        who = np.sort(who) if rng.random() < 0.5 else who
        texts = np.array([f"p{w:04d}" for w in who])
        made[str(rng.choice(PEOPLE))] = who * 7 + 2000 if rng.random() < 0.5 else texts
        if rng.random() < 0.6:
            made |= {"sex": rng.integers(0, 2, people)[who], "size": rng.normal(size=people)[who]}
    for number in range(int(rng.integers(1, 8))):
        kind, values = column(rng, n, "any")
        name = str(rng.choice(NAMES.get(kind, [f"{kind}{number}"])))
        taken = name.lower() in {known.lower() for known in made}
        made[f"{name}_{number}" if taken else name] = values
    signal = rng.normal(size=n)
    if rng.random() < 0.7:
        made["signal"] = signal + rng.normal(size=n) * 0.5
    made[str(rng.choice(["y", "target", "label", "result", "outcome"]))] = label(rng, signal)
    frame = pd.DataFrame(made)
    if rng.random() < 0.3:
        frame = frame.sample(frac=1, random_state=seed)
    return frame[list(rng.permutation(frame.columns))] if rng.random() < 0.2 else frame


def write(frame: pd.DataFrame, folder: Path, seed: int) -> Path:
    """Write a table as CSV or Parquet, by its seed, and return its path."""
    path = folder / ("t.csv" if seed % 2 else "t.parquet")
    if seed % 2:
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, index=False)
    return path
