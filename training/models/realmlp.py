"""RealMLP: an MLP with tuned parts, rates and initialisation.

Source: Holzmüller et al. 2024, arXiv:2407.04491; details as in the package pytabkit (RealMLP-TD).

Shapes: B rows, W width of a layer's input, K scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.config import RealMlpModel
from schemas.optimizer_config import Factor
from training.models.categories import Categories
from training.models.numeric_embeddings import PbldEmbedding
from training.models.scheduled_dropout import ScheduledDropout
from training.models.shape import ModelShape

Activation = Literal["selu", "mish", "relu", "gelu", "silu"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "selu": F.selu,
    "mish": F.mish,
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
}
SCALE_RATE, BIAS_RATE, SLOPE_RATE = 6.0, 0.1, 0.1  # of the learning rate
CORNERS = 5  # rows that are mixed to a first bias
HEAD_STD = 0.1  # of the first scores


class NtkLinear(nn.Linear):
    """Linear layer `x W / sqrt(W's fan-in) + b` with W of unit scale (neural tangent form).

    Under Adam all layers then move at one rate, whatever their width.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, in] -> [B, out]."""
        return F.linear(x, self.weight * (1 / math.sqrt(self.in_features)), self.bias)

    @torch.no_grad()
    def init_on_(self, x: Tensor) -> Tensor:
        """Initialise by rows x [N, in]; return the outputs [N, out].

        W ~ N(0, 1), then scaled so that each output has deviation 1 over the rows. A unit's bias is
        minus a random mixture of its values in five rows, so that its kink lies among the data.
        """
        nn.init.normal_(self.weight)
        nn.init.zeros_(self.bias)
        deviation = self(x).std(0, unbiased=False)
        self.weight.div_(torch.where(deviation > 0, deviation, 1.0).unsqueeze(1))
        values = self(x)
        rows = torch.randint(len(x), (CORNERS, self.out_features))
        shares = torch.empty(CORNERS, self.out_features).exponential_()
        mixed = (values.gather(0, rows) * shares / shares.sum(0)).sum(0)
        self.bias.copy_(-mixed)
        return self(x)


class LearnedActivation(nn.Module):
    """Activation with a learned share of each unit: `x + a (f(x) - x)`, a = 1 at first."""

    def __init__(self, width: int, kind: Activation) -> None:
        super().__init__()
        self.kind = kind
        self.share = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, W] -> [B, W]."""
        return x + (ACTIVATIONS[self.kind](x) - x) * self.share


class Scaling(nn.Module):
    """One learned factor for each input, 1 at first: [B, W] -> [B, W]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, W] -> [B, W]."""
        return x * self.scale


class RealMlpBlock(nn.Module):
    """Linear layer, learned activation, dropout."""

    def __init__(self, fan_in: int, fan_out: int, kind: Activation, config: RealMlpModel) -> None:
        super().__init__()
        self.linear = NtkLinear(fan_in, fan_out)
        self.activation = LearnedActivation(fan_out, kind)
        scheduled = config.dropout_schedule == "flat_cos"
        self.dropout = (ScheduledDropout if scheduled else nn.Dropout)(config.dropout)

    def init_on_(self, x: Tensor) -> Tensor:
        """Initialise by rows x [N, in]; return the outputs [N, out] without dropout."""
        return self.activation(self.linear.init_on_(x)).detach()

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, in] -> [B, out]."""
        return self.dropout(self.activation(self.linear(x)))


class RealMlpInputs(nn.Module):
    """All inputs of a row as one vector [B, W]: numbers, indicators, categories, tensors."""

    def __init__(self, shape: ModelShape, config: RealMlpModel) -> None:
        super().__init__()
        self.scaled = shape.numeric - shape.indicators
        embedded = config.numeric_embedding == "pbld" and self.scaled > 0
        self.numbers = PbldEmbedding(self.scaled, config.frequency_std) if embedded else None
        self.categories = (
            Categories(shape, config.one_hot, config.embedding_size, signs=True)
            if shape.categories
            else None
        )
        self.has_numeric, self.tensor_keys = shape.numeric > 0, tuple(shape.tensors)
        self.width = (
            (sum(self.numbers.widths) if self.numbers is not None else self.scaled)
            + shape.indicators
            + (sum(self.categories.widths) if self.categories is not None else 0)
            + shape.tensor_width
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Map a batch -> [B, W]."""
        parts = []
        if self.has_numeric:
            values, indicators = batch["numeric"].split(
                [self.scaled, batch["numeric"].shape[1] - self.scaled], dim=1
            )
            parts += [values if self.numbers is None else self.numbers(values), indicators]
        if self.categories is not None:
            parts.append(self.categories(batch["categorical"]))
        parts += [batch[key].flatten(1) for key in self.tensor_keys]
        return torch.cat(parts, dim=1)


