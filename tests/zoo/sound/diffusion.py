"""Rain fields out of noise: a schedule of noise that is no learning-rate schedule, and one-cycle rates by the batch."""

import torch
from torch.optim.lr_scheduler import OneCycleLR


class Noising:
    """How much of a field is left after each of the steps towards noise."""

    def __init__(self, steps=400, device=None):
        self.left = torch.cos(torch.linspace(0.02, 1.55, steps, device=device)).square()
        self.steps = steps

    def blur(self, field, at):
        left = self.left[at].view(-1, 1, 1, 1)
        noise = torch.randn_like(field)
        return left.sqrt() * field + (1 - left).sqrt() * noise, noise

    def step(self, noisy, noise, at):
        """One step back, without new noise."""
        field = (noisy - (1 - self.left[at]).sqrt() * noise) / self.left[at].sqrt()
        before = self.left[at - 1] if at else torch.ones_like(self.left[0])
        return before.sqrt() * field + (1 - before).sqrt() * noise


def fit(denoiser, rain_loader, rounds, device):
    noise_schedule = Noising(device=device)
    optimizer = torch.optim.AdamW(denoiser.parameters(), lr=3e-4)
    rate = OneCycleLR(optimizer, max_lr=3e-4, total_steps=rounds * len(rain_loader))
    for number in range(rounds):
        denoiser.train()
        summed = torch.zeros((), device=device)
        for rain, _hour in rain_loader:
            rain = rain.to(device)
            at = torch.randint(noise_schedule.steps, (len(rain),), device=device)
            noisy, noise = noise_schedule.blur(rain, at)
            cost = (denoiser(noisy, at) - noise).square().mean()
            cost.backward()
            torch.nn.utils.clip_grad_value_(denoiser.parameters(), 0.5)
            optimizer.step()
            rate.step()
            optimizer.zero_grad()
            summed += cost.detach()
        print(f"{number}: {summed.item() / len(rain_loader):.4f}, rate {rate.get_last_lr()[0]:.1e}")
        torch.save(invent(denoiser, noise_schedule, device), f"rain_{number}.pt")


@torch.inference_mode()
def invent(denoiser, noise_schedule, device, fields=6, side=48):
    denoiser.eval()
    rain = torch.randn(fields, 1, side, side, device=device)
    for at in reversed(range(noise_schedule.steps)):
        noise = denoiser(rain, torch.full((fields,), at, device=device))
        rain = noise_schedule.step(rain, noise, at)
    denoiser.train()
    return rain
