"""Wrappers around torch functions and methods, installed before the program imports them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

# id of the original: the original and its replacement
REPLACED: dict[int, tuple[Any, Any]] = {}


def around(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a function or method with `wrapper(original, *args, **kwargs)`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    REPLACED[id(original)] = (original, replaced)
    setattr(owner, name, replaced)
