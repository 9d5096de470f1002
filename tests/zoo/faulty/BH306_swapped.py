import torch.nn.functional as F


def step(model, x, y):
    logits = model(x)
    return F.cross_entropy(y, logits)
