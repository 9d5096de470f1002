"""Programs under watch that compute in 16 bits, write with CTC, and train a maker before its judge;
and one mistake at a time for each.
"""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

PHASES = """
import copy
import math
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
seconds = 500 * torch.rand(400, 1)
rates = 2 * math.pi / torch.tensor([[3.0, 7.0, 11.0]])
y = torch.sin(seconds @ rates[:, :1]).squeeze(1) + 0.1 * torch.randn(400)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, t):
        with torch.autocast("cpu", enabled=False):
            angle = t @ rates
        return self.body(torch.cat([torch.sin(angle), torch.cos(angle)], 1).float()).squeeze(1)


net = Field()
average = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(6):
    net.train()
    for rows in torch.randperm(320).split(32):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = net(seconds[rows])
        loss = F.mse_loss(scores.float(), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), net.parameters()):
                a.lerp_(p.to(a.dtype), 0.001)
    net.eval()
with torch.no_grad():
    print(F.mse_loss(net(seconds[320:]), y[320:]), sum(a.float().sum() for a in average.parameters()))
"""

WRITTEN = """
import torch
from torch import nn

torch.manual_seed(0)
digits = torch.randint(0, 5, (120, 4))
frames = torch.eye(5)[digits].repeat_interleave(4, 1) + 0.3 * torch.randn(120, 16, 5)
net = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 6))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
criterion = nn.CTCLoss(blank=5, zero_infinity=True)
for epoch in range(4):
    net.train()
    for rows in torch.randperm(96).split(24):
        log_probs = net(frames[rows]).log_softmax(2).transpose(0, 1)
        loss = criterion(log_probs, digits[rows], torch.full((24,), 16), torch.full((24,), 4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    print(net(frames[96:]).argmax(2).float().mean())
"""

MAKER_FIRST = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
maker = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 2))
judge = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 1))
of_maker, of_judge = torch.optim.Adam(maker.parameters(), lr=1e-3), torch.optim.Adam(judge.parameters(), lr=1e-3)


def doubt(works, true):
    return F.binary_cross_entropy_with_logits(judge(works), torch.full((len(works), 1), true))


for step in range(30):
    of_maker.zero_grad()
    works = maker(torch.randn(24, 3))
    doubt(works, 1.0).backward()
    of_maker.step()
    of_judge.zero_grad()
    (doubt(works.detach(), 0.0) + doubt(torch.randn(24, 2) + 3, 1.0)).backward()
    of_judge.step()
"""

BASES_OF_HALVES = {"phases": PHASES, "written": WRITTEN, "maker_first": MAKER_FIRST}
SOUND_OF_HALVES = {
    # small angles, and an average that moves far at each step
    "coarse": (
        PHASES.replace('"cpu", enabled=False', '"cpu", dtype=torch.bfloat16').replace(
            "500 * torch.rand", "torch.rand"
        )
    ),
    # Adam's own averages, where weights are of 16 bits
    "all_half": (
        PHASES.replace("net = Field()", "net = Field().to(torch.bfloat16)")
        .replace("], 1).float())", "], 1).to(torch.bfloat16))")
        .replace("copy.deepcopy(net)", "copy.deepcopy(net).float()")
        .replace("F.mse_loss(net(seconds[320:])", "F.mse_loss(net(seconds[320:]).float()")
    ),
    "quick": (
        PHASES.replace("copy.deepcopy(net)", "copy.deepcopy(net).to(torch.bfloat16)").replace(
            "0.001)", "0.5)"
        )
    ),
}
PLANTED_OF_HALVES = (
    Planted("BH303", "written", ".log_softmax(2).transpose", ".transpose"),
    Planted(
        "BH101",
        "maker_first",
        "    of_maker.step()\n    of_judge.zero_grad()\n",
        "    of_maker.step()\n",
    ),
)
