"""Three optimizers, delayed updates, polyak averaging."""

import torch
import torch.nn.functional as F


def update(actor, qf1, qf2, qf1_target, q_optimizer, actor_optimizer, rb, args, log_alpha, a_optimizer):
    for global_step in range(args.total):
        data = rb.sample(args.batch_size)
        with torch.no_grad():
            next_actions, next_log_pi, _ = actor.get_action(data.next_observations)
            target = qf1_target(data.next_observations, next_actions)
        q_loss = F.mse_loss(qf1(data.observations, data.actions).view(-1), target) + F.mse_loss(qf2(data.observations, data.actions).view(-1), target)
        q_optimizer.zero_grad()
        q_loss.backward()
        q_optimizer.step()
        if global_step % args.policy_frequency == 0:
            for _ in range(args.policy_frequency):
                pi, log_pi, _ = actor.get_action(data.observations)
                actor_loss = (log_alpha.exp() * log_pi - qf1(data.observations, pi)).mean()
                actor_optimizer.zero_grad()
                actor_loss.backward()
                actor_optimizer.step()
                if args.autotune:
                    with torch.no_grad():
                        _, log_pi, _ = actor.get_action(data.observations)
                    alpha_loss = (-log_alpha.exp() * (log_pi + 1)).mean()
                    a_optimizer.zero_grad()
                    alpha_loss.backward()
                    a_optimizer.step()
        if global_step % args.target_freq == 0:
            for p, tp in zip(qf1.parameters(), qf1_target.parameters()):
                tp.data.copy_(args.tau * p.data + (1 - args.tau) * tp.data)
