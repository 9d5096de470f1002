"""Encoder and decoder with an optimizer each; losses of a sequence are summed."""

import random

import torch
import torch.nn as nn
import torch.optim as optim


def train_iteration(input_tensor, target_tensor, encoder, decoder, encoder_optimizer, decoder_optimizer, criterion, teacher_forcing_ratio=0.5):
    encoder_optimizer.zero_grad()
    decoder_optimizer.zero_grad()
    loss = 0
    hidden = encoder.initHidden()
    for ei in range(input_tensor.size(0)):
        out, hidden = encoder(input_tensor[ei], hidden)
    dec_in = torch.tensor([[0]])
    for di in range(target_tensor.size(0)):
        out, hidden = decoder(dec_in, hidden)
        topv, topi = out.topk(1)
        dec_in = topi.squeeze().detach()
        loss += criterion(out, target_tensor[di])
    loss.backward()
    encoder_optimizer.step()
    decoder_optimizer.step()
    return loss.item() / target_tensor.size(0)


def train_iters(encoder, decoder, n_iters, pairs, lr=0.01):
    eo = optim.SGD(encoder.parameters(), lr=lr)
    do = optim.SGD(decoder.parameters(), lr=lr)
    criterion = nn.NLLLoss()
    total = 0
    for it in range(1, n_iters + 1):
        a, b = random.choice(pairs)
        loss = train_iteration(a, b, encoder, decoder, eo, do, criterion)
        total += loss
