"""A slow mean of the weights is what is evaluated, chosen and kept."""

import copy

import torch
from torch import nn


class SlowMean:
    def __init__(self, network, memory=0.998):
        self.memory = memory
        self.network = copy.deepcopy(network).requires_grad_(False).eval()

    @torch.no_grad()
    def take_in(self, network):
        slow, quick = self.network.state_dict(), network.state_dict()
        for name, value in slow.items():
            if value.is_floating_point():
                value.lerp_(quick[name], 1 - self.memory)
            else:
                value.copy_(quick[name])


@torch.inference_mode()
def share_right(network, held_out, device):
    network.eval()
    right = torch.stack([(network(beats.to(device)).argmax(dim=1) == rhythm.to(device)).sum() for beats, rhythm in held_out])
    return right.sum().item() / len(held_out.dataset)


def fit(network, beats_loader, val_loader, rounds, device):
    slow = SlowMean(network)
    optimizer = torch.optim.RAdam(network.parameters(), lr=1e-3)
    cost = nn.CrossEntropyLoss()
    highest, kept = -1.0, None
    for _ in range(rounds):
        network.train()
        for beats, rhythm in beats_loader:
            loss = cost(network(beats.to(device)), rhythm.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            slow.take_in(network)
        right = share_right(slow.network, val_loader, device)
        if right > highest:
            highest, kept = right, {name: value.detach().clone() for name, value in slow.network.state_dict().items()}
    network.load_state_dict(kept)
    return network, highest
