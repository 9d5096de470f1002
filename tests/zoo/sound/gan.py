"""Generator against discriminator, an optimizer each."""

import torch
from torch import nn


def train(generator, discriminator, loader, device, epochs, latent=64):
    opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    generator.train()
    discriminator.train()
    for _ in range(epochs):
        for real, _ in loader:
            real = real.to(device)
            ones, zeros = torch.ones(len(real), 1, device=device), torch.zeros(len(real), 1, device=device)
            fake = generator(torch.randn(len(real), latent, device=device))

            opt_d.zero_grad()
            loss_d = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
            loss_d.backward()
            opt_d.step()

            opt_g.zero_grad()
            loss_g = criterion(discriminator(fake), ones)
            loss_g.backward()
            opt_g.step()
