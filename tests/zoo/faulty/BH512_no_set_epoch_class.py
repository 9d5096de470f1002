import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main(ds, model, opt, crit, args):
    loader = DataLoader(ds, batch_size=8, sampler=DistributedSampler(ds, num_replicas=4, rank=args.rank))
    for ep in range(args.epochs):
        for x, y in loader:
            opt.zero_grad()
            crit(model(x), y).backward()
            opt.step()