class RealMlp(nn.Module):
    """Inputs, a learned factor for each, hidden layers, the head.

    Weights and biases are initialised by rows that are drawn from the statistics, in place of train
    rows (models/drawn_rows.py): the network stays a function of declaration and statistics. Scores
    start near the prior. In eval mode those of a regression stay within the labels of train.

    Args:
        shape: The contract.
        config: The options.
        task: Kind of the task, for `activation: auto` and the rate of the head.
        rows: A batch for the initialisation.
    """

    def __init__(
        self, shape: ModelShape, config: RealMlpModel, task: str, rows: dict[str, Tensor]
    ) -> None:
        super().__init__()
        self.inputs = RealMlpInputs(shape, config)
        self.scaling = Scaling(self.inputs.width)
        kind = config.activation
        if kind == "auto":
            kind = "mish" if task == "regression" else "selu"
        widths = (self.inputs.width, *config.hidden)
        self.blocks = nn.Sequential(
            *(RealMlpBlock(fan_in, fan_out, kind, config) for fan_in, fan_out in pairwise(widths))
        )
        self.head = NtkLinear(widths[-1], shape.outputs)
        # One score of log odds moves like the difference of two logits, one of each class.
        self.head_rate = 2.0 if task in ("binary", "multilabel") else 1.0
        self.label_range = shape.label_range if config.clamp else None
        self._init(torch.tensor(shape.prior), rows)

    @torch.no_grad()
    def _init(self, prior: Tensor, rows: dict[str, Tensor]) -> None:
        x = self.inputs(rows)
        for block in self.blocks:
            x = block.init_on_(x)
        self.head.init_on_(x)
        self.head.weight.mul_(HEAD_STD)
        self.head.bias.copy_(prior - F.linear(x, self.head.weight).mean(0) / math.sqrt(x.shape[1]))

    def parameter_factors(self) -> dict[nn.Parameter, Factor]:
        """Return factors on rate and weight decay; layers' weights have those of all weights.

        pytabkit multiplies the decay of a step by a part's rate factor twice; so do these.
        """
        factors = {} if self.inputs.numbers is None else self.inputs.numbers.parameter_factors()
        if self.inputs.categories is not None:
            factors |= {p: Factor(1.0, 1.0) for p in self.inputs.categories.parameters()}
        factors[self.scaling.scale] = Factor(SCALE_RATE, SCALE_RATE)
        for block in self.blocks:
            factors[block.linear.bias] = Factor(BIAS_RATE)
            factors[block.activation.share] = Factor(SLOPE_RATE, SLOPE_RATE)
        factors[self.head.bias] = Factor(BIAS_RATE * self.head_rate)
        if self.head_rate != 1.0:
            factors[self.head.weight] = Factor(self.head_rate, 1 / self.head_rate)
        return factors

    def ordered_layers(self) -> list[nn.Module | tuple[nn.Module, ...]]:
        """Return layers from input to output: inputs and their factors, each block, the head."""
        return [(self.inputs, self.scaling), *self.blocks, self.head]

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Map a batch -> scores [B, K]."""
        scores = self.head(self.blocks(self.scaling(self.inputs(batch))))
        if self.training or self.label_range is None:
            return scores
        return scores.clamp(*self.label_range)
