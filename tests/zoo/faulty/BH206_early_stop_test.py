import torch


def fit(model, train_loader, test_loader, opt, crit):
    best_loss = float("inf")
    for epoch in range(10):
        train_epoch(model, train_loader, opt, crit)
        test_loss, test_acc = evaluate(model, test_loader)
        if test_loss < best_loss:
            best_loss = test_loss
            torch.save(model.state_dict(), "best.pt")
