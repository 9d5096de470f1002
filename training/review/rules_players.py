"""Rules BH146: and BH461 to BH463: averages that begin at zero, opponents with one label or one
network, and a clipped objective turned round.
"""

from __future__ import annotations

MADE_UP, REAL = (
    {"fake", "fakes", "generated", "gen", "synthetic", "detach"},
    {
        "real",
        "reals",
        "true",
        "data",
    },
)
