import torch


def train(model, loader, opt, crit):
    history = {"loss": []}
    for x, y in loader:
        opt.zero_grad()
        loss = crit(model(x), y)
        loss.backward()
        opt.step()
        history["loss"].append(loss)
