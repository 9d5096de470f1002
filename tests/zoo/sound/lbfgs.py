"""LBFGS with a closure."""

import torch
import torch.nn.functional as F


def fit(model, x, y, steps=20):
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=10)
    for _ in range(steps):

        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
    return loss.item()
