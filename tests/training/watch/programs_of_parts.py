"""More programs under watch: attention, recurrence, likelihoods, pictures, prepared tables; and one
mistake at a time for each.
"""

from __future__ import annotations

from typing import NamedTuple


class Planted(NamedTuple):
    """A mistake: the rule that names it, the base, and what is put in place of what."""

    rule: str
    base: str
    old: str
    new: str


HEADS = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
X = torch.randn(240, 6, 12)
y = (X[:, 0, 0] > X[:, 1, 0]).long()


class Mixer(nn.Module):
    def __init__(self, heads=3):
        super().__init__()
        self.heads = heads
        self.asks, self.keys, self.values, self.join = (nn.Linear(12, 12) for _ in range(4))
        self.head = nn.Linear(12, 2)

    def parts(self, x):
        return x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)

    def forward(self, x):
        q, k, v = (self.parts(layer(x)) for layer in (self.asks, self.keys, self.values))
        mixed = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
        mixed = mixed.transpose(1, 2).reshape(x.shape)
        return self.head(self.join(mixed).mean(1))


net = Mixer()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(4):
    for rows in torch.randperm(200).split(20):
        log_p = net(X[rows]).log_softmax(1).gather(1, y[rows, None])
        p = log_p.exp()
        loss = -((1 - p) ** 2 * log_p).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    print((net(X[200:]).argmax(1) == y[200:]).float().mean())
"""

STATES = """
import copy
import torch
from torch import nn

torch.manual_seed(0)
signal = torch.sin(torch.arange(2000) * 0.37) + 0.1 * torch.randn(2000)
streams = signal.view(8, 250)


class Watcher(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(1, 12)
        self.mean, self.spread = nn.Linear(12, 1), nn.Linear(12, 1)

    def forward(self, window, state):
        for t in range(window.shape[1]):
            state = self.cell(window[:, t, None], state)
        return self.mean(state[0]), nn.functional.softplus(self.spread(state[0])) + 1e-3, state


net = Watcher()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=3)
nll = nn.GaussianNLLLoss()
best, least = None, float("inf")
for epoch in range(6):
    state = (torch.zeros(8, 12), torch.zeros(8, 12))
    total = 0.0
    for start in range(0, 240, 8):
        state = tuple(part.detach() for part in state)
        mean, std, state = net(streams[:, start : start + 8], state)
        loss = nll(mean, streams[:, start + 8, None], std.square())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    schedule.step()
    if total < least:
        best, least = copy.deepcopy(net.state_dict()), total
net.load_state_dict(best)
"""

PICTURES = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def run():
    torch.manual_seed(0)
    shades = torch.randint(0, 17, (300, 1, 6, 6))
    shades[:, 0, 0] = (shades[:, 0, 0] // 6).clamp(max=15)
    pictures = (shades * 15).to(torch.uint8)
    label = (shades[:, 0, 2:4, 2:4].float().mean((1, 2)) > 8).long()
    order = torch.randperm(300)
    train, test = order[:120], order[120:]
    middle = pictures[train].float().mean(0)
    x = (pictures - middle) / 240
    body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten())
    head = nn.Sequential(nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=2e-3)
    best = None
    for epoch in range(5):
        for rows, y in DataLoader(TensorDataset(x[train], label[train]), 20, shuffle=True):
            body.zero_grad()
            head.zero_grad()
            nn.functional.cross_entropy(head(body(rows)), y).backward()
            optimizer.step()
        body.eval(), head.eval()
        with torch.no_grad():
            right = (head(body(x[test])).argmax(1) == label[test]).sum()
        body.train(), head.train()
        best = [{k: v.clone() for k, v in part.state_dict().items()} for part in (body, head)]
    body.load_state_dict(best[0])
    head.load_state_dict(best[1])
    print(right)


run()
"""

PREPARED = """
import numpy as np
import torch
from sklearn.feature_selection import SelectKBest, f_regression
from torch import nn

rng = np.random.default_rng(0)
torch.manual_seed(0)
table = rng.random((260, 30))
price = table[:, 3] * 2 + 0.1 * rng.normal(size=260)
known, hidden = np.split(rng.permutation(260), [190])
chosen = SelectKBest(f_regression, k=5).fit(table[known], price[known])
picked = chosen.transform(table)
low, high = picked[known].min(0), picked[known].max(0)
x, y = torch.tensor((picked - low) / (high - low)).float(), torch.tensor(price).float()
net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(8):
    for rows in torch.tensor(known)[torch.randperm(190)].split(19):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[rows]).squeeze(1), y[rows]).backward()
        optimizer.step()
with torch.no_grad():
    print(nn.functional.mse_loss(net(x[hidden]).squeeze(1), y[hidden]))
"""

