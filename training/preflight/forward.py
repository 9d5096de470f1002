"""Preflight checks of a forward pass in eval mode: shape, first loss, extremes and independent
rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from schemas.errors import ConfigError, PreflightError, first_few
from schemas.records import CheckResult
from training.data.leakage.verdict import judged
from training.models.shape import NULL, UNKNOWN
from training.preflight.resume import check_effects
from training.preflight.subject import (
    Probe,
    Subject,
    hooked,
    scored,
    scored_alone,
    with_other_first_row,
)
from training.preflight.verdict import SAME, Check, judged_loss, largest_difference, line

FORWARD = Check("forward")
INDEPENDENCE = Check("independence")
REPEATABLE = Check("repeatable")
EXTREMES = Check("extremes")
EFFECT_ROWS = 4  # rows for side effects, which any batch shows
COMPANY_ROWS = 16  # rows to check that rows do not mix
LOUD, TOO_LOUD = 1.5, 2.5  # deviation of the first scores that causes a warning; that stops the run
# standard deviations, if the declaration sets no clip; of one row in a long-tailed column
EXTREME, FAR = 10.0, 1000.0


def first_passes(
    subject: Subject, check_forward: Callable[[Subject], CheckResult]
) -> list[CheckResult]:
    """Run the first forward passes, without which no other check is possible.

    Args:
        subject: subject whose network has processed no batch yet.
        check_forward: check of the forward contract.

    Raises:
        PreflightError: a pass fails, breaks the contract, or has a forbidden side effect.
    """
    few, results = subject.spread.first(EFFECT_ROWS), list[CheckResult]()
    for check in (check_forward, lambda fresh: check_effects(fresh.network, fresh.loss, few)):
        fresh = replace(subject, network=copy.deepcopy(subject.network))
        results.append(judged(check(fresh), subject.declaration))
        if results[-1].verdict == "fail":
            raise PreflightError(line(results[-1]))
    return results


def in_company(
    subject: Subject, check_independence: Callable[[Subject], CheckResult]
) -> list[CheckResult]:
    """Check that scores are repeatable and, if so, that rows do not mix. Random scores differ
    anyway.
    """
    repeatable = check_repeatable(subject)
    if repeatable.verdict != "pass":
        return [repeatable]
    return [check_independence(subject), repeatable]


def check_forward(subject: Subject) -> CheckResult:
    """Check that forward returns finite raw scores [B, K], also for a batch of one."""
    shape = subject.shape
    for rows in (len(subject.spread), 1):
        try:
            scores = scored(subject.network, subject.spread.first(rows).inputs)
        except ConfigError as error:
            return FORWARD.failed(f"batch of {rows}: {error}", "see README, the model contract")
        except Exception as error:  # a user's module may raise anything
            return FORWARD.failed(
                f"batch of {rows}: forward raised {type(error).__name__}: {error}",
                "run the module on such a batch by hand; a batch of one row must work too: give"
                " batch norm running statistics, squeeze nothing",
            )
        if tuple(scores.shape) != (rows, shape.outputs):
            return FORWARD.failed(
                f"batch of {rows}: expected scores {[rows, shape.outputs]}, got"
                f" {list(scores.shape)}.",
                f"set the width of the last layer to {shape.outputs} and squeeze nothing",
            )
        if not torch.isfinite(scores).all():
            bad = int((~torch.isfinite(scores)).any(1).sum())
            return FORWARD.failed(
                f"scores of {bad} of {rows} rows are not finite with the initial"
                f" weights{_first_bad_module(subject, rows)}.",
                "look for log, division, sqrt or exp of unbounded values in forward, and for"
                " weights that were never initialised",
            )
    types = {p.dtype for p in subject.network.parameters()}  # the parameters check reports these
    # without parameters there are trees, which compare and add in float64
    if scores.dtype == torch.float64 and types and torch.float64 not in types:
        wide = [name for name, t in subject.network.named_buffers() if t.dtype == torch.float64]
        return FORWARD.warned(
            f"scores are float64{f', from {first_few(wide)}' if wide else ''}: whatever meets"
            " them is computed twice as wide and far slower, and some devices refuse it.",
            "NumPy makes float64 of Python's numbers: convert with .float() where the tensor is"
            " made",
        )
    return FORWARD.passed(
        f"Scores are finite, [{len(subject.spread)}, {shape.outputs}] and [1, {shape.outputs}]."
    )


def _first_bad_module(subject: Subject, rows: int) -> str:
    """Return the name of the first module with a non-finite output, as a clause."""
    found: list[str] = []

    def look(name: str, module: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and not torch.isfinite(output).all():
            found.append(f" (first in {name or 'the model'}, {type(module).__name__})")

    with hooked(subject.network, after=look):
        scored(subject.network, subject.spread.first(rows).inputs)
    return found[0] if found else ""


def check_initial_loss(subject: Subject) -> tuple[CheckResult, float, float]:
    """Check that the initial loss is near that of the base rate or of zero scores. Also return the
    loss and the base rate's loss.
    """
    loss, label = subject.loss, subject.sample.label
    with torch.no_grad():
        found = float(loss(scored(subject.network, subject.sample.inputs), label))
        prior = float(loss(torch.tensor(subject.shape.prior).expand(len(label), -1), label))
        zero = float(loss(torch.zeros(len(label), subject.shape.outputs), label))
        fixed = torch.Generator().manual_seed(0)
        drawn = torch.randn(len(label), subject.shape.outputs, generator=fixed)
        noise = float(loss(LOUD * drawn, label)), float(loss(TOO_LOUD * drawn, label))
    theory = f"{prior:.4g} for the base rate, {zero:.4g} for scores of 0"
    remedy = "give the last layer small weights, and the base rate (shape.prior) as bias; return"
    high = ("scores start too large, or sit on a wrong level", f"{remedy} raw scores")
    low = ("the network knows the labels before training", "look for the label among the features")
    bounds = {"base_rate": prior, "zero_scores": zero}
    judged = judged_loss(found, theory, bounds, high, low, noise, subject.is_loaded)
    return judged, found, prior


def check_independence(subject: Subject) -> CheckResult:
    """Check that a row's scores in eval mode depend neither on other rows nor on their number."""
    company = subject.spread.first(COMPANY_ROWS)
    before = scored(subject.network, company.inputs)
    changed = scored(subject.network, with_other_first_row(company.inputs))
    mixed = largest_difference(changed[1:], before[1:])
    if mixed > SAME:
        return INDEPENDENCE.failed(
            f"changing one row's inputs moved the scores of others by up to {mixed:.2g}: rows of a"
            " batch mix.",
            "look for softmax, mean, norm or attention over dim 0, for a view that merges rows, and"
            " for batch norm without running statistics",
            difference=mixed,
        )
    lonely = largest_difference(scored_alone(subject.network, company.inputs), before)
    if lonely > SAME:
        return INDEPENDENCE.failed(
            f"a row scored alone differs by up to {lonely:.2g} from the same row in a batch of"
            f" {len(company)}.",
            "look for squeeze() without a dimension and for statistics over the batch in eval mode",
            difference=lonely,
        )
    return INDEPENDENCE.passed(
        "A row's scores do not depend on its neighbours (largest difference"
        f" {max(mixed, lonely):.1g})."
    )


