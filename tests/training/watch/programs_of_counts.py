"""Programs under watch that learn counts with an exposure, and that follow a teacher which averages
its student; and one mistake at a time for each.
"""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

COUNTS = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
X, months = torch.randn(400, 4), 1 + 11 * torch.rand(400)
y = torch.poisson((0.4 * X[:, 0]).exp() * months / 6)
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(6):
    for rows in torch.randperm(320).split(32):
        score = net(X[rows]).squeeze(1) + months[rows].log()
        loss = F.poisson_nll_loss(score, y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
with torch.no_grad():
    print(F.poisson_nll_loss(net(X[320:]).squeeze(1) + months[320:].log(), y[320:]))
"""

TEACHER = """
import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
X = torch.randn(500, 6)
y = (X[:, 0] > X[:, 1]).long()
student = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 2))
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)


@torch.no_grad()
def follow():
    for slow, quick in zip(teacher.parameters(), student.parameters()):
        slow.lerp_(quick, 0.1)
    for slow, quick in zip(teacher.buffers(), student.buffers()):
        slow.copy_(quick)


for step in range(80):
    student.train()
    teacher.train()
    few, many = torch.randint(60, (20,)), torch.randint(60, 400, (40,))
    with torch.no_grad():
        goal = teacher(X[many] + 0.1 * torch.randn(40, 6)).softmax(1)
    apart = F.mse_loss(student(X[many]).softmax(1), goal)
    optimizer.zero_grad()
    (F.cross_entropy(student(X[few]), y[few]) + apart).backward()
    optimizer.step()
    follow()
    if step % 20 == 19:
        teacher.eval()
        with torch.no_grad():
            print((teacher(X[400:]).argmax(1) == y[400:]).float().mean())
"""

BASES_OF_COUNTS = {"exposures": COUNTS, "teacher": TEACHER}
SOUND_OF_COUNTS = {
    "rates": COUNTS.replace(
        "loss = F.poisson_nll_loss(score, y[rows])",
        "loss = F.poisson_nll_loss(score.exp(), y[rows], log_input=False)",
    )
}
PLANTED_OF_COUNTS = (
    Planted("BH310", "exposures", "net(X[rows]).squeeze(1)", "net(X[rows])"),
    Planted("BH805", "exposures", "y = torch.poisson(", "y = X[:, 3] = torch.poisson("),
    Planted("BH844", "teacher", "    follow()\n", ""),
)
