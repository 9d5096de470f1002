"""A start from which a few steps suit any well: steps within a step by hand; and a step taken at the worst place nearby."""

import torch
from torch.func import functional_call


def adapted(network, logs, porosity, rate=0.05, steps=3):
    """Weights after a few steps on one well, still attached to those they came from."""
    weights = dict(network.named_parameters())
    for _ in range(steps):
        misfit = (functional_call(network, weights, (logs,)) - porosity).square().mean()
        slopes = torch.autograd.grad(misfit, tuple(weights.values()), create_graph=True)
        weights = dict(zip(weights, (w - rate * s for w, s in zip(weights.values(), slopes, strict=True)), strict=True))
    return weights


def learn_to_adapt(network, fields):
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-4)
    for wells in fields:
        optimizer.zero_grad()
        cost = 0.0
        for known, asked in wells:
            weights = adapted(network, *known)
            logs, porosity = asked
            cost = cost + (functional_call(network, weights, (logs,)) - porosity).abs().mean() / len(wells)
        cost.backward()
        optimizer.step()


def flat_step(network, climber, cost, logs, porosity):
    cost(network(logs), porosity).backward()
    climber.first_step(zero_grad=True)
    cost(network(logs), porosity).backward()
    climber.second_step(zero_grad=True)


def learn_flat(network, climber, cost, wells):
    for logs, porosity in wells:
        flat_step(network, climber, cost, logs, porosity)
