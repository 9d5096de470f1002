import torch


def train(model, loader, opt, crit):
    running = 0
    for i, (x, y) in enumerate(loader):
        opt.zero_grad()
        loss = crit(model(x), y)
        loss.backward()
        opt.step()
        running = running + loss * x.size(0)
    return running
