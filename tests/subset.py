"""Cases of `make test` out of those of `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def some(names: Iterable[str], every: int) -> list[object]:
    """Every so-many-th name from the first one on; the others are long."""
    return [
        pytest.param(name, marks=[] if number % every == 0 else [pytest.mark.long])
        for number, name in enumerate(names)
    ]
