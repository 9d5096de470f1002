"""Rules BH558: to BH560, and BH562: mean and deviation exchanged, an augmentation that is drawn
once, windows and values that reach from one series into another.
"""

from __future__ import annotations

MEAN, DEVIATION = (
    {"mean", "mu", "means", "average", "avg"},
    {
        "std",
        "stds",
        "sigma",
        "sd",
        "deviation",
        "stdev",
    },
)
