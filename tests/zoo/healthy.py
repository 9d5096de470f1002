"""Sound networks of many kinds: no check may stop them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from tests.training.modules import Sound
from tests.zoo.numerics import Softsign
from training.models.shape import ModelShape


class Body(nn.Module):
    """Something between the columns and the head; subclasses make `self.middle`."""

    def __init__(self, shape: ModelShape, width: int = 64) -> None:
        super().__init__()
        self.hidden = nn.Linear(shape.numeric, width)
        self.head = nn.Linear(width, shape.outputs)
        self.middle: nn.Module = nn.Identity()

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(self.middle(F.relu(self.hidden(batch["numeric"]))))


class BatchNorm(Body):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.middle = nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 64), nn.ReLU())


class GroupNorm(Body):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.middle = nn.Sequential(nn.GroupNorm(4, 64), nn.Linear(64, 64), nn.GELU())


class TiedWeights(Body):
    """One matrix, used twice."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        once = nn.Linear(64, 64)
        self.middle = nn.Sequential(once, nn.Tanh(), once)


class FrozenBackbone(Body):
    """Its first layer stays as it is."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape, 256)
        self.hidden.requires_grad_(False)
        self.middle = nn.Linear(256, 256)


class Residual(Body):
    """A branch that starts at zero."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.branch = nn.Sequential(
            nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.3), nn.Linear(128, 64)
        )
        nn.init.zeros_(self.branch[-1].weight)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        found = F.relu(self.hidden(batch["numeric"]))
        return self.head(found + self.branch(found))


class Recurrent(nn.Module):
    """A GRU along the columns."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.cell = nn.GRU(1, 48, batch_first=True)
        self.head = nn.Linear(48, shape.outputs)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(self.cell(batch["numeric"].unsqueeze(2))[0][:, -1])


class ColumnAttention(nn.Module):
    """Columns as tokens, attention among them, softmax over the last axis."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(shape.numeric, 32) * 0.5)
        self.bias = nn.Parameter(torch.randn(shape.numeric, 32) * 0.5)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = nn.Sequential(
            nn.LayerNorm(32 * shape.numeric), nn.Linear(32 * shape.numeric, shape.outputs)
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        tokens = batch["numeric"].unsqueeze(2) * self.embedding + self.bias
        return self.head(
            (tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]).flatten(1)
        )


class Experts(Body):
    """A gate that mixes experts row by row."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.experts = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])
        self.gate = nn.Linear(64, 3)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        found = F.relu(self.hidden(batch["numeric"]))
        mixed = torch.stack([expert(found) for expert in self.experts], 1) * self.gate(
            found
        ).softmax(1).unsqueeze(2)
        return self.head(found + mixed.sum(1))


class WeightNormed(Body):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.middle = nn.Sequential(parametrizations.weight_norm(nn.Linear(64, 64)), nn.ReLU())


class Convolution(nn.Module):
    """Columns as a signal."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, 32, 3, padding=1), nn.GELU(), nn.Conv1d(32, 32, 3, padding=1), nn.GELU()
        )
        self.head = nn.Linear(32 * shape.numeric, shape.outputs)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(self.layers(batch["numeric"].unsqueeze(1)).flatten(1))


class Periodic(nn.Module):
    """Sines of the columns, at frequencies that are learned."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.randn(shape.numeric, 16))
        self.layers = nn.Sequential(
            nn.Linear(32 * shape.numeric, 64), nn.ReLU(), nn.Linear(64, shape.outputs)
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        angle = batch["numeric"].unsqueeze(2) * self.frequency
        return self.layers(torch.cat([angle.sin(), angle.cos()], 2).flatten(1))


class Ensemble(nn.Module):
    """The mean of several networks."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.members = nn.ModuleList([Sound(shape, 32) for _ in range(4)])

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return torch.stack([member(batch) for member in self.members]).mean(0)


class Highway(Body):
    """A gate between a layer and its input."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.carry, self.change = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        found = F.relu(self.hidden(batch["numeric"]))
        gate = torch.sigmoid(self.carry(found))
        return self.head(gate * F.relu(self.change(found)) + (1 - gate) * found)


class StopGradient(Body):
    """A target branch that is detached on purpose, with its parameters frozen."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.anchor = nn.Linear(shape.numeric, 64).requires_grad_(False)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(
            F.relu(self.hidden(batch["numeric"])) + self.anchor(batch["numeric"]).detach()
        )


