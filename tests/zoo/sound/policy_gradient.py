"""REINFORCE with a baseline: losses of an episode are summed, and then propagated once."""

from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine = nn.Linear(4, 128)
        self.dropout = nn.Dropout(p=0.6)
        self.action_head = nn.Linear(128, 2)
        self.value_head = nn.Linear(128, 1)
        self.saved = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.dropout(self.affine(x)))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-2)


def select_action(state):
    probs, value = policy(torch.from_numpy(state).float())
    m = Categorical(probs)
    action = m.sample()
    policy.saved.append((m.log_prob(action), value))
    return action.item()


def finish_episode(gamma=0.99):
    R, returns, policy_losses, value_losses = 0, deque(), [], []
    for r in policy.rewards[::-1]:
        R = r + gamma * R
        returns.appendleft(R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-8)
    for (log_prob, value), R in zip(policy.saved, returns, strict=True):
        policy_losses.append(-log_prob * (R - value.item()))
        value_losses.append(F.smooth_l1_loss(value, R.view(1)))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
    loss.backward()
    optimizer.step()
    policy.saved.clear()
    policy.rewards.clear()


def main(env, episodes):
    for _ in range(episodes):
        state, _ = env.reset()
        for _ in range(1000):
            state, reward, done, _, _ = env.step(select_action(state))
            policy.rewards.append(reward)
            if done:
                break
        finish_episode()
