"""Resolve a declaration to a network with the contract `forward(batch) -> scores [B, K]`, float32.

Batch keys: `numeric` float32 [B, Dn], `categorical` int64 [B, Dc], `tensor_<column>` as stored
(uint8 or float32) [B, *shape], `bag_<column>` int32 [B, codes of a row]. K = 1 for
binary (log odds) and regression (scaled label), the number of classes for multiclass (logits), one
less for loss ordinal. Of a language model: `tokens` and `segments` int [B, T], scores [B, T, V]
(models/token_network.py). The loss is never inside: scores are raw.

A body with a whole number `members` returns [B, M, K]; the network's scores are then [B, M, K] in
train mode and [B, K] in eval mode (models/members.py).
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from schemas.allowed_imports import require_allowed
from schemas.config import (
    AutoModel,
    CausalTransformerModel,
    CnnModel,
    CustomModel,
    Declaration,
    FtTransformerModel,
    LinearModel,
    MlpModel,
    RealMlpModel,
    ResMlpModel,
    TabMModel,
)
from schemas.errors import ConfigError
from schemas.model_config import BoostingModel
from schemas.records import Statistics, TensorStats
from training.models.bag_vectors import build_bags
from training.models.causal_transformer import CausalTransformer
from training.models.cnn import Cnn
from training.models.drawn_rows import drawn_rows
from training.models.encoders import body_shape, build_encoders
from training.models.ft_transformer import FtTransformer
from training.models.linear import Linear
from training.models.lora import add_adapters
from training.models.members import MemberMean, member_mean
from training.models.mlp import Mlp
from training.models.parameter_names import freeze
from training.models.realmlp import RealMlp
from training.models.resmlp import ResMlp
from training.models.shape import ModelShape, model_shape
from training.models.tabm import TabM
from training.models.temperature import Temperature, build_temperature
from training.models.token_network import TokenNetwork
from training.models.trees import Trees

INIT_ROWS = 256  # drawn for an initialisation that depends on the inputs


def build_model(declaration: Declaration, statistics: Statistics) -> nn.Module:
    """Build the declared network with its initial weights.

    It is a pure function of the declaration and the statistics, and takes no weights of
    `model.init` (see training.models.initial); what `model.freeze` names has no gradient. Weights
    are drawn from `train.seed` alone, on the CPU, and the global random state is left unchanged:
    every rank builds the same network.

    Raises:
        ConfigError: there is no feature left, the model does not fit the features, or a custom
            class is not allowed, not found, or not an `nn.Module`.
    """
    shape = model_shape(declaration, statistics)
    if not shape.keys:
        raise ConfigError(
            "the model has no input: no feature column is left; declare features in data.columns or"
            " see which were dropped as constant"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(declaration.train.seed)
        if shape.context:
            input_dropout(declaration, shape)
            texts = TokenNetwork(shape, _body(declaration, shape, statistics))
            add_adapters(texts, declaration.model)
            freeze(texts, declaration.model)
            return texts
        is_of_trees = isinstance(declaration.model, BoostingModel)
        body = _body(declaration, body_shape(shape, is_of_trees), statistics)
        counted = isinstance(getattr(body, "members", None), int)
        join = member_mean(declaration, statistics) if counted else None
        temperature = build_temperature(declaration, statistics)
        dropout = input_dropout(declaration, shape)
        network = Network(shape, statistics, body, temperature, join, dropout)
        add_adapters(network, declaration.model)
        freeze(network, declaration.model)
        return network


def input_dropout(declaration: Declaration, shape: ModelShape) -> float:
    """Return the share of the rows that are trained without an input that makes a vector.

    Raises:
        ConfigError: it is declared, and there is no such input.
    """
    share = float(getattr(declaration.model, "input_dropout", 0.0))
    if share and not (shape.bags or shape.encoders):
        raise ConfigError(
            "model.input_dropout needs a text, set, molecule, picture or window among the features;"
            " there is none: remove it"
        )
    return share


def count_parameters(network: nn.Module) -> tuple[int, int]:
    """Return the number of parameters, and of those that are trained."""
    sizes = [(p.numel(), p.requires_grad) for p in network.parameters()]
    return sum(n for n, _ in sizes), sum(n for n, trained in sizes if trained)


class Network(nn.Module):
    """Body with its contract: check the batch, scale tensors, check and return float scores [B, K].

    Tensors are stored unscaled; `(x - mean) / sd` by channel happens here, with train statistics in
    buffers that are not part of the state dict (they belong to the statistics, not to the weights).
    Trees get them unscaled: they only compare, and rounding would move values over a threshold.
    Scores are divided by the temperature, if one is declared.
    """

    def __init__(
        self,
        shape: ModelShape,
        statistics: Statistics,
        body: nn.Module,
        temperature: Temperature | None = None,
        join: MemberMean | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.body = body
        self.temperature, self.join = temperature, join
        scaled = not isinstance(body, Trees)
        self.bags = build_bags(shape, not scaled, dropout)
        self.encoders = build_encoders(shape, not scaled, dropout)
        self.scaled = tuple(shape.tensors) if scaled else ()
        for index, stats in enumerate(statistics.tensor if scaled else ()):
            self.register_buffer(f"mean_{index}", _per_channel(stats, stats.mean), persistent=False)
            self.register_buffer(
                f"std_{index}", _per_channel(stats, [s or 1.0 for s in stats.std]), persistent=False
            )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Map a batch → raw scores [B, K], or [B, M, K] of M members in train mode.

        Raises:
            ConfigError: keys or widths of the batch, or the body's output, break the contract.
        """
        check_batch(self.shape, batch)
        inputs = dict(batch)
        for index, key in enumerate(self.scaled):
            mean, std = getattr(self, f"mean_{index}"), getattr(self, f"std_{index}")
            inputs[key] = (batch[key].to(mean.dtype) - mean) / std
        if self.bags is not None:
            inputs |= self.bags(batch)
        if self.encoders is not None:
            inputs |= self.encoders(inputs, batch)
        scores = self.body(inputs)
        members = () if self.join is None else (self.body.members,)
        check_scores(self.shape, next(iter(batch.values())).shape[0], scores, members)
        scores = scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
        if self.join is not None and not self.training:
            scores = self.join(scores)
        return scores if self.temperature is None else self.temperature(scores)


