"""Programs under watch that learn from pairs of rows; and one mistake at a time for each."""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

VIEWS = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
waves = torch.sin(torch.arange(48) * (0.2 + 0.6 * torch.rand(480, 1)))
net = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 12))
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)


def view(rows):
    return rows * (0.7 + 0.6 * torch.rand(len(rows), 1)) + 0.2 * torch.randn_like(rows)


def alike(first, second):
    both = F.normalize(torch.cat([first, second]), dim=1)
    scores = both @ both.T / 0.3
    scores = scores.masked_fill(torch.eye(len(both), dtype=torch.bool), -1e9)
    return scores, torch.arange(len(both)).roll(len(first))


for epoch in range(4):
    for rows in torch.randperm(480).split(40):
        scores, partner = alike(net(view(waves[rows])), net(view(waves[rows])))
        loss = F.cross_entropy(scores, partner)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
"""

MASKED = "    scores = scores.masked_fill(torch.eye(len(both), dtype=torch.bool), -1e9)\n"
ACROSS = (
    "    return F.normalize(first, dim=1) @ F.normalize(second, dim=1).T / 0.3,"
    " torch.arange(len(first))\n"
)

# Pairs that are alike, or not: 1 and -1.
SIGNED = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
kinds = torch.randint(0, 6, (500,))
x = torch.randn(6, 10)[kinds] + 0.5 * torch.randn(500, 10)
other = torch.where(torch.rand(500) < 0.5, torch.arange(500), torch.cat([torch.randperm(400), 400 + torch.randperm(100)]))
alike = (kinds == kinds[other]).float() * 2 - 1
y = x + 0.1 * torch.randn_like(x)
net = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 8))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(5):
    for rows in torch.randperm(400).split(40):
        optimizer.zero_grad()
        F.cosine_embedding_loss(net(x[rows]), net(y[other[rows]]), alike[rows], margin=0.2).backward()
        optimizer.step()
    with torch.no_grad():
        print(F.cosine_similarity(net(x[400:]), net(y[other[400:]])).mul(alike[400:]).mean().item())
"""
BASES_OF_PAIRS = {"signed": SIGNED, "views": VIEWS}
SOUND_OF_PAIRS = {"views_across": VIEWS.replace("    both = F", ACROSS + "    both = F")}

PLANTED_OF_PAIRS = (Planted("BH888", "signed", ".float() * 2 - 1", ".float()"),)
