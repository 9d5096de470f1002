import torch


class Trainer:
    def __init__(self, model, opt, crit):
        self.model, self.opt, self.crit = model, opt, crit

    def train_epoch(self, loader):
        self.model.train()
        for x, y in loader:
            self.opt.zero_grad()
            self.crit(self.model(x), y).backward()
            self.opt.step()

    def evaluate(self, loader):
        total = 0
        with torch.no_grad():
            for x, y in loader:
                total += self.crit(self.model(x), y).item() * len(y)
        return total / len(loader.dataset)
