"""Tables for planted leaks: public data without its known leaks, and generated tables.

Two data sets, `diabetes130` and `wisdm_v11`, are held out: no threshold was ever chosen on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

ROWS = 4000
HELD_OUT = ("diabetes130", "wisdm_v11")


@dataclass(frozen=True)
class Base:
    """A table with its roles; every other column is a feature.

    `time` holds timestamps. `splits`: honest ways to split it. `embargo`: days that a time split
    leaves out. `series`: rows follow each other in time within a group, or in the whole table.
    `entity`: a feature whose values have a series each, though no role says so.
    """

    name: str
    frame: pd.DataFrame
    task: str
    label: str
    id: str = "row_id"
    group: str | None = None
    time: str | None = None
    text: str | None = None
    smiles: str | None = None
    image: str | None = None
    splits: tuple[str, ...] = ("random",)
    embargo: float = 0.0
    series: bool = False
    entity: str | None = None

    @property
    def numeric(self) -> list[str]:
        """Return the numeric features."""
        roles = {self.id, self.group, self.time, self.label}
        return [
            c
            for c in self.frame.columns
            if c not in roles
            and pd.api.types.is_numeric_dtype(self.frame[c])
            and self.frame[c].dtype != bool
        ]

    @property
    def categorical(self) -> list[str]:
        """Return the features that are text or booleans, without documents."""
        roles = {self.id, self.group, self.time, self.label, self.text, self.smiles, self.image}
        return [c for c in self.frame.columns if c not in roles and c not in self.numeric]


def loaded(data: Path | None) -> list[Callable[[int], Base]]:
    """Return every base as a function of a seed, which chooses its rows.

    Without the folder of public data there are only generated ones.
    """
    real = (
        [
            _bike,
            _bank,
            _beijing,
            _stations,
            _cmapss,
            _titanic,
            _sms,
            _bbbp,
            _esol,
            _mnist,
            _adult,
            _houses,
            _diabetes,
            _wisdm,
        ]
        if data
        else []
    )
    made = [_plain, _grouped, _timed, _panel, _documents, _matches, _meters]
    return [
        *(lambda seed, f=f: f(data, seed) for f in real),
        *(lambda seed, f=f: f(seed) for f in made),
    ]


def with_task(base: Base, task: str) -> Base | None:
    """Return the same table for another task: a number is cut at its median or thirds; None if the
    label does not allow it.
    """
    if task == base.task:
        return base
    if base.task != "regression":
        return None
    values = base.frame[base.label]
    cuts = values.quantile([0.5]) if task == "binary" else values.quantile([1 / 3, 2 / 3])
    coded = np.searchsorted(cuts.to_numpy(), values.to_numpy(), side="right")
    return replace(
        base, name=f"{base.name}/{task}", task=task, frame=base.frame.assign(**{base.label: coded})
    )


def _some(frame: pd.DataFrame, seed: int, rows: int = ROWS, by: str | None = None) -> pd.DataFrame:
    """Return at most `count` rows, shuffled; whole groups if `by` is given."""
    rng = np.random.default_rng(seed)
    if by is not None and len(frame) > rows:
        sizes = frame.groupby(by).size().sample(frac=1, random_state=seed)
        frame = frame[frame[by].isin(sizes.index[sizes.cumsum() <= rows])]
        return frame.sample(frac=1, random_state=seed).reset_index(drop=True)
    return frame.iloc[rng.permutation(len(frame))[:rows]].reset_index(drop=True)


def _stretch(frame: pd.DataFrame, seed: int, rows: int = ROWS) -> pd.DataFrame:
    """Return consecutive rows, from a place that the seed chooses."""
    start = int(np.random.default_rng(seed).integers(0, max(1, len(frame) - rows)))
    return frame.iloc[start : start + rows].reset_index(drop=True)


def _with_ids(frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Add ids without meaning: a permutation."""
    return frame.assign(
        row_id=[f"K{i:06d}" for i in np.random.default_rng(seed + 7).permutation(len(frame))]
    )


@cache
def _read(path: Path, **options: object) -> pd.DataFrame:
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    return pd.read_csv(path, low_memory=False, **options)


# public tables


def _bike(data: Path, seed: int) -> Base:
    """Return hours of bike rental without the two columns that add up to the target."""
    frame = _read(data / "bike_hour.csv")
    at = pd.to_datetime(frame["dteday"], format="%m/%d/%y") + pd.to_timedelta(frame["hr"], unit="h")
    frame = frame.drop(columns=["instant", "dteday", "casual", "registered", "yr"]).assign(at=at)
    return Base(
        "bike_hour",
        _with_ids(_stretch(frame, seed), seed),
        "regression",
        "cnt",
        time="at",
        splits=("time",),
        embargo=1,
        series=True,
    )


