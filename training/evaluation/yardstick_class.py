"""Classes that `evaluate.against` names: imported if allowed, and constructed."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from schemas.allowed_imports import require_allowed_path
from schemas.config import Declaration
from schemas.errors import ConfigError
from schemas.yardstick_config import YardstickConfig

WHERE = "evaluate.against"
SEEDS = ("random_state", "random_seed", "seed")


def require_yardsticks(declaration: Declaration) -> None:
    """Check every declared yardstick by constructing it, before anything runs.

    Raises:
        ConfigError: its package is not allowed, it cannot be imported or constructed, or it lacks
            fit, predict or, for classes, predict_proba.
    """
    for yardstick in declaration.evaluate.against:
        build_estimator(yardstick, declaration)


def build_estimator(yardstick: YardstickConfig, declaration: Declaration) -> Any:
    """Return the unfitted estimator; it takes `train.seed` as random_state unless one is given.

    Raises:
        ConfigError: see `require_yardsticks`.
    """
    require_allowed_path(yardstick.path, WHERE)
    found, where = _imported(yardstick.path), f"{WHERE} {yardstick.path!r}"
    options = dict(yardstick.options)
    try:
        estimator = found(**options)
        if not options.keys() & set(SEEDS) and _takes_seed(estimator):
            estimator = found(**options, random_state=declaration.train.seed)
    except Exception as error:
        raise ConfigError(
            f"{where}: cannot be constructed with options {sorted(options)}"
            f" ({type(error).__name__}: {first_line(error)}); correct its options"
        ) from error
    needed = ["fit", "predict"]
    needed += ["predict_proba"] if declaration.task.kind != "regression" else []
    missing = [name for name in needed if not callable(getattr(estimator, name, None))]
    if missing:
        raise ConfigError(
            f"{where}: expected a class with {', '.join(needed)} for task.kind"
            f" {declaration.task.kind!r}, got one without {', '.join(missing)}; name another class"
        )
    return estimator


def _imported(path: str) -> type:
    module_name, _, class_name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # a package may fail in any way, e.g. for a missing shared library
        raise ConfigError(
            f"{WHERE} {path!r}: cannot be imported ({type(error).__name__}: {first_line(error)});"
            " give package.module:ClassName of an installed package"
        ) from error
    if not isinstance(found, type):
        raise ConfigError(f"{WHERE} {path!r}: expected a class, got {found!r}; name a class")
    return found


def _takes_seed(estimator: Any) -> bool:
    """Return True if the class has the parameter random_state, its own or an inherited one."""
    if "random_state" in inspect.signature(type(estimator)).parameters:
        return True
    return hasattr(estimator, "get_params") and "random_state" in estimator.get_params()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, at most 300 characters."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:300]
