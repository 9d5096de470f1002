"""Tables of the quality benchmark: public data with an honest split, and two generated ones.

Each is written once as Parquet, with a row number where it has no id, next to its declaration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

Tree = dict[str, Any]


@dataclass(frozen=True)
class QualityTable:
    """A table and how it is split.

    `read`: from the folder of data sets (not used by generated tables) to its rows. `tree`:
    sections of its declaration without `name` and `data.uri`. `hashed`: the split has a seed.
    """

    name: str
    read: Callable[[Path], pd.DataFrame]
    tree: Tree
    hashed: bool = True

    def declaration(self, folder: Path, data: Path, seed: int) -> Tree:
        """Return the declaration tree with the table's file, written into `folder` if absent."""
        path = folder / f"{self.name}.parquet"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            self.read(data).to_parquet(path, index=False)
        split = self.tree["split"] | ({"seed": seed} if self.hashed else {})
        return {
            **self.tree,
            "name": f"quality-{self.name.replace('_', '-')}",
            "data": {"uri": str(path), **self.tree["data"]},
            "split": split,
            "train": {"seed": seed},
        }


def _csv(name: str, **options: Any) -> Callable[[Path], pd.DataFrame]:
    def read(folder: Path) -> pd.DataFrame:
        rows = pd.read_csv(folder / name, **options)
        return rows.assign(row=np.arange(len(rows)))

    return read


def _hours(rows: pd.DataFrame, **parts: str) -> pd.Series:
    return pd.to_datetime(
        rows[list(parts.values())].rename(columns={v: k for k, v in parts.items()})
    )


def _bikes(folder: Path) -> pd.DataFrame:
    rows = pd.read_csv(folder / "bike_hour.csv")
    day = pd.to_datetime(rows["dteday"], format="%m/%d/%y")
    turn = 2 * np.pi * day.dt.dayofyear / 365.25
    return rows.drop(columns=["dteday", "casual", "registered"]).assign(
        hour_start=day + pd.to_timedelta(rows["hr"], unit="h"),
        year_sin=np.sin(turn),
        year_cos=np.cos(turn),
        hour_of_day_type=rows["workingday"].astype(str) + "-" + rows["hr"].astype(str),
    )


def _houses(folder: Path) -> pd.DataFrame:
    rows = pd.read_csv(folder / "kc_house.csv.gz", dtype={"id": str, "zipcode": str})
    sold = pd.to_datetime(rows["date"].str[:8], format="%Y%m%d")
    return rows.drop(columns=["date"]).assign(sold=sold, row=np.arange(len(rows)))


def _air(folder: Path) -> pd.DataFrame:
    rows = pd.concat(pd.read_csv(path) for path in sorted(folder.glob("beijing_air_*.csv.gz")))
    rows = rows.dropna(subset=["PM2.5"]).reset_index(drop=True)
    hour_start = _hours(rows, year="year", month="month", day="day", hour="hour")
    day, hour = 2 * np.pi * hour_start.dt.dayofyear / 365.25, 2 * np.pi * rows["hour"] / 24
    return rows.drop(columns=["No", "year", "month", "day", "PM10", "hour"]).assign(
        hour_start=hour_start,
        row=np.arange(len(rows)),
        hour_sin=np.sin(hour),
        hour_cos=np.cos(hour),
        year_sin=np.sin(day),
        year_cos=np.cos(day),
    )


def _diabetes(folder: Path) -> pd.DataFrame:
    rows = pd.read_csv(folder / "diabetes130.csv.gz", na_values=["?"], low_memory=False)
    rows = rows[~rows["discharge_disposition_id"].isin((11, 13, 14, 19, 20, 21))]
    codes = {name: rows[name].astype(str) for name in rows.columns if name.endswith("_type_id")}
    codes |= {n: rows[n].astype(str) for n in ("discharge_disposition_id", "admission_source_id")}
    return rows.drop(columns=["weight", "examide", "citoglipton", "readmitted"]).assign(
        **codes,
        age=10 * rows["age"].str[1].astype(int) + 5,
        readmitted_30d=rows["readmitted"] == "<30",
    )


def _engines(folder: Path) -> pd.DataFrame:
    rows = pd.read_parquet(folder / "cmapss_fd001.parquet")
    constant = [name for name in rows if rows[name].nunique() == 1]
    return rows.drop(columns=constant).assign(
        row=rows["unit"].astype(str) + ":" + rows["cycle"].astype(str),
        rul=np.minimum(rows["rul"], 125),
    )


def _phones(folder: Path) -> pd.DataFrame:
    rows = pd.read_csv(folder / "wisdm_v11.csv.gz", na_values=["?"])
    return rows.drop(columns=["UNIQUE_ID", "XAVG"]).assign(row=np.arange(len(rows)))


def _titanic(folder: Path) -> pd.DataFrame:
    rows = pd.read_csv(folder / "titanic.csv")
    drop = ["alive", "class", "embark_town", "adult_male", "alone"]
    return rows.drop(columns=drop).assign(pclass=rows["pclass"].astype(str))


