import torch


def train(model, loader, opt, crit):
    for x, y in loader:
        opt.zero_grad()
        out = model(x).detach()
        loss = crit(out, y)
        loss.backward()
        opt.step()
