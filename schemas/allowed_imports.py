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
    if isinstance(model, CustomModel):
        require_allowed_path(model.path, "model.path")


def require_allowed_path(path: str, where: str) -> None:
    """Refuse `package.module:ClassName` of a package that is not allowed; import nothing.

    Args:
        path: of the class.
        where: key of the declaration that gives it.

    Raises:
        ConfigError: the package is not allowed; the message names the variable to set.
    """
    allowed = [name.strip() for name in os.environ.get(ALLOWED, "").split(",") if name.strip()]
    package = path.partition(":")[0].partition(".")[0]
    if package not in allowed:
        raise ConfigError(
            f"{where} {path!r}: package {package!r} is not allowed (allowed:"
            f" {', '.join(allowed) or 'none'}); if you trust its code, set"
            f" {ALLOWED}={','.join([*allowed, package])}"
        )
