"""Preflight checks of network state: side effects of a pass, save and load, and export."""

from __future__ import annotations

import copy
import io
import tempfile
from collections import deque
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from schemas.errors import first_few
from schemas.records import CheckResult
from training.distributed.average import Average
from training.models.build import build_model
from training.objectives.link import link_of, on_trained_scale
from training.objectives.losses import Loss
from training.objectives.targets import targets_of
from training.preflight.subject import Probe, Trial, copied, mean_loss, scored
from training.preflight.verdict import SAME, Check, largest_difference
from training.serving.export import Program
from training.serving.export_text import TextProgram
from training.serving.exported_program import PARITY, save_program
from training.serving.program_reader import read_program
from training.serving.reference_network import blank_batch, in_double

EFFECTS = Check("effects")
RESUME = Check("resume")
EXPORT = Check("export")
SEEDS = (1, 2)
SAVED_AFTER = 2  # steps before the save
ROWS = 8  # rows of each step
EXPORTED_ROWS = (1, 3)


def check_effects(network: nn.Module, loss: Loss, rows: Probe) -> CheckResult:
    """Check that a forward pass has no side effects and that backward runs. The batch, parameters,
    modes and random state do not change, nor do buffers in eval mode.

    Args:
        network: network, which is not changed. It must be new, since the first pass may differ
            from later ones.
        loss: loss per row.
        rows: rows of one batch.
    """
    for mode in (False, True):
        fresh, again, third = (copy.deepcopy(network).train(mode) for _ in range(3))
        where = f"in {'train' if mode else 'eval'} mode"
        try:
            found = _left_behind(fresh, rows) or _every_pass(again, rows)
            if mode and not found and (value := mean_loss(third, loss, rows)).requires_grad:
                value.backward()
        except Exception as error:  # a user's module may raise anything
            said = (str(error).splitlines() or [""])[0][:300]
            return EFFECTS.failed(
                f"a step {where} raised {type(error).__name__}: {said}",
                "run forward and backward of the module on such a batch by hand",
            )
        if found:
            return EFFECTS.failed(f"a forward pass {where} {found[0]}.", found[1])
    return EFFECTS.passed(
        "A forward pass changes neither its batch, the weights, the modes nor the random state."
    )


def _left_behind(network: nn.Module, rows: Probe) -> tuple[str, str] | None:
    """Return the side effect of a pass and the remedy, or None."""
    parameters = dict(network.named_parameters())
    modes = {name: m.training for name, m in network.named_modules()}
    training = any(modes.values())
    watched = parameters if training else network.state_dict()
    kept = {n: t.detach().clone() for n, t in watched.items() if not training or t.requires_grad}
    inputs = copied(rows.inputs)
    network(inputs)
    after = dict(network.named_parameters())
    if new := [name for name, p in after.items() if parameters.get(name) is not p]:
        what = f"made or replaced parameters ({first_few(new)}), which the optimizer does not hold"
        return what, "make every layer and nn.Parameter once, in __init__"
    if any(p.grad is not None for p in after.values()):
        what = "ran its own backward pass: gradients that the loss does not know are added to its"
        return f"{what} own", "add the term to the scores' loss instead"
    if changed := [name for name, t in rows.inputs.items() if not _same(inputs.get(name), t)]:
        what = f"changes the batch that it is given ({first_few(changed)})"
        return what, "compute a new tensor: x = x / y instead of x /= y, no method that ends in _"
    state = after if training else network.state_dict()
    if moved := [name for name, t in kept.items() if not _same(state[name].detach(), t)]:
        remedy = "leave weights to the optimizer, and update buffers only where self.training is"
        return f"changes {first_few(moved)}", f"{remedy} true"
    now = {name: m.training for name, m in network.named_modules()}
    if switched := [name or "the model" for name, m in now.items() if m != modes.get(name, m)]:
        what = f"switches the mode of {first_few(switched)}"
        return what, "leave train() and eval() to the training loop"
    return None


def _every_pass(network: nn.Module, rows: Probe) -> tuple[str, str] | None:
    """Check that a pass does not reset the random state and that a second pass keeps no more than
    the first.
    """
    states, held = [], list[dict[str, int]]()
    for seed in SEEDS:
        torch.manual_seed(seed)
        network(copied(rows.inputs))
        states.append(torch.get_rng_state())
        held.append(_held(network))
    if torch.equal(*states):
        what = "seeds the global random generator: dropout, and all that is drawn after it, is the"
        return f"{what} same in every step", "use its own torch.Generator"
    if grown := [name for name, size in held[1].items() if size > held[0].get(name, size)]:
        what = f"keeps more with each batch ({first_few(grown)}): memory grows until it ends"
        return what, "keep nothing of a batch on the module, or clear it"
    return None


