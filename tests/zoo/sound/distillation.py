"""A small network for a watch learns heart rhythms from a large one that stays as it is."""

import torch
import torch.nn.functional as F


def shrink(small, large, beats_loader, optimizer, schedule, heat=3.0, trust=0.6, rounds=12):
    large.requires_grad_(False)
    large.eval()
    course = []
    for _ in range(rounds):
        small.train()
        summed, beats_seen = 0.0, 0
        for beats, rhythm in beats_loader:
            with torch.no_grad():
                opinion = large(beats).div(heat).softmax(dim=1)
            answer = small(beats)
            apart = F.kl_div(F.log_softmax(answer / heat, dim=1), opinion, reduction="batchmean") * heat**2
            loss = trust * apart + (1 - trust) * F.cross_entropy(answer, rhythm)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            summed += loss.item() * len(beats)
            beats_seen += len(beats)
        schedule.step()
        course.append(summed / beats_seen)
    return course
