"""Weather fields invented and judged: gradients cleared through the networks, two backwards a step, and a graph that both sides use."""

import torch
from torch import nn

NOISE = 24


class Inventor(nn.Module):
    """Noise to fields of temperature and pressure on a grid of 16 by 16."""

    def __init__(self):
        super().__init__()
        self.start = nn.Linear(NOISE, 32 * 4 * 4)
        self.grow = nn.Sequential(
            nn.Upsample(scale_factor=2),
            nn.Conv2d(32, 16, 3, padding=1),
            nn.GroupNorm(4, 16),
            nn.SiLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(16, 2, 3, padding=1),
        )

    def forward(self, noise):
        return self.grow(self.start(noise).unflatten(1, (32, 4, 4)))


class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 16, 5, stride=2), nn.SiLU(), nn.Conv2d(16, 32, 3, stride=2), nn.SiLU(), nn.Flatten(), nn.LazyLinear(1), nn.Sigmoid()
        )

    def forward(self, fields):
        return self.layers(fields).squeeze(1)


inventor, judge = Inventor(), Judge()
judge(torch.zeros(1, 2, 16, 16))
bce = nn.BCELoss()
judge_steps = torch.optim.RMSprop(judge.parameters(), lr=5e-4)
inventor_steps = torch.optim.RMSprop(inventor.parameters(), lr=5e-4)


def compete(measured_loader, rounds):
    judged, fooled = [], []
    for number in range(rounds):
        for measured, _station in measured_loader:
            verdict = torch.ones(len(measured))
            judge.zero_grad()
            on_measured = bce(judge(measured), verdict)
            on_measured.backward()
            invented = inventor(torch.randn(len(measured), NOISE))
            verdict.zero_()
            on_invented = bce(judge(invented.detach()), verdict)
            on_invented.backward()
            judge_steps.step()
            both = on_measured + on_invented
            judged.append(both.item())

            inventor.zero_grad()
            verdict.fill_(1)
            deceit = bce(judge(invented), verdict)
            deceit.backward()
            inventor_steps.step()
            fooled.append(deceit.item())
        print(f"round {number}: judge {judged[-1]:.3f}, inventor {fooled[-1]:.3f}")
    return judged, fooled
