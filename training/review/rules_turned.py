"""Rules BH156, BH157, BH335 and BH474 to BH477: sums and decays of the wrong cadence, and what is
turned round in losses of pairs, opponents, samplers and players.
"""

from __future__ import annotations

MAKERS, JUDGES = {"g", "gen", "generator"}, {"d", "disc", "discriminator"}
