"""WGAN with gradient penalty: several critic steps for one of the generator, and a graph that is used twice."""

import torch


def gradient_penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1, 1, 1, device=real.device)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = critic(mixed)
    (gradients,) = torch.autograd.grad(scores, mixed, torch.ones_like(scores), create_graph=True, retain_graph=True)
    return ((gradients.flatten(1).norm(2, dim=1) - 1) ** 2).mean()


def train(generator, critic, loader, opt_g, opt_c, latent, n_critic=5, weight=10.0):
    for step, (real, _) in enumerate(loader):
        noise = torch.randn(real.size(0), latent, 1, 1, device=real.device)
        fake = generator(noise)
        critic_loss = critic(fake.detach()).mean() - critic(real).mean() + weight * gradient_penalty(critic, real, fake.detach())
        opt_c.zero_grad()
        critic_loss.backward(retain_graph=True)
        opt_c.step()
        if step % n_critic == 0:
            opt_g.zero_grad()
            generator_loss = -critic(fake).mean()
            generator_loss.backward()
            opt_g.step()
