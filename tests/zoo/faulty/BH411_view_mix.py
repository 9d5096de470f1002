import torch
from torch import nn


class M(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.l = nn.Linear(d, d)

    def forward(self, x):
        b, c, t = x.shape
        x = x.reshape(b, t, c)
        return self.l(x)
