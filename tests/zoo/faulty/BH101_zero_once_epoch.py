import torch


def train(model, loader, optimizer, crit):
    for epoch in range(5):
        optimizer.zero_grad()
        for x, y in loader:
            loss = crit(model(x), y)
            loss.backward()
            optimizer.step()
