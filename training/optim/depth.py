"""Depth of each parameter for layer-wise learning-rate decay.

It comes from the body's declaration, or from its structure. A body declares it with a method
`ordered_layers()`: a list from input to output whose entries are modules (or parameters), or tuples
of those that share a layer. Otherwise the structure decides, or nothing does:

- The body has one chain: an outermost `nn.Sequential` or `nn.ModuleList` of two or more entries
  with parameters. Its entries are layers in their order. An entry that is itself a chain of blocks
  counts as its blocks; one of plain layers (convolution, norm, activation) is one layer. An entry
  without a matrix (a norm) belongs to the previous layer.
- Embeddings outside the chain are the layer below it; modules registered after the chain (norm,
  head) are the layer above.
- Any other parameter has no known depth and is refused: registration order is no proof of the order
  of computation.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from torch import nn

from schemas.errors import ConfigError, first_few

CHAINS = (nn.Sequential, nn.ModuleList)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def parameter_depths(model: nn.Module) -> dict[nn.Parameter, int]:
    """Return the depth of every trainable parameter: 0 at the input, the largest at the output.

    A tied parameter has the depth of its first use.

    Raises:
        ConfigError: naming the parameters whose depth cannot be determined, or a layer that is
            named twice, or a model of one layer.
    """
    body = getattr(model, "body", model)
    declared = getattr(body, "ordered_layers", None)
    layers = declared() if inspect.ismethod(declared) else _structure(body)
    _require_once(body, layers)
    depths: dict[nn.Parameter, int] = {}
    for depth, layer in enumerate(layers):
        for part in layer if isinstance(layer, tuple) else (layer,):
            for parameter in _parameters(part):
                depths.setdefault(parameter, depth)
    # vectors of texts, sets and encoded tensors, which the body gets as inputs
    for part in (getattr(model, "bags", None), getattr(model, "encoders", None)):
        depths |= dict.fromkeys(_parameters(part or nn.Module()), 0)
    trainable = {p: name for name, p in model.named_parameters() if p.requires_grad}
    unknown = [name for p, name in trainable.items() if p not in depths]
    if unknown:
        raise ConfigError(
            f"optimizer.layer_decay: {type(body).__name__} does not say how deep {len(unknown)} of"
            f" {len(trainable)} parameters lie ({first_few(unknown)}); give it a method"
            " ordered_layers() that returns its layers from input to output, such as [self.embed,"
            " *self.blocks, (self.norm, self.head)], or remove layer_decay"
        )
    found = {p: depths[p] for p in trainable}
    if len(set(found.values())) < 2:
        raise ConfigError(
            f"optimizer.layer_decay: {type(body).__name__} has a single layer, nothing would decay;"
            " remove layer_decay"
        )
    return found


def _require_once(body: nn.Module, layers: list[Any]) -> None:
    """Refuse layers of which one is named twice.

    It would have two depths, and all below it would be too deep.
    """
    parts = [
        id(part) for layer in layers for part in (layer if isinstance(layer, tuple) else (layer,))
    ]
    twice = [
        name
        for name, part in (*body.named_modules(), *body.named_parameters())
        if parts.count(id(part)) > 1
    ]
    if twice:
        raise ConfigError(
            f"optimizer.layer_decay: ordered_layers() of {type(body).__name__} names"
            f" {first_few(twice)} more than once; name each layer once, where it is used first"
        )


def _parameters(part: nn.Module | nn.Parameter) -> Iterator[nn.Parameter]:
    return part.parameters() if isinstance(part, nn.Module) else iter((part,))


def _structure(body: nn.Module) -> list[tuple[nn.Parameter, ...]]:
    """Return layers by the rule at the top of this file; none unless there is exactly one chain."""
    embedded = {p for m in body.modules() if isinstance(m, EMBEDDINGS) for p in m.parameters()}
    chains = list(_outermost_chains(body, embedded))
    if len(chains) != 1:
        return []
    inside = set(chains[0].parameters())
    registered = list(body.parameters())
    last = max(i for i, p in enumerate(registered) if p in inside)
    below = tuple(p for p in registered if p in embedded and p not in inside)
    above = tuple(p for p in registered[last + 1 :] if p not in embedded)
    return _with_matrices([below, *_blocks(chains[0]), above])


def _outermost_chains(module: nn.Module, embedded: set[nn.Parameter]) -> Iterator[nn.Module]:
    if (
        isinstance(module, CHAINS)
        and len(_entries(module)) > 1
        and not embedded.issuperset(module.parameters())
    ):
        yield module
        return
    for child in module.children():
        yield from _outermost_chains(child, embedded)


def _entries(chain: nn.Module) -> list[nn.Module]:
    """Return its modules that have parameters."""
    return [child for child in chain.children() if any(True for _ in child.parameters())]


def _blocks(chain: nn.Module) -> Iterator[tuple[nn.Parameter, ...]]:
    for entry in _entries(chain):
        if isinstance(entry, CHAINS) and any(
            True for inner in _entries(entry) for _ in inner.children()
        ):
            yield from _blocks(entry)
        else:
            yield tuple(entry.parameters())


def _with_matrices(parts: list[tuple[nn.Parameter, ...]]) -> list[tuple[nn.Parameter, ...]]:
    """Join layers so that each has a matrix.

    A layer without one belongs to the previous layer, at the input to the next.
    """
    layers: list[tuple[nn.Parameter, ...]] = [()]
    for part in parts:
        if _has_matrix(layers[-1]) and _has_matrix(part):
            layers.append(())
        layers[-1] += part
    return layers


def _has_matrix(part: tuple[nn.Parameter, ...]) -> bool:
    return any(p.ndim > 1 for p in part)
