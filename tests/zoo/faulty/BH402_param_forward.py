import torch
from torch import nn


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 3)

    def forward(self, x):
        w = nn.Parameter(torch.randn(3, 3))
        return self.a(x) @ w
