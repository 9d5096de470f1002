"""Programs under watch that add up gradients over windows of batches and follow a cosine; and one
mistake at a time.
"""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

GATHERED = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(320, 6)
y = (X[:, 0] + X[:, 1] > 0).long()
loader = DataLoader(TensorDataset(X[:240], y[:240]), batch_size=20, shuffle=True)
val_loader = DataLoader(TensorDataset(X[240:], y[240:]), batch_size=30)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
epochs, gathered = 10, 3
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
plan = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)


def learn(rows, labels):
    (F.cross_entropy(net(rows), labels) / gathered).backward()


for epoch in range(epochs):
    net.train()
    seen = 0
    for rows, labels in loader:
        learn(rows, labels)
        seen += 1
        if seen == gathered:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            seen = 0
    plan.step()
net.eval()
right, total = 0.0, 0
with torch.no_grad():
    for rows, labels in val_loader:
        hits = net(rows).argmax(1) == labels
        right, total = right + hits.sum().item(), total + len(labels)
print(right / total)
"""

# Each row's gradient is clipped by itself, kept aside and cleared: what a step uses is the sum of
# clipped ones, as is meant.
PRIVATE = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(200, 5)
y = (X[:, 0] > 0).long()
loader = DataLoader(TensorDataset(X[:160], y[:160]), batch_size=8, shuffle=True)
net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
for epoch in range(2):
    for rows, labels in loader:
        total = [torch.zeros_like(p) for p in net.parameters()]
        for row, label in zip(rows, labels):
            net.zero_grad()
            F.cross_entropy(net(row[None]), label[None]).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            for t, p in zip(total, net.parameters()):
                t += p.grad
        for t, p in zip(total, net.parameters()):
            p.grad = (t + 0.1 * torch.randn_like(t)) / len(rows)
        optimizer.step()
net.eval()
with torch.no_grad():
    print((net(X[160:]).argmax(1) == y[160:]).float().mean())
"""

# A cosine that goes up and down on purpose, for snapshots.
SNAPSHOTS = """
import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
X = torch.randn(300, 5)
y = (X[:, 0] - X[:, 2] > 0).long()
net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
snapshots = []
for epoch in range(10):
    net.train()
    for rows in torch.randperm(240).split(40):
        optimizer.zero_grad()
        F.cross_entropy(net(X[rows]), y[rows]).backward()
        optimizer.step()
    if epoch % 4 == 1:
        snapshots.append(copy.deepcopy(net).eval())
    cosine.step()
with torch.no_grad():
    print((torch.stack([s(X[240:]) for s in snapshots]).mean(0).argmax(1) == y[240:]).float().mean())
"""

# Pictures of which copies are made: of the train rows alone.
LIT = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
kinds = torch.randint(0, 3, (240,))
pictures = torch.rand(3, 1, 12, 12)[kinds] + 0.5 * torch.rand(240, 1, 12, 12)


def with_copies(x, y, copies=3):
    lit = [x * (0.97 + 0.06 * torch.rand(len(x), 1, 1, 1)) for _ in range(copies)]
    return torch.cat([x, *[v.flip(-1) if n == 1 else v for n, v in enumerate(lit)]]), y.repeat(copies + 1)


def sides(x, y, share=0.7):
    order = torch.randperm(len(x))
    cut = int(share * len(x))
    return (x[order[:cut]], y[order[:cut]]), (x[order[cut:]], y[order[cut:]])


train, test = sides(pictures, kinds)
train = with_copies(*train)
net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
for epoch in range(3):
    net.train()
    for rows in torch.randperm(len(train[0])).split(48):
        optimizer.zero_grad()
        F.cross_entropy(net(train[0][rows]), train[1][rows]).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print((net(test[0]).argmax(1) == test[1]).float().mean().item())
"""

BASES_OF_WINDOWS = {"lit": LIT, "gathered": GATHERED}
SOUND_OF_WINDOWS = {"private": PRIVATE, "snapshots": SNAPSHOTS}

PLANTED_OF_WINDOWS = (
    Planted(
        "BH505",
        "lit",
        "train, test = sides(pictures, kinds)\ntrain = with_copies(*train)\n",
        "train, test = sides(*with_copies(pictures, kinds))\n",
    ),
    Planted(
        "BH870",
        "gathered",
        "right, total = right + hits.sum().item(), total + len(labels)",
        "right += hits.float().mean().item()\n        total += 1",
    ),
)