class RegisteredBuffer(Body):
    """A running mean that is a buffer: checkpoints have it."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.register_buffer("mean", torch.zeros(64))
        self.mean: Tensor

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        found = F.relu(self.hidden(batch["numeric"]))
        if self.training:
            self.mean.lerp_(found.detach().mean(0), 0.1)
        return self.head(found - self.mean)


class FunctionalDropout(Body):
    """F.dropout that knows the mode."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(F.dropout(F.relu(self.hidden(batch["numeric"])), 0.3, self.training))


class MomentumEncoder(Body):
    """A frozen copy that follows the layer in train mode; its output is no target here, but a
    second view.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.slow = nn.Linear(shape.numeric, 64).requires_grad_(False)
        self.slow.load_state_dict(self.hidden.state_dict())

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.slow.weight.lerp_(self.hidden.weight, 0.01)
        return self.head(
            F.relu(self.hidden(batch["numeric"])) + 0.1 * torch.tanh(self.slow(batch["numeric"]))
        )


class RandomProjection(Body):
    """Random directions that are a buffer: checkpoints have them."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.register_buffer(
            "directions", torch.randn(shape.numeric, shape.numeric) / shape.numeric**0.5
        )
        self.directions: Tensor

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward({"numeric": batch["numeric"] @ self.directions})


class SpectralNormed(Body):
    """Power iteration in train mode changes buffers of its own."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.middle = nn.Sequential(parametrizations.spectral_norm(nn.Linear(64, 64)), nn.ReLU())


class SpectralNormedByHook(Body):
    """The older spectral norm, a hook that goes by the mode of its layer; used twice, so that its
    power iteration runs twice a pass.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        once = nn.utils.spectral_norm(nn.Linear(64, 64))
        self.middle = nn.Sequential(once, nn.ReLU(), once, nn.ReLU())
        nn.init.normal_(
            self.head.weight, std=0.002
        )  # before the first iterations the norm that it divides by is too small


class ZeroHead(Body):
    """Scores that do not depend on the inputs before the first step."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        nn.init.zeros_(self.head.weight)


class EqualWeights(nn.Module):
    """Columns that are alike before the first step alone."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.first = nn.Linear(shape.numeric, 64)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(64, shape.outputs))
        with torch.no_grad():
            self.first.weight.copy_(
                torch.randn(64, 1).expand(-1, shape.numeric) / shape.numeric**0.5
            )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(self.first(batch["numeric"]))


