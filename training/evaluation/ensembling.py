"""Combine trained members into one network: their weights, its file, its record.

Source of the greedy weights: Caruana, Niculescu-Mizil, Crew, Ksikes, Ensemble Selection from
Libraries of Models, ICML 2004 (selection with replacement, started from the best model, bagged).
M members, N validation rows, K scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from schemas import digest
from schemas.config import Declaration
from schemas.load import declare
from schemas.member_records import MemberReport
from schemas.members import folded, members_of
from schemas.records import RunSpec, SplitArrays, Statistics, TrainReport
from training.checkpoint.commit import disk_full_said, num_bytes_of
from training.checkpoint.state import model_digest
from training.data.arrays.shards import load_arrays
from training.evaluation.row_ids import read_groups
from training.models.build import count_parameters
from training.models.ensemble import Ensemble, build_ensemble
from training.objectives.bootstrap import resample_counts, units_of
from training.objectives.calibration import fit_temperature
from training.objectives.losses import Loss, make_loss
from training.objectives.mean_prediction import Column, combine, label_columns
from training.objectives.metrics import compute, predict
from training.serving.reference_network import read_state, reference_network, reference_scores

ROUNDS = 25
BAGS = 10  # resamples of the validation rows, so that few rows do not decide for one member
LEAST_WEIGHT = 0.02  # a member below it is left out: it would only cost time at serving
EQUAL_ROWS = 500  # so many validation rows count as much as the guess that all members are equal
ROUNDING = 1e-9  # relative difference of two losses that counts as a tie


class Trained(NamedTuple):
    """A member's number, counted from 1, its inputs and its result."""

    number: int
    spec: RunSpec
    report: TrainReport


class Rows(NamedTuple):
    """Labels [N] or [N, L] and perhaps weights [N] of the rows that the members are judged on."""

    label: np.ndarray
    weight: np.ndarray | None


def combine_members(
    run: RunSpec, members: Sequence[Trained], out_dir: Path
) -> tuple[RunSpec, TrainReport]:
    """Write `model.pt`, the state of the ensemble; return the run with the members it consists of.

    Members of an ensemble have equal weights. Those of `model.kind: auto` get greedy ones, by the
    training loss on validation rows; a member of weight 0 is left out. Test rows are not read.

    Args:
        run: the run of all of them.
        members: in the order in which they were trained, at least one.
        out_dir: folder of the file.

    Raises:
        IntegrityError: weights or arrays of a member were changed after they were written.
    """
    declaration = declare(run.declaration)
    over_folds = folded(declaration) is not None
    scores, rows = _own_scores(members) if over_folds else _common_scores(run, members)
    weights, divisors = [1 / len(members)] * len(members), [1.0] * len(members)
    if declaration.ensemble is None:
        divisors = temperatures(declaration, scores, rows)
        cooled = np.stack(scores) / np.array(divisors)[:, None, None]
        weights = bagged_weights(declaration, run, cooled, rows)
    used = [at for at, weight in enumerate(weights) if weight]
    kept = tuple(members[at].number for at in used)
    whole, path = run.model_copy(update={"members": kept}), out_dir / "model.pt"
    network = build_ensemble(declaration, run.statistics, kept)
    for module, at in zip(network.members, used, strict=True):
        module.load_state_dict(read_state(digest.verify(members[at].report.best_checkpoint)))
    for buffer, values in ((network.weights, weights), (network.temperatures, divisors)):
        buffer.copy_(torch.tensor([values[at] for at in used], dtype=torch.float64))
    state = network.state_dict()
    out_dir.mkdir(parents=True, exist_ok=True)
    with disk_full_said(out_dir, num_bytes_of(state)), digest.replacing(path) as out:
        torch.save(state, out)
    if not over_folds:  # of what was written; of folds each row has its own member's score
        scores = [reference_scores(reference_network(whole, path), run.arrays.val)]
    metrics = compute(declaration, run.statistics, np.concatenate(scores), *rows)
    found = {
        "best_metric": metrics[declaration.metric],
        "best_checkpoint": digest.file_ref(path),
        "model_sha256": model_digest(state),
        "num_parameters": count_parameters(network)[0],
    }
    return whole, _summed(run, declaration, members, weights).model_copy(update=found)


def bagged_weights(
    declaration: Declaration, run: RunSpec, scores: np.ndarray, rows: Rows
) -> list[float]:
    """Return the weight of each member: the mean of its greedy shares over resamples of the rows.

    Whole groups are drawn where rows are grouped. Members of next to no weight get 0; weights of
    the others are drawn towards their mean, the more the fewer rows there are.

    Args:
        declaration: of the whole run.
        run: the run of all of them, for the groups of its validation rows.
        scores: of each member [M, N, K].
        rows: labels and weights of the same rows.
    """
    if len(scores) == 1:
        return [1.0]
    loss = make_loss(declaration, run.statistics)
    columns = label_columns(declaration, run.statistics)
    units = units_of(read_groups(run.arrays.val), len(rows.label))
    whole = np.ones(len(units)) if rows.weight is None else rows.weight
    total = np.zeros(len(scores))
    for counts in resample_counts(int(units.max()) + 1, BAGS, declaration.train.seed):
        drawn = Rows(rows.label, (counts[units] * whole).astype(np.float32))
        shares = np.array(greedy_shares(loss, columns, scores, drawn), dtype=np.float64)
        total += shares / shares.sum()
    kept = total >= LEAST_WEIGHT * BAGS
    share = len(rows.label) / (len(rows.label) + EQUAL_ROWS)
    weights = share * total / total[kept].sum() + (1 - share) / kept.sum()
    return [float(weight) for weight in np.where(kept, weights, 0.0)]