def _signals(_: Path, rows: int = 12_000) -> pd.DataFrame:
    """Return a state that depends on products of oscillations in 14 channels: no tree's shape."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(rows, 14))
    mixed = np.tanh(x @ rng.normal(size=(14, 6)) / 2)
    margin = mixed[:, 0] * mixed[:, 1] + mixed[:, 2] * mixed[:, 3] - mixed[:, 4] * mixed[:, 5]
    state = rng.random(rows) < 1 / (1 + np.exp(-6 * margin))
    frame = pd.DataFrame(x, columns=[f"channel_{i}" for i in range(14)])
    return frame.assign(row=np.arange(rows), state=state)


def _visits(_: Path, rows: int = 10_000) -> pd.DataFrame:
    """Return repeated measurements of 400 people: steps, interactions, missing values, noise."""
    rng = np.random.default_rng(11)
    person = rng.integers(0, 400, rows)
    trait = rng.normal(size=400)[person]
    age, dose, rest = rng.uniform(20, 80, rows), rng.exponential(2, rows), rng.normal(size=rows)
    ward = rng.choice(list("abcdefg"), rows)
    effect = dict(zip("abcdefg", rng.normal(size=7), strict=True))
    level = (
        np.where(age > 50, 2.0, 0.0)
        + np.sin(age / 4)
        + np.log1p(dose) * (rest > 0)
        + np.array([effect[w] for w in ward])
        + 0.7 * trait
        + 0.3 * rng.normal(size=rows)
    )
    rest[rng.random(rows) < 0.1] = np.nan
    return pd.DataFrame(
        {
            "row": np.arange(rows),
            "person": person,
            "age": age,
            "dose": dose,
            "rest": rest,
            "ward": ward,
            "level": level,
        }
    )


def _declared(roles: Tree, split: Tree, kind: str, **sections: Any) -> Tree:
    data = {"columns": {**roles, "*": "feature"}, **sections.pop("data", {})}
    return {
        "data": data,
        "task": {"kind": kind, **sections.pop("task", {})},
        "split": split,
    } | sections


_RANDOM: Tree = {"kind": "random", "fractions": {"train": 0.6, "val": 0.2, "test": 0.2}}
_GROUP: Tree = {**_RANDOM, "kind": "group"}
_TIME: Tree = {**_RANDOM, "kind": "time"}
_STATIONS = dict.fromkeys(("Aotizhongxin", "Dongsi", "Huairou", "Wanliu"), "train")
_STATIONS |= {"Tiantan": "val", "Changping": "test"}  # as in the example: six are too few to draw
_ADULT = _csv("adult.csv.gz", na_values=["?"])
_BANK = _csv("bank_full.csv.gz", sep=";")

TABLES = (
    QualityTable(
        "adult",
        lambda folder: _ADULT(folder).drop(columns=["fnlwgt", "education", "row"]),
        _declared({"income": "label"}, _RANDOM, "binary", normalize={"min_count": 5}),
    ),
    QualityTable(
        "bank",
        lambda folder: (
            _BANK(folder)
            .drop(columns=["duration"])
            .assign(order=lambda rows: rows["row"].astype("float64"))
        ),
        _declared({"row": "id", "order": "time", "y": "label"}, _TIME, "binary"),
        hashed=False,
    ),
    QualityTable(
        "california",
        _csv("california_housing.csv.gz"),
        _declared(
            {"row": "id", "median_house_value": "label"},
            _RANDOM,
            "regression",
            normalize={"min_count": 10},
        ),
    ),
    QualityTable(
        "kc_house",
        _houses,
        _declared(
            {
                "row": "id",
                "id": "group",
                "sold": "time",
                "price": "label",
                "zipcode": "categorical",
            },
            {**_TIME, "kind": "group_time"},
            "regression",
        ),
    ),
    QualityTable(
        "bike_hour",
        _bikes,
        _declared(
            {
                "instant": "id",
                "hour_start": "time",
                "cnt": "label",
                **dict.fromkeys(("hr", "weekday", "weathersit"), "categorical"),
                "mnth": "ignore",
                "season": "ignore",
            },
            {**_TIME, "embargo": "24h"},
            "regression",
            normalize={"min_count": 5},
        ),
        hashed=False,
    ),
    QualityTable(
        "beijing_air",
        _air,
        _declared(
            {"row": "id", "station": "group", "hour_start": "time", "PM2.5": "label"},
            {**_TIME, "kind": "group_time", "embargo": "7d", "pin": _STATIONS},
            "regression",
        ),
        hashed=False,
    ),
    QualityTable(
        "diabetes130",
        _diabetes,
        _declared(
            {"encounter_id": "id", "patient_nbr": "group", "readmitted_30d": "label"},
            _GROUP,
            "binary",
            normalize={"min_count": 30},
            checks={"constant_features": "drop"},
        ),
    ),
    QualityTable(
        "cmapss_fd001",
        _engines,
        _declared(
            {"row": "id", "unit": "group", "split": "split", "rul": "label"},
            {"kind": "predefined", "carve_val": 0.2},
            "regression",
        ),
    ),
    QualityTable(
        "wisdm_v11",
        _phones,
        _declared(
            {"row": "id", "user": "group", "class": "label"},
            {**_GROUP, "kind": "stratified_group"},
            "multiclass",
        ),
    ),
    QualityTable(
        "titanic",
        _titanic,
        _declared({"survived": "label"}, _RANDOM, "binary"),
    ),
    QualityTable(
        "signals",
        _signals,
        _declared({"row": "id", "state": "label"}, _RANDOM, "binary"),
    ),
    QualityTable(
        "visits",
        _visits,
        _declared({"row": "id", "person": "group", "level": "label"}, _GROUP, "regression"),
    ),
)
QUICK = ("titanic", "wisdm_v11", "signals", "visits")
