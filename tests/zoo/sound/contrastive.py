"""Scores between the samples of a batch on purpose: reports matched to heartbeats; and two views drawn together, one of them held still."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class BeatsAndReports(nn.Module):
    """How well each heartbeat of a batch fits each report; [B, B]."""

    def __init__(self, beat_network, report_network, beat_width, report_width, shared=128):
        super().__init__()
        self.beats = nn.Sequential(beat_network, nn.Linear(beat_width, shared, bias=False))
        self.reports = nn.Sequential(report_network, nn.Linear(report_width, shared, bias=False))
        self.sharpness = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, beats, reports):
        left, right = (F.normalize(part, dim=1) for part in (self.beats(beats), self.reports(reports)))
        return torch.einsum("id,jd->ij", left, right) * self.sharpness.exp()


def match(model, steps, beats, reports):
    fit = model(beats, reports)
    own = torch.arange(fit.shape[0], device=fit.device)
    loss = F.cross_entropy(fit, own).add(F.cross_entropy(fit.T, own)).div(2)
    steps.zero_grad()
    loss.backward()
    steps.step()
    with torch.no_grad():
        model.sharpness.clamp_(max=math.log(50.0))
    found = fit.detach().softmax(dim=0).diag().mean()
    return loss.item(), found.item()


class Views(nn.Module):
    """Each view's guess of the other; what is guessed is held still."""

    def __init__(self, network, width):
        super().__init__()
        self.network = network
        self.guess = nn.Sequential(nn.Linear(width, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, width))

    def forward(self, left, right):
        left, right = self.network(left), self.network(right)
        guesses = self.guess(left), self.guess(right)
        return guesses, (right.detach(), left.detach())


def draw_together(model, steps, left, right):
    guesses, held = model(left, right)
    loss = -sum(F.cosine_similarity(guess, still).mean() for guess, still in zip(guesses, held, strict=True)) / 2
    steps.zero_grad()
    loss.backward()
    steps.step()
    return loss.item()
