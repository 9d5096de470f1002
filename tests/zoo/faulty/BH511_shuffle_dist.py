from torch.utils.data import DataLoader, DistributedSampler

sampler = DistributedSampler(ds)
loader = DataLoader(ds, batch_size=8, shuffle=True, sampler=sampler)
