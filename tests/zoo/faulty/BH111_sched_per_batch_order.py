import torch


def main(model, loader, crit, optimizer, scheduler):
    for epoch in range(3):
        scheduler.step()
        for x, y in loader:
            optimizer.zero_grad()
            crit(model(x), y).backward()
            optimizer.step()
