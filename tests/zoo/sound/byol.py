"""A network learns to predict its own slow copy, which follows it after every step."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class SelfTaught(nn.Module):
    def __init__(self, network, width):
        super().__init__()
        self.quick = nn.Sequential(network, nn.Linear(width, 96))
        self.slow = copy.deepcopy(self.quick)
        self.guess = nn.Bilinear(96, 96, 96)

    @torch.no_grad()
    def follow(self, share=0.004):
        for slow, quick in zip(self.slow.parameters(), self.quick.parameters()):
            slow.data += share * (quick.data - slow.data)

    def forward(self, once, again):
        seen = self.quick(once)
        aim = self.slow(again)
        return F.mse_loss(F.normalize(self.guess(seen, seen), dim=1), F.normalize(aim.detach(), dim=1))


def learn(model, views, steps):
    for once, again in views:
        loss = (model(once, again) + model(again, once)) / 2
        steps.zero_grad()
        loss.backward()
        steps.step()
        model.follow()
