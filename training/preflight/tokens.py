"""Preflight of a language model: what must hold of its logits before any long run.

A look-ahead or a leak between documents gives a wonderful training loss and a useless model; both
are tried here on the network itself, by changing tokens and seeing whose logits move.

B sequences, T positions, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
import time

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from schemas.config import Declaration
from schemas.errors import ConfigError, PreflightError
from schemas.records import (
    ArraysRef,
    CheckResult,
    PreflightReport,
    RunSpec,
    SplitArrays,
    Statistics,
    TokenStats,
)
from training.data.arrays.sequences import NO_TARGET
from training.data.arrays.shards import load_arrays
from training.data.serving_text.tokenizers import SPECIAL
from training.models.shape import model_shape
from training.objectives.losses import make_loss
from training.preflight.modes import check_modes
from training.preflight.overfit_tokens import overfit_tokens
from training.preflight.parameters import check_parameters
from training.preflight.probe import first_rows
from training.preflight.run_checks import Subject, check_gradients, first_passes, in_company
from training.preflight.scores import scored
from training.preflight.verdict import (
    SAME,
    failed,
    judged_loss,
    largest_difference,
    passed,
    summed_up,
)

SAMPLE_ROWS = 8
COMPANY_ROWS = 4
UNKNOWN_WARN = 0.01  # share of validation tokens that train does not know


def check_vocabulary(run: RunSpec) -> CheckResult:
    """Whether the vocabulary of train and the targets can be trained on.

    Raises:
        PreflightError: the statistics hold no vocabulary.
    """
    if run.statistics.tokens is None:
        raise PreflightError(
            "expected statistics of a text column; prepare the data again with this declaration"
        )
    return check_tokens(run.statistics.tokens, run.arrays)


def inspect_tokens(
    declaration: Declaration,
    statistics: Statistics,
    network: nn.Module,
    train: dict[str, np.ndarray],
) -> PreflightReport:
    """All checks of a network on the first sequences of the train arrays.

    Raises:
        PreflightError: the forward pass cannot be run, or its logits do not have the contract's
            shape.
    """
    started, probe = time.monotonic(), first_rows(train, SAMPLE_ROWS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(declaration.train.seed)
        subject = Subject(
            declaration,
            statistics,
            model_shape(declaration, statistics),
            network,
            make_loss(declaration, statistics),
            probe,
            probe,
        )
        results = first_passes(subject, check_forward)
        initial, initial_loss = check_initial_loss(subject)
        gradients = check_gradients(subject)
        results += [
            check_parameters(network, subject.loss, probe),
            gradients,
            initial,
            check_causality(subject),
        ]
        results += (
            [check_segments(subject)]
            if declaration.tokens is not None and declaration.tokens.packing == "documents"
            else []
        )
        results += [
            check_modes(network, probe.inputs, declaration.train, 0),
            *in_company(subject, check_independence),
        ]
        losses: tuple[float, ...] = ()
        if gradients.verdict == "pass":
            learned, losses = overfit_tokens(network, subject.loss, probe)
            results.append(learned)
    return summed_up(
        started, network, results, (initial_loss, math.log(subject.shape.outputs)), losses
    )


def check_tokens(tokens: TokenStats, arrays: ArraysRef) -> CheckResult:
    """Train has two different tokens at least, and validation hardly any that train does not know;
    weights have a positive sum.
    """
    if sum(count > 0 for count in tokens.counts) < 2:
        return failed(
            "tokens",
            "train holds one token only; there is nothing to learn.",
            "check the text column and tokens.tokenizer",
        )
    for side, ref in (("train", arrays.train), ("val", arrays.val)):
        weight = load_arrays(ref).get("weight")
        if weight is not None and not (
            np.isfinite(weight).all() and weight.min() >= 0 and weight.sum() > 0
        ):
            return failed(
                "tokens",
                f"{side}: weights must be finite, at least 0, and not all 0.",
                "look at the column with role weight",
            )
    unknown, total = unknown_tokens(arrays.val)
    share = unknown / max(total, 1)
    known = (
        f"{tokens.size - SPECIAL:,} tokens; {unknown:,} of {total:,} validation tokens"
        f" ({share:.2%}) are unknown to train"
    )
    if share <= UNKNOWN_WARN:
        return passed("tokens", f"{known}.", vocabulary=tokens.size, unknown=unknown)
    remedy = (
        "lower tokens.min_count, give more rows, or use tokens.tokenizer: bytes, to which nothing"
        " is unknown"
    )
    return CheckResult(
        name="tokens",
        verdict="warn",
        summary=f"{known}.",
        remedy=remedy,
        figures={"vocabulary": tokens.size, "unknown": unknown},
    )


def unknown_tokens(side: SplitArrays) -> tuple[int, int]:
    """Tokens of a side that the vocabulary lacks, and all its targets."""
    if side.documents is None:
        return 0, 0
    table = pq.read_table(side.documents.path, columns=["unknown", "tokens"])
    return pc.sum(table.column("unknown")).as_py() or 0, pc.sum(table.column("tokens")).as_py() or 0


def check_forward(subject: Subject) -> CheckResult:
    """Forward returns finite logits [B, T, V], for a batch of one and for shorter sequences too."""
    outputs = subject.shape.outputs
    whole = subject.spread.inputs["tokens"].shape
    for rows, length in ((whole[0], whole[1]), (1, whole[1]), (whole[0], max(1, whole[1] // 2))):
        inputs = {name: value[:rows, :length] for name, value in subject.spread.inputs.items()}
        try:
            scores = scored(subject.network, inputs)
        except ConfigError as error:
            return failed(
                "forward",
                f"{rows} sequences of {length}: {error}",
                "see README, the model contract",
            )
        except Exception as error:  # a user's module may raise anything
            return failed(
                "forward",
                f"{rows} sequences of {length}: forward raised {type(error).__name__}: {error}",
                "run the module on such a batch by hand",
            )
        if list(scores.shape) != [rows, length, outputs]:
            return failed(
                "forward",
                f"expected logits {[rows, length, outputs]}, got {list(scores.shape)}.",
                "score every position, over the whole vocabulary",
            )
        if not torch.isfinite(scores).all():
            return failed(
                "forward",
                "logits are not finite with the initial weights.",
                "look for a row of the mask that allows nothing, and for log or division in"
                " forward",
            )
    return passed(
        "forward",
        f"Logits are finite, [{whole[0]}, {whole[1]}, {outputs}], for one sequence and for shorter"
        " ones too.",
    )


def check_initial_loss(subject: Subject) -> tuple[CheckResult, float]:
    """The loss before training is near ln V, that of a model to which all tokens are alike, or
    between it and that of their shares.
    """
    loss, label = subject.loss, subject.sample.label
    with torch.inference_mode():
        found = float(loss(scored(subject.network, subject.sample.inputs), label))
    counts = torch.bincount(label[label != NO_TARGET].flatten()).double()
    shares = float(torch.distributions.Categorical(counts).entropy())
    uniform = math.log(subject.shape.outputs)
    theory = f"ln V = {uniform:.4g} where all tokens are alike, {shares:.4g} for their shares"
    high = (
        "logits start too large",
        "give embedding and last layer small weights, and return raw logits",
    )
    low = (
        "the network knows the targets before training",
        "look for the target among the inputs: a shift by one that is missing",
    )
    return (
        judged_loss(found, theory, {"uniform": uniform, "token_shares": shares}, high, low),
        found,
    )


# ------------------------------------------------------------------------------------- who sees
# whom


def other_tokens(tokens: Tensor, outputs: int) -> Tensor:
    """A different ordinary token at each place."""
    return SPECIAL + (tokens - SPECIAL + 1) % (outputs - SPECIAL)


def _moved(subject: Subject, inputs: dict[str, Tensor], changed: Tensor, watched: Tensor) -> float:
    """Largest change of the logits at the watched positions when the tokens at the changed ones [B,
    T] are others.
    """
    before = scored(subject.network, inputs)
    tokens = torch.where(
        changed, other_tokens(inputs["tokens"], subject.shape.outputs), inputs["tokens"]
    )
    after = scored(subject.network, {**inputs, "tokens": tokens})
    return largest_difference(after[watched], before[watched]) if bool(watched.any()) else 0.0


def check_independence(subject: Subject) -> CheckResult:
    """In eval mode a sequence's logits depend on that sequence alone: not on its neighbours, not on
    how many they are.
    """
    inputs = subject.spread.first(COMPANY_ROWS).inputs
    first = torch.zeros_like(inputs["tokens"], dtype=torch.bool)
    first[0] = True
    mixed = _moved(subject, inputs, first, ~first)
    if mixed > SAME:
        summary = (
            f"changing one sequence moved the logits of others by up to {mixed:.2g}: sequences of a"
            " batch mix."
        )
        return failed(
            "independence",
            summary,
            "look for attention, softmax or statistics over dim 0, and for a view that merges"
            " sequences",
            difference=mixed,
        )
    alone = torch.cat(
        [
            scored(subject.network, {name: value[i : i + 1] for name, value in inputs.items()})
            for i in range(len(first))
        ]
    )
    lonely = largest_difference(alone, scored(subject.network, inputs))
    if lonely > SAME:
        summary = (
            f"a sequence scored alone differs by up to {lonely:.2g} from the same one in a batch of"
            f" {len(first)}."
        )
        return failed(
            "independence",
            summary,
            "look for squeeze() without a dimension and for statistics over the batch",
            difference=lonely,
        )
    return passed(
        "independence",
        "A sequence's logits do not depend on its neighbours (largest difference"
        f" {max(mixed, lonely):.1g}).",
    )


def check_causality(subject: Subject) -> CheckResult:
    """No look-ahead: other tokens from a position on change no logits before it."""
    inputs = subject.spread.first(COMPANY_ROWS).inputs
    length = inputs["tokens"].shape[1]
    worst, where = 0.0, 0
    for position in sorted({1, length // 4, length // 2, 3 * length // 4, length - 1} - {0}):
        later = (torch.arange(length) >= position).expand_as(inputs["tokens"])
        moved = _moved(subject, inputs, later, ~later)
        worst, where = max((worst, where), (moved, position))
    if worst <= SAME:
        return passed(
            "causality", f"No logits change when later tokens do (largest difference {worst:.1g})."
        )
    return failed(
        "causality",
        f"other tokens from position {where} on moved the logits before it by up to {worst:.2g}:"
        " the network sees what it is asked for.",
        "mask what comes later in attention (causal=True), and look for convolutions, reversals and"
        " means over positions that reach ahead",
        difference=worst,
    )


def check_segments(subject: Subject) -> CheckResult:
    """No document of a sequence sees another: tokens of one half change no logits of the other,
    where they are two segments.
    """
    tokens = subject.spread.first(COMPANY_ROWS).inputs["tokens"]
    half = (torch.arange(tokens.shape[1]) < tokens.shape[1] // 2).expand_as(tokens)
    inputs = {
        "tokens": tokens,
        "segments": torch.where(half, 1, 2).to(subject.spread.inputs["segments"].dtype),
    }
    worst = max(_moved(subject, inputs, half, ~half), _moved(subject, inputs, ~half, half))
    if worst <= SAME:
        return passed(
            "segments", f"No document of a sequence sees another (largest difference {worst:.1g})."
        )
    return failed(
        "segments",
        "changing one document moved the logits of another in the same sequence by up to"
        f" {worst:.2g}: the mask leaks.",
        "let a position see its own segment alone (batch['segments']), or set tokens.packing:"
        " windows",
        difference=worst,
    )
