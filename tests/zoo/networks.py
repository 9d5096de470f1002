"""Networks with one mistake each that only shows on a run; each is `Sound` but for the line that is
wrong.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.training.modules import Sound
from training.models.shape import ModelShape


class DoubledInTraining(Sound):
    """Dropout's rescaling done in train mode alone, without the dropout."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        found = super().features(batch)
        return found * 2 if self.training else found


class RunningInAttribute(Sound):
    """A running mean that is a plain attribute: no checkpoint has it."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.mean = torch.zeros(64)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        found = super().features(batch)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * found.detach().mean(0)
        return found - self.mean


class CountsItsSteps(Sound):
    """Behaves otherwise after its third forward pass in train mode."""

    calls = 0

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        self.calls += self.training
        return super().forward(batch) * (0.5 if self.calls > 2 else 1.0)


class NumpyNoise(Sound):
    """Noise of a generator that no checkpoint and no seed of torch reaches."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        found = super().features(batch)
        return (
            found
            + torch.from_numpy(
                np.random.default_rng().normal(0, 0.1, found.shape).astype(np.float32)
            )
            if self.training
            else found
        )


class Branching(Sound):
    """Asks a value of a tensor which way to go: cannot be exported."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        found = super().features(batch)
        return found * 2 if float(batch["numeric"].detach().abs().max()) > 100 else found


class FixedRows(Sound):
    """A batch of 32 rows written into forward."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return super().features(batch).view(32, 64)


class WrongReshape(Sound):
    """Transposed, then reshaped back: the numbers of one row come from several."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        found = super().features(batch)
        return found.t().reshape(found.shape)


class AttentionOverRows(Sound):
    """Attention whose sequence is the batch: batch_first forgotten."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.attention = nn.MultiheadAttention(64, 4)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        found = super().features(batch).unsqueeze(1)
        return (found + self.attention(found, found, found, need_weights=False)[0]).squeeze(1)


class Centred(Sound):
    """Subtracts the mean of the batch, in eval mode too."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        found = super().features(batch)
        return found - found.mean(0)


class NormalisedOverRows(Sound):
    """F.normalize over dim 0."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return F.normalize(super().features(batch), dim=0)


class CumulatedOverRows(Sound):
    """A running sum down the batch."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return super().features(batch).cumsum(0) / 8


class NoRunningStatistics(Sound):
    """Batch norm that has nothing to go by in eval mode but the batch."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.norm = nn.BatchNorm1d(64, track_running_stats=False)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return self.norm(super().features(batch))


class ListOfLayers(Sound):
    """Layers in a Python list: never trained, moved or saved."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.layers = [nn.Linear(64, 64) for _ in range(2)]

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        found = super().features(batch)
        for layer in self.layers:
            found = F.relu(layer(found))
        return found


class ParameterInForward(Sound):
    """A new parameter in every forward pass."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return super().features(batch) * nn.Parameter(torch.ones(64))


class TensorWithGradient(Sound):
    """A tensor that asks for a gradient and is no parameter."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.scale = torch.ones(64, requires_grad=True)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return super().features(batch) * self.scale


class DoublePrecision(Sound):
    """One layer in float64."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.head = nn.Linear(64, shape.outputs, dtype=torch.float64)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(self.features(batch).double()).float()


class ArgMax(Sound):
    """The hard choice cuts the gradient of all that is before it."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        found = super().features(batch)
        return F.one_hot(found.argmax(1), 64).float()


class HalfDetached(Sound):
    """A second branch that is cut off by .data."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.second = nn.Linear(shape.numeric, 64)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return super().features(batch) + self.second(batch["numeric"]).data


class InnerNoGrad(Sound):
    """A context manager that was put there for a measurement and forgotten."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            hidden = self.hidden(batch["numeric"])
        return F.relu(hidden)


class Rounded(Sound):
    """Rounding has a gradient of 0."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return (super().features(batch) * 100).round() / 100


class Reversed(Sound):
    """The gradient goes up: a sign that was meant for an adversary."""

    class Turn(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, values: Tensor) -> Tensor:
            return values.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return -gradient

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return Reversed.Turn.apply(super().forward(batch))


