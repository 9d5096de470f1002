"""Rules BH856: and BH857: networks that are trained against each other, which only a run shows."""

from __future__ import annotations

from training.review.findings import Severity

OF_OPPONENTS: tuple[tuple[str, str, Severity, str, str, str, str, str], ...] = (
    (
        "BH856",
        "opponents-pull-together",
        "error",
        "Two networks that are trained against each other pull the same way",
        "A judge pushes the scores of real and of made rows apart, and the maker pushes those of its rows back. Where the maker pushes as the judge does it learns to be "
        "found out; where the judge pushes both sides alike it learns no difference, and the maker has nothing to learn from.",
        "the judge: real rows 1, made rows 0; the maker: made rows 1",
        "loss_g = bce(critic(generator(z)), zeros)",
        "loss_g = bce(critic(generator(z)), ones)",
    ),
    (
        "BH857",
        "nothing-to-make-rows-from",
        "error",
        "What makes rows is given the same in every step",
        "A generator turns noise into rows. Given equal values for all rows, or the same values in each step, it learns one row, or the few of one batch, while what it is "
        "compared with changes.",
        "draw noise in each step: `generator(torch.randn(batch, latent))`",
        "noise = torch.randn(64, latent)\nfor real in loader:\n    fake = generator(noise)",
        "for real in loader:\n    fake = generator(torch.randn(64, latent))",
    ),
)
