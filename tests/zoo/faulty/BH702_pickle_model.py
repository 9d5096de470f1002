import pickle

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(1, 1)

    def forward(self, x):
        return self.l(x)


net = Net()
with open("m.pkl", "wb") as f:
    pickle.dump(net, f)
