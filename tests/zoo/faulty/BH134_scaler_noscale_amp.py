import torch
from torch.cuda.amp import autocast


def train(model, loader, opt, crit):
    for x, y in loader:
        opt.zero_grad()
        with autocast():
            loss = crit(model(x), y)
        loss.backward()
        opt.step()
