"""Programs under watch in which layers, optimizers and weights of classes are to be judged; and one
mistake at a time for each.
"""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

UNEVEN = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
X = torch.randn(500, 5)
y = (X[:, 0] > 0.5).long() + (X[:, 1] + X[:, 0] > 1.8).long()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 20), nn.Linear(20, 20), nn.Linear(20, 3)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        h = F.relu(self.first(x))
        h = self.drop(F.relu(self.second(h)))
        return self.head(h)


net = Net()
counts = y[:400].bincount(minlength=3).float()
criterion = nn.CrossEntropyLoss(weight=counts.sum() / (3 * counts))
optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.1, betas=(0.9, 0.99))
for epoch in range(6):
    net.train()
    for rows in torch.randperm(400).split(40):
        optimizer.zero_grad()
        loss = criterion(net(X[rows]), y[rows])
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
net.eval()
with torch.no_grad():
    print((net(X[400:]).argmax(1) == y[400:]).float().mean())
"""

RARE = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
X = torch.randn(400, 1, 8, 8)
y = (X[:, 0, :4].mean((1, 2)) > 0.2).float()
net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
weight = (1 - y[:320]).sum() / y[:320].sum()
for epoch in range(4):
    for rows in torch.randperm(320).split(32):
        loss = F.binary_cross_entropy_with_logits(net(X[rows]).squeeze(1), y[rows], pos_weight=weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

FACTORED = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
X = torch.randn(300, 1, 6, 6)
y = (X.mean((1, 2, 3)) > 0).long() + (X[:, 0, 0, 0] > 0.8).long()


class Frugal(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.point = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 1)
        self.depth, self.mix = nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 1)
        self.down, self.up = nn.Linear(128, 4), nn.Linear(4, 128)
        self.embed, self.head = nn.Linear(128, 16), nn.Linear(16, 3)

    def forward(self, x):
        h = F.relu(self.point(self.wide(x)))
        h = F.relu(self.mix(self.depth(h))).flatten(1)
        h = F.relu(self.up(self.down(h)))
        found = self.embed(F.dropout(h, 0.1, self.training))
        return found, self.head(found)


net = Frugal()
nn.init.zeros_(net.head.weight)
body = [p for n, p in net.named_parameters() if "head" not in n]
optimizer = torch.optim.Adam([{"params": body}, {"params": net.head.parameters(), "lr": 1e-4}], lr=2e-3, betas=(0.0, 0.9))
far = torch.tensor([0.2, 1.0, 0.0])
for epoch in range(5):
    for i, rows in enumerate(torch.randperm(240).split(30)):
        found, scores = net(X[rows])
        loss = F.cross_entropy(scores, y[rows], weight=far)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    optimizer.state.clear()
"""

