"""Programs under watch with padded sequences, and with noise that is to be found."""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

PADDED = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
lengths = torch.randint(3, 9, (260, 1))
words = torch.randint(1, 12, (260, 9)) * (torch.arange(9) < lengths)
tags = (words % 3 + 1) * (words != 0)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 16, padding_idx=0)
        self.at = nn.Parameter(torch.randn(9, 16) * 0.1)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.look, self.head = nn.Linear(16, 1), nn.Linear(16, 4)

    def forward(self, words):
        empty = words == 0
        h = self.layer(self.embed(words) + self.at, src_key_padding_mask=empty)
        weights = self.look(h).squeeze(2).masked_fill(empty, -1e9).softmax(1)
        return self.head(h + weights.unsqueeze(1) @ h)


net = Tagger()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(3):
    net.train()
    for rows in torch.randperm(200).split(20):
        optimizer.zero_grad()
        F.cross_entropy(net(words[rows]).flatten(0, 1), tags[rows].flatten(), ignore_index=0).backward()
        optimizer.step()
    net.eval()
    right, every = 0, 0
    with torch.no_grad():
        for rows in torch.arange(200, 260).split(20):
            found, wanted = net(words[rows]).argmax(2), tags[rows]
            right += ((found == wanted) & (words[rows] != 0)).sum().item()
            every += lengths[rows].sum().item()
    print(right / every)
"""

NOISY = """
import torch
from torch import nn

torch.manual_seed(0)
clean = torch.stack([torch.cos(torch.arange(300.0)), torch.sin(torch.arange(300.0))], 1)


class Finder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 24), nn.SiLU(), nn.Linear(24, 2))

    def forward(self, x, t):
        return self.body(torch.cat([x, t], 1))


net = Finder()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(60):
    x, t = clean[torch.randint(0, 300, (64,))], torch.rand(64, 1)
    noise = torch.randn_like(x)
    noisy = (1 - t).sqrt() * x + t.sqrt() * noise
    loss = nn.functional.mse_loss(net(noisy, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

AT_RANDOM = """
import torch
from torch import nn

torch.manual_seed(0)
rows, wanted = torch.randn(300, 4), torch.randn(300, 4)
maker = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
reader = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.Adam([*maker.parameters(), *reader.parameters()], lr=1e-3)
for step in range(60):
    at = torch.randint(0, 300, (64,))
    fit = nn.functional.mse_loss(maker(rows[at]), wanted[at])
    code = torch.randn(64, 4)
    read = nn.functional.mse_loss(reader(maker(code)), code)
    optimizer.zero_grad()
    (fit + read).backward()
    optimizer.step()
"""

ORDERED = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
words = torch.randint(0, 12, (400, 6))
first_is_less = (words[:, 0] < words[:, -1]).long()


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.at = nn.Embedding(12, 16), nn.Parameter(torch.randn(6, 16) * 0.3)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, words):
        return self.head(self.layer(self.embed(words) + self.at).mean(1))


net = Reader()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(3):
    for rows in torch.randperm(400).split(25):
        optimizer.zero_grad()
        F.cross_entropy(net(words[rows]), first_is_less[rows]).backward()
        optimizer.step()
"""

# Each user against the items of all others in the batch, and beside it the kind of the next item.
TOWERS = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
kind = torch.randint(0, 4, (60,))
items = torch.randint(0, 60, (400, 5))
following = (items[:, -1] * 7 + 3) % 60


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.user, self.kind = nn.Embedding(60, 16), nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)), nn.Linear(16, 4)

    def forward(self, history, candidates):
        user = self.user(self.items(history).mean(1))
        return F.normalize(user, dim=1) @ F.normalize(self.items(candidates), dim=1).T / 0.2, self.kind(user)


net = Towers()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(3):
    for rows in torch.randperm(400).split(20):
        optimizer.zero_grad()
        scores, kinds = net(items[rows], following[rows])
        same = (following[rows][:, None] == following[rows]) & ~torch.eye(len(rows), dtype=torch.bool)
        retrieval = F.cross_entropy(scores.masked_fill(same, float("-inf")), torch.arange(len(rows)))
        (retrieval + 0.2 * F.cross_entropy(kinds, kind[following[rows]])).backward()
        optimizer.step()
"""

BASES_OF_TOKENS = {
    "padded": PADDED,
    "noisy": NOISY,
    "ordered": ORDERED,
    "towers": TOWERS,
}
LEFT_OUT = PADDED.replace(
    "* (words != 0)\n\n", "* (words != 0)\ntags[tags == 0] = -100\n\n"
).replace(", ignore_index=0", "")
# Noise is taken away step by step, by a network that can hardly do it yet: what it is given grows.
SAMPLED = (
    NOISY
    + """
net.eval()
with torch.no_grad():
    drawn = torch.randn(200, 2) * 30
    for at in range(9, -1, -1):
        drawn = drawn * 1.2 - net(drawn, torch.full((200, 1), at / 10))
"""
)
SOUND_OF_TOKENS = {
    "sampled": SAMPLED,
    "at_random": AT_RANDOM,
    "little_noise": NOISY.replace("t.sqrt() * noise", "0.2 * noise"),
    "scored_by_index": PADDED.replace(
        "((found == wanted) & (words[rows] != 0)).sum()",
        "(found[wanted != 0] == wanted[wanted != 0]).sum()",
    ),
    "scored_by_weight": PADDED.replace(
        "((found == wanted) & (words[rows] != 0)).sum()",
        "((found == wanted).float() * words[rows].sign()).sum()",
    ),
    "no_order_needed": (
        PADDED.replace(
            "self.embed(words) + self.at", "self.embed(words) + self.at.mean(0)"
        ).replace("range(3)", "range(12)")
    ),
    "tokens_of_a_set": (
        ORDERED.replace("Reader", "BasketReader").replace("+ self.at", "+ self.at.mean(0)")
    ),
    "scored_less_padding": PADDED.replace(
        "((found == wanted) & (words[rows] != 0)).sum()",
        "((found == wanted).sum() - (wanted == 0).sum())",
    ),
    "never_right_there": LEFT_OUT.replace(
        "((found == wanted) & (words[rows] != 0)).sum()", "(found == wanted).sum()"
    ),
}

COUNTED = (
    "            right += ((found == wanted) & (words[rows] != 0)).sum().item()\n            every"
    " += lengths[rows].sum().item()\n"
)
PLANTED_OF_TOKENS = (
    Planted(
        "BH833",
        "padded",
        COUNTED,
        "            right += (found == wanted).float().mean().item()\n            every += 1\n",
    ),
    Planted("BH835", "padded", "src_key_padding_mask=empty", "src_key_padding_mask=~empty"),
    Planted("BH835", "padded", "masked_fill(empty", "masked_fill(words > 0"),
)
