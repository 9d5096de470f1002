import torch
import torchvision
from torch import nn

model = torchvision.models.resnet50(weights="DEFAULT")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model.fc = nn.Linear(2048, 5)
