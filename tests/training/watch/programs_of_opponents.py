"""Programs under watch in which networks are trained against each other; and one mistake at a time
for each.
"""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
angle = torch.rand(600) * 6.28
X = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(600, 2)


class Maker(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 24), nn.LeakyReLU(0.2), nn.Linear(24, 2))

    def forward(self, z):
        return self.net(z)


class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 24), nn.LeakyReLU(0.2))
        self.head = nn.Linear(24, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(1)


maker, judge = Maker(), Judge()
of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.9))
of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.9))
"""

RIVALS = (
    HEAD
    + """
bce = F.binary_cross_entropy_with_logits
for step in range(60):
    real = X[torch.randint(600, (32,))]
    fake = maker(torch.randn(32, 4)).detach()
    ones, zeros = torch.ones(32), torch.zeros(32)
    loss = bce(judge(real), 0.9 * ones) + bce(judge(fake), zeros)
    of_judge.zero_grad()
    loss.backward()
    of_judge.step()
    loss = bce(judge(maker(torch.randn(32, 4))), ones)
    of_maker.zero_grad()
    loss.backward()
    of_maker.step()
"""
)

DISTANCE = (
    HEAD
    + """
for step in range(60):
    for _ in range(2):
        real = X[torch.randint(600, (32,))]
        with torch.no_grad():
            fake = maker(torch.randn(32, 4))
        share = torch.rand(32, 1)
        between = (share * real + (1 - share) * fake).requires_grad_(True)
        slope, = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        loss = judge(fake).mean() - judge(real).mean() + 10 * (slope.norm(dim=1) - 1).pow(2).mean()
        of_judge.zero_grad()
        loss.backward()
        of_judge.step()
    loss = -judge(maker(torch.randn(32, 4))).mean()
    of_maker.zero_grad()
    loss.backward()
    of_maker.step()
"""
)

SQUARES = (
    HEAD
    + """
nn.init.constant_(judge.head.bias, -0.8)
for step in range(40):
    real = X[torch.randint(600, (32,))]
    made = maker(torch.randn(32, 4))
    loss = F.mse_loss(judge(real), torch.ones(32)) + F.mse_loss(judge(made.detach()), torch.zeros(32))
    of_judge.zero_grad()
    loss.backward()
    of_judge.step()
    loss = F.mse_loss(judge(made), torch.ones(32)) + (judge.body(made).mean(0) - judge.body(real).mean(0)).pow(2).mean()
    of_maker.zero_grad()
    loss.backward()
    of_maker.step()
"""
)

HINGES = (
    HEAD
    + """
for step in range(40):
    real = X[torch.randint(600, (32,))]
    made = maker(torch.randn(32, 4))
    loss = F.relu(1 - judge(real)).mean() + F.relu(1 + judge(made.detach())).mean()
    of_judge.zero_grad()
    loss.backward()
    of_judge.step()
    of_maker.zero_grad()
    loss = -F.binary_cross_entropy_with_logits(judge(made), torch.zeros(32)) if step % 2 else -judge(made).mean()
    loss.backward()
    of_maker.step()
"""
)

INSIDE = (
    HEAD.replace(
        "return self.net(z)", "return self.net(torch.randn(z if isinstance(z, int) else len(z), 4))"
    )
    + """
labels = torch.ones(32, 1)
for step in range(40):
    with torch.no_grad():
        fake = maker(32)
    loss = F.relu(1 - judge(X[torch.randint(600, (32,))])).mean() + F.relu(1 + judge(fake)).mean()
    of_judge.zero_grad()
    loss.backward()
    of_judge.step()
    loss = -judge(maker(labels if step > 20 else 32)).mean()
    of_maker.zero_grad()
    loss.backward()
    of_maker.step()
