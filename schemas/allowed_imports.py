"""Packages that a declaration may import: only those that the environment names."""

from __future__ import annotations

import os

from schemas.errors import ConfigError
from schemas.model_config import CustomModel, Model

ALLOWED = "BULKHEAD_ALLOW_IMPORTS"


def require_allowed(model: Model) -> None:
    """Refuse a custom model from a package that is not allowed; import nothing.

    Raises:
        ConfigError: the package is not allowed; the message names the variable to set.
    """
    if not isinstance(model, CustomModel):
        return
    allowed = [name.strip() for name in os.environ.get(ALLOWED, "").split(",") if name.strip()]
    package = model.path.partition(":")[0].partition(".")[0]
    if package not in allowed:
        raise ConfigError(
            f"model.path {model.path!r}: package {package!r} is not allowed (allowed:"
            f" {', '.join(allowed) or 'none'}); if you trust its code, set"
            f" {ALLOWED}={','.join([*allowed, package])}"
        )
