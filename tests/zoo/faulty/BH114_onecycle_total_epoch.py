import torch


def main(model, train_loader, epochs, loss_fn):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    steps = len(train_loader) * epochs
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=steps)
    for epoch in range(epochs):
        train_one_epoch(model, train_loader, optimizer, loss_fn)
        scheduler.step()


def train_one_epoch(model, loader, optimizer, loss_fn):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
