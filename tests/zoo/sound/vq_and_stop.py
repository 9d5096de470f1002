"""Stop-gradients that are meant: straight-through codes, a detached auxiliary head, a momentum encoder."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class VectorQuantizer(nn.Module):
    def __init__(self, codes, width):
        super().__init__()
        self.embedding = nn.Embedding(codes, width)

    def forward(self, z):
        flat = z.reshape(-1, z.shape[-1])
        indices = torch.cdist(flat, self.embedding.weight).argmin(1)
        quantized = self.embedding(indices).view_as(z)
        loss = F.mse_loss(quantized, z.detach()) + 0.25 * F.mse_loss(quantized.detach(), z)
        quantized = z + (quantized - z).detach()
        return quantized, loss, indices


class MoCo(nn.Module):
    def __init__(self, encoder, dim=128, size=65536, m=0.999):
        super().__init__()
        self.encoder_q = encoder
        self.encoder_k = copy.deepcopy(encoder)
        for param in self.encoder_k.parameters():
            param.requires_grad = False
        self.m = m
        self.register_buffer("queue", F.normalize(torch.randn(dim, size), dim=0))

    @torch.no_grad()
    def _momentum_update(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            k.data = k.data * self.m + q.data * (1.0 - self.m)

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update()
            k = F.normalize(self.encoder_k(im_k), dim=1)
        positive = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        logits = torch.cat([positive, negative], dim=1) / 0.07
        return logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device)


class ActorCritic(nn.Module):
    def __init__(self, body, width, actions):
        super().__init__()
        self.body = body
        self.actor = nn.Linear(width, actions)
        self.critic = nn.Linear(width, 1)
        self.last_features = None

    def forward(self, x):
        features = self.body(x)
        self.last_features = features.detach()
        return self.actor(features), self.critic(features.detach()).squeeze(-1)
