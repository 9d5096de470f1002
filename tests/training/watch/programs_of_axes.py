"""Programs under watch whose data have several axes, and one mistake at a time for each."""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

SENSORS = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
kinds = torch.randint(0, 2, (260,))
steps = torch.linspace(0, 6.28, 20)
waves = torch.sin(steps[None, :, None] * (1 + kinds[:, None, None]) + torch.rand(260, 1, 4)) + 0.3 * torch.randn(260, 20, 4)  # rows, steps, sensors
maps = torch.einsum("rts,rus->rtus", waves[:, ::4], waves[:, ::2])  # rows, 5, 10, sensors


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.over_time, self.over_maps = nn.Conv1d(4, 8, 5, padding=2), nn.Conv2d(4, 8, 3, padding=1)
        self.head = nn.Linear(16, 2)

    def forward(self, series, pictures):
        series = series.transpose(1, 2).reshape(len(series), 4, 20)
        pictures = pictures.permute(0, 3, 1, 2)
        return self.head(torch.cat([F.relu(self.over_time(series)).mean(2), F.relu(self.over_maps(pictures)).mean((2, 3))], 1))


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(4):
    net.train()
    for rows in torch.randperm(200).split(40):
        optimizer.zero_grad()
        F.cross_entropy(net(waves[rows], maps[rows]), kinds[rows]).backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    print((net(waves[200:], maps[200:]).argmax(1) == kinds[200:]).float().mean())
"""

# features in groups and back, and a single sensor whose axis may stand anywhere
REGROUPED = SENSORS.replace(
    "series.transpose(1, 2).reshape(len(series), 4, 20)", "series.transpose(1, 2).reshape(len(series), 2, 40).reshape(-1, 4, 20)"
).replace(
    "return self.head",
    "first = series[:, :1].reshape(-1, 20, 1).reshape(-1, 1, 20)\n        series = torch.cat([first, series[:, 1:]], 1)\n        return self.head",
)

BASES_OF_AXES = {"sensors": SENSORS}
SOUND_OF_AXES = {"regrouped": REGROUPED}
PLANTED_OF_AXES = (
    Planted("BH411", "sensors", "series.transpose(1, 2).reshape(len(series), 4, 20)", "torch.reshape(series, [-1, 4, 20])"),
    Planted("BH411", "sensors", "pictures.permute(0, 3, 1, 2)", "pictures.contiguous().view(-1, 4, 5, 10)"),
)
