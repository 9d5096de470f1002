import torch


def train(model, loader, opt, crit, accum_steps=4):
    model.train()
    opt.zero_grad()
    for i, (x, y) in enumerate(loader):
        out = model(x)
        loss = crit(out, y)
        loss.backward()
        if (i + 1) % accum_steps == 0 or i == len(loader) - 1:
            opt.step()
            opt.zero_grad()
