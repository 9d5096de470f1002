import torch
from torch import nn

net = nn.Linear(3, 1)
torch.save(net, "m.pt")
