"""The rule by which a hash decides a split, and the join that looks a decided one up, as SQL."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.config import Fractions
from training.data.engine.engine import literal


def hash_side_sql(key: str, seed: int, fractions: Fractions) -> str:
    """Return SQL for the split of a key by its hash: the rule that decides."""
    train, val = cut_point(fractions.train), cut_point(fractions.train + fractions.val)
    digits = hash_sql(key, seed)
    return (
        f"case when {digits} < {literal(train)} then 'train' when {digits} < {literal(val)} then"
        " 'val' else 'test' end"
    )


def hash_sql(key: str, seed: int | str) -> str:
    """Return SQL for the eight hexadecimal digits of a key under a seed, or a salt.

    Every engine computes them alike.
    """
    return f"substr(md5(concat({literal(f'{seed}:')}, {key})), 1, 8)"


def cut_point(share: float) -> str:
    """Return the eight hexadecimal digits below which a share of all hashes lies.

    >>> cut_point(0.8), cut_point(0.9)
    ('cccccccc', 'e6666666')
    """
    return f"{min(int(round(share, 12) * 2**32), 2**32 - 1):08x}"


def pinned_sql(pins: Mapping[str, str], otherwise: str) -> str:
    """Return SQL for the split of a group that may be fixed by hand."""
    whens = "".join(f" when {literal(group)} then {literal(side)}" for group, side in pins.items())
    return f"case __group{whens} else {otherwise} end" if pins else otherwise


def known_side_sql(sides: str, key: str) -> str:
    """Return the join of rows with the split of their unit, `known.side`.

    It is looked up in a relation of `key_hash` (unique) and `side`.
    """
    return (
        f"left join (select key_hash, side from {sides} as sides) as known on known.key_hash ="
        f" md5({key})"
    )
