"""Programs under watch of which data sets, copies, scales, labels and tables are to be judged; and
one mistake at a time for each.
"""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

PANEL = """
import copy
import math
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

torch.manual_seed(0)
values, site = torch.randn(700, 5), torch.randint(0, 4, (700,))
sick = ((values[:, 0] + 0.5 * (site == 2) + 0.5 * torch.randn(700)) > 0.9).float()
order = torch.randperm(700)
mine, theirs = order[:480], order[480:]


class Visits(Dataset):
    def __init__(self, rows, jitter=0.0):
        self.values, self.site, self.sick, self.jitter = values[rows], site[rows], sick[rows], jitter

    def __len__(self):
        return len(self.sick)

    def __getitem__(self, i):
        return self.values[i] + self.jitter * torch.randn(5), self.site[i], self.sick[i]


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = nn.Embedding(4, 3)
        self.body = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU())
        self.head = nn.Linear(24, 1)

    def forward(self, x, where):
        return self.head(self.body(torch.cat([x, self.places(where)], 1))).squeeze(1)


def curve(step):
    if step < 10:
        return (step + 1) / 10
    return 0.05 + 0.95 * (1 + math.cos(math.pi * (step - 10) / 80)) / 2


@torch.no_grad()
def follow(average, net):
    for a, b in zip(average.parameters(), net.parameters()):
        a.mul_(0.9).add_(b, alpha=0.1)
    for a, b in zip(average.buffers(), net.buffers()):
        a.copy_(b)


@torch.no_grad()
def table_of(net, rows):
    net.eval()
    table = torch.zeros(2, 2, dtype=torch.int64)
    for x, where, label in DataLoader(rows, batch_size=60):
        guess = (net(x, where) > 0).long()
        table += torch.bincount(label.long() * 2 + guess, minlength=4).reshape(2, 2)
    return table


train, held_out = Visits(mine, jitter=0.05), Visits(theirs)
loader = DataLoader(train, batch_size=32, shuffle=True)
net = Scorer()
average = copy.deepcopy(net)
weight = (1 - train.sick).sum() / train.sick.sum()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, curve)
for epoch in range(6):
    net.train()
    for x, where, label in loader:
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(net(x, where), label, pos_weight=weight).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        follow(average, net)
    print(table_of(average, held_out))
"""

SCANS = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
scans = torch.rand(360, 1, 8, 8) * 0.6
kind = torch.randint(0, 4, (360,))
scans[torch.arange(360), 0, kind * 2] += 0.4
scans = (scans - 0.35) / 0.2


class Reader(nn.Module):
    def __init__(self, momentum=0.1):
        super().__init__()
        self.look, self.norm, self.head = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8, momentum=momentum), nn.Linear(48, 4)

    def forward(self, x):
        return self.head(F.relu(self.norm(self.look(x))).mean(3).flatten(1))


def count(net, loader):
    net.eval()
    table = torch.zeros(4, 4, dtype=torch.int64)
    with torch.no_grad():
        for x, label in loader:
            best = net(x).argmax(1)
            table.index_put_((label, best), torch.ones_like(label), accumulate=True)
    return table


