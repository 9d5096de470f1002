"""Preparation written by hand with Polars, whole columns in memory: the same checks and arrays as
`pandas_sklearn.py`. `--columns` adds the AUROC of each numeric column, as checks of columns need.

python polars_by_hand.py TABLE OUT [--columns]
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

ROLES = ("row_id", "patient", "seen_at", "outcome")
SHARES = {"train": (0.0, 0.7), "val": (0.7, 0.85), "test": (0.85, 1.0)}


def check(rows: pl.DataFrame, numeric: list[str]) -> None:
    """Check nulls of roles, finite numbers, unique ids and two classes."""
    if any(rows.select(pl.col(ROLES).null_count()).row(0)):
        raise ValueError("nulls in a role column")
    if rows["row_id"].n_unique() != len(rows):
        raise ValueError("an id stands in several rows")
    floats = [c for c in numeric if rows[c].dtype.is_float()]
    if not all(rows.select(pl.col(floats).is_finite().all()).row(0)):
        raise ValueError("values that are not finite")
    if rows["outcome"].n_unique() != 2:
        raise ValueError("expected two classes")


def split(rows: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Split whole groups by the hash of their name."""
    place = rows["patient"].hash(seed=0) / 2.0**64
    return {
        side: rows.filter((place >= low) & (place < high)) for side, (low, high) in SHARES.items()
    }


def check_sides(sides: dict[str, pl.DataFrame], features: list[str]) -> None:
    """Check that no id or group is in two splits and no held-out row equals a train row."""
    for name in ("row_id", "patient"):
        keys = [rows[name].unique() for rows in sides.values()]
        if pl.concat(keys).n_unique() != sum(map(len, keys)):
            raise ValueError(f"{name} on two sides")
    content = {side: rows.select(features).hash_rows(seed=0) for side, rows in sides.items()}
    for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
        if content[other].is_in(content[one].implode()).any():
            raise ValueError(f"equal rows on {one} and {other}")


def main(table: str, out: Path) -> None:
    """Write the prepared table as `.npy` files."""
    rows = pl.read_parquet(table)
    features = [c for c in rows.columns if c not in ROLES]
    categorical = [c for c in features if c.startswith("c")]
    numeric = [c for c in features if c not in categorical]
    check(rows, numeric)
    sides = split(rows)
    del rows
    check_sides(sides, features)
    train = sides["train"]
    nulls = [
        c
        for c, n in zip(numeric, train.select(pl.col(numeric).null_count()).row(0), strict=True)
        if n
    ]
    fills = dict(zip(nulls, train.select(pl.col(nulls).median()).row(0), strict=True))
    filled = [
        pl.col(c).fill_null(fills[c]) if c in fills else pl.col(c).cast(pl.Float64) for c in numeric
    ]
    statistics = train.select(
        *[e.mean().alias(f"mean {c}") for c, e in zip(numeric, filled, strict=True)],
        *[e.std(ddof=0).alias(f"std {c}") for c, e in zip(numeric, filled, strict=True)],
    ).row(0, named=True)
    words = {c: pl.Enum(train[c].drop_nulls().unique().sort()) for c in categorical}
    scaled = [
        ((e - statistics[f"mean {c}"]) / statistics[f"std {c}"]).cast(pl.Float32)
        for c, e in zip(numeric, filled, strict=True)
    ]
    indicators = [pl.col(c).is_null().cast(pl.Float32).alias(f"{c} null") for c in nulls]
    for side, held in sides.items():
        np.save(out / f"{side}-numeric.npy", held.select(*scaled, *indicators).to_numpy())
        codes = held.select(
            pl.col(c).cast(words[c], strict=False).to_physical().cast(pl.Int64).fill_null(-1)
            for c in categorical
        )
        np.save(out / f"{side}-categorical.npy", codes.to_numpy())
        np.save(out / f"{side}-label.npy", held["outcome"].to_numpy())


def best_column(table: str) -> float:
    """Return the highest AUROC of a numeric column for the outcome."""
    from sklearn.metrics import roc_auc_score

    rows = pl.read_parquet(table)
    outcome = rows["outcome"].to_numpy()
    numeric = rows.drop(ROLES).select(pl.selectors.numeric().cast(pl.Float64).fill_null(0.0))
    return max(float(roc_auc_score(outcome, column.to_numpy())) for column in numeric)


if __name__ == "__main__":
    if "--columns" in sys.argv:
        print(best_column(sys.argv[1]))
    main(sys.argv[1], Path(sys.argv[2]))
