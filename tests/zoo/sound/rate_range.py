"""Which learning rate is too large: one passage in which it grows by the batch, set by hand on the optimizer."""

import torch


def largest_stable_rate(model, loader, loss_fn, lowest=1e-6, highest=1.0, worse=3.0):
    """The rate at which the loss was last below `worse` times its lowest value."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lowest, momentum=0.8)
    rates = torch.logspace(torch.tensor(lowest).log10(), torch.tensor(highest).log10(), len(loader)).tolist()
    seen = []
    for rate, (x, y) in zip(rates, loader, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_fn(model(x), y)
        seen.append(loss.item())
        if seen[-1] > worse * min(seen):
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return max(rate for rate, value in zip(rates, seen) if value <= worse * min(seen))
