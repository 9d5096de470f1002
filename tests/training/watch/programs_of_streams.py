"""Programs under watch whose rows come from a stream with workers, or are windows of a series; and
one mistake at a time for each.
"""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

STREAM = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

torch.manual_seed(0)


class Readings(IterableDataset):
    def __init__(self, seed, rows):
        self.seed, self.rows = seed, rows

    def __iter__(self):
        values = torch.randn(self.rows, 4, generator=torch.Generator().manual_seed(self.seed))
        me = get_worker_info()
        for i in range(me.id if me else 0, self.rows, me.num_workers if me else 1):
            yield {"x": values[i], "y": (values[i, 0] > values[i, 1]).long()}


train = DataLoader(Readings(1, 240), batch_size=20, num_workers=2)
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(2):
    for batch in train:
        optimizer.zero_grad()
        F.cross_entropy(net(batch["x"]), batch["y"]).backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    right = [(net(b["x"]).argmax(1) == b["y"]).float().mean() for b in DataLoader(Readings(2, 100), batch_size=50)]
print(right)
"""
EVERY_WORKER = "range(me.id if me else 0, self.rows, me.num_workers if me else 1)"

BROKEN_OFF = STREAM.replace(EVERY_WORKER, "torch.randperm(self.rows).tolist()").replace(
    "    for batch in train:\n",
    "    for number, batch in enumerate(train):\n        if number == 10:\n            break\n",
)
FEW_LEVELS = STREAM.replace(
    "        me = get", "        values = torch.sign(values)\n        me = get"
).replace("2)\nnet", "2)\nprint(len(list(zip(train, train))))\nnet")

FORECAST = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset

torch.manual_seed(0)
load = torch.randn(700).cumsum(0) / 4 + torch.sin(torch.arange(700) / 9)


class Past(Dataset):
    def __len__(self):
        return 680

    def __getitem__(self, i):
        level = load[i + 15]
        return load[i : i + 16] - level, load[i + 16 : i + 18] - level


rows = Past()
order = torch.arange(680)
train, held_out = Subset(rows, order[:500].tolist()), Subset(rows, order[500:].tolist())
net = nn.Sequential(nn.Flatten(), nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(3):
    for x, y in DataLoader(train, 25, shuffle=True):
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        print(sum(F.mse_loss(net(x), y) for x, y in DataLoader(held_out, 60)))
"""
RANDOM = "torch.randperm(680)"

# Without windows: independent curves, of noise and of one shape at any phase, and a table of few
# levels.
CURVES = FORECAST.replace(
    "torch.randn(700).cumsum(0) / 4 + torch.sin(torch.arange(700) / 9)",
    "torch.randn(680, 18).cumsum(1)",
).replace(
    "        level = load[i + 15]\n        return load[i : i + 16] - level, load[i + 16 : i + 18] -"
    " level",
    "        return load[i, :16], load[i, 16:]",
)
PHASES = CURVES.replace(
    "torch.randn(680, 18).cumsum(1)", "torch.sin(torch.arange(18) / 3 + 6.28 * torch.rand(680, 1))"
).replace("torch.arange(680)", RANDOM)
LEVELS = CURVES.replace(
    "torch.randn(680, 18).cumsum(1)",
    "torch.cat([torch.randint(0, 9, (680, 16)) / 8, torch.randn(680, 2)], 1)",
).replace("torch.arange(680)", RANDOM)

# Windows a quarter of their width apart: some lie across the cut in time.
STRIDES = (
    FORECAST.replace("(700)", "(2750)")
    .replace("i + 15", "4 * i + 15")
    .replace("load[i : i + 16]", "load[4 * i : 4 * i + 16]")
    .replace("i + 16 : i + 18", "4 * i + 16 : 4 * i + 18")
)

BASES_OF_STREAMS = {"stream": STREAM, "forecast": FORECAST, "strides": STRIDES}
SOUND_OF_STREAMS = {
    "broken_off": BROKEN_OFF,
    "few_levels": FEW_LEVELS,
    "curves": CURVES,
    "phases": PHASES,
    "tall_levels": LEVELS,
}

PLANTED_OF_STREAMS = (
    Planted("BH521", "stream", EVERY_WORKER, "torch.randperm(self.rows).tolist()"),
    Planted("BH508", "forecast", "torch.arange(680)", RANDOM),
    Planted("BH508", "strides", "torch.arange(680)", RANDOM),
)
