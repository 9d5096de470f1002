import torch


def train(model, loader, opt, crit):
    for x, y in loader:
        opt.zero_grad()
        loss = crit(model(x), y).detach()
        loss.requires_grad = True
        loss.backward()
        opt.step()