class Clamped(Sound):
    """Scores clamped to ±0.1."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(batch).clamp(-0.1, 0.1)


class LogOfScore(Sound):
    """The logarithm of what can be negative."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return torch.log(super().forward(batch))


class DropsInEval(Sound):
    """F.dropout without training=self.training, on the scores."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return F.dropout(super().forward(batch), 0.2)


class WrongLevel(Sound):
    """A bias that was fitted to something else."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        nn.init.constant_(self.head.bias, 8.0)


class OneColumn(Sound):
    """Reads only a column that says nothing, through a slice of the wrong axis: all rows get the
    first row's features.
    """

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return super().features(batch)[:1].expand(len(batch["numeric"]), -1)


class ChangesItsBatch(Sound):
    """Clips its inputs in place: whoever gets the batch next gets other numbers."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        batch["numeric"].clamp_(-0.5, 0.5)
        return super().forward(batch)


class BackwardInForward(Sound):
    """A penalty with a backward pass of its own."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        if torch.is_grad_enabled():
            (1e-3 * self.head.weight.square().sum()).backward()
        return super().forward(batch)


class ReplacesParameter(Sound):
    """Normalises a weight by making it anew: the optimizer keeps the first one."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        if self.training:
            self.hidden.weight = nn.Parameter(F.normalize(self.hidden.weight.detach(), dim=1))
        return super().forward(batch)


class MadeAtFirstUse(Sound):
    """A layer whose width is found out in the first pass, when the optimizer has long been made."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        found = super().features(batch)
        if not hasattr(self, "late"):
            self.late = nn.Linear(found.shape[1], found.shape[1])
        return F.relu(self.late(found))


class SwitchesItsMode(Sound):
    """Turns its dropout off for good."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.drop = nn.Dropout(0.2)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        self.drop.eval()
        return self.drop(super().features(batch))


class SeedsInForward(Sound):
    """Seeds torch, so that the same units drop out in each step."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        torch.manual_seed(len(batch["numeric"]))
        return F.dropout(super().features(batch), 0.2, self.training)


class GrowsByItself(Sound):
    """Weights that a rule of its own changes in each pass."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            self.hidden.bias.add_(0.01)
        return super().features(batch)


class LearnsInEval(Sound):
    """A running mean that also follows what is evaluated."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.register_buffer("mean", torch.zeros(shape.numeric))

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        self.mean.lerp_(batch["numeric"].mean(0), 0.1)
        return F.relu(self.hidden(batch["numeric"] - self.mean))


class CarriesState(Sound):
    """What the last batch left behind is added to this one."""

    last: Tensor | None = None

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        found = super().features(batch)
        total = (
            found if self.last is None or len(self.last) != len(found) else found + 0.5 * self.last
        )
        self.last = found.detach()
        return total


class KeepsActivations(Sound):
    """A list for plots that nobody clears."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.seen: list[Tensor] = []

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        found = super().features(batch)
        self.seen.append(found.detach())
        return found


class DropsAll(Sound):
    """The share that is kept, given as the share that is dropped."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.drop = nn.Dropout(0.98)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return self.drop(super().features(batch))


class DividesByNorm(Sound):
    """0 / 0 for a row of zeros."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        rows = batch["numeric"]
        return super().forward({"numeric": rows / rows.square().sum(1, keepdim=True).sqrt()})


class DropsOutliers(Sound):
    """Rows far out are left away, and so are their scores."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        rows = batch["numeric"]
        return super().forward({"numeric": rows[rows.abs().amax(1) < 9]})


class RandomAttribute(Sound):
    """A random projection that is in no checkpoint."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.drawn = {"directions": torch.randn(shape.numeric, shape.numeric)}

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return F.relu(self.hidden(batch["numeric"] @ self.drawn["directions"]))


class Saturated(Sound):
    """Scores between -1 and 1 for labels that go on beyond; as far as a linear model comes it comes
    too.
    """

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return torch.tanh(super().forward(batch))
