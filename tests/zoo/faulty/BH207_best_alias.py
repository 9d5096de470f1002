import torch


def fit(model, tl, vl):
    best = 0
    for epoch in range(3):
        train_epoch(model, tl)
        acc = evaluate(model, vl)
        if acc > best:
            best = acc
            best_model = model
    return best_model
