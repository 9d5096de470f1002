"""Cooling of a rod, learned from the heat equation alone: the loss is made of derivatives of the output."""

import torch
from torch import nn

DIFFUSIVITY = 0.1
rod = nn.Sequential(nn.Linear(2, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
optimizer = torch.optim.Adam(rod.parameters(), lr=2e-3)


def slopes(heat, where):
    return torch.autograd.grad(heat.sum(), where, create_graph=True)[0]


for step in range(4000):
    where = torch.rand(256, 2, requires_grad=True)  # place and time, both from 0 to 1
    heat = rod(where)
    by_place, by_time = slopes(heat, where).unbind(dim=1)
    bend = slopes(by_place, where)[:, 0]
    start = torch.rand(64, 2) * torch.tensor([1.0, 0.0])
    known = (rod(start).squeeze(1) - torch.sin(torch.pi * start[:, 0])).square().mean()
    loss = (by_time - DIFFUSIVITY * bend).square().mean() + 10 * known
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 500 == 0:
        print(f"{step}: {loss.item():.2e}")
