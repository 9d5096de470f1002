"""Control of a water tower that is rewarded for variety: two judges, a pump, a price of variety that is learned, an optimizer each."""

import torch
import torch.nn.functional as F


class Control:
    def __init__(self, pump, judges, slow_judges, wanted_variety, rate=3e-4):
        self.pump, self.judges, self.slow_judges = pump, judges, slow_judges.requires_grad_(False)
        self.price = torch.zeros((), requires_grad=True)  # logarithm of what variety is worth
        self.wanted_variety = wanted_variety
        self.pump_steps = torch.optim.Adam(pump.parameters(), lr=rate)
        self.judge_steps = torch.optim.Adam(judges.parameters(), lr=rate)
        self.price_steps = torch.optim.Adam([self.price], lr=rate)

    def judge(self, levels, flow, gain, later, keep=0.99):
        with torch.no_grad():
            later_flow, log_chance = self.pump(later)
            worst = torch.minimum(*(judge(later, later_flow) for judge in self.slow_judges))
            aim = gain + keep * (worst - self.price.exp() * log_chance)
        cost = sum(F.mse_loss(judge(levels, flow), aim) for judge in self.judges)
        self.judge_steps.zero_grad()
        cost.backward()
        self.judge_steps.step()

    def act(self, levels):
        flow, log_chance = self.pump(levels)
        worth = torch.minimum(*(judge(levels, flow) for judge in self.judges))
        cost = (self.price.exp().detach() * log_chance - worth).mean()
        self.pump_steps.zero_grad()
        cost.backward()
        self.pump_steps.step()

        price_cost = -(self.price * (log_chance.detach() + self.wanted_variety)).mean()
        self.price_steps.zero_grad()
        price_cost.backward()
        self.price_steps.step()

    @torch.no_grad()
    def follow(self, share=0.01):
        for slow, fast in zip(self.slow_judges.parameters(), self.judges.parameters(), strict=True):
            slow.lerp_(fast, share)

    def learn(self, hours, steps, delay=3):
        for step in range(steps):
            levels, flow, gain, later = hours.draw(256)
            self.judge(levels, flow, gain, later)
            if step % delay == 0:
                for _ in range(delay):
                    self.act(levels)
            self.follow()