def check_batch(shape: ModelShape, batch: dict[str, Tensor]) -> None:
    """Refuse a batch whose keys or shapes break the contract.

    Raises:
        ConfigError: naming the key, the expected and the found shape.
    """
    if set(batch) != set(shape.keys):
        raise ConfigError(
            f"the model expects the batch keys {sorted(shape.keys)}, got {sorted(batch)}; label and"
            " weight are not inputs"
        )
    widths = {"numeric": (shape.numeric,), "categorical": (len(shape.categories),), **shape.tensors}
    widths |= {key: (bag.length,) for key, bag in shape.bags.items()}
    for key, value in batch.items():
        if tuple(value.shape[1:]) != widths[key]:
            raise ConfigError(
                f"batch[{key!r}]: expected {['B', *widths[key]]}, got {list(value.shape)}; the"
                " arrays were made with other statistics"
            )


def check_scores(shape: ModelShape, rows: int, scores: Any, members: tuple[int, ...] = ()) -> None:
    """Refuse scores that are not a tensor [B, K], or [B, M, K] of M members.

    Raises:
        ConfigError: naming the expected and the found shape.
    """
    axes = ", ".join(["B", *(str(number) for number in (*members, shape.outputs))])
    if not isinstance(scores, Tensor):
        raise ConfigError(
            f"the model must return one tensor of raw scores [{axes}], got {type(scores).__name__}"
        )
    expected = [rows, *members, shape.outputs]
    if list(scores.shape) != expected:
        raise ConfigError(
            f"the model must return raw scores [{axes}] = {expected},"
            f" got {list(scores.shape)}; set the width of its last layer to {shape.outputs} and"
            " squeeze nothing"
        )


def _per_channel(stats: TensorStats, values: tuple[float, ...] | list[float]) -> Tensor:
    """Reshape [C] → [C, 1, 1] for a [C, H, W] tensor, [C, 1] for a window, else [1]: broadcasts
    against [B, *shape].
    """
    tensor = torch.tensor(values, dtype=torch.float32)
    return (
        tensor.view(-1, *[1] * (len(stats.shape) - 1))
        if (len(stats.shape) == 3 or stats.window) and len(values) == stats.shape[0]
        else tensor
    )


def _body(declaration: Declaration, shape: ModelShape, statistics: Statistics) -> nn.Module:
    config = declaration.model
    match config:
        case LinearModel():
            return Linear(shape)
        case MlpModel():
            return Mlp(shape, config)
        case ResMlpModel():
            return ResMlp(shape, config)
        case RealMlpModel():
            rows = drawn_rows(statistics, INIT_ROWS)
            return RealMlp(shape, config, declaration.task.kind, rows)
        case TabMModel():
            return TabM(shape, config)
        case FtTransformerModel():
            return FtTransformer(shape, config)
        case CnnModel():
            return Cnn(shape, config)
        case BoostingModel():
            return Trees(shape)
        case CausalTransformerModel():
            return CausalTransformer(
                shape,
                config,
                packed=declaration.tokens is not None and declaration.tokens.packing == "documents",
            )
        case AutoModel():
            raise ConfigError(
                "model.kind auto is several networks, of which each is built from its candidate;"
                " got the declaration of all of them"
            )
    return custom_body(config, shape)


def custom_body(config: CustomModel, shape: ModelShape) -> nn.Module:
    """Build a user's own module as `Class(shape, **options)`.

    It gets scaled tensors and returns scores [B, K].

    Only top-level packages named in BULKHEAD_ALLOW_IMPORTS (comma separated) are ever imported.

    Raises:
        ConfigError: the package is not allowed, cannot be imported, or the class is not an
            `nn.Module` or refuses its options.
    """
    require_allowed(config)
    module_name, _, class_name = config.path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"model.path {config.path!r}: cannot be imported ({error}); give"
            " package.module:ClassName of an installed package"
        ) from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(
            f"model.path {config.path!r}: expected a class derived from torch.nn.Module, got"
            f" {found!r}"
        )
    try:
        return found(shape, **config.options)
    except TypeError as error:
        raise ConfigError(
            f"model.path {config.path!r}: cannot be constructed as {class_name}(shape, **options)"
            f" with options {sorted(config.options)} ({error})"
        ) from error
