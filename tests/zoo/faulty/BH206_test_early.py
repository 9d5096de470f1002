def main(model, train_loader, test_loader, epochs):
    import torch

    best_acc, wait = 0, 0
    for epoch in range(epochs):
        train(model, train_loader)
        acc = test(model, test_loader)
        if acc > best_acc:
            best_acc = acc
            wait = 0
        else:
            wait += 1
            if wait > 3:
                break
