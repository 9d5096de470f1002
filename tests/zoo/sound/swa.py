"""Weights averaged over the last third of a run, with a rate of its own there; batch norm is measured anew for the average."""

import torch
from torch.optim.lr_scheduler import PolynomialLR
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn


def averaged(network, wells, cost, rounds=90):
    start = rounds * 2 // 3
    steps = torch.optim.SGD(network.parameters(), lr=0.03, momentum=0.9, nesterov=True)
    falling = PolynomialLR(steps, total_iters=start, power=0.9)
    level = SWALR(steps, swa_lr=0.004, anneal_epochs=3)
    mean = AveragedModel(network)
    for number in range(rounds):
        network.train()
        for logs, porosity in wells:
            steps.zero_grad()
            cost(network(logs), porosity).backward()
            steps.step()
        if number < start:
            falling.step()
            continue
        mean.update_parameters(network)
        level.step()
    update_bn(wells, mean)
    return mean
