import torch


def train(model, loader, crit):
    opt = torch.optim.Adam(model.parameters())
    for x, y in loader:
        loss = crit(model(x), y)
        loss.backward()
        model.zero_grad()
        opt.step()
