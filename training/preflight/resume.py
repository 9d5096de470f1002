"""The preflight checks of what a network keeps: what is saved and loaded goes on as if nothing had
been, and nothing else stays behind.
"""

from __future__ import annotations

import io
from dataclasses import replace

import torch
from torch import Tensor

from schemas.errors import first_few
from schemas.records import CheckResult
from training.models.build import build_model
from training.preflight.scores import scored
from training.preflight.trial_run import Trial
from training.preflight.verdict import SAME, failed, largest_difference, passed

SAVED_AFTER = 2  # steps
ROWS = 8  # of each of the steps


def check_resume(trial: Trial) -> CheckResult:
    """A network that was saved and loaded makes the same next step, to the bit."""
    trial = replace(trial, probe=trial.probe.first(ROWS))
    network, optimizer = trial.fresh()
    # what is kept for eval mode must not outlive the weights that it was made of
    scored(network, trial.probe.inputs)
    for step in range(SAVED_AFTER):
        torch.manual_seed(step)
        trial.step(network, optimizer)
    file = io.BytesIO()
    torch.save({"model": network.state_dict(), "optimizer": optimizer.state_dict()}, file)
    loaded, its_optimizer = trial.fresh()
    try:
        state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        loaded.load_state_dict(state["model"])
    except Exception as error:  # the unpickler and a user's own hooks raise what they like
        return failed(
            "resume",
            f"a saved network cannot be loaded again: {str(error).splitlines()[0]}",
            "keep only tensors and plain values in the state dict",
        )
    its_optimizer.load_state_dict(state["optimizer"])
    for who, its in ((network, optimizer), (loaded, its_optimizer)):
        torch.manual_seed(SAVED_AFTER)
        trial.step(who, its)
    unlike = _made_from_another_seed(trial, state["model"])
    if unlike > SAME:
        return failed(
            "resume",
            "loaded into a network that was made from another seed, the saved state gives other"
            f" scores (by up to {unlike:.2g}): what is drawn at random in __init__ is not in it.",
            "keep random projections and masks with register_buffer",
        )
    differing = [
        name
        for name, value in loaded.state_dict().items()
        if not torch.allclose(value, network.state_dict()[name], rtol=0, atol=0, equal_nan=True)
    ]
    if differing:
        return failed(
            "resume",
            "a network that was saved and loaded makes another next step than the one that went on"
            f" ({first_few(differing, len(differing))} differ): it keeps something outside of its"
            " state dict.",
            "register what forward changes with register_buffer, and draw random numbers from torch"
            " alone",
            differing=len(differing),
        )
    stale = largest_difference(
        scored(network, trial.probe.inputs), scored(loaded, trial.probe.inputs)
    )
    if stale > SAME:
        return failed(
            "resume",
            "a network that was in eval mode before it was trained on gives other scores there (by"
            f" up to {stale:.2g}) than one with the same state that was not: it keeps something of"
            " that time.",
            "compute in forward what depends on weights, or drop it in train()",
            difference=stale,
        )
    return passed(
        "resume",
        "Saved and loaded after two steps, the network makes the same third step, to the bit.",
    )


def _made_from_another_seed(trial: Trial, state: dict[str, Tensor]) -> float:
    """Largest difference of the scores, in eval mode, of two networks that were made from different
    seeds and loaded the same state.
    """
    scores = []
    for seed in (trial.declaration.train.seed, trial.declaration.train.seed + 1):
        train = trial.declaration.train.model_copy(update={"seed": seed})
        network = build_model(
            trial.declaration.model_copy(update={"train": train}), trial.statistics
        )
        network.load_state_dict(state)
        with torch.inference_mode():
            scores.append(network.eval()(trial.probe.inputs))
    return largest_difference(*scores)
