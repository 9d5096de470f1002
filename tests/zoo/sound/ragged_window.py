"""The last, shorter window of accumulation is applied after the loop."""

import torch


def train(model, loader, optimizer, loss_fn, accum=4):
    model.train()
    optimizer.zero_grad()
    for step, batch in enumerate(loader):
        loss = loss_fn(model(batch["x"]), batch["y"])
        loss = loss / accum
        loss.backward()
        if (step + 1) % accum == 0:
            optimizer.step()
            optimizer.zero_grad()
    if (step + 1) % accum != 0:
        optimizer.step()
        optimizer.zero_grad()
