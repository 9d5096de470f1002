"""Gradients stopped on purpose: codes passed straight through, a slow twin that only follows, a side head that must not teach the body."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Codebook(nn.Module):
    """Each vector is replaced by the nearest of a few; the gradient goes past the replacement."""

    def __init__(self, codes, width, commitment=0.3):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(codes, width))
        self.commitment = commitment

    def forward(self, vectors):
        with torch.no_grad():
            nearest = torch.cdist(vectors.flatten(0, -2), self.codes).argmin(dim=-1).unflatten(0, vectors.shape[:-1])
        chosen = self.codes[nearest]
        pull_codes = (chosen - vectors.detach()).square().mean()
        pull_vectors = (vectors - chosen.detach()).square().mean()
        return vectors + (chosen - vectors).detach(), pull_codes + self.commitment * pull_vectors, nearest


class BeatTwins(nn.Module):
    """Two views of a heartbeat should resemble each other more than they do the beats kept from before."""

    def __init__(self, network, width, kept=4096, heat=0.1):
        super().__init__()
        self.network = network
        self.twin = copy.deepcopy(network).requires_grad_(False)
        self.heat = heat
        self.register_buffer("kept", F.normalize(torch.randn(kept, width), dim=1))

    @torch.no_grad()
    def follow(self, share=0.005):
        for slow, fast in zip(self.twin.parameters(), self.network.parameters(), strict=True):
            slow.lerp_(fast, share)

    @torch.no_grad()
    def keep(self, seen):
        self.kept = torch.cat([seen, self.kept])[: len(self.kept)]

    def forward(self, view, other):
        asked = F.normalize(self.network(view), dim=1)
        with torch.no_grad():
            seen = F.normalize(self.twin(other), dim=1)
        own = (asked * seen).sum(dim=1, keepdim=True)
        foreign = asked @ self.kept.clone().detach().T
        scores = torch.cat([own, foreign], dim=1) / self.heat
        self.keep(seen)
        return F.cross_entropy(scores, scores.new_zeros(len(scores), dtype=torch.long))


class Watched(nn.Module):
    """A classifier with a side head that guesses the recording device from features it must not shape."""

    def __init__(self, body, width, classes, devices):
        super().__init__()
        self.body = body
        self.classes = nn.Linear(width, classes)
        self.devices = nn.Linear(width, devices)
        self.last_features = None

    def forward(self, signal):
        features = self.body(signal)
        self.last_features = features.detach()
        return self.classes(features), self.devices(features.detach())


class Probe(nn.Module):
    """What a trained body already knows: one linear layer on features that no gradient reaches, said twice."""

    def __init__(self, trained, width, classes):
        super().__init__()
        self.body = nn.Sequential(trained, nn.AdaptiveAvgPool1d(1), nn.Flatten())
        self.found = nn.Linear(width, classes)

    def forward(self, signal):
        with torch.no_grad():
            features = self.body(signal)
        return self.found(features.detach())
