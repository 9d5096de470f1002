"""Cases: every kind of leak at each of its rates for each task, in public and generated data; and
honest splits.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.leaks.bases import HELD_OUT, Base, loaded, with_task
from benchmarks.leaks.kinds import KINDS, Kind
from benchmarks.leaks.plants_roles import Planted
from benchmarks.leaks.splitting import Sides, split

TASKS = ("binary", "multiclass", "regression")
PLANT_SEEDS = 3  # planted cases share honest counterparts


@dataclass(frozen=True)
class Case:
    """Train and test to audit: their source, the planted leak, and whether the peers run too."""

    base: str
    task: str
    split: str
    seed: int
    kind: str = ""
    rate: float = 0.0
    peers: bool = False

    @property
    def name(self) -> str:
        """Return a text that is unique to the case."""
        return "|".join(
            map(
                str,
                (
                    self.base,
                    self.task,
                    self.split,
                    self.seed,
                    self.kind or "honest",
                    f"{self.rate:g}",
                ),
            )
        )

    @property
    def honest(self) -> Case:
        """Return the same rows with nothing planted."""
        return Case(self.base, self.task, self.split, self.seed)

    @property
    def held_out(self) -> bool:
        """Return whether the data set is one that nothing was tuned on."""
        return self.base in HELD_OUT


class Tables:
    """Bases by name, made on first use."""

    def __init__(self, data: Path | None) -> None:
        made: list[tuple[Callable[[int], Base], Base]] = [
            (factory, factory(0)) for factory in loaded(data)
        ]
        self.factories = {base.name: factory for factory, base in made}
        self.first = {base.name: base for _, base in made}
        self._base = lru_cache(maxsize=64)(lambda name, seed: self.factories[name](seed))

    def sides(self, case: Case) -> Sides | None:
        """Return the case's rows with nothing planted; None if the label does not fit the task."""
        base = with_task(self._base(case.base, case.seed), case.task)
        return split(base, case.split, case.seed) if base else None

    def planted(self, case: Case) -> Planted | None:
        """Return the case's rows with the leak; None if it does not apply to them."""
        sides = self.sides(case)
        if sides is None or not case.kind:
            return Planted(sides) if sides else None
        kind = next(k for k in KINDS if k.name == case.kind)
        return kind.plant(sides, case.rate, np.random.default_rng(zlib.crc32(case.name.encode())))


def planted_cases(tables: Tables, only: str | None = None, seed: int = 0) -> Iterator[Case]:
    """Return one public, one generated and every held-out table for every kind, task and rate, if
    the leak applies.
    """
    names = [n for n in tables.factories if n not in HELD_OUT]
    public, made = (
        [n for n in names if not n.startswith("generated")],
        [n for n in names if n.startswith("generated")],
    )
    for kind in KINDS:
        if only not in (None, kind.name, kind.family):
            continue
        for i, task in enumerate(TASKS):
            for rate in kind.rates:
                for j, pool in enumerate((public, made)):
                    start = zlib.crc32(f"{kind.name}{task}{rate}{seed}".encode()) % max(
                        1, len(pool)
                    )
                    case = _first(
                        tables,
                        kind,
                        task,
                        rate,
                        pool[start:] + pool[:start],
                        seed + (i + j) % PLANT_SEEDS,
                    )
                    if case:
                        yield case
                for name in HELD_OUT:
                    if name in tables.factories and (
                        case := _first(tables, kind, task, rate, [name], seed)
                    ):
                        yield case


def _first(
    tables: Tables, kind: Kind, task: str, rate: float, names: list[str], seed: int
) -> Case | None:
    """Return the first of these tables to which the leak applies."""
    for name in names:
        for how in tables.first[name].splits:
            case = Case(
                name,
                task,
                how,
                seed,
                kind.name,
                rate,
                peers=rate == 0.01 and not tables.first[name].image,
            )
            if tables.planted(case) is not None:
                return case
    return None


def honest_cases(tables: Tables, wanted: int, seed: int = 0) -> Iterator[Case]:
    """Return at least `wanted` honest splits: every table in turn with its own seeds, and a label
    for each task in turn.
    """
    count, turn = 0, seed
    while count < wanted:
        for name, base in tables.first.items():
            task = TASKS[turn % 3] if base.task == "regression" else base.task
            for how in base.splits:
                yield Case(name, task, how, turn, peers=turn - seed < 4 and not base.image)
                count += 1
        turn += 1
