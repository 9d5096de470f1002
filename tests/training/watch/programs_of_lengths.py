"""Programs under watch whose sequences end at different places: with the places behind the end left
out, and with them taken for text.
"""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

READ = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
lengths = torch.randint(3, 12, (400,))
words = torch.randint(1, 20, (400, 12)) * (torch.arange(12) < lengths.unsqueeze(1))
moods = ((words % 5 == 1).sum(1) > 1).long()


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 24, padding_idx=0)
        self.layer = nn.Linear(24, 24)
        self.head = nn.Linear(24, 2)

    def forward(self, words):
        there = (words != 0).unsqueeze(2)
        h = F.relu(self.layer(self.embed(words)))
        return self.head((h * there).sum(1) / there.sum(1))


net = Reader()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(5):
    net.train()
    for rows in torch.randperm(320).split(40):
        optimizer.zero_grad()
        F.cross_entropy(net(words[rows]), moods[rows]).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print((net(words[320:]).argmax(1) == moods[320:]).float().mean().item())
"""
MEAN = "        return self.head((h * there).sum(1) / there.sum(1))\n"
RECURRENT = READ.replace(
    "self.layer = nn.Linear(24, 24)", "self.layer = nn.GRU(24, 24, batch_first=True)"
)
RECURRENT = RECURRENT.replace(
    "h = F.relu(self.layer(self.embed(words)))", "h, _ = self.layer(self.embed(words))"
)
LAST = "        return self.head(h[torch.arange(len(h)), (words != 0).sum(1) - 1])\n"

CODES = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
codes = torch.randint(0, 9, (400, 8)) * (torch.rand(400, 8) < 0.5)
labels = (codes[:, 0] > codes[:, 7]).long()


class Columns(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(9, 6) for _ in range(8))
        self.head = nn.Sequential(nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, codes):
        return self.head(torch.cat([table(codes[:, i]) for i, table in enumerate(self.tables)], 1))


net = Columns()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(5):
    for rows in torch.randperm(320).split(40):
        optimizer.zero_grad()
        F.cross_entropy(net(codes[rows]), labels[rows]).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print((net(codes[320:]).argmax(1) == labels[320:]).float().mean().item())
    net.train()
"""

# A tag for each word, of which 0 is one that words have, and -100 where no word is.
TAGS = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(0)
lines = [torch.randint(1, 20, (int(n),)) for n in torch.randint(4, 16, (300,))]
tags = [line % 3 for line in lines]
words = pad_sequence(lines, batch_first=True)
kinds = pad_sequence(tags, batch_first=True, padding_value=-100)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 24, padding_idx=0)
        self.head = nn.Linear(24, 3)

    def forward(self, words):
        return self.head(F.relu(self.embed(words)))


net = Tagger()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(5):
    net.train()
    for rows in torch.randperm(240).split(30):
        optimizer.zero_grad()
        F.cross_entropy(net(words[rows]).flatten(0, 1), kinds[rows].flatten()).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        there = words[240:] != 0
        print((net(words[240:]).argmax(2) == kinds[240:])[there].float().mean().item())
"""

BASES_OF_LENGTHS = {
    "lengths": READ,
    "lengths_tags": TAGS,
}
# The embedding learns the next word first, whose padding is left out; mood 0 is no padding.
FIRST_WORDS = """net = Reader()
readout = nn.Linear(24, 20)
first = torch.optim.Adam([*net.embed.parameters(), *readout.parameters()], lr=1e-2)
for rows in torch.randperm(320).split(40):
    first.zero_grad()
    scores = readout(net.embed(words[rows][:, :-1]))
    F.cross_entropy(scores.flatten(0, 1), words[rows][:, 1:].flatten(), ignore_index=0).backward()
    first.step()
"""

SOUND_OF_LENGTHS = {
    "lengths_twice": READ.replace("net = Reader()\n", FIRST_WORDS),
    "lengths_sorted": (
        READ.replace(
            "    for rows in torch.randperm(320).split(40):\n",
            "    for k in torch.randperm(16):\n        rows = batches[k]\n",
        )
        .replace("net = Reader()", "batches = lengths[:320].argsort().split(20)\nnet = Reader()")
        .replace("net(words[rows])", "net(words[rows][:, : lengths[rows].max()])")
    ),
    "lengths_last": RECURRENT.replace(MEAN, LAST),
    "lengths_highest": READ.replace(
        MEAN, '        return self.head(h.masked_fill(~there, float("-inf")).amax(1))\n'
    ),
    "lengths_codes": CODES,
    "lengths_weights": (
        TAGS.replace("padding_value=-100", "padding_value=3")
        .replace("nn.Linear(24, 3)", "nn.Linear(24, 4)")
        .replace(
            "kinds[rows].flatten())", "kinds[rows].flatten(), torch.tensor([1.0, 1.0, 1.0, 0.0]))"
        )
    ),
    "lengths_alike": (
        READ.replace(MEAN, "        return self.head(h.mean(1))\n").replace(
            "torch.randint(3, 12, (400,))", "torch.full((400,), 9)"
        )
    ),
}
PLANTED_OF_LENGTHS = (
    Planted("BH828", "lengths_tags", "padding_value=-100", "padding_value=0"),
    Planted("BH860", "lengths", MEAN, "        return self.head(h.mean(1))\n"),
    Planted("BH860", "lengths", MEAN, "        return self.head(h.sum(1) / h.size(1))\n"),
)
