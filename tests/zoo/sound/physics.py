"""A loss on derivatives of the output."""

import torch
from torch import nn

net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), 1e-3)
for it in range(1000):
    x = torch.rand(100, 2, requires_grad=True)
    u = net(x)
    du = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
    loss = ((du[:, 0] - u[:, 0]) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 100 == 0:
        print(it, loss.item())