def _bank(data: Path, seed: int) -> Base:
    """Return bank calls without their duration, which is known only after the call."""
    frame = _read(data / "bank_full.csv.gz", sep=";").drop(columns=["duration"])
    features = [c for c in frame.columns if c != "y"]
    return Base(
        "bank_full", _with_ids(_some(frame.drop_duplicates(features), seed), seed), "binary", "y"
    )


def _beijing(data: Path, seed: int) -> Base:
    """Return hours of one air station; a day lies between train and test."""
    frame = _read(data / "beijing_air_dongsi.csv.gz").dropna(subset=["PM2.5"])
    at = pd.to_datetime(frame[["year", "month", "day", "hour"]])
    # PM10 holds PM2.5, measured in the same hour
    frame = frame.drop(columns=["No", "year", "day", "station", "PM10"]).assign(at=at)
    return Base(
        "beijing_air",
        _with_ids(_stretch(frame, seed), seed),
        "regression",
        "PM2.5",
        time="at",
        splits=("time",),
        embargo=2,
        series=True,
    )


def _stations(data: Path, seed: int) -> Base:
    """Return the same hours of three air stations, whose column is a feature."""
    hours = ROWS // 3
    frames = [_read(data / f"beijing_air_{n}.csv.gz") for n in ("dongsi", "huairou", "wanliu")]
    start = int(np.random.default_rng(seed).integers(0, len(frames[0]) - hours))
    frame = pd.concat([f.iloc[start : start + hours] for f in frames]).dropna(subset=["PM2.5"])
    at = pd.to_datetime(frame[["year", "month", "day", "hour"]])
    frame = frame.drop(columns=["No", "year", "day", "PM10"]).assign(at=at)
    return Base(
        "beijing_stations",
        _with_ids(frame.reset_index(drop=True), seed),
        "regression",
        "PM2.5",
        time="at",
        splits=("time",),
        embargo=2,
        entity="station",
    )


def _cmapss(data: Path, seed: int) -> Base:
    """Return engine cycles by unit."""
    frame = _read(data / "cmapss_fd001.parquet").drop(columns=["split"])
    frame = frame[[c for c in frame.columns if frame[c].nunique() > 1]]
    return Base(
        "cmapss_fd001",
        _with_ids(_some(frame, seed, by="unit"), seed),
        "regression",
        "rul",
        group="unit",
        splits=("group",),
    )


def _titanic(data: Path, seed: int) -> Base:
    """Return passengers without the copy of the label and without repeated rows."""
    frame = _read(data / "titanic.csv").drop(columns=["alive"])
    features = [c for c in frame.columns if c != "survived"]
    return Base(
        "titanic",
        _with_ids(_some(frame.drop_duplicates(features), seed), seed),
        "binary",
        "survived",
    )


def _sms(data: Path, seed: int) -> Base:
    """Return text messages, each once."""
    frame = _read(
        data / "sms_spam.tsv", sep="\t", quoting=3, header=None, names=("label", "message")
    )
    key = frame["message"].str.lower().str.replace(r"[\W\d_]+", " ", regex=True).str.strip()
    return Base(
        "sms_spam",
        _with_ids(_some(frame[~key.duplicated()], seed), seed),
        "binary",
        "label",
        text="message",
    )


def _bbbp(data: Path, seed: int) -> Base:
    """Return molecules, each once."""
    frame = _unique_molecules(_read(data / "mol_bbbp.csv")[["smiles", "p_np"]])
    return Base("mol_bbbp", _with_ids(_some(frame, seed), seed), "binary", "p_np", smiles="smiles")


def _esol(data: Path, seed: int) -> Base:
    """Return molecules with their solubility, without another model's prediction of it."""
    frame = _read(data / "mol_esol.csv").rename(
        columns={"measured log solubility in mols per litre": "solubility"}
    )
    frame = frame.drop(columns=["Compound ID", "ESOL predicted log solubility in mols per litre"])
    return Base(
        "mol_esol",
        _with_ids(_some(_unique_molecules(frame), seed), seed),
        "regression",
        "solubility",
        smiles="smiles",
    )


