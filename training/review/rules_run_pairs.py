"""Rules BH858: and BH866: mistakes in losses over pairs of rows that only a run shows."""

from __future__ import annotations

from training.review.findings import Severity

OF_PAIRS: tuple[tuple[str, str, Severity, str, str, str, str, str], ...] = (
    (
        "BH858",
        "row-against-itself",
        "error",
        "A contrastive loss lets each row compete with itself",
        "Nothing is as similar to a row as the row itself. Where its own score stays among those from which the partner is to be picked, the largest score is always a wrong answer: "
        "the loss cannot fall below a bound, and all rows are pushed towards each other.",
        "mask the diagonal before the loss: scores.fill_diagonal_(float('-inf'))",
        "z = torch.cat([first, second])\nscores = z @ z.T / tau\nloss = F.cross_entropy(scores, partner)",
        "z = torch.cat([first, second])\nscores = (z @ z.T / tau).fill_diagonal_(float('-inf'))\nloss = F.cross_entropy(scores, partner)",
    ),
    (
        "BH866",
        "views-are-the-same",
        "error",
        "Two views of a row are the same",
        "A contrastive loss learns what stays when a row is changed. Where both sides are given the row as it is, partners are found without learning anything: the loss falls, "
        "and what is learned tells rows apart by whatever is easiest.",
        "augment each side by a draw of its own: `loss(net(augment(x)), net(augment(x)))`",
        "loss = contrastive(net(x), net(x))",
        "loss = contrastive(net(augment(x)), net(augment(x)))",
    ),
)
