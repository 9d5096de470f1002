import torch


def train(model, train_loader, opt, crit, device):
    for x, y in train_loader:
        x.to(device)
        y.to(device)
        opt.zero_grad()
        crit(model(x), y).backward()
        opt.step()
