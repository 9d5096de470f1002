"""Programs under watch with losses of their own, horizons and negatives; and one mistake at a time
for each.
"""

from __future__ import annotations

import textwrap

from tests.training.watch.programs_of_parts import Planted

OVERLAP = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
middle = torch.randint(3, 9, (160, 2, 1, 1))
grid = torch.arange(12)
marked = (((grid[None, :, None] - middle[:, 0]) ** 2 + (grid[None, None, :] - middle[:, 1]) ** 2) < 9).long()
pictures = marked[:, None] + 0.6 * torch.randn(160, 1, 12, 12)


class Margin(nn.Module):
    def __init__(self, width=1.0):
        super().__init__()
        self.width = width

    def forward(self, scores, truth):
        signs = 2.0 * truth - 1.0
        return F.relu(self.width - signs * scores).mean()


class MarginLoss(Margin):
    pass


def overlap_loss(scores, truth, slack=1.0):
    likely = scores.softmax(1)[:, 1]
    truth = truth.float()
    both = 2 * (likely * truth).sum((1, 2)) + slack
    return 1 - (both / (likely.sum((1, 2)) + truth.sum((1, 2)) + slack)).mean()


def focal_loss(scores, truth):
    log_p = F.log_softmax(scores, 1).gather(1, truth[:, None]).squeeze(1)
    return -((1 - log_p.exp()) ** 2 * log_p).mean()


def pair_loss(positive, negative):
    return F.softplus(negative - positive).mean()


def confusion_loss(scores, truth):
    return F.cross_entropy(scores, 1 - truth)


def spread_loss(distance, same):
    return (same * distance.square() + (1 - same) * F.relu(2 - distance).square()).mean()


net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1))
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
margin = MarginLoss()
for epoch in range(3):
    net.train()
    for rows in torch.randperm(120).split(24):
        scores, truth = net(pictures[rows]), marked[rows]
        inside, outside = scores[:, 1][truth == 1][:200], scores[:, 1][truth == 0][:200]
        distance = (scores[:, 0, 0] - scores[:, 1, 0]).abs()
        same = (truth[:, 0] == 0).float()
        shown = confusion_loss(scores.detach(), truth).item()
        loss = focal_loss(scores, truth) + 0.5 * overlap_loss(scores, truth) + 0.1 * margin(scores[:, 1], truth.float())
        loss = loss + 0.1 * pair_loss(inside, outside) + 0.001 * spread_loss(distance, same) - 0.001 * confusion_loss(scores, truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    found = net(pictures[120:]).argmax(1)
    print((found & marked[120:]).sum() / (found | marked[120:]).sum(), overlap_loss(net(pictures[120:]), marked[120:]))
"""

HORIZON = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
series = torch.sin(torch.arange(700) / 5.0) + 0.2 * torch.randn(700)
past = torch.stack([series[t - 20 : t] for t in range(20, 694)])
future = torch.stack([series[t : t + 6] for t in range(20, 694)])
net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 6))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
for epoch in range(5):
    net.train()
    for rows in torch.randperm(480).split(60):
        loss = F.huber_loss(net(past[rows]), future[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        error = F.l1_loss(net(past[500:580]), future[500:580]).item()
    plateau.step(error)
with torch.no_grad():
    print(F.l1_loss(net(past[600:]), future[600:]))
"""

NEGATIVES = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
taste, kind = torch.randn(60, 3), torch.randn(40, 3)
liked = (taste @ kind.T).topk(8).indices
pairs = torch.stack([torch.arange(60).repeat_interleave(8), liked.flatten()], 1)[torch.randperm(480)]


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item, self.level = nn.Embedding(60, 8), nn.Embedding(40, 8), nn.Embedding(40, 1)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, users, items):
        return (self.user(users) * self.item(items)).sum(1) + self.level(items).squeeze(1)


def others(users):
    return torch.randint(0, 40, users.shape)


def shown(net):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return net(torch.arange(60), others(torch.arange(60)))


net = Factors()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(5):
    net.train()
    for rows in torch.randperm(400).split(50):
        users, items = pairs[rows].unbind(1)
        loss = -F.logsigmoid(net(users, items) - net(users, others(users))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        shown(net)
        print((net(*pairs[400:].T) > net(pairs[400:, 0], others(pairs[400:, 0]))).float().mean())
"""

START, TRAINING = NEGATIVES[: (begin := NEGATIVES.index("net = Factors()"))], NEGATIVES[begin:]
TAGS = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
rows = torch.randn(300, 6)
tags = (rows[:, :4] + 0.3 * torch.randn(300, 4) > 0).float()
net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(4):
    for at in torch.randperm(240).split(24):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(net(rows[at]), tags[at]).backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    print(((net(rows[240:]) > 0) == tags[240:].bool()).float().mean().item())
"""

BASES_OF_LOSSES = {"overlap": OVERLAP, "horizon": HORIZON, "negatives": NEGATIVES, "tags": TAGS}
SOUND_OF_LOSSES = {
    # a sequence of labels as long as the inputs, one ahead; and six trainings that are seeded alike
    "ahead": (
        HORIZON.replace("series[t : t + 6]", "series[t - 19 : t + 1]").replace(
            "nn.Linear(32, 6)", "nn.Linear(32, 20)"
        )
    ),
    # folds that are drawn alike on purpose, and trained on once each
    "seeded_folds": TAGS.replace(
        "for epoch in range(4):\n",
        "for epoch in range(4):\n    held = torch.randperm(300,"
        " generator=torch.Generator().manual_seed(1))[:20]\n",
    ),
    # what was bought is what is to be found again, as a distribution over all items
    "baskets": (
        TAGS.replace("nn.Linear(6, 24)", "nn.Linear(4, 24)")
        .replace("binary_cross_entropy_with_logits(net(rows[at])", "cross_entropy(net(tags[at])")
        .replace("net(rows[240:])", "net(tags[240:])")
    ),
    "trainings": (
        START + "for _ in range(6):\n    torch.manual_seed(0)\n" + textwrap.indent(TRAINING, "    ")
    ),
}
PLANTED_OF_LOSSES = (
    Planted("BH861", "overlap", "return 1 - (both", "return (both"),
    Planted("BH861", "overlap", "scores.softmax(1)[:, 1]", "scores.softmax(1)[:, 0]"),
    Planted("BH861", "overlap", "return -((1 - log_p.exp())", "return ((1 - log_p.exp())"),
    Planted("BH861", "overlap", "self.width - signs * scores", "self.width + signs * scores"),
    Planted(
        "BH862", "overlap", "likely = scores.softmax(1)[:, 1]", "likely = scores.argmax(1).float()"
    ),
    Planted(
        "BH862",
        "overlap",
        "0.5 * overlap_loss(scores, truth)",
        "0.5 * overlap_loss(scores.detach(), truth)",
    ),
    Planted("BH413", "overlap", "scores.softmax(1)[:, 1]", "scores.softmax(0)[:, 1]"),
    Planted("BH119", "horizon", "plateau.step(error)", "plateau.step(epoch)"),
    Planted(
        "BH822",
        "tags",
        "torch.randperm(240)",
        "torch.randperm(240, generator=torch.Generator().manual_seed(1))",
    ),
    Planted(
        "BH859",
        "negatives",
        "    return torch.randint",
        "    torch.manual_seed(1)\n    return torch.randint",
    ),
)