def temperatures(declaration: Declaration, scores: Sequence[np.ndarray], rows: Rows) -> list[float]:
    """Return the temperature of each member: networks at their best AUROC are often too sure.

    It is 1 where scores are not those of one class label.
    """
    if declaration.loss_kind not in ("bce", "cross_entropy"):
        return [1.0] * len(scores)
    return [fit_temperature(each, rows.label, rows.weight) for each in scores]


def greedy_shares(
    loss: Loss, columns: Sequence[Column], scores: np.ndarray, rows: Rows, rounds: int = ROUNDS
) -> list[int]:
    """Return how often each member was selected: its weight is that over the sum.

    It starts from the member of the lowest loss. Each round adds the member, chosen before or not,
    with which the mean prediction has the lowest loss. Of all rounds the blend of the lowest loss
    is kept, the earliest at a tie, so that a blend that is no better than its first member is that
    member.

    Args:
        loss: the training loss.
        columns: link of each label, and its columns of the scores.
        scores: of each member [M, N, K].
        rows: labels and weights of the same rows.
        rounds: most selections.
    """
    given, label = torch.from_numpy(scores), torch.from_numpy(np.array(rows.label))
    weight = None if rows.weight is None else torch.from_numpy(np.array(rows.weight))
    counts, best, lowest = [0] * len(scores), [0] * len(scores), np.inf
    with torch.inference_mode():
        for _ in range(rounds):
            tried = [
                [n + (at == number) for at, n in enumerate(counts)] for number in range(len(scores))
            ]
            losses = [_blend_loss(loss, columns, given, label, weight, each) for each in tried]
            least = min(losses) + ROUNDING * abs(min(losses))
            number = next(at for at, value in enumerate(losses) if value <= least)
            counts = tried[number]
            if losses[number] < lowest * (1 - ROUNDING):
                best, lowest = counts, losses[number]
    return best


def member_spread(
    network: torch.nn.Module, declaration: Declaration, statistics: Statistics, arrays: SplitArrays
) -> np.ndarray | None:
    """Return the weighted standard deviation of the members' predictions [N].

    Of a class label it is that of the probability on which they differ most, else it has the unit
    of the label. None for one network, and for several labels, which have no common unit.
    """
    if not isinstance(network, Ensemble) or statistics.labels:
        return None
    each = [
        predict(declaration, statistics, reference_scores(member, arrays)).reshape(arrays.rows, -1)
        for member in network.members
    ]
    weights = network.weights.numpy()
    mean = np.tensordot(weights, np.stack(each), axes=1)
    variance = np.tensordot(weights, (np.stack(each) - mean) ** 2, axes=1)
    return np.asarray(np.sqrt(variance.max(axis=1)))


def _blend_loss(
    loss: Loss,
    columns: Sequence[Column],
    scores: Tensor,
    label: Tensor,
    weight: Tensor | None,
    counts: list[int],
) -> float:
    used = [at for at, count in enumerate(counts) if count]
    shares = torch.tensor([counts[at] for at in used], dtype=torch.float64) / sum(counts)
    return float(loss(combine(columns, scores[used], shares), label, weight))


def _common_scores(run: RunSpec, members: Sequence[Trained]) -> tuple[list[np.ndarray], Rows]:
    """Return every member's scores [N, K] of the run's validation rows."""
    found = [reference_scores(_network(member), run.arrays.val) for member in members]
    return found, _rows(run.arrays.val)


def _own_scores(members: Sequence[Trained]) -> tuple[list[np.ndarray], Rows]:
    """Return each member's scores [N of its fold, K] of the rows that it did not train on."""
    found = [reference_scores(_network(member), member.spec.arrays.val) for member in members]
    rows = [_rows(member.spec.arrays.val) for member in members]
    weights = [row.weight for row in rows if row.weight is not None]
    return found, Rows(
        np.concatenate([row.label for row in rows]), np.concatenate(weights) if weights else None
    )


def _network(member: Trained) -> torch.nn.Module:
    return reference_network(member.spec, digest.verify(member.report.best_checkpoint))


def _rows(arrays: SplitArrays) -> Rows:
    data = load_arrays(arrays)
    return Rows(data["label"], data.get("weight"))


def _summed(
    run: RunSpec, declaration: Declaration, members: Sequence[Trained], weights: Sequence[float]
) -> TrainReport:
    """Sum up the members' reports; file, digest and metric are still those of the first."""
    reports, declared = [member.report for member in members], members_of(declaration)
    seconds = sum(report.seconds for report in reports)
    rows = sum(report.rows_per_second * report.seconds for report in reports)
    return reports[0].model_copy(
        update={
            "run_id": run.run_id,
            "status": next((r.status for r in reports if r.status == "finished"), "stopped_early"),
            "epochs": max(report.epochs for report in reports),
            "steps": sum(report.steps for report in reports),
            "best_step": max(report.best_step for report in reports),
            "seconds": seconds,
            "rows_per_second": rows / seconds if seconds else 0.0,
            "skipped_steps": sum(report.skipped_steps for report in reports),
            "promise": "; ".join(dict.fromkeys(report.promise for report in reports)),
            "instabilities": tuple(
                f"member {member.number}: {note}"
                for member in members
                for note in member.report.instabilities
            ),
            "observed": None,
            "members": tuple(
                MemberReport(
                    number=number,
                    kind=declared[number - 1].model.kind,
                    seed=declared[number - 1].train.seed,
                    weight=weight,
                    metric=report.best_metric,
                    seconds=report.seconds,
                    parameters=report.num_parameters,
                    model_sha256=report.model_sha256,
                )
                for (number, _, report), weight in zip(members, weights, strict=True)
            ),
        }
    )