class Binned(nn.Module):
    """An embedding for each of eight bins of a column, as quantiles of a normal distribution;
    indicators as they are.
    """

    def __init__(self, shape: ModelShape, bins: int = 8) -> None:
        super().__init__()
        self.scaled = shape.numeric - shape.indicators
        self.register_buffer("edges", torch.special.ndtri(torch.arange(1, bins) / bins))
        self.edges: Tensor
        self.tables = nn.ModuleList([nn.Embedding(bins, 16) for _ in range(self.scaled)])
        self.layers = nn.Sequential(
            nn.Linear(16 * self.scaled + shape.indicators, 128),
            nn.ReLU(),
            nn.Linear(128, shape.outputs),
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        values = batch["numeric"]
        bins = torch.bucketize(values[:, : self.scaled].contiguous(), self.edges)
        parts = [table(bins[:, i]) for i, table in enumerate(self.tables)]
        return self.layers(torch.cat([*parts, values[:, self.scaled :]], 1))


class DeepSets(nn.Module):
    """One net for all columns and a pool over them; each column brings an embedding of its own, by
    which the net knows it.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.identity = nn.Parameter(torch.randn(shape.numeric, 16))
        self.element = nn.Sequential(nn.Linear(17, 96), nn.ReLU(), nn.Linear(96, 96))
        self.head = nn.Sequential(
            nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, shape.outputs)
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        values = batch["numeric"].unsqueeze(2)
        tokens = torch.cat([values, self.identity.expand(values.shape[0], -1, -1)], 2)
        return self.head(self.element(tokens).sum(1))


class DeepDropout(Body):
    """Half of each of three layers dropped, before a normalisation that makes train mode's mean
    another one than eval mode's.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        found = F.relu(self.hidden(batch["numeric"]))
        for layer in self.layers:
            found = F.relu(F.layer_norm(F.dropout(layer(found), 0.5, self.training), (64,)))
        return self.head(found)


class OwnDropout(Body):
    """Dropout written by hand, whole branches of rows too, each divided by the share that
    is kept.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.branches = nn.ModuleList(
            [
                nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
                for _ in range(3)
            ]
        )

    def kept(self, values: Tensor, shape: tuple[int, ...], keep: float) -> Tensor:
        return values * (torch.rand(shape) < keep) / keep if self.training else values

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        found = F.relu(self.hidden(batch["numeric"]))
        for branch in self.branches:
            found = found + self.kept(branch(found), (found.shape[0], 1), 0.7)
        return self.head(self.kept(found, tuple(found.shape), 0.4))


class FrozenNorm(Body):
    """A batch norm that stays in eval mode: it asks for no number of rows."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.middle = nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 64), nn.ReLU())

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self.middle[0].eval()
        return self


class FrozenStillNorm(FrozenNorm):
    """Its statistics are not to move: it is in eval mode, and has a momentum of 0 besides."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.middle[0].momentum = 0.0


class OwnBackward(Body):
    """An autograd function with a right backward, and a hook that only looks."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.hidden.weight.register_hook(lambda gradient: None)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(Softsign.apply(self.hidden(batch["numeric"])))


class StraightThrough(Body):
    """Activations rounded to sixteenths, with the gradient of what they were before."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        found = torch.tanh(self.hidden(batch["numeric"]))
        return self.head(found + ((found * 16).round() / 16 - found).detach())


class PaddedBins(Body):
    """Columns cut into bins, of which the lowest is padding: its row stays as it is."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.bins = nn.Embedding(8, 64, padding_idx=0)
        self.bins.weight.data *= 0.05

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        edges = torch.linspace(-2.5, 2.5, 7, dtype=batch["numeric"].dtype)
        binned = self.bins(torch.bucketize(batch["numeric"], edges)).sum(1)
        return self.head(F.relu(self.hidden(batch["numeric"]) + binned))


class SinglePrecision(Body):
    """Casts what it is given to float32, so that it refuses weights of float64: its gradient cannot
    be measured there, and that is no finding.
    """

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward({"numeric": batch["numeric"].float()})


class OneNormForBoth(Body):
    """One batch norm for a column's value and its mirror image, which have the same mean and
    variance but for chance.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        nn.init.zeros_(self.hidden.bias)
        self.norm = nn.BatchNorm1d(64)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        both = [F.relu(self.norm(self.hidden(sign * batch["numeric"]))) for sign in (1.0, -1.0)]
        return self.head(both[0] + 0.5 * both[1])


class DeepNorms(Body):
    """Eight batch norms in a row: what the few rows leave in each of them does not add up."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64)) for _ in range(8)
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        found = self.hidden(batch["numeric"])
        for block in self.blocks:
            found = found + 0.5 * block(found)
        return self.head(F.relu(found))


class ByLen(nn.Module):
    """Attention over columns behind a token of its own, the number of rows taken by `len`: in
    Python a plain number.
    """

    def __init__(self, shape: ModelShape, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.own = nn.Parameter(0.2 * torch.randn(1, 1, width))
        self.weight = nn.Parameter(0.3 * torch.randn(shape.numeric, width))
        self.shift = nn.Parameter(0.3 * torch.randn(shape.numeric, width))
        self.tables = nn.ModuleList(nn.Embedding(n, width) for n in shape.categories)
        self.norm, self.qkv, self.mix = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.head = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, shape.outputs)
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        columns = batch["numeric"].unsqueeze(-1) * self.weight + self.shift
        tables = [
            table(batch["categorical"][:, i]).unsqueeze(1) for i, table in enumerate(self.tables)
        ]
        x = torch.cat([self.own.expand(len(columns), -1, -1), columns, *tables], dim=1)
        rows, tokens, width = x.shape
        q, k, v = (
            self.qkv(self.norm(x))
            .view(rows, tokens, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        share = (q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5).softmax(dim=-1)
        x = x + self.mix((share @ v).transpose(1, 2).reshape(rows, tokens, width))
        return self.head(x[:, 0])


class WideAndDeep(nn.Module):
    """A sum of two parts begins with scores about as large as the labels of a regression."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.categories = shape.categories
        inputs = shape.numeric + sum(shape.categories)
        self.wide = nn.Linear(inputs, shape.outputs)
        self.deep = nn.Sequential(
            nn.Linear(inputs, 64),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(64, shape.outputs),
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        codes = [
            F.one_hot(batch["categorical"][:, i], n).float() for i, n in enumerate(self.categories)
        ]
        x = torch.cat([batch["numeric"], *codes], dim=1)
        return self.wide(x) + self.deep(x)
