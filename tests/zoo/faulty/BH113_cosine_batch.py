import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

EPOCHS = 30


def main(model, loader, crit):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sched = CosineAnnealingLR(opt, T_max=EPOCHS)
    for epoch in range(EPOCHS):
        for x, y in loader:
            opt.zero_grad()
            loss = crit(model(x), y)
            loss.backward()
            opt.step()
            sched.step()
