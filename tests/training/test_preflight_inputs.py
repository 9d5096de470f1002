"""Preflight names columns that the network does not read, cannot tell apart or makes coarse, and
says nothing of those that it takes as they are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.records import CheckResult
from tests.training.toys import CLASSES, KINDS, Arrays, make_arrays, make_statistics, make_toy
from training.models.build import Network, build_model
from training.models.shape import ModelShape, model_shape
from training.objectives.losses import make_loss
from training.preflight.inputs import check_inputs
from training.preflight.modes import dropped_unscaled
from training.preflight.subject import Probe, first_rows, spread_rows


class Tables(nn.Module):
    """Sound: a table for each categorical column, next to the numeric ones."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.tables = nn.ModuleList([nn.Embedding(n, 8, padding_idx=0) for n in shape.categories])
        self.layers = nn.Sequential(
            nn.Linear(shape.numeric + 8 * len(shape.categories), 64),
            nn.ReLU(),
            nn.Linear(64, shape.outputs),
        )

    def codes(self, batch: dict[str, Tensor]) -> list[Tensor]:
        return [table(batch["categorical"][:, i]) for i, table in enumerate(self.tables)]

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.layers(torch.cat([batch["numeric"], *self.codes(batch)], 1))


class FirstTwice(Tables):
    """The last table is given the first column."""

    def codes(self, batch: dict[str, Tensor]) -> list[Tensor]:
        return [table(batch["categorical"][:, 0]) for table in self.tables]


class OnlyNumeric(Tables):
    """Its tables are used, but with codes that are always the same."""

    def codes(self, batch: dict[str, Tensor]) -> list[Tensor]:
        return [table(torch.full_like(batch["categorical"][:, 0], 2)) for table in self.tables]


class OneTable(nn.Module):
    """All codes looked up in one table and summed; `offsets` or not."""

    offsets = False

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        starts = [
            sum(shape.categories[:i]) if self.offsets else 0 for i in range(len(shape.categories))
        ]
        self.register_buffer("starts", torch.tensor(starts))
        self.starts: Tensor
        self.table = nn.EmbeddingBag(sum(shape.categories), 16, mode="sum")
        self.numeric = nn.Linear(shape.numeric, 16)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(16, shape.outputs))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(
            self.numeric(batch["numeric"]) + self.table(batch["categorical"] + self.starts)
        )


class OneTableWithOffsets(OneTable):
    offsets = True


