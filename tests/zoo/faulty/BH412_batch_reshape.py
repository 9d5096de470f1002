import torch
from torch import nn


class M(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.l = nn.Linear(d, 1)

    def forward(self, x):
        batch = x.size(0)
        h = x.transpose(0, 1)
        h = h.reshape(batch, -1)
        return self.l(h)
