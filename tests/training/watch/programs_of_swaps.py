"""Programs under watch that put parts into networks, wrap them, and cut their scores; and one
mistake at a time for each.
"""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

WRAPPED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
X = torch.randn(400, 5)
y = (X[:, 0] + X[:, 1] > 0.2).float()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.middle, self.head = nn.Linear(5, 16), nn.Identity(), nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.middle(F.relu(self.body(x))))


def adapted(net):
    net.middle = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
    return net


net = DistributedDataParallel(adapted(Net()))
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for epoch in range(4):
    net.train()
    for rows in torch.randperm(320).split(32):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(net(X[rows]).squeeze(1), y[rows])
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        scores = net.module(X[320:]).squeeze(1)
        print(((scores > 0) == y[320:].bool()).float().mean(), (scores.sigmoid() > 0.5).sum())
dist.destroy_process_group()
"""

GROWN = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
X = torch.randn(420, 6)
coarse = (X[:, 0] > 0).long()
fine = 2 * coarse + (X[:, 1] > 0).long()
net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)


def passes(y, times):
    for _ in range(times):
        for rows in torch.randperm(350).split(35):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(X[rows]), y[rows])
            loss.backward()
            optimizer.step()


passes(coarse, 7)
net[2] = nn.Linear(24, 4)
optimizer.add_param_group({"params": net[2].parameters()})
passes(fine, 5)
net.eval()
with torch.no_grad():
    print((net(X[350:]).argmax(1) == fine[350:]).float().mean())
"""

AVERAGED = (
    "        loss.backward()\n        for p in net.module.middle.parameters():\n           "
    " dist.all_reduce(p.grad)\n            p.grad /= dist.get_world_size()\n"
)

BASES_OF_SWAPS = {"wrapped": WRAPPED, "grown": GROWN}
SOUND_OF_SWAPS = {
    "wrapped_anew": WRAPPED.replace(
        "adapted(Net()))\n", "Net())\nnet = DistributedDataParallel(adapted(net.module))\n"
    ),
    "averaged_when_wrapped": (
        WRAPPED.replace("adapted(Net()))\n", "Net())\nadapted(net.module)\n").replace(
            "        loss.backward()\n", AVERAGED
        )
    ),
    "cuts_tried": WRAPPED.replace(
        "(scores > 0)",
        "max(((scores > cut / 10) for cut in range(-20, 20, 3)), key=lambda told: (told =="
        " y[320:].bool()).sum())",
    ),
    "cut_tuned": WRAPPED.replace("scores > 0)", "scores > 0.48213)"),
}

PLANTED_OF_SWAPS = (
    Planted("BH843", "wrapped", "adapted(Net()))\n", "Net())\nadapted(net.module)\n"),
    Planted(
        "BH843",
        "wrapped",
        "adapted(Net()))\n",
        "Net())\nnet.module.head = nn.Sequential(nn.LayerNorm(16), net.module.head)\n",
    ),
    Planted("BH422", "grown", 'optimizer.add_param_group({"params": net[2].parameters()})\n', ""),
)
