"""An exponential moving average of the weights is evaluated and saved."""

import copy

import torch
from torch import nn


class EMA:
    def __init__(self, model, decay=0.999):
        self.module = copy.deepcopy(model).eval()
        for p in self.module.parameters():
            p.requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for ema_p, p in zip(self.module.parameters(), model.parameters(), strict=True):
            ema_p.mul_(self.decay).add_(p.detach(), alpha=1 - self.decay)
        for ema_b, b in zip(self.module.buffers(), model.buffers(), strict=True):
            ema_b.copy_(b)


def fit(model, train_loader, val_loader, epochs, device):
    ema = EMA(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loss_fn = nn.CrossEntropyLoss()
    best_acc, best_state = 0.0, None
    for _ in range(epochs):
        model.train()
        for x, y in train_loader:
            loss = loss_fn(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model)
        acc = accuracy(ema.module, val_loader, device)
        if acc > best_acc:
            best_acc = acc
            best_state = {k: v.detach().clone() for k, v in ema.module.state_dict().items()}
    model.load_state_dict(best_state)
    return model


@torch.inference_mode()
def accuracy(model, loader, device):
    model.eval()
    correct = sum((model(x.to(device)).argmax(-1).cpu() == y).sum().item() for x, y in loader)
    return correct / len(loader.dataset)
