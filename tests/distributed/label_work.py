"""Work of the ranks with windows whose labels are missing unevenly; call on every rank."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.config import TrainConfig
from tests.training.networks import Plain
from tests.training.runs import WIDTH
from tests.training.test_label_losses import LABELS, MIXED, THREE, labels_of, problem
from training.distributed.layout import Layout
from training.distributed.parallel import Parallel
from training.engine.batches import WindowReader
from training.engine.sampling import Sampler
from training.engine.step import Step
from training.objectives.losses import make_loss

CASES = [
    (micro_batch, several, weighted)
    for micro_batch in (None, 3)
    for several in (False, True)
    for weighted in (False, True)
]
ROWS, WINDOW = 41, 16


def label_gradients(parallel: Parallel) -> list[float]:
    """Return by case the largest error of the window gradient over all windows, relative to the
    largest entry.
    """
    return [_worst(parallel, *case) for case in CASES]


def _worst(
    parallel: Parallel, micro_batch_size: int | None, several: bool, weighted: bool
) -> float:
    kinds = MIXED if several else THREE
    label = labels_of(kinds, ROWS, seed=2, missing=0.8)
    declaration, statistics = problem(
        {"kind": "multitask", "labels": LABELS} if several else {"kind": "multilabel"}, kinds, label
    )
    rng, loss = np.random.default_rng(0), make_loss(declaration, statistics).double()
    tensors = {"numeric": torch.from_numpy(rng.normal(size=(ROWS, WIDTH))), "label": label}
    tensors |= {"weight": torch.from_numpy(rng.uniform(0.1, 3, ROWS))} if weighted else {}
    torch.manual_seed(3)
    model, sampler = Plain(WIDTH, 5 if several else 3, torch.float64), Sampler(ROWS, WINDOW, seed=5)
    config = TrainConfig(batch_size=WINDOW, micro_batch_size=micro_batch_size, clip="none")
    step = Step(
        Layout(model, parallel, config), loss, torch.optim.SGD(model.parameters(), lr=0.0), config
    )
    reader = WindowReader(tensors, sampler, loss, parallel)
    step.rehearse(reader.read(0))
    shares = torch.tensor([fitted.share for fitted in statistics.labels], dtype=torch.float64)
    worst = 0.0
    for number in range(sampler.steps_per_epoch):
        window = reader.read(number)
        step.gradients(window)
        twin = copy.deepcopy(model)
        twin.zero_grad()
        picked = {name: tensor[window.rows] for name, tensor in tensors.items()}
        _reference(twin, picked, shares, several).backward()
        expected = {name: p.grad for name, p in twin.named_parameters()}
        scale = max(float(g.abs().max()) for g in expected.values())
        worst = max(
            worst,
            *(
                float((p.grad - expected[name]).abs().max()) / scale
                for name, p in model.named_parameters()
            ),
        )
    return worst


def _reference(model: nn.Module, batch: dict[str, Tensor], shares: Tensor, several: bool) -> Tensor:
    """Return the loss of a whole window in plain torch."""
    scores, label, known = model(batch), batch["label"].nan_to_num(), ~batch["label"].isnan()
    rows = batch.get("weight", torch.ones(len(label), dtype=torch.float64))
    if not several:
        weights = known * rows[:, None]
        return (
            F.binary_cross_entropy_with_logits(scores, label, reduction="none") * weights
        ).sum() / weights.sum()
    losses = [
        F.binary_cross_entropy_with_logits(scores[:, 0], label[:, 0], reduction="none"),
        F.cross_entropy(scores[:, 1:4], label[:, 1].long(), reduction="none"),
        F.mse_loss(scores[:, 4], label[:, 2], reduction="none"),
    ]
    weights = torch.tensor([2.0, 0.5, 1.0]) / shares
    return (torch.stack(losses, dim=1) * known * weights * rows[:, None]).sum() / rows.sum()
