"""Preflight checks of a language model's logits, before any long run.

A look-ahead or a leak between documents gives a very low training loss and a useless model. Both
checks change tokens and see which logits move.

A few sequences are overfit as far as possible. The first tokens of a document do not determine what
follows. Even a model that has memorized the batch keeps the loss of guessing which sequence it
sees. This floor is computed exactly. The goal is 10 % of the way from it to the loss of the batch's
token shares.

B sequences, T positions, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from torch import Tensor, nn

from schemas.config import Declaration
from schemas.errors import ConfigError
from schemas.records import CheckResult, PreflightReport, Statistics
from training.data.arrays.sequences import NO_TARGET
from training.data.serving_text.tokenizers import SPECIAL
from training.models.causal_transformer import positions_of
from training.objectives.losses import Loss
from training.preflight.descent import Curve, descend
from training.preflight.forward import first_passes, in_company
from training.preflight.gradient_checks import check_gradients, check_parameters
from training.preflight.modes import check_modes
from training.preflight.overfit import LR, LR_SMALL, MAX_SECONDS, undecided
from training.preflight.subject import Probe, Subject, first_rows, scored, scored_alone
from training.preflight.verdict import SAME, Check, judged_loss, largest_difference, summed_up

FORWARD = Check("forward")
INDEPENDENCE = Check("independence")
CAUSALITY = Check("causality")
SEGMENTS = Check("segments")
OVERFIT = Check("overfit")
SAMPLE_ROWS = 8
COMPANY_ROWS = 4
ROWS, POSITIONS = 4, 64  # most rows and positions of the batch
BY_HEART = 0.1


def inspect_tokens(
    declaration: Declaration,
    statistics: Statistics,
    network: nn.Module,
    train: dict[str, np.ndarray],
) -> PreflightReport:
    """Run all checks of a network on the first sequences of the train arrays.

    Raises:
        PreflightError: the forward pass fails, or its logits break the contract's shape.
    """
    started, probe = time.monotonic(), first_rows(train, SAMPLE_ROWS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(declaration.train.seed)
        subject = Subject(declaration, statistics, network, probe, probe)
        results = first_passes(subject, check_forward)
        initial, initial_loss = check_initial_loss(subject)
        gradients, _ = check_gradients(subject)
        parameters = check_parameters(network, subject.loss, probe)
        results += [parameters, gradients, initial, check_causality(subject)]
        if declaration.tokens is not None and declaration.tokens.packing == "documents":
            results.append(check_segments(subject))
        results += [
            check_modes(network, probe.inputs, declaration.train, 0),
            *in_company(subject, check_independence),
        ]
        losses: tuple[float, ...] = ()
        if gradients.verdict == "pass":
            learned, losses = overfit_tokens(subject.thawed(), subject.loss, probe)
            results.append(learned)
    initial_losses = (initial_loss, math.log(subject.shape.outputs))
    return summed_up(started, network, results, initial_losses, losses)


def check_forward(subject: Subject) -> CheckResult:
    """Check that forward returns finite logits [B, T, V], also for one and for short sequences."""
    outputs = subject.shape.outputs
    whole = subject.spread.inputs["tokens"].shape
    for rows, length in ((whole[0], whole[1]), (1, whole[1]), (whole[0], max(1, whole[1] // 2))):
        inputs = {name: value[:rows, :length] for name, value in subject.spread.inputs.items()}
        try:
            scores = scored(subject.network, inputs)
        except ConfigError as error:
            return FORWARD.failed(
                f"{rows} sequences of {length}: {error}", "see README, the model contract"
            )
        except Exception as error:  # a user's module may raise anything
            return FORWARD.failed(
                f"{rows} sequences of {length}: forward raised {type(error).__name__}: {error}",
                "run the module on such a batch by hand",
            )
        if list(scores.shape) != [rows, length, outputs]:
            return FORWARD.failed(
                f"expected logits {[rows, length, outputs]}, got {list(scores.shape)}.",
                "score every position, over the whole vocabulary",
            )
        if not torch.isfinite(scores).all():
            return FORWARD.failed(
                "logits are not finite with the initial weights.",
                "look for a row of the mask that allows nothing, and for log or division in"
                " forward",
            )
    return FORWARD.passed(
        f"Logits are finite, [{whole[0]}, {whole[1]}, {outputs}], for one sequence and for shorter"
        " ones too."
    )


def check_initial_loss(subject: Subject) -> tuple[CheckResult, float]:
    """Check that the initial loss is near ln V, that of uniform tokens, or near that of their
    shares.
    """
    loss, label = subject.loss, subject.sample.label
    with torch.inference_mode():
        found = float(loss(scored(subject.network, subject.sample.inputs), label))
    counts = torch.bincount(label[label != NO_TARGET].flatten()).double()
    shares = float(torch.distributions.Categorical(counts).entropy())
    uniform = math.log(subject.shape.outputs)
    theory = f"ln V = {uniform:.4g} where all tokens are alike, {shares:.4g} for their shares"
    remedy = "give embedding and last layer small weights, and return raw logits"
    high = ("logits start too large", remedy)
    remedy = "look for the target among the inputs: a shift by one that is missing"
    low = ("the network knows the targets before training", remedy)
    bounds = {"uniform": uniform, "token_shares": shares}
    return judged_loss(found, theory, bounds, high, low, is_loaded=subject.is_loaded), found


def other_tokens(tokens: Tensor, outputs: int) -> Tensor:
    """Return a different ordinary token at each place."""
    return SPECIAL + (tokens - SPECIAL + 1) % (outputs - SPECIAL)


def _moved(subject: Subject, inputs: dict[str, Tensor], changed: Tensor, watched: Tensor) -> float:
    """Return the largest change of logits at the watched positions if tokens at `changed` [B, T]
    differ.
    """
    before = scored(subject.network, inputs)
    others = other_tokens(inputs["tokens"], subject.shape.outputs)
    tokens = torch.where(changed, others, inputs["tokens"])
    after = scored(subject.network, {**inputs, "tokens": tokens})
    return largest_difference(after[watched], before[watched]) if bool(watched.any()) else 0.0


def check_independence(subject: Subject) -> CheckResult:
    """Check that a sequence's logits in eval mode depend neither on other sequences nor on their
    number.
    """
    inputs = subject.spread.first(COMPANY_ROWS).inputs
    first = torch.zeros_like(inputs["tokens"], dtype=torch.bool)
    first[0] = True
    mixed = _moved(subject, inputs, first, ~first)
    if mixed > SAME:
        return INDEPENDENCE.failed(
            f"changing one sequence moved the logits of others by up to {mixed:.2g}: sequences of a"
            " batch mix.",
            "look for attention, softmax or statistics over dim 0, and for a view that merges"
            " sequences",
            difference=mixed,
        )
    lonely = largest_difference(
        scored_alone(subject.network, inputs), scored(subject.network, inputs)
    )
    if lonely > SAME:
        return INDEPENDENCE.failed(
            f"a sequence scored alone differs by up to {lonely:.2g} from the same one in a batch of"
            f" {len(first)}.",
            "look for squeeze() without a dimension and for statistics over the batch",
            difference=lonely,
        )
    return INDEPENDENCE.passed(
        "A sequence's logits do not depend on its neighbours (largest difference"
        f" {max(mixed, lonely):.1g})."
    )


def check_causality(subject: Subject) -> CheckResult:
    """Check that later tokens do not change earlier logits."""
    inputs = subject.spread.first(COMPANY_ROWS).inputs
    length = inputs["tokens"].shape[1]
    worst, where = 0.0, 0
    for position in sorted({1, length // 4, length // 2, 3 * length // 4, length - 1} - {0}):
        later = (torch.arange(length) >= position).expand_as(inputs["tokens"])
        moved = _moved(subject, inputs, later, ~later)
        worst, where = max((worst, where), (moved, position))
    if worst <= SAME:
        told = f"No logits change when later tokens do (largest difference {worst:.1g})."
        return CAUSALITY.passed(told)
    return CAUSALITY.failed(
        f"other tokens from position {where} on moved the logits before it by up to {worst:.2g}:"
        " the network sees what it is asked for.",
        "mask what comes later in attention (causal=True), and look for convolutions, reversals and"
        " means over positions that reach ahead",
        difference=worst,
    )


def check_segments(subject: Subject) -> CheckResult:
    """Check that tokens of one segment do not change the logits of another in the same sequence."""
    tokens = subject.spread.first(COMPANY_ROWS).inputs["tokens"]
    half = (torch.arange(tokens.shape[1]) < tokens.shape[1] // 2).expand_as(tokens)
    segments = torch.where(half, 1, 2).to(subject.spread.inputs["segments"].dtype)
    inputs = {"tokens": tokens, "segments": segments}
    worst = max(_moved(subject, inputs, half, ~half), _moved(subject, inputs, ~half, half))
    if worst <= SAME:
        told = f"No document of a sequence sees another (largest difference {worst:.1g})."
        return SEGMENTS.passed(told)
    return SEGMENTS.failed(
        "changing one document moved the logits of another in the same sequence by up to"
        f" {worst:.2g}: the mask leaks.",
        "let a position see its own segment alone (batch['segments']), or set tokens.packing:"
        " windows",
        difference=worst,
    )


def short(probe: Probe, rows: int = ROWS, positions: int = POSITIONS) -> Probe:
    """Return the first positions of the first rows that have a target there."""
    label = probe.label[:, :positions]
    chosen = torch.nonzero((label != NO_TARGET).any(1)).flatten()[:rows]
    inputs = {name: value[chosen, :positions] for name, value in probe.inputs.items()}
    return Probe(inputs, label[chosen])


def floor_losses(tokens: np.ndarray, segments: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Return the loss of each target [B, T] for a model that has memorized these windows, 0
    elsewhere.

    It is -log of the target's share among those that follow the same start of a window.
    """
    places = positions_of(torch.from_numpy(segments)).numpy()
    beginning = np.zeros_like(places)  # number of the window's start up to here
    floor, size = np.zeros(label.shape), int(max(tokens.max(), label.max())) + 1
    for place in range(int(places.max()) + 1):
        rows, columns = np.nonzero(places == place)
        before = beginning[rows, columns - 1] + 1 if place else np.zeros_like(rows)
        _, number = np.unique(before * size + tokens[rows, columns], return_inverse=True)
        beginning[rows, columns] = number
        asked = label[rows, columns] != NO_TARGET
        floor[rows[asked], columns[asked]] = _surprise(
            number[asked], label[rows, columns][asked].astype(np.int64), size
        )
    return floor


