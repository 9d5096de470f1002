import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main(net, loader, crit):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    model = DDP(net.to(rank), device_ids=[rank])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for x, y in loader:
            opt.zero_grad()
            loss = crit(model(x), y)
            loss.backward()
            opt.step()
        torch.save({"model": model.module.state_dict()}, f"ckpt_{epoch}.pt")
