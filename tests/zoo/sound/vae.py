"""A variational autoencoder of heartbeats: both terms of its loss are summed over a batch, and reported by the beat."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence

SAMPLES = 250  # of one lead, around the R wave


class BeatVAE(nn.Module):
    def __init__(self, hidden=96, code=8):
        super().__init__()
        self.look = nn.Sequential(nn.Conv1d(1, 12, 9, stride=5), nn.ELU(), nn.Flatten(), nn.LazyLinear(hidden), nn.ELU())
        self.centre = nn.Linear(hidden, code)
        self.spread = nn.Linear(hidden, code)
        self.draw = nn.Sequential(nn.Linear(code, hidden), nn.ELU(), nn.Linear(hidden, SAMPLES))

    def posterior(self, beats):
        seen = self.look(beats.unsqueeze(1))
        return Normal(self.centre(seen), F.softplus(self.spread(seen)) + 1e-4)

    def forward(self, beats):
        posterior = self.posterior(beats)
        return self.draw(posterior.rsample()), posterior


def cost(beats, drawn, posterior, noise=0.05):
    misfit = F.mse_loss(drawn, beats, reduction="sum") / (2 * noise**2)
    return misfit + kl_divergence(posterior, Normal(0.0, 1.0)).sum()


def go_through(vae, beats_loader, optimizer):
    summed = 0.0
    for beats, _rhythm in beats_loader:
        optimizer.zero_grad()
        drawn, posterior = vae(beats)
        loss = cost(beats, drawn, posterior)
        loss.backward()
        optimizer.step()
        summed += loss.item()
    return summed / len(beats_loader.dataset)


def fit(train_loader, val_loader, rounds=30):
    vae = BeatVAE()
    vae(torch.zeros(1, SAMPLES))  # the lazy layer learns its width
    optimizer = torch.optim.Adamax(vae.parameters(), lr=2e-3)
    for number in range(rounds):
        vae.train()
        by_beat = go_through(vae, train_loader, optimizer)
        vae.eval()
        with torch.inference_mode():
            held_out = sum(cost(beats, *vae(beats)).item() for beats, _rhythm in val_loader)
            invented = vae.draw(torch.randn(16, 8))
        print(f"{number:3}: {by_beat:8.2f} a beat, held out {held_out / len(val_loader.dataset):8.2f}")
        torch.save(invented, f"beats_{number:03}.pt")
    return vae
