"""Meta-learning: an inner loop by hand, an outer step, and sharpness-aware minimisation."""

import torch
import torch.nn.functional as F
from torch.func import functional_call


def meta_train(model, tasks, meta_lr=1e-3, inner_lr=0.1, inner_steps=5):
    meta_optimizer = torch.optim.Adam(model.parameters(), lr=meta_lr)
    for batch_of_tasks in tasks:
        meta_optimizer.zero_grad()
        meta_loss = 0.0
        for x_support, y_support, x_query, y_query in batch_of_tasks:
            weights = dict(model.named_parameters())
            for _ in range(inner_steps):
                loss = F.mse_loss(functional_call(model, weights, (x_support,)), y_support)
                grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
                weights = {k: w - inner_lr * g for (k, w), g in zip(weights.items(), grads, strict=True)}
            meta_loss = meta_loss + F.mse_loss(functional_call(model, weights, (x_query,)), y_query)
        (meta_loss / len(batch_of_tasks)).backward()
        meta_optimizer.step()


def sam_step(model, optimizer, x, y):
    F.cross_entropy(model(x), y).backward()
    optimizer.first_step(zero_grad=True)
    F.cross_entropy(model(x), y).backward()
    optimizer.second_step(zero_grad=True)


def train_with_sam(model, optimizer, loader):
    for x, y in loader:
        sam_step(model, optimizer, x, y)
