import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
criterion = nn.BCEWithLogitsLoss()
opt = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        opt.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        opt.step()
