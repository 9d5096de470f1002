"""CLIP-like and SimSiam-like losses: scores between the samples of a batch on purpose, and a stopped gradient."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Pair(nn.Module):
    def __init__(self, image, text, width):
        super().__init__()
        self.image, self.text = image, text
        self.image_projection = nn.Linear(width, 256)
        self.text_projection = nn.Linear(width, 256)
        self.logit_scale = nn.Parameter(torch.ones([]) * np.log(1 / 0.07))

    def forward(self, images, tokens):
        u = F.normalize(self.image_projection(self.image(images)), dim=-1)
        v = F.normalize(self.text_projection(self.text(tokens)), dim=-1)
        return self.logit_scale.exp() * u @ v.t()


class SimSiam(nn.Module):
    def __init__(self, backbone, width):
        super().__init__()
        self.encoder = backbone
        self.predictor = nn.Sequential(nn.Linear(width, width // 4), nn.ReLU(), nn.Linear(width // 4, width))

    def forward(self, x1, x2):
        z1, z2 = self.encoder(x1), self.encoder(x2)
        return self.predictor(z1), self.predictor(z2), z1.detach(), z2.detach()


def clip_step(model, optimizer, images, tokens):
    logits = model(images, tokens)
    labels = torch.arange(len(logits), device=logits.device)
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        model.logit_scale.clamp_(0, np.log(100))
    agreement = logits.softmax(dim=0).diagonal().mean()
    return loss.item(), agreement.item()
