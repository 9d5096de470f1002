"""Tabular data: split first, statistics of the train rows, early stopping on validation, one look at the test rows."""

import copy

import numpy as np
import pandas as pd
import torch
from sklearn.compose import ColumnTransformer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder, OneHotEncoder, StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEED = 0
np.random.seed(SEED)
torch.manual_seed(SEED)


class Net(nn.Module):
    def __init__(self, width, hidden=(128, 64)):
        super().__init__()
        layers = []
        for size in hidden:
            layers += [nn.Linear(width, size), nn.BatchNorm1d(size), nn.ReLU(), nn.Dropout(0.2)]
            width = size
        layers.append(nn.Linear(width, 1))
        self.net = nn.Sequential(*layers)

    def forward(self, x):
        return self.net(x).squeeze(-1)


def run_epoch(model, loader, criterion, optimizer=None):
    model.train(optimizer is not None)
    total, rows, scores, labels = 0.0, 0, [], []
    with torch.set_grad_enabled(optimizer is not None):
        for x, y in loader:
            logits = model(x)
            loss = criterion(logits, y)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item() * len(y)
            rows += len(y)
            scores.append(torch.sigmoid(logits.detach()))
            labels.append(y)
    return total / rows, roc_auc_score(torch.cat(labels), torch.cat(scores))


def main(path):
    df = pd.read_csv(path)
    y = LabelEncoder().fit_transform(df["outcome"])
    X_train, X_rest, y_train, y_rest = train_test_split(df.drop(columns=["outcome"]), y, test_size=0.4, random_state=SEED, stratify=y)
    X_val, X_test, y_val, y_test = train_test_split(X_rest, y_rest, test_size=0.5, random_state=SEED, stratify=y_rest)
    numeric = X_train.select_dtypes("number").columns
    prepare = make_pipeline(ColumnTransformer([("n", StandardScaler(), numeric)], remainder=OneHotEncoder(handle_unknown="ignore")))
    arrays = [prepare.fit_transform(X_train), prepare.transform(X_val), prepare.transform(X_test)]
    sets = [
        TensorDataset(torch.tensor(a, dtype=torch.float32), torch.tensor(b, dtype=torch.float32)) for a, b in zip(arrays, (y_train, y_val, y_test), strict=True)
    ]
    train_loader = DataLoader(sets[0], batch_size=256, shuffle=True)
    val_loader, test_loader = DataLoader(sets[1], batch_size=1024), DataLoader(sets[2], batch_size=1024)
    model = Net(arrays[0].shape[1])
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor((y_train == 0).sum() / (y_train == 1).sum()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=3)
    best_auc, best_state, bad_epochs = 0.0, None, 0
    for _ in range(100):
        run_epoch(model, train_loader, criterion, optimizer)
        _, auc = run_epoch(model, val_loader, criterion)
        scheduler.step(auc)
        if auc > best_auc:
            best_auc, best_state, bad_epochs = auc, copy.deepcopy(model.state_dict()), 0
        else:
            bad_epochs += 1
            if bad_epochs >= 10:
                break
    model.load_state_dict(best_state)
    test_loss, test_auc = run_epoch(model, test_loader, criterion)
    print(f"test loss {test_loss:.4f}, AUROC {test_auc:.4f}")
