import torch.distributed as dist


def save(state, path, rank):
    if rank == 0:
        write(state, path)
        dist.barrier()
