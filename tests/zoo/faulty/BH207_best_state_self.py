import torch


class ES:
    def __init__(self):
        self.best = None
        self.best_state = None

    def __call__(self, model, loss):
        if self.best is None or loss < self.best:
            self.best = loss
            self.best_state = model.state_dict()
