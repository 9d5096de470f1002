import torch
from torch import nn


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = {"a": nn.Linear(2, 3), "b": nn.Linear(2, 3)}

    def forward(self, x):
        return {k: h(x) for k, h in self.heads.items()}
