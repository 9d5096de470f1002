import torch


def train(model, loader, opt, crit, scaler):
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = crit(model(x), y)
        scaler.scale(loss).backward()
        opt.zero_grad()
        scaler.step(opt)
        scaler.update()
