"""Invented heartbeats against recorded ones, an optimizer each: hinge losses, and one forward of the generator for both."""

import torch
import torch.nn.functional as F


def compete(generator, critic, beats_loader, device, rounds, code=32):
    generator_steps = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
    critic_steps = torch.optim.Adam(critic.parameters(), lr=4e-4, betas=(0.0, 0.9))
    generator.train()
    critic.train()
    for _ in range(rounds):
        for recorded, _rhythm in beats_loader:
            recorded = recorded.to(device)
            invented = generator(torch.randn(len(recorded), code, device=device))

            critic_steps.zero_grad()
            critic_loss = F.relu(1 - critic(recorded)).mean() + F.relu(1 + critic(invented.detach())).mean()
            critic_loss.backward()
            critic_steps.step()

            generator_steps.zero_grad()
            generator_loss = -critic(invented).mean()
            generator_loss.backward()
            generator_steps.step()