CHANCE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
strokes = (torch.rand(900, 2, 5) < 0.2).float()
x = torch.cat([strokes.amax(1), strokes.flatten(1)], 1)
order = torch.randperm(900)
train, test = order[:600], order[600:]
coder = nn.Sequential(nn.Linear(15, 8), nn.ReLU(), nn.Linear(8, 15))
optimizer = torch.optim.Adam(coder.parameters(), lr=5e-3)
for epoch in range(4):
    for (rows,) in DataLoader(TensorDataset(x[train]), 40, shuffle=True):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(coder(rows), rows).backward()
        optimizer.step()
    with torch.no_grad():
        print(nn.functional.binary_cross_entropy_with_logits(coder(x[test]), x[test]))
"""

WINDOWS = """
import math
import torch
from torch import nn

torch.manual_seed(0)
X = torch.randn(320, 4)
y = X @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + 0.1 * torch.randn(320)
epochs, window, batches = 4, 4, 20


def falling(total, windows=1):
    def factor(step):
        return 0.5 * (1 + math.cos(math.pi * min(1.0, step * windows / total)))

    return factor


net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, falling(epochs * batches // window))
for epoch in range(epochs):
    for i, rows in enumerate(torch.randperm(320).split(16)):
        (nn.functional.mse_loss(net(X[rows]).squeeze(1), y[rows]) / window).backward()
        if (i + 1) % window == 0:
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
"""

DUEL = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
painter = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 2))
expert = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 1))
of_painter, of_expert = torch.optim.Adam(painter.parameters(), lr=1e-3), torch.optim.Adam(expert.parameters(), lr=1e-3)


def guilt(works, true):
    return F.binary_cross_entropy_with_logits(expert(works), torch.full((len(works), 1), true))


for step in range(30):
    of_painter.zero_grad()
    of_expert.zero_grad()
    guilt(painter(torch.randn(24, 3)).detach(), 0.0).backward()
    guilt(torch.randn(24, 2) + 3, 1.0).backward()
    of_expert.step()
    guilt(painter(torch.randn(24, 3)), 1.0).backward()
    of_painter.step()
"""

SHARED = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
X = torch.randn(480, 5)
y = torch.stack([X[:, 0] + X[:, 1], X[:, 2] - X[:, 0]], 1)
body, left, right = nn.Sequential(nn.Linear(5, 12), nn.Tanh()), nn.Linear(12, 1), nn.Linear(12, 1)
of_body, of_left, of_right = (torch.optim.SGD(part.parameters(), lr=0.02) for part in (body, left, right))
for epoch in range(3):
    for i, rows in enumerate(torch.randperm(480).split(24)):
        for k, (head, optimizer) in enumerate(((left, of_left), (right, of_right))):
            optimizer.zero_grad()
            (F.mse_loss(head(body(X[rows])).squeeze(1), y[rows, k]) / 2).backward()
            optimizer.step()
        if i % 2:
            of_body.step()
            of_body.zero_grad()
"""

COLLECTED = """
import numpy as np
import torch
from sklearn.metrics import f1_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(360, 4)
y = (X[:, 0] > 0.3).long() + (X[:, 1] > 0.5).long()
known, hidden = TensorDataset(X[:240], y[:240]), TensorDataset(X[240:], y[240:])
kinds = np.bincount(known.tensors[1].numpy())
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(4):
    for x, label in DataLoader(known, 24, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), label).backward()
        optimizer.step()
net.eval()


def predicted(loader):
    with torch.no_grad():
        both = [(net(x).argmax(1), label) for x, label in loader]
    return (torch.cat(part) for part in zip(*both))


