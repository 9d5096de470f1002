"""Which packages a declaration may have imported: those that the person who runs it has named in
the environment.
"""

from __future__ import annotations

import os

from schemas.errors import ConfigError
from schemas.model_config import CustomModel, Model

ALLOWED = "BULKHEAD_ALLOW_IMPORTS"


def require_allowed(model: Model) -> None:
    """Refuse an own model of a package that is not named; nothing is imported here.

    Raises:
        ConfigError: naming the package and what allows it.
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
