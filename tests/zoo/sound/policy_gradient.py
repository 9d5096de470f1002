"""A policy for traffic lights: what a day's decisions brought is discounted, compared with a learned baseline, and learned from once a day."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical


class Lights(nn.Module):
    """Queues on each arm of a crossing to chances of each phase, and the queue cost that is expected from here."""

    def __init__(self, arms, phases):
        super().__init__()
        self.shared = nn.GRUCell(arms, 40)
        self.phase = nn.Linear(40, phases)
        self.expected = nn.Linear(40, 1)

    def forward(self, queues, memory):
        memory = self.shared(queues, memory)
        return self.phase(memory), self.expected(memory).squeeze(-1), memory


def discounted(gains, keep):
    """What followed each decision, the later the less; [T]."""
    brought = torch.empty(len(gains))
    after = 0.0
    for at in reversed(range(len(gains))):
        after = gains[at] + keep * after
        brought[at] = after
    return brought


def one_day(lights, crossing):
    memory = torch.zeros(1, 40)
    logs, expected, gains, entropies = [], [], [], []
    queues = crossing.morning()
    while queues is not None:
        scores, value, memory = lights(queues[None], memory)
        chances = Categorical(logits=scores)
        phase = chances.sample()
        logs.append(chances.log_prob(phase))
        expected.append(value)
        entropies.append(chances.entropy())
        queues, gain = crossing.switch(phase.item())
        gains.append(gain)
    return torch.cat(logs), torch.cat(expected), torch.cat(entropies), gains


def learn(crossing, days, keep=0.98):
    lights = Lights(crossing.arms, crossing.phases)
    optimizer = torch.optim.RMSprop(lights.parameters(), lr=7e-4)
    for day in range(days):
        logs, expected, entropies, gains = one_day(lights, crossing)
        brought = discounted(gains, keep)
        surprise = brought - expected.detach()
        decisions = -(logs * surprise / (surprise.std() + 1e-6)).sum()
        baseline = F.huber_loss(expected, brought, reduction="sum")
        loss = decisions + baseline - 0.01 * entropies.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"day {day}: {sum(gains):.1f}, {len(gains)} decisions")
