"""Names written in one script are spelled in another: a reader and a writer with an optimizer each, and losses summed over letters."""

import torch
from torch import nn

FIRST = 1  # the letter that opens a spelling


class Writer(nn.Module):
    def __init__(self, letters, width):
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.cell = nn.GRUCell(width, width)
        self.scores = nn.Linear(width, letters)

    def forward(self, letter, state):
        state = self.cell(self.letters(letter), state)
        return self.scores(state), state


def spelling_loss(reader, writer, name, spelling, loss_fn, shown):
    """Summed over the letters of spellings [B, T]; `shown` is the share of steps that see the right letter before."""
    _, state = reader(name)
    state = state[-1]
    letter = torch.full_like(spelling[:, 0], FIRST)
    loss = 0.0
    for right in spelling.unbind(dim=1):
        scores, state = writer(letter, state)
        loss = loss + loss_fn(scores, right)
        letter = right if torch.rand(()) < shown else scores.detach().argmax(dim=1)
    return loss


def fit(reader, writer, pairs_loader, rounds):
    steps = [torch.optim.NAdam(part.parameters(), lr=1e-3) for part in (reader, writer)]
    reader_steps, writer_steps = steps
    loss_fn = nn.CrossEntropyLoss(ignore_index=0)
    for number in range(rounds):
        summed = 0.0
        for name, spelling in pairs_loader:
            reader_steps.zero_grad()
            writer_steps.zero_grad()
            loss = spelling_loss(reader, writer, name, spelling, loss_fn, shown=1 - number / rounds)
            loss.backward()
            reader_steps.step()
            writer_steps.step()
            summed += loss.item() / spelling.shape[1]
        print(number, summed / len(pairs_loader))
