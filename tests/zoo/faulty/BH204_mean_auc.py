import numpy as np
import torch
from sklearn.metrics import roc_auc_score


def evaluate(model, val_loader):
    model.eval()
    aucs = []
    with torch.no_grad():
        for x, y in val_loader:
            p = torch.sigmoid(model(x))
            aucs.append(roc_auc_score(y.numpy(), p.numpy()))
    return np.mean(aucs)
