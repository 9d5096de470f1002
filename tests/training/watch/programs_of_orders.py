"""Programs whose label lies in the order of tokens, and one that gives a sequence for another."""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

# Whether one token stands ahead of another.
ORDER = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
tokens = torch.randint(2, 12, (320, 10))
at = torch.rand(320, 10).argsort(1)[:, :2]
tokens.scatter_(1, at, torch.tensor([[0, 1]]).expand(320, 2))
y = (at[:, 0] < at[:, 1]).float()


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(12, 16), nn.Parameter(torch.randn(10, 16))
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), 1)
        self.out = nn.Linear(16, 1)

    def forward(self, tokens):
        return self.out(self.body(self.words(tokens) + self.places).mean(1)).squeeze(1)


net = Reader()
optimizer = torch.optim.Adam(net.parameters(), lr=0.002)
for epoch in range(5):
    for rows in torch.randperm(240).split(30):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(net(tokens[rows]), y[rows]).backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    print(((net(tokens[240:]) > 0) == (y[240:] == 1)).float().mean().item())
"""

# A sequence for a sequence, decoded place by place, its loss a sum over the letters that are there.
INFLECTED = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
PAD, FIRST, LAST = 0, 1, 2


def pairs(count):
    lengths = torch.randint(2, 8, (count,))
    stems = torch.randint(3, 15, (count, 8)).masked_fill(torch.arange(8) >= lengths[:, None], PAD)
    words = torch.cat([torch.full((count, 1), FIRST), stems, torch.zeros(count, 1, dtype=torch.long)], 1)
    words[torch.arange(count), lengths + 1] = LAST
    return stems, words


class Inflects(nn.Module):
    def __init__(self, letters=15, width=24):
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width, padding_idx=PAD), nn.Parameter(0.3 * torch.randn(8, width))
        self.read = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.cell, self.ask, self.out = nn.GRUCell(2 * width, width), nn.Linear(width, width), nn.Linear(2 * width, letters)

    def forward(self, stems, words):
        gone = stems == PAD
        memory = self.read(self.letters(stems) + self.places[: stems.shape[1]], src_key_padding_mask=gone)
        state = memory[:, 0]
        seen, scores = torch.zeros_like(state), []
        for at in range(words.shape[1] - 1):
            state = self.cell(torch.cat([self.letters(words[:, at]), seen], 1), state)
            fit = torch.einsum("bd,btd->bt", self.ask(state), memory).masked_fill(gone, float("-inf"))
            seen = torch.einsum("bt,btd->bd", fit.softmax(1), memory)
            scores.append(self.out(torch.cat([state, seen], 1)))
        return torch.stack(scores, dim=1)


stems, words = pairs(400)
net = Inflects()
optimizer = torch.optim.AdamW(net.parameters(), lr=0.005)
nll = nn.NLLLoss(ignore_index=PAD, reduction="sum")
for epoch in range(5):
    for rows in torch.randperm(320).split(32):
        longest = int((stems[rows] != PAD).sum(1).max())
        given, wanted = stems[rows, :longest], words[rows, : longest + 2]
        chances = net(given, wanted).log_softmax(2)
        loss = nll(chances.flatten(0, 1), wanted[:, 1:].flatten()) / (wanted[:, 1:] != PAD).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    print(F.cross_entropy(net(stems[320:], words[320:]).flatten(0, 1), words[320:, 1:].flatten(), ignore_index=PAD).item())
"""

# places are told apart once they have learned
FROM_ZERO = ORDER.replace("nn.Parameter(torch.randn(10, 16))", "nn.Parameter(torch.zeros(10, 16))")

BASES_OF_ORDERS = {
    "inflected": INFLECTED,
    "order": ORDER,
    "from_zero": FROM_ZERO,
}

PLANTED_OF_ORDERS = (
    Planted("BH411", "inflected", "torch.stack(scores, dim=1)", "torch.stack(scores)"),
    Planted(
        "BH828",
        "inflected",
        'NLLLoss(ignore_index=PAD, reduction="sum")',
        'NLLLoss(reduction="sum")',
    ),
    Planted("BH860", "inflected", ", src_key_padding_mask=gone", ""),
    Planted("BH860", "inflected", '.masked_fill(gone, float("-inf"))', ""),
)
