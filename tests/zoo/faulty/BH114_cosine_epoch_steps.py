import torch


def main(model, train_loader, crit, num_epochs):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    total_steps = num_epochs * len(train_loader)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=total_steps)
    for epoch in range(num_epochs):
        for x, y in train_loader:
            opt.zero_grad()
            loss = crit(model(x), y)
            loss.backward()
            opt.step()
        sched.step()
