"""Windows that a network is given, found again in the series that they were cut of: whether that
series knows later values, and whether windows go from one owner to the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from training.watch.record import Watch
from training.watch.scopes import Column, Space, columns_of

SHORTEST, FEWEST = 4, 30  # places of a window; windows
LONGEST = 50_000  # values of a series
PROBES = (400, 60)  # windows by which a series is found: of many owners the first one's
EQUAL = 1 - 1e-6  # correlation of windows and their series
STRIDES = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    10,
    12,
    14,
    15,
    16,
    20,
    24,
    25,
    28,
    30,
    32,
    36,
    40,
    48,
    50,
    60,
    64,
)
MOST_CHANNELS = 4  # of a window
REACH = 24  # values before and after, of which one may be made
# what later values leave unexplained of what earlier ones do; deviations that matter
BETTER, MATTERS = (0.05, 1e-4)
SMALL = 1e-4  # of the largest weight


@dataclass(frozen=True)
class Cut:
    """Where windows stand in a series: the place of the first one's first value, and the distance
    from one to the next.
    """

    first: int
    stride: int


def look_at_windows(watch: Watch, spaces: list[Space], held: Iterable[Column]) -> None:
    """Windows [n, T, ...] of a series that was made of values which are to be foretold, or that go
    from the values of one owner on to those of the next.
    """
    held = list(held)
    for column in (
        c
        for c in held
        if c.values is not None
        and c.values.ndim in (2, 3)
        and c.values.dtype.kind == "f"
        and c.unlike
    ):
        if column.values is None or column.values.shape[1] < SHORTEST:
            continue
        channels = column.values.reshape(len(column.rows), column.values.shape[1], -1)[
            :, :, :MOST_CHANNELS
        ]
        labels = [
            c.values.reshape(-1)
            for c in held
            if c.width == 1 and c.values is not None and c.values.dtype.kind == "f"
        ]
        for space in spaces:
            series = {
                n: v
                for n, v in columns_of(space)
                if v.dtype.kind == "f" and len(v) >= len(channels) / 4
            }
            cuts = {
                n: cut
                for j in range(channels.shape[2])
                for n, v in series.items()
                if (cut := _in_a_row(channels[:, :, j], v)) is not None
            }
            if cuts:
                _known_before(
                    watch, space, series, cuts, [y for y in labels if len(y) == len(channels)]
                )


def _in_a_row(windows: np.ndarray, series: np.ndarray) -> Cut | None:
    """Where the last values of windows [n, T] stand in a series of which they hold T values in a
    row: a table's columns do not follow each other.
    """
    first, last = cut_of(windows[:, 0], series), cut_of(windows[:, -1], series)
    return (
        last
        if first is not None
        and last is not None
        and last == Cut(first.first + windows.shape[1] - 1, first.stride)
        else None
    )


def _known_before(
    watch: Watch,
    space: Space,
    series: dict[str, np.ndarray],
    cuts: dict[str, Cut],
    labels: list[np.ndarray],
) -> None:
    for given in labels:
        for end, values in series.items():
            last = cut_of(given, values)
            for name, cut in cuts.items():
                if (
                    last is None
                    or name == end
                    or cut.stride != last.stride
                    or last.first <= cut.first
                ):
                    continue
                ahead = ahead_of(series[name], values)
                if ahead >= last.first - cut.first:
                    told = (
                        f"windows of {name!r} are to foretell {end!r}, and {name!r} is made of"
                        f" {end!r} up to {ahead} places later: what is to be foretold is in them"
                    )
                    watch.tell("BH524", told, space.place)
                    return


def cut_of(
    values: np.ndarray, series: np.ndarray, strides: tuple[int, ...] = STRIDES
) -> Cut | None:
    """Where values [n], one of each window, stand in a series [N] that may have been scaled.

    >>> series = np.random.default_rng(0).normal(size=400).cumsum()
    >>> cut_of(2 * series[30:330:3] - 1, series)
    Cut(first=30, stride=3)
    """
    return next(
        (
            cut
            for n in PROBES
            if (cut := _of_the_first(values[:n].astype(np.float64), series, strides)) is not None
        ),
        None,
    )


def _of_the_first(probe: np.ndarray, series: np.ndarray, strides: tuple[int, ...]) -> Cut | None:
    n = len(probe)
    if (
        n < FEWEST
        or len(series) > LONGEST
        or not np.isfinite(series).all()
        or not np.isfinite(probe).all()
        or probe.std() == 0
    ):
        return None
    centred = (probe - probe.mean()) / probe.std()
    for stride in strides:
        span = (n - 1) * stride + 1
        if span > len(series):
            break
        spread = np.zeros(span)
        spread[::stride] = centred
        ones = np.zeros(span)
        ones[::stride] = 1.0
        level = series.astype(np.float64) - series.mean()
        dots, sums, squares = (
            _slid(a, b) for a, b in ((level, spread), (level, ones), (level**2, ones))
        )
        power = n * (squares - sums**2 / n)
        together = np.abs(dots) / np.sqrt(np.where(power > 0, power, np.inf))
        best = int(together.argmax())
        inside = level[best : best + span : stride]
        if abs(float(np.corrcoef(inside, centred)[0, 1])) > EQUAL if inside.std() > 0 else False:
            return Cut(best, stride)
    return None


def _slid(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The sum of values times weights at each place where all weights lie on values."""
    size = 1 << (len(values) + len(weights) - 1).bit_length()
    full = np.fft.irfft(np.fft.rfft(values, size) * np.fft.rfft(weights[::-1], size), size)
    return np.asarray(full[len(weights) - 1 : len(values)])


def ahead_of(made: np.ndarray, series: np.ndarray) -> int:
    """How many values later than its own place a series [N] was made of another one; 0 where
    earlier ones suffice, or others were needed.

    >>> series = np.random.default_rng(0).normal(size=400).cumsum()
    >>> [ahead_of(np.convolve(series, np.ones(5) / 5, "full")[at : at + 400], series) for at in (0,
    ...     2)]
    [0, 2]
    """
    n = len(series)
    if (
        n < 8 * REACH
        or n > LONGEST
        or not (np.isfinite(made).all() and np.isfinite(series).all())
        or made.std() == 0
    ):
        return 0
    taps = np.stack([np.roll(series, -k) for k in range(-REACH, REACH + 1)], axis=1)[
        2 * REACH : n - 2 * REACH
    ].astype(np.float64)
    taps = np.concatenate([taps - taps.mean(), np.ones((len(taps), 1))], axis=1)
    wanted = made[2 * REACH : n - 2 * REACH].astype(np.float64)
    past = [*range(REACH + 1), 2 * REACH + 1]
    left, weights = _unexplained(taps, wanted)
    left_by_past, _ = _unexplained(taps[:, past], wanted)
    if left_by_past < MATTERS * wanted.std() or left > BETTER * left_by_past:
        return 0
    later = np.abs(weights[REACH + 1 : 2 * REACH + 1])
    return int((later > SMALL * np.abs(weights[:-1]).max()).nonzero()[0].max(initial=-1)) + 1


def _unexplained(taps: np.ndarray, wanted: np.ndarray) -> tuple[float, np.ndarray]:
    weights = np.linalg.lstsq(taps, wanted, rcond=None)[0]
    return float((wanted - taps @ weights).std()), weights
