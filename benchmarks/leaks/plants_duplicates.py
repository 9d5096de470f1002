"""Leaks by similar rows: a held-out row that train has in another form.

Ids, groups and times stay those of the replaced row.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pandas as pd

from benchmarks.leaks.plants_roles import Planted, Rng, some
from benchmarks.leaks.splitting import Sides


def copied(
    sides: Sides,
    rate: float,
    rng: Rng,
    change: Callable[[pd.DataFrame, Rng], pd.DataFrame | None],
    *,
    label: bool = True,
) -> Planted | None:
    """Replace test rows by changed train rows, which take over their ids, groups and times."""
    base = sides.base
    test = sides.test.copy()
    rows = some(test, rate, rng)
    source = sides.train.iloc[rng.choice(len(sides.train), len(rows), replace=False)].reset_index(
        drop=True
    )
    changed = change(source.copy(), rng)
    if changed is None:
        return None
    kept = {base.id, base.group, base.time, *(() if label else (base.label,))}
    for column in test.columns:
        if column not in kept:
            values = test[column].astype(object)
            values.iloc[rows] = list(changed[column])
            test[column] = values.infer_objects()
    return Planted(sides.having(test=test))


def whole_rows(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Train rows stand in test as they are, id included."""
    rows = some(sides.test, rate, rng)
    source = sides.train.iloc[rng.choice(len(sides.train), len(rows), replace=False)]
    return Planted(
        sides.having(
            test=pd.concat([sides.test.drop(sides.test.index[rows]), source], ignore_index=True)
        )
    )


