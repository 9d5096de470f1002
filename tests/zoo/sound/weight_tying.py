"""A recurrent model of melodies: notes come in and go out by one table, and a state is carried on from stretch to stretch, cut from its past."""

import torch
import torch.nn.functional as F
from torch import nn


class Melody(nn.Module):
    def __init__(self, notes, width, drop=0.3):
        super().__init__()
        self.table = nn.Embedding(notes, width)
        self.carry = nn.GRU(width, width, num_layers=2, batch_first=True, dropout=drop)
        self.drop = nn.Dropout(drop)
        self.next = nn.Linear(width, notes, bias=False)
        self.next.weight = self.table.weight

    def forward(self, notes, state=None):
        """Log-chances [B, N, T] of what follows each of the notes [B, T], and the state after the last."""
        heard, state = self.carry(self.drop(self.table(notes)), state)
        chances = self.next(self.drop(heard)).transpose(1, 2)
        return F.log_softmax(chances, dim=1), state


def stretches(tunes, length):
    """Pieces of tunes [B, T] one after another, with the notes that follow."""
    for start in range(0, tunes.shape[1] - 1, length):
        stop = min(start + length, tunes.shape[1] - 1)
        yield tunes[:, start:stop], tunes[:, start + 1 : stop + 1]


nll = nn.NLLLoss()


def learn(melody, tunes, rate, length=48):
    """One passage with plain gradient steps by hand; returns the mean loss of a note."""
    melody.train()
    state, summed, notes = None, 0.0, 0
    for heard, following in stretches(tunes, length):
        melody.zero_grad()
        if state is not None:
            state = state.detach()
        chances, state = melody(heard, state)
        loss = nll(chances, following)
        loss.backward()
        nn.utils.clip_grad_norm_(melody.parameters(), 0.3)
        with torch.no_grad():
            for weight in melody.parameters():
                weight -= rate * weight.grad
        summed += loss.item() * following.numel()
        notes += following.numel()
    return summed / notes


@torch.inference_mode()
def surprise(melody, val_tunes, length=48):
    melody.eval()
    state, summed = None, 0.0
    for heard, following in stretches(val_tunes, length):
        chances, state = melody(heard, state)
        summed += nll(chances, following).item() * following.numel()
    return summed / val_tunes[:, 1:].numel()


def fit(melody, tunes, val_tunes, rounds, rate=2.0):
    best = float("inf")
    for _ in range(rounds):
        learn(melody, tunes, rate)
        held_out = surprise(melody, val_tunes)
        if held_out >= best:
            rate /= 3
        best = min(best, held_out)
    return best