"""
)

ACTING = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 1), nn.Tanh())

    def forward(self, state):
        return self.net(state)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, state, action):
        return self.net(torch.cat([state, action], 1)).squeeze(1)


actor, critic = Actor(), Critic()
of_actor, of_critic = torch.optim.Adam(actor.parameters(), lr=1e-3), torch.optim.Adam(critic.parameters(), lr=1e-3)
for step in range(60):
    state = torch.randn(48, 3)
    chosen = actor(state).detach()
    tried = (chosen + 0.3 * torch.randn(48, 1)).clamp(-1, 1)
    gain = 9 - (tried.squeeze(1) - state[:, 0].tanh()).pow(2)
    loss = F.smooth_l1_loss(critic(state, tried), gain) + F.smooth_l1_loss(critic(state, chosen), 9 - (chosen.squeeze(1) - state[:, 0].tanh()).pow(2))
    of_critic.zero_grad()
    loss.backward()
    of_critic.step()
    loss = -critic(state, actor(state)).mean()
    of_actor.zero_grad()
    loss.backward()
    of_actor.step()
"""

DOMAINS = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
X, other = torch.randn(400, 5), torch.randn(400, 5) + 1
y = (X[:, 0] > 0).long()


class Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


body = nn.Sequential(nn.Linear(5, 16), nn.ReLU())
head, domain = nn.Linear(16, 2), nn.Linear(16, 1)
of_task = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=2e-3)
of_domain = torch.optim.Adam(domain.parameters(), lr=2e-3)
for step in range(40):
    rows = torch.randint(400, (40,))
    here, there = body(X[rows]), body(other[rows])
    told = domain(Turned.apply(here)), domain(Turned.apply(there))
    loss = F.cross_entropy(head(here), y[rows])
    loss = loss + F.binary_cross_entropy_with_logits(told[0], torch.ones(40, 1)) + F.binary_cross_entropy_with_logits(told[1], torch.zeros(40, 1))
    of_task.zero_grad()
    of_domain.zero_grad()
    loss.backward()
    of_task.step()
    of_domain.step()
"""

# The network that learns chooses the action, a slow copy says what it is worth; states come back as
# those after them.
DOUBLE = """
import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
state, memory = torch.zeros(2), []
for step in range(400):
    action = torch.randint(3, ()).item()
    after = (0.9 * state + torch.tensor([action - 1.0, 0.1]) + 0.1 * torch.randn(2)).clamp(-4, 4)
    memory.append((state, action, -after.abs().sum().item(), after))
    state = after
states, successors = torch.stack([m[0] for m in memory]), torch.stack([m[3] for m in memory])
actions, rewards = torch.tensor([[m[1]] for m in memory]), torch.tensor([m[2] for m in memory])
quick = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 3))
slow = copy.deepcopy(quick).requires_grad_(False)
optimizer = torch.optim.Adam(quick.parameters(), lr=2e-3)
for step in range(80):
    rows = torch.randint(400, (64,))
    with torch.no_grad():
        best = quick(successors[rows]).argmax(1, keepdim=True)
        goal = rewards[rows] + 0.9 * slow(successors[rows]).gather(1, best)[:, 0]
    loss = F.smooth_l1_loss(quick(states[rows]).gather(1, actions[rows])[:, 0], goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for old, new in zip(slow.parameters(), quick.parameters()):
            old.lerp_(new, 0.05)
"""

LOOKED_AT = DISTANCE.replace(
    "nn.LeakyReLU(0.2), nn.Linear(24, 2)", "nn.BatchNorm1d(24), nn.LeakyReLU(0.2), nn.Linear(24, 2)"
).replace(
    "    for _ in range(2):\n",
    """    if step % 10 == 0:
        maker.eval()
        with torch.no_grad():
            print(maker(torch.randn(200, 4)).std(0))
        maker.train()
    for _ in range(2):
""",
)

BASES_OF_OPPONENTS = {"rivals": RIVALS, "distance": DISTANCE}
SOUND_OF_OPPONENTS = {
    "squares": SQUARES,
    "hinges": HINGES,
    "inside": INSIDE,
    "acting": ACTING,
    "domains": DOMAINS,
    "double": DOUBLE,
    "looked_at": LOOKED_AT,
}

PLANTED_OF_OPPONENTS = (
    Planted(
        "BH421",
        "rivals",
        "Adam(maker.parameters()",
        "Adam([*maker.parameters(), *judge.parameters()]",
    ),
)
