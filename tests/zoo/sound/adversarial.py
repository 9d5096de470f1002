"""Adversarial training and an attack that optimises its input."""

import torch
import torch.nn.functional as F


def pgd(model, x, y, eps=8 / 255, alpha=2 / 255, steps=10):
    model.eval()
    delta = torch.zeros_like(x).uniform_(-eps, eps)
    for _ in range(steps):
        delta.requires_grad_(True)
        loss = F.cross_entropy(model(x + delta), y)
        (grad,) = torch.autograd.grad(loss, delta)
        delta = (delta.detach() + alpha * grad.sign()).clamp(-eps, eps)
        delta = (x + delta).clamp(0, 1) - x
    model.train()
    return (x + delta).detach()


def invert(model, target, shape, steps=200):
    model.eval()
    for p in model.parameters():
        p.requires_grad_(False)
    image = torch.randn(shape, requires_grad=True)
    optimizer = torch.optim.Adam([image], lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(model(image), target) + 1e-4 * image.abs().mean()
        loss.backward()
        optimizer.step()
    return image.detach()


def train(model, train_loader, optimizer, scheduler, device):
    model.train()
    for x, y in train_loader:
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(model(pgd(model, x, y)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()


def robust_accuracy(model, test_loader, device):
    correct = total = 0
    for x, y in test_loader:
        x, y = x.to(device), y.to(device)
        adversarial = pgd(model, x, y)
        model.eval()
        with torch.no_grad():
            correct += (model(adversarial).argmax(1) == y).sum().item()
        total += len(y)
    return correct / total
