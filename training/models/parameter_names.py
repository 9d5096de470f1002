"""Parameters of a network by patterns of names: `model.freeze`, `model.unfreeze_at`, `model.init`.

A pattern is a path of names, in which `*` stands for any characters. It names a parameter, or a
module and all that is inside of it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from torch import nn

from schemas.errors import ConfigError, first_few
from schemas.init_config import NetworkSection


def matching(patterns: Iterable[str], names: Iterable[str], where: str) -> dict[str, str]:
    """Return the names that a pattern fits, each with its (first) pattern.

    >>> matching(["body.a", "*.bias"], ["body.a.weight", "body.ab.bias", "body.ab.g"], "freeze")
    {'body.a.weight': 'body.a', 'body.ab.bias': '*.bias'}

    Raises:
        ConfigError: a pattern fits no name.
    """
    known, found = list(names), dict[str, str]()
    for pattern in patterns:
        expression = re.compile(".*".join(map(re.escape, pattern.split("*"))) + r"(\..*)?")
        fitting = [name for name in known if expression.fullmatch(name)]
        if not fitting:
            near = difflib.get_close_matches(pattern, known, n=5, cutoff=0.5) or known[:5]
            raise ConfigError(
                f"{where}: {pattern!r} fits none of {len(known)} names; there are"
                f" {first_few(near, len(known))}"
            )
        for name in fitting:
            found.setdefault(name, pattern)
    return found


def freeze(network: nn.Module, model: object) -> None:
    """Let the parameters that `model.freeze` names have no gradient.

    Raises:
        ConfigError: a pattern fits no parameter, or none is left to train.
    """
    if not isinstance(model, NetworkSection) or not model.freeze:
        return
    parameters = dict(network.named_parameters())
    for name in matching(model.freeze, parameters, "model.freeze"):
        parameters[name].requires_grad_(False)
    if not any(p.requires_grad for p in parameters.values()):
        raise ConfigError(
            f"model.freeze leaves none of {len(parameters)} parameters to train; leave out those of"
            " the head, e.g. name body.blocks"
        )


def unfreeze_steps(network: nn.Module, model: object) -> dict[str, int]:
    """Return the parameters that are trained from a later step on, with that step.

    Raises:
        ConfigError: a pattern fits no parameter, two of them or `model.freeze` claim the same one,
            or no parameter is trained from the first step.
    """
    if not isinstance(model, NetworkSection) or not model.unfreeze_at:
        return {}
    names, found = [name for name, _ in network.named_parameters()], dict[str, int]()
    frozen = matching(model.freeze, names, "model.freeze")
    for pattern, step in model.unfreeze_at.items():
        for name in matching([pattern], names, "model.unfreeze_at"):
            if name in found or name in frozen:
                other = "model.freeze" if name in frozen else "another of its patterns"
                raise ConfigError(
                    f"model.unfreeze_at: {pattern!r} fits {name}, which {other} names too; let one"
                    " of them name it"
                )
            found[name] = step
    if all(name in found for name, p in network.named_parameters() if p.requires_grad):
        raise ConfigError(
            "model.unfreeze_at leaves no parameter to train from the first step on; leave out those"
            " of the head"
        )
    return found


def module_paths(names: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the shortest paths that stand for the names and for none of the others.

    >>> module_paths(["a.b.weight", "a.b.bias", "a.c.bias"], ["a.c.weight"])
    ['a.b', 'a.c.bias']
    """
    kept, found = list(others), dict[str, None]()
    for name in names:
        parts = name.split(".")
        paths = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
        free = (p for p in paths if not any(f"{other}.".startswith(f"{p}.") for other in kept))
        found[next(free, name)] = None
    return list(found)
