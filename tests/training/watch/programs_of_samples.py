"""Programs under watch whose rows are weighted, and whose weights come from another network."""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

WEIGHTED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
X = torch.randn(400, 5)
y = (X[:, 0] > 1).long() + (X[:, 0] > 2).long()
rows, known = TensorDataset(X[:300], y[:300]), y[:300]
rare = 1 / torch.bincount(known, minlength=3).float()
loader = DataLoader(rows, 20, sampler=WeightedRandomSampler(rare[known], 300))
net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for epoch in range(3):
    for x, label in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), label).backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    print((net(X[300:]).argmax(1) == y[300:]).float().mean())
"""

PRETRAINED = """
import io
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
X = torch.tanh(torch.randn(500, 4) @ torch.randn(4, 12))
y = (X[:, 0] > 0).long()


def encoder():
    return nn.Sequential(nn.Linear(12, 10), nn.GELU(), nn.Linear(10, 4))


class Restorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = encoder(), nn.Linear(4, 12)

    def forward(self, x):
        return self.decoder(self.encoder(x))


class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = encoder(), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.encoder(x))


file = io.BytesIO()
first = Restorer()
optimizer = torch.optim.Adam(first.parameters(), lr=2e-3)
for epoch in range(3):
    for rows in torch.randperm(400).split(40):
        optimizer.zero_grad()
        F.mse_loss(first(X[rows]), X[rows]).backward()
        optimizer.step()
torch.save({"net": first.state_dict(), "epochs": 3}, file)
file.seek(0)
net = Judge()
net.load_state_dict(torch.load(file)["net"], strict=False)
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
for epoch in range(3):
    for rows in torch.randperm(400).split(40):
        optimizer.zero_grad()
        F.cross_entropy(net(X[rows]), y[rows]).backward()
        optimizer.step()
"""

BASES_OF_SAMPLES = {"weighted": WEIGHTED}
SOUND_OF_SAMPLES = {
    "pretrained": PRETRAINED,
    "first_rows_alone": WEIGHTED.replace("TensorDataset(X[:300], y[:300])", "TensorDataset(X, y)"),
}

PLANTED_OF_SAMPLES = (
    Planted("BH836", "weighted", "rare[known], 300", "rare, 300"),
    Planted(
        "BH836",
        "weighted",
        "rows, 20, sampler=WeightedRandomSampler(rare[known], 300)",
        "rows, batch_sampler=torch.utils.data.BatchSampler(WeightedRandomSampler(rare, 300), 20,"
        " False)",
    ),
)
