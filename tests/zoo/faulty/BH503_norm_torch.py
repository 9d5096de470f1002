import torch
from torch.utils.data import TensorDataset, random_split


def load(X, y):
    mean, std = X.mean(0), X.std(0)
    X = (X - mean) / std
    ds = TensorDataset(X, y)
    return random_split(ds, [800, 200])