def _held(network: nn.Module) -> dict[str, int]:
    """Return the lengths of a module's collections besides its layers, parameters and hooks."""
    own = vars(nn.Module()).keys()
    named = (
        (f"{name}.{key}".lstrip("."), value)
        for name, m in network.named_modules()
        for key, value in vars(m).items()
        if key not in own
    )
    return {
        name: len(value) for name, value in named if isinstance(value, list | dict | set | deque)
    }


def _same(a: Tensor | None, b: Tensor) -> bool:
    """Check that tensors are bitwise equal, including NaN."""
    if a is None or a.shape != b.shape:
        return False
    return bool(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))


def check_resume(trial: Trial) -> CheckResult:
    """Check that a saved and loaded network makes a bitwise equal next step, and then has the same
    averaged weights (`train.ema`) and scores.
    """
    trial = replace(trial, probe=trial.probe.first(ROWS))
    network, optimizer = trial.fresh()
    average = Average(network, trial.declaration.train.ema)
    # a cache for eval mode must not outlive the weights that it was computed from
    with average.applied():
        scored(network, trial.probe.inputs)
    for step in range(SAVED_AFTER):
        torch.manual_seed(step)
        trial.step(network, optimizer)
        average.update(step + 1)
    file = io.BytesIO()
    parts = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(parts | {"average": average.weights}, file)
    loaded, its_optimizer = trial.fresh()
    try:
        state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        loaded.load_state_dict(state["model"])
    except Exception as error:  # the unpickler and a user's hooks may raise anything
        return RESUME.failed(
            f"a saved network cannot be loaded again: {str(error).splitlines()[0]}",
            "keep only tensors and plain values in the state dict",
        )
    its_optimizer.load_state_dict(state["optimizer"])
    its_average = Average(loaded, trial.declaration.train.ema)
    its_average.load(state["average"])
    for who, its, mean in ((network, optimizer, average), (loaded, its_optimizer, its_average)):
        torch.manual_seed(SAVED_AFTER)
        trial.step(who, its)
        mean.update(SAVED_AFTER + 1)
    result = _judge_resume(trial, network, loaded, _made_from_another_seed(trial, state["model"]))
    if result.verdict != "pass" or not average.weights:
        return result
    return _judge_average(trial, (network, average), (loaded, its_average)) or result


def _judge_average(
    trial: Trial, kept: tuple[nn.Module, Average], loaded: tuple[nn.Module, Average]
) -> CheckResult | None:
    """Compare a new network that has the averaged weights alone with the one that was loaded, which
    is lent them for an evaluation.
    """
    alone = trial.network()
    with kept[1].applied():
        alone.load_state_dict(kept[0].state_dict())
    with loaded[1].applied():
        scores = [scored(who, trial.probe.inputs) for who in (alone, loaded[0])]
    apart = largest_difference(*scores)
    if apart <= SAME:
        return None
    return RESUME.failed(
        "with its averaged weights (train.ema) the network gives other scores (by up to"
        f" {apart:.2g}) than a new one with those weights: it keeps something that it computed from"
        " the raw ones.",
        "compute in forward what depends on weights, or leave out train.ema",
        difference=apart,
    )


def _judge_resume(
    trial: Trial, network: nn.Module, loaded: nn.Module, unlike: float
) -> CheckResult:
    """Compare a network that continued with one that was loaded, after the same step."""
    if unlike > SAME:
        return RESUME.failed(
            "loaded into a network that was made from another seed, the saved state gives other"
            f" scores (by up to {unlike:.2g}): what is drawn at random in __init__ is not in it.",
            "keep random projections and masks with register_buffer",
        )
    kept = network.state_dict()
    differing = [name for name, t in loaded.state_dict().items() if not _same(t, kept[name])]
    if differing:
        return RESUME.failed(
            "a network that was saved and loaded makes another next step than the one that went on"
            f" ({first_few(differing, len(differing))} differ): it keeps something outside of its"
            " state dict.",
            "register what forward changes with register_buffer, and draw random numbers from torch"
            " alone",
            differing=len(differing),
        )
    stale = largest_difference(*(scored(who, trial.probe.inputs) for who in (network, loaded)))
    if stale > SAME:
        return RESUME.failed(
            "a network that was in eval mode before it was trained on gives other scores there (by"
            f" up to {stale:.2g}) than one with the same state that was not: it keeps something of"
            " that time.",
            "compute in forward what depends on weights, or drop it in train()",
            difference=stale,
        )
    return RESUME.passed(
        "Saved and loaded after two steps, the network makes the same third step, to the bit."
    )


