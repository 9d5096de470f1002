"""Where torch is listened to: functions and methods wrapped before the program imports them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

# by the id of the original: it and what stands in its place
REPLACED: dict[int, tuple[Any, Any]] = {}


def around(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a function or method by `wrapper(original, *args, **kwargs)`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    REPLACED[id(original)] = (original, replaced)
    setattr(owner, name, replaced)
