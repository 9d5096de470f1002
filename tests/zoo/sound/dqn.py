"""Q-learning of when to heat a house: a ring of remembered hours, and a slow copy of the network that gives the targets."""

import copy

import torch
from torch import nn

MEASURED, LEVELS = 6, 3  # temperatures and prices; off, half, full


class Remembered:
    """The last hours lived through, overwritten in a ring."""

    def __init__(self, room=20_000):
        self.before, self.after = torch.zeros(room, MEASURED), torch.zeros(room, MEASURED)
        self.level, self.gain = torch.zeros(room, dtype=torch.long), torch.zeros(room)
        self.seen = 0

    def add(self, before, level, gain, after):
        at = self.seen % len(self.gain)
        self.before[at], self.level[at], self.gain[at], self.after[at] = before, level, gain, after
        self.seen += 1

    def draw(self, rows):
        chosen = torch.randint(min(self.seen, len(self.gain)), (rows,))
        return self.before[chosen], self.level[chosen], self.gain[chosen], self.after[chosen]


class Thermostat:
    def __init__(self, patience=0.97):
        self.worth = nn.Sequential(nn.Linear(MEASURED, 48), nn.Tanh(), nn.Linear(48, LEVELS))
        self.slow = copy.deepcopy(self.worth).requires_grad_(False)
        self.steps = torch.optim.RAdam(self.worth.parameters(), lr=5e-4)
        self.remembered = Remembered()
        self.patience = patience

    @torch.no_grad()
    def choose(self, measured, curiosity):
        if torch.rand(()) < curiosity:
            return int(torch.randint(LEVELS, ()))
        return int(self.worth(measured).argmax())

    def learn(self, rows=64):
        before, level, gain, after = self.remembered.draw(rows)
        with torch.no_grad():
            best = self.worth(after).argmax(dim=1, keepdim=True)  # chosen by one network, valued by the other
            aim = gain + self.patience * self.slow(after).gather(1, best).squeeze(1)
        error = nn.functional.huber_loss(self.worth(before).gather(1, level[:, None]).squeeze(1), aim)
        self.steps.zero_grad()
        error.backward()
        nn.utils.clip_grad_norm_(self.worth.parameters(), 5.0)
        self.steps.step()

    def live(self, house, hours, refresh=500):
        measured = house.now()
        for hour in range(hours):
            level = self.choose(measured, curiosity=max(0.02, 1 - hour / 5_000))
            after, gain = house.heat(level)
            self.remembered.add(measured, level, gain, after)
            measured = after
            if hour >= 200:
                self.learn()
            if hour % refresh == 0:
                self.slow.load_state_dict(self.worth.state_dict())
