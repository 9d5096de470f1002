"""Programs under watch that train in stages, against a queue, or with and without an input; and one
mistake at a time.
"""

from __future__ import annotations

QUEUE = """
import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
waves = torch.sin(torch.arange(32) * (0.2 + 0.6 * torch.rand(320, 1)))
query = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 8))
key = copy.deepcopy(query).requires_grad_(False)
queue = F.normalize(torch.randn(64, 8), dim=1)
optimizer = torch.optim.Adam(query.parameters(), lr=2e-3)


def view(rows):
    return rows * (0.7 + 0.6 * torch.rand(len(rows), 1)) + 0.2 * torch.randn_like(rows)


for epoch in range(3):
    for rows in torch.randperm(320).split(32):
        first, second = view(waves[rows]), view(waves[rows])
        q = F.normalize(query(first), dim=1)
        with torch.no_grad():
            for slow, fast in zip(key.parameters(), query.parameters()):
                slow.lerp_(fast, 0.05)
            k = F.normalize(key(second), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], dim=1) / 0.2
        queue = torch.cat([k, queue])[:64]
        loss = F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
"""

STAGES = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(240, 6)
y = (x[:, 0] - x[:, 1] > 0).long()
trunk, head, start = nn.Sequential(nn.Linear(6, 16), nn.ReLU()), nn.Linear(16, 2), nn.Linear(16, 6)
net = nn.Sequential(trunk, head)
first = torch.optim.Adam([*trunk.parameters(), *start.parameters()], lr=0.01)
for rows in torch.randperm(240).split(40):
    first.zero_grad()
    F.mse_loss(start(trunk(x[rows])), x[rows]).backward()
    first.step()


def stage(optimizer, epochs):
    for epoch in range(epochs):
        for rows in torch.randperm(240).split(40):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()


def of_what_learns(rate):
    return torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=rate)


trunk.requires_grad_(False)
stage(of_what_learns(0.01), 3)
trunk.requires_grad_(True)
second = of_what_learns(0.003)
stage(second, 4)
net.eval()
with torch.no_grad():
    print((net(x).argmax(1) == y).float().mean())
"""

# One input is left out in the first of two runs: its weights get no gradient there.
ABLATION = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x, extra = torch.randn(240, 6), torch.randn(240, 3)
y = (x[:, 0] + extra[:, 0] > 0).long()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.beside, self.out = nn.Linear(6, 16), nn.Linear(3, 16, bias=False), nn.Linear(16, 2)

    def forward(self, x, extra):
        return self.out(F.relu(self.body(x) + self.beside(extra)))


def fit(extra):
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for epoch in range(4):
        for rows in torch.randperm(240).split(40):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows], extra[rows]), y[rows]).backward()
            optimizer.step()
    net.eval()
    with torch.no_grad():
        return (net(x, extra).argmax(1) == y).float().mean()


print(fit(torch.zeros_like(extra)), fit(extra))
"""

# The hour comes round: its sine and cosine have mean 0 and deviation 1 on every side.
HOURS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
hour = torch.arange(960.0)
turns = 2**0.5 * torch.stack([(hour * torch.pi / 12).sin(), (hour * torch.pi / 12).cos()], dim=1)
noise = torch.randn(960, 1)
x, y = torch.cat([turns, noise], dim=1), turns[:, :1] * 2 + noise + 0.3 * torch.randn(960, 1)
net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for epoch in range(3):
    for rows, answers in DataLoader(TensorDataset(x[:480], y[:480]), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        (net(rows) - answers).pow(2).mean().backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        total = sum((net(rows) - answers).abs().sum().item() for rows, answers in DataLoader(TensorDataset(x[480:], y[480:]), batch_size=96))
    net.train()
    print(total / 480)
"""

BASES_OF_STAGES = {"queue": QUEUE, "stages": STAGES}
SOUND_OF_STAGES = {"ablation": ABLATION, "hours": HOURS}

PLANTED_OF_STAGES = ()
