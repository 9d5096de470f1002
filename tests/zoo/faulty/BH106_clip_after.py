import torch


def train(model, loader, opt, crit):
    for x, y in loader:
        opt.zero_grad()
        loss = crit(model(x), y)
        loss.backward()
        opt.step()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
