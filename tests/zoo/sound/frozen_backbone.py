"""A head on a frozen backbone whose batch norm stays in eval mode."""

import torch
from torch import nn
from torchvision import models


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = models.resnet18(weights="DEFAULT")
        self.backbone.fc = nn.Identity()
        for p in self.backbone.parameters():
            p.requires_grad = False
        self.head = nn.Linear(512, classes)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        with torch.no_grad():
            features = self.backbone(x)
        return self.head(features)


def fit(train_loader, val_loader, device, epochs):
    model = Classifier(10).to(device)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    best = 0.0
    for _ in range(epochs):
        model.train()
        for x, y in train_loader:
            x, y = x.to(device), y.to(device)
            loss = loss_fn(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        scheduler.step()
        model.eval()
        correct = total = 0
        with torch.inference_mode():
            for x, y in val_loader:
                correct += (model(x.to(device)).argmax(1).cpu() == y).sum().item()
                total += len(y)
        if correct / total > best:
            best = correct / total
            torch.save(model.state_dict(), "best.pt")
    return best
