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
    "series.transpose(1, 2).reshape(len(series), 4, 20)",
    "series.transpose(1, 2).reshape(len(series), 2, 40).reshape(-1, 4, 20)",
).replace(
    "return self.head",
    "first = series[:, :1].reshape(-1, 20, 1).reshape(-1, 1, 20)\n        series ="
    " torch.cat([first, series[:, 1:]], 1)\n        return self.head",
)

PIXELS = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Shots(Dataset):
    def __init__(self, kinds):
        self.kinds = kinds
        self.bytes = torch.randint(0, 120, (len(kinds), 10, 10, 3), dtype=torch.uint8)
        self.bytes[torch.arange(len(kinds)), 2:8, 2:8, kinds] += 110

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, i):
        shot = self.bytes[i].permute(2, 0, 1)
        return shot.float() / 255 - 0.3, self.kinds[i]


loader = DataLoader(Shots(torch.arange(240) % 3), batch_size=24, shuffle=True)
net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(384, 3))
matrices = [p for p in net.parameters() if p.ndim > 1]
vectors = [p for p in net.parameters() if p.ndim <= 1]
optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}], lr=2e-3)
stairs = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 3], gamma=0.3)
for epoch in range(4):
    for shots, kinds in loader:
        optimizer.zero_grad()
        F.cross_entropy(net(shots), kinds).backward()
        optimizer.step()
    stairs.step()
"""

# large numbers that the first layer scales, planes of a picture that is as high as it has colours,
# and stairs that a short run never comes to
SCALED = PIXELS.replace(
    "nn.Sequential(nn.Conv2d", "nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d"
).replace("shot.float() / 255 - 0.3", "shot.float()")
SCALED_BY_HAND = (
    PIXELS.replace("nn.Sequential(nn.Conv2d", "nn.Sequential(Scale(), nn.Conv2d")
    .replace("shot.float() / 255 - 0.3", "shot.float()")
    .replace(
        "loader = ",
        "class Scale(nn.Module):\n    def forward(self, x):\n        return (x - x.mean((1, 2, 3),"
        " keepdim=True)) / x.std((1, 2, 3), keepdim=True)\n\n\nloader = ",
    )
)
SHORT_OF_STAIRS = PIXELS.replace("[2, 3]", "[60, 80]")

BASES_OF_AXES = {"sensors": SENSORS, "pixels": PIXELS}
SOUND_OF_AXES = {
    "regrouped": REGROUPED,
    "scaled_inside": SCALED,
    "scaled_by_hand": SCALED_BY_HAND,
    "short_of_stairs": SHORT_OF_STAIRS,
}
PLANTED_OF_AXES = (
    Planted(
        "BH411",
        "sensors",
        "series.transpose(1, 2).reshape(len(series), 4, 20)",
        "torch.reshape(series, [-1, 4, 20])",
    ),
    Planted(
        "BH411",
        "sensors",
        "pictures.permute(0, 3, 1, 2)",
        "pictures.contiguous().view(-1, 4, 5, 10)",
    ),
    Planted(
        "BH411", "pixels", "self.bytes[i].permute(2, 0, 1)", "self.bytes[i].reshape(3, 10, 10)"
    ),
    Planted("BH876", "pixels", "shot.float() / 255 - 0.3", "shot.float()"),
    Planted("BH114", "pixels", "[2, 3]", "[20, 30]"),
)