def check_repeatable(subject: Subject) -> CheckResult:
    """Check that eval mode gives bitwise equal scores twice."""
    first, second = (scored(subject.network, subject.spread.inputs) for _ in range(2))
    if torch.equal(first, second):
        return REPEATABLE.passed("Two passes in eval mode give the same scores, to the bit.")
    return REPEATABLE.failed(
        f"two passes in eval mode differ by up to {largest_difference(first, second):.2g}.",
        "pass self.training to functional dropout and noise, and draw nothing at random in eval"
        " mode",
    )


def check_extremes(subject: Subject) -> CheckResult:
    """Check that scores and gradient are finite for extreme inputs: clip bounds, tensors, unknown
    and null categories.
    """
    bound, few = subject.statistics.clip or EXTREME, subject.spread.first(2)
    # 0 is the fill value of a missing number where it is the mean
    for sign, code in ((1.0, UNKNOWN), (-1.0, NULL), (0.0, NULL)):
        if wrong := _check_extreme(subject, few, sign * bound, code):
            return wrong
    smooth = all(s.method == "smooth" for s in subject.statistics.numeric)
    unbounded = not subject.statistics.clip and not smooth
    if unbounded and (far := _not_finite_far_out(subject, few.inputs)):
        return EXTREMES.warned(
            f"scores are not finite for numbers {far:+,.0f} standard deviations out, as sums of"
            " money and counts can be, and nothing clips them.",
            "set normalize.clip, or subtract the maximum before exp, as torch.softmax does",
        )
    if half := computed_in_half(subject.network, few.inputs):
        return EXTREMES.warned(
            f"{half} computes in float16, whose largest number is 65504: squares and sums of"
            " outliers overflow, small ones vanish.",
            "compute in the type that forward is given; train.precision sets it",
        )
    return EXTREMES.passed(
        f"Scores and gradient stay finite for inputs of ±{bound:g} and of 0, and for unknown and"
        " null categories."
    )


