import torch
import torchvision

model = torchvision.models.resnet50(weights="DEFAULT")
model.requires_grad = False
model.fc = torch.nn.Linear(2048, 5)
opt = torch.optim.Adam(model.fc.parameters())