def new_ids(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Train rows stand in test under new ids."""
    return copied(sides, rate, rng, lambda rows, _: rows)


def other_labels(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Train rows stand in test under new ids and with labels of other rows."""
    return copied(sides, rate, rng, lambda rows, _: rows, label=False)


def noisy_numbers(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Copies whose numbers differ by a ten-thousandth of their spread."""
    return _shaken(sides, rate, rng, 1e-4)


def jittered(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Augmented copies: numbers shaken by three hundredths of their spread, pictures moved by a
    pixel.
    """
    if sides.base.image:
        return copied(sides, rate, rng, lambda rows, r: _moved(rows, sides.base.image or "", r))
    return _shaken(sides, rate, rng, 0.03)


def _shaken(sides: Sides, rate: float, rng: Rng, share: float) -> Planted | None:
    continuous = [c for c in sides.base.numeric if sides.train[c].nunique() > 50]
    if len(continuous) < 3:
        return None
    spread = sides.train[continuous].std()
    return copied(
        sides,
        rate,
        rng,
        lambda rows, r: rows.assign(
            **{c: rows[c] + share * spread[c] * r.normal(size=len(rows)) for c in continuous}
        ),
    )


def _moved(rows: pd.DataFrame, column: str, rng: Rng) -> pd.DataFrame:
    """Move pictures of 28 by 28 one pixel right, and add a little noise."""
    pictures = np.roll(np.stack(rows[column].to_numpy()).reshape(-1, 28, 28).astype(int), 1, axis=2)
    noisy = np.clip(pictures + rng.integers(-3, 4, pictures.shape), 0, 255).astype(np.uint8)
    return rows.assign(**{column: list(noisy.reshape(len(rows), -1))})


def respelt_copies(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Copies whose categories are spelt otherwise: case, spaces, punctuation or accents."""
    names = [
        c
        for c in sides.base.categorical
        if sides.train[c].map(lambda v: isinstance(v, str) and any(map(str.isalpha, v))).mean()
        > 0.5
    ]
    if len(names) < 1 or len(sides.base.numeric) < 2:
        return None

    def respell(rows: pd.DataFrame, r: Rng) -> pd.DataFrame:
        ways = r.integers(0, len(RESPELLINGS), (len(rows), len(names)))
        return rows.assign(
            **{
                c: [
                    RESPELLINGS[w](v) if isinstance(v, str) else v
                    for w, v in zip(ways[:, i], rows[c], strict=True)
                ]
                for i, c in enumerate(names)
            }
        )

    return copied(sides, rate, rng, respell)


def _accented(text: str) -> str:
    """Return the text with an accent on its first vowel, or in capitals if there is none."""
    accented = re.sub("[aeiou]", lambda m: m[0] + "\u0301", text, count=1, flags=re.IGNORECASE)
    return accented if accented != text else text.upper()


RESPELLINGS: tuple[Callable[[str], str], ...] = (
    lambda text: text.upper() if text.upper() != text else text.lower(),
    lambda text: f" {text} ",
    lambda text: f"{text}.",
    lambda text: text.capitalize() if text.capitalize() != text else text.lower(),
    _accented,
)


def interpolated(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Synthetic rows, as oversampling before the split makes them: between a train row and its
    nearest neighbour there.
    """
    from sklearn.neighbors import NearestNeighbors

    continuous = [c for c in sides.base.numeric if sides.train[c].nunique() > 50]
    if len(continuous) < 4:
        return None
    scaled = (
        ((sides.train[continuous] - sides.train[continuous].mean()) / sides.train[continuous].std())
        .fillna(0)
        .to_numpy()
    )
    _, near = NearestNeighbors(n_neighbors=2).fit(scaled).kneighbors(scaled)
    numbers = sides.train[continuous].to_numpy(dtype=float)

    def between(rows: pd.DataFrame, r: Rng) -> pd.DataFrame:
        place = _places(sides.train[sides.base.id], rows[sides.base.id])
        u = r.uniform(0.2, 0.8, (len(rows), 1))
        values = numbers[place] + u * (numbers[near[place, 1]] - numbers[place])
        return rows.assign(**{c: values[:, i] for i, c in enumerate(continuous)})

    return copied(sides, rate, rng, between)


def _places(keys: pd.Series, wanted: pd.Series) -> np.ndarray:
    return np.asarray(pd.Index(keys).get_indexer(pd.Index(wanted)))


def recased_text(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Texts of train in capitals, with spaces and full stops of their own."""
    text = sides.base.text
    if text is None:
        return None
    return copied(
        sides,
        rate,
        rng,
        lambda rows, _: rows.assign(
            **{text: "  " + rows[text].str.upper().str.replace(" ", "  ").str.rstrip(".") + " ."}
        ),
    )


def reworded_text(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Long texts of train with a tenth of their words dropped or doubled and two sentences' halves
    swapped.
    """
    text = sides.base.text
    if text is None or sides.train[text].str.len().median() < 200:
        return None
    return copied(
        sides,
        rate,
        rng,
        lambda rows, r: rows.assign(**{text: [_reworded(t, r) for t in rows[text]]}),
    )


def _reworded(text: str, rng: Rng) -> str:
    words = text.split()
    kept = [w for w in words for _ in range(int(rng.choice([0, 1, 2], p=[0.05, 0.9, 0.05])))]
    half = len(kept) // 2
    return " ".join(kept[half:] + kept[:half])


def respelt_smiles(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Molecules of train with other numbers for their rings."""
    smiles = sides.base.smiles
    if smiles is None:
        return None

    def respell(rows: pd.DataFrame, _: Rng) -> pd.DataFrame:
        return rows.assign(**{smiles: [_rings(s) for s in rows[smiles]]})

    return copied(sides, rate, rng, respell)


def _rings(smiles: str) -> str:
    """Return the same molecule with ring 1 written as ring 9 and so on, if it has fewer than nine
    rings.

    Without rings, the bonds become explicit.

    >>> _rings("c1ccccc1"), _rings("CCO")
    ('c9ccccc9', 'C-C-O')
    """
    if "%" in smiles or "9" in smiles:
        return smiles
    outside = re.split(r"(\[[^\]]*\])", smiles)
    if any(re.search(r"\d", part) for part in outside[::2]):
        return "".join(
            (
                part
                if i % 2
                else re.sub(r"\d", lambda m: str(10 - int(m[0])) if m[0] != "0" else "0", part)
            )
            for i, part in enumerate(outside)
        )
    return re.sub(r"(?<=[CNO])(?=[CNO])", "-", smiles)
