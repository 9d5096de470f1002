"""Deep Q-learning with a target network and a replay memory."""

import random
from collections import deque

import torch
from torch import nn, optim

policy_net = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2))
target_net = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2))
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=1e-4, amsgrad=True)
memory = deque(maxlen=10000)


def optimize_model(batch_size=128, gamma=0.99):
    if len(memory) < batch_size:
        return
    states, actions, rewards, following, done = map(torch.stack, zip(*random.sample(memory, batch_size), strict=True))
    q = policy_net(states).gather(1, actions)
    with torch.no_grad():
        best_next = target_net(following).max(1).values
    expected = rewards + gamma * best_next * (1 - done)
    loss = nn.SmoothL1Loss()(q, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()


def run(env, episodes, tau=0.005):
    for _ in range(episodes):
        state = torch.tensor(env.reset()[0])
        while True:
            with torch.no_grad():
                action = policy_net(state).argmax()
            observation, reward, terminated, truncated, _ = env.step(action.item())
            following = torch.tensor(observation)
            memory.append((state, action.view(1), torch.tensor(reward), following, torch.tensor(float(terminated))))
            state = following
            optimize_model()
            target_state, policy_state = target_net.state_dict(), policy_net.state_dict()
            for key in policy_state:
                target_state[key] = policy_state[key] * tau + target_state[key] * (1 - tau)
            target_net.load_state_dict(target_state)
            if terminated or truncated:
                break
