"""Programs under watch that rank pairs, and that read a sorted table; and one mistake at a time."""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

RANKED = """
import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
taste, kind = torch.randn(60, 3), torch.randn(40, 3)
users = torch.arange(60).repeat_interleave(8)
items = (taste @ kind.T + 0.3 * torch.randn(60, 40)).topk(8, dim=1).indices.reshape(-1)


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item, self.bias = nn.Embedding(60, 8), nn.Embedding(40, 8), nn.Embedding(40, 1)

    def forward(self, user, item):
        return (self.user(user) * self.item(item)).sum(-1) + self.bias(item).squeeze(-1)


net = Pairs()
optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
plan = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
generator = torch.Generator().manual_seed(1)
best, kept = float("inf"), None
for epoch in range(6):
    order = torch.randperm(len(users), generator=generator)
    total = 0.0
    for start in range(0, len(order), 32):
        rows = order[start : start + 32]
        other = torch.randint(40, (len(rows),), generator=generator)
        above = net(users[rows], items[rows]) - net(users[rows], other)
        loss = -F.logsigmoid(above).mean() + 1e-4 * net.user(users[rows]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(rows)
    plan.step()
    if total < best:
        best, kept = total, copy.deepcopy(net.state_dict())
net.load_state_dict(kept)
print(best / len(users))
"""

SORTED = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(320, 6)
y = (X[:, 0] + X[:, 1]).argsort().argsort() // 107
by_class = y[:240].argsort()
train = TensorDataset(X[:240][by_class], y[:240][by_class])
loader = DataLoader(train, batch_size=16, shuffle=True)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for epoch in range(4):
    for rows, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(net(rows), labels).backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    print((net(X[240:]).argmax(1) == y[240:]).float().mean())
"""

# Windows of a series are read as they lie, in the order of time.
UNSORTED = SORTED.replace("by_class = y[:240].argsort()", "by_class = torch.arange(240)")
SERIES = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
load = torch.sin(torch.arange(420) / 40.0) + 0.1 * torch.randn(420)
windows, next_one = load.unfold(0, 12, 1)[:-1], load[12:]
loader = DataLoader(TensorDataset(windows[:320], next_one[:320]), batch_size=20)
net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for epoch in range(4):
    for rows, answers in loader:
        optimizer.zero_grad()
        (net(rows).squeeze(1) - answers).pow(2).mean().backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    print((net(windows[340:]).squeeze(1) - next_one[340:]).abs().mean())
"""

BASES_OF_RANKINGS = {"ranked": RANKED, "sorted": SORTED, "unsorted": UNSORTED}
SOUND_OF_RANKINGS = {"series": SERIES}

PLANTED_OF_RANKINGS = (
    Planted(
        "BH822",
        "ranked",
        "torch.randperm(len(users), generator=generator)",
        "torch.randperm(len(users), generator=generator.manual_seed(1))",
    ),
    Planted("BH105", "ranked", "        optimizer.step()\n", ""),
    Planted("BH806", "sorted", ", shuffle=True", ""),
    Planted("BH887", "unsorted", ", shuffle=True", ""),
)
