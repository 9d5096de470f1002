import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, opt, crit):
    model = DDP(net)
    for x, y in loader:
        opt.zero_grad()
        logits = model.module.encode(x)
        loss = crit(logits, y)
        loss.backward()
        opt.step()
