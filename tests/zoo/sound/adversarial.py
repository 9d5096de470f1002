"""Spectra are disturbed against a network that learns to bear it; and a spectrum is sought that a network takes for a given substance."""

import torch
import torch.nn.functional as F

REACH = 0.03  # of the highest line


def disturbed(network, spectra, substances, rounds=7):
    """Spectra [B, L] moved within REACH to where the loss is highest."""
    network.eval()
    shift = torch.empty_like(spectra).uniform_(-REACH, REACH)
    for _ in range(rounds):
        shift = shift.detach().requires_grad_()
        loss = F.cross_entropy(network(spectra + shift), substances)
        (uphill,) = torch.autograd.grad(loss, [shift])
        shift = (shift + REACH / 3 * uphill.sign()).clamp(-REACH, REACH)
    network.train()
    return (spectra + shift).clamp(min=0).detach()


def learn(network, train_loader, optimizer, scheduler):
    network.train()
    for spectra, substances in train_loader:
        moved = disturbed(network, spectra, substances)
        loss = F.cross_entropy(network(moved), substances)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()


def borne(network, test_loader):
    """The share of held-out spectra that are still told when disturbed."""
    right = rows = 0
    for spectra, substances in test_loader:
        moved = disturbed(network, spectra, substances)
        network.eval()
        with torch.inference_mode():
            right += (network(moved).argmax(dim=1) == substances).sum().item()
        rows += len(substances)
    return right / rows


def taken_for(network, substance, length, rounds=300):
    network.eval()
    for weight in network.parameters():
        weight.requires_grad_(False)
    spectrum = torch.full((1, length), 0.1, requires_grad=True)
    optimizer = torch.optim.Rprop([spectrum], lr=0.01)
    for _ in range(rounds):
        optimizer.zero_grad()
        rough = (spectrum[:, 1:] - spectrum[:, :-1]).abs().sum()
        loss = F.cross_entropy(network(spectrum), substance) + 1e-3 * rough
        loss.backward()
        optimizer.step()
    return spectrum.detach()
