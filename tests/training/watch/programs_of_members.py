"""Programs with teachers, ensembles, embeddings and groups of parameters."""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

# A teacher is trained, then a student learns from it.
TEACHER = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(300, 8)
y = x[:, :3].argmax(1)


def network(width):
    return nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 3))


def fit(net, objective, epochs=3):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    net.train()
    for epoch in range(epochs):
        for rows in torch.randperm(240).split(40):
            optimizer.zero_grad()
            objective(net(x[rows]), rows).backward()
            optimizer.step()


teacher, student = network(48), network(12)
fit(teacher, lambda logits, rows: F.cross_entropy(logits, y[rows]))
teacher.eval().requires_grad_(False)


def both(logits, rows):
    with torch.no_grad():
        soft = F.softmax(teacher(x[rows]) / 2, dim=1)
    return F.kl_div(F.log_softmax(logits / 2, dim=1), soft, reduction="batchmean") * 4 + F.cross_entropy(logits, y[rows])


fit(student, both)
student.eval()
with torch.no_grad():
    print((student(x[240:]).argmax(1) == y[240:]).float().mean().item())
"""

# The mean of several networks, each trained from a seed of its own.
ENSEMBLE = """
import torch
from torch import nn
from torch.nn import functional as F

g = torch.Generator().manual_seed(1)
x = torch.randn(300, 6, generator=g)
y = (x[:, 0] * x[:, 1] > 0).long()


def member(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for epoch in range(3):
        for rows in torch.randperm(240).split(40):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    return net.eval()


members = [member(seed) for seed in range(4)]
with torch.no_grad():
    mean = torch.stack([net(x[240:]).softmax(1) for net in members]).mean(0)
print((mean.argmax(1) == y[240:]).float().mean().item())
"""

# Users and items by number, each with a row of an embedding; attention over the items that a user
# has seen before.
FACTORS = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
user, item = torch.randint(0, 20, (800,)), torch.randint(0, 30, (800,))
seen = torch.randint(0, 30, (800, 5))
a, b = torch.randn(20, 3), torch.randn(30, 3)
rating = (a[user] * b[item]).sum(1) + 0.3 * b[seen].sum((1, 2))


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items, self.score = nn.Embedding(20, 8), nn.Embedding(30, 8), nn.Linear(8, 1)
        self.out = nn.Linear(8, 1)

    def forward(self, user, item, seen):
        before = self.items(seen)
        weights = torch.softmax(self.score(before), dim=1)
        h = (weights * before).sum(1) + self.users(user) * self.items(item)
        return self.out(h).squeeze(1)


net = Factors()
groups = [{"params": [net.users.weight, net.items.weight], "weight_decay": 1e-4}, {"params": [*net.score.parameters(), *net.out.parameters()]}]
optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0)
for epoch in range(5):
    for at, rows in enumerate(torch.randperm(640).split(64)):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * min(1.0, (epoch * 10 + at + 1) / 20)
        optimizer.zero_grad()
        F.mse_loss(net(user[rows], item[rows], seen[rows]), rating[rows]).backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    print((net(user[640:], item[640:], seen[640:]) - rating[640:]).abs().mean().item())
"""

# Sound: an average of the weights gives targets in train mode, as in mean teacher; one group's rate
# is left to a scheduler.
MEAN_TEACHER = """
import copy
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(320, 8)
y = x[:, :3].argmax(1)
student = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.SGD([{"params": student[0].parameters()}, {"params": student[3].parameters(), "lr": 0.05}], lr=0.1)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 0.98**step, lambda step: 1.0])
for epoch in range(4):
    student.train()
    teacher.train()
    for rows in torch.randperm(240).split(40):
        with torch.no_grad():
            target = teacher(x[rows] + 0.1 * torch.randn(len(rows), 8)).softmax(1)
        logits = student(x[rows])
        loss = F.cross_entropy(logits, y[rows]) + (logits.softmax(1) - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for slow, quick in zip(teacher.parameters(), student.parameters()):
                slow.lerp_(quick, 0.05)
teacher.eval()
with torch.no_grad():
    print((teacher(x[240:]).argmax(1) == y[240:]).float().mean().item())
"""

# Sound: sentences are padded with 0, whose row stays 0, and attention reads one place where a
# sentence has one.
SENTENCES = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
lengths = torch.randint(1, 9, (320,))
words = torch.randint(1, 30, (320, 8)) * (torch.arange(8) < lengths[:, None])
y = (words[:, 0] > 15).long()


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.score, self.out = nn.Embedding(30, 12, padding_idx=0), nn.Linear(12, 1), nn.Linear(12, 2)

    def forward(self, words):
        h = self.words(words)
        scores = self.score(h).squeeze(2).masked_fill(words == 0, -1e9)
        return self.out((torch.softmax(scores, dim=1)[:, :, None] * h).sum(1))


net = Reader()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for epoch in range(4):
    for rows in torch.randperm(240).split(30):
        longest = int(lengths[rows].max())
        optimizer.zero_grad()
        F.cross_entropy(net(words[rows, :longest]), y[rows]).backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    print((net(words[240:]).argmax(1) == y[240:]).float().mean().item())
"""

BASES_OF_MEMBERS = {"distilled": TEACHER, "ensemble": ENSEMBLE, "factors": FACTORS}
SOUND_OF_MEMBERS = {"mean teacher": MEAN_TEACHER, "sentences": SENTENCES}

PLANTED_OF_MEMBERS = (
    Planted(
        "BH882",
        "distilled",
        "teacher.eval().requires_grad_(False)",
        "teacher.requires_grad_(False)",
    ),
    Planted("BH882", "distilled", "teacher.eval().requires_grad_(False)", ""),
    Planted("BH883", "factors", "nn.Embedding(20, 8)", "nn.Embedding(20, 8, padding_idx=0)"),
    Planted("BH884", "factors", "self.score(before), dim=1", "self.score(before), dim=-1"),
    Planted(
        "BH881",
        "factors",
        'for group in optimizer.param_groups:\n            group["lr"] =',
        'if optimizer:\n            optimizer.param_groups[0]["lr"] =',
    ),
    Planted(
        "BH881",
        "factors",
        'group["lr"] = 0.01',
        'group["lr"] = (0.01 if group["weight_decay"] else 0.0)',
    ),
)
