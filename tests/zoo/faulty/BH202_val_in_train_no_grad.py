import torch


def validate(model, loader, criterion):
    model.eval()
    total = 0
    for x, y in loader:
        out = model(x)
        total += criterion(out, y).item() * len(x)
    return total / len(loader.dataset)