def _unique_molecules(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each molecule, in any spelling; compare text if there is no RDKit."""
    try:
        from rdkit import Chem, RDLogger
    except ImportError:
        return frame[~frame["smiles"].str.strip().duplicated()]
    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]
    molecules = frame["smiles"].map(Chem.MolFromSmiles)
    frame, molecules = frame[molecules.notna()], molecules.dropna()
    return frame[~molecules.map(Chem.MolToSmiles).duplicated()]


def _mnist(data: Path, seed: int) -> Base:
    """Return digits by their writer."""
    frame = _read(data / "mnist10k_writers.parquet").drop(columns=["image_id"])
    return Base(
        "mnist10k",
        _with_ids(_some(frame, seed, 3000, by="writer"), seed),
        "multiclass",
        "digit",
        group="writer",
        image="image",
        splits=("group",),
    )


def _adult(data: Path, seed: int) -> Base:
    """Return people of the census, each once."""
    frame = _read(data / "adult.csv.gz", na_values="?")
    label = frame.columns[-1]
    features = [c for c in frame.columns if c != label]
    return Base(
        "adult", _with_ids(_some(frame.drop_duplicates(features), seed), seed), "binary", label
    )


def _houses(data: Path, seed: int) -> Base:
    """Return sales of houses in order of time, each house once."""
    frame = _read(data / "kc_house.csv.gz").drop_duplicates("id").drop(columns=["id"])
    frame = frame.assign(date=pd.to_datetime(frame["date"]))
    return Base(
        "kc_house",
        _with_ids(_some(frame, seed), seed),
        "regression",
        "price",
        time="date",
        splits=("time",),
        embargo=7,
    )


def _diabetes(data: Path, seed: int) -> Base:
    """Return hospital encounters by patient; held out."""
    frame = _read(data / "diabetes130.csv.gz", na_values="?").drop(columns=["encounter_id"])
    frame = frame[[c for c in frame.columns if frame[c].nunique() > 1]]
    frame = frame.assign(readmitted=(frame["readmitted"] == "<30").astype(int))
    return Base(
        "diabetes130",
        _with_ids(_some(frame, seed, by="patient_nbr"), seed),
        "binary",
        "readmitted",
        group="patient_nbr",
        splits=("group",),
    )


def _wisdm(data: Path, seed: int) -> Base:
    """Return phone movements by user, each window once; held out."""
    frame = _read(data / "wisdm_v11.csv.gz", na_values="?").drop(columns=["UNIQUE_ID"])
    frame = frame[[c for c in frame.columns if frame[c].nunique() > 1]]
    frame = frame[~frame.drop(columns=["user", "class"]).duplicated()]
    return Base(
        "wisdm_v11",
        _with_ids(_some(frame, seed, by="user"), seed),
        "multiclass",
        "class",
        group="user",
        splits=("group",),
    )


# generated tables


def _features(rng: np.random.Generator, rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return numbers of several scales and categories, and the signal that a label is made of."""
    x = rng.normal(size=(rows, 6))
    c = rng.integers(0, 5, rows)
    d = rng.integers(0, 40, rows)
    columns = {
        "height": 170 + 9 * x[:, 0],
        "income": np.exp(9 + 0.6 * x[:, 1]).round(2),
        "ratio": x[:, 2],
        "visits": rng.poisson(np.exp(0.5 + 0.4 * x[:, 3])),
        "dose": np.where(rng.random(rows) < 0.1, np.nan, 5 + x[:, 4]),
        "noise": x[:, 5],
        "ward": np.char.add("w", c.astype(str)),
        "code": np.char.add("c", d.astype(str)),
    }
    signal = (
        0.8 * x[:, 0] + 0.6 * x[:, 1] - 0.5 * x[:, 2] + 0.4 * (c == 2) + 0.3 * np.sin(2 * x[:, 3])
    )
    return columns, signal


def _plain(seed: int) -> Base:
    """Return independent rows."""
    rng = np.random.default_rng(1000 + seed)
    columns, signal = _features(rng, ROWS)
    frame = pd.DataFrame({**columns, "outcome": 20 + 5 * (signal + rng.normal(size=ROWS))})
    return Base("generated_rows", _with_ids(frame, seed), "regression", "outcome")


def _grouped(seed: int) -> Base:
    """Return rows of 400 people, who differ in level and in some features."""
    rng = np.random.default_rng(2000 + seed)
    columns, signal = _features(rng, ROWS)
    person = rng.integers(0, 400, ROWS)
    effect = rng.normal(size=400)[person]
    columns["height"] = columns["height"] + 4 * rng.normal(size=400)[person]
    frame = pd.DataFrame(
        {
            **columns,
            "person": [f"pat-{p:04d}" for p in person],
            "outcome": 20 + 5 * (signal + effect + rng.normal(size=ROWS)),
        }
    )
    return Base(
        "generated_people",
        _with_ids(frame, seed),
        "regression",
        "outcome",
        group="person",
        splits=("group",),
    )


def _timed(seed: int) -> Base:
    """Return independent rows over two years, with a slow drift."""
    rng = np.random.default_rng(3000 + seed)
    columns, signal = _features(rng, ROWS)
    day = np.sort(rng.uniform(0, 730, ROWS))
    at = pd.Timestamp("2022-01-01") + pd.to_timedelta((day * 1440).round(), unit="min")
    frame = pd.DataFrame(
        {
            **columns,
            "seen": at,
            "outcome": 20 + 5 * (signal + 0.3 * day / 730 + rng.normal(size=ROWS)),
        }
    )
    return Base(
        "generated_dates",
        _with_ids(frame, seed),
        "regression",
        "outcome",
        time="seen",
        splits=("time",),
        embargo=7,
    )


def _panel(seed: int) -> Base:
    """Return daily rows of twenty devices with a drifting level; test has later days, no new
    devices.
    """
    rng = np.random.default_rng(4000 + seed)
    devices, days = 20, ROWS // 20
    level = np.zeros((days, devices))
    for t in range(1, days):
        level[t] = 0.9 * level[t - 1] + rng.normal(size=devices)
    columns, signal = _features(rng, ROWS)
    at = np.repeat(pd.Timestamp("2023-01-01") + pd.to_timedelta(np.arange(days), unit="D"), devices)
    frame = pd.DataFrame(
        {**columns, "device": np.tile([f"dev{d:02d}" for d in range(devices)], days), "day": at}
    )
    frame["outcome"] = 20 + 3 * level.ravel() + 2 * signal + rng.normal(size=ROWS)
    return Base(
        "generated_devices",
        _with_ids(frame, seed),
        "regression",
        "outcome",
        time="day",
        splits=("time",),
        embargo=10,
        series=True,
    )


def _matches(seed: int) -> Base:
    """Return matches of 120 numbered players at moments of their own, with their form so far."""
    rng = np.random.default_rng(6000 + seed)
    columns, signal = _features(rng, ROWS)
    player = rng.integers(0, 120, ROWS)
    minute = np.sort(rng.choice(730 * 1440, ROWS, replace=False))
    outcome = 20 + 3 * rng.normal(size=120)[player] + 3 * signal + 3 * rng.normal(size=ROWS)
    form = (
        pd.Series(outcome)
        .groupby(player)
        .transform(lambda s: s.shift(1).rolling(5, min_periods=1).mean())
    )
    frame = pd.DataFrame(
        {
            **columns,
            "player": 1000 + 7 * player,
            "form": form,
            "played": pd.Timestamp("2022-01-01") + pd.to_timedelta(minute, unit="min"),
            "outcome": outcome,
        }
    )
    return Base(
        "generated_matches",
        _with_ids(frame, seed),
        "regression",
        "outcome",
        time="played",
        splits=("time",),
        embargo=7,
        entity="player",
    )


def _meters(seed: int) -> Base:
    """Return hourly readings of 60 meters with a level and the hour's own course; no time is known.

    Readings of one meter are a group; the last reading is a lawful feature.
    """
    rng = np.random.default_rng(7000 + seed)
    meters, hours = 60, 66
    columns, signal = _features(rng, meters * hours)
    level = np.zeros((hours, meters))
    level[0] = rng.normal(size=meters)
    for t in range(1, hours):
        level[t] = 0.8 * level[t - 1] + 0.6 * rng.normal(size=meters)
    reading = 20 + 4 * level.ravel() + 2 * signal
    frame = pd.DataFrame(
        {
            **columns,
            "meter": np.tile([f"M {m:02d}" for m in range(meters)], hours),
            "last": pd.Series(reading).shift(meters),
            "reading": reading,
        }
    )
    return Base(
        "generated_meters",
        _with_ids(frame, seed),
        "regression",
        "reading",
        group="meter",
        splits=("group",),
    )


def _documents(seed: int) -> Base:
    """Return long texts of generated words, drawn from a few topics."""
    rng = np.random.default_rng(5000 + seed)
    words = np.array(
        [
            "".join(rng.choice(list("abcdefghiklmnoprstuvw"), rng.integers(3, 9)))
            for _ in range(3000)
        ]
    )
    topics = rng.dirichlet(np.full(3000, 0.05), 6)
    rows = 1500
    topic = rng.integers(0, 6, rows)
    texts = [
        " ".join(rng.choice(words, int(rng.integers(60, 160)), p=topics[t])).capitalize() + "."
        for t in topic
    ]
    frame = pd.DataFrame(
        {
            "document": texts,
            "length": [len(t) for t in texts],
            "outcome": topic + rng.normal(scale=1.5, size=rows),
        }
    )
    return Base(
        "generated_documents", _with_ids(frame, seed), "regression", "outcome", text="document"
    )
