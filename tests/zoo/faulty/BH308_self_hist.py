import torch


class T:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), 0.1)
        self.losses = []

    def fit(self, loader, crit):
        for x, y in loader:
            self.opt.zero_grad()
            loss = crit(self.model(x), y)
            loss.backward()
            self.opt.step()
            self.losses.append(loss)