class NoPicture(nn.Module):
    """Columns without the picture next to them."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.tables = Tables(shape)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.tables(batch) + 0 * batch["tensor_picture"].mean((1, 2))[:, None]


class Levels(nn.Module):
    """Numeric columns as one of so many levels of equal width, or of equal share; the rest is left
    alone.
    """

    def __init__(self, shape: ModelShape, edges: Tensor) -> None:
        super().__init__()
        self.scaled, self.edges = shape.numeric - shape.indicators, edges
        self.rest = Tables(shape)
        self.tables = nn.ModuleList(
            [nn.Embedding(len(edges) + 1, shape.outputs) for _ in range(self.scaled)]
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        levels = torch.bucketize(batch["numeric"][:, : self.scaled].contiguous(), self.edges)
        flags = torch.cat(
            [torch.zeros_like(levels, dtype=torch.float32), batch["numeric"][:, self.scaled :]], 1
        )
        return self.rest({**batch, "numeric": flags}) + sum(
            table(levels[:, i]) for i, table in enumerate(self.tables)
        )


def plain(arrays: Arrays) -> None:
    """Nothing is changed."""


def rarely_anything(arrays: Arrays) -> None:
    """Columns that are constant in nearly all rows: a flag that is never set, a category with a
    single value, a number that is mostly 0.
    """
    arrays["numeric"][:, 5], arrays["categorical"][:, 0], arrays["numeric"][20:, 2] = 0, 2, 0


def heavy_tails(arrays: Arrays) -> None:
    arrays["numeric"][:, :5] = np.clip(np.sinh(arrays["numeric"][:, :5] * 2) / 10, -10, 10)


def flags_alone(arrays: Arrays) -> None:
    arrays["numeric"][:, :5] = arrays["numeric"][:, :5] > 0


def checked(
    task: str,
    body: Callable[[ModelShape], nn.Module] | str,
    change: Callable[[Arrays], None] = plain,
    tensor: bool = False,
) -> CheckResult:
    arrays = make_arrays(task, 300, tensor=tensor)
    change(arrays)
    toy = make_toy(task, {"kind": body if isinstance(body, str) else "mlp"})
    statistics = make_statistics(task, arrays)
    shape = model_shape(toy.declaration, statistics)
    torch.manual_seed(0)
    network = (
        build_model(toy.declaration, statistics)
        if isinstance(body, str)
        else Network(shape, statistics, body(shape))
    )
    weights, modes = (
        {n: t.clone() for n, t in network.state_dict().items()},
        [m.training for m in network.modules()],
    )
    found = check_inputs(
        network,
        statistics,
        shape,
        make_loss(toy.declaration, statistics),
        spread_rows(arrays, 32),
        first_rows(arrays, 256),
    )
    assert (
        all(torch.equal(t, weights[n]) for n, t in network.state_dict().items())
        and [m.training for m in network.modules()] == modes
    )
    return found


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            FirstTwice,
            "No score of any row depends on 1 of 8 inputs (shape), however they are changed.",
        ),
        (
            OnlyNumeric,
            "Forward never reads batch['categorical'] (color, shape): nothing in it moves a score.",
        ),
        (
            OneTable,
            "All 2 categorical columns (color, shape) can be swapped without moving any score",
        ),
        (
            lambda shape: Levels(shape, torch.tensor([-1.0, 0.0, 1.0])),
            "Of 16 values of a numeric column (x0, x1, x2, x3, x4) the scores tell about 3",
        ),
    ],
)
def test_columns_that_are_lost_are_named(
    body: Callable[[ModelShape], nn.Module], words: str
) -> None:
    found = checked("binary", body)
    assert found.verdict == "warn" and words in found.summary and found.remedy


def test_a_tensor_that_is_not_read_is_named() -> None:
    found = checked("binary", NoPicture, tensor=True)
    assert (found.verdict, found.columns) == (
        "warn",
        ("picture",),
    ) and "batch['tensor_picture'] (picture)" in found.summary


def test_a_network_that_no_input_reaches_is_told_as_that() -> None:
    class Constant(Tables):
        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return super().forward(batch) * 0

    assert (
        checked("regression", Constant).summary
        == "No score of any row depends on any of the 8 inputs."
    )


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    "change", [plain, rarely_anything, heavy_tails, flags_alone], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "cnn"])
def test_built_in_models_read_every_column(kind: str, change: Callable[[Arrays], None]) -> None:
    task = sorted(CLASSES)[KINDS.index(kind) % 3]
    assert (
        checked(task, kind, change).summary
        == "Each of the 8 inputs moves the scores, and no two can be swapped."
    )


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    "change", [plain, rarely_anything, heavy_tails, flags_alone], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("body", [Tables, OneTableWithOffsets], ids=lambda f: f.__name__)
def test_sound_modules_are_let_through(
    body: Callable[[ModelShape], nn.Module], change: Callable[[Arrays], None]
) -> None:
    assert checked("multiclass", body, change).verdict == "pass"


@pytest.mark.parametrize("bins", [6, 8, 16])
def test_bins_of_equal_shares_are_fine_enough(bins: int) -> None:
    edges = torch.special.ndtri(torch.arange(1, bins) / bins)
    assert checked("regression", lambda shape: Levels(shape, edges)).verdict == "pass"


def test_a_picture_is_read() -> None:
    assert checked("binary", "cnn", tensor=True).verdict == "pass"


# ------------------------------------------------------------------------------- dropout of one's
# own


class Dropping(nn.Module):
    """A layer whose values are dropped by `how`, and one more."""

    def __init__(self, how: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.how, self.first, self.last = how, nn.Linear(6, 32), nn.Linear(32, 1)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        found = self.first(batch["numeric"])
        return self.last(F.relu(self.how(found) if self.training else found))


def mask(values: Tensor, keep: float) -> Tensor:
    return (torch.rand_like(values) < keep).float()


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        (lambda v: v * mask(v, 0.5), 0.5),
        (lambda v: v * mask(v[:, :1], 0.3), 0.3),
        (lambda v: v * mask(v[:1], 0.5), 0.5),
        (lambda v: v * mask(v, 0.5) * 4, 0.5),
        (lambda v: v * mask(v, 0.5) * 2, None),
        (lambda v: v * mask(v, 0.9), None),  # a tenth less is no matter
        (lambda v: F.dropout(v, 0.8), None),
        (lambda v: v * mask(v[:1, :1], 0.5) * 2, None),  # the whole layer at once
        (lambda v: v + torch.randn_like(v), None),
        (lambda v: v * (1 + torch.randn_like(v)), None),
        (lambda v: F.gumbel_softmax(v, hard=True), None),
    ],
)
def test_dropout_that_does_not_keep_the_mean_is_found(
    how: Callable[[Tensor], Tensor], kept: float | None
) -> None:
    torch.manual_seed(0)
    rows = Probe({"numeric": torch.randn(16, 6)}, torch.zeros(16))
    found = dropped_unscaled(Dropping(how), rows.inputs)
    assert (found is None) == (kept is None)
    if found is not None:
        assert found.where == "the input of last" and found.kept == pytest.approx(kept, abs=0.15)
