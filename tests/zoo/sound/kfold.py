"""Cross-validation: a new network and a new optimizer for each fold; and a search over seeds."""

import numpy as np
import torch
from sklearn.model_selection import GroupKFold
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_model(width):
    return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 1))


def cross_validate(X, y, patient_id, epochs=20):
    scores = []
    for fold, (train_idx, val_idx) in enumerate(GroupKFold(5).split(X, y, groups=patient_id)):
        torch.manual_seed(fold)
        scaler = StandardScaler().fit(X[train_idx])
        X_train, X_val = (torch.tensor(scaler.transform(X[i]), dtype=torch.float32) for i in (train_idx, val_idx))
        y_train, y_val = (torch.tensor(y[i], dtype=torch.float32).unsqueeze(1) for i in (train_idx, val_idx))
        model = make_model(X.shape[1])
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        loss_fn = nn.MSELoss()
        loader = DataLoader(TensorDataset(X_train, y_train), batch_size=64, shuffle=True)
        for _ in range(epochs):
            model.train()
            for xb, yb in loader:
                optimizer.zero_grad()
                loss = loss_fn(model(xb), yb)
                loss.backward()
                optimizer.step()
        model.eval()
        with torch.no_grad():
            scores.append(loss_fn(model(X_val), y_val).item())
    return np.mean(scores), np.std(scores)