def _made_from_another_seed(trial: Trial, state: dict[str, Tensor]) -> float:
    """Return the largest score difference in eval mode of networks from two seeds with one loaded
    state.
    """
    scores = []
    for seed in (trial.declaration.train.seed, trial.declaration.train.seed + 1):
        train = trial.declaration.train.model_copy(update={"seed": seed})
        declaration = trial.declaration.model_copy(update={"train": train})
        network = build_model(declaration, trial.statistics)
        network.load_state_dict(state)
        with torch.inference_mode():
            scores.append(network.eval()(trial.probe.inputs))
    return largest_difference(*scores)


def check_export(trial: Trial, network: nn.Module | None = None) -> CheckResult:
    """Check that the network can be exported and that the program gives equal predictions.

    Args:
        trial: data of the run.
        network: network to export; default: a new one with its initial weights.
    """
    network = trial.network() if network is None else network
    network = network.eval().requires_grad_(False)
    program, example, axes = _program(trial, in_double(network, trial.statistics))
    try:
        with tempfile.TemporaryDirectory(prefix="bulkhead-export-") as scratch:
            path = Path(scratch) / "program.pt2"
            save_program(program, example, path, axes)
            found = read_program(path)
    except Exception as error:  # torch.export may raise anything
        said = next((text for text in str(error).splitlines() if text.strip()), "")
        return EXPORT.failed(
            f"the network cannot be exported ({type(error).__name__}: {said[:300]}), so that no"
            " model could be registered after the training.",
            "compute in forward with tensors alone: no if or loop over their values, no .item(), no"
            " NumPy",
        )
    with torch.inference_mode():
        for rows in EXPORTED_ROWS:
            batch = _filled(trial, example, rows)
            try:
                pair = (on_trained_scale(trial.statistics, run(batch)) for run in (found, program))
                difference = float(torch.sub(*pair).abs().max())
            except Exception as error:
                return EXPORT.failed(
                    f"the exported program refuses a batch of {rows}:"
                    f" {str(error).splitlines()[0][:300]}",
                    "use no fixed number of rows in forward",
                )
            if not difference < PARITY:
                return EXPORT.failed(
                    f"the exported program differs from the network by {difference:.2g} for a batch"
                    f" of {rows}.",
                    "let forward depend on nothing but its inputs and weights: no branch on self"
                    " attributes that change, no state",
                    difference=difference,
                )
    return EXPORT.passed(
        f"The exported program equals the network for {' and '.join(map(str, EXPORTED_ROWS))} rows."
    )


def _program(
    trial: Trial, network: nn.Module
) -> tuple[nn.Module, dict[str, Tensor], tuple[int, ...]]:
    """Return the program to export, an example input, and its free axes."""
    statistics, declaration = trial.statistics, trial.declaration
    if statistics.tokens is not None:
        tokens = torch.ones((2, statistics.tokens.context), dtype=torch.int64)
        return TextProgram(network).eval(), {"tokens": tokens}, (0, 1)
    targets = targets_of(declaration, statistics)
    link = None if targets else link_of(declaration, statistics)
    program = Program(network, statistics, declaration.task.kind, targets, link).eval()
    return program, blank_batch(statistics, torch.float64, width=len(statistics.numeric)), (0,)


def _filled(trial: Trial, example: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
    """Return a batch of random raw values like the example."""
    made = {}
    for name, values in example.items():
        shape, dtype = (rows, *values.shape[1:]), values.dtype
        if not dtype.is_floating_point:
            made[name] = torch.randint(1, 202 if dtype == torch.uint8 else 2, shape, dtype=dtype)
            continue
        made[name] = torch.randn(shape, dtype=dtype)
        if name == "numeric":
            spread = [[s.center, s.scale] for s in trial.statistics.numeric]
            center, scale = torch.tensor(spread, dtype=dtype).T
            made[name] = made[name] * scale + center
    return made
