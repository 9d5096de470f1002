"""Preparation written by hand with pandas and scikit-learn: check, split by group, look for
copies, fit on train, transform, save.

python pandas_sklearn.py TABLE OUT
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder, StandardScaler

ROLES = ("row_id", "patient", "seen_at", "outcome")
SHARES = {"train": (0.0, 0.7), "val": (0.7, 0.85), "test": (0.85, 1.0)}


def check(rows: pd.DataFrame, numeric: list[str]) -> None:
    """Check nulls of roles, finite numbers, unique ids and two classes."""
    if rows[list(ROLES)].isna().any().any():
        raise ValueError("nulls in a role column")
    if not rows["row_id"].is_unique:
        raise ValueError("an id stands in several rows")
    if np.isinf(rows[numeric].to_numpy(dtype=np.float64)).any():
        raise ValueError("infinite values")
    if rows["outcome"].nunique() != 2:
        raise ValueError("expected two classes")


def split(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Split whole groups by the hash of their name."""
    place = pd.util.hash_array(rows["patient"].to_numpy()) / 2**64
    return {side: rows[(place >= low) & (place < high)] for side, (low, high) in SHARES.items()}


def check_sides(sides: dict[str, pd.DataFrame], features: list[str]) -> None:
    """Check that no id or group is in two splits and no held-out row equals a train row."""
    keys = {
        side: {name: pd.unique(rows[name]) for name in ("row_id", "patient")}
        for side, rows in sides.items()
    }
    content = {
        side: pd.util.hash_pandas_object(rows[features], index=False).to_numpy()
        for side, rows in sides.items()
    }
    for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
        for name in ("row_id", "patient"):
            if len(np.intersect1d(keys[one][name], keys[other][name], assume_unique=True)):
                raise ValueError(f"{name} on {one} and {other}")
        if len(np.intersect1d(content[one], content[other])):
            raise ValueError(f"equal rows on {one} and {other}")


def main(table: str, out: Path) -> None:
    """Write the prepared table as `.npy` files."""
    rows = pd.read_parquet(table)
    features = [c for c in rows.columns if c not in ROLES]
    categorical = [c for c in features if c.startswith("c")]
    numeric = [c for c in features if c not in categorical]
    check(rows, numeric)
    sides = split(rows)
    check_sides(sides, features)
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, dtype=np.int64)
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    fitted = ColumnTransformer(
        [("numeric", numbers, numeric), ("categorical", encoder, categorical)]
    ).fit(sides["train"])
    for side, held in sides.items():
        np.save(
            out / f"{side}-numeric.npy",
            fitted.named_transformers_["numeric"].transform(held[numeric]).astype(np.float32),
        )
        np.save(
            out / f"{side}-categorical.npy",
            fitted.named_transformers_["categorical"].transform(held[categorical]),
        )
        np.save(out / f"{side}-label.npy", held["outcome"].to_numpy())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
