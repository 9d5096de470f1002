"""A target network that follows the online one."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class BYOL(nn.Module):
    def __init__(self, net, dim):
        super().__init__()
        self.online = nn.Sequential(net, nn.Linear(dim, 128))
        self.predictor = nn.Linear(128, 128)
        self.target = copy.deepcopy(self.online)

    @torch.no_grad()
    def update(self, m=0.99):
        for o, t in zip(self.online.parameters(), self.target.parameters()):
            t.data.mul_(m).add_(o.data, alpha=1 - m)

    def forward(self, a, b):
        p = self.predictor(self.online(a))
        with torch.no_grad():
            z = self.target(b)
        return 2 - 2 * F.cosine_similarity(p, z.detach(), dim=-1).mean()


def train(model, loader, opt):
    for a, b in loader:
        loss = model(a, b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        model.update()
