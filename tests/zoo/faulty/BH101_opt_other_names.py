import torch


class Fitter:
    def __init__(self, net):
        self.net = net
        self.solver = torch.optim.AdamW(net.parameters())

    def fit(self, batches, loss_function):
        for epoch in range(5):
            for features, labels in batches:
                error = loss_function(self.net(features), labels)
                error.backward()
                self.solver.step()
