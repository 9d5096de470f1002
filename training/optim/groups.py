"""Parameter groups: every trainable parameter is in exactly one, with its peak rate and decay.

Groups are found from modules, never by parts of names: weight decay by module type and dimension,
layer decay by depth (training.optim.depth), rules by whole paths. A rule's rate is used as it is;
layer decay acts on `optimizer.lr` alone.

A network may declare factors for single parameters with a method `parameter_factors() ->
dict[nn.Parameter, Factor]`, as RealMLP does: `lr` multiplies the rate (but not that of a rule),
`weight_decay` the weight decay. They replace the choice by module type: a parameter with
`Factor(0.1)` does not decay, one with `Factor(1, 1)` does. A custom module returns pairs (lr,
weight_decay).
"""

from __future__ import annotations

import difflib
import inspect
from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch import nn

from schemas.errors import ConfigError, TrainingError, first_few
from schemas.optimizer_config import Factor, ModuleRule, OptimizerSection
from training.optim.depth import parameter_depths

DECAYED: tuple[
    tuple[type[nn.Module], tuple[str, ...]], ...
] = (  # module type -> its parameters that are matrices of a linear map
    (nn.Linear, ("weight",)),
    (nn.modules.conv._ConvNd, ("weight",)),
    (nn.MultiheadAttention, ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")),
)


@dataclass(frozen=True)
class Treatment:
    """Settings of a parameter. `part`: the difference of its group in the log, "" for the base."""

    part: str
    peak: float
    weight_decay: float
    decays: bool
    factor: Factor | None = None

    @property
    def name(self) -> str:
        """Return a name that is unique among groups."""
        return (f"{self.part}/" if self.part else "") + ("decay" if self.decays else "no_decay")


def parameter_groups(config: OptimizerSection, model: nn.Module) -> list[dict[str, Any]]:
    """Return groups for a torch optimizer, with `name`, `lr` and `peak`.

    `peak` is the group's rate at the schedule's peak. Groups at the base rate come first.

    Weights of linear and convolution layers decay; norms, biases, embeddings and free parameters do
    not, nor does a weight that is tied to one of them. A group's rate is that of its rule, else `lr
    * layer_decay ** (layers above)`. Factors of the network change both (top of this file).
    `peak_decay` is the weight decay that a schedule starts from; `factor` is there for such groups.

    Raises:
        TrainingError: no trainable parameter, or one that is in no group or in two.
        ConfigError: a rule matches nothing, or two rules claim a tied weight, or the depth of a
            parameter is not known.
    """
    trainable = {p: name for name, p in model.named_parameters() if p.requires_grad}
    decayed = _decayed(model)
    rules, factors = _rules(config.modules, model), parameter_factors(model)
    depths = (
        parameter_depths(model) if config.layer_decay is not None else dict.fromkeys(trainable, 0)
    )
    top = max(depths.values(), default=0)
    treatments: dict[Treatment, list[nn.Parameter]] = {}
    for p in sorted(
        trainable, key=lambda p: (p in rules, p in factors, -depths[p], p not in decayed)
    ):
        treatment = _treatment(config, rules.get(p), factors.get(p), top - depths[p], p in decayed)
        treatments.setdefault(treatment, []).append(p)
    groups = [_group(config, treatment, params) for treatment, params in treatments.items()]
    require_partition(groups, trainable)
    return groups


def _group(
    config: OptimizerSection, treatment: Treatment, params: list[nn.Parameter]
) -> dict[str, Any]:
    decay, factor = treatment.weight_decay, treatment.factor
    return {
        "name": treatment.name,
        "params": params,
        "lr": treatment.peak,
        "peak": treatment.peak,
        "weight_decay": decay,
        # keys that only these options need: other checkpoints stay as they were
        **({} if config.weight_decay_schedule == "constant" else {"peak_decay": decay}),
        **({} if factor is None else {"factor": tuple(factor)}),
    }


def _treatment(
    config: OptimizerSection,
    rule: ModuleRule | None,
    factor: Factor | None,
    layers_above: int,
    decays: bool,
) -> Treatment:
    peak, strength = config.lr * (config.layer_decay or 1.0) ** layers_above, config.weight_decay
    part = f"{layers_above} below the top" if layers_above else ""
    if factor is not None:
        decays, peak = factor.weight_decay > 0, peak * factor.lr
        strength *= factor.weight_decay
        told = f"rate x {factor.lr:g}" + f", decay x {factor.weight_decay:g}" * decays
        part = f"{part}, {told}" if part else told
    if rule is not None:
        part = rule.match if rule.lr is not None or not part else f"{rule.match}, {part}"
        peak = peak if rule.lr is None else rule.lr
        if rule.weight_decay is not None:
            strength = rule.weight_decay * (1.0 if factor is None else factor.weight_decay)
    return Treatment(part, peak, strength if decays else 0.0, decays, factor)


def parameter_factors(model: nn.Module) -> dict[nn.Parameter, Factor]:
    """Return the factors that the network declares for its parameters; empty if it declares none.

    Raises:
        ConfigError: a factor is negative, or belongs to no parameter of the network.
    """
    body = getattr(model, "body", model)
    declared = getattr(body, "parameter_factors", None)
    factors = (
        {p: Factor(*factor) for p, factor in declared().items()}
        if inspect.ismethod(declared)
        else {}
    )
    names = {p: name for name, p in model.named_parameters()}
    wrong = [
        f"{names.get(p, 'no parameter of the network')}: {tuple(factor)}"
        for p, factor in factors.items()
        if p not in names or min(factor) < 0
    ]
    if wrong:
        raise ConfigError(
            f"{type(body).__name__}.parameter_factors(): expected factors (lr, weight_decay) of at"
            f" least 0 for parameters of the network, got {first_few(wrong)}; return"
            " {self.scale: (6.0, 0.0)}"
        )
    return factors


def _decayed(model: nn.Module) -> set[nn.Parameter]:
    """Return matrices of linear maps that have no other use elsewhere."""
    uses: dict[nn.Parameter, list[bool]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            linear = any(isinstance(module, kind) and name in names for kind, names in DECAYED)
            uses.setdefault(parameter, []).append(linear and parameter.ndim >= 2)
    return {p for p, linear in uses.items() if all(linear)}


def _rules(rules: tuple[ModuleRule, ...], model: nn.Module) -> dict[nn.Parameter, ModuleRule]:
    """Return the rule of each trainable parameter that has one: that of the longest path.

    Raises:
        ConfigError: a rule matches no parameter, or two rules claim a tied weight.
    """
    found: dict[nn.Parameter, ModuleRule] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        matching = [
            rule
            for rule in rules
            if parameter.requires_grad and f"{name}.".startswith(f"{rule.match}.")
        ]
        if not matching:
            continue
        rule = max(matching, key=lambda rule: len(rule.match))
        other = found.setdefault(parameter, rule)
        if other != rule:
            raise ConfigError(
                f"optimizer.modules: the tied weight {name} is claimed by the rules {other.match!r}"
                f" and {rule.match!r}; keep one of them"
            )
    for rule in rules:
        if rule not in found.values():
            raise ConfigError(_unmatched(rule, model))
    return found


def _unmatched(rule: ModuleRule, model: nn.Module) -> str:
    paths = [
        name
        for name, module in model.named_modules()
        if name and any(p.requires_grad for p in module.parameters())
    ]
    paths += [name for name, p in model.named_parameters() if p.requires_grad]
    if rule.match in paths:
        return (
            f"optimizer.modules: every parameter in {rule.match!r} has its own, longer rule;"
            " remove the rule"
        )
    near = difflib.get_close_matches(rule.match, paths, n=5, cutoff=0.5) or paths[:5]
    return (
        "optimizer.modules: expected the path of a module or parameter that is trained, got"
        f" {rule.match!r}; the model has {first_few(near)}"
    )


def require_partition(groups: list[dict[str, Any]], trainable: dict[nn.Parameter, str]) -> None:
    """Refuse groups that leave out a trainable parameter or hold one twice.

    Raises:
        TrainingError: naming the parameters.
    """
    if not trainable:
        raise TrainingError(
            "the model has no trainable parameter; set requires_grad on some of them"
        )
    counts = Counter(p for group in groups for p in group["params"])
    wrong = [f"{name} (in {counts[p]} groups)" for p, name in trainable.items() if counts[p] != 1]
    if wrong:
        raise TrainingError(
            f"expected every trainable parameter in exactly one optimizer group; {len(wrong)} are"
            f" not (first: {first_few(wrong)})"
        )