def _check_extreme(subject: Subject, few: Probe, bound: float, code: int) -> CheckResult | None:
    """Check scores and gradient of rows filled with one value."""
    inputs = {}
    for name, values in few.inputs.items():
        of_bytes = values.dtype == torch.uint8
        is_code = name == "categorical" or name.startswith("bag_")
        value = code if is_code else 255 * (bound > 0) if of_bytes else bound
        inputs[name] = torch.full_like(values, value)
    what = f"inputs of {bound:+g} standard deviations and category code {code}"
    if not bound:
        what = f"rows of zeros, as where all values are missing, and category code {code}"
    try:
        finite = bool(torch.isfinite(scored(subject.network, inputs)).all())
        steep = _not_finite_gradients(subject, Probe(inputs, few.label)) if finite else []
    except IndexError as error:
        return EXTREMES.failed(
            f"forward raised IndexError for {what}: {error}.",
            "codes run from 0, unknown, and 1, null, to shape.categories[i] - 1: look them up as"
            " they are, in tables of that many rows",
        )
    except Exception as error:  # a user's module may raise anything
        return EXTREMES.failed(
            f"forward raised {type(error).__name__} for {what}: {error}",
            "let the number of scores depend on the number of rows alone",
        )
    if not finite:
        return EXTREMES.failed(
            f"scores are not finite for {what}.",
            "bound the inputs with normalize.clip, or look for exp, log and division in forward",
        )
    if steep:
        return EXTREMES.failed(
            f"scores are finite for {what}, but the gradient of {first_few(steep)} is not: one such"
            " row makes all weights NaN.",
            "look for sqrt, norm and cdist at 0 and for division in forward: add a small constant"
            " below the root",
        )
    return None


def _not_finite_far_out(subject: Subject, inputs: dict[str, Tensor]) -> float:
    """Return a large number, as in a long-tailed column, with non-finite scores, or 0."""
    for far in (FAR, -FAR) if "numeric" in inputs else ():
        numeric = torch.full_like(inputs["numeric"], far)
        scores = scored(subject.network, {**inputs, "numeric": numeric})
        if not torch.isfinite(scores).all():
            return far
    return 0.0


def _not_finite_gradients(subject: Subject, rows: Probe) -> list[str]:
    """Return parameters with a non-finite gradient in eval mode, if each loss is finite."""
    student = copy.deepcopy(subject.network).eval()
    losses = subject.loss.per_row(student(rows.inputs), rows.label)
    if not losses.requires_grad or not losses.isfinite().all():
        return []
    losses.sum().backward()
    gradients = {name: p.grad for name, p in student.named_parameters() if p.grad is not None}
    return [name for name, gradient in gradients.items() if not gradient.isfinite().all()]


class _Halves(TorchDispatchMode):
    """Mode that remembers the first operation with a float16 result."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: list[str] = []  # names of the running modules
        self.found = ""

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if not self.found and isinstance(result, Tensor) and result.dtype == torch.float16:
            self.found = self.inside[-1] if self.inside else "the model"
        return result


def computed_in_half(network: nn.Module, inputs: dict[str, Tensor]) -> str:
    """Return the innermost module that first computes in float16 for float32 inputs. The name is
    empty if none does.
    """
    student, halves = copy.deepcopy(network), _Halves()

    def enter(name: str, _module: nn.Module, _given: object) -> None:
        halves.inside.append(name or "the model")

    def leave(_name: str, _module: nn.Module, _given: object, _result: object) -> None:
        halves.inside.pop()

    with hooked(student, enter, leave), halves:
        scored(student, inputs)
    return halves.found
