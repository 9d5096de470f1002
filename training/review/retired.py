"""Ids of rules that were removed; they are never given to another rule."""

from __future__ import annotations

RETIRED = frozenset(
    f"BH{number}"
    for number in (
        120,
        127,
        136,
        *range(138, 140),
        *range(141, 143),
        *range(144, 160),
        214,
        217,
        220,
        *range(225, 227),
        228,
        230,
        236,
        *range(239, 242),
        *range(243, 245),
        *range(246, 253),
        *range(255, 257),
        *range(311, 317),
        *range(318, 327),
        *range(328, 336),
        425,
        429,
        *range(431, 440),
        *range(442, 444),
        *range(446, 459),
        *range(460, 467),
        *range(468, 479),
        *range(480, 482),
        509,
        *range(525, 527),
        *range(528, 532),
        533,
        *range(538, 543),
        544,
        *range(546, 567),
        *range(616, 619),
        *range(621, 625),
    )
)
