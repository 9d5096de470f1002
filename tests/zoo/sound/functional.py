"""Weights handed to the network from outside with torch.func: a gradient for each sample, a committee in one call, steps without an optimizer."""

import torch
import torch.nn.functional as F
from torch.func import functional_call, grad_and_value, stack_module_state, vmap


def influence(network, spectra, substances):
    """Length of each sample's own gradient, [B]: which rows pull hardest."""
    weights = {name: weight.detach() for name, weight in network.named_parameters()}

    def cost(weights, spectrum, substance):
        return F.cross_entropy(functional_call(network, weights, (spectrum[None],)), substance[None])

    slopes, _ = vmap(grad_and_value(cost), in_dims=(None, 0, 0))(weights, spectra, substances)
    return sum(slope.flatten(1).square().sum(1) for slope in slopes.values()).sqrt()


def descend(network, batches, rate=0.05, drag=0.9):
    weights = {name: weight.detach() for name, weight in network.named_parameters()}
    speed = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    def misfit(weights, x, y):
        return (functional_call(network, weights, (x,)) - y).square().mean()

    for x, y in batches:
        slopes, _ = grad_and_value(misfit)(weights, x, y)
        speed = {name: drag * speed[name] + slopes[name] for name in weights}
        weights = {name: weights[name] - rate * speed[name] for name in weights}
    return weights


def committee(networks, spectra):
    """Mean chance of each substance over all networks, and how far they disagree."""
    weights, buffers = stack_module_state(networks)
    opinions = vmap(lambda w, b: functional_call(networks[0], (w, b), (spectra,)))(weights, buffers).softmax(dim=-1)
    return opinions.mean(dim=0), opinions.std(dim=0)
