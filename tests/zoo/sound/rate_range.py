"""A learning-rate range test."""

import math

import torch


def find(model, loader, criterion, init=1e-7, final=10.0, beta=0.98):
    optimizer = torch.optim.SGD(model.parameters(), lr=init)
    mult = (final / init) ** (1 / (len(loader) - 1))
    lr = init
    losses, lrs = [], []
    avg = 0.0
    for i, (x, y) in enumerate(loader):
        optimizer.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        avg = beta * avg + (1 - beta) * loss.item()
        losses.append(avg / (1 - beta ** (i + 1)))
        lrs.append(math.log10(lr))
        loss.backward()
        optimizer.step()
        lr *= mult
