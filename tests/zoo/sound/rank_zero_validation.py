"""Rank 0 evaluates the inner network while the others wait."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def main(net, train_set, val_set, epochs, crit):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    model = DDP(net.to(rank), device_ids=[rank])
    sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, 32, sampler=sampler)
    val_loader = DataLoader(val_set, 64)
    opt = torch.optim.AdamW(model.parameters())
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in train_loader:
            opt.zero_grad(set_to_none=True)
            crit(model(x.to(rank)), y.to(rank)).backward()
            opt.step()
        if rank == 0:
            model.eval()
            n = c = 0
            with torch.no_grad():
                for x, y in val_loader:
                    c += (model.module(x.to(rank)).argmax(1).cpu() == y).sum().item()
                    n += len(y)
            print(c / n)
            torch.save(model.module.state_dict(), "m.pt")
        dist.barrier()
