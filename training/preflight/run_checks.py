"""What would fail after hours fails here in seconds: model, loss and labels on a few train rows.

Every check says what was found and, when it fails, what is probably wrong and where. The network is
a copy with its initial weights; nothing is changed, the global random state neither. On the CPU,
with the first steps of the training in a copy of the process.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from schemas.config import Declaration
from schemas.errors import ConfigError, PreflightError, first_few
from schemas.load import declare
from schemas.records import CheckReport, CheckResult, PreflightReport, RunSpec, Statistics
from training.data.arrays.shards import load_arrays
from training.data.leakage.verdict import judged
from training.distributed.layout import require_layout
from training.engine.augment import Augment
from training.engine.batches import as_tensors
from training.models.build import build_model
from training.models.shape import FIRST_VALUE, NULL, UNKNOWN, ModelShape, model_shape
from training.objectives.losses import Loss, make_loss
from training.objectives.targets import targets_of
from training.preflight.attention import check_masks
from training.preflight.codes import frozen_codes
from training.preflight.effects import check_effects
from training.preflight.first_steps import check_cost, first_steps, make_trial
from training.preflight.half import computed_in_half
from training.preflight.inputs import check_inputs
from training.preflight.label_checks import check_labels
from training.preflight.layers import check_layers
from training.preflight.modes import check_modes
from training.preflight.optimizer_settings import check_optimizer, check_smoothing
from training.preflight.overfit import ROWS, overfit, without_dropout
from training.preflight.parameters import check_parameters
from training.preflight.probe import Probe, first_rows, spread_rows
from training.preflight.scores import scored, with_other_first_row
from training.preflight.side_process import checked_aside
from training.preflight.verdict import (
    SAME,
    failed,
    judged_loss,
    largest_difference,
    line,
    passed,
    summed_up,
)
from training.review.own_module import review_own_module

SAMPLE_ROWS, SAMPLE_OF_LARGE = 256, 128  # for the initial loss
# weights: such a network learns sixteen rows as surely as thirty-two, in half the time
LARGE, ROWS_OF_LARGE = (2**18, 16)
EFFECT_ROWS = 4  # for what a pass leaves behind, which any batch shows
COMPANY_ROWS = 16  # for what rows do to each other
GRADIENT_STEPS = (
    3  # a layer behind one that starts at zero gets its gradient from the second step on
)
LOUD, TOO_LOUD = 1.5, 2.5  # deviation of the first scores that is warned of, and that stops
# standard deviations, where the declaration sets no clip; of a single row in a column with a long
# tail
EXTREME, FAR = (
    10.0,
    1000.0,
)


@dataclass(frozen=True)
class Subject:
    """What is checked, and on which rows: `sample` for the initial loss, `spread` for all else."""

    declaration: Declaration
    statistics: Statistics
    shape: ModelShape
    network: nn.Module
    loss: Loss
    sample: Probe
    spread: Probe


def preflight(run: RunSpec) -> PreflightReport:
    """All checks of a run's model, loss and labels; failed ones are in the report, none stops the
    others.

    Raises:
        ConfigError: the model cannot be built.
        PreflightError: labels are not valid, or the forward pass cannot be run at all: nothing else
            could be checked.
    """
    # they build on the checks below
    from training.preflight.tokens import check_vocabulary, inspect_tokens

    started, declaration = time.monotonic(), declare(run.declaration)
    reviewed = review_own_module(declaration)  # before anything imports it
    texts = declaration.task.kind == "causal_lm"
    targets = (
        check_vocabulary(run) if texts else check_labels(declaration, run.statistics, run.arrays)
    )
    if targets.verdict == "fail":
        raise PreflightError(line(targets))
    train = load_arrays(run.arrays.train)
    network = build_model(declaration, run.statistics)
    require_layout(network, declaration.train)
    Augment(declaration.train.augment, 0, as_tensors(train))
    optimizer = check_optimizer(declaration, network, run.arrays.train.rows)
    large = sum(p.numel() for p in network.parameters()) > LARGE
    trial = make_trial(declaration, run.statistics, train, large)
    with checked_aside(first_steps(trial)) as tried:
        if texts:
            report = inspect_tokens(declaration, run.statistics, network, train)
        else:
            spread = spread_rows(
                train, ROWS_OF_LARGE if large else ROWS, targets_of(declaration, run.statistics)
            )
            report = inspect(
                declaration,
                run.statistics,
                network,
                first_rows(train, SAMPLE_OF_LARGE if large else SAMPLE_ROWS),
                spread,
            )
        results = [
            judged(r, declaration)
            for r in (
                targets,
                *reviewed,
                *report.checks.results,
                optimizer,
                *check_smoothing(declaration, run.statistics),
            )
        ]
        # else the first steps would only fail for the same reason
        sound = not any(r.verdict == "fail" for r in results)
        results += [judged(r, declaration) for r in tried()] if sound else []
    # alone, as it looks at the time
    results += [judged(check_cost(trial), declaration)] if sound else []
    seconds = time.monotonic() - started
    return report.model_copy(
        update={"checks": CheckReport(results=tuple(results)), "seconds": seconds}
    )


def require_passed(report: PreflightReport) -> None:
    """Let a report without a failed check through.

    Raises:
        PreflightError: one line per failed check: what was found, what to do.
    """
    if report.checks.failed:
        found = "\n  ".join(line(r) for r in report.checks.failed)
        name = report.checks.failed[0].name
        raise PreflightError(
            f"preflight failed, nothing was trained:\n  {found}\nA finding that is meant so:"
            f" checks.allow=[{{check: {name}, reason: …}}]"
        )


def inspect(
    declaration: Declaration,
    statistics: Statistics,
    network: nn.Module,
    sample: Probe,
    spread: Probe,
) -> PreflightReport:
    """All checks of a network on the given rows: `sample` drawn at random, `spread` with pairwise
    different inputs.

    Raises:
        PreflightError: the forward pass cannot be run, or its scores do not have the contract's
            shape.
    """
    started = time.monotonic()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(declaration.train.seed)
        subject = Subject(
            declaration,
            statistics,
            model_shape(declaration, statistics),
            network,
            make_loss(declaration, statistics),
            sample,
            spread,
        )
        results = first_passes(subject, check_forward)
        initial, initial_loss, expected = check_initial_loss(subject)
        gradients, parameters, extremes = (
            check_gradients(subject),
            check_parameters(network, subject.loss, spread),
            check_extremes(subject),
        )
        results += [
            parameters,
            extremes,
            gradients,
            initial,
            check_modes(
                network, spread.first(COMPANY_ROWS).inputs, declaration.train, statistics.rows
            ),
            *check_masks(copy.deepcopy(network), spread.first(COMPANY_ROWS).inputs),
        ]
        company = in_company(subject, check_independence)
        results += company
        losses: tuple[float, ...] = ()
        if gradients.verdict == "pass":  # without gradients it would only fail for the same reason
            learned, losses = overfit(network, declaration, statistics, subject.shape, spread)
            results += [learned, check_layers(network, subject.loss, spread)]
            # which tries codes and values that no row has
            if all(r.verdict == "pass" for r in (extremes, *company)):
                results.append(
                    check_inputs(network, statistics, subject.shape, subject.loss, spread, sample)
                )
    return summed_up(started, network, results, (initial_loss, expected), losses)


def first_passes(
    subject: Subject, check_forward: Callable[[Subject], CheckResult]
) -> list[CheckResult]:
    """The first forward passes; without them nothing else can be checked.

    Args:
        subject: its network has seen no batch yet.
        check_forward: the contract of a forward pass.

    Raises:
        PreflightError: they cannot be run, break the contract, or leave something behind that is
            not allowed.
    """
    results = []
    for check in (
        check_forward,
        lambda fresh: check_effects(fresh.network, fresh.loss, fresh.spread.first(EFFECT_ROWS)),
    ):
        results.append(
            judged(
                check(replace(subject, network=copy.deepcopy(subject.network))), subject.declaration
            )
        )
        if results[-1].verdict == "fail":
            raise PreflightError(line(results[-1]))
    return results


def in_company(
    subject: Subject, check_independence: Callable[[Subject], CheckResult]
) -> list[CheckResult]:
    """Whether scores are repeatable, and where they are, whether rows mix: what is drawn at random
    differs anyhow.
    """
    repeatable = check_repeatable(subject)
    return (
        [check_independence(subject), repeatable] if repeatable.verdict == "pass" else [repeatable]
    )


# ------------------------------------------------------------------------------------------ forward


def check_forward(subject: Subject) -> CheckResult:
    """Forward returns finite raw scores [B, K], for a batch of one too."""
    shape = subject.shape
    for rows in (len(subject.spread), 1):
        try:
            scores = scored(subject.network, subject.spread.first(rows).inputs)
        except ConfigError as error:
            return failed("forward", f"batch of {rows}: {error}", "see README, the model contract")
        except Exception as error:  # a user's module may raise anything
            return failed(
                "forward",
                f"batch of {rows}: forward raised {type(error).__name__}: {error}",
                "run the module on such a batch by hand; a batch of one row must work too: give"
                " batch norm running statistics, squeeze nothing",
            )
        if tuple(scores.shape) != (rows, shape.outputs):
            return failed(
                "forward",
                f"batch of {rows}: expected scores {[rows, shape.outputs]}, got"
                f" {list(scores.shape)}.",
                f"set the width of the last layer to {shape.outputs} and squeeze nothing",
            )
        if not torch.isfinite(scores).all():
            bad = int((~torch.isfinite(scores)).any(1).sum())
            return failed(
                "forward",
                f"scores of {bad} of {rows} rows are not finite with the initial"
                f" weights{_first_bad_module(subject, rows)}.",
                "look for log, division, sqrt or exp of unbounded values in forward, and for"
                " weights that were never initialised",
            )
    if scores.dtype == torch.float64 and not any(
        p.dtype == torch.float64 for p in subject.network.parameters()
    ):  # of which `parameters` tells
        wide = [name for name, t in subject.network.named_buffers() if t.dtype == torch.float64]
        return CheckResult(
            name="forward",
            verdict="warn",
            summary=(
                f"scores are float64{f', from {first_few(wide)}' if wide else ''}: whatever meets"
                " them is computed twice as wide and far slower, and some devices refuse it."
            ),
            remedy=(
                "NumPy makes float64 of Python's numbers: convert with .float() where the tensor is"
                " made"
            ),
        )
    return passed(
        "forward",
        f"Scores are finite, [{len(subject.spread)}, {shape.outputs}] and [1, {shape.outputs}].",
    )


def _first_bad_module(subject: Subject, rows: int) -> str:
    """Name of the first module whose output is not finite, as a clause."""
    found: list[str] = []

    def look(name: str) -> object:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            if not found and isinstance(output, Tensor) and not torch.isfinite(output).all():
                found.append(f" (first in {name or 'the model'}, {type(module).__name__})")

        return hook

    handles = [
        module.register_forward_hook(look(name)) for name, module in subject.network.named_modules()
    ]
    scored(subject.network, subject.spread.first(rows).inputs)
    for handle in handles:
        handle.remove()
    return found[0] if found else ""


def check_extremes(subject: Subject) -> CheckResult:
    """Scores, and the gradient, stay finite for the largest inputs that can come: clip bounds,
    unknown and null categories, extreme tensors.
    """
    bound = subject.statistics.clip or EXTREME
    few = subject.spread.first(2)
    # 0 is what a missing value is filled with where that is the mean
    for sign, code in ((1.0, UNKNOWN), (-1.0, NULL), (0.0, NULL)):
        inputs = {}
        for name, values in few.inputs.items():
            if name == "categorical":
                inputs[name] = torch.full_like(values, code)
            elif values.dtype == torch.uint8:
                inputs[name] = torch.full_like(values, 255 if sign > 0 else 0)
            else:
                inputs[name] = torch.full_like(values, sign * bound)
        what = (
            f"inputs of {sign * bound:+g} standard deviations"
            if sign
            else "rows of zeros, as where all values are missing,"
        )
        what += f" and category code {code}"
        try:
            finite = bool(torch.isfinite(scored(subject.network, inputs)).all())
            steep = _not_finite_gradients(subject, Probe(inputs, few.label)) if finite else []
        except IndexError as error:
            remedy = (
                "codes run from 0, unknown, and 1, null, to shape.categories[i] - 1: look them up"
                " as they are, in tables of that many rows"
            )
            return failed("extremes", f"forward raised IndexError for {what}: {error}.", remedy)
        except Exception as error:  # a user's module may raise anything
            remedy = "let the number of scores depend on the number of rows alone"
            return failed(
                "extremes", f"forward raised {type(error).__name__} for {what}: {error}", remedy
            )
        if not finite:
            return failed(
                "extremes",
                f"scores are not finite for {what}.",
                "bound the inputs with normalize.clip, or look for exp, log and division in"
                " forward",
            )
        if steep:
            return failed(
                "extremes",
                f"scores are finite for {what}, but the gradient of {first_few(steep)} is not: one"
                " such row makes all weights NaN.",
                "look for sqrt, norm and cdist at 0 and for division in forward: add a small"
                " constant below the root",
            )
    if not subject.statistics.clip and (far := _not_finite_far_out(subject, few.inputs)):
        return CheckResult(
            name="extremes",
            verdict="warn",
            summary=far,
            remedy="set normalize.clip, or subtract the maximum before exp, as torch.softmax does",
        )
    if half := computed_in_half(subject.network, few.inputs):
        summary = (
            f"{half} computes in float16, whose largest number is 65504: squares and sums of"
            " outliers overflow, small ones vanish."
        )
        return CheckResult(
            name="extremes",
            verdict="warn",
            summary=summary,
            remedy="compute in the type that forward is given; train.precision sets it",
        )
    return passed(
        "extremes",
        f"Scores and gradient stay finite for inputs of ±{bound:g} and of 0, and for unknown and"
        " null categories.",
    )


def _not_finite_far_out(subject: Subject, inputs: dict[str, Tensor]) -> str:
    """Whether a number far out, as columns with a long tail have, gives scores that are not
    finite.
    """
    for sign in (1.0, -1.0):
        far = {
            name: torch.full_like(t, sign * FAR) if name == "numeric" else t
            for name, t in inputs.items()
        }
        if "numeric" in far and not torch.isfinite(scored(subject.network, far)).all():
            return (
                f"scores are not finite for numbers {sign * FAR:+,.0f} standard deviations out, as"
                " sums of money and counts can be, and nothing clips them."
            )
    return ""


def _not_finite_gradients(subject: Subject, rows: Probe) -> list[str]:
    """Parameters whose gradient is not finite in eval mode, where the loss of each row is."""
    student = copy.deepcopy(subject.network).eval()
    losses = subject.loss.per_row(student(rows.inputs), rows.label)
    if not losses.requires_grad or not losses.isfinite().all():
        return []
    losses.sum().backward()
    return [
        name
        for name, p in student.named_parameters()
        if p.grad is not None and not p.grad.isfinite().all()
    ]


# ---------------------------------------------------------------------------------------- gradients


def check_gradients(subject: Subject) -> CheckResult:
    """After at most three steps every trainable parameter has had a finite gradient that is not
    zero.
    """
    student = without_dropout(copy.deepcopy(subject.network))
    parameters = {name: p for name, p in student.named_parameters() if p.requires_grad}
    if not parameters:
        return failed(
            "gradients",
            "no parameter is trainable.",
            "set requires_grad to True for the layers to be trained",
        )
    optimizer = torch.optim.AdamW(parameters.values(), lr=1e-3, weight_decay=0.0)
    # with equal weights the signs of an absolute error can add up to exactly 0
    uneven = torch.linspace(0.5, 1.5, len(subject.spread))
    waiting = dict.fromkeys(parameters, "unused in forward, or cut off from the loss")
    for _ in range(GRADIENT_STEPS):
        optimizer.zero_grad(set_to_none=True)
        row_losses = subject.loss.per_row(student(subject.spread.inputs), subject.spread.label)
        loss = (row_losses * uneven).mean()
        if not loss.requires_grad:
            return failed(
                "gradients",
                "the loss has no gradient at all.",
                "look for torch.no_grad(), .detach(), .item(), argmax or NumPy in forward",
            )
        loss.backward()
        for name in list(waiting):
            gradient = parameters[name].grad
            if gradient is None:
                continue
            if not torch.isfinite(gradient).all():
                return failed(
                    "gradients",
                    f"the gradient of {name} is not finite.",
                    "look for sqrt or log at 0 and for division by 0 in forward: their value can be"
                    " finite where their gradient is not",
                )
            if gradient.any():
                del waiting[name]
            else:
                waiting[name] = "gets a gradient of exactly 0"
        optimizer.step()
    if waiting:
        shown = first_few([f"{name} ({why})" for name, why in waiting.items()])
        return failed(
            "gradients",
            f"{len(waiting)} of {len(parameters)} trainable parameters are not reached by the"
            f" gradient: {shown}.",
            "use them in forward, remove .detach() and torch.no_grad() on their path, look for dead"
            " activations, or set requires_grad to False",
        )
    if frozen := frozen_codes(subject.network, subject.shape, subject.spread.inputs):
        return failed(
            "gradients",
            f"a known category is given the padding row of {first_few(frozen)}: it is zero and"
            " never gets a gradient.",
            f"codes are 0 for unknown, 1 for null, and from {FIRST_VALUE} on for values: leave"
            " padding_idx out, or set it to one of the first two",
        )
    return passed(
        "gradients",
        f"The gradient reaches all {len(parameters)} trainable parameters.",
        parameters=len(parameters),
    )


# ------------------------------------------------------------------------------------- initial loss


def check_initial_loss(subject: Subject) -> tuple[CheckResult, float, float]:
    """The loss before training is near that of a constant: the base rate's, or that of scores of
    zero. Also returns loss and theory.
    """
    loss, label = subject.loss, subject.sample.label
    with torch.no_grad():
        found = float(loss(scored(subject.network, subject.sample.inputs), label))
        prior = float(loss(torch.tensor(subject.shape.prior).expand(len(label), -1), label))
        zero = float(loss(torch.zeros(len(label), subject.shape.outputs), label))
        drawn = torch.randn(
            len(label), subject.shape.outputs, generator=torch.Generator().manual_seed(0)
        )
        noise = float(loss(LOUD * drawn, label)), float(loss(TOO_LOUD * drawn, label))
    theory = f"{prior:.4g} for the base rate, {zero:.4g} for scores of 0"
    high = (
        "scores start too large, or sit on a wrong level",
        (
            "give the last layer small weights, and the base rate (shape.prior) as bias; return raw"
            " scores"
        ),
    )
    low = ("the network knows the labels before training", "look for the label among the features")
    return (
        judged_loss(found, theory, {"base_rate": prior, "zero_scores": zero}, high, low, noise),
        found,
        prior,
    )


# ---------------------------------------------------------------------------------------- in
# company


def check_independence(subject: Subject) -> CheckResult:
    """In eval mode a row's scores depend on that row alone: not on its neighbours, not on how many
    they are.
    """
    company = subject.spread.first(COMPANY_ROWS)
    before = scored(subject.network, company.inputs)
    others = torch.arange(1, len(company))
    mixed = largest_difference(
        scored(subject.network, with_other_first_row(company.inputs))[others], before[others]
    )
    if mixed > SAME:
        return failed(
            "independence",
            f"changing one row's inputs moved the scores of others by up to {mixed:.2g}: rows of a"
            " batch mix.",
            "look for softmax, mean, norm or attention over dim 0, for a view that merges rows, and"
            " for batch norm without running statistics",
            difference=mixed,
        )
    alone = torch.cat(
        [
            scored(subject.network, {name: t[i : i + 1] for name, t in company.inputs.items()})
            for i in range(len(company))
        ]
    )
    lonely = largest_difference(alone, before)
    if lonely > SAME:
        return failed(
            "independence",
            f"a row scored alone differs by up to {lonely:.2g} from the same row in a batch of"
            f" {len(company)}.",
            "look for squeeze() without a dimension and for statistics over the batch in eval mode",
            difference=lonely,
        )
    return passed(
        "independence",
        "A row's scores do not depend on its neighbours (largest difference"
        f" {max(mixed, lonely):.1g}).",
    )


def check_repeatable(subject: Subject) -> CheckResult:
    """Eval mode gives the same scores twice, to the bit."""
    first, second = (scored(subject.network, subject.spread.inputs) for _ in range(2))
    if torch.equal(first, second):
        return passed("repeatable", "Two passes in eval mode give the same scores, to the bit.")
    return failed(
        "repeatable",
        f"two passes in eval mode differ by up to {largest_difference(first, second):.2g}.",
        "pass self.training to functional dropout and noise, and draw nothing at random in eval"
        " mode",
    )