TINY = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 4) * 3e4
y = x.sum(1) / 1e4
weight = nn.Parameter(torch.full((4,), 1e-5))
optimizer = torch.optim.SGD([weight], lr=3e-12)
for step in range(40):
    loss = ((x @ weight - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

TARGET = """
import copy
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
X = torch.randn(480, 8)


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 8))
        self.guess = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            wanted = self.target(x + 0.1 * torch.randn_like(x))
        return 2 - 2 * F.cosine_similarity(self.guess(self.online(x + 0.1 * torch.randn_like(x))), wanted).mean()

    @torch.no_grad()
    def follow(self):
        for mine, theirs in zip(self.target.parameters(), self.online.parameters()):
            mine.lerp_(theirs, 0.05)


net = Learner()
optimizer = torch.optim.Adam([*net.online.parameters(), *net.guess.parameters()], lr=2e-3)
for epoch in range(4):
    net.train()
    for rows in torch.randperm(480).split(40):
        loss = net(X[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        net.follow()
"""

SLOPES = """
import torch
from torch import nn

torch.manual_seed(0)


class Curve(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Dropout(0.0), nn.Linear(16, 1))

    def forward(self, t):
        return self.body(t)


def left(net, t):
    t = t.clone().requires_grad_(True)
    x = net(t)
    slope, = torch.autograd.grad(x, t, torch.ones_like(x), create_graph=True)
    return slope + x


def score(net):
    net.eval()
    t = torch.linspace(0, 2, 60).unsqueeze(1)
    found = net(t).detach()
    return (found - torch.exp(-t)).abs().mean().item(), left(net, t).detach().abs().mean().item()


net = Curve()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
start = torch.zeros(1, 1)
for step in range(60):
    net.train()
    t = torch.rand(64, 1) * 2
    loss = left(net, t).pow(2).mean() + (net(start) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(score(net))
"""

TURNS = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
X = torch.randn(400, 6)
group = (X[:, 0] > 0).float()
y = X[:, 1] + 0.5 * X[:, 2]
encoder = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
head, spy = nn.Linear(8, 1), nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
warm = torch.optim.Adam(head.parameters(), lr=1e-3)
for step in range(12):
    rows = torch.randint(320, (40,))
    warm.zero_grad()
    F.mse_loss(head(encoder(X[rows]).detach()).squeeze(1), y[rows]).backward()
    warm.step()
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=2e-3)
of_spy = torch.optim.Adam(spy.parameters(), lr=2e-3)
for step in range(60):
    rows = torch.randint(320, (40,))
    of_spy.zero_grad()
    F.binary_cross_entropy_with_logits(spy(encoder(X[rows]).detach()).squeeze(1), group[rows]).backward()
    of_spy.step()
    h = encoder(X[rows])
    fooled = F.binary_cross_entropy_with_logits(spy(h).squeeze(1), torch.full((40,), 0.5))
    optimizer.zero_grad()
    (F.mse_loss(head(h).squeeze(1), y[rows]) + 0.1 * fooled).backward()
    optimizer.step()
with torch.no_grad():
    print(F.mse_loss(head(encoder(X[320:])).squeeze(1), y[320:]))
"""

SAMPLING = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
X = torch.rand(400, 1) * 6 - 3
y = torch.sin(2 * X[:, 0]) + 0.1 * torch.randn(400)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(1, 32), nn.Linear(32, 1)

    def forward(self, x, sample=None):
        on = self.training if sample is None else sample
        h = F.dropout(torch.tanh(self.first(x)), 0.1, training=on)
        return self.second(h).squeeze(1)


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for step in range(60):
    rows = torch.randint(320, (40,))
    optimizer.zero_grad()
    F.mse_loss(net(X[rows]), y[rows]).backward()
    optimizer.step()
net.eval()
with torch.no_grad():
    draws = torch.stack([net(X[320:], sample=True) for _ in range(20)])
    print(F.mse_loss(draws.mean(0), y[320:]), draws.std(0).mean())
"""

BASES_OF_UPDATES = {"uneven": UNEVEN, "rare": RARE, "turns": TURNS}
SOUND_OF_UPDATES = {
    "factored": FACTORED,
    "tiny": TINY,
    "target": TARGET,
    "slopes": SLOPES,
    "sampling": SAMPLING,
}

PLANTED_OF_UPDATES = (
    Planted("BH837", "uneven", "return self.head(h)", "return self.drop(self.head(h))"),
    Planted(
        "BH837", "rare", "net(X[rows]).squeeze(1), y", "F.dropout(net(X[rows]), 0.2).squeeze(1), y"
    ),
    Planted("BH839", "uneven", "weight_decay=0.1", "weight_decay=10.0"),
    Planted("BH839", "rare", "weight_decay=1e-3", "weight_decay=1.5"),
    Planted("BH841", "uneven", "lr=5e-3", "lr=5e-9"),
    Planted("BH841", "uneven", "lr=5e-3", "lr=1e-7"),
    Planted(
        "BH841",
        "rare",
        "        optimizer.step()\n",
        "        nn.utils.clip_grad_norm_(net.parameters(), max_norm=1e-6)\n       "
        " optimizer.step()\n",
    ),
    Planted(
        "BH123",
        "uneven",
        "        optimizer.step()\n",
        "        optimizer.step()\n        optimizer.state.clear()\n",
    ),
    Planted(
        "BH123",
        "rare",
        "        optimizer.zero_grad()\n",
        "        optimizer.load_state_dict({**optimizer.state_dict(), 'state': {}})\n       "
        " optimizer.zero_grad()\n",
    ),
    Planted("BH421", "turns", "*head.parameters()]", "*head.parameters(), *spy.parameters()]"),
)