train, held_out = TensorDataset(scans[:280], kind[:280]), TensorDataset(scans[280:], kind[280:])
net = Reader()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(5):
    net.train()
    for x, label in DataLoader(train, batch_size=20, shuffle=True):
        loss = F.cross_entropy(net(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(count(net, DataLoader(held_out, batch_size=40)))
"""

TALK = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
text = torch.randint(1, 4, (1600,)).cumsum(0) % 17


def draw():
    at = torch.randint(0, 1580, (8,))
    return torch.stack([text[i : i + 12] for i in at]), torch.stack([text[i + 1 : i + 13] for i in at])


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.where = nn.Embedding(17, 24), nn.Embedding(12, 24)
        self.cell = nn.GRU(24, 24)
        self.head = nn.Linear(24, 17)

    def forward(self, words):
        h = self.words(words) + self.where(torch.arange(words.shape[1]))
        return self.head(self.cell(h.transpose(0, 1))[0].transpose(0, 1))


net = Speaker()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for step in range(60):
    words, following = draw()
    scores = net(words)
    loss = F.cross_entropy(scores.reshape(-1, 17), following.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

BASELINE = SCANS + "\nprint(count(Reader(), DataLoader(held_out, batch_size=40)))\n"
ALL_ROWS = (
    SCANS
    + "\nprint(count(net, DataLoader(TensorDataset(scans, kind), batch_size=40)))\nprint(count(net,"
    " DataLoader(train, batch_size=40)))\n"
)
FOLDS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
X = torch.randn(300, 4)
rows, order = TensorDataset(X, X.sum(1)), torch.randperm(300)
for fold in range(3):
    held = order[fold * 100 : fold * 100 + 100].tolist()
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for epoch in range(3):
        for x, y in DataLoader(Subset(rows, [i for i in range(300) if i not in held]), 20, shuffle=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x).squeeze(1), y).backward()
            optimizer.step()
    with torch.no_grad():
        print(sum(float(((net(x).squeeze(1) - y) ** 2).sum()) for x, y in DataLoader(Subset(rows, held), 50)))
print(float(((net(X).squeeze(1) - X.sum(1)) ** 2).mean()))
"""
NOVELTY = """
import torch
from torch import nn

torch.manual_seed(0)
states = torch.randn(400, 6)
make = lambda: nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 8))
still, guess = make(), make()
optimizer = torch.optim.Adam(guess.parameters(), lr=1e-2)
for step in range(80):
    x = states[torch.randint(0, 300, (32,))]
    with torch.no_grad():
        wanted = still(x)
    loss = ((guess(x) - wanted) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
links = torch.zeros(20, 20)
a, b = torch.randint(0, 20, (90,)), torch.randint(0, 20, (90,))
links[a, b] = 1.0
left = torch.rand(40)
print((left - left.long()).sum(), links.sum())
"""
MASKED = TALK.replace(
    "    words, following = draw()\n",
    "    words, _ = draw()\n    words = words + 1\n    hidden = torch.rand(words.shape) < 0.4\n   "
    " following = words * hidden\n    words = words.masked_fill(hidden, 18)\n",
)
MASKED = (
    MASKED.replace("nn.Embedding(17, 24)", "nn.Embedding(19, 24)")
    .replace("nn.Linear(24, 17)", "nn.Linear(24, 19)")
    .replace("(-1, 17)", "(-1, 19)")
)
MASKED = MASKED.replace("following.view(-1))", "following.view(-1), ignore_index=0)")
TWO_HEADS = (
    TALK.replace("nn.Linear(24, 17)", "nn.Linear(24, 34)")
    .replace(
        "scores.reshape(-1, 17), following.view(-1))",
        "scores[:, :-1, 17:].reshape(-1, 17), following[:, 1:].reshape(-1))",
    )
    .replace(
        "    optimizer.zero_grad()\n",
        "    loss = loss + F.cross_entropy(scores[..., :17].reshape(-1, 17), following.view(-1))\n "
        "   optimizer.zero_grad()\n",
    )
)
AVERAGED = (
    SCANS.replace(
        "optimizer = ", "average = torch.optim.swa_utils.AveragedModel(net)\noptimizer = "
    )
    .replace(
        "        optimizer.step()\n",
        "        optimizer.step()\n        average.update_parameters(net)\n",
    )
    .replace(
        "    print(count(net,",
        "    torch.optim.swa_utils.update_bn(DataLoader(train, batch_size=40), average)\n   "
        " print(count(average,",
    )
)
UNKNOWN = PANEL.replace(
    "label, pos_weight=weight)", "label - (where == 3) * 3, weight=(where != 3).float())"
)
SAMPLED = PANEL.replace("pos_weight=weight", "pos_weight=torch.ones(1)").replace(
    "batch_size=32, shuffle=True",
    "batch_size=32, sampler=WeightedRandomSampler(1 + 3 * train.sick, len(train))",
)
NOISY_ROWS = SCANS.replace(
    "self.norm(self.look(x))", "self.norm(self.look(x)) + 0.1 * torch.randn(len(x), 8, 1, 1)"
)

SEEN = "F.relu(self.norm(self.look(x)))"
LISTED = SCANS.replace(
    f"{SEEN}.mean(3)",
    f"{SEEN}.permute(0, 2, 3, 1).reshape(len(x), 36, 8).unflatten(1, (6, 6)).mean(2)",
)

BASES_OF_DATA = {"panel": PANEL, "scans": SCANS, "talk": TALK}
SOUND_OF_DATA = {
    "baseline": BASELINE,
    "all_rows": ALL_ROWS,
    "folds": FOLDS,
    "novelty": NOVELTY,
    "masked": MASKED,
    "two_heads": TWO_HEADS,
    "averaged": AVERAGED,
    "unknown": UNKNOWN,
    "sampled": SAMPLED,
    "noisy_rows": NOISY_ROWS,
    "listed": LISTED,
}

FED = "F.cross_entropy(scores.reshape(-1, 17), following.view(-1))"
PLANTED_OF_DATA = (
    Planted(
        "BH803",
        "scans",
        "held_out = TensorDataset(scans[:280], kind[:280]), TensorDataset(scans[280:], kind[280:])",
        "held_out = torch.utils.data.Subset(TensorDataset(scans, kind), range(280)),"
        " torch.utils.data.Subset(TensorDataset(scans, kind), range(250, 360))",
    ),
    Planted("BH844", "panel", "        follow(average, net)\n", ""),
    Planted(
        "BH844",
        "panel",
        "    print(table_of(average, held_out))\n",
        "print(table_of(Scorer(), held_out))\n",
    ),
    Planted(
        "BH844",
        "scans",
        "    print(count(net, ",
        "fresh = Reader()\nfor _ in range(1):\n    print(count(fresh, ",
    ),
    Planted(
        "BH845",
        "panel",
        "    for a, b in zip(average.buffers(), net.buffers()):\n        a.copy_(b)\n",
        "",
    ),
    Planted("BH846", "scans", "scans = (scans - 0.35) / 0.2", "scans = (scans - 116.0) / 57.0"),
    Planted(
        "BH847",
        "scans",
        "net = Reader()\n",
        "net = Reader()\nnn.init.normal_(net.head.weight, std=6.0)\n",
    ),
    Planted(
        "BH847",
        "talk",
        "net = Speaker()\n",
        "net = Speaker()\nfor p in net.parameters():\n    nn.init.normal_(p, std=4.0)\n",
    ),
    Planted("BH849", "panel", "label, pos_weight=weight)", "label * 2 - 1)"),
    Planted(
        "BH849",
        "scans",
        "F.cross_entropy(net(x), label)",
        "nn.BCEWithLogitsLoss()(net(x), 2.0 * F.one_hot(label, 4) - 1)",
    ),
    Planted(
        "BH850",
        "scans",
        "F.cross_entropy(net(x), label)",
        "F.cross_entropy(net(x), label, ignore_index=3)",
    ),
    Planted(
        "BH851",
        "talk",
        FED,
        "F.cross_entropy(scores.transpose(0, 1).reshape(-1, 17), following.view(-1))",
    ),
    Planted("BH851", "talk", "[0].transpose(0, 1))", "[0])"),
    Planted("BH841", "panel", "net.parameters(), 1.0)", "net.parameters(), 1e-5)"),
    Planted(
        "BH518",
        "panel",
        "Visits(theirs)",
        "Visits(theirs, jitter=0.05)",
    ),
)
