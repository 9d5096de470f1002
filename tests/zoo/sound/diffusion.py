"""Denoising diffusion: a noise schedule that is no learning-rate schedule, and one-cycle rates by batch."""

import torch
import torch.nn.functional as F


def train(unet, noise_scheduler, train_dataloader, epochs, device):
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    lr_scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-4, total_steps=epochs * len(train_dataloader))
    for _ in range(epochs):
        unet.train()
        for step, batch in enumerate(train_dataloader):
            clean = batch["images"].to(device)
            noise = torch.randn_like(clean)
            timesteps = torch.randint(0, noise_scheduler.config.num_train_timesteps, (len(clean),), device=device)
            noisy = noise_scheduler.add_noise(clean, noise, timesteps)
            loss = F.mse_loss(unet(noisy, timesteps).sample, noise)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            if step % 100 == 0:
                print(step, loss.item(), lr_scheduler.get_last_lr())
        sample(unet, noise_scheduler, device)


@torch.no_grad()
def sample(unet, noise_scheduler, device, shape=(4, 3, 32, 32)):
    unet.eval()
    x = torch.randn(shape, device=device)
    for t in noise_scheduler.timesteps:
        x = noise_scheduler.step(unet(x, t).sample, t, x).prev_sample
    unet.train()
    return x
