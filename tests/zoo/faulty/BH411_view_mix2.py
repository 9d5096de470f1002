import torch


def f(x):
    return x.view(x.size(1), x.size(0), -1)
