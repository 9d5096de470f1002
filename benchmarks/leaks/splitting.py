"""Honest splits, made without the code under test."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from benchmarks.leaks.bases import Base

TEST_SHARE = 0.25


@dataclass(frozen=True)
class Sides:
    """Train and test rows of a base, and the kind of their split."""

    base: Base
    kind: str
    train: pd.DataFrame
    test: pd.DataFrame

    @property
    def roles(self) -> dict[str, str]:
        """Return the roles that this kind of split declares."""
        found = {"id": self.base.id, "label": self.base.label}
        if self.kind == "group" and self.base.group:
            found["group"] = self.base.group
        if self.kind == "time" and self.base.time:
            found["time"] = self.base.time
        return found

    def having(self, train: pd.DataFrame | None = None, test: pd.DataFrame | None = None) -> Sides:
        """Return the same split with other rows."""
        return replace(
            self,
            train=self.train if train is None else train,
            test=self.test if test is None else test,
        )


def split(base: Base, kind: str, seed: int) -> Sides:
    """Split rows at random, by whole groups, or by time with the base's embargo between."""
    rng = np.random.default_rng(seed + 31)
    frame = base.frame
    if kind == "time":
        assert base.time is not None  # noqa: S101 - a base that splits by time has one
        frame = frame.sort_values(base.time, kind="stable")
        cut = frame[base.time].iloc[int(len(frame) * (1 - TEST_SHARE))]
        train, test = (
            frame[frame[base.time] < cut - pd.Timedelta(days=base.embargo)],
            frame[frame[base.time] >= cut],
        )
    elif kind == "group":
        names = pd.unique(frame[base.group])
        chosen = names[rng.random(len(names)) < TEST_SHARE]
        held = frame[base.group].isin(chosen if len(chosen) else names[:1])
        train, test = frame[~held], frame[held]
    else:
        held = rng.random(len(frame)) < TEST_SHARE
        train, test = frame[~held], frame[held]
    return Sides(base, kind, train.reset_index(drop=True), test.reset_index(drop=True))