kinds_hidden = np.bincount(hidden.tensors[1].numpy())
answers, labels = predicted(DataLoader(hidden, 50, shuffle=True))
print((answers == labels).float().mean(), np.mean(answers.numpy() == labels.numpy()), f1_score(labels, answers, average='macro'))
print(np.bincount(hidden.tensors[1].numpy()), kinds, kinds_hidden)
with torch.no_grad():
    wrong = sum(nn.functional.cross_entropy(net(x), label, reduction="sum") for x, label in DataLoader(hidden, 50, shuffle=True))
    print(wrong, (net(hidden.tensors[0]).argmax(1) == hidden.tensors[1]).float().mean())
"""

# rows that are numbered, and rows whose labels nobody asks for
NUMBERED = COLLECTED.replace(
    "TensorDataset(X[240:], y[240:])", "TensorDataset(X[240:], torch.arange(120), y[240:])"
).replace("tensors[1].numpy()", "tensors[-1].numpy()")
NUMBERED = (
    NUMBERED[: NUMBERED.index("def predicted")]
    + """
places = torch.empty(120, dtype=torch.long)
with torch.no_grad():
    for x, rows, _ in DataLoader(hidden, 50, shuffle=True):
        places[rows] = net(x).argmax(1)
print((places == hidden.tensors[2]).float().mean(), np.mean(places.numpy() == hidden.tensors[2].numpy()))
"""
)
UNLABELLED = (
    COLLECTED[: COLLECTED.index("def predicted")]
    + """
with torch.no_grad():
    sure = torch.cat([net(x).softmax(1).amax(1) for x, _ in DataLoader(hidden, 50, shuffle=True)])
print(sure.mean(), sure.median(), kinds)
"""
)
UNDONE = DUEL.replace(").detach(), 0.0)", "), 0.0)").replace(
    "    of_expert.step()\n", "    of_expert.step()\n    of_painter.zero_grad()\n"
)
LEVELS = PICTURES.replace("x = (pictures - middle) / 240", "x = pictures / 240")
SHORT = STATES.replace(
    "start_factor=0.1, total_iters=3", "start_factor=0.1, total_iters=24"
).replace("range(6)", "range(4)")
COUNTED = WINDOWS.replace(
    "falling(epochs * batches // window)", "falling(epochs * batches, window)"
)

BASES_OF_PARTS = {
    "heads": HEADS,
    "states": STATES,
    "pictures": PICTURES,
    "prepared": PREPARED,
    "chance": CHANCE,
    "windows": WINDOWS,
    "duel": DUEL,
    "collected": COLLECTED,
}
SOUND_OF_PARTS = {
    "levels": LEVELS,
    "short": SHORT,
    "counted": COUNTED,
    "shared": SHARED,
    "undone": UNDONE,
    "numbered": NUMBERED,
    "unlabelled": UNLABELLED,
}

PLANTED_OF_PARTS = (
    Planted(
        "BH411",
        "heads",
        "x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)",
        "x.view(x.size(0), self.heads, x.size(1), -1)",
    ),
    Planted("BH411", "heads", "mixed.transpose(1, 2).reshape(x.shape)", "mixed.reshape(x.shape)"),
    Planted("BH114", "states", "total_iters=3", "total_iters=60"),
    Planted("BH422", "pictures", "[*body.parameters(), *head.parameters()]", "head.parameters()"),
    Planted("BH831", "pictures", "lr=2e-3", "lr=0.9"),
    Planted("BH501", "prepared", ".fit(table[known], price[known])", ".fit(table, price)"),
    Planted(
        "BH832",
        "collected",
        "(answers == labels).float()",
        "(answers == hidden.tensors[1]).float()",
    ),
    Planted(
        "BH832",
        "collected",
        "(answers == labels).float()",
        "(hidden.tensors[1] - answers).abs().float()",
    ),
    Planted(
        "BH832",
        "collected",
        "f1_score(labels, answers",
        "f1_score(y_true=y[240:].numpy(), y_pred=answers.numpy()",
    ),
    Planted(
        "BH832",
        "collected",
        "(answers == labels).float()",
        "(answers == torch.cat([label for _, label in DataLoader(hidden, 50,"
        " shuffle=True)])).float()",
    ),
    Planted("BH803", "chance", "order[600:]", "torch.randperm(900)[:300]"),
    Planted(
        "BH503",
        "prepared",
        "picked[known].min(0), picked[known].max(0)",
        "picked.min(0), picked.max(0)",
    ),
)
