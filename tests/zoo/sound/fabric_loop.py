"""A loop with Fabric, and one with a plain accumulation window on two optimizers' schedulers."""

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR


def main(model, dataset, epochs=3):
    fabric = Fabric(accelerator="auto", devices=1, precision="bf16-mixed")
    fabric.launch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True))
    warmup = LinearLR(optimizer, start_factor=0.01, total_iters=100)
    cosine = CosineAnnealingLR(optimizer, T_max=epochs * len(loader) - 100)
    scheduler = SequentialLR(optimizer, [warmup, cosine], milestones=[100])
    model.train()
    for _ in range(epochs):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            scheduler.step()
    fabric.save("last.ckpt", {"model": model})
