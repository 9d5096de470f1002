"""A critic held to slope one: it takes several steps for one of the generator, and the last graph is used by both."""

import torch


def slope_cost(critic, measured, invented):
    """How far the critic's slope is from one, between measured rows and invented ones; [B, C] each."""
    share = torch.rand(len(measured), 1, device=measured.device)
    between = torch.lerp(measured, invented, share).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return (slope.norm(dim=1) - 1).square().mean()


def compete(generator, critic, loader, generator_steps, critic_steps, code, turns=4, strength=5.0):
    for turn, (measured, _) in enumerate(loader, start=1):
        invented = generator(torch.randn(len(measured), code, device=measured.device))
        apart = critic(measured).mean() - critic(invented.detach()).mean()
        critic_loss = strength * slope_cost(critic, measured, invented.detach()) - apart
        critic_steps.zero_grad()
        critic_loss.backward(retain_graph=True)
        critic_steps.step()
        if turn % turns:
            continue
        generator_steps.zero_grad()
        generator_loss = -critic(invented).mean()
        generator_loss.backward()
        generator_steps.step()
