"""Several losses, each propagated by itself, with shared layers and accumulation."""

import torch
from torch import nn


class MultiTask(nn.Module):
    def __init__(self, width, tasks):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Dropout(0.1))
        self.heads = nn.ModuleDict({name: nn.Linear(64, size) for name, size in tasks.items()})

    def forward(self, x):
        h = self.trunk(x)
        return {name: head(h) for name, head in self.heads.items()}


def train(model, loader, optimizer, losses, weights, accumulate=4):
    model.train()
    totals = dict.fromkeys(losses, 0.0)
    optimizer.zero_grad()
    num_batches = len(loader)
    for i, (x, targets) in enumerate(loader):
        outputs = model(x)
        for j, (name, loss_fn) in enumerate(losses.items()):
            loss = weights[name] * loss_fn(outputs[name], targets[name]) / accumulate
            loss.backward(retain_graph=j + 1 < len(losses))
            totals[name] += loss.item() * accumulate
        if (i + 1) % accumulate == 0 or i + 1 == num_batches:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return {name: total / num_batches for name, total in totals.items()}