def _surprise(context: np.ndarray, target: np.ndarray, size: int) -> np.ndarray:
    """Return -log of the share of each target among those of its context."""
    _, pair, together = np.unique(context * size + target, return_inverse=True, return_counts=True)
    return np.asarray(np.log(np.bincount(context)[context]) - np.log(together[pair]))


def row_mean(values: np.ndarray, label: np.ndarray) -> float:
    """Return the mean over rows of each row's mean over targets, as the loss with equal row
    weights.
    """
    targets = label != NO_TARGET
    return float(((values * targets).sum(1) / targets.sum(1)).mean())


def overfit_tokens(
    network: nn.Module, loss: Loss, probe: Probe
) -> tuple[CheckResult, tuple[float, ...]]:
    """Check that the network overfits a few sequences, and return the loss by step. Later attempts
    use a larger rate, then two rows.
    """
    deadline, tried = time.thread_time() + MAX_SECONDS, []
    for rows, lr in ((ROWS, LR), (ROWS, LR_SMALL), (2, LR_SMALL)):
        batch = short(probe, rows)
        label = batch.label.numpy()
        tokens, segments = (batch.inputs[name].numpy() for name in ("tokens", "segments"))
        floor = row_mean(floor_losses(tokens, segments, label), label)
        codes, nothing = label.ravel() - NO_TARGET, np.zeros(label.size, np.int64)
        shares = _surprise(nothing, codes, int(codes.max()) + 1)
        constant = row_mean(shares.reshape(label.shape), label)
        goal = floor + BY_HEART * (constant - floor)
        curve = descend(network, loss, batch, constant, goal, lr, deadline)
        tried.append((curve, floor))
        if curve.reached or not math.isfinite(curve.losses[-1]):
            break
    curve, floor = tried[-1] if tried[-1][0].reached else tried[0]
    return _judge(curve, floor), curve.losses


def _judge(curve: Curve, floor: float) -> CheckResult:
    figures = curve.figures | {"token_shares": curve.constant, "floor": floor}
    did = f"{curve.rows} sequences, {curve.words} (floor {floor:.2g}, token shares"
    did += f" {curve.constant:.3g})"
    if curve.reached:
        result = OVERFIT.passed(f"One batch was overfit: {did}.", **figures)
        return result if curve.rows > 2 else result.model_copy(update={"verdict": "warn"})
    if curve.out_of_time and math.isfinite(curve.losses[-1]):
        return undecided(did, figures)
    return OVERFIT.failed(
        f"One batch could not be overfit: {did}.",
        "look for .detach(), frozen layers, positions that are missing or shared, and logits that"
        " are bounded; try a wider model",
        **figures,
    )
