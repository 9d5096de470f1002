"""The network at the start of training: as built, or with the weights of `model.init`.

Every parameter and running statistic has one of two fates, and the declaration says which: it is
loaded, or `model.init.new` lists it and it stays as built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from schemas.config import Declaration
from schemas.digest import verify
from schemas.errors import ConfigError, IntegrityError, first_few
from schemas.init_config import InitConfig, NetworkSection
from schemas.init_records import InitialWeights
from schemas.records import Statistics
from training.models.build import build_model
from training.models.code_rows import (
    UNUSED,
    code_parameters,
    differences,
    inputs_of,
    rows_of,
)
from training.models.lora import adapter_names
from training.models.parameter_names import matching, module_paths

SHOWN = 5


class Loaded(NamedTuple):
    """Names of the network by their fate; `rows`: of those whose rows went by their values, rows
    that were loaded, and all rows.
    """

    loaded: tuple[str, ...]
    new: tuple[str, ...]
    rows: dict[str, tuple[int, int]]


def initial_network(
    declaration: Declaration, statistics: Statistics, weights: InitialWeights | None
) -> nn.Module:
    """Return the network that training starts from, the same on every rank.

    Args:
        declaration: of the run.
        statistics: fitted on its train rows.
        weights: of `RunSpec.init`; None: the network as built.

    Raises:
        ConfigError: the weights do not fit the network as declared.
        IntegrityError: the file is not what was resolved.
    """
    network = build_model(declaration, statistics)
    if weights is not None:
        load_weights(network, declaration, statistics, weights)
    return network


def load_weights(
    network: nn.Module, declaration: Declaration, statistics: Statistics, weights: InitialWeights
) -> Loaded:
    """Copy weights into a network by name.

    Raises:
        ConfigError: a name is on one side alone or has another shape and is not listed, a pattern
            fits nothing, or the inputs or classes are others.
        IntegrityError: the file is not what was resolved.
    """
    model = declaration.model
    if not isinstance(model, NetworkSection) or model.init is None:
        raise IntegrityError("the run has weights to start from, its declaration has no model.init")
    init, ours = model.init, network.state_dict()
    theirs = renamed(read_tensors(weights), init)
    left = set(matching(init.new, ours, "model.init.new")) | adapter_names(network)
    _require_same_inputs(network, statistics, weights, init, left)
    given, rows = _by_rows(network, statistics, weights, theirs, left)
    fitting = {n for n in ours if n in given and given[n].shape == ours[n].shape} - left
    _require_listed(ours, given, fitting, left, init)
    with torch.no_grad():
        for name in fitting:
            ours[name].copy_(_numbers(name, given[name], ours[name]))
    kept = {name: counts for name, counts in rows.items() if name in fitting}
    return Loaded(tuple(n for n in ours if n in fitting), tuple(sorted(left)), kept)


def read_tensors(weights: InitialWeights) -> dict[str, Tensor]:
    """Return the tensors of resolved weights by name.

    Raises:
        IntegrityError: the file was changed.
    """
    found = torch.load(verify(weights.file), map_location="cpu", weights_only=True)
    return dict(found)


def renamed(tensors: Mapping[str, Tensor], init: InitConfig) -> dict[str, Tensor]:
    """Return the tensors under the names that `model.init.map` gives them.

    Raises:
        ConfigError: a pattern fits no name, or two tensors get the same one.
    """
    found, origin = dict[str, Tensor](), dict[str, str]()
    by_pattern = matching(init.map, tensors, "model.init.map")
    for name, tensor in tensors.items():
        pattern = by_pattern.get(name)
        target = name if pattern is None else _target(name, pattern, init.map[pattern])
        if target in found:
            raise ConfigError(
                f"model.init.map gives {origin[target]} and {name} of the weights the same name"
                f" {target}; give one of them another one, and list it under model.init.unused"
            )
        found[target], origin[target] = tensor, name
    return found


def _target(name: str, pattern: str, target: str) -> str:
    """Return a name after its pattern was replaced; what is inside of a module follows it.

    >>> _target("enc.0.weight", "enc.*", "body.*"), _target("top.bias", "top", "body.head")
    ('body.0.weight', 'body.head.bias')
    """
    if "*" not in pattern:
        return target + name.removeprefix(pattern)
    before, _, after = pattern.partition("*")
    inside = name
    while after and not inside.endswith(after):  # inside of a module that the pattern fits
        inside = inside.rpartition(".")[0]
    held = inside[len(before) : len(inside) - len(after)]
    return target.replace("*", held) + name[len(inside) :]


def _require_same_inputs(
    network: nn.Module,
    statistics: Statistics,
    weights: InitialWeights,
    init: InitConfig,
    left: set[str],
) -> None:
    """Refuse weights of a Bulkhead model that read other columns, or predict other classes."""
    if weights.inputs is None or init.other_inputs == "accept":
        return
    ours, names = inputs_of(statistics), list(network.state_dict())
    by_rows = {
        list(ours.categorical)[i]
        for kind, positions in code_parameters(network).values()
        for i in (positions if kind == "categorical" else ())
    }
    # tokens of a language model go to an encoder by their values, its other weights by init.map
    is_of_tokens = ours.tokens is None and weights.inputs.tokens is not None and ours.molecules
    found = [] if is_of_tokens else differences(ours, weights.inputs, by_rows)
    if found:
        raise ConfigError(
            f"model.init: {weights.resolved} reads other inputs than this run:"
            f" {first_few(found)}; its numbers would mean something else here. Declare the same"
            " columns, or set model.init.other_inputs: accept and list the layers that read them"
            " under model.init.new"
        )
    heads = [name for name in names if name.startswith("body.head.")]
    if ours.classes != weights.inputs.classes and not (heads and left.issuperset(heads)):
        raise ConfigError(
            f"model.init: {weights.resolved} predicts the classes {list(weights.inputs.classes)},"
            f" this run {list(ours.classes)}; train a new head with model.init.new: [body.head]"
        )


def _by_rows(
    network: nn.Module,
    statistics: Statistics,
    weights: InitialWeights,
    theirs: dict[str, Tensor],
    left: set[str],
) -> tuple[dict[str, Tensor], dict[str, tuple[int, int]]]:
    """Return the tensors with the rows of codes in the order of this run.

    A value that the weights do not know keeps the row that it was built with.
    """
    given, counts = dict(theirs), dict[str, tuple[int, int]]()
    if weights.inputs is None:
        return given, counts
    ours, built = inputs_of(statistics), network.state_dict()
    for name, (kind, positions) in code_parameters(network).items():
        if name not in theirs or name in left:
            continue
        rows, start = theirs[name], built[name].clone()
        # an encoder of molecules may get the tokens of a language model
        source = "tokens" if weights.inputs.tokens is not None else kind
        if source != "tokens" and max(positions) >= len(getattr(weights.inputs, source)):
            continue
        wanted = rows_of(ours, kind, positions, len(start))
        known = rows_of(weights.inputs, source, positions, len(rows))
        if wanted == known or len(known) != len(rows) or rows.shape[1:] != start.shape[1:]:
            continue
        place = {row: i for i, row in enumerate(known)}
        pairs = [
            (i, place[row]) for i, row in enumerate(wanted) if row in place and row[0] != UNUSED
        ]
        here, there = (torch.tensor(side) for side in zip(*pairs, strict=True))
        start[here] = rows[there].to(start.dtype)
        given[name], counts[name] = start, (len(pairs), sum(row[0] != UNUSED for row in wanted))
    return given, counts


def _require_listed(
    ours: Mapping[str, Tensor],
    given: Mapping[str, Tensor],
    fitting: set[str],
    left: set[str],
    init: InitConfig,
) -> None:
    """Refuse names that do not fit and are not listed, with the line that would list them."""
    missing = [name for name in ours if name not in fitting and name not in left]
    if missing:
        shown = [_misfit(name, ours[name], given.get(name)) for name in missing]
        line = ", ".join(module_paths(missing, [n for n in ours if n not in missing])[:SHOWN])
        raise ConfigError(
            f"model.init: {len(missing)} of {len(ours)} tensors of the network have no weights:"
            f" {first_few(shown)}. If they shall start at random, add them:"
            f" model.init.new: [{', '.join([*init.new, line])}]"
        )
    extra = [name for name in given if name not in ours]
    listed = set(matching(init.unused, given, "model.init.unused"))
    needed = sorted(listed & fitting)
    if needed:
        raise ConfigError(
            f"model.init.unused names {first_few(needed)}, which the network has and takes; remove"
            " the pattern, or list them under model.init.new"
        )
    unlisted = [name for name in extra if name not in listed]
    if unlisted:
        line = ", ".join(module_paths(unlisted, [n for n in given if n not in unlisted])[:SHOWN])
        raise ConfigError(
            f"model.init: the network has no {first_few(unlisted)}, of {len(given)} tensors of the"
            " weights. Give them its names with model.init.map, or leave them out:"
            f" model.init.unused: [{', '.join([*init.unused, line])}]"
        )
    if not fitting:
        raise ConfigError("model.init: nothing of the weights is loaded; remove model.init")


def _misfit(name: str, built: Tensor, given: Tensor | None) -> str:
    if given is None:
        return f"{name} {list(built.shape)}"
    return f"{name} {list(built.shape)}, in the weights {list(given.shape)}"


def _numbers(name: str, given: Tensor, built: Tensor) -> Tensor:
    """Return a tensor to copy; refuse one of another kind of number, or that is not finite."""
    if given.dtype.is_floating_point != built.dtype.is_floating_point:
        raise ConfigError(f"model.init: {name} is {given.dtype}, the network has {built.dtype}")
    found = given.to(built.dtype)
    if found.dtype.is_floating_point and not bool(found.isfinite().all()):
        raise ConfigError(
            f"model.init: {name} has {int((~found.isfinite()).sum())} values that are not finite"
            f" in {found.dtype}; the weights are damaged, or of a run that diverged"
        )
    return found
